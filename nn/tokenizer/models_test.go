package tokenizer

import (
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/stretchr/testify/require"
)

// A sampled tokenizer is one of testdata/models.json, which tools/tokenizer_compare.py writes.
type sampled struct {
	Name  string
	File  map[string]json.RawMessage
	Texts []string // in hexadecimal
	IDs   [][]int32
	tok   *Tokenizer
}

var samples = sync.OnceValues(func() (list []*sampled, err error) {
	b, err := os.ReadFile("testdata/models.json")
	if err != nil {
		return nil, err
	}
	if err = json.Unmarshal(b, &list); err != nil {
		return nil, err
	}
	file := map[string]json.RawMessage{}
	for _, x := range list {
		maps.Copy(file, x.File) // a file has only the keys that differ from the file before
		b, err := json.Marshal(file)
		if err != nil {
			return nil, err
		}
		if x.tok, err = Parse(b); err != nil {
			return nil, fmt.Errorf("%s: %w", x.Name, err)
		}
	}
	return list, nil
})

// Models and pre-tokenizers give the ids of the reference.
func TestModels(t *testing.T) {
	list, err := samples()
	require.NoError(t, err)
	require.GreaterOrEqual(t, len(list), 13)
	for _, x := range list {
		require.GreaterOrEqual(t, len(x.Texts), 10)
		for i, s := range x.Texts {
			text, err := hex.DecodeString(s)
			require.NoError(t, err)
			require.True(t, slices.Equal(x.IDs[i], encode(x.tok, string(text), 0)), "%s: %+q", x.Name, text)
		}
	}
}

// Encoding allocates nothing when its memory is large enough.
func TestModelsAllocateNothing(t *testing.T) {
	list, err := samples()
	require.NoError(t, err)
	for _, x := range list {
		var e Encoding
		text := "the token's 12345  " + x.Texts[0] + "\u00e9\u2122\U00010348"
		x.tok.Encode(&e, 0, text)
		if n := allocs.PerRun(20, func() { x.tok.Encode(&e, 0, text) }); n > 0 && x.Name != "bpe-other" {
			t.Errorf("%s: %v allocations", x.Name, n)
		}
	}
}

// slowBPE joins pairs by the definition.
func slowBPE(b *bpe, word string) []int32 {
	var m merging
	ids := b.characters(&m, nil, word)
	for {
		best, at := merge{rank: 1 << 30}, -1
		for i := range len(ids) - 1 {
			if x, ok := b.merges[pair{ids[i], ids[i+1]}]; ok && x.rank < best.rank {
				best, at = x, i
			}
		}
		if at < 0 {
			return ids
		}
		ids = slices.Replace(ids, at, at+2, best.id)
	}
}

// randomBPE returns a model of few letters, whose merges come in a random order.
func randomBPE(r *rand.Rand) *bpe {
	b := &bpe{vocab: vocab{ids: map[string]int32{}}, merges: map[pair]merge{}, unk: -1}
	names := []string{"a", "b", "c"}
	for i := range b.low {
		b.low[i] = -1
	}
	for i, name := range names {
		b.ids[name], b.low[name[0]] = int32(i), int32(i)
	}
	for rank := range int32(30) {
		x, y := r.IntN(len(names)), r.IntN(len(names))
		name := names[x] + names[y]
		id, ok := b.ids[name]
		if !ok {
			id = int32(len(names))
			b.ids[name], names = id, append(names, name)
		}
		b.merges[pair{int32(x), int32(y)}] = merge{rank, id}
	}
	return b
}

// A heap joins pairs in the order of the definition.
func TestBPEJoins(t *testing.T) {
	r := rand.New(rand.NewPCG(rand.Uint64(), 1))
	var s scratch
	for range 100 {
		b := randomBPE(r)
		for range 20 {
			word := make([]byte, 1+r.IntN(40))
			for i := range word {
				word[i] = "abc"[r.IntN(3)]
			}
			got, want := b.encode(&s, nil, string(word)), slowBPE(b, string(word))
			require.Equal(t, want, got, "%s", word)
		}
	}
}

// Time is about linear in the length of a word.
func TestModelsLongWords(t *testing.T) {
	list, err := samples()
	require.NoError(t, err)
	for _, x := range list {
		for _, unit := range []string{"a", " ", "the", "\u0301", "\x80"} {
			seconds := func(n int) float64 {
				var e Encoding
				text, from := strings.Repeat(unit, n/len(unit)), time.Now()
				x.tok.Encode(&e, 0, text)
				return time.Since(from).Seconds()
			}
			short := seconds(1 << 10)
			for tries := 3; ; tries-- {
				if long := seconds(1 << 14); long < 16*8*short+2 {
					break
				} else if tries == 1 {
					t.Fatalf("%s, %+q: %.3f seconds, and 16 times the text %.3f", x.Name, unit, short, long)
				}
			}
		}
	}
}

