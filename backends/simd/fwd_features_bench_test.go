package simd_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// featureCosts lists single features with typical arguments.
var featureCosts = []struct {
	name    string
	feature flashkit.Feature
	keys    bool    // bias or mask repeats over rows
	hides   float64 // fraction of the pairs, or of the keys, that the mask hides
	run     int     // length of a run of hidden pairs
}{
	{name: "alibi", feature: flashkit.FeatureALiBi},
	{name: "sink", feature: flashkit.FeatureSink},
	{name: "softcap", feature: flashkit.FeatureSoftcap},
	{name: "dropout", feature: flashkit.FeatureDropout},
	{name: "bias", feature: flashkit.FeatureBias},
	{name: "bias-of-keys", feature: flashkit.FeatureBias, keys: true},
	{name: "mask", feature: flashkit.FeatureMask, hides: .1, run: 1},
	{name: "mask-of-keys", feature: flashkit.FeatureMask, keys: true, hides: .02, run: 64},
	{name: "mask-of-keys-holes", feature: flashkit.FeatureMask, keys: true, hides: .1, run: 1},
}

// BenchmarkForwardFeatures measures each feature against a plain call of the same kernel, in turns.
// FLASHKIT_BENCH lists names of other problems, separated by commas.
func BenchmarkForwardFeatures(b *testing.B) {
	names := os.Getenv("FLASHKIT_BENCH")
	if names == "" {
		names = "b1-h1-g1-n1024-m1024-d64-f32,b1-h1-g1-n1024-m1024-d64-f32-causal,b1-h1-g1-n1024-m1024-d128-f32,b1-h1-g1-n4096-m4096-d64-f32"
	}
	r := rand.New(rand.NewPCG(1, 2))
	for name := range strings.SplitSeq(names, ",") {
		plain, err := flashkit.ParseProblem(name)
		require.NoError(b, err)
		for _, x := range featureCosts {
			p := plain
			addFeatures(&p, x.feature)
			p.Score.Softcap *= 15
			args := drawArgs(r, p, x.keys)
			drawMask(r, args.Mask, x.hides, x.run)
			bare := *args
			bare.Slopes, bare.Sink, bare.Bias, bare.Mask = flashkit.Tensor{}, flashkit.Tensor{}, flashkit.Tensor{}, flashkit.Tensor{}
			for _, k := range forwards(&p) {
				if strings.HasSuffix(k.Name, "_generic") || strings.Contains(k.Name, "decode") {
					continue
				}
				b.Run(fmt.Sprintf("%s/%s/%s", k.Name, name, x.name), func(b *testing.B) { comparePlain(b, k, plain, &bare, p, args) })
			}
		}
	}
}

// drawArgs returns random arguments of a forward call. Bias and mask have a row for each query row,
// or one row for all if ofKeys is true.
func drawArgs(r *rand.Rand, p flashkit.Problem, ofKeys bool) *flashkit.Args {
	args := flashkit.NewArgs(p, flashkit.PassForward)
	if ofKeys && p.Score.Bias {
		args.Bias = flashkit.F32(make([]float32, p.Batch*p.KVLen), p.Batch, 1, 1, p.KVLen)
	}
	if ofKeys && p.Score.Mask {
		args.Mask = flashkit.Bools(make([]bool, p.Batch*p.KVLen), p.Batch, 1, 1, p.KVLen)
	}
	for i := range args.Ranges.Int32s() {
		args.Ranges.Int32s()[i] = int32(i % 4 * p.KVLen / 3)
	}
	for _, t := range []flashkit.Tensor{args.Q, args.K, args.V, args.Bias, args.Slopes, args.Sink} {
		if !t.IsZero() {
			change(t, func([4]int, float32) float32 { return float32(r.NormFloat64()) })
		}
	}
	return args
}

// drawMask hides a fraction of the pairs, in runs of the given length.
func drawMask(r *rand.Rand, mask flashkit.Tensor, part float64, run int) {
	on := true
	for i := range mask.Bools() {
		if i%max(1, run) == 0 {
			on = r.Float64() >= part
		}
		mask.Bools()[i] = on
	}
}

var started = time.Now()

// clock returns the time since the start of the program.
var clock = func() time.Duration { return time.Since(started) }

// comparePlain runs a call with features and a plain one in turns. From several turns it takes the
// shortest time of each call, because other work on the machine only adds time. It reports the
// median of the ratios of these times, because the processor's clock changes.
func comparePlain(b *testing.B, k flashkit.Kernel, plain flashkit.Problem, bare *flashkit.Args, p flashkit.Problem, args *flashkit.Args) {
	const turns = 8
	least := func(best *float64, p flashkit.Problem, args *flashkit.Args) {
		start := clock()
		require.NoError(b, k.Compute(b.Context(), p, args))
		*best = min(*best, float64((clock() - start).Nanoseconds()))
	}
	var times, ratios []float64
	for b.Loop() {
		before, with := math.Inf(1), math.Inf(1)
		for range turns {
			least(&before, plain, bare)
			least(&with, p, args)
		}
		times, ratios = append(times, before), append(ratios, with/before)
	}
	slices.Sort(times)
	slices.Sort(ratios)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(times[len(times)/2]/float64(p.Batch*p.Heads)/float64(p.Area()), "plain-ns/pair")
	b.ReportMetric(ratios[len(ratios)/2], "x-plain")
}
