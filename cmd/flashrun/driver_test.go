//go:build linux && (amd64 || arm64) && !nocuda

package main

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/slow"
)

// answerLimit ends a program that hangs. Others take a few seconds, but many times longer under the
// race detector on a busy machine.
const answerLimit = 3 * time.Minute

// hostsAtOnce bounds the programs that run at once: a driver has five seconds to answer.
const hostsAtOnce = 4

// boundCalls returns the calls of the driver that the GPU's backend binds.
func boundCalls(t *testing.T) (list []string) {
	text, err := os.ReadFile("../../backends/cuda/driver_calls.go")
	require.NoError(t, err)
	for _, m := range regexp.MustCompile("`cu:\"(\\w+)\"").FindAllStringSubmatch(string(text), -1) {
		list = append(list, m[1])
	}
	require.Contains(t, list, "cuInit")
	return list
}

// fakeDriver compiles testdata/driver/fake.c with the calls and returns the library's bytes.
func fakeDriver(t *testing.T, calls []string) []byte {
	cc, err := exec.LookPath("cc")
	if err != nil || os.Getenv("FLASHKIT_EMULATOR") != "" {
		t.Skip("needs a C compiler for this machine, to make drivers that hang: ", err)
	}
	symbols := ""
	for _, name := range calls {
		symbols += "CALL(" + name + ") "
	}
	library := filepath.Join(t.TempDir(), "fake.so")
	out, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-DSYMBOLS="+symbols, "-o", library, "testdata/driver/fake.c").CombinedOutput()
	require.NoError(t, err, string(out))
	return contents(t, library)
}

func contents(t *testing.T, path string) []byte {
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	return b
}

// A host is a machine with a driver: a folder with libcuda.so.1, and the environment.
type host struct {
	folder string
	env    []string
}

// install returns a host with the file as driver.
func install(t *testing.T, library []byte, env ...string) *host {
	h := &host{t.TempDir(), env}
	require.NoError(t, os.WriteFile(filepath.Join(h.folder, "libcuda.so.1"), library, 0o755))
	return h
}

// run runs a program on the host. It fails the test if the program does not end in time.
func (h *host) run(t *testing.T, program string, args ...string) (stdout, stderr string, err error) {
	ctx, cancel := context.WithTimeout(t.Context(), answerLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(append(os.Environ(), "FLASHKIT_PROFILE=off", "LD_LIBRARY_PATH="+h.folder), h.env...)
	var out, errs strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errs
	err = cmd.Run()
	require.NoError(t, ctx.Err(), "%s %v hangs", program, args)
	return out.String(), errs.String(), err
}

const fourRows = "b1-h1-g1-n4-m4-d8-f32"

// computes requires that a plain run computes on the CPU, and returns its stderr.
func (h *host) computes(t *testing.T) string {
	stdout, stderr, err := h.run(t, "flashrun", "run", "--repeat", "1", "--problem", fourRows, "--check")
	require.NoError(t, err, stderr)
	require.Contains(t, stdout, "simd/")
	return stderr
}

func (h *host) with(env ...string) *host { return &host{h.folder, append(env, h.env...)} }

// A driver that does not answer leaves the GPU out, whichever call hangs.
func TestDriverThatHangs(t *testing.T) {
	slow.UnderRace(t)
	calls := boundCalls(t)
	driver := install(t, fakeDriver(t, calls))
	inShort := []string{"constructor", "cuInit", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent_v2"} // a call of each stage
	opening := map[string]bool{"constructor": true, "cuInit": true, "cuDriverGetVersion": true, "cuDeviceGetCount": true, "cuDeviceGetName": true, "cuDeviceTotalMem_v2": true,
		"cuDeviceGetAttribute": true, "cuDevicePrimaryCtxRetain": true, "cuDeviceGetDefaultMemPool": true, "cuMemPoolSetAttribute": true}
	closing := map[string]bool{"cuCtxPushCurrent_v2": true, "cuCtxPopCurrent_v2": true, "cuDevicePrimaryCtxRelease_v2": true}
	require.Empty(t, driver.computes(t), "a driver that answers")
	var done sync.WaitGroup
	slots := make(chan struct{}, hostsAtOnce)
	for _, name := range append(calls, "constructor") {
		if testing.Short() && !slices.Contains(inShort, name) {
			continue
		}
		done.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			start := time.Now()
			stderr := driver.with("FAKE_HANG=" + name).computes(t)
			took := time.Since(start)
			switch {
			case opening[name]:
				require.Equal(t, "flashrun: warning: the GPU is left out: cuda: unavailable on this machine: driver does not answer\n", stderr, name)
				require.Greater(t, took, 5*time.Second, name)
			case closing[name]:
				require.Greater(t, took, 5*time.Second, name)
			default:
				require.Empty(t, stderr, name)
			}
		})
	}
	done.Wait()
	stdout, _, err := driver.with("FAKE_HANG=cuInit").run(t, "flashrun", "list")
	require.NoError(t, err)
	require.Regexp(t, `cuda +unavailable on this machine: driver does not answer`, stdout)
}

