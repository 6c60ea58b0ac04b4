//go:build !purego

package simd_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

// If GODEBUG turns off a CPU feature, neither kernels nor measurements of the machine use it.
func TestSwitchedOff(t *testing.T) {
	const inner = "FLASHKIT_TEST_INNER"
	if os.Getenv(inner) != "" {
		listWhatRuns(t)
		return
	}
	for off, without := range map[string][]string{
		"cpu.avx512f=off":              {"avx512", "amx"},
		"cpu.avx2=off":                 {"avx2"},
		"cpu.avx512f=off,cpu.avx2=off": {"avx512", "amx", "avx2"},
	} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSwitchedOff$")
		cmd.Env = append(os.Environ(), inner+"=1", "GODEBUG="+off)
		out, err := cmd.Output()
		require.NoError(t, err, "%s: %s", off, out)
		require.Contains(t, string(out), "runs simd/fwd_generic\n", off)
		for line := range strings.Lines(string(out)) {
			if strings.HasPrefix(line, "runs ") {
				for _, name := range without {
					require.NotContains(t, line, name, off)
				}
			}
		}
	}
}

// listWhatRuns prints the kernels that this process can run, and runs each kernel that supports its
// problem. It also prints the loops that measured the machine.
func listWhatRuns(t *testing.T) {
	var text bytes.Buffer
	b := simd.New()
	defer b.Close()
	c := newCall(t, "b1-h4-g2-n70-m70-d64-bf16-causal")
	for _, k := range b.Kernels() {
		if k.Missing != nil && k.Missing() != "" {
			continue
		}
		text.WriteString("runs " + k.Name + "\n")
		if k.Fits(c.p.Ask(k.Pass)) == "" {
			require.NoError(t, c.run(t.Context(), k), k.Name)
		}
	}
	for _, dtype := range []flashkit.DType{flashkit.Float32, flashkit.BFloat16} {
		_, instructions := simd.Peak(dtype)
		text.WriteString("runs " + instructions + "\n")
	}
	os.Stdout.Write(text.Bytes())
}
