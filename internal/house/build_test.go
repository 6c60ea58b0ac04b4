package house

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Programs that can open no CUDA driver hold neither its kernels nor their decompressor.
func TestProgramsWithoutCUDA(t *testing.T) {
	for _, build := range []struct{ platform, tags string }{
		{"linux/amd64", "nocuda"}, {"linux/386", ""}, {"darwin/arm64", ""}, {"windows/arm64", ""}, {"js/wasm", ""}, {"wasip1/wasm", ""},
	} {
		system, arch, _ := strings.Cut(build.platform, "/")
		c := exec.Command("go", "list", "-tags", build.tags, "-deps", "-f", "{{.ImportPath}} {{.EmbedFiles}}", "./examples/quickstart")
		c.Env = append(os.Environ(), "GOOS="+system, "GOARCH="+arch, "CGO_ENABLED=0", "GOPROXY=off")
		text, err := c.CombinedOutput()
		require.NoError(t, err, "%s", text)
		require.Contains(t, string(text), "flashkit/backends/cuda []\n", "%s %s", build.platform, build.tags)
		require.NotContains(t, string(text), "klauspost", "%s %s", build.platform, build.tags)
	}
}

// The limits are for stripped programs. wazero takes a large part.
func TestSizesOfPrograms(t *testing.T) {
	if testing.Short() || runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skip("links programs for linux/amd64")
	}
	for _, build := range []struct {
		program, tags string
		most          float64 // MB
	}{
		{"./examples/quickstart", "nocuda", 7.6},
		{"./internal/house/testdata/simdonly", "nocuda", 3.2},
		{"./internal/house/testdata/embed", "nocuda,nowasm", 8},
	} {
		name := filepath.Join(t.TempDir(), "program")
		c := exec.Command("go", "build", "-trimpath", "-tags", build.tags, "-ldflags=-s -w", "-o", name, build.program)
		c.Env = append(os.Environ(), "CGO_ENABLED=0")
		text, err := c.CombinedOutput()
		require.NoError(t, err, "%s", text)
		info, err := os.Stat(name)
		require.NoError(t, err)
		size := float64(info.Size()) / 1e6
		t.Logf("%s: %.2f MB", build.program, size)
		require.LessOrEqual(t, size, build.most, build.program)
	}
}
