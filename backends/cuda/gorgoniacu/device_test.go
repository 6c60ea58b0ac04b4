package gorgoniacu_test

import (
	"testing"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/backends/cuda/gorgoniacu"
	"github.com/flashkit-go/flashkit/conformance"
	"github.com/stretchr/testify/require"
	"gorgonia.org/cu"
)

// onDevice skips a test that needs a GPU.
func onDevice(t *testing.T) {
	if isFake() {
		t.Skip("the loaded libcuda is a fake")
	}
}

func TestConformance(t *testing.T) {
	onDevice(t)
	b, err := cuda.OpenWith(gorgoniacu.Driver(), 0)
	require.NoError(t, err)
	conformance.Run(t, b)
}

// Everything is the program's: the context, which is not the primary one, the
// stream and the memory. With one key, O is V.
func TestProgramOfCU(t *testing.T) {
	onDevice(t)
	ctx := cu.NewContext(cu.Device(0), cu.SchedAuto)
	stream, err := ctx.MakeStream(cu.NonBlocking)
	require.NoError(t, err)

	p := flashkit.Problem{Batch: 1, Heads: 2, KVHeads: 2, QLen: 5, KVLen: 1, Dim: 64, VDim: 64, DType: flashkit.Float32}
	const rows, size = 2*5*64 + 2*64 + 2*64 + 2*5*64, 4
	host := make([]float32, rows)
	for i := range host {
		host[i] = float32(i%64) / 8
	}
	memory, err := ctx.MemAlloc(rows * size)
	require.NoError(t, err)
	ctx.MemcpyHtoDAsync(memory, unsafe.Pointer(&host[0]), rows*size, stream)
	require.NoError(t, ctx.Error())

	b, err := gorgoniacu.Open(ctx.CUDAContext())
	require.NoError(t, err)
	t.Log(b.Device())
	m, s := b.Wrap(gorgoniacu.Pointer(memory), rows*size), b.WrapStream(gorgoniacu.Stream(stream))
	at := func(from, n int) flashkit.Tensor { return m.Tensor(flashkit.Float32, from, 1, 2, n, 64) }
	args := &flashkit.Args{Q: at(0, 5), K: at(640, 1), V: at(768, 1), O: at(896, 5)}
	require.NoError(t, b.Launch(t.Context(), s, p, flashkit.PassForward, args, cuda.Options{Kernel: "cuda/fwd_f32"}))
	require.NoError(t, s.Sync())

	clear(host)
	ctx.MemcpyDtoH(unsafe.Pointer(&host[0]), memory, rows*size)
	require.NoError(t, ctx.Error())
	for head := range 2 {
		for row := range 5 {
			o := host[896+(head*5+row)*64:][:64]
			require.InDeltaSlice(t, host[768+head*64:][:64], o, 1e-5, "head %d, row %d", head, row)
		}
	}
	require.NoError(t, b.Close())

	_, err = gorgoniacu.Open(cu.CUContext{})
	require.Error(t, err)
	ctx.MemFree(memory)
	ctx.DestroyStream(&stream)
	require.NoError(t, ctx.Error(), "the context remains usable")
	require.NoError(t, ctx.Close())
}

// The cost of a call on the host: of package cuda's own way to the driver, and of
// this one. On the fake nothing waits for a device.
func BenchmarkForward(b *testing.B) {
	for _, way := range []struct {
		name string
		open func() (*cuda.Backend, error)
	}{
		{"purego", cuda.Open},
		{"cu", func() (*cuda.Backend, error) { return cuda.OpenWith(gorgoniacu.Driver(), 0) }},
	} {
		b.Run(way.name, func(b *testing.B) {
			if isFake() {
				newFake(b)
			}
			backend := must(way.open())
			m, s := must(backend.Alloc(4*64*64*2)), must(backend.NewStream())
			p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 64, KVLen: 64, Dim: 64, VDim: 64, DType: flashkit.BFloat16}
			at := func(i int) flashkit.Tensor { return m.Tensor(flashkit.BFloat16, i*64*64, 1, 1, 64, 64) }
			f := &flashkit.Args{Q: at(0), K: at(1), V: at(2), O: at(3)}
			b.ReportAllocs()
			for b.Loop() {
				if err := backend.Forward(b.Context(), s, p, f); err != nil {
					b.Fatal(err)
				}
			}
			require.NoError(b, s.Sync())
			require.NoError(b, m.Free())
			require.NoError(b, s.Close())
			require.NoError(b, backend.Close())
		})
	}
}
