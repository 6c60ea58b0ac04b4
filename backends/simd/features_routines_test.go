//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// A testedISA is the laneRoutines of an instruction set, with its name and tier.
type testedISA struct {
	name string
	isa  *laneRoutines
	tier tier
}

// eachLaneISA runs a test of routines for the instruction sets that this machine has.
func eachLaneISA(t *testing.T, test func(t *testing.T, isa *laneRoutines, r *rand.Rand)) {
	for _, x := range testedISAs {
		t.Run(x.name, func(t *testing.T) {
			if reason := x.tier.missing(); reason != "" {
				t.Skip(reason)
			}
			test(t, x.isa, rand.New(rand.NewPCG(rand.Uint64(), 1)))
		})
	}
}

// trials returns the number of random cases of a test. It is n, or a tenth of n in a short run,
// which may use an emulated processor.
func trials(n int) int {
	if testing.Short() {
		return n / 10
	}
	return n
}

const (
	untouched = 0x7fabcdef // a NaN that nothing computes
	margin    = 40         // elements on either side of an output
)

// fenced is an output of n elements. The memory around the output and between its rows must stay
// untouched.
type fenced struct{ all, x []float32 }

func newFenced(n int) fenced {
	all := make([]float32, n+2*margin)
	for i := range all {
		all[i] = math.Float32frombits(untouched)
	}
	return fenced{all, all[margin:][:n]}
}

// requireFence fails if anything was written outside rows of the given elements, step elements
// apart.
func (f *fenced) requireFence(t *testing.T, wide, step int) {
	t.Helper()
	for i, x := range f.all {
		at := i - margin
		if at < 0 || at >= len(f.x) || at%step >= wide {
			require.Equal(t, uint32(untouched), math.Float32bits(x), "element %d of %d, rows of %d of %d", at, len(f.x), wide, step)
		}
	}
}

var extremes = []float32{
	0, float32(math.Copysign(0, -1)), 1e-45, -1e-40, 0x1p-126, -0x1p-126, 1, -1, 88, -104, 1e30, -1e30,
	math.MaxFloat32, -math.MaxFloat32, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN()),
}

// anyFloat sometimes returns a number of any magnitude, and else a number of moderate magnitude.
func anyFloat(r *rand.Rand) float32 {
	switch r.IntN(16) {
	case 0:
		return extremes[r.IntN(len(extremes))]
	case 1:
		return math.Float32frombits(r.Uint32())
	default:
		return float32(r.NormFloat64() * math.Exp(6*r.Float64()-3))
	}
}

// flushed returns x as arithmetic routines read and write it: a denormal number becomes 0.
func flushed(x float32) float64 {
	if math.Abs(float64(x)) < 0x1p-126 {
		return 0
	}
	return float64(x)
}

// lost returns the error that flushing x to 0 causes: x if x is denormal, else 0.
func lost(x float32) float64 {
	if flushed(x) == 0 {
		return float64(x)
	}
	return 0
}

// near reports whether got differs from want by at most err. got must be NaN or infinite if want
// is, and may be infinite if want is near the limit of float32.
func near(want float64, got float32, err float64) bool {
	switch {
	case math.IsNaN(want):
		return got != got
	case math.IsInf(want, 0):
		return float64(got) == want
	case math.IsInf(float64(got), 0):
		return math.Abs(want)+err >= math.MaxFloat32 && math.Signbit(want) == math.Signbit(float64(got))
	}
	return math.Abs(float64(got)-want) <= err+0x1p-126
}

// requireThat does the work of require.True, but is fast if ok is true.
func requireThat(t *testing.T, ok bool, format string, args ...any) {
	if !ok {
		t.Helper()
		require.Failf(t, "not so", format, args...)
	}
}

// The hyperbolic tangent of scoreMod has the sign of its argument, is at most 1, and is
// within three units in the last place over all exponents.
func TestTanh(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		n := isa.lanes
		x, s, top := make([]float32, n), make([]float32, n), make([]float32, n)
		for range trials(40000) {
			for i := range x {
				switch r.IntN(4) {
				case 0:
					x[i] = anyFloat(r)
				case 1:
					x[i] = math.Float32frombits(r.Uint32())
				default:
					x[i] = float32(20*r.Float64() - 10)
				}
			}
			copy(s, x)
			isa.scoreMod(&s[0], n, 1, &top[0], nil, 1, 1, nil, 0, nil, 0, 0)
			for i, got := range s {
				want, size := math.Tanh(flushed(x[i])), math.Abs(float64(got))
				ok := near(want, got, math.Abs(want)*3*0x1p-23+0x1p-124) && !(size > 1) && (got == 0 || got != got || got > 0 == (x[i] > 0))
				if math.Abs(float64(x[i])) > 9.5 {
					ok = size == 1
				}
				requireThat(t, ok, "tanh(%g) = %g, want %g", x[i], got, want)
			}
		}
	})
}

// An adjustment is a call of scoreMod.
type adjustment struct {
	rows, step, biasStep int
	scale, softcap       float32
	slope, at            float32
	s, softcapGrad       fenced
	top, bias, lanes     []float32
}

