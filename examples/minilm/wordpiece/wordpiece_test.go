package wordpiece

import (
	"encoding/hex"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/allocs"
)

// Vectors are the output of tools/wordpiece_vectors.py.
type vectors struct {
	Vocab          []string
	Texts          []any
	Uncased, Cased [][]int32
}

func readVectors(t testing.TB, name string) vectors {
	b, err := os.ReadFile(name)
	require.NoError(t, err)
	var v vectors
	require.NoError(t, json.Unmarshal(b, &v))
	require.Len(t, v.Uncased, len(v.Texts))
	return v
}

// text returns a text, decoded from hexadecimal if it is not UTF-8.
func (v vectors) text(t testing.TB, i int) string {
	list, ok := v.Texts[i].([]any)
	if !ok {
		return v.Texts[i].(string)
	}
	b, err := hex.DecodeString(list[0].(string))
	require.NoError(t, err)
	require.False(t, utf8.Valid(b))
	return string(b)
}

func (v vectors) tokenizer(t testing.TB, lowercase bool) *Tokenizer {
	tok, err := New(strings.NewReader(strings.Join(v.Vocab, "\n")+"\n"), lowercase)
	require.NoError(t, err)
	require.Equal(t, len(v.Vocab), tok.Len())
	return tok
}

// compare holds every text to the reference, and every limit to its beginning.
func (v vectors) compare(t *testing.T, want [][]int32, lowercase bool) {
	tok := v.tokenizer(t, lowercase)
	wrong := 0
	for i := range want {
		text := v.text(t, i)
		got := tok.Encode([]int32{-7}, text, 0)
		if got[0] != -7 || !slices.Equal(got[1:], want[i]) {
			if wrong++; wrong <= 20 {
				t.Errorf("%.200q, lowercase %v:\n got %d\nwant %d", text, lowercase, got[1:], want[i])
			}
			continue
		}
		for _, limit := range []int{1, 2, 3, 7, len(want[i]) - 1, len(want[i]), len(want[i]) + 1} {
			n := min(max(limit, 2), len(want[i]))
			part := tok.Encode(nil, text, limit)
			require.True(t, slices.Equal(got[1:n], part[:n-1]) && len(part) == n && part[n-1] == tok.sep,
				"%.200q, limit %d: %d of %d", text, limit, part, got)
		}
	}
	t.Logf("%d of %d texts differ from the reference, lowercase %v", wrong, len(want), lowercase)
}

func TestVectors(t *testing.T) {
	v := readVectors(t, "testdata/vectors.json")
	require.GreaterOrEqual(t, len(v.Texts), 54)
	require.Len(t, v.Cased, len(v.Texts))
	v.compare(t, v.Uncased, true)
	v.compare(t, v.Cased, false)
}

// The whole vocabulary and many lines, from make verify-wordpiece.
func TestReference(t *testing.T) {
	name := os.Getenv("WORDPIECE_REFERENCE")
	if name == "" {
		t.Skip("WORDPIECE_REFERENCE names no file; make verify-wordpiece makes one")
	}
	v := readVectors(t, name)
	require.Greater(t, len(v.Texts), 20000)
	v.compare(t, v.Uncased, true)
}

func TestNewRefuses(t *testing.T) {
	const good = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n"
	for _, c := range []struct{ vocab, want string }{
		{"", "wordpiece: vocabulary of 0 tokens has no token [CLS]"},
		{"[UNK]\n[CLS]\na\n", "wordpiece: vocabulary of 3 tokens has no token [SEP]"},
		{"[SEP]\n[CLS]\n", "wordpiece: vocabulary of 2 tokens has no token [UNK]"},
		{"\x00\xff\n" + strings.Repeat("a", 1<<20), "wordpiece: vocabulary, line 2: bufio.Scanner: token too long"},
	} {
		_, err := New(strings.NewReader(c.vocab), true)
		require.EqualError(t, err, c.want)
	}
	_, err := New(iotest.TimeoutReader(iotest.OneByteReader(strings.NewReader(good))), true)
	require.ErrorIs(t, err, iotest.ErrTimeout)
	_, err = New(strings.NewReader(good), true)
	require.NoError(t, err)
	require.False(t, errors.Is(err, iotest.ErrTimeout))
}

