package conformance

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/flashkit-go/flashkit"
)

const sweepPrefix = "sweep-"

// A sweepCase is a random problem with random inputs and a random layout. The problem's lengths are
// near the boundaries of tiles. The seed determines everything. The oracle computes the results
// during the test.
type sweepCase struct {
	seed  uint64
	kind  sweepKind
	parts int    // number of parts from which gradients are summed: see Run
	with  string // name of a parameter that the problem has, "" for any
}

// A sweepKind is a distribution of random problems.
type sweepKind uint8

const (
	dense    sweepKind = iota
	featured           // one to three features
	tiny               // one to five features; few rows and keys, or none
	wide               // at most one feature; one large dimension (keys, rows, heads or sequences), or sizes that are powers of two
	sweepKinds
)

var sweepNames = [sweepKinds]string{"", "features-", "tiny-", "wide-"}

func (s sweepCase) name() string {
	with := s.with
	if with != "" {
		with += "-"
	}
	return fmt.Sprintf("%s%s%s%016x", sweepPrefix, sweepNames[s.kind], with, s.seed)
}

func parseSweep(name string) (s sweepCase, ok bool) {
	rest, swept := strings.CutPrefix(name, sweepPrefix)
	for kind := sweepKinds - 1; kind > dense && s.kind == dense; kind-- {
		if of, ok := strings.CutPrefix(rest, sweepNames[kind]); ok {
			rest, s.kind = of, kind
		}
	}
	if with, seed, ok := strings.Cut(rest, "-"); ok && sweptParameter(with) != nil {
		s.with, rest = with, seed
	}
	seed, err := strconv.ParseUint(rest, 16, 64)
	s.seed = seed
	return s, err == nil && swept
}

// sweptWith returns the name of the parameter in a pattern of random problems, such as ranges in
// sweep-*ranges-*. It returns "" if there is none.
func sweptWith(pattern string) string {
	words, swept := strings.CutPrefix(pattern, sweepPrefix)
	for word := range strings.SplitSeq(words, "-") {
		if word = strings.Trim(word, "*"); swept && sweptParameter(word) != nil {
			return word
		}
	}
	return ""
}

// sweptParameter returns the parameter with the given name, or nil if sweeps do not draw it.
func sweptParameter(name string) *flashkit.Parameter {
	list := sweptParameters()
	i := slices.IndexFunc(list, func(x flashkit.Parameter) bool { return x.Name == name })
	if name == "" || i < 0 {
		return nil
	}
	return &list[i]
}

// generate returns the inputs and the layout. The inputs include the problem.
func (s sweepCase) generate() (*Inputs, layout) {
	r := rand.New(rand.NewPCG(s.seed, 0))
	p := sweepProblem(r)
	switch s.kind {
	case featured:
		sweepFeatures(r, &p, 3)
	case tiny:
		p.Batch, p.QLen, p.KVLen = r.IntN(4), few(r), few(r)
		p.Dim, p.VDim = 1+r.IntN(9), 1+r.IntN(9)
		sweepFeatures(r, &p, 5)
	case wide:
		sweepWide(r, &p)
	}
	if x := sweptParameter(s.with); x != nil {
		drawParameter(r, &p, x)
		fitInt8(&p)
		p.Ragged = p.Ragged || p.Page != 0
	}
	p.Score.Origin = p.Score.Dropout != 0 && s.seed%2 == 0
	in := Case{Name: s.name(), Problem: p, dlse: r.IntN(3) == 0}.Inputs()
	if p.Score.Origin {
		in.randomOrigin(rand.New(rand.NewPCG(s.seed, 2)))
	}
	in.random(r)
	in.randomShapes(r)
	in.randomMask(r)
	in.randomRanges(r)
	l := layout(r.IntN(int(numLayouts)))
	if p.Ragged {
		if p.Batch > 0 {
			in.randomLengths(r)
		}
		l = [...]layout{bhsd, bshd, gaps, padded, packed, packedQ, packedKV}[r.IntN(7)]
	}
	if l == expanded {
		repeat(in)
	}
	return in, l
}

// few returns a random length. In seven of eight draws, the length is below 6.
func few(r *rand.Rand) int {
	if r.IntN(8) == 0 {
		return edge(r, 140)
	}
	return r.IntN(6)
}

// sweepWide sets the problem's sizes. Either one size is large and the others are small, because
// the oracle is slow, or all sizes are powers of two, or head dims are above 256.
func sweepWide(r *rand.Rand, p *flashkit.Problem) {
	few := func() int { return 1 + r.IntN(9) }
	p.Dim, p.VDim = min(p.Dim, 64), min(p.VDim, 64)
	switch r.IntN(6) {
	case 0:
		p.Batch, p.KVHeads, p.QLen, p.KVLen = 1, 1+r.IntN(2), few(), 300+r.IntN(700)
		p.Heads = p.KVHeads
	case 1:
		p.Batch, p.KVHeads, p.QLen, p.KVLen = 1, 1+r.IntN(2), 300+r.IntN(700), few()
		p.Heads = p.KVHeads
	case 2:
		p.Batch, p.KVHeads, p.QLen, p.KVLen = 1, 1+r.IntN(4), edge(r, 20), edge(r, 40)
		p.Heads = p.KVHeads * (4 + r.IntN(13))
	case 3:
		p.Batch, p.KVHeads, p.QLen, p.KVLen = 5+r.IntN(30), 1, edge(r, 10), edge(r, 20)
		p.Heads = p.KVHeads * few()
	case 4:
		p.Batch, p.KVHeads, p.QLen, p.KVLen = 1, 1+r.IntN(2), edge(r, 70), edge(r, 140)
		p.Heads, p.Dim = p.KVHeads*(1+r.IntN(4)), deepDims[r.IntN(len(deepDims))]
		if p.VDim = p.Dim; r.IntN(4) == 0 {
			p.VDim = deepDims[r.IntN(len(deepDims))]
		}
	default:
		p.Batch, p.KVHeads, p.QLen, p.KVLen = 1, 1<<r.IntN(2), 16<<r.IntN(4), 16<<r.IntN(4)
		p.Heads, p.Dim = p.KVHeads<<r.IntN(2), 16<<r.IntN(4)
		p.VDim = p.Dim
	}
	if r.IntN(3) == 0 {
		p.Scale = float32(math.Ldexp(1, r.IntN(9)-7))
	}
	if r.IntN(2) == 0 {
		sweepFeatures(r, p, 1)
	}
}

