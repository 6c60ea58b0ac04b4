package cuda

import (
	"encoding/binary"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/allocs"
)

// decodeShapes are calls of a language model that generates: few query rows and many keys. The
// other kernels compute whole tiles for them.
const decodeShapes = `
	b1-h32-g8-n1-m1024-d128-bf16 b1-h32-g8-n1-m4096-d128-bf16 b1-h32-g8-n1-m16384-d128-bf16 b1-h32-g8-n1-m32768-d128-bf16
	b1-h32-g8-n1-m131072-d128-bf16 b4-h32-g8-n1-m1024-d128-bf16 b4-h32-g8-n1-m8192-d128-bf16 b4-h32-g8-n1-m32768-d128-bf16
	b16-h32-g8-n1-m1024-d128-bf16 b16-h32-g8-n1-m4096-d128-bf16 b16-h32-g8-n1-m32768-d128-bf16 b64-h32-g8-n1-m1024-d128-bf16
	b64-h32-g8-n1-m8192-d128-bf16 b64-h32-g8-n1-m32768-d128-bf16 b128-h32-g8-n1-m1024-d128-bf16 b128-h32-g8-n1-m4096-d128-bf16
	b128-h32-g8-n1-m16384-d128-bf16 b32-h32-g8-n1-m131072-d128-bf16 b1-h32-g8-n1-m8192-d128-f16 b8-h32-g8-n1-m8192-d128-f16
	b32-h32-g8-n1-m8192-d128-f16 b1-h64-g8-n1-m8192-d128-bf16 b16-h64-g8-n1-m8192-d128-bf16 b64-h64-g8-n1-m8192-d128-bf16
	b1-h32-g1-n1-m8192-d128-bf16 b16-h32-g1-n1-m8192-d128-bf16 b64-h32-g1-n1-m8192-d128-bf16 b1-h32-g32-n1-m8192-d128-bf16
	b8-h32-g8-n1-m8192-d64-bf16 b8-h16-g8-n1-m8192-d256-bf16 b8-h32-g8-n4-m8192-d128-bf16
	b8-h32-g8-n4-m8192-d128-bf16-causal b1-h32-g8-n8-m32768-d128-bf16-causal b8-h32-g8-n16-m8192-d128-bf16-causal`

func TestChoosesDecode(t *testing.T) {
	b, _ := openFake(t) // with the figures of an H200
	for _, name := range strings.Fields(decodeShapes) {
		id, err := b.choose("", problem(t, name).Ask(flashkit.PassForward), false)
		require.NoError(t, err)
		require.Equal(t, "decode_sm80", families[id].name, name)
	}
	for _, name := range []string{ // with enough rows, or few enough keys, for the other kernels
		"b16-h16-g16-n1024-m1024-d128-bf16", "b1-h16-g16-n16384-m16384-d128-bf16-causal", "b8-h32-g8-n64-m8192-d128-bf16-causal",
	} {
		id, err := b.choose("", problem(t, name).Ask(flashkit.PassForward), false)
		require.NoError(t, err)
		require.Equal(t, "fwd_sm90", families[id].name, name)
	}
}

// For training, the forward pass of few rows sums scores as the backward pass does, unless none
// follows.
func TestChoosesPaired(t *testing.T) {
	b, _ := openFake(t)
	for _, test := range []struct{ problem, free, paired string }{
		{"b1-h32-g8-n1-m4096-d128-bf16", "decode_sm80", "fwd_sm90"},
		{"b2-h4-g4-n3-m512-d72-f32", "decode_sm80", "fwd_f32"},
		{"b1-h16-g16-n16384-m16384-d128-bf16-causal", "fwd_sm90", "fwd_sm90"},
	} {
		ask := problem(t, test.problem).Ask(flashkit.PassForward)
		for paired, want := range map[bool]string{false: test.free, true: test.paired} {
			id, err := b.choose("", ask, paired)
			require.NoError(t, err)
			require.Equal(t, want, families[id].name, "%s, paired: %v", test.problem, paired)
		}
		id, err := b.choose("cuda/"+test.free, ask, true)
		require.NoError(t, err)
		require.Equal(t, test.free, families[id].name, "a name says more")
	}
	p := problem(t, "b1-h32-g8-n1-m4096-d128-bf16")
	p.Page = 16
	id, err := b.choose("", p.Ask(flashkit.PassForward), true)
	require.NoError(t, err)
	require.Equal(t, "decode_sm80", families[id].name, "keys in pages have no backward pass")
}

