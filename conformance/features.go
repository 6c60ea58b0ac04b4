package conformance

import (
	"math/rand/v2"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
)

// features are a case's inputs beyond dense attention. Sequences are padded here. If the case's
// layout is packed or paged, sides.place packs or pages the sequences later.
type features struct {
	bias, mask   pairs // in mask, 0 hides a key from a row
	ranges       pairs // [B, H, N, 2R]
	slopes       []float32
	sink         []float32
	seed         uint64
	origin       flashkit.Origin
	qLens        []int32 // nil if all have full length
	kvLens       []int32
	earlier      []float32 // O over earlier keys, for Carry
	earlierLSE   []float32
	earlierMax   []float32 // RowMax over earlier keys, for Carry with RowMax
	kScale       []float32 // scales of int8 keys [B, G, M, groups]
	vScale       []float32
	narrowScales bool // the scales are f16, not float32

	narrowPairs bool // the bias has the problem's type, not float32
}

// pairs is an array with a number for each batch, head, row and key, such as a bias. A dimension of
// size 1 broadcasts, unless it is the last dimension.
type pairs struct {
	x     []float32
	shape [4]int
}

// newFeatures returns noise for p's features: a bias and a mask element per row and key, a slope
// and a sink per head, lengths that differ by sequence, and O and LSE of earlier keys.
func newFeatures(p flashkit.Problem, array func(name string, shape [4]int) []float32) (f features) {
	score, scores := p.Score, [4]int{p.Batch, p.Heads, p.QLen, p.KVLen}
	if score.Bias {
		f.bias, f.narrowPairs = pairs{array("bias", scores), scores}, true
	}
	if score.Mask {
		f.mask = pairs{array("mask", scores), scores}
		f.newMask()
	}
	if score.Ranges != 0 {
		shape := [4]int{p.Batch, p.Heads, p.QLen, 2 * score.Ranges}
		f.ranges = pairs{array("ranges", shape), shape}
		f.newRanges(p.KVLen)
	}
	if score.ALiBi {
		f.slopes = array("slopes", [4]int{1, p.Heads, 1, 1})
		for i, x := range f.slopes {
			f.slopes[i] = (x + 2.0625) / 8 // 1/128 to 1/2
		}
	}
	if score.Sink {
		f.sink = array("sink", [4]int{1, p.Heads, 1, 1})
	}
	if score.Dropout != 0 {
		f.seed = 0x243f6a8885a308d3
	}
	if score.Origin {
		f.origin = flashkit.Origin{Batch: 2, Head: 3, Row: 5, Key: 8}
	}
	if p.Ragged {
		for b := range p.Batch {
			f.qLens = append(f.qLens, int32(p.QLen-b*5%(p.QLen+1)))
			f.kvLens = append(f.kvLens, int32(p.KVLen-b*7%(p.KVLen+1)))
		}
	}
	if p.Carry {
		f.earlier, f.earlierLSE = array("earlier", p.OShape()), array("earlier_lse", p.LSEShape())
		for i := range f.earlierLSE {
			if i%5 == 3 {
				f.earlierLSE[i] = -inf // rows without earlier keys
			}
		}
		if p.RowMax {
			f.earlierMax = array("earlier_rowmax", p.LSEShape())
		}
	}
	return f
}

// newMask turns noise into a mask that shows about three quarters of the keys to each row.
func (f *features) newMask() {
	for i, x := range f.mask.x {
		f.mask.x[i] = 1
		if x < -1 {
			f.mask.x[i] = 0
		}
	}
}

// each calls store with each feature input of a golden vector.
func (f *features) each(p flashkit.Problem, store func(name string, shape [4]int, x []float32)) {
	lens := func(lens []int32) (x []float32) {
		for _, n := range lens {
			x = append(x, float32(n))
		}
		return x
	}
	for _, x := range []struct {
		name  string
		shape [4]int
		x     []float32
	}{
		{"bias", f.bias.shape, f.bias.x}, {"mask", f.mask.shape, f.mask.x}, {"ranges", f.ranges.shape, f.ranges.x},
		{"kscale", scaleShape(&p, false), f.kScale}, {"vscale", scaleShape(&p, true), f.vScale},
		{"slopes", [4]int{len(f.slopes) / p.Heads, p.Heads, 1, 1}, f.slopes}, {"sink", [4]int{1, p.Heads, 1, 1}, f.sink},
		{"q_lens", [4]int{p.Batch, 1, 1, 1}, lens(f.qLens)}, {"kv_lens", [4]int{p.Batch, 1, 1, 1}, lens(f.kvLens)},
		{"earlier", p.OShape(), f.earlier}, {"earlier_lse", p.LSEShape(), f.earlierLSE}, {"earlier_rowmax", p.LSEShape(), f.earlierMax},
	} {
		if x.x != nil {
			store(x.name, x.shape, x.x)
		}
	}
}

// copyTo copies the features to the oracle's inputs, as float64.
func (f *features) copyTo(x *oracle.Inputs) {
	x.Bias, x.Mask = oracle.Pairs{X: widen(f.bias.x), Shape: f.bias.shape}, oracle.Pairs{X: widen(f.mask.x), Shape: f.mask.shape}
	x.Ranges = oracle.Pairs{X: widen(f.ranges.x), Shape: f.ranges.shape}
	x.Slopes, x.Sink, x.Seed = widen(f.slopes), widen(f.sink), f.seed
	x.Origin = [4]int{f.origin.Batch, f.origin.Head, f.origin.Row, f.origin.Key}
	x.O, x.LSE = widen(f.earlier), widen(f.earlierLSE)
	x.RowMax = widen(f.earlierMax)
	for _, n := range f.qLens {
		x.QLens = append(x.QLens, int(n))
	}
	for _, n := range f.kvLens {
		x.KVLens = append(x.KVLens, int(n))
	}
}

