//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
	"github.com/flashkit-go/flashkit/internal/half"
)

// An endsCase has numbers at the ends of their range. Its array elements and their products are
// exact in all types: no rounding decides which score is the largest.
type endsCase struct {
	name     string
	features string
	scale    float32
	set      func(p flashkit.Problem, in *oracle.Inputs)
	full     bool // no band: the oracle spreads NaN to hidden elements
	forward  bool // forward only: LSE does not tell how many keys share an absorbed weight
}

// farKey puts one key far above the others for a third of the rows, and far below for another
// third.
func farKey(q, k float64) func(flashkit.Problem, *oracle.Inputs) {
	return func(p flashkit.Problem, in *oracle.Inputs) {
		for i := range p.Batch * p.Heads * p.QLen {
			in.Q[i*p.Dim] = float64(i%3-1) * q
		}
		for i := range p.Batch * p.KVHeads * p.KVLen {
			if in.K[i*p.Dim] = 0; i%p.KVLen == 7 {
				in.K[i*p.Dim] = k
			}
		}
	}
}

// eachBias sets each element of the bias to the result of f.
func eachBias(in *oracle.Inputs, f func(i, j int, x float64) float64) {
	s := in.Bias.Shape
	for at, x := range in.Bias.X {
		in.Bias.X[at] = f(at/s[3]%s[2], at%s[3], x)
	}
}

func leastOf(t flashkit.DType) float64 {
	switch t {
	case flashkit.Float16:
		return -65504
	case flashkit.BFloat16:
		return float64(half.FromBF16(0xff7f))
	}
	return -math.MaxFloat32
}

var endsCases = []endsCase{
	{name: "far 1e4", scale: 0.5, set: farKey(1<<6, 1<<8)},
	{name: "far 1e8", scale: 2, set: farKey(1<<12, 1<<14)},
	{name: "far 1e11", scale: 128, set: farKey(1<<15, 1<<15)},
	{name: "far 1e11 with a sink", features: "-sink", scale: 128, set: farKey(1<<15, 1<<15)},
	{name: "far 1e11 with a mask", features: "-mask", scale: 128, set: farKey(1<<15, 1<<15)},
	{name: "far 1e11 with a bias", features: "-bias", scale: 128, set: farKey(1<<15, 1<<15)},
	{name: "far 1e11 with slopes", features: "-alibi", scale: 128, set: farKey(1<<15, 1<<15)},
	{name: "far 1e11 with dropout", features: "-dropout0.25", scale: 128, forward: true, set: farKey(1<<15, 1<<15)},
	{name: "minima", features: "-bias", scale: 1, forward: true, set: func(p flashkit.Problem, in *oracle.Inputs) {
		least := []float64{leastOf(p.DType), max(-0x1p100, leastOf(p.DType)), max(-0x1p60, leastOf(p.DType))}
		eachBias(in, func(i, j int, x float64) float64 {
			if i%4 < 3 {
				return least[i%4]
			}
			return x
		})
	}},
	{name: "minima of some keys", features: "-bias", scale: 1, set: func(p flashkit.Problem, in *oracle.Inputs) {
		least := []float64{leastOf(p.DType), max(-0x1p100, leastOf(p.DType)), max(-0x1p60, leastOf(p.DType))}
		eachBias(in, func(i, j int, x float64) float64 {
			if i%4 < 3 && (j < p.KVLen/3 || j > p.KVLen*2/3) {
				return least[i%4]
			}
			return x
		})
	}},
	{name: "infinite bias", features: "-bias", scale: 1, full: true, set: func(p flashkit.Problem, in *oracle.Inputs) {
		eachBias(in, func(i, j int, x float64) float64 {
			switch {
			case i == 6:
				return math.Inf(-1)
			case i == 5 && j == 9:
				return math.Inf(1)
			}
			return x
		})
	}},
	{name: "infinite sink", features: "-sink", scale: 1, set: func(_ flashkit.Problem, in *oracle.Inputs) {
		in.Sink[0], in.Sink[1] = math.NaN(), math.Inf(-1) // the kernel gets +Inf for head 0
	}},
	{name: "large sink", features: "-sink", scale: 1, set: func(_ flashkit.Problem, in *oracle.Inputs) {
		in.Sink[0], in.Sink[1] = float64(float32(3e38)), -float64(float32(3e38))
	}},
	{name: "infinite slope", features: "-alibi", scale: 1, set: func(p flashkit.Problem, in *oracle.Inputs) {
		for i := range in.Slopes {
			in.Slopes[i] = []float64{math.NaN(), float64(float32(3e38))}[i%2] // the kernel gets +Inf for even heads
		}
	}},
}

// Every instance gives float64's results for numbers at the ends of their range.
func TestNumbersAtTheEnds(t *testing.T) {
	eachInstance(t, func(t *testing.T, b *Backend, s *family, p flashkit.Problem) {
		for _, x := range endsCases {
			for _, band := range []flashkit.Band{{}, flashkit.Causal()} {
				p.QLen, p.Band, p.Scale = 70, band, x.scale
				p := problem(t, p.String()+x.features)
				if s.refuses(&b.dev, &flashkit.Call{Problem: p, Pass: s.pass}) != none || x.full && band != (flashkit.Band{}) || s.pass == flashkit.PassBackward && (x.forward || p.DType == flashkit.Float16 && x.scale > 2) { // gradients beyond the range
					continue
				}
				t.Run(x.name+" "+p.String(), func(t *testing.T) { checkEnds(t, b, s, p, x) })
			}
		}
	})
}

