package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIDs(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "vocab.txt"), []byte("[UNK]\n[CLS]\n[SEP]\na\nA\n"), 0o666))
	for _, c := range []struct{ in, want string }{
		{"41\n\n6120ff0a5a\n", "1 3 2\n1 2\n1 3 0 2\n"},
		{"61 41\nmax 4\n6120612061\n", "1 3 2 3 2|0 0 0 1 1\n1 3 3 2\n"},
		{"open " + dir + "\n", "ok 7\n"},
	} {
		var out strings.Builder
		require.NoError(t, run([]string{dir}, strings.NewReader(c.in), &out))
		require.Equal(t, c.want, out.String())
	}
	for _, args := range [][]string{{dir, dir}, {dir + "x"}, {filepath.Join(dir, "vocab.txt")}, {dir}} {
		require.Error(t, run(args, strings.NewReader("zz"), &strings.Builder{}))
	}
}
