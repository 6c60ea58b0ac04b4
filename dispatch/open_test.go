package dispatch_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

// backends returns the backends with kernels.
func backends(d *dispatch.Dispatcher) (list []string) {
	for _, k := range d.Kernels() {
		if name, _, _ := strings.Cut(k.Name, "/"); len(list) == 0 || list[len(list)-1] != name {
			list = append(list, name)
		}
	}
	return list
}

// Open opens only the named backends and reports the others as not requested.
func TestOpen(t *testing.T) {
	t.Setenv("FLASHKIT_PROFILE", "off")
	for names, want := range map[string][]string{"simd": {"simd"}, "wasm": {"wasm"}, "simd/fwd_generic": {"simd"}, "wasm/fwd_scalar simd": {"simd", "wasm"}, "simd/no_such": {"simd"}} {
		d, err := dispatch.Open(t.Context(), strings.Fields(names)...)
		require.NoError(t, err)
		require.Equal(t, want, backends(d), names)
		require.Empty(t, d.Missing())
		require.NoError(t, d.Close())
	}
	d, err := dispatch.Open(t.Context(), "simd", "wasm/fwd_scalar")
	require.NoError(t, err)
	defer d.Close()
	_, err = d.With("cuda")
	require.EqualError(t, err, "flashkit: backend = cuda: was not opened: the Dispatcher was opened for simd, wasm/fwd_scalar")
	_, err = d.With("none")
	require.EqualError(t, err, "flashkit: backend = none: must be auto, one of simd, wasm, cuda, or a kernel of them, such as simd/fwd_generic")
	_, err = d.With("auto")
	require.NoError(t, err)
	verdicts, err := d.Explain(problem, flashkit.PassForward)
	require.NoError(t, err)
	require.Equal(t, dispatch.Verdict{Name: "cuda", Reason: "not opened, as simd, wasm/fwd_scalar was requested"}, verdicts[len(verdicts)-1])

	for _, name := range []string{"", "none", "gpu/fwd_sm90", "/"} {
		_, err = dispatch.Open(t.Context(), "simd", name)
		var wrong *flashkit.ProblemError
		require.ErrorAs(t, err, &wrong, name)
		require.Equal(t, name, wrong.Value)
	}
}

// A saved profile keeps the figures of unopened backends.
func TestProfileOfOtherBackends(t *testing.T) {
	t.Setenv("FLASHKIT_PROFILE", "off")
	open := func(names ...string) *dispatch.Dispatcher {
		d, err := dispatch.Open(t.Context(), names...)
		require.NoError(t, err)
		t.Cleanup(func() { d.Close() })
		return d
	}
	path := filepath.Join(t.TempDir(), "profile")
	both, one := open("simd", "wasm"), open("simd")
	require.NoError(t, both.Learn("wasm/fwd_scalar", problem, time.Second))
	require.NoError(t, both.SaveProfile(path))
	require.NoError(t, one.LoadProfile(path))
	one = one.Frozen()
	require.NoError(t, one.SaveProfile(path+"2"))
	for _, name := range []string{path, path + "2"} {
		text, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Equal(t, 2, strings.Count(string(text), "wasm/fwd_scalar"), "a figure and a call: %s", text)
	}
	require.NoError(t, open("simd", "wasm").LoadProfile(path+"2"))
}