func checkEnds(t *testing.T, b *Backend, s *family, p flashkit.Problem, x endsCase) {
	c := newDeviceCall(t, b, p.String())
	defer c.close(t)
	in := endsInputs(c.p, &c.args, x)
	for _, y := range []struct {
		t flashkit.Tensor
		x []float64
	}{{c.args.Q, in.Q}, {c.args.K, in.K}, {c.args.V, in.V}, {c.args.DO, in.DO}, {c.args.Bias, in.Bias.X}, {c.args.Slopes, in.Slopes}, {c.args.Sink, in.Sink}} {
		if !y.t.IsZero() {
			upload(t, c, y.t, y.x)
		}
	}
	if !c.args.Mask.IsZero() {
		mask := make([]bool, len(in.Mask.X))
		for i, x := range in.Mask.X {
			mask[i] = x != 0
		}
		require.NoError(t, Upload(c.s, buffer(c.args.Mask), 0, mask))
	}
	c.args.Seed = in.Seed
	o, lse := oracle.Forward(c.p, in)
	if s.pass == flashkit.PassForward {
		c.fwdOptions.Kernel = "cuda/" + s.name
	}
	require.NoError(t, c.forward())
	near(t, c, c.args.LSE, lse, "LSE")
	near(t, c, c.args.O, o, "O")
	if s.pass == flashkit.PassForward {
		return
	}
	c.bwdOptions.Kernel = "cuda/" + s.name
	require.NoError(t, c.backward())
	g := oracle.Backward(c.p, in)
	near(t, c, c.args.DQ, g.DQ, "DQ")
	near(t, c, c.args.DK, g.DK, "DK")
	near(t, c, c.args.DV, g.DV, "DV")
	if !c.args.DBias.IsZero() {
		near(t, c, c.args.DBias, g.DBias, "DBias")
	}
	if !c.args.DSink.IsZero() {
		near(t, c, c.args.DSink, g.DSink, "DSink")
	}
}

// endsInputs makes the arrays of a case: three columns of Q and K are nonzero, and all numbers have
// few bits.
func endsInputs(p flashkit.Problem, args *flashkit.Args, x endsCase) oracle.Inputs {
	r := rand.New(rand.NewPCG(1, 2))
	array := func(s [4]int, f func(i int) float64) []float64 {
		y := make([]float64, s[0]*s[1]*s[2]*s[3])
		for i := range y {
			y[i] = f(i)
		}
		return y
	}
	small := func(i int) float64 {
		if i%p.Dim > 2 {
			return 0
		}
		return float64(r.IntN(3) - 1)
	}
	eighths := func(int) float64 { return float64(r.IntN(33)-16) / 8 }
	in := oracle.Inputs{Q: array(p.QShape(), small), K: array(p.KShape(), small), V: array(p.VShape(), eighths), DO: array(p.OShape(), eighths), Seed: 77}
	if y := args.Bias; !y.IsZero() {
		in.Bias = oracle.Pairs{X: array(y.Shape(), eighths), Shape: y.Shape()}
	}
	if y := args.Mask; !y.IsZero() {
		in.Mask = oracle.Pairs{X: array(y.Shape(), func(int) float64 { return float64(min(1, r.IntN(4))) }), Shape: y.Shape()}
	}
	if y := args.Slopes; !y.IsZero() {
		in.Slopes = array(y.Shape(), func(int) float64 { return 0.25 })
	}
	if y := args.Sink; !y.IsZero() {
		in.Sink = array(y.Shape(), eighths)
	}
	x.set(p, &in)
	return in
}

// upload writes a tensor of exact numbers; in sinks and slopes, NaN stands for +Inf.
func upload(t *testing.T, c *deviceCall, to flashkit.Tensor, x []float64) {
	wide, narrow := make([]float32, len(x)), make([]uint16, len(x))
	for i, y := range x {
		if wide[i] = float32(y); y != y {
			wide[i] = float32(math.Inf(1))
		}
		if narrow[i] = half.ToBF16(wide[i]); to.DType() == flashkit.Float16 {
			narrow[i] = half.ToF16(wide[i])
		}
	}
	if to.DType() == flashkit.Float32 {
		require.NoError(t, Upload(c.s, buffer(to), 0, wide))
	} else {
		require.NoError(t, Upload(c.s, buffer(to), 0, narrow))
	}
}

// near compares a result with the truth, relative to its largest finite number; NaN and Inf must
// agree.
func near(t *testing.T, c *deviceCall, x flashkit.Tensor, want []float64, what string) {
	got, most := c.download(t, x), 1.0
	for _, y := range want {
		if !math.IsInf(y, 0) && y == y {
			most = max(most, math.Abs(y))
		}
	}
	bound := map[flashkit.DType]float64{flashkit.Float32: 1e-4, flashkit.Float16: 4e-3, flashkit.BFloat16: 3e-2}[c.p.DType]
	bad, first := 0, ""
	for i, y := range want {
		z := float64(got[i])
		if y != y && z != z || y == z {
			continue
		}
		limit := bound * most
		if what == "LSE" {
			limit = 1e-3 + 1e-6*math.Abs(y)
		}
		if !(math.Abs(y-z) <= limit) {
			if bad++; first == "" {
				first = fmt.Sprintf("[%d] = %v, not %v", i, z, y)
			}
		}
	}
	if bad > 0 {
		t.Errorf("%s of %v: %d of %d differ: %s", what, c.p, bad, len(want), first)
	}
}
