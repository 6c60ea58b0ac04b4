package simd_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/half"
)

// operands has the tensors of a forward and a backward call of one problem, in any type, layout and
// memory.
type operands struct {
	p    flashkit.Problem
	fwd  flashkit.Args
	bwd  flashkit.Args
	slot int // number of tensors so far
}

// A space returns memory for n elements of the given size. slot is the index of a tensor in a call.
type space func(slot, n, size int) []byte

func heap(_, n, size int) []byte {
	x := make([]uint64, n*size/8+1) // a slice of bytes might not be aligned
	return unsafe.Slice((*byte)(unsafe.Pointer(&x[0])), n*size)
}

// A layout gives the strides between batches, heads and rows of a shape.
type layout struct {
	name    string
	strides func(s [4]int) [3]int
}

var (
	bhsd = layout{"bhsd", func(s [4]int) [3]int { return [3]int{s[1] * s[2] * s[3], s[2] * s[3], s[3]} }}
	bshd = layout{"bshd", func(s [4]int) [3]int { return [3]int{s[1] * s[2] * s[3], s[3], s[1] * s[3]} }}
	gaps = layout{"gaps", func(s [4]int) [3]int {
		head := s[2]*(s[3]+3) + 5
		return [3]int{s[1] * head, head, s[3] + 3}
	}}
)

// newOperands returns the operands of p with random numbers in Q, K, V, DO and DLSE.
func newOperands(p flashkit.Problem, in space, l layout) *operands {
	a := &operands{p: p}
	tensor := func(t flashkit.DType, s [4]int) flashkit.Tensor {
		st, n := l.strides(s), 0
		if !slices.Contains(s[:], 0) {
			n = (s[0]-1)*st[0] + (s[1]-1)*st[1] + (s[2]-1)*st[2] + s[3]
		}
		memory := unsafe.Pointer(unsafe.SliceData(in(a.slot, n, t.Size())))
		a.slot++
		var x flashkit.Tensor
		switch t {
		case flashkit.Float32:
			x = flashkit.F32(unsafe.Slice((*float32)(memory), n), s[0], s[1], s[2], s[3])
		case flashkit.Float16:
			x = flashkit.F16(unsafe.Slice((*uint16)(memory), n), s[0], s[1], s[2], s[3])
		case flashkit.BFloat16:
			x = flashkit.BF16(unsafe.Slice((*uint16)(memory), n), s[0], s[1], s[2], s[3])
		}
		return x.WithStrides(st[0], st[1], st[2])
	}
	t := p.DType
	a.fwd = flashkit.Args{
		Q: tensor(t, p.QShape()), K: tensor(t, p.KShape()), V: tensor(t, p.VShape()),
		O: tensor(t, p.OShape()), LSE: tensor(flashkit.Float32, p.LSEShape()),
	}
	a.bwd = flashkit.Args{
		Q: a.fwd.Q, K: a.fwd.K, V: a.fwd.V, O: a.fwd.O, LSE: a.fwd.LSE,
		DO: tensor(t, p.OShape()), DLSE: tensor(flashkit.Float32, p.LSEShape()),
		DQ: tensor(t, p.QShape()), DK: tensor(t, p.KShape()), DV: tensor(t, p.VShape()),
	}
	r := rand.New(rand.NewPCG(1, 2))
	for _, x := range []flashkit.Tensor{a.fwd.Q, a.fwd.K, a.fwd.V, a.bwd.DO, a.bwd.DLSE} {
		change(x, func([4]int, float32) float32 { return float32(r.IntN(63)-31) / 16 }) // exact in every type
	}
	return a
}

// run overwrites the outputs, then runs k. Before a backward kernel it runs the portable forward
// kernel, which sets O and LSE.
func (a *operands) run(t testing.TB, k flashkit.Kernel) {
	t.Helper()
	for _, x := range []flashkit.Tensor{a.fwd.O, a.fwd.LSE, a.bwd.DQ, a.bwd.DK, a.bwd.DV} {
		change(x, func([4]int, float32) float32 { return -77 })
	}
	if k.Pass == flashkit.PassForward {
		require.NoError(t, k.Compute(t.Context(), a.p, &a.fwd))
		return
	}
	generic := kernel(t, "simd/fwd_generic")
	require.NoError(t, generic.Compute(t.Context(), a.p, &a.fwd))
	require.NoError(t, k.Compute(t.Context(), a.p, &a.bwd))
}

// outputs returns the outputs of k, as dense values.
func (a *operands) outputs(k flashkit.Kernel) map[string][]float32 {
	if k.Pass == flashkit.PassForward {
		return map[string][]float32{"o": values(a.fwd.O), "lse": values(a.fwd.LSE)}
	}
	return map[string][]float32{"dq": values(a.bwd.DQ), "dk": values(a.bwd.DK), "dv": values(a.bwd.DV)}
}

// each calls f with the position and the offset of every element.
func each(x flashkit.Tensor, f func(at [4]int, i int)) {
	s := x.Shape()
	for b := range s[0] {
		for h := range s[1] {
			for r := range s[2] {
				for c := range s[3] {
					f([4]int{b, h, r, c}, x.Offset(b, h, r)+c)
				}
			}
		}
	}
}

// change replaces every element x with f(x).
func change(x flashkit.Tensor, f func(at [4]int, old float32) float32) {
	each(x, func(at [4]int, i int) {
		switch x.DType() {
		case flashkit.Float32:
			x.Float32s()[i] = f(at, x.Float32s()[i])
		case flashkit.Float16:
			x.Uint16s()[i] = half.ToF16(f(at, half.FromF16(x.Uint16s()[i])))
		case flashkit.BFloat16:
			x.Uint16s()[i] = half.ToBF16(f(at, half.FromBF16(x.Uint16s()[i])))
		}
	})
}

func values(x flashkit.Tensor) []float32 {
	var dense []float32
	change(x, func(_ [4]int, old float32) float32 {
		dense = append(dense, old)
		return old
	})
	return dense
}

// sameBits fails unless got and want have the same bits in all rows for which where, given the
// row's number, is true.
func sameBits(t testing.TB, got, want []float32, rowLen int, where func(row int) bool, about string, args ...any) {
	t.Helper()
	require.Len(t, got, len(want))
	for i := range want {
		if math.Float32bits(got[i]) != math.Float32bits(want[i]) && where(i/rowLen) {
			t.Fatalf("%s: row %d, element %d is %g, want %g", fmt.Sprintf(about, args...), i/rowLen, i%rowLen, got[i], want[i])
		}
	}
}

func everywhere(int) bool { return true }

// kernel returns the kernel with the given name.
func kernel(t testing.TB, name string) flashkit.Kernel {
	t.Helper()
	for _, k := range simd.New().Kernels() {
		if k.Name == name {
			return k
		}
	}
	t.Fatalf("no kernel %s", name)
	return flashkit.Kernel{}
}

// problem returns the named problem with type as.
func problem(t testing.TB, name string, as flashkit.DType) flashkit.Problem {
	t.Helper()
	p, err := flashkit.ParseProblem(name)
	require.NoError(t, err)
	p.DType = as
	return p
}

var dtypes = []flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16}

// someTypes returns all types. With -short it returns only one type, a different one for each i.
func someTypes(i int) []flashkit.DType {
	if testing.Short() {
		return dtypes[i%len(dtypes):][:1]
	}
	return dtypes
}
