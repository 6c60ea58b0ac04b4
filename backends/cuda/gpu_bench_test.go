//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// The benchmarks below need a GPU. They print lines of JSON for bench/peers/gpu.py, which times
// PyTorch on the same problems in the same run.

// A timing is an output line.
type timing struct {
	Problem string  `json:"problem"`
	Kernel  string  `json:"kernel"`
	Pass    string  `json:"pass"`
	MS      float64 `json:"ms"`
	Chosen  string  `json:"chosen,omitempty"` // the kernel of a call without a name
}

// flushBytes exceeds every cache of a GPU.
const flushBytes = 256 << 20

// newFlush returns a function that evicts the device's caches, in stream order.
func newFlush(b *testing.B, c *deviceCall) func() error {
	m, err := c.b.Alloc(flushBytes)
	require.NoError(b, err)
	b.Cleanup(func() { require.NoError(b, m.Free()) })
	return func() error {
		return c.b.do(func() error { return c.b.drv.MemsetD32Async(m.address, 0, flushBytes/4, c.s.handle) })
	}
}

// BenchmarkDevice times calls on device tensors: without a kernel's name, as "chosen", and by each
// supporting kernel. Times are medians of the device's events, with a cold cache. FLASHKIT_BENCH
// names the problems.
func BenchmarkDevice(b *testing.B) {
	gpu := benchGPU(b)
	for _, name := range gpuProblems("b4-h16-g16-n4096-m4096-d128-bf16", "b4-h16-g16-n4096-m4096-d128-bf16-causal") {
		c := newDeviceCall(b, gpu, name)
		require.NoError(b, c.forward())
		for _, pass := range []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward} {
			ids, chosen := c.candidates(b, pass)
			c.time(b, "", timing{Kernel: "chosen", Pass: pass.String(), Chosen: "cuda/" + families[chosen].name})
			for _, id := range ids {
				kernel := "cuda/" + families[id].name
				c.time(b, kernel, timing{Kernel: kernel, Pass: pass.String()})
				if pass == flashkit.PassBackward {
					c.bwdOptions.Nondeterministic = true
					c.time(b, kernel, timing{Kernel: kernel + " fast", Pass: pass.String()})
					c.bwdOptions.Nondeterministic = false
				}
			}
		}
		c.close(b)
	}
}

// time reports the time of a kernel, "" for the choice.
func (c *deviceCall) time(b *testing.B, kernel string, t timing) {
	t.Problem = c.p.String()
	b.Run(strings.TrimPrefix(t.Kernel, "cuda/")+"/"+t.Pass+"/"+t.Problem, func(b *testing.B) {
		call, pass := c.forward, flashkit.PassForward
		if t.Pass != pass.String() {
			call, pass = c.backward, flashkit.PassBackward
		}
		c.use(kernel, pass)
		t.MS = deviceMedian(b, c, call)
		b.ReportMetric(c.p.FLOPs(pass)/t.MS/1e9, "TFLOP/s")
		b.ReportMetric(t.MS*1e6, "ns/op")
		report(t)
	})
}

// use sets the kernel of a pass; the other pass chooses.
func (c *deviceCall) use(kernel string, pass flashkit.Pass) {
	c.fwdOptions.Kernel, c.bwdOptions.Kernel = "", ""
	if pass == flashkit.PassForward {
		c.fwdOptions.Kernel = kernel
	} else {
		c.bwdOptions.Kernel = kernel
	}
}

func benchGPU(b *testing.B) *Backend {
	gpu, err := Open()
	if err != nil {
		b.Skip(err)
	}
	b.Cleanup(func() { require.NoError(b, gpu.Close()) })
	return gpu
}

func report(t timing) {
	line, err := json.Marshal(t)
	if err == nil {
		os.Stdout.Write(append(line, '\n'))
	}
}

// deviceMedian returns the median device milliseconds of a call, over about a tenth of a second.
func deviceMedian(b *testing.B, c *deviceCall, call func() error) float64 {
	flush := newFlush(b, c)
	from, err := c.b.NewEvent()
	require.NoError(b, err)
	defer from.Close()
	to, err := c.b.NewEvent()
	require.NoError(b, err)
	defer to.Close()
	var times []time.Duration
	for total := time.Duration(0); len(times) < 13 || total < 100*time.Millisecond && len(times) < 500; {
		t := c.timed(b, flush, from, to, call)
		times = append(times, t)
		total += t
	}
	times = times[3:] // warm-up
	slices.Sort(times)
	return times[len(times)/2].Seconds() * 1e3
}

