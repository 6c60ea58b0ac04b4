package cuda

import (
	"errors"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// openFake opens a backend on a fake driver and checks for leaks at the end.
func openFake(t *testing.T) (*Backend, *fakeDriver) {
	f := newFake()
	b, err := OpenWith(&f.Driver, 0)
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, b.Close())
		require.Empty(t, f.leaks())
	})
	return b, f
}

// The suite with the fake's arithmetic: packing, chunks, launches, workspace and errors are real. The
// suite is brief even in the long form, because its further cases test rounding errors, which are
// not the kernels' own on a fake device.
func TestConformanceOnFake(t *testing.T) {
	b, _ := openFake(t)
	b.staging.chunk, b.staging.whole = 3000, 3000 // several chunks for most cases
	b.eager = true
	conform(t, b, !slow.SkipsUnderRace())
}

// conform runs the brief suite: all cases and kernels, or only the cases about concurrent, canceled
// and repeated calls, and the causal traps. The latter run on the kernels with the most work on the
// host.
func conform(t *testing.T, b flashkit.Backend, whole bool) {
	kernels, o := b.Kernels(), conformance.Options{Brief: true, Backends: []flashkit.Backend{b}}
	if whole {
		o.Sweep, o.Seed = 4, uint64(rand.Uint32())
	} else {
		o.Case = "c*"
		kernels = slices.DeleteFunc(kernels, func(k flashkit.Kernel) bool {
			return slices.Contains([]string{"cuda/fwd_f32", "cuda/bwd_f32", "cuda/fwd_sm80", "cuda/bwd_sm80", "cuda/fwd_sm90_short", "cuda/fwd_sm90_wide"}, k.Name)
		})
	}
	passed := 0
	for r := range conformance.Results(t.Context(), kernels, o) {
		if !r.Unsupported() {
			require.NoError(t, r.Err, "%s %s", r.Kernel, r.Case)
			passed++
		}
	}
	t.Logf("%d cases passed, sweep seed %d", passed, o.Seed)
	require.Greater(t, passed, 50)
}

func TestOpenUnavailable(t *testing.T) {
	for reason, spoil := range map[string]func(*fakeDriver){
		"no device: cuInit: CUDA_ERROR_FAKE (100)":                              func(f *fakeDriver) { f.failures["cuInit"] = f.fail("cuInit", codeNoDevice) },
		"no device: the driver sees none":                                       func(f *fakeDriver) { f.devices = 0 },
		"driver too old: it supports CUDA 12.8; the kernels require 13.0":       func(f *fakeDriver) { f.version = 12080 },
		"architecture below sm_70: Fake GPU has compute capability 6.1":         func(f *fakeDriver) { f.attributes[attrMajor], f.attributes[attrMinor] = 6, 1 },
		"Fake GPU has no memory pools or no unified addresses":                  func(f *fakeDriver) { f.attributes[attrMemoryPools] = 0 },
		"no context on Fake GPU: cuDevicePrimaryCtxRetain: CUDA_ERROR_FAKE (2)": func(f *fakeDriver) { f.failures["cuDevicePrimaryCtxRetain"] = f.fail("cuDevicePrimaryCtxRetain", 2) },
		"cuMemPoolSetAttribute: CUDA_ERROR_FAKE (801)":                          func(f *fakeDriver) { f.failures["cuMemPoolSetAttribute"] = f.fail("cuMemPoolSetAttribute", 801) },
	} {
		f := newFake()
		spoil(f)
		_, err := OpenWith(&f.Driver, 0)
		require.ErrorIs(t, err, flashkit.ErrUnavailable)
		require.EqualError(t, err, "cuda: unavailable on this machine: "+reason)
		require.Empty(t, f.leaks(), reason)
	}
}

// Without a GPU nothing is reported; every other obstacle to opening one is.
func TestNoDevice(t *testing.T) {
	f := newFake()
	f.failures["cuInit"] = f.fail("cuInit", codeNoDevice)
	_, err := OpenWith(&f.Driver, 0)
	require.ErrorIs(t, err, ErrNoDevice)
	f = newFake()
	f.devices = 0
	_, err = devicesOf(&f.Driver)
	require.ErrorIs(t, err, ErrNoDevice)
	f = newFake()
	_, err = OpenWith(&f.Driver, 1)
	require.EqualError(t, err, "cuda: unavailable on this machine: no device: number 1 of 1")
	require.NotErrorIs(t, err, ErrNoDevice)
	require.ErrorIs(t, absentError{errors.New("no driver library")}, ErrNoDevice)
	t.Setenv(DeviceVariable, "one")
	_, err = Open()
	require.EqualError(t, err, `cuda: unavailable on this machine: FLASHKIT_DEVICE = "one": must be the number of a GPU, from 0`)
}

