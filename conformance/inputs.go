package conformance

import (
	"hash/fnv"
	"math"
	"math/rand/v2"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
)

// Inputs are the dense, row-major inputs of a case, before a layout places them in memory. Other
// programs can read them from Case.Vector.
type Inputs struct {
	p           flashkit.Problem
	q, k, v, do []float32
	dlse        []float32 // nil if the case has no DLSE

	features // the inputs of the problem's features
}

// Inputs returns the inputs of the case: noise that depends on the case's name, changed by the
// case's fill.
func (c Case) Inputs() *Inputs {
	p := c.Problem
	array := func(name string, shape [4]int) []float32 {
		if c.grid {
			return spread(noise(c.VectorName()+"/"+name, patterns*shape[2]*shape[3]), shape)
		}
		return noise(c.Name+"/"+name, size(shape))
	}
	in := &Inputs{p: p, q: array("q", p.QShape()), k: array("k", p.KShape()), v: array("v", p.VShape()), do: array("do", p.OShape())}
	if c.dlse {
		in.dlse = array("dlse", p.LSEShape())
	}
	in.features = newFeatures(p, array)
	if p.Int8Group != 0 {
		in.newInt8(array)
	}
	if c.fill != nil {
		c.fill(in)
	}
	return in
}

// noise returns n multiples of 1/16 in [-2, 2), which f32, f16 and bf16 represent exactly. Element
// i is a hash (the finalizer of MurmurHash3) of i and of a seed that depends on the label. Programs
// in any language can compute this noise in a few lines.
func noise(label string, n int) []float32 {
	f := fnv.New32a()
	f.Write([]byte(label))
	seed := f.Sum32()
	x := make([]float32, n)
	for i := range x {
		h := seed + uint32(i)*0x9E3779B9
		h ^= h >> 16
		h *= 0x85EBCA6B
		h ^= h >> 13
		h *= 0xC2B2AE35
		h ^= h >> 16
		x[i] = (float32(h>>26) - 32) / 16
	}
	return x
}

func size(shape [4]int) int { return shape[0] * shape[1] * shape[2] * shape[3] }

func (in *Inputs) oracle() oracle.Inputs {
	x := oracle.Inputs{Q: widen(in.q), K: widen(in.k), V: widen(in.v), DO: widen(in.do), DLSE: widen(in.dlse)}
	in.features.copyTo(&x)
	return x
}

func widen(x []float32) []float64 {
	if x == nil {
		return nil
	}
	y := make([]float64, len(x))
	for i := range x {
		y[i] = float64(x[i])
	}
	return y
}

func narrow(x []float64) []float32 {
	y := make([]float32, len(x))
	for i := range x {
		y[i] = float32(x[i])
	}
	return y
}

// eachRow calls f for every row of x, an array of the given shape. r is the row's index in its
// head.
func eachRow(x []float32, shape [4]int, f func(r int, row []float32)) {
	dim := shape[3]
	for i := 0; i*dim < len(x); i++ {
		f(i%shape[2], x[i*dim:][:dim])
	}
}

// steer sets element 0 of each row of Q to `by`, and element 0 of row j of K to value(j). These two
// elements contribute scale * by * value(j) to the score of key j. The other elements keep their
// noise, so that rounding errors show.
func steer(by float32, value func(j int) float32) func(in *Inputs) {
	return func(in *Inputs) {
		eachRow(in.q, in.p.QShape(), func(_ int, row []float32) { row[0] = by })
		eachRow(in.k, in.p.KShape(), func(j int, row []float32) { row[0] = value(j) })
	}
}

func level(x float32) func(int) float32 { return func(int) float32 { return x } }

// hide sets K and V to x for all keys that no row sees.
func hide(x float32) func(in *Inputs) {
	return func(in *Inputs) {
		spoil := func(j int, row []float32) {
			for i := range in.p.QLen {
				if oracle.Sees(in.p, i, j) {
					return
				}
			}
			for c := range row {
				row[c] = x
			}
		}
		eachRow(in.k, in.p.KShape(), spoil)
		eachRow(in.v, in.p.VShape(), spoil)
	}
}

// repeat copies the first head of K and V to all batches and heads, as layouts with stride 0
// require.
func repeat(in *Inputs) {
	for _, t := range []struct {
		x     []float32
		shape [4]int
	}{{in.k, in.p.KShape()}, {in.v, in.p.VShape()}, {in.kScale, scaleShape(&in.p, false)}, {in.vScale, scaleShape(&in.p, true)}} {
		head := t.shape[2] * t.shape[3]
		for at := head; at < len(t.x); at += head {
			copy(t.x[at:at+head], t.x[:head])
		}
	}
}

// random sets the inputs to new random values from r. The values are normally distributed, or have
// some large outliers, or are nearly equal. The tensors' types represent the values exactly.
func (in *Inputs) random(r *rand.Rand) {
	kind := r.IntN(4)
	for n, x := range [...][]float32{in.q, in.k, in.v, in.do} {
		round := rounder(in.p.DType)
		if n == 1 || n == 2 {
			round = rounder(in.p.KVType())
		}
		for i := range x {
			y := r.NormFloat64()
			switch kind {
			case 1:
				if r.IntN(16) == 0 {
					y *= 16
				}
			case 2:
				y = 0.5 + y/64
			}
			x[i] = round(float32(y))
		}
	}
	for i := range in.dlse {
		in.dlse[i] = float32(r.NormFloat64())
	}
	in.randomInt8(r)
}

var (
	inf = float32(math.Inf(1))
	nan = float32(math.NaN())
)
