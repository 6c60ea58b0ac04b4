//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"bytes"
	"errors"
	"os"
	"slices"
	"strconv"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// repeats is the number of runs that must have the same bits; FLASHKIT_REPEATS changes it.
func repeats() int {
	if n, err := strconv.Atoi(os.Getenv("FLASHKIT_REPEATS")); err == nil {
		return n
	}
	return 200
}

// The same bits from run to run, for shapes with more blocks than the device holds at once, and for
// shapes that half fill it.
func TestRepeatsAreBitEqual(t *testing.T) {
	b := openGPU(t)
	for _, name := range []string{
		"b2-h8-g8-n2000-m2000-d64-bf16-causal", "b4-h16-g4-n1024-m1111-d128-f16", "b1-h2-g1-n777-m900-d256-bf16-window300.20", "b2-h8-g4-n1500-m1500-d192-dv128-bf16-causal", "b1-h4-g4-n1000-m900-d192-f16",
		"b2-h8-g4-n1500-m1500-d80-bf16-causal", "b1-h8-g8-n1000-m900-d96-f16",
		"b2-h4-g4-n1000-m1000-d64-f32-causal", "b1-h4-g2-n500-m600-d128-f32", "b1-h32-g8-n1-m9000-d128-bf16", "b3-h8-g2-n4-m5000-d64-f32-causal",
		"b1-h8-g8-n2048-m2048-d64-bf16", "b1-h16-g16-n512-m512-d128-f16", "b1-h12-g12-n1024-m1024-d64-bf16-causal", "b2-h8-g2-n300-m1300-d128-bf16", "b4-h16-g16-n1000-m1000-d64-bf16", "b8-h16-g16-n257-m257-d80-f16",
		"b2-h8-g2-n1500-m1600-d512-bf16-causal", "b1-h16-g16-n2048-m2048-d320-f16", "b1-h16-g2-n1-m9000-d512-bf16", "b1-h4-g4-n700-m900-d300-bf16-window300.20", "b1-h2-g2-n150-m9000-d128-bf16-causal", "b2-h1-g1-n101-m13134-d192-f16-causal",
	} {
		eachKernel(t, b, name, func(t *testing.T, c *deviceCall) {
			if c.bwdOptions.Kernel == "" {
				t.Skip("no backward kernel")
			}
			sameBits(t, c, []flashkit.Tensor{c.args.O, c.args.LSE, c.args.DQ, c.args.DK, c.args.DV}, func() error {
				return errors.Join(c.forward(), c.backward())
			})
		})
	}
}

// The same dQ while another stream writes memory, so that sums leave the cache between two
// additions: additions without an enforced order would overtake each other.
func TestRepeatsBesideWrites(t *testing.T) {
	b := openGPU(t)
	for _, name := range []string{"b4-h16-g4-n1024-m1111-d128-f16", "b2-h8-g8-n2000-m2000-d64-bf16-causal", "b1-h16-g16-n4096-m4096-d128-bf16", "b1-h8-g8-n2000-m2000-d256-bf16-causal", "b2-h8-g8-n1024-m1024-d64-bf16", "b1-h4-g4-n1000-m1000-d128-bf16", "b2-h8-g8-n1500-m1500-d192-dv128-bf16-causal", "b1-h4-g4-n1000-m1000-d512-bf16-causal", "b2-h2-g2-n150-m9000-d128-bf16-causal"} {
		eachKernel(t, b, name, func(t *testing.T, c *deviceCall) {
			if c.bwdOptions.Kernel == "" {
				t.Skip("no backward kernel")
			}
			require.NoError(t, c.forward())
			end := writeBeside(t, b)
			defer func() { require.NoError(t, end()) }()
			sameBits(t, c, []flashkit.Tensor{c.args.DQ}, c.backward)
		})
	}
}

// The same bits while passes of other streams hold multiprocessors: a block waits only for blocks
// that have begun.
func TestRepeatsBesideEachOther(t *testing.T) {
	b := openGPU(t)
	var calls []*deviceCall
	for _, name := range []string{"b1-h8-g8-n2048-m2048-d64-bf16", "b1-h16-g16-n512-m512-d128-f16", "b1-h6-g6-n1000-m1000-d64-bf16-causal", "b2-h8-g4-n1500-m700-d128-bf16"} {
		c := newDeviceCall(t, b, name)
		defer c.close(t)
		c.bwdOptions.Kernel = "cuda/bwd_sm90"
		if !families[bwdSM90].fits(&b.dev, c.p) {
			t.Skip("not a GPU for bwd_sm90")
		}
		require.NoError(t, c.forward())
		calls = append(calls, c)
	}
	first := make([][]float32, len(calls))
	for run := range repeats() {
		for range 3 {
			for _, c := range calls {
				require.NoError(t, c.backward())
			}
		}
		for i, c := range calls {
			got := slices.Concat(c.download(t, c.args.DQ), c.download(t, c.args.DK), c.download(t, c.args.DV))
			if run == 0 {
				first[i] = got
			}
			require.True(t, slices.Equal(first[i], got), "%v differs in run %d", c.p, run)
		}
	}
}

// writeBeside fills memory repeatedly until end is called.
func writeBeside(t *testing.T, b *Backend) (end func() error) {
	s, err := b.NewStream()
	require.NoError(t, err)
	m, err := b.Alloc(flushBytes)
	require.NoError(t, err)
	stop, ended := make(chan struct{}), make(chan error)
	go func() {
		for {
			select {
			case <-stop:
				ended <- nil
				return
			default:
			}
			fill := func() error { return b.drv.MemsetD32Async(m.address, 0, flushBytes/4, s.handle) }
			if err := errors.Join(b.do(fill), b.do(fill), s.Sync()); err != nil {
				ended <- err
				return
			}
		}
	}()
	return func() error {
		close(stop)
		return errors.Join(<-ended, m.Free(), s.Close())
	}
}

// sameBits repeats a call, whose outputs must not change. They are compared as bytes, in memory
// that all runs share: the comparison takes most of the time.
func sameBits(t *testing.T, c *deviceCall, outputs []flashkit.Tensor, call func() error) {
	first, later := make([][]uint16, len(outputs)), make([][]uint16, len(outputs))
	for i, x := range outputs {
		first[i], later[i] = make([]uint16, buffer(x).bytes/2), make([]uint16, buffer(x).bytes/2)
	}
	bytesOf := func(x []uint16) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(unsafe.SliceData(x))), 2*len(x)) }
	for run := range repeats() {
		require.NoError(t, call())
		to := later
		if run == 0 {
			to = first
		}
		for i, x := range outputs {
			require.NoError(t, Download(c.s, to[i], buffer(x), 0))
			if !bytes.Equal(bytesOf(first[i]), bytesOf(to[i])) {
				t.Fatalf("output %d differs in run %d", i, run)
			}
		}
	}
}
