package bench

import (
	"math/rand/v2"

	"github.com/flashkit-go/flashkit"
)

// Limits of random problems. A portable kernel computes a problem at these limits in about a
// second.
const (
	randomFLOPs = 3e9 // of the forward pass
	randomBytes = 256 << 20
)

// RandomProblems draws n problems, which depend on the seed only: decode and prefill, short and
// long, batches, GQA, masks, odd head dims. Most of these problems are in neither RegretGrid nor
// CalibrateGrid.
func RandomProblems(seed uint64, n int) (list []flashkit.Problem) {
	r := rand.New(rand.NewPCG(seed, 3))
	for len(list) < n {
		p := randomProblem(r)
		if p.Validate() == nil && p.FLOPs(flashkit.PassForward) <= randomFLOPs && p.Bytes(flashkit.PassForward) <= randomBytes {
			list = append(list, p)
		}
	}
	return list
}

func randomProblem(r *rand.Rand) flashkit.Problem {
	pick := func(of ...int) int { return of[r.IntN(len(of))] }
	upTo := func(bits int) int { return 1 + r.IntN(1<<(1+r.IntN(bits))) } // its logarithm is about uniform: short and long lengths are equally likely
	p := flashkit.Problem{Batch: 1, KVHeads: pick(1, 2, 3, 4, 6, 8, 12, 16), DType: flashkit.DType(r.IntN(3))}
	p.Heads = p.KVHeads * pick(1, 1, 1, 2, 4, 8)
	p.Dim = pick(32, 40, 64, 64, 64, 72, 80, 96, 128, 128, 128, 160, 192, 256)
	p.VDim = p.Dim
	if r.IntN(3) == 0 {
		p.Batch = upTo(7)
	}
	switch r.IntN(3) {
	case 0: // decode, or a few rows
		p.QLen, p.KVLen = pick(1, 1, 1, 2, 4, 8, 16), upTo(14)
	case 1: // self-attention
		p.QLen = upTo(12)
		p.KVLen = p.QLen
	default:
		p.QLen, p.KVLen = upTo(11), upTo(12)
	}
	switch r.IntN(4) {
	case 0:
		p.Band = flashkit.Causal()
	case 1:
		p.Band = flashkit.Window(upTo(10), pick(0, 0, 16, 128))
	}
	return p
}
