//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/philox"
)

// words returns the memory of x as 32-bit words.
func words(x []float32) []uint32 {
	return unsafe.Slice((*uint32)(unsafe.Pointer(unsafe.SliceData(x))), len(x))
}

// A dropping is the arguments of a routine of dropout.
type dropping struct {
	head, batch uint32
	seed        uint64
	below       uint32
}

func newDropping(r *rand.Rand) dropping {
	x := dropping{r.Uint32() >> r.IntN(32), r.Uint32() >> r.IntN(32), r.Uint64() >> r.IntN(64), r.Uint32() >> 16 << 16}
	switch r.IntN(8) {
	case 0:
		x.below = 0
	case 1:
		x.below = math.MaxUint16 << 16
	case 2:
		x.below = 1 << 31
	}
	return x
}

// drops reports whether a pair is dropped.
func (x dropping) drops(row uint32, key int) bool {
	w := philox.Words([4]uint32{uint32(key >> 3), row, x.head, x.batch}, philox.Key(x.seed))
	return philox.Dropped(w, key, x.below)
}

func TestDropWeights(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		rows := make([]uint32, isa.lanes)
		for range trials(2000) {
			x, n := newDropping(r), isa.lanes
			keys, key := 1+r.IntN(24), r.IntN(1<<r.IntN(40))
			first := r.Uint32() >> r.IntN(32)
			for i := range rows {
				rows[i] = first + uint32(i)
				if key%2 == 0 {
					rows[i] = r.Uint32()
				}
			}
			got := newFenced(keys * n)
			for i := range got.x {
				got.x[i] = anyFloat(r)
			}
			want := slices.Clone(words(got.x))
			for i := range want {
				if x.drops(rows[i%n], key+i/n) {
					want[i] = 0
				}
			}
			isa.dropWeights(&got.x[0], keys, key, &rows[0], x.head, x.batch, x.seed, x.below)
			require.Equal(t, want, words(got.x), "%d keys from %d on, %+v", keys, key, x)
			got.requireFence(t, 1, 1)
		}
	})
}

func TestKeepKeys(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		for range trials(2000) {
			x, rows := newDropping(r), 1+r.IntN(9)
			row, key := r.IntN(1<<r.IntN(33)), r.IntN(1<<r.IntN(40))&^7
			got := newFenced(rows)
			bits := words(got.x)
			isa.dropoutMask(&bits[0], rows, row, key, x.head, x.batch, x.seed, x.below)
			for i, kept := range bits {
				want := uint32(0)
				for lane := range isa.lanes {
					if !x.drops(uint32(row+i), key+lane) {
						want |= 1 << lane
					}
				}
				require.Equal(t, want, kept, "row %d+%d, key %d, %+v", row, i, key, x)
			}
			got.requireFence(t, 1, 1)
		}
	})
}

// A gradientCall is the operands of gradientsOf.
type gradientCall struct {
	rows, dsStep            int
	unit, scale, keep       float32
	s, dp, ds, db           fenced
	softcapGrad, lse, delta []float32
	masks, kept             []uint32
}

