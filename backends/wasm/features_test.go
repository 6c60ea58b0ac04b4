package wasm

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// Three known answers, from the list of Philox's authors.
func TestReferencePhilox(t *testing.T) {
	ones := [4]uint32{math.MaxUint32, math.MaxUint32, math.MaxUint32, math.MaxUint32}
	require.Equal(t, [4]uint32{0x5f6fb709, 0x0d893f64, 0x4f121f81, 0x4f730a48}, philoxWords([4]uint32{}, [2]uint32{}))
	require.Equal(t, [4]uint32{0x5207ddc2, 0x45165e59, 0x4d8ee751, 0x8c52f662}, philoxWords(ones, [2]uint32{math.MaxUint32, math.MaxUint32}))
	require.Equal(t, [4]uint32{0x4dfccaba, 0x190a87f0, 0xc47362ba, 0xb6b5242a},
		philoxWords([4]uint32{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, [2]uint32{0xa4093822, 0x299f31d0}))
}

// ask gives p the features in f, with random parameters.
func ask(r *rand.Rand, p *flashkit.Problem, f flashkit.Feature) {
	has := func(x flashkit.Feature) bool { return f&x != 0 }
	if has(flashkit.FeatureShift) {
		p.Band = p.Band.Shift(r.IntN(21) - 10)
	}
	if has(flashkit.FeatureSoftcap) {
		p.Score.Softcap = []float32{.01, .5, 2, 50}[r.IntN(4)]
	}
	p.Score.ALiBi, p.Score.Bias, p.Score.Mask = has(flashkit.FeatureALiBi), has(flashkit.FeatureBias), has(flashkit.FeatureMask)
	p.Score.Sink, p.Carry = has(flashkit.FeatureSink), has(flashkit.FeatureCarry)
	if has(flashkit.FeatureRanges) {
		p.Score.Ranges = 1 + r.IntN(2)
	}
	if has(flashkit.FeatureDropout | flashkit.FeatureOrigin) {
		p.Score.Origin = has(flashkit.FeatureOrigin)
		p.Score.Dropout = []float32{.001, .1, .5, .9}[r.IntN(4)]
	}
	p.Ragged = has(flashkit.FeatureRagged | flashkit.FeaturePage)
	if has(flashkit.FeaturePage) {
		p.Page = []int{1, 3, 16, 130}[r.IntN(4)]
	}
	if has(flashkit.FeatureMixed) {
		p.DType, p.KVDType = flashkit.Float32, flashkit.DType(1+r.IntN(2))
	}
}

func randomProblem(r *rand.Rand, f flashkit.Feature) flashkit.Problem {
	g := 1 + r.IntN(2)
	p := flashkit.Problem{
		Batch: 1 + r.IntN(3), KVHeads: g, Heads: g * (1 + r.IntN(3)), QLen: r.IntN(24), KVLen: r.IntN(60),
		Dim: 1 + r.IntN(19), VDim: 1 + r.IntN(19), DType: flashkit.DType(r.IntN(3)),
	}
	if r.IntN(4) == 0 {
		p.QLen, p.KVLen = 20+r.IntN(120), 130+r.IntN(200)
		p.Batch, p.Heads, p.KVHeads = 1+r.IntN(3), 1+r.IntN(2), 1
	}
	if r.IntN(8) == 0 {
		p.QLen, p.KVLen = 1+r.IntN(9), 500+r.IntN(200)
		p.Batch, p.Heads, p.KVHeads = 3, 4, 2 // enough for chunks of several blocks
	}
	p.Band = []flashkit.Band{{}, flashkit.Causal(), flashkit.Window(5, 3), flashkit.Window(40, flashkit.Unlimited), flashkit.Causal().TopLeft()}[r.IntN(5)]
	ask(r, &p, f)
	return p
}

// Every feature alone, every pair of features, and random sets of features, each in a random layout.
func TestFeatures(t *testing.T) {
	slow.UnderRace(t)
	b := newBackend(t, compiler)
	seed := rand.Uint64()
	var sets []flashkit.Feature
	for i := flashkit.FeatureShift; i < flashkit.AllFeatures; i <<= 1 {
		for j := i; j < flashkit.AllFeatures; j <<= 1 {
			sets = append(sets, i|j)
		}
	}
	random := rand.New(rand.NewPCG(seed, 0))
	rounds := 150
	if testing.Short() || slow.Race {
		rounds = 30
		random.Shuffle(len(sets), func(i, j int) { sets[i], sets[j] = sets[j], sets[i] })
		sets = sets[:len(sets)/2]
	}
	for range rounds {
		sets = append(sets, flashkit.Feature(random.IntN(int(flashkit.AllFeatures)+1)))
	}
	for n, f := range sets {
		for _, k := range b.Kernels() {
			p := randomProblem(random, f&k.Takes)
			p = within(&k, p)
			l := layout{random.IntN(2) == 0, random.IntN(3) > 0, random.IntN(2) == 0, random.IntN(3) > 0}
			label := fmt.Sprintf("seed %d, set %d, %s %s %+v", seed, n, p, k.Name, l)
			newTrial(seed+uint64(n), p, l, k.Pass == flashkit.PassBackward).run(t, &k, label)
		}
	}
}

// Rows with several blocks and chunks of keys, so that the module keeps sums of a row from call to
// call.
func TestFeaturesOfLongRows(t *testing.T) {
	slow.UnderRace(t)
	b := newBackend(t, compiler)
	seed := rand.Uint64()
	random, calls := rand.New(rand.NewPCG(seed, 0)), uint64(16)
	if testing.Short() {
		calls = 5
	}
	for n := range calls {
		for _, k := range b.Kernels() {
			p := randomProblem(random, k.Takes&^flashkit.Feature(random.IntN(int(flashkit.AllFeatures)+1)))
			p.Score.Bias, p.Score.Mask = true, n%2 == 0
			p.Batch, p.Heads, p.KVHeads, p.QLen, p.KVLen, p.Dim, p.VDim = 3, 4, 2, 10+random.IntN(20), 560+random.IntN(200), 3, 5
			if strings.HasPrefix(k.Name, "wasm/decode") {
				p.QLen, p.Dim, p.VDim = 1+random.IntN(headRows/2), 1+random.IntN(70), 1+random.IntN(70)
			}
			label := fmt.Sprintf("seed %d, call %d, %s %s", seed, n, p, k.Name)
			newTrial(seed+n, p, layout{n%4 == 0, true, n%3 == 0, true}, k.Pass == flashkit.PassBackward).run(t, &k, label)
		}
	}
}