// newAdjustment returns an adjustment with random features.
func newAdjustment(isa *laneRoutines, r *rand.Rand) *adjustment {
	n := isa.lanes
	a := &adjustment{rows: 1 + r.IntN(9), step: n + r.IntN(3)*r.IntN(30), scale: float32(math.Exp(4*r.Float64() - 3))}
	a.s, a.top = newFenced((a.rows-1)*a.step+n), make([]float32, n)
	for i := range n {
		a.top[i] = anyFloat(r)
		if a.top[i] != a.top[i] {
			a.top[i] = float32(math.Inf(-1))
		}
		for row := range a.rows {
			a.s.x[row*a.step+i] = anyFloat(r)
		}
	}
	if r.IntN(2) == 0 {
		a.softcap = float32(math.Exp(5 * r.Float64()))
	}
	if r.IntN(2) == 0 {
		a.softcapGrad = newFenced(len(a.s.x))
	}
	if r.IntN(2) == 0 {
		a.biasStep = r.IntN(2) * (n + r.IntN(20))
		a.bias = make([]float32, (a.rows-1)*a.biasStep+n)
		for i := range a.bias {
			a.bias[i] = anyFloat(r)
		}
	}
	if r.IntN(2) == 0 {
		a.slope, a.at = float32(r.Float64()-.2), float32(r.IntN(5000))
		a.lanes = make([]float32, n)
		for i := range a.lanes {
			a.lanes[i] = float32(r.IntN(5000))
		}
	}
	return a
}

// first returns the address of the first element, or nil.
func first[T any](x []T) *T {
	if len(x) == 0 {
		return nil
	}
	return &x[0]
}

// want returns the score of x, the softcap's derivative, and bounds of their errors. The derivative
// is tiny near the softcap, so its error is relative. The routine may read a denormal number as 0,
// which adds to the error.
func (a *adjustment) want(x float32, row, i int) (s, err, softcapGrad, uncapErr float64) {
	s = float64(a.scale) * flushed(x)
	denormal := math.Abs(float64(a.scale) * lost(x))
	err = math.Abs(s)
	if limit := float64(a.softcap); limit != 0 {
		z := s / limit
		y, c := math.Tanh(z), math.Cosh(z)
		softcapGrad = 1 / c / c
		uncapErr = softcapGrad*(6+6*math.Min(math.Abs(z), 99))*0x1p-23 + 0x1p-123 // below 2^-123 the exponential may be flushed to 0
		s, err = limit*y, 4*limit*(math.Abs(y)+0x1p-100)
	}
	if a.bias != nil {
		b := flushed(a.bias[row*a.biasStep+i])
		s, err = s+b, err+math.Abs(b)
		denormal += math.Abs(lost(a.bias[row*a.biasStep+i]))
	}
	if a.lanes != nil {
		d := float64(a.slope) * math.Abs(float64(a.at)+float64(row)-float64(a.lanes[i]))
		s, err = s-d, err+math.Abs(d)
	}
	return s, 2*0x1p-23*err + denormal, softcapGrad, uncapErr
}

func TestAdjust(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		for range trials(1500) {
			a, n := newAdjustment(isa, r), isa.lanes
			in, top := slices.Clone(a.s.x), slices.Clone(a.top)
			isa.scoreMod(&a.s.x[0], a.step, a.rows, &a.top[0], first(a.softcapGrad.x), a.scale, a.softcap, first(a.bias), a.biasStep, first(a.lanes), a.slope, a.at)
			for row := range a.rows {
				for i := range n {
					at := row*a.step + i
					got := a.s.x[at]
					s, err, softcapGrad, uncapErr := a.want(in[at], row, i)
					requireThat(t, near(s, got, err), "%g, want %g: s %g, softcap %g, bias %t, slope %g", got, s, in[at], a.softcap, a.bias != nil, a.slope)
					if got > top[i] {
						top[i] = got
					}
					if a.softcap != 0 && a.softcapGrad.x != nil {
						got := a.softcapGrad.x[at]
						requireThat(t, near(softcapGrad, got, uncapErr) && !(got < 0), "uncap %g, want %g: s %g, softcap %g", got, softcapGrad, in[at], a.softcap)
					}
				}
			}
			for i, x := range top {
				require.Equal(t, flushed(x), flushed(a.top[i]), "top of lane %d", i)
			}
			a.s.requireFence(t, n, a.step)
			if a.softcap == 0 {
				n = 0
			}
			a.softcapGrad.requireFence(t, n, a.step)
		}
	})
}

func TestMaskBits(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		for range trials(2000) {
			rows, step := 1+r.IntN(9), r.IntN(2)*(isa.lanes-5+r.IntN(20))
			mask, got := make([]bool, (rows-1)*step+isa.lanes), newFenced(rows)
			for i := range mask {
				mask[i] = r.IntN(2) == 0
			}
			bits := words(got.x)
			isa.maskBits(&bits[0], &mask[0], step, rows)
			for row, got := range bits {
				want := uint32(0)
				for i, on := range mask[row*step:][:isa.lanes] {
					if on {
						want |= 1 << i
					}
				}
				require.Equal(t, want, got, "row %d of %d, %d apart", row, rows, step)
			}
			got.requireFence(t, 1, 1)
		}
	})
}
