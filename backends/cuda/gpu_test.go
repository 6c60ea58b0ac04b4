//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"context"
	"math"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance"
	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/internal/half"
)

// The tests below need a GPU. make gpu-test builds them as a binary that runs on a machine without
// Go.

func openGPU(t testing.TB) *Backend {
	b, err := Open()
	if err != nil {
		conformance.Unavailable(t.(*testing.T), "cuda", err)
	}
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// eachKernel runs f as a subtest for the kernels that support a problem: one forward and one
// backward at a time, until each has run.
func eachKernel(t *testing.T, b *Backend, name string, f func(t *testing.T, c *deviceCall)) {
	var names [2][]string
	for i := range families {
		if s, p := &families[i], problem(t, name); s.fits(&b.dev, p) && !(s.hopper && looseRows(p)) {
			names[s.pass] = append(names[s.pass], "cuda/"+s.name)
		}
	}
	forward, backward := names[flashkit.PassForward], names[flashkit.PassBackward]
	for i := range max(len(forward), len(backward)) {
		c := newDeviceCall(t, b, name)
		if c.fwdOptions.Kernel = forward[min(i, len(forward)-1)]; len(backward) > 0 { // some GPUs have none for wide heads in 16 bits
			c.bwdOptions.Kernel = backward[min(i, len(backward)-1)]
		}
		t.Run(name+"/"+c.fwdOptions.Kernel+","+c.bwdOptions.Kernel, func(t *testing.T) { f(t, c) })
		c.close(t)
	}
}

// NaN in the workspace changes no result: every read follows a write.
func TestPoisonedWorkspace(t *testing.T) {
	b := openGPU(t)
	b.eager = true
	b.Poison()
	conformance.Run(t, b)
}

// Blocks with several tiles, as on few multiprocessors, change no result.
func TestFewMultiprocessors(t *testing.T) {
	b := openGPU(t)
	b.dev.SMs = 4
	conformance.Run(t, b)
}

// The nondeterministic variant gives the ordered results, up to rounding.
func TestFastBackward(t *testing.T) {
	b := openGPU(t)
	for _, name := range []string{"b2-h8-g4-n500-m700-d64-bf16-causal", "b1-h4-g4-n300-m300-d128-f32"} {
		eachKernel(t, b, name, func(t *testing.T, c *deviceCall) {
			require.NoError(t, c.forward())
			require.NoError(t, c.backward())
			want := c.download(t, c.args.DQ)
			c.bwdOptions.Nondeterministic = true
			require.NoError(t, c.backward())
			got := c.download(t, c.args.DQ)
			for i := range want {
				require.InDelta(t, want[i], got[i], 0.02*(1+float64(max(want[i], -want[i]))), name)
			}
		})
	}
}

// Offsets beyond 31 bits: a row stride so large that few rows suffice.
func TestLargeStrides(t *testing.T) {
	b := openGPU(t)
	eachKernel(t, b, "b1-h2-g2-n70-m70-d16-f16", func(t *testing.T, c *deviceCall) { largeStrides(t, b, c) })
}

func largeStrides(t *testing.T, b *Backend, c *deviceCall) {
	require.NoError(t, c.forward())
	require.NoError(t, c.backward())
	want := [][]float32{c.download(t, c.args.O), c.download(t, c.args.DQ), c.download(t, c.args.DK), c.download(t, c.args.DV)}

	const row = 1<<25 + 8 // 70 of them are 2.3e9 elements
	far, err := b.Alloc(2 * (70*row + 2*16*10))
	if isOutOfMemory(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer far.Free()
	spread := func(x flashkit.Tensor, slot int) flashkit.Tensor { // two heads side by side, 70 rows far apart
		y := far.Tensor(flashkit.Float16, 32*slot, 1, 2, 70, 16).WithStrides(0, 16, row)
		bits := make([]uint16, 2*70*16)
		require.NoError(t, Download(c.s, bits, buffer(x), 0))
		for h := range 2 {
			for r := range 70 {
				require.NoError(t, Upload(c.s, far, 2*(32*slot+16*h+row*r), bits[(70*h+r)*16:][:16]))
			}
		}
		return y
	}
	fetch := func(slot int) []float32 {
		out, bits := make([]float32, 0, 2*70*16), make([]uint16, 16)
		for h := range 2 {
			for r := range 70 {
				require.NoError(t, Download(c.s, bits, far, 2*(32*slot+16*h+row*r)))
				for _, x := range bits {
					out = append(out, half.FromF16(x))
				}
			}
		}
		return out
	}
	c.args.DO = spread(c.args.DO, 4)
	c.args.Q, c.args.K, c.args.V, c.args.O = spread(c.args.Q, 0), spread(c.args.K, 1), spread(c.args.V, 2), spread(c.args.O, 5)
	c.args.DQ, c.args.DK, c.args.DV = spread(c.args.DQ, 6), spread(c.args.DK, 7), spread(c.args.DV, 8)
	require.NoError(t, c.forward())
	require.NoError(t, c.backward())
	for i, slot := range []int{5, 6, 7, 8} {
		require.Equal(t, want[i], fetch(slot), slot)
	}
}

// Gaps between rows affect nothing and stay unchanged, even after rows with an odd number of
// elements.
func TestGapsAreLeftAlone(t *testing.T) {
	b := openGPU(t)
	for _, name := range []string{"b1-h2-g1-n70-m90-d63-dv62-bf16-causal", "b2-h2-g2-n70-m70-d17-dv33-f16", "b1-h2-g1-n140-m130-d127-bf16", "b1-h2-g1-n40-m50-d13-f32"} {
		eachKernel(t, b, name, func(t *testing.T, c *deviceCall) {
			fwd, bwd := c.fwdOptions.Kernel, c.bwdOptions.Kernel
			c.fwdOptions.Kernel, c.bwdOptions.Kernel = "", "" // these may not support dense rows
			require.NoError(t, c.forward())
			require.NoError(t, c.backward())
			outputs := []*flashkit.Tensor{&c.args.O, &c.args.DQ, &c.args.DK, &c.args.DV}
			var want [][]float32
			for _, x := range outputs {
				want = append(want, c.download(t, *x))
			}
			for _, x := range []*flashkit.Tensor{&c.args.Q, &c.args.K, &c.args.V, &c.args.O, &c.args.DO, &c.args.DQ, &c.args.DK, &c.args.DV} {
				*x = c.withGaps(t, *x)
			}
			c.fwdOptions.Kernel, c.bwdOptions.Kernel = fwd, bwd
			require.NoError(t, c.forward())
			require.NoError(t, c.backward())
			for i, x := range outputs {
				got := c.betweenGaps(t, *x)
				for j, w := range want[i] {
					require.InDelta(t, w, got[j], 0.02*(1+float64(max(w, -w))), "output %d", i)
				}
			}
		})
	}
}

// gapped returns the 16-bit words of an element, and the row stride in elements of a tensor with
// gaps.
func gapped(x flashkit.Tensor) (words, step int) {
	return x.DType().Size() / 2, (x.Shape()[3]+7)/8*8 + 8
}

// withGaps returns a copy of a dense tensor with NaN between its rows.
func (c *deviceCall) withGaps(t *testing.T, x flashkit.Tensor) flashkit.Tensor {
	s := x.Shape()
	words, step := gapped(x)
	dense, wide := make([]uint16, s[0]*s[1]*s[2]*s[3]*words), make([]uint16, s[0]*s[1]*s[2]*step*words)
	require.NoError(t, Download(c.s, dense, buffer(x), 0))
	for i := range wide {
		wide[i] = 0xffff
	}
	for r := range s[0] * s[1] * s[2] {
		copy(wide[r*step*words:], dense[r*s[3]*words:][:s[3]*words])
	}
	m, err := c.b.Alloc(2 * len(wide))
	require.NoError(t, err)
	c.buffers = append(c.buffers, m)
	require.NoError(t, Upload(c.s, m, 0, wide))
	return m.Tensor(x.DType(), 0, s[0], s[1], s[2], s[3]).WithStrides(s[1]*s[2]*step, s[2]*step, step)
}

// betweenGaps returns the elements of a tensor of withGaps, and checks that its gaps are unchanged.
func (c *deviceCall) betweenGaps(t *testing.T, x flashkit.Tensor) (out []float32) {
	s := x.Shape()
	words, step := gapped(x)
	wide := make([]uint16, s[0]*s[1]*s[2]*step*words)
	require.NoError(t, Download(c.s, wide, buffer(x), 0))
	for r := range s[0] * s[1] * s[2] {
		row := wide[r*step*words:][:step*words]
		for i, w := range row[s[3]*words:] {
			require.EqualValues(t, 0xffff, w, "word %d behind row %d", i, r)
		}
		for i := range s[3] {
			switch x.DType() {
			case flashkit.Float32:
				out = append(out, math.Float32frombits(uint32(row[2*i])|uint32(row[2*i+1])<<16))
			case flashkit.Float16:
				out = append(out, half.FromF16(row[i]))
			default:
				out = append(out, half.FromBF16(row[i]))
			}
		}
	}
	return out
}

// A pass can be captured in a CUDA graph and replayed.
func TestGraphCapture(t *testing.T) {
	b := openGPU(t)
	for _, name := range []string{"b2-h4-g2-n300-m300-d64-bf16-causal", "b1-h8-g2-n1-m5000-d128-f16", "b1-h2-g2-n100-m100-d64-f32"} {
		eachKernel(t, b, name, func(t *testing.T, d *deviceCall) {
			require.NoError(t, d.forward())
			require.NoError(t, d.backward())
			want := [][]float32{d.download(t, d.args.O), d.download(t, d.args.DQ), d.download(t, d.args.DK)}
			inGraph(t, d, func() {
				require.NoError(t, d.forward())
				require.NoError(t, d.backward())
			}, func(launch func()) {
				for _, x := range []flashkit.Tensor{d.args.O, d.args.DQ, d.args.DK} {
					require.NoError(t, b.drv.MemsetD32Async(buffer(x).address, 0xffffffff, buffer(x).bytes/4, d.s.handle))
				}
				for range 3 {
					launch()
				}
				require.NoError(t, d.s.Sync())
			})
			require.Equal(t, want, [][]float32{d.download(t, d.args.O), d.download(t, d.args.DQ), d.download(t, d.args.DK)}, name)
		})
	}
}

// A request for more memory than the device has leaves it usable.
func TestDeviceFull(t *testing.T) {
	b := openGPU(t)
	_, err := b.Alloc(b.dev.Memory * 2)
	require.True(t, isOutOfMemory(err), err)
	c := newDeviceCall(t, b, "b1-h2-g2-n100-m100-d64-f32")
	require.NoError(t, c.forward())
	require.NoError(t, c.s.Sync())
	c.close(t)
}

// The device calls do not allocate.
func TestGPUAllocations(t *testing.T) {
	b := openGPU(t)
	for _, name := range []string{"b1-h2-g2-n100-m100-d64-f32", "b1-h2-g2-n100-m100-d64-bf16-causal", "b1-h8-g2-n1-m5000-d128-f16"} {
		c := newDeviceCall(t, b, name)
		require.NoError(t, c.forward())
		require.NoError(t, c.backward())
		require.Zero(t, allocs.PerRun(100, func() {
			if c.forward() != nil || c.backward() != nil {
				t.Error("failed")
			}
		}), name)
		require.NoError(t, c.s.Sync())
		c.close(t)
	}
}

// Host calls from many goroutines share the buffers.
func TestManyHostCalls(t *testing.T) {
	b := openGPU(t)
	p := problem(t, "b4-h4-g4-n200-m200-d64-f32-causal")
	x := func(s [4]int) []float32 {
		h := make([]float32, s[0]*s[1]*s[2]*s[3])
		for i := range h {
			h[i] = float32(rand.NormFloat64())
		}
		return h
	}
	q, k, v := x(p.QShape()), x(p.KShape()), x(p.VShape())
	outs := make([][]float32, 20)
	errs := make(chan error, len(outs))
	for i := range outs {
		outs[i] = make([]float32, len(q))
		go func() {
			errs <- b.host(context.Background(), fwdF32, p, &flashkit.Args{
				Q: flashkit.F32(q, 4, 4, 200, 64), K: flashkit.F32(k, 4, 4, 200, 64), V: flashkit.F32(v, 4, 4, 200, 64), O: flashkit.F32(outs[i], 4, 4, 200, 64)})
		}()
	}
	for range outs {
		require.NoError(t, <-errs)
	}
	for _, o := range outs {
		require.Equal(t, outs[0], o)
	}
}

// gpuProblems returns the problems that FLASHKIT_BENCH names.
func gpuProblems(fallback ...string) []string {
	if names := os.Getenv("FLASHKIT_BENCH"); names != "" {
		return strings.Fields(strings.ReplaceAll(names, ",", " "))
	}
	return fallback
}