// A call on device tensors with LSE is paired, unless Options.Unpaired is set.
func TestLaunchWithLSEIsPaired(t *testing.T) {
	b, f := openFake(t)
	f.idle = true // only the names of launches count
	c := newDeviceCall(t, b, "b1-h32-g8-n1-m4096-d128-bf16")
	for _, test := range []struct {
		options Options
		decodes bool
	}{{Options{}, false}, {Options{Unpaired: true}, true}, {Options{Paired: true}, false}, {Options{Paired: true, Unpaired: true}, false}} {
		c.fwdOptions, f.launches = test.options, nil
		require.NoError(t, c.forward())
		require.Equal(t, test.decodes, strings.HasPrefix(f.names()[0], "decode_sm80"), "%+v: %v", test.options, f.names())
	}
	c.close(t)
}

// A tile with one row costs as a full one, so few rows over many heads cost their tiles.
func TestCostOfHalfEmptyTiles(t *testing.T) {
	b, _ := openFake(t)
	one, many := problem(t, "b64-h64-g8-n1-m8192-d128-bf16"), problem(t, "b64-h64-g8-n128-m8192-d128-bf16")
	full := families[fwdSM80].deviceCost(&b.dev, many, false)
	require.Greater(t, families[fwdSM80].deviceCost(&b.dev, one, false), full*9/10)
	require.Greater(t, families[fwdSM90].deviceCost(&b.dev, one, false), families[fwdSM90].deviceCost(&b.dev, many, false)/2)
	require.Less(t, families[decodeSM80].deviceCost(&b.dev, one, false), full/4) // it loads K and V once per group
}

// More of the same work is never cheaper, and a slower device never faster.
func TestCostGrows(t *testing.T) {
	b, _ := openFake(t)
	r := rand.New(rand.NewPCG(1, 2))
	for range 3000 {
		p, pass := randomProblem(r)
		if p.Band.Left() != flashkit.Unlimited { // a window shows the same keys among more
			p.Band = flashkit.Causal()
		}
		p.KVLen = max(p.KVLen, p.QLen) // every row sees some key
		for i := range families {
			s := &families[i]
			if s.pass != pass || !s.fits(&b.dev, p) {
				continue
			}
			cost, least := s.deviceCost(&b.dev, p, false), 90 // percent: waves are whole, and heads overlap
			switch {
			case s.rows > 0: // more keys may be split where fewer are not
				least = 50
			case s == &families[fwdSM90]:
				least = 80
			case pass == flashkit.PassBackward: // blocks of fewer heads wait for more of their own
				least = 85
			}
			require.Positive(t, cost, p)
			for _, more := range []func(*flashkit.Problem){
				func(p *flashkit.Problem) { p.Batch *= 2 },
				func(p *flashkit.Problem) { p.KVLen *= 2 },
				func(p *flashkit.Problem) { p.Heads, p.KVHeads = 2*p.Heads, 2*p.KVHeads },
			} {
				q := p
				more(&q)
				require.GreaterOrEqual(t, s.deviceCost(&b.dev, q, false), cost*time.Duration(least)/100, "%s: %v beside %v", s.name, q, p)
			}
			slow := b.dev
			slow.ClockMHz, slow.Bandwidth = slow.ClockMHz/2, slow.Bandwidth/2
			require.GreaterOrEqual(t, s.deviceCost(&slow, p, false), cost, p)
			require.GreaterOrEqual(t, s.deviceCost(&b.dev, p, true), cost, p)
			require.Greater(t, s.hostCost(&b.dev, p, 12), time.Duration(p.Bytes(pass)/100e9*1e9), p)
		}
	}
}

// Empty problems, and problems too large for any memory, have costs too.
func TestCostOfExtremes(t *testing.T) {
	b, _ := openFake(t)
	for _, name := range []string{
		"b0-h1-g1-n4-m4-d8-bf16", "b1-h1-g1-n0-m4-d8-bf16", "b1-h1-g1-n4-m0-d8-bf16", "b1-h1-g1-n4-m4-d8-bf16-window0.0-topleft",
		"b1-h1-g1-n400-m4-d8-f32-causal", "b1-h1000-g1-n1000000-m1000000-d512-f32", "b1-h2-g1-n9-m100000-d256-f16-window1.0",
	} {
		p := problem(t, name)
		for i := range families {
			if s := &families[i]; s.fits(&b.dev, p) {
				require.Positive(t, s.deviceCost(&b.dev, p, true), "%s of %s", s.name, name)
				require.Positive(t, s.deviceCost(&Device{}, p, false), "%s of %s", s.name, name)
				require.Positive(t, s.hostCost(&b.dev, p, 1), "%s of %s", s.name, name)
			}
		}
	}
}

