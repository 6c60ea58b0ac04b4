package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIDs(t *testing.T) {
	vocab := filepath.Join(t.TempDir(), "vocab.txt")
	require.NoError(t, os.WriteFile(vocab, []byte("[UNK]\n[CLS]\n[SEP]\na\nA\n"), 0o666))
	for _, c := range []struct{ args, in, want string }{
		{"uncased", "41\n\n6120ff0a5a\n", "1 3 2\n1 2\n1 3 0 2\n"},
		{"cased", "41", "1 4 2\n"},
	} {
		var out strings.Builder
		require.NoError(t, run([]string{vocab, c.args}, strings.NewReader(c.in), &out))
		require.Equal(t, c.want, out.String())
	}
	for _, args := range [][]string{nil, {vocab, "upper"}, {vocab + "x", "cased"}, {vocab, "cased"}} {
		require.Error(t, run(args, strings.NewReader("zz"), &strings.Builder{}))
	}
}
