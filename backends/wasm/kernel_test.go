package wasm

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// The committed module belongs to the committed source. This test needs no
// compiler, but TestKernelRebuilds does.
func TestKernelHashes(t *testing.T) {
	seen := 0
	for line := range strings.Lines(string(kernelSum)) {
		sum, name, _ := strings.Cut(strings.TrimSpace(line), "  ")
		text, err := os.ReadFile(filepath.Join("kernel", name))
		require.NoError(t, err)
		got := sha256.Sum256(text)
		require.Equal(t, sum, hex.EncodeToString(got[:]), "%s differs from kernel.sum: run make wasm", name)
		seen++
	}
	headers, err := filepath.Glob("kernel/*.h")
	require.NoError(t, err)
	require.Equal(t, len(headers)+4, seen)
}

// The command of docs/design.md builds the committed module.
func TestKernelRebuilds(t *testing.T) {
	if testing.Short() {
		t.Skip("make check rebuilds it too")
	}
	for _, tool := range []string{"clang-14", "wasm-ld-14", "perl"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("no %s on this machine", tool)
		}
	}
	guide, err := os.ReadFile("../../docs/design.md")
	require.NoError(t, err)
	const command = "backends/wasm/kernel/build.sh"
	require.Contains(t, string(guide), "`"+command+" /tmp/mine.wasm`")
	for name, variable := range map[string]string{"kernel.wasm": "RELAXED=", "relaxed.wasm": "RELAXED=1"} {
		again := filepath.Join(t.TempDir(), name)
		c := exec.CommandContext(t.Context(), "../../"+command, again)
		c.Env = append(os.Environ(), variable)
		out, err := c.CombinedOutput()
		require.NoError(t, err, "%s", out)
		built, err := os.ReadFile(again)
		require.NoError(t, err)
		committed, err := os.ReadFile(filepath.Join("kernel", name))
		require.NoError(t, err)
		require.True(t, bytes.Equal(committed, built), "%s is not what kernel.c compiles to", name)
	}
}

func TestKernelSize(t *testing.T) {
	require.LessOrEqual(t, len(kernelWasm), 64<<10)
	headers, err := filepath.Glob("kernel/*.h")
	require.NoError(t, err)
	for _, name := range append(headers, "kernel/kernel.c") {
		source, err := os.ReadFile(name)
		require.NoError(t, err)
		require.Less(t, bytes.Count(source, []byte("\n")), 400, name)
	}
}

// The numbers of the sections that kernel.wasm may have. Other sections are
// forbidden: imports, a table, a start function, data.
const (
	sectionType, sectionFunction, sectionMemory = 1, 3, 5
	sectionGlobal, sectionExport, sectionCode   = 6, 7, 10
)

func TestKernelSections(t *testing.T) {
	sections := map[byte][]byte{}
	var order []byte
	for rest := kernelWasm[8:]; len(rest) > 0; {
		id := rest[0]
		n, after := leb(t, rest[1:])
		sections[id], rest = after[:n], after[n:]
		order = append(order, id)
	}
	require.Equal(t, "\x00asm\x01\x00\x00\x00", string(kernelWasm[:8]))
	require.Equal(t, []byte{sectionType, sectionFunction, sectionMemory, sectionGlobal, sectionExport, sectionCode}, order)
	require.Equal(t, []byte{1, 1, 1, 0xff, 0xff, 3}, sections[sectionMemory], "one memory of 1 to 65535 pages")

	kinds := map[string]byte{}
	count, rest := leb(t, sections[sectionExport])
	for range count {
		n, after := leb(t, rest)
		name, kind := string(after[:n]), after[n]
		_, rest = leb(t, after[n+1:])
		kinds[name] = kind
	}
	want := map[string]byte{"memory": 2, "__heap_base": 3}
	for name := range functions() {
		want[name] = 0
	}
	require.Equal(t, want, kinds)
}

// leb reads an unsigned number.
func leb(t *testing.T, b []byte) (n int, rest []byte) {
	for i, shift := 0, 0; i < len(b); i, shift = i+1, shift+7 {
		n |= int(b[i]&0x7f) << shift
		if b[i] < 0x80 {
			return n, b[i+1:]
		}
	}
	t.Fatal("the module ends inside a number")
	return 0, nil
}
