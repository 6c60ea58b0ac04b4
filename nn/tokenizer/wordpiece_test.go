package tokenizer

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/strict"

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
	tok, err := ofVocabulary(strings.Join(v.Vocab, "\n")+"\n", lowercase)
	require.NoError(t, err)
	require.Equal(t, len(v.Vocab), tok.Len())
	return tok
}

// ofVocabulary returns the tokenizer of a vocab.txt.
func ofVocabulary(lines string, lowercase bool) (*Tokenizer, error) {
	r, c := &strict.File{Name: "vocab.txt"}, newConfig()
	c.lower = lowercase
	t := parseVocabulary(r, []byte(lines), c)
	return t, r.Err
}

func encode(t *Tokenizer, text string, limit int) []int32 {
	var e Encoding
	t.Encode(&e, limit, text)
	return e.IDs
}

// compare holds every text to the reference, and every limit to its beginning.
func (v vectors) compare(t *testing.T, want [][]int32, lowercase bool) {
	tok := v.tokenizer(t, lowercase)
	var e Encoding
	wrong := 0
	for i := range want {
		text := v.text(t, i)
		tok.Encode(&e, 0, text)
		got := slices.Clone(e.IDs)
		if !slices.Equal(got, want[i]) {
			if wrong++; wrong <= 20 {
				t.Errorf("%.200q, lowercase %v:\n got %d\nwant %d", text, lowercase, got, want[i])
			}
			continue
		}
		for _, limit := range []int{1, 2, 3, 7, len(got) - 1, len(got), len(got) + 1} {
			n := min(max(limit, 2), len(got))
			part := encode(tok, text, limit)
			require.True(t, slices.Equal(got[1:n-1], part[1:n-1]) && len(part) == n && part[0] == got[0] && part[n-1] == got[len(got)-1],
				"%.200q, limit %d: %d of %d", text, limit, part, got)
		}
	}
	t.Logf("%d of %d texts differ from the reference, lowercase %v", wrong, len(want), lowercase)
}

func TestVectors(t *testing.T) {
	v := readVectors(t, "testdata/wordpiece.json")
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

func TestVocabularyRefuses(t *testing.T) {
	for _, c := range []struct{ vocab, want string }{
		{"", `vocab.txt: unk_token: "[UNK]" is not in the vocabulary of 0 tokens`},
		{"[UNK]\n[CLS]\na\n", `vocab.txt: the vocabulary of 3 tokens has no token "[SEP]"`},
		{"[SEP]\n[UNK]\n", `vocab.txt: the vocabulary of 2 tokens has no token "[CLS]"`},
	} {
		_, err := ofVocabulary(c.vocab, true)
		require.EqualError(t, err, c.want)
	}
}

const specialLines = "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n"

// A file of another system has CRs, and of a token on two lines the last counts.
func TestVocabularyLines(t *testing.T) {
	tok, err := ofVocabulary("[UNK]\r\n[CLS]\r\n[SEP]\r\n[PAD]\r\n[MASK]\r\na\r\n\r\na\r\n##b", true)
	require.NoError(t, err)
	require.Equal(t, 9, tok.Len())
	require.Equal(t, []int32{1, 7, 8, 0, 2}, encode(tok, "ab [MASK", 5))
	tok, err = ofVocabulary(specialLines+"\na\n\n\r\n", true)
	require.NoError(t, err)
	require.Equal(t, 7, tok.Len(), "empty lines at the end are no tokens")
	require.Equal(t, []int32{2, 3, 3}, encode(tok, "[SEP]", 0))
}

// Texts that made an iterator of package norm panic, with the ids of the reference.
func TestTextsThatPanicked(t *testing.T) {
	b, err := os.ReadFile("testdata/panics.json")
	require.NoError(t, err)
	var texts []struct {
		Text string
		IDs  []int32
	}
	require.NoError(t, json.Unmarshal(b, &texts))
	require.GreaterOrEqual(t, len(texts), 3)
	tok, err := ofVocabulary("[UNK]\n[CLS]\n[SEP]\na\n", true)
	require.NoError(t, err)
	for _, x := range texts {
		require.Equal(t, x.IDs, encode(tok, x.Text, 0), "%+q", x.Text)
	}
}

func TestEncodeAllocates(t *testing.T) {
	tok := readVectors(t, "testdata/wordpiece.json").tokenizer(t, true)
	text := "Hello, World! [MASK] It's a well-known e-mail: someone@example.org (2026). " + strings.Repeat("a", 200)
	for _, text := range []string{text, text + "caf\u00e9 na\u00efve \u041f\u0440\u0438\u0432\u0435\u0442 \xff \uAC00"} {
		var e Encoding
		require.Zero(t, allocs.PerRun(100, func() { tok.Encode(&e, 12, text) }))
		require.Zero(t, allocs.PerRun(100, func() { tok.EncodePair(&e, 0, text, text) }))
	}
}

func TestConcurrent(t *testing.T) {
	v := readVectors(t, "testdata/wordpiece.json")
	tok := v.tokenizer(t, true)
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			var e Encoding
			for i := range v.Texts {
				if tok.Encode(&e, 0, v.text(t, i)); !slices.Equal(e.IDs, v.Uncased[i]) {
					t.Errorf("text %d: %d", i, e.IDs)
				}
			}
		})
	}
	all.Wait()
}

func FuzzEncode(f *testing.F) {
	v := readVectors(f, "testdata/wordpiece.json")
	toks := []*Tokenizer{v.tokenizer(f, true), v.tokenizer(f, false)}
	for i := range v.Texts {
		f.Add([]byte(v.text(f, i)), i)
	}
	f.Fuzz(func(t *testing.T, text []byte, limit int) {
		for _, tok := range toks {
			ids := encode(tok, string(text), limit)
			require.GreaterOrEqual(t, len(ids), 2)
			if limit > 0 {
				require.LessOrEqual(t, len(ids), max(limit, 2))
			}
			require.Equal(t, tok.single.pieces[0].ids[0], ids[0])
			require.Equal(t, tok.single.pieces[2].ids[0], ids[len(ids)-1])
			for _, id := range ids {
				require.True(t, id >= 0 && int(id) < tok.Len(), "id %d", id)
			}
		}
	})
}

func BenchmarkEncode(b *testing.B) {
	tok := readVectors(b, "testdata/wordpiece.json").tokenizer(b, true)
	var e Encoding
	for _, c := range []struct{ name, text string }{
		{"ascii", "To be, or not to be, that is the question: Whether 'tis nobler in the mind to suffer"},
		{"accents", "caf\u00e9 na\u00efve r\u00e9sum\u00e9 fa\u00e7ade \u041f\u0440\u0438\u0432\u0435\u0442"},
	} {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				tok.Encode(&e, 0, c.text)
			}
		})
	}
}
