package simd_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

// A priced is a feature whose cost is measured, with a shape of bias and mask.
type priced struct {
	name     string
	features flashkit.Feature
	shape    func(p flashkit.Problem) [4]int // of bias and mask
}

var pricedFeatures = []priced{
	{"alibi", flashkit.FeatureALiBi, nil},
	{"sink", flashkit.FeatureSink, nil},
	{"keymask", flashkit.FeatureMask, func(p flashkit.Problem) [4]int { return [4]int{p.Batch, 1, 1, p.KVLen} }},
	{"softcap", flashkit.FeatureSoftcap, nil},
	{"dropout", flashkit.FeatureDropout, nil},
	{"mask", flashkit.FeatureMask, func(p flashkit.Problem) [4]int { return [4]int{p.Batch, p.Heads, p.QLen, p.KVLen} }},
	{"bias", flashkit.FeatureBias, func(p flashkit.Problem) [4]int { return [4]int{p.Batch, p.Heads, p.QLen, p.KVLen} }},
	{"headsbias", flashkit.FeatureBias, func(p flashkit.Problem) [4]int { return [4]int{p.Batch, 1, p.QLen, p.KVLen} }},
	{"keybias", flashkit.FeatureBias, func(p flashkit.Problem) [4]int { return [4]int{1, p.Heads, 1, p.KVLen} }},
}

// cpuTime returns the CPU time of the process so far, in seconds. Other processes disturb CPU time
// less than elapsed time.
func cpuTime(b *testing.B) float64 {
	var u syscall.Rusage
	require.NoError(b, syscall.Getrusage(syscall.RUSAGE_SELF, &u))
	return float64(u.Utime.Nano()+u.Stime.Nano()) / float64(time.Second)
}

// BenchmarkBackwardPrices measures the cost of each feature. It runs calls with and without the
// feature in turns, and reports the median of the ratios of their CPU times. FLASHKIT_BENCH names
// the problem, and FLASHKIT_KERNEL the kernel.
func BenchmarkBackwardPrices(b *testing.B) {
	name := os.Getenv("FLASHKIT_BENCH")
	if name == "" {
		name = "b1-h2-g2-n1024-m1024-d64-f32"
	}
	for _, k := range simd.New().Kernels() {
		p := problem(b, name, flashkit.Float32)
		if parsed, err := flashkit.ParseProblem(name); err == nil {
			p = parsed
		}
		if only := os.Getenv("FLASHKIT_KERNEL"); k.Pass != flashkit.PassBackward || k.Name == "simd/bwd_generic" || only != "" && k.Name != only || k.Fits(p.Ask(k.Pass)) != "" {
			continue
		}
		plain := pricedArgs(p, nil)
		for _, f := range pricedFeatures {
			q := p
			addFeatures(&q, f.features)
			if k.Fits(q.Ask(k.Pass)) != "" {
				continue
			}
			args := pricedArgs(q, f.shape)
			b.Run(fmt.Sprintf("%s/%s", k.Name, f.name), func(b *testing.B) {
				time1 := func(p flashkit.Problem, a *flashkit.Args) float64 {
					start := cpuTime(b)
					require.NoError(b, k.Compute(context.Background(), p, a))
					return cpuTime(b) - start
				}
				time1(q, args)
				var ratios, plains, alls []float64
				for b.Loop() {
					x, y := time1(p, plain), time1(q, args)
					z, u := time1(q, args), time1(p, plain)
					ratios, plains, alls = append(ratios, (y+z)/(x+u)), append(plains, x, u), append(alls, y, z)
				}
				slices.Sort(ratios)
				pairs := float64(p.Batch) * float64(p.Heads) * float64(p.Area())
				b.ReportMetric(ratios[len(ratios)/2], "x-plain")
				slices.Sort(plains)
				slices.Sort(alls)
				b.ReportMetric(alls[len(alls)/10]/plains[len(plains)/10], "x-tenth")
				b.ReportMetric(slices.Min(plains)*1e9/pairs, "ns/pair")
				b.ReportMetric(0, "ns/op")
			})
		}
	}
}

// pricedArgs returns random arguments for a problem.
func pricedArgs(p flashkit.Problem, shape func(p flashkit.Problem) [4]int) *flashkit.Args {
	r := rand.New(rand.NewPCG(1, 2))
	a := flashkit.NewArgs(p, flashkit.PassBackward)
	if shape != nil {
		s := shape(p)
		n := s[0] * s[1] * s[2] * s[3]
		if p.Score.Bias {
			a.Bias = flashkit.F32(make([]float32, n), s[0], s[1], s[2], s[3])
			a.DBias = flashkit.F32(make([]float32, n), s[0], s[1], s[2], s[3])
		}
		if p.Score.Mask {
			a.Mask = flashkit.Bools(make([]bool, n), s[0], s[1], s[2], s[3])
			for i := range a.Mask.Bools() {
				a.Mask.Bools()[i] = r.IntN(8) > 0
			}
		}
	}
	for _, arg := range flashkit.Arguments() {
		if t := arg.Of(a); !t.IsZero() && arg.Role(&p, flashkit.PassBackward)&flashkit.Input != 0 && t.DType() != flashkit.Bool {
			change(*t, func([4]int, float32) float32 { return r.Float32() - .5 })
		}
	}
	each(a.LSE, func(_ [4]int, i int) { a.LSE.Float32s()[i] = 6 })
	return a
}