// timed returns the device time of a call with a cold cache, between two events.
func (d *deviceCall) timed(b *testing.B, flush func() error, from, to *Event, call func() error) time.Duration {
	require.NoError(b, flush())
	require.NoError(b, d.s.Record(from))
	require.NoError(b, call())
	require.NoError(b, d.s.Record(to))
	require.NoError(b, to.Sync())
	t, err := to.Since(from)
	require.NoError(b, err)
	return t
}

// BenchmarkSmallCalls times calls dominated by overhead: a loop of 1000, with one wait at the end.
func BenchmarkSmallCalls(b *testing.B) {
	const name = "b4-h8-g8-n128-m128-d64-bf16"
	gpu := benchGPU(b)
	c := newDeviceCall(b, gpu, name)
	defer c.close(b)
	ms := loopMedian(b, c, c.forward, 1000)
	b.ReportMetric(ms*1e6, "ns/op")
	report(timing{Problem: name, Kernel: "cuda", Pass: "loop", MS: ms})
}

// BenchmarkLoop times the calls of a loop of 200, with one wait at the end.
func BenchmarkLoop(b *testing.B) {
	eachPass(b, func(b *testing.B, c *deviceCall, call func() error) {
		b.ReportMetric(loopMedian(b, c, call, 200)*1e6, "ns/op")
	})
}

// eachPass runs a benchmark for every problem, forward and backward.
func eachPass(b *testing.B, f func(b *testing.B, c *deviceCall, call func() error)) {
	gpu := benchGPU(b)
	for _, name := range gpuProblems("b4-h8-g8-n1024-m1024-d64-bf16") {
		c := newDeviceCall(b, gpu, name)
		for i, call := range []func() error{c.forward, c.backward} {
			b.Run([]string{"forward/", "backward/"}[i]+name, func(b *testing.B) { f(b, c, call) })
		}
		c.close(b)
	}
}

// BenchmarkGraph times the calls of a CUDA graph of 50, as in a loop of a compiled program: with a
// warm cache, and as the time that calls add to flushes of the cache.
func BenchmarkGraph(b *testing.B) {
	eachPass(b, func(b *testing.B, c *deviceCall, call func() error) {
		flush := newFlush(b, c)
		require.NoError(b, call())
		b.ReportMetric(graphMedian(b, c, call), "ns/op")
		b.ReportMetric(graphMedian(b, c, flush, call)-graphMedian(b, c, flush), "cold-ns/op")
	})
}

// graphMedian returns the nanoseconds of some calls in a graph that repeats them.
func graphMedian(b *testing.B, c *deviceCall, all ...func() error) (ns float64) {
	const repeats = 50
	inGraph(b, c, func() {
		for range repeats {
			for _, call := range all {
				require.NoError(b, call())
			}
		}
	}, func(launch func()) {
		ns = float64(medianOf(func() {
			launch()
			launch()
			require.NoError(b, c.s.Sync())
		})) / (2 * repeats)
	})
	return ns
}

// inGraph captures the work of f in a CUDA graph, and calls use with a function that launches it.
func inGraph(t testing.TB, d *deviceCall, f func(), use func(launch func())) {
	lib, err := openLibrary()
	require.NoError(t, err)
	var c calls
	require.NoError(t, c.bind(lib.lookup))
	call := func(name string, args ...uintptr) {
		address, err := lib.lookup(name)
		require.NoError(t, err)
		require.NoError(t, c.call(&symbol{name, address}, args...))
	}
	require.NoError(t, d.b.within(func() error {
		graph, exec := new(uintptr), new(uintptr)
		call("cuStreamBeginCapture_v2", uintptr(d.s.handle), 0)
		f()
		call("cuStreamEndCapture", uintptr(d.s.handle), uintptr(unsafe.Pointer(graph)))
		call("cuGraphInstantiateWithFlags", uintptr(unsafe.Pointer(exec)), *graph, 0)
		use(func() { call("cuGraphLaunch", *exec, uintptr(d.s.handle)) })
		call("cuGraphExecDestroy", *exec)
		call("cuGraphDestroy", *graph)
		return nil
	}))
}

// loopMedian returns the milliseconds of one call in a loop.
func loopMedian(b *testing.B, c *deviceCall, call func() error, calls int) float64 {
	return medianOf(func() {
		for range calls {
			require.NoError(b, call())
		}
		require.NoError(b, c.s.Sync())
	}).Seconds() * 1e3 / float64(calls)
}