func TestDevices(t *testing.T) {
	f := newFake()
	f.devices, f.attributes[attrMajor] = 3, 6
	list, err := devicesOf(&f.Driver)
	require.NoError(t, err)
	require.Len(t, list, 3)
	for i, d := range list {
		require.Equal(t, i, d.Ordinal)
		require.Equal(t, "Fake GPU", d.Name)
		require.Equal(t, fakeMemory, d.Memory)
		require.Equal(t, 13000, d.Driver)
		require.Contains(t, d.Reason, "sm_70")
	}
	require.Empty(t, f.leaks())
}

// An older GPU keeps the backend, and Fits names the requirements that its kernels lack.
func TestFitsOlderGPU(t *testing.T) {
	f := newFake()
	f.attributes[attrMajor], f.attributes[attrMinor] = 7, 5
	b, err := OpenWith(&f.Driver, 0)
	require.NoError(t, err)
	defer b.Close()
	for _, k := range b.Kernels() {
		if k.Name == "cuda/fwd_sm80" {
			require.Equal(t, "requires compute capability 8.0; Fake GPU has 7.5", k.Fits(problem(t, "b1-h1-g1-n4-m4-d8-bf16").Ask(k.Pass)))
		}
	}
}

func TestFits(t *testing.T) {
	b, _ := openFake(t)
	for _, c := range []struct{ kernel, problem, reason string }{
		{"cuda/fwd_sm80", "b1-h1-g1-n4-m4-d8-f32", "supports [f16 bf16], not f32"},
		{"cuda/fwd_sm80", "b1-h1-g1-n4-m4-d513-bf16", "supports head dims up to 512, not 513"},
		{"cuda/fwd_sm80", "b1-h1-g1-n4-m4-d8-dv600-bf16", "supports head dims up to 512, not 600"},
		{"cuda/decode_sm80", "b1-h8-g1-n9-m4-d8-bf16", "supports at most 64 query rows per KV head, not 72"},
		{"cuda/bwd_f32", "b1-h1-g1-n4-m4-d512-f32", ""},
		{"cuda/fwd_sm80", "b1-h1-g1-n1-m2000000000-d8-bf16", "supports sequence lengths up to 1073741824, not 2000000000"},
		{"cuda/fwd_sm80", "b4000-h4000-g4000-n4096-m1-d8-bf16", "supports up to 2147483647 thread blocks, not 4112000000"},
	} {
		for _, k := range b.Kernels() {
			if k.Name == c.kernel {
				require.Equal(t, c.reason, k.Fits(problem(t, c.problem).Ask(k.Pass)), c.problem)
			}
		}
	}
}

func problem(t testing.TB, name string) flashkit.Problem {
	p, err := flashkit.ParseProblem(name)
	require.NoError(t, err)
	return p
}

// The launches for one problem of each kind of call.
func TestLaunches(t *testing.T) {
	b, f := openFake(t)
	for _, c := range []struct {
		problem, kernel string
		want            []string
	}{
		{"b2-h3-g3-n100-m50-d40-bf16", "cuda/fwd_sm80", []string{"fwd_sm80_bf16_d64"}},
		{"b2-h3-g3-n100-m50-d40-f32", "", []string{"fwd_f32_d64"}},
		{"b1-h8-g2-n1-m5000-d128-f16", "", []string{"decode_sm80_f16_d128"}},
		{"b1-h8-g2-n1-m50-d128-f16", "cuda/decode_sm80", []string{"decode_sm80_f16_d128"}},
	} {
		call := newDeviceCall(t, b, c.problem)
		call.fwdOptions.Kernel, call.fwdOptions.Unpaired = c.kernel, true
		f.launches = nil
		require.NoError(t, call.forward())
		var got []string
		for _, l := range f.launches {
			got = append(got, l.name)
			require.Equal(t, call.s.handle, l.stream)
		}
		require.Equal(t, c.want, got, c.problem)
		call.close(t)
	}
}

// A persistent kernel leaves multiprocessors free if asked, and takes all the next time.
func TestSpare(t *testing.T) {
	b, f := openFake(t)
	for _, name := range []string{"b1-h200-g200-n8-m8-d64-bf16", "b1-h200-g200-n8-m8-d64-bf16-alibi", "b1-h200-g200-n8-m8-d128-bf16-causal"} {
		c := newDeviceCall(t, b, name)
		c.fwdOptions.Kernel = "cuda/fwd_sm90"
		for _, spare := range []int{0, 4, 131, 0} {
			c.fwdOptions.Spare, f.launches = spare, nil
			require.NoError(t, c.forward())
			require.Len(t, f.launches, 1)
			require.Equal(t, 132-spare, f.launches[0].blocks, name)
		}
		for _, spare := range []int{-1, 132} {
			c.fwdOptions.Spare = spare
			require.ErrorContains(t, c.forward(), "Options.Spare")
		}
		c.close(t)
	}
}
