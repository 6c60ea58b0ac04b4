//go:build linux && (amd64 || arm64) && !nocuda

package cublas

import (
	"cmp"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"
)

// build compiles C functions that stand in for the library.
func build(t *testing.T) string {
	cc, err := exec.LookPath(cmp.Or(os.Getenv("CC"), "cc"))
	if err != nil {
		t.Skip("needs a C compiler: ", err)
	}
	file := filepath.Join(t.TempDir(), "libcublas.so.13")
	text, err := exec.CommandContext(t.Context(), cc, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", file, "testdata/abi.c").CombinedOutput()
	require.NoError(t, err, "%s", text)
	return file
}

func address(x []float32) uintptr { return uintptr(unsafe.Pointer(&x[0])) }

// Products of matrices with gaps between rows, into C and added to C.
func TestMultiply(t *testing.T) {
	l, err := Open(build(t))
	require.NoError(t, err)
	h, err := l.NewHandle(0x1234)
	require.NoError(t, err)
	require.Equal(t, 130100, h.Version())
	nan := float32(math.NaN())
	a, w, c := []float32{1, 2, nan, 3, 4, nan}, []float32{1, 10, 100, 1000, 5, 6}, []float32{nan, nan, nan, 7, nan, nan, nan, 8}
	p := &Product{C: address(c), A: address(a), W: address(w), CStride: 4, AStride: 3, Rows: 2, In: 2, Out: 3}
	require.NoError(t, h.Multiply(p))
	require.Equal(t, []float32{21, 2100, 17, 7, 43, 4300, 39, 8}, c)
	p.Add = true
	require.NoError(t, h.Multiply(p))
	require.Equal(t, []float32{42, 4200, 34, 7, 86, 8600, 78, 8}, c)
	p.AStride = 1
	require.Equal(t, &Error{"cublasSgemm", 7, "an invalid value"}, h.Multiply(p))
	p.AStride = math.MaxInt32 + 1
	require.ErrorContains(t, h.Multiply(p), "beyond 32 bits")
	runtime.KeepAlive([][]float32{a, w, c})
	require.NoError(t, h.Close())
}

func TestOpenRefuses(t *testing.T) {
	for name, text := range map[string]string{"/nowhere/libcublas.so.13": "/nowhere/libcublas.so.13", "libc.so.6": "cublasCreate_v2 is missing"} {
		_, err := Open(name)
		require.ErrorIs(t, err, ErrMissing)
		require.ErrorContains(t, err, text)
	}
}