// A driver that is not requested is not loaded and cannot do harm.
func TestDriverThatNoOneAsksFor(t *testing.T) {
	slow.UnderRace(t)
	library := fakeDriver(t, boundCalls(t))
	for _, args := range [][]string{
		{"run", "--repeat", "1", "--backend", "simd", "--problem", fourRows},
		{"run", "--repeat", "1", "--backend", "wasm/fwd_scalar", "--problem", fourRows},
		{"explain", "--backend", "simd/fwd_generic", fourRows},
		{"memory", "--backend", "simd", fourRows},
		{"bench", "--backend", "simd,wasm", "--problem", fourRows, "--rounds", "1", "--time-per-case", "1ms"},
		{"calibrate", "--backend", "simd", "--problem", fourRows, "--time-per-case", "1ms", "--out", filepath.Join(t.TempDir(), "profile")},
		{"ring", "--ranks", "2", "--backend", "simd", "--problem", fourRows},
		{"conformance", "--backend", "simd/fwd_generic", "--case", "causal_short"},
	} {
		t.Run(args[0], func(t *testing.T) {
			loaded := filepath.Join(t.TempDir(), "loaded")
			driver := install(t, library, "FAKE_LOADED="+loaded, "FAKE_HANG=constructor")
			_, stderr, err := driver.run(t, "flashrun", args...)
			require.NoError(t, err, stderr)
			require.NoFileExists(t, loaded)

			at := 0
			for i := range args {
				if args[i] == "--backend" {
					at = i
				}
			}
			plain := append(append([]string{}, args[:at]...), args[at+2:]...)
			_, stderr, err = driver.with("FLASHKIT_BACKEND="+args[at+1]).run(t, "flashrun", plain...)
			require.NoError(t, err, stderr)
			require.NoFileExists(t, loaded)
		})
	}
	driver := install(t, library, "FAKE_CRASH=cuInit")
	_, _, err := driver.run(t, "flashrun", "run", "--repeat", "1", "--problem", fourRows)
	require.Error(t, err, "no Go program survives this; if this one does, the documents are wrong")
}

// Every other driver that cannot be used is named, and the CPU computes.
func TestDriversThatCannotBeUsed(t *testing.T) {
	library := fakeDriver(t, boundCalls(t))
	other := append([]byte{}, library...)
	other[18] ^= 62 ^ 183 // the machine: amd64 or arm64
	folder := &host{folder: t.TempDir()}
	require.NoError(t, os.Mkdir(filepath.Join(folder.folder, "libcuda.so.1"), 0o755))
	unreadable := install(t, library)
	require.NoError(t, os.Chmod(filepath.Join(unreadable.folder, "libcuda.so.1"), 0))
	for _, x := range []struct {
		name   string
		host   *host
		stderr string
	}{
		{"empty", install(t, nil), ""},
		{"of another machine", install(t, other), ""},
		{"a folder", folder, ""},
		{"truncated", install(t, library[:len(library)/2]), "driver library: .*libcuda.so.1: the file is truncated: it has \\d+ bytes of at least \\d+"},
		{"truncated in its headers", install(t, library[:100]), "driver library: .*libcuda.so.1: the file is truncated: it ends before its program headers"},
		{"without symbols", install(t, fakeDriver(t, nil)), "driver too old: missing cuInit"},
		{"all fail", install(t, library, "FAKE_FAIL=1"), `cuInit: .* \(999\)`},
		{"old", install(t, library, "FAKE_VERSION=11040"), "driver too old: it supports CUDA 11.4"},
		{"version 0", install(t, library, "FAKE_VERSION=0"), "driver too old: it supports CUDA 0.0"},
		{"unreadable", unreadable, ""},
	} {
		t.Run(x.name, func(t *testing.T) {
			if x.host == unreadable && os.Geteuid() == 0 {
				t.Skip("root reads every file")
			}
			stderr := x.host.computes(t)
			if x.stderr == "" {
				require.Empty(t, stderr)
				return
			}
			require.Regexp(t, "^flashrun: warning: the GPU is left out: cuda: unavailable on this machine: "+x.stderr+".*\n$", stderr)
		})
	}
}

// Programs that use the library behave as flashrun does.
func TestQuickstartBesideDriversThatHang(t *testing.T) {
	slow.UnderRace(t)
	library := fakeDriver(t, boundCalls(t))
	program := filepath.Join(t.TempDir(), "quickstart")
	build := exec.Command("go", "build", "-o", program, "../../examples/quickstart")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	var done sync.WaitGroup
	for _, env := range [][]string{{"FAKE_HANG=cuInit"}, {"FAKE_HANG=constructor"}, {"FAKE_CRASH=cuInit", "FLASHKIT_BACKEND=simd"}, {"FAKE_FAIL=1"}} {
		host := install(t, library, env...)
		done.Go(func() {
			stdout, stderr, err := host.run(t, program)
			assert.NoError(t, err, "%v: %s", env, stderr)
			assert.Contains(t, stdout, "row 0 sees key 0 only, so its O is that V: true", "%v", env)
		})
	}
	done.Wait()
}
