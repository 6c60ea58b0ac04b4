package main

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"unicode"

	"github.com/stretchr/testify/require"
)

var (
	numberPattern = regexp.MustCompile(`[0-9]+`)
	wordPattern   = regexp.MustCompile(`"[a-zA-Z0-9_.]+"`)
)

// split returns the header and the data of a safetensors file.
func split(file []byte) (header string, data []byte) {
	end := 8 + int(binary.LittleEndian.Uint64(file))
	return string(file[8:end]), file[end:]
}

// joined returns a safetensors file of a header and data.
func joined(header string, data []byte) []byte {
	return append(append(binary.LittleEndian.AppendUint64(nil, uint64(len(header))), header...), data...)
}

// damage returns a changed copy of a safetensors file.
func damage(r *rand.Rand, file []byte) []byte {
	text, data := split(file)
	replace := func(what *regexp.Regexp, with ...string) {
		found := what.FindAllStringIndex(text, -1)
		at := found[r.IntN(len(found))]
		text = text[:at[0]] + with[r.IntN(len(with))] + text[at[1]:]
	}
	switch r.IntN(7) {
	case 0: // bits anywhere
		b := bytes.Clone(file)
		for range 1 + r.IntN(3) {
			b[r.IntN(len(b))] ^= 1 << r.IntN(8)
		}
		return b
	case 1: // bits of values
		data = bytes.Clone(data)
		data[r.IntN(len(data))] ^= 1 << r.IntN(8)
	case 2:
		return file[:r.IntN(len(file))]
	case 3:
		replace(numberPattern, "0", "1", "-1", "2", "4096", "9223372036854775807", "18446744073709551616", "1e9", "")
	case 4:
		replace(wordPattern, `"F16"`, `"F4X"`, `"step"`, `"\u001b[31m"`, `"`+strings.Repeat("x", 50000)+`"`, `"a\nb"`, "null", "{}")
	case 5: // a piece of the header twice, or missing
		from := r.IntN(len(text))
		to := from + r.IntN(len(text)-from)
		if text = text[:to] + text[from:]; r.IntN(2) == 0 {
			text = text[:from] + text[to:]
		}
	case 6:
		data = append(bytes.Clone(data), data[:r.IntN(100)]...)
	}
	return joined(text, data)
}

// A long word in place of each word of a checkpoint's header gives a short line.
func TestLongWordsInCheckpoints(t *testing.T) {
	checkpoint := filepath.Join(t.TempDir(), "checkpoint")
	args := small("--steps=1", "--checkpoint="+checkpoint)
	_, err := lm(t, t.Context(), args...)
	require.NoError(t, err)
	good, err := os.ReadFile(checkpoint)
	require.NoError(t, err)
	text, data := split(good)
	words := wordPattern.FindAllStringIndex(text, -1)
	require.Greater(t, len(words), 10)
	for i, at := range words {
		if testing.Short() && i%8 != 0 && !strings.HasSuffix(text[:at[0]], `"step":`) {
			continue
		}
		long := text[:at[0]] + `"` + strings.Repeat("x", 50000) + `"` + text[at[1]:]
		require.NoError(t, os.WriteFile(checkpoint, joined(long, data), 0o644))
		if _, err := lm(t, t.Context(), args...); err != nil {
			require.Less(t, len(err.Error()), 1500, "%s: %.200s", text[at[0]:at[1]], err)
		}
	}
}

// A damaged checkpoint gives one line with its name, and is not changed.
func TestDamagedCheckpoints(t *testing.T) {
	n := 50
	if !testing.Short() {
		n = 500
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	checkpoint := filepath.Join(t.TempDir(), "checkpoint")
	_, err := lm(t, t.Context(), small("--steps=1", "--checkpoint="+checkpoint)...)
	require.NoError(t, err)
	good, err := os.ReadFile(checkpoint)
	require.NoError(t, err)
	refused := 0
	for i := range n {
		bad := damage(r, good)
		require.NoError(t, os.WriteFile(checkpoint, bad, 0o644))
		out, err := lm(t, t.Context(), small("--steps=1", "--checkpoint="+checkpoint)...)
		if err == nil { // the damage changed no value
			require.Contains(t, out, "going on after step 1 of ", "file %d", i)
			continue
		}
		refused++
		text := err.Error()
		require.True(t, strings.HasPrefix(text, checkpoint), "file %d: %s", i, text)
		require.Less(t, len(text), 1500, "file %d: %s", i, text)
		require.Equal(t, -1, strings.IndexFunc(text, func(c rune) bool { return !unicode.IsPrint(c) }), "file %d: %q", i, text)
		after, err := os.ReadFile(checkpoint)
		require.NoError(t, err)
		require.Equal(t, bad, after, "file %d", i)
	}
	require.Greater(t, refused, n*3/4)
	t.Logf("%d of %d refused", refused, n)
}
