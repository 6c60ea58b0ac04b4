package cuda

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// The predicted chunks of a call with features are its real chunks.
func TestCostOfFeaturesCountsChunks(t *testing.T) {
	b, _ := openFake(t)
	most := 0
	for i := range 2000 {
		r := rand.New(rand.NewPCG(8, uint64(i)))
		p, pass := randomProblem(r)
		p.Score = flashkit.Score{Softcap: 5, Bias: r.IntN(3) == 0, Mask: r.IntN(3) == 0, Sink: r.IntN(6) == 0}
		if r.IntN(8) == 0 {
			p.Score.Dropout = .25
		}
		c, args := p.Ask(pass), new(flashkit.Args)
		for _, a := range flashkit.Arguments() {
			if a.Role(&p, pass) != 0 {
				s := a.Shape(&p)
				*a.Of(args) = map[flashkit.DType]flashkit.Tensor{
					flashkit.Float32: flashkit.F32([]float32{}, s[0], s[1], s[2], s[3]), flashkit.Bool: flashkit.Bools([]bool{}, s[0], s[1], s[2], s[3]),
					flashkit.Float16: flashkit.F16([]uint16{}, s[0], s[1], s[2], s[3]), flashkit.BFloat16: flashkit.BF16([]uint16{}, s[0], s[1], s[2], s[3]),
				}[a.DType(&p)]
			}
		}
		in, out, _ := hostBytes(p, pass)
		chunks := featureChunks(c, in+out+pairBytes(&p))
		c.Args = args
		call := hostCall{b: b, call: c}
		call.cut()
		require.Equal(t, ceilDiv(call.units, call.chunk), chunks, "%v %v", pass, p)
		most = max(most, chunks)
	}
	require.Greater(t, most, 8)
}

// Chunks overlap: twice the batch of a call that is bound by copies takes less than twice the time,
// but no less than the bus.
func TestCostOfFeaturesOverlaps(t *testing.T) {
	b, _ := openFake(t)
	s := &families[fwdSM80]
	cost := func(batch int, buffers int) float64 {
		p := problem(t, "b1-h16-g16-n64-m16384-d128-bf16-softcap5") // of more than half a chunk
		p.Batch = batch
		return s.hostCallCost(&b.dev, p.Ask(flashkit.PassForward), buffers).Seconds()
	}
	require.Less(t, cost(16, 4), .8*16*cost(1, 4))
	require.Less(t, cost(16, 4), cost(16, 1))
	p := problem(t, "b16-h16-g16-n64-m16384-d128-bf16-softcap5")
	in, out, _ := hostBytes(p, flashkit.PassForward)
	require.Greater(t, cost(16, 4), (in+out)/hostTensorCosts.rate)
}