// deepDims are head dims above 256, and the dims at which kernels divide columns.
var deepDims = [...]int{128, 256, 257, 264, 300, 320, 328, 384, 500, 512}

// sweptParameters returns the features that sweeps draw: the parameters of problems, the shift of a
// band and KVDType. It omits the origin, which follows from the seed.
func sweptParameters() (list []flashkit.Parameter) {
	for _, x := range flashkit.Parameters() {
		if x.Feature != 0 && x.Feature != flashkit.FeatureOrigin {
			list = append(list, x)
		}
	}
	return append(list, flashkit.Parameter{Feature: flashkit.FeatureShift}, flashkit.Parameter{Feature: flashkit.FeatureMixed})
}

// sweepFeatures gives the problem one or more features. The parameter most is their maximum number.
// If most is above 1, sweepFeatures shortens the lengths, because the oracle is slow.
func sweepFeatures(r *rand.Rand, p *flashkit.Problem, most int) {
	if most > 1 {
		p.QLen, p.KVLen = min(p.QLen, 140), min(p.KVLen, 140)
	}
	list := sweptParameters()
	for _, i := range r.Perm(len(list))[:1+r.IntN(most)] {
		switch x := &list[i]; x.Feature {
		case flashkit.FeatureShift:
			p.Band = p.Band.Shift(r.IntN(41) - 20)
		case flashkit.FeatureMixed:
			p.DType, p.KVDType = flashkit.Float32, dtypes[1+r.IntN(2)]
		default:
			drawParameter(r, p, x)
		}
	}
	p.Ragged = p.Ragged || p.Page != 0
	fitInt8(p)
}

// edge returns a random length, at most limit. Below the limit, the length differs by at most 1
// from a multiple of a power of two up to 256, a likely tile size.
func edge(r *rand.Rand, limit int) int {
	tile := 1 << r.IntN(9)
	return max(0, min(limit, tile*(1+r.IntN(2))-1+r.IntN(3)))
}

func sweepProblem(r *rand.Rand) flashkit.Problem {
	dims := []int{1, 2, 3, 8, 15, 16, 17, 31, 32, 33, 40, 59, 64, 65, 72, 80, 96, 111, 128, 129}
	group := 1 + r.IntN(3)
	p := flashkit.Problem{
		Batch: 1 + r.IntN(2), KVHeads: 1 + r.IntN(3),
		QLen: edge(r, 300), KVLen: edge(r, 300),
		Dim: dims[r.IntN(len(dims))], DType: dtypes[r.IntN(len(dtypes))],
	}
	p.Heads = p.KVHeads * group
	p.VDim = p.Dim
	if r.IntN(4) == 0 {
		p.VDim = dims[r.IntN(len(dims))]
	}
	switch r.IntN(4) {
	case 1:
		p.Band = flashkit.Causal()
	case 2:
		p.Band = flashkit.Window(edge(r, 80), edge(r, 80))
	case 3:
		p.Band = flashkit.Window(edge(r, 200), flashkit.Unlimited)
	}
	if r.IntN(3) == 0 {
		p.Band = p.Band.TopLeft()
	}
	if r.IntN(4) == 0 {
		p.Scale = float32(1+r.IntN(32)) / 32
	}
	return p
}

// neighbors returns the number of neighbors of a random problem: slightly changed inputs on which
// the plain algorithm also runs to find the bound. A small problem has more neighbors, because its
// error depends more on single roundings. The plain algorithm is fast on a small problem.
func neighbors(p flashkit.Problem) int {
	products := p.Batch * p.Heads * p.QLen * p.KVLen * (p.Dim + p.VDim)
	return min(63, max(7, 1<<23/max(1, products)))
}

// kernelCheck returns the check of the case. All kernels share the case's bounds, whose computation
// takes most of the check's time.
func (s sweepCase) kernelCheck() kernelCheck {
	limits := sync.OnceValue(func() bounds {
		in, _ := s.generate()
		return sweepBounds(in, truth(in), rand.New(rand.NewPCG(s.seed, 1)), s.parts)
	})
	needs := flashkit.Feature(0)
	if s.kind != dense || s.with != "" {
		in, l := s.generate()
		needs = laidOut(in.p, l).Features()
	}
	return kernelCheck{name: s.name(), needs: needs, run: func(ctx context.Context, k flashkit.Kernel) error {
		in, l := s.generate()
		if err := unsupported(k, in, l); err != nil {
			return err
		}
		if err := check(ctx, k, in, l, truth(in), limits()); err != nil {
			return fmt.Errorf("%s: %w", in.p, err)
		}
		return nil
	}}
}
