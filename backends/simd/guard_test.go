//go:build linux && !js

package simd_test

import (
	"fmt"
	"runtime/debug"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/backends/simd"
	edges "github.com/flashkit-go/flashkit/internal/guarded"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// A guarded memory is readable and writable. The memory before it and after it is not mapped.
type guarded []byte

func newGuarded(t testing.TB, bytes int) guarded {
	pieces, free, err := edges.Memory(1, bytes)
	require.NoError(t, err)
	t.Cleanup(free)
	return pieces[0]
}

// Kernels must not read or write a byte outside the tensors, because its page may not be mapped. A
// kernel that does so crashes the whole test binary. debug.SetPanicOnFault cannot prevent this: it
// affects only the goroutine of the test, not the kernel's workers. Run with -v to see which case
// ran last.
func TestNothingOutsideTensorsIsTouched(t *testing.T) {
	slow.UnderRace(t)
	const tensors, largest = 10, 1 << 18
	var memory [tensors]guarded
	for i := range memory {
		memory[i] = newGuarded(t, largest)
	}
	placements := []struct {
		name string
		in   space
		l    layout
	}{
		{"end", atEnd(memory[:]), bhsd},
		{"start", atStart(memory[:], 0), bhsd},
		{"element1", atStart(memory[:], 1), bhsd}, // vectors are never aligned
		{"end-bshd", atEnd(memory[:]), bshd},
		{"end-gaps", atEnd(memory[:]), gaps}, // the memory ends with the last row, without a gap after it
		{"start-gaps", atStart(memory[:], 0), gaps},
	}
	for i, dim := range []string{"d1", "d3", "d15", "d17", "d40", "d40-dv17", "d65", "d16-dv1", "d64"} {
		for j, shape := range guardShapes {
			for _, dtype := range someTypes(i + j) {
				p := problem(t, fmt.Sprintf(shape, dim), dtype)
				for _, k := range simd.New().Kernels() {
					if k.Fits(p.Ask(k.Pass)) != "" {
						continue
					}
					free := newOperands(p, heap, bhsd)
					free.run(t, k)
					for _, place := range placements {
						t.Run(k.Name+"/"+p.String()+"/"+place.name, func(t *testing.T) {
							a := newOperands(p, place.in, place.l)
							a.run(t, k)
							if place.l.name != bhsd.name {
								return
							}
							got := a.outputs(k)
							for name, want := range free.outputs(k) {
								sameBits(t, got[name], want, 1, everywhere, "%s differs by where the tensors lie", name)
							}
						})
					}
				}
			}
		}
	}
}

// guardShapes has N and M near 1, 32, 64 and 128, every kind of band, and grouped heads.
var guardShapes = []string{
	"b1-h1-g1-n1-m1-%s-f32",
	"b1-h2-g1-n33-m1-%s-f32",
	"b1-h1-g1-n1-m127-%s-f32-causal",
	"b1-h2-g1-n31-m127-%s-f32",
	"b1-h1-g1-n33-m127-%s-f32-causal",
	"b1-h4-g2-n33-m31-%s-f32-window5.3",
	"b2-h2-g1-n31-m33-%s-f32-causal-topleft",
	"b1-h1-g1-n65-m129-%s-f32-window33.0",
	"b1-h1-g1-n3-m0-%s-f32",
	"b1-h1-g1-n0-m3-%s-f32",
}

func atEnd(memory []guarded) space {
	return func(slot, n, size int) []byte {
		m := memory[slot]
		return m[len(m)-n*size:]
	}
}

func atStart(memory []guarded, element int) space {
	return func(slot, n, size int) []byte {
		return memory[slot][element*size:][: n*size : n*size]
	}
}

// The pages around a guarded memory must fault, or the test above proves nothing.
func TestGuardsFault(t *testing.T) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	m := newGuarded(t, 1)
	for _, at := range []int{-1, len(m)} {
		require.Panics(t, func() { sink = *(*byte)(unsafe.Add(unsafe.Pointer(&m[0]), at)) }, "byte %d", at)
	}
	sink = m[0] + m[len(m)-1]
}

var sink byte