// BenchmarkHost times host tensors end to end, their copies, and the kernel alone.
func BenchmarkHost(b *testing.B) {
	gpu := benchGPU(b)
	for _, name := range []string{"b4-h32-g32-n1024-m1024-d64-bf16", "b2-h16-g16-n2048-m2048-d64-f32-causal"} {
		p := problem(b, name)
		var k flashkit.Kernel
		for _, x := range gpu.Kernels() {
			if k.Name == "" && x.Pass == flashkit.PassForward && x.Fits(p.Ask(x.Pass)) == "" {
				k = x
			}
		}
		tensor := func(s [4]int) flashkit.Tensor {
			n := s[0] * s[1] * s[2] * s[3]
			if p.DType == flashkit.Float32 {
				x := make([]float32, n)
				for i := range x {
					x[i] = float32(i%13) - 6
				}
				return flashkit.F32(x, s[0], s[1], s[2], s[3])
			}
			x := make([]uint16, n)
			for i := range x {
				x[i] = 0x3f80 + uint16(i%13)
			}
			return flashkit.BF16(x, s[0], s[1], s[2], s[3])
		}
		f := &flashkit.Args{Q: tensor(p.QShape()), K: tensor(p.KShape()), V: tensor(p.VShape()), O: tensor(p.OShape())}
		end := medianOf(func() { require.NoError(b, k.Compute(context.Background(), p, f)) })
		in := (f.Q.Len() + f.K.Len() + f.V.Len()) * p.DType.Size()
		out := f.O.Len() * p.DType.Size()
		copies := copyTime(b, gpu, in, true) + copyTime(b, gpu, out, false)
		c := newDeviceCall(b, gpu, name)
		kernel := deviceMedian(b, c, c.forward)
		c.close(b)
		sum := copies + time.Duration(kernel*1e6)
		fmt.Printf("%s: %.0f MiB, end to end %v, copies %v, kernel %.3f ms: %.2f of their sum\n",
			name, float64(in+out)/(1<<20), end, copies, kernel, float64(end)/float64(sum))
	}
}

func medianOf(f func()) time.Duration {
	var times []time.Duration
	for range 23 {
		start := time.Now()
		f()
		times = append(times, time.Since(start))
	}
	times = times[2:]
	slices.Sort(times)
	return times[len(times)/2]
}

// copyTime returns the time of one copy from or to pinned memory.
func copyTime(b *testing.B, gpu *Backend, n int, upload bool) (t time.Duration) {
	require.NoError(b, gpu.do(func() error {
		host, err := gpu.drv.MemHostAlloc(n)
		require.NoError(b, err)
		device, err := gpu.drv.MemAlloc(n)
		require.NoError(b, err)
		t = medianOf(func() {
			if upload {
				require.NoError(b, gpu.drv.MemcpyHtoDAsync(device, host, n, 0))
			} else {
				require.NoError(b, gpu.drv.MemcpyDtoHAsync(host, device, n, 0))
			}
			require.NoError(b, gpu.drv.StreamSynchronize(0))
		})
		require.NoError(b, gpu.drv.MemFreeHost(host))
		return gpu.drv.MemFree(device)
	}))
	return t
}

// BenchmarkFirstCall times the steps before a program's first result: the driver, the context, the
// image, the call.
func BenchmarkFirstCall(b *testing.B) {
	start := time.Now()
	gpu, err := Open()
	if err != nil {
		b.Skip(err)
	}
	opened := time.Since(start)
	c := newDeviceCall(b, gpu, "b4-h8-g8-n128-m128-d64-bf16")
	call := time.Now()
	require.NoError(b, c.forward())
	require.NoError(b, c.s.Sync())
	fmt.Printf("open %v, first call %v\n", opened, time.Since(call))
	c.close(b)
	require.NoError(b, gpu.Close())
}

// The kernels that measure limits load and launch.
func TestEveryLimit(t *testing.T) {
	b := openGPU(t)
	b.dev.Memory = 64 << 20 // copies of 8 MiB are enough here
	for _, dtype := range dtypes {
		rate, _, err := b.Peak(dtype)
		require.NoError(t, err)
		require.Positive(t, rate)
	}
	rate, err := b.CopyRate()
	require.NoError(t, err)
	require.Positive(t, rate)
}
