package sharedlib

import (
	"bytes"
	"encoding/binary"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// library returns an ELF file with two segments that end at byte 4096.
func library(t *testing.T) []byte {
	if machines[runtime.GOARCH] == 0 {
		t.Skip("knows no number of this machine")
	}
	h := elfHeader{Machine: machines[runtime.GOARCH], Phoff: 64, Phentsize: 56, Phnum: 2}
	copy(h.Ident[:], "\x7fELF\x02\x01\x01")
	var b bytes.Buffer
	require.NoError(t, binary.Write(&b, binary.LittleEndian, h))
	require.NoError(t, binary.Write(&b, binary.LittleEndian, []segment{{Type: loadable, Filesz: 1000}, {Type: loadable, Offset: 2048, Filesz: 2048}}))
	return append(b.Bytes(), make([]byte, 4096-b.Len())...)
}

func write(t *testing.T, text []byte) string {
	path := filepath.Join(t.TempDir(), "lib.so.1")
	require.NoError(t, os.WriteFile(path, text, 0o644))
	return path
}

func TestTruncated(t *testing.T) {
	whole := library(t)
	require.NoError(t, Truncated(write(t, whole)))
	for n := range len(whole) {
		if n%97 > 1 && n != len(whole)-1 {
			continue
		}
		err := Truncated(write(t, whole[:n]))
		if n < 64 {
			require.NoError(t, err, "the loader says what is wrong")
			continue
		}
		require.ErrorContains(t, err, "lib.so.1: the file is truncated: it ", n)
	}
	wraps := bytes.Clone(whole)
	binary.LittleEndian.PutUint64(wraps[64+32:], 1<<64-1) // Filesz
	require.ErrorContains(t, Truncated(write(t, wraps)), "the file is truncated")
	far := bytes.Clone(whole)
	binary.LittleEndian.PutUint64(far[32:], 1<<64-1) // Phoff
	require.ErrorContains(t, Truncated(write(t, far)), "the file is truncated")

	for _, at := range []int{0, 4, 5, 18, 54} { // not for this machine's loader
		other := bytes.Clone(whole[:3000])
		other[at]++
		require.NoError(t, Truncated(write(t, other)), at)
	}
	require.NoError(t, Truncated(t.TempDir()))
	require.NoError(t, Truncated(filepath.Join(t.TempDir(), "none")))
}

// The file that counts is the one that the loader takes.
func TestTruncatedSearches(t *testing.T) {
	whole := library(t)
	other := bytes.Clone(whole)
	other[18]++
	folder := func(text []byte) string { return filepath.Dir(write(t, text)) }
	search := func(folders ...string) error {
		path := ""
		for _, f := range folders {
			path += f + string(filepath.ListSeparator)
		}
		t.Setenv("LD_LIBRARY_PATH", path)
		return Truncated("lib.so.1")
	}
	require.NoError(t, search())
	require.Error(t, search(t.TempDir(), folder(other), folder(whole[:3000]), folder(whole)))
	require.NoError(t, search(folder(whole), folder(whole[:3000])))

	cached := func(paths ...string) error {
		text := []byte("glibc-ld.so.cache1.1\x02\x00\x00\x00")
		for _, p := range paths {
			text = append(append(text, p...), 0)
		}
		return truncatedIn(write(t, text), "lib.so.1")
	}
	require.NoError(t, cached("/none/lib.so.1", "/none/lib.so.10"))
	require.Error(t, cached(write(t, other), write(t, whole[:3000])))
	require.NoError(t, cached(write(t, whole[:3000]), write(t, whole)), "the loader may take the other one")
	require.NoError(t, truncatedIn(filepath.Join(t.TempDir(), "none"), "lib.so.1"))
}