// The block shapes of plans and predictions are the kernels' shapes, each with its costs.
func TestShapesAreTheKernels(t *testing.T) {
	for id := range families {
		s := &families[id]
		image, err := readImage(imageFiles, s.name, 90)
		require.NoError(t, err)
		parsed, err := parseImage(image)
		require.NoError(t, err)
		for _, dtype := range s.dtypes {
			require.Len(t, s.costsOf(dtype).tiles, len(s.dims))
			require.Len(t, s.shapesOf(dtype), len(s.dims))
			for dim, x := range s.shapesOf(dtype) {
				i := s.instances[0]
				if !s.has(i, s.dims[dim]) {
					i = traitFeatures
				}
				name := kernelKey{familyID(id), i, dtype, dim}.name()
				plan := parsed.plans[name+"_plan"]
				field := func(i int) int { return int(int32(binary.LittleEndian.Uint32(plan[4*i:]))) }
				require.Equal(t, [3]int{field(2), field(3), field(0) / 32}, [3]int{x.rows, x.keys, x.warps}, name)
			}
		}
	}
}

// fits reports whether the family supports a problem with aligned tensors.
func (s *family) fits(dev *Device, p flashkit.Problem) bool {
	return s.refuses(dev, &flashkit.Call{Problem: p, Pass: s.pass}) == none
}

// Every new problem is costed for every kernel.
func TestCostAllocations(t *testing.T) {
	b, _ := openFake(t)
	for _, name := range []string{"b4-h16-g16-n4096-m4096-d128-bf16-causal", "b4-h16-g4-n1-m4096-d128-f32"} {
		p := problem(t, name)
		require.Zero(t, allocs.PerRun(100, func() {
			for i := range families {
				if s := &families[i]; s.fits(&b.dev, p) && s.deviceCost(&b.dev, p, false)+s.hostCost(&b.dev, p, 12) == 0 {
					t.Error("no cost")
				}
			}
		}), name)
	}
}

// Limits of random problems.
const (
	choiceBytes = 1 << 30
	choiceFLOPs = 1e12 // of 16 bits; of float32 a tenth
)

// randomProblem draws a problem and a pass: decode, short and long sequences, cross
// attention and chunks of a prompt; few and many heads, grouped or not.
func randomProblem(r *rand.Rand) (flashkit.Problem, flashkit.Pass) {
	for {
		p := flashkit.Problem{DType: dtypes[[]int{0, 1, 2, 2}[r.IntN(4)]], KVHeads: 1 << r.IntN(6), Batch: between(r, 1, 128)}
		p.Heads = p.KVHeads << max(0, r.IntN(9)-3)
		p.Dim = randomDim(r)
		if p.VDim = p.Dim; r.IntN(8) == 0 {
			p.VDim = randomDim(r)
		}
		switch r.IntN(8) {
		case 0, 1:
			p.QLen, p.KVLen = 1, between(r, 64, 1<<17)
		case 2:
			p.QLen, p.KVLen = between(r, 1, 32), between(r, 64, 1<<17)
		case 3, 4:
			p.QLen = between(r, 8, 512)
			p.KVLen = p.QLen
		case 5, 6:
			p.QLen, p.Batch = between(r, 256, 16384), min(p.Batch, between(r, 1, 16))
			p.KVLen = p.QLen
		case 7:
			p.QLen, p.KVLen = between(r, 1, 4096), between(r, 16, 32768)
		}
		switch r.IntN(4) {
		case 0, 1:
			p.Band = flashkit.Causal()
		case 2:
			p.Band = flashkit.Window(between(r, 16, 4096), 0)
		}
		pass := flashkit.PassForward
		if n := r.IntN(6); n < 2 && p.DType != flashkit.Float32 || n < 1 {
			pass = flashkit.PassBackward
		}
		most := choiceFLOPs
		if p.DType == flashkit.Float32 {
			most /= 10
		}
		if p.Heads <= 128 && p.Validate() == nil && p.Bytes(flashkit.PassBackward) <= choiceBytes && p.FLOPs(pass) <= most {
			return p, pass
		}
	}
}

// between draws a whole number, log-uniform, half of them round.
func between(r *rand.Rand, least, most float64) int {
	n := int(least * math.Pow((most+1)/least, r.Float64()))
	for round := 1024; round > 1 && r.IntN(2) == 0; round /= 2 {
		if n >= round {
			return n / round * round
		}
	}
	return n
}

func randomDim(r *rand.Rand) int {
	switch r.IntN(4) {
	case 0:
		return 8 * (1 + r.IntN(32))
	case 1:
		return 1 + r.IntN(256)
	}
	return []int{32, 64, 64, 80, 96, 128, 128, 128, 192, 256}[r.IntN(10)]
}