func newGradientCall(isa *laneRoutines, r *rand.Rand) *gradientCall {
	n, rows := isa.lanes, 1+r.IntN(9)
	c := &gradientCall{rows: rows, dsStep: n + r.IntN(2)*r.IntN(40), unit: 1, scale: float32(r.NormFloat64()), keep: 1 / float32(1-r.Float64())}
	if r.IntN(2) == 0 {
		c.unit = float32(math.Exp(4*r.Float64() - 3))
	}
	numbers := func(n int, f func() float32) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = f()
		}
		return x
	}
	bits := func() []uint32 {
		return words(numbers(rows, func() float32 { return math.Float32frombits(r.Uint32() | r.Uint32()) }))
	}
	c.s, c.dp, c.ds = newFenced(rows*n), newFenced(rows*n), newFenced((rows-1)*c.dsStep+n)
	small := func() float32 { // if operands are small, products are finite
		x := anyFloat(r)
		if math.Abs(float64(x)) <= math.MaxFloat32 {
			x = max(-1e9, min(x, 1e9))
		}
		return x
	}
	for i := range c.s.x {
		c.s.x[i], c.dp.x[i] = anyFloat(r), small()
		if c.s.x[i] < math.MaxFloat32 {
			c.s.x[i] = min(c.s.x[i], 20) // scores are hardly above LSE
		}
	}
	c.lse, c.delta = numbers(rows, func() float32 { return 10 * r.Float32() }), numbers(rows, func() float32 { return float32(r.NormFloat64()) })
	for i := range c.s.x {
		if r.IntN(16) == 0 { // a weight near the smallest normal number
			c.s.x[i] = (c.lse[i/n] - float32(126*math.Ln2+r.NormFloat64()*1e-5)) / c.unit
		}
		w := math.Exp(c.exponent(c.s.x[i], i/n))
		if w > 0x1p-127 && w < 0x1.01p-126 && math.IsInf(float64(c.dp.x[i]), 0) { // NaN if w is flushed to 0, else infinite
			c.dp.x[i] = 1
		}
	}
	c.masks = bits()
	if r.IntN(2) == 0 {
		c.kept = bits()
	}
	if r.IntN(2) == 0 {
		c.softcapGrad = numbers(rows*n, r.Float32)
		for i := range c.softcapGrad {
			if c.masks[i/n]>>(i%n)&1 == 0 {
				c.softcapGrad[i] = anyFloat(r)
			}
		}
	}
	if r.IntN(2) == 0 {
		c.db = newFenced(rows * n)
	}
	return c
}

// exponent returns the logarithm of a score's weight.
func (c *gradientCall) exponent(s float32, row int) float64 {
	return float64(c.unit)*flushed(s) - float64(c.lse[row])
}

// want returns P, dB and dS of an element, and their likely errors.
func (c *gradientCall) want(s, dp float32, row, i, lanes int) (want, errs [3]float64) {
	if c.masks[row]>>i&1 == 0 {
		return want, errs
	}
	by, u := 1.0, 1.0
	if c.kept != nil {
		by = float64(c.keep) * float64(c.kept[row]>>i&1)
	}
	if c.softcapGrad != nil {
		u = flushed(c.softcapGrad[row*lanes+i])
	}
	x := c.exponent(s, row)
	w := flushed(float32(math.Exp(x)))
	d := by*flushed(dp) - float64(c.delta[row])
	want = [3]float64{w * by, w * d, float64(c.scale) * w * d * u}
	unit := (8 + 2*min(math.Abs(x), 200)) * 0x1p-24
	size := (unit*w + 0x1p-125) * (math.Abs(by*flushed(dp)) + math.Abs(float64(c.delta[row])))
	errs = [3]float64{(unit*w + 0x1p-126) * by, size, (size + 0x1p-126) * math.Abs(float64(c.scale)*u)} // a weight near 0x1p-126 may be flushed
	return want, errs
}

func TestGradientsOf(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		for range trials(1000) {
			c, n := newGradientCall(isa, r), isa.lanes
			in := slices.Clone(c.s.x)
			isa.gradientsOf(&c.s.x[0], &c.dp.x[0], &c.ds.x[0], c.dsStep, &c.masks[0], c.rows, &c.lse[0], &c.delta[0], c.unit, c.scale, first(c.kept), c.keep, first(c.softcapGrad), first(c.db.x))
			for row := range c.rows {
				for i := range n {
					at := row*n + i
					want, errs := c.want(in[at], c.dp.x[at], row, i, n)
					got := [3]float32{c.s.x[at], float32(want[1]), c.ds.x[row*c.dsStep+i]}
					if c.db.x != nil {
						got[1] = c.db.x[at]
					}
					for k, name := range []string{"P", "dB", "dS"} {
						requireThat(t, near(want[k], got[k], errs[k]), "%s is %g, want %g: s %g, dP %g, mask %d", name, got[k], want[k], in[at], c.dp.x[at], c.masks[row]>>i&1)
					}
				}
			}
			c.s.requireFence(t, n, n)
			c.ds.requireFence(t, n, c.dsStep)
			c.db.requireFence(t, n, n)
		}
	})
}