// randomLengths sets the sequence lengths to random numbers from r. Sometimes all queries or all
// keys have full length.
func (f *features) randomLengths(r *rand.Rand) {
	for _, lens := range []*[]int32{&f.qLens, &f.kvLens} {
		full := (*lens)[0] // newFeatures gives the first sequence full length
		for b := range *lens {
			if r.IntN(3) > 0 {
				(*lens)[b] = r.Int32N(full + 1)
			}
		}
		if r.IntN(6) == 0 {
			*lens = nil
		}
	}
}

// randomOrigin sets the origin of dropout to random numbers from r.
func (f *features) randomOrigin(r *rand.Rand) {
	far := func() int { return r.IntN(1<<30) >> r.IntN(31) }
	f.origin = flashkit.Origin{Batch: far(), Head: far(), Row: far(), Key: far() / 8 * 8}
}

// randomShapes changes bias and mask at random, by numbers from r: it may set dimensions to 1, hide
// a run of keys, and set biases to -Inf.
func (f *features) randomShapes(r *rand.Rand) {
	for _, x := range []*pairs{&f.bias, &f.mask} {
		for d := range 3 {
			if x.x != nil && r.IntN(3) == 0 {
				x.shape[d] = min(1, x.shape[d])
			}
		}
		x.x = x.x[:min(len(x.x), size(x.shape))]
	}
	if m := f.mask.shape[3]; m > 0 && r.IntN(2) == 0 {
		from, most := r.IntN(m), 1+r.IntN(m)
		f.mask.eachPair(func(_, j int, x *float32) {
			if j >= from && j < from+most {
				*x = 0
			}
		})
	}
	if r.IntN(4) != 0 {
		return
	}
	for i := range f.bias.x {
		if r.IntN(4) == 0 {
			f.bias.x[i] = -inf
		}
	}
}

// With probability 1/2, randomMask replaces the mask by a mask that models use, or by a mask that
// changes at tile edges.
func (f *features) randomMask(r *rand.Rand) {
	if len(f.mask.x) == 0 || r.IntN(2) == 0 {
		return
	}
	n, m := f.mask.shape[2], f.mask.shape[3]
	kind, block, first := r.IntN(6), 1<<r.IntN(7), r.IntN(m)
	f.mask.eachPair(func(i, j int, x *float32) {
		shown := true
		switch kind {
		case 0: // causal
			shown = j-i <= m-n
		case 1: // padded keys, on the left
			shown = j >= first
		case 2: // documents
			shown = i/block == j/block
		case 3: // the first keys, shown to all rows, and a window
			shown = j < first%8 || j-i <= m-n && i-j <= block+n-m
		case 4: // alternating blocks
			shown = (i/block+j/block)%2 == 0
		default: // one key
			shown = j == (first+i)%m
		}
		*x = 0
		if shown {
			*x = 1
		}
	})
}

// seq returns the problem with QLen and KVLen set to the lengths of sequence b.
func (in *Inputs) seq(b int) flashkit.Problem {
	p := in.p
	if in.qLens != nil {
		p.QLen = int(in.qLens[b])
	}
	if in.kvLens != nil {
		p.KVLen = int(in.kvLens[b])
	}
	return p
}

// at returns the index in x.x of the number for batch b, head h, row i and key j.
func (x *pairs) at(b, h, i, j int) int {
	at := 0
	for d, k := range [...]int{b, h, i} {
		if x.shape[d] == 1 {
			k = 0
		}
		at = at*x.shape[d] + k
	}
	return at*x.shape[3] + j
}

// array returns the dense values of an input argument. In the backward pass O and LSE come from
// want. array returns nil if the case lacks the argument, or if the argument is only an output.
func (in *Inputs) array(name string, pass flashkit.Pass, want result) []float32 {
	switch name {
	case "Q":
		return in.q
	case "K":
		if in.p.Int8Group != 0 {
			return in.codes(false)
		}
		return in.k
	case "V":
		if in.p.Int8Group != 0 {
			return in.codes(true)
		}
		return in.v
	case "KScale":
		return in.kScale
	case "VScale":
		return in.vScale
	case "O":
		if pass == flashkit.PassForward {
			return in.earlier
		}
		return narrow(want.o)
	case "LSE":
		if pass == flashkit.PassForward {
			return in.earlierLSE
		}
		return narrow(want.lse)
	case "RowMax":
		return in.earlierMax
	case "DO":
		return in.do
	case "DLSE":
		return in.dlse
	case "Bias":
		return in.bias.x
	case "Mask":
		return in.mask.x
	case "Ranges":
		return in.ranges.x
	case "Slopes":
		return in.slopes
	case "Sink":
		return in.sink
	}
	return nil
}

// shape returns the dense shape of an argument.
func (in *Inputs) shape(a *flashkit.Argument) [4]int {
	switch s := a.Shape(&in.p); a.Name {
	case "Bias", "DBias":
		return in.bias.shape
	case "Mask":
		return in.mask.shape
	case "Ranges":
		return in.ranges.shape
	case "Slopes":
		s[0] = len(in.slopes) / s[1]
		return s
	case "K", "V", "DK", "DV", "KScale", "VScale": // keys are padded here, even if a layout will page them
		return [4]int{in.p.Batch, in.p.KVHeads, in.p.KVLen, s[3]}
	default:
		return s
	}
}