// The matchers of the published patterns find what Go's regexp finds.
func TestPublishedPatterns(t *testing.T) {
	r := rand.New(rand.NewPCG(rand.Uint64(), 2))
	parts := []string{"a", "B", "\u01C5", "\u02B0", "\u05D0", "\u0301", "1", "\u0968", " ", "  ", "\t", "\n", "\r", "/", "!", "'", "'s", "'LL", "'\u017F", "'r", "\u3000", "\U00010400", "\u20AC", "\x85"}
	for text, p := range published {
		slow, err := translated(text)
		require.NoError(t, err)
		for range 1000 {
			var s string
			for range 1 + r.IntN(10) {
				s += parts[r.IntN(len(parts))]
			}
			s = strings.ToValidUTF8(s, "\uFFFD")
			for at := 0; at < len(s); {
				from, to := p.find(s, at)
				slowFrom, slowTo := slow.find(s, at)
				require.Equal(t, []int{slowFrom, slowTo}, []int{from, to}, "%q of %+q from %d", text, s, at)
				at = max(to, at+1)
			}
		}
	}
}

func TestRegexRefuses(t *testing.T) {
	for _, text := range []string{`\w+`, `^a`, `a$`, `a++`, `a*+`, `(?=a)`, `(?<!a)b`, `(?i)a`, `[a[b]]`, `[a&&b]`, `[[:alpha:]]`, `a*`, `(a*)*b`, `(a?)+b`, `a{2}{3}`, `a{2}+`, `a{3,2}`, `a{1001}`, `\p{Alpha}`,
		`\p{C}`, `[\S]`, `\b`, `\1`, `\p{L`, `[a`, `(a`, `a)`, `*a`, `]`, `{`, `[\s-a]`, `\`, `[]a]`, `\s+(?!\S)|\s+`, "\xff", `(?>a)`, `a|`} {
		_, err := newRegex(text)
		require.Error(t, err, text)
	}
	for text, want := range map[string][2]int{` {2,}`: {2, 5}, `[^\s\p{P}]+`: {0, 2}, `\S+?b`: {0, 2}, `[\p{Nd}-]|\d`: {6, 7}, `[+\-.,]+`: {-1, -1}, `(a|b)+|\.`: {0, 2}, `[\x]`: {}} {
		p, err := newRegex(text)
		if want == [2]int{} {
			require.Error(t, err, text)
			continue
		}
		require.NoError(t, err, text)
		from, to := p.find("ab   c7", 0)
		require.Equal(t, want, [2]int{from, to}, text)
	}
}

func TestModelsRefuse(t *testing.T) {
	file := `{"normalizer":%s,"pre_tokenizer":%s,"model":%s}`
	bpe := `{"type":"BPE","vocab":{"a":0,"b":1,"ab":2},"merges":["a b"]%s}`
	plain := fmt.Sprintf(bpe, "")
	for _, c := range []struct{ normalizer, pre, model, want string }{
		{"null", "null", fmt.Sprintf(bpe, `,"dropout":0.1`), "model.dropout: 0.1 is not supported"},
		{"null", "null", fmt.Sprintf(bpe, `,"unk_token":"x"`), `model.unk_token: "x" is not in vocab`},
		{"null", "null", fmt.Sprintf(bpe, `,"cache":1`), `model.cache = 1: the key is unknown, and may change results`},
		{"null", "null", strings.Replace(plain, "a b", "a c", 1), `model.merges: a token of merge 0, "a" and "c", is not in vocab`},
		{"null", "null", strings.Replace(plain, "a b", "a  b", 1), `model.merges: merge 0 has 3 tokens`},
		{"null", "null", strings.Replace(plain, `"a b"`, `["a","b","c"]`, 1), `model.merges: merge 0 has 3 tokens`},
		{"null", "null", strings.Replace(plain, `"a b"`, `"a b",["a","b"]`, 1), `model.merges: must be a list of pairs of tokens, not ["a b",["a","b"]]`},
		{"null", "null", `{"type":"Unigram","vocab":[["a",0]],"unk_id":1}`, "model.unk_id: 1 is no index of 1 tokens"},
		{"null", "null", `{"type":"Unigram","vocab":[["a",0]],"unk_id":null}`, "model.unk_id: is missing"},
		{"null", "null", `{"type":"Unigram","vocab":[["a",0,1]],"unk_id":0}`, `model.vocab: must be a list of tokens with scores, not [["a",0,1]]`},
		{"null", "null", `{"type":"Unigram","vocab":[["a",null]],"unk_id":0}`, `model.vocab: must be a list of tokens with scores, not [["a",null]]`},
		{"null", `{"type":"Metaspace","replacement":"__"}`, plain, `pre_tokenizer.replacement: must be a character, not "__"`},
		{"null", `{"type":"Metaspace","replacement":"_","prepend_scheme":"last"}`, plain, `pre_tokenizer.prepend_scheme: "last" is not supported`},
		{"null", `{"type":"Metaspace","replacement":"_","prepend_scheme":"first","add_prefix_space":false}`, plain, `pre_tokenizer.add_prefix_space: contradicts prepend_scheme, "first"`},
		{`{"type":"Strip"}`, `{"type":"Metaspace","replacement":"_","prepend_scheme":"first"}`, plain, `pre_tokenizer.prepend_scheme: "first" is not supported after a normalizer that may drop characters`},
		{"null", `{"type":"Split","pattern":{"Regex":"a(?=b)"},"behavior":"Isolated","invert":false}`, plain, `pre_tokenizer.pattern.Regex: "a(?=b)" is not supported: '(' is not supported`},
		{"null", `{"type":"Split","pattern":{"String":"a"},"behavior":"Isolate","invert":false}`, plain, `pre_tokenizer.behavior: "Isolate" is not supported`},
		{"null", `{"type":"Split","pattern":{"String":"a"},"invert":false}`, plain, `pre_tokenizer.behavior: is missing`},
		{`{"type":"Precompiled","precompiled_charsmap":"!"}`, "null", plain, "normalizer.precompiled_charsmap: illegal base64 data at input byte 0"},
		{`{"type":"Precompiled","precompiled_charsmap":"AAAA"}`, "null", plain, "normalizer.precompiled_charsmap: no length of the trie"},
		{`{"type":"Precompiled","precompiled_charsmap":"CAAAAAAAAAA="}`, "null", plain, "normalizer.precompiled_charsmap: the length of the trie exceeds the data"},
	} {
		_, err := Parse(fmt.Appendf(nil, file, c.normalizer, c.pre, c.model))
		require.ErrorContains(t, err, "tokenizer.json: "+c.want)
	}
}

// A class of tokenizer_config.json must have the rules of tokenizer.json.
func TestRebuiltClasses(t *testing.T) {
	byName := func(name string) string {
		list, err := samples()
		require.NoError(t, err)
		file := map[string]json.RawMessage{}
		for _, x := range list {
			if maps.Copy(file, x.File); x.Name == name {
				b, err := json.Marshal(file)
				require.NoError(t, err)
				return strings.Replace(string(b), `"ignore_merges":true`, `"ignore_merges":false`, 1)
			}
		}
		return ""
	}
	qwen := strings.Replace(byName("bpe-qwen"), `"normalizer":null`, `"normalizer":{"type":"NFC"}`, 1)
	xlm := strings.NewReplacer(`"unk_id":0`, `"unk_id":3`).Replace(byName("unigram-old"))
	roberta := strings.Replace(byName("bpe-roberta"), `"normalizer":{"type":"NFC"}`, `"normalizer":null`, 1)
	for _, c := range []struct{ file, config, wrong string }{
		{qwen, `{"tokenizer_class":"Qwen2Tokenizer","add_prefix_space":false}`, `{"tokenizer_class":"RobertaTokenizer"}`},
		{qwen, `{"tokenizer_class":"Qwen2TokenizerFast"}`, `{"tokenizer_class":"Qwen2Tokenizer","add_prefix_space":true}`},
		{byName("bpe-qwen"), `{"tokenizer_class":"PreTrainedTokenizerFast"}`, `{"tokenizer_class":"Qwen2Tokenizer"}`},
		{xlm, `{"tokenizer_class":"XLMRobertaTokenizer"}`, `{"tokenizer_class":"XLMRobertaTokenizer","add_prefix_space":false}`},
		{byName("unigram-old"), `{"tokenizer_class":"TokenizersBackend"}`, `{"tokenizer_class":"XLMRobertaTokenizer"}`},
		{roberta, `{"tokenizer_class":"RobertaTokenizer","add_prefix_space":true}`, `{"tokenizer_class":"RobertaTokenizer"}`},
		{strings.Replace(byName("bpe-bytes"), `"always"`, `"first"`, 1), `{"tokenizer_class":"LlamaTokenizer"}`, `{"tokenizer_class":"GemmaTokenizer"}`},
	} {
		_, err := Open(folder(t, map[string]string{"tokenizer.json": c.file, "tokenizer_config.json": c.config}))
		require.NoError(t, err, c.config)
		_, err = Open(folder(t, map[string]string{"tokenizer.json": c.file, "tokenizer_config.json": c.wrong}))
		require.ErrorContains(t, err, "tokenizer.json: model, normalizer or pre_tokenizer has other rules than tokenizer_config.json", c.wrong)
	}

	// An XLM-R file whose rules only trim spaces has the ids of the class.
	trimming := strings.Replace(byName("unigram-rules"), `"unk_id":0`, `"unk_id":3`, 1)
	var file map[string]json.RawMessage
	require.NoError(t, json.Unmarshal([]byte(trimming), &file))
	var n struct{ Normalizers []json.RawMessage }
	require.NoError(t, json.Unmarshal(file["normalizer"], &n))
	require.Len(t, n.Normalizers, 2)
	file["normalizer"] = n.Normalizers[0]
	file["pre_tokenizer"] = fmt.Appendf(nil, `{"type":"Sequence","pretokenizers":[{"type":"WhitespaceSplit"},%s]}`, file["pre_tokenizer"])
	class, err := json.Marshal(file)
	require.NoError(t, err)
	var tokens [2]*Tokenizer
	for i, x := range []string{trimming, string(class)} {
		tokens[i], err = Open(folder(t, map[string]string{"tokenizer.json": x, "tokenizer_config.json": `{"tokenizer_class":"XLMRobertaTokenizer"}`}))
		require.NoError(t, err)
	}
	for _, text := range []string{"the  then ", " the\u2581 \u2581then\n", "a\u00A0b\u3000", ""} {
		require.Equal(t, encode(tokens[1], text, 0), encode(tokens[0], text, 0), "%q", text)
	}
}

// Grapheme clusters end where Unicode's rules say.
func TestGraphemes(t *testing.T) {
	for _, want := range []string{
		"\r\n|a", "\n|\r", "a\u0301|b", "\u1100\u1161\u11A8|\u1100", "\uAC00\u11A8|\uAC01\u11A8", "a\u0903|a", "\u0600a|a", "\u0600|\n", "a|\u200B|a",
		"\U0001F468\u200D\U0001F469|\U0001F469", "\U0001F468\u0301\u200D\U0001F469", "a\u200D|\U0001F469", "\U0001F468\u200D\u200D|\U0001F469",
		"\U0001F1E6\U0001F1E7|\U0001F1E8", "\U0001F1E6\u0301|\U0001F1E8", "\u0915\u094D\u0958|a", "\u0915\u093C\u094D\u200D\u0958", "\u0915\u094D\u200C|\u0958", "\u0915|\u0958", "\u0915\u094Da"[:6] + "|a",
		"e\u2028"[:1] + "|\u2028", "\u0600\U0001F1E6\U0001F1E7|\U0001F1E8", "\u0301\u0301|a",
	} {
		text := strings.ReplaceAll(want, "|", "")
		var got []string
		for text != "" {
			n := grapheme(text)
			got, text = append(got, text[:n]), text[n:]
		}
		require.Equal(t, want, strings.Join(got, "|"), "%+q", want)
	}
}

func FuzzModels(f *testing.F) {
	list, err := samples()
	require.NoError(f, err)
	for _, x := range list {
		for _, s := range x.Texts {
			text, err := hex.DecodeString(s)
			require.NoError(f, err)
			f.Add(text)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		for _, x := range list {
			ids := encode(x.tok, string(text), 0)
			for _, id := range ids {
				require.True(t, id >= 0 && int(id) < x.tok.Len(), x.Name)
			}
			require.Equal(t, ids, encode(x.tok, string(text), 0), x.Name)
			require.Equal(t, ids, encode(x.tok, string([]rune(string(text))), 0), "%s: bytes that are no UTF-8 are U+FFFD", x.Name)
		}
	})
}

func FuzzCharsmap(f *testing.F) {
	f.Add([]byte("\x04\x00\x00\x00\x00\x00\x00\x00a\x00"), "a\u0301")
	f.Fuzz(func(t *testing.T, data []byte, text string) {
		m, err := decodeCharsmap(base64.StdEncoding.EncodeToString(data))
		if err == nil {
			require.True(t, utf8.Valid(m.normalize(nil, nil, strings.ToValidUTF8(text, ""))))
		}
	})
}

func FuzzRegex(f *testing.F) {
	for text := range published {
		f.Add(text, "it's 12\n")
	}
	f.Add(` {2,}|[^a-z\p{Han}]+?`, "a  b")
	f.Fuzz(func(t *testing.T, pattern, text string) {
		p, err := newRegex(pattern)
		if err != nil {
			return
		}
		if from, to := p.find(text, 0); from >= 0 {
			require.True(t, from < to && to <= len(text))
		}
	})
}
