//go:build linux && !js

package simd_test

import (
	"math"
	"math/rand/v2"
	"syscall"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// guardedCopy returns a copy of x in guarded memory, with the same strides. The copy ends where the
// guarded memory ends if atEnd is true, else it begins where the memory begins.
func guardedCopy(t testing.TB, x *flashkit.Tensor, m guarded, atEnd bool) flashkit.Tensor {
	bytes := x.Len() * x.DType().Size()
	require.LessOrEqual(t, bytes, len(m))
	if atEnd {
		m = m[len(m)-bytes:]
	}
	if x.Len() == 0 {
		return *x
	}
	s, st, first := x.Shape(), x.Strides(), unsafe.Pointer(&m[0])
	var y flashkit.Tensor
	switch x.DType() {
	case flashkit.Float32:
		y = flashkit.F32(unsafe.Slice((*float32)(first), x.Len()), s[0], s[1], s[2], s[3])
		copy(y.Float32s(), x.Float32s())
	case flashkit.Float16:
		y = flashkit.F16(unsafe.Slice((*uint16)(first), x.Len()), s[0], s[1], s[2], s[3])
		copy(y.Uint16s(), x.Uint16s())
	case flashkit.BFloat16:
		y = flashkit.BF16(unsafe.Slice((*uint16)(first), x.Len()), s[0], s[1], s[2], s[3])
		copy(y.Uint16s(), x.Uint16s())
	case flashkit.Int32:
		y = flashkit.Int32s(unsafe.Slice((*int32)(first), x.Len()), s[0], s[1], s[2], s[3])
		copy(y.Int32s(), x.Int32s())
	case flashkit.Bool:
		y = flashkit.Bools(unsafe.Slice((*bool)(first), x.Len()), s[0], s[1], s[2], s[3])
		copy(y.Bools(), x.Bools())
	}
	return y.WithStrides(st[0], st[1], st[2])
}

// With features, too, decode kernels access no byte outside the tensors: neither of pages, packed
// sequences, masks nor biases. See TestNothingOutsideTensorsIsTouched.
func TestDecodeTouchesNothingOutsideTensors(t *testing.T) {
	slow.UnderRace(t)
	const largest = 1 << 21
	memory := make([]guarded, len(flashkit.Arguments()))
	for i := range memory {
		memory[i] = newGuarded(t, largest)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range 200 {
		s := newSample(r, drawDecode(t, r, anyFeatures(r), dtypes[i%3]))
		if s.p.Carry {
			s.startCarry(r)
		}
		free := s.args
		forDecode(s.p, func(k flashkit.Kernel) {
			want := s.args
			want.O, want.LSE = s.copied(&free.O), s.copied(&free.LSE)
			require.NoError(t, k.Compute(t.Context(), s.p, &want), s.about)
			for _, atEnd := range []bool{true, false} {
				args := free
				for slot, a := range flashkit.Arguments() {
					if x := a.Of(&args); !x.IsZero() {
						*x = guardedCopy(t, x, memory[slot], atEnd)
					}
				}
				require.NoError(t, k.Compute(t.Context(), s.p, &args), s.about)
				for _, pair := range [][2]*flashkit.Tensor{{&args.O, &want.O}, {&args.LSE, &want.LSE}} {
					for at := range pair[0].Len() {
						got, want := get(pair[0], at), get(pair[1], at)
						require.True(t, math.Float64bits(got) == math.Float64bits(want) || got != got && want != want, "%s: element %d is %g, not %g: %s", k.Name, at, got, want, s.about)
					}
				}
			}
		})
	}
}

// sparse returns an address range that uses no physical memory until it is written.
func sparse(t testing.TB, bytes int64) []byte {
	if bytes > math.MaxInt {
		t.Skip("more memory than an address can say")
	}
	m, err := syscall.Mmap(-1, 0, int(bytes), syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE|syscall.MAP_NORESERVE)
	if err != nil {
		t.Skip(err)
	}
	t.Cleanup(func() { require.NoError(t, syscall.Munmap(m)) })
	return m
}

// Keys may be more than 4 GiB apart, with or without pages.
func TestDecodeOfFarKeys(t *testing.T) {
	const keys, dim, gap = 5, 16, 1 << 28 // elements from one key, or page, to the next
	memory := unsafe.Slice((*float32)(unsafe.Pointer(&sparse(t, 4*((keys-1)*gap+2*dim))[0])), (keys-1)*gap+2*dim)
	p := flashkit.Problem{Batch: 1, Heads: 2, KVHeads: 1, QLen: 1, KVLen: keys, Dim: dim, VDim: dim}
	for _, page := range []int{0, 1} {
		p.Page, p.Ragged = page, page > 0
		near := flashkit.NewArgs(p, flashkit.PassForward)
		for i := range near.Q.Float32s() {
			near.Q.Float32s()[i] = rand.Float32()
		}
		shape := [4]int{1, 1, keys, dim}
		if page > 0 {
			shape[0], shape[2] = keys, 1
			near.Seqs.KVLens = []int32{keys}
		}
		far := *near
		far.K = flashkit.F32(memory, shape[0], shape[1], shape[2], dim).WithStrides(gap, gap, gap)
		far.V = flashkit.F32(memory[dim:], shape[0], shape[1], shape[2], dim).WithStrides(gap, gap, gap)
		for j := range keys {
			for c := range dim {
				x, y := rand.Float32(), rand.Float32()
				near.K.Float32s()[j*dim+c], memory[j*gap+c] = x, x
				near.V.Float32s()[j*dim+c], memory[j*gap+dim+c] = y, y
			}
		}
		forDecode(p, func(k flashkit.Kernel) {
			var got [2][]uint32
			for i, args := range []*flashkit.Args{near, &far} {
				fill(&args.O, math.NaN())
				require.NoError(t, k.Compute(t.Context(), p, args), k.Name)
				got[i] = memoryOf([]*flashkit.Tensor{&args.O, &args.LSE})
			}
			require.Equal(t, got[0], got[1], "%s, pages of %d", k.Name, page)
		})
	}
}