// A file of another system has CRs, and of a token on two lines the last counts.
func TestVocabularyLines(t *testing.T) {
	tok, err := New(strings.NewReader("[UNK]\r\n[CLS]\r\n[SEP]\r\na\r\n\r\na\r\n##b"), true)
	require.NoError(t, err)
	require.Equal(t, 7, tok.Len())
	require.Equal(t, []int32{1, 5, 6, 0, 2}, tok.Encode(nil, "ab [MASK", 5))
	tok, err = New(strings.NewReader("[UNK]\n[CLS]\n\n[SEP]\n\n\r\n"), true)
	require.NoError(t, err)
	require.Equal(t, 4, tok.Len(), "empty lines at the end are no tokens")
	require.Equal(t, []int32{1, 3, 3}, tok.Encode(nil, "[SEP]", 0))
}

// FromMap gives the same ids as New.
func TestFromMap(t *testing.T) {
	v := readVectors(t, "testdata/vectors.json")
	lines := v.tokenizer(t, true)
	tok, err := FromMap(lines.Vocab(), true)
	require.NoError(t, err)
	require.Equal(t, lines, tok)
	tok, err = FromMap(map[string]int32{"[CLS]": 7, "[SEP]": 2, "[UNK]": 0, "##": 3, "": 4, "a": 5}, true)
	require.NoError(t, err)
	require.Equal(t, 8, tok.Len())
	require.Equal(t, []int32{7, 5, 0, 2}, tok.Encode(nil, "a ab", 0))
	_, err = FromMap(map[string]int32{"[CLS]": -1}, true)
	require.EqualError(t, err, `wordpiece: token "[CLS]" has the id -1`)
}

func TestEncodeAllocates(t *testing.T) {
	v := readVectors(t, "testdata/vectors.json")
	tok := v.tokenizer(t, true)
	ids := make([]int32, 0, 4096)
	ascii := "Hello, World! [MASK] It's a well-known e-mail: someone@example.org (2026). " + strings.Repeat("a", 200)
	require.Zero(t, allocs.PerRun(100, func() { ids = tok.Encode(ids[:0], ascii, 0) }))
}

func TestConcurrent(t *testing.T) {
	v := readVectors(t, "testdata/vectors.json")
	tok := v.tokenizer(t, true)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range v.Texts {
				if got := tok.Encode(nil, v.text(t, i), 0); !slices.Equal(got, v.Uncased[i]) {
					t.Errorf("text %d: %d", i, got)
				}
			}
		})
	}
	all.Wait()
}

func FuzzEncode(f *testing.F) {
	v := readVectors(f, "testdata/vectors.json")
	toks := []*Tokenizer{v.tokenizer(f, true), v.tokenizer(f, false)}
	for i := range v.Texts {
		f.Add([]byte(v.text(f, i)), i)
	}
	f.Fuzz(func(t *testing.T, text []byte, limit int) {
		for _, tok := range toks {
			ids := tok.Encode(nil, string(text), limit)
			require.GreaterOrEqual(t, len(ids), 2)
			if limit > 0 {
				require.LessOrEqual(t, len(ids), max(limit, 2))
			}
			require.Equal(t, tok.cls, ids[0])
			require.Equal(t, tok.sep, ids[len(ids)-1])
			for _, id := range ids {
				require.True(t, id >= 0 && int(id) < tok.Len(), "id %d", id)
			}
		}
	})
}

func FuzzNew(f *testing.F) {
	f.Add([]byte("[UNK]\n[CLS]\n[SEP]\na\n##b"), "ab c")
	f.Add([]byte("##\n\n[UNK]\n[CLS]\n[SEP]\n[CLS]"), "##\x00")
	f.Fuzz(func(t *testing.T, vocab []byte, text string) {
		tok, err := New(strings.NewReader(string(vocab)), len(vocab)%2 == 0)
		if err != nil {
			return
		}
		for _, id := range tok.Encode(nil, text, 0) {
			require.True(t, id >= 0 && int(id) < tok.Len(), "id %d", id)
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	v := readVectors(b, "testdata/vectors.json")
	tok := v.tokenizer(b, true)
	ids := make([]int32, 0, 4096)
	for _, c := range []struct{ name, text string }{
		{"ascii", "To be, or not to be, that is the question: Whether 'tis nobler in the mind to suffer"},
		{"accents", "caf\u00e9 na\u00efve r\u00e9sum\u00e9 fa\u00e7ade \u041f\u0440\u0438\u0432\u0435\u0442"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				ids = tok.Encode(ids[:0], c.text, 0)
			}
		})
	}
}
