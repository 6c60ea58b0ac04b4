package tokenizer

import (
	"strings"

	"golang.org/x/text/unicode/norm"

	"github.com/flashkit-go/flashkit/internal/strict"
)

// rebuiltTypes has the default classes of values of model_type in config.json.
var rebuiltTypes = map[string]string{
	"roberta": "RobertaTokenizer", "xlm-roberta": "XLMRobertaTokenizer", "qwen2": "Qwen2Tokenizer", "qwen3": "Qwen2Tokenizer",
	"gemma": "GemmaTokenizer", "gemma2": "GemmaTokenizer", "gemma3": "GemmaTokenizer", "gemma3_text": "GemmaTokenizer",
	"gpt2": "GPT2Tokenizer", "llama": "LlamaTokenizer",
}

// checkRebuilt fails if a class of tokenizer_config.json has other rules than tokenizer.json. Some
// versions of transformers use the rules of the class, and others the file's.
func (c *config) checkRebuilt(r *strict.File, t *Tokenizer) {
	name := strings.TrimSuffix(c.class, "Fast")
	if name == "" {
		name = rebuiltTypes[c.modelType]
	}
	prefix := func(missing bool) bool { return c.prefix == nil && missing || c.prefix != nil && *c.prefix }
	same := true
	switch b, _ := t.model.(*bpe); name {
	case "GPT2Tokenizer", "RobertaTokenizer":
		same = b.is(false) && len(t.normalizers) == 0 && t.splitsBy(byteLevelWords{prefix(false), true})
	case "Qwen2Tokenizer":
		same = b.is(false) && t.normalizesBy(form{norm.NFD, true}) && t.splitsBy(divide{published[qwenPattern], isolated, false}, byteLevelWords{prefix(false), false})
	case "GemmaTokenizer":
		same = b.is(true) && t.normalizesBy(replace{literal(" "), "\u2581"}) && t.splitsBy(divide{literal(" "), mergedWithPrevious, false})
	case "LlamaTokenizer":
		m := metaspace{char: "\u2581", mark: literal("\u2581"), before: "never", keepsSpaces: true}
		if prefix(true) {
			m.before = "first"
		}
		same = b.is(true) && len(t.normalizers) == 0 && t.splitsBy(m)
	case "XLMRobertaTokenizer":
		m := metaspace{char: "\u2581", mark: literal("\u2581"), before: "never"}
		if prefix(true) {
			m.before = "always"
		}
		words := divide{class(isSpace), removed, false}
		if n := len(t.normalizers); n > 1 && t.splitsBy(m) {
			for n > 1 && trimsSpaces(t.normalizers[n-1]) {
				n--
			}
			if n == 1 {
				t.normalizers, t.preTokenizers = t.normalizers[:1], []preTokenizer{words, m}
			}
		}
		same = t.splitsBy(words, m) && c.isXLM(t)
	default:
		for _, p := range t.preTokenizers {
			x, ok := p.(byteLevelWords)
			m, ok2 := p.(metaspace)
			same = same && (c.prefix == nil || ok && x.prefix == *c.prefix || ok2 && (m.before != "never") == *c.prefix || !ok && !ok2)
		}
	}
	if !same {
		r.Fail("", "model, normalizer or pre_tokenizer has other rules than tokenizer_config.json, whose tokenizer_class is %q", c.class)
	}
}

// is reports whether a model has the default settings, except for byte fallback.
func (b *bpe) is(bytes bool) bool {
	return b != nil && b.prefix == "" && b.suffix == "" && !b.whole && (b.bytes != nil) == bytes && b.fuse == bytes && (b.unk >= 0 || !bytes)
}

// isXLM reports whether the model and the normalizer are XLM-RoBERTa's.
func (c *config) isXLM(t *Tokenizer) bool {
	m, ok := t.model.(*unigram)
	for _, n := range t.normalizers {
		_, is := n.(*charsmap)
		ok = ok && is
	}
	return ok && m.unk == 3 && m.bytes == nil && len(t.normalizers) < 2
}

// trimsSpaces reports whether a normalizer only removes spaces, as in the files of multilingual-e5.
// These split words at spaces alone. transformers 5 uses the rules of its class instead, which also
// ignore spaces at the end of a text.
func trimsSpaces(n normalizer) bool {
	switch n := n.(type) {
	case replace:
		return n.pattern == pattern(spaceRuns{}) && (n.content == " " || n.content == "\u2581")
	case strip:
		return !n.left
	}
	return false
}

// normalizesBy reports whether t has one normalizer, n.
func (t *Tokenizer) normalizesBy(n normalizer) bool {
	return len(t.normalizers) == 1 && t.normalizers[0] == n
}

// splitsBy reports whether t has the preTokenizers.
func (t *Tokenizer) splitsBy(list ...preTokenizer) bool {
	if len(t.preTokenizers) != len(list) {
		return false
	}
	for i, p := range list {
		if !equal(t.preTokenizers[i], p) {
			return false
		}
	}
	return true
}

// equal reports whether two preTokenizers have the same rules.
func equal(a, b preTokenizer) bool {
	x, ok := a.(divide)
	y, ok2 := b.(divide)
	if !ok || !ok2 {
		return !ok && !ok2 && a == b
	}
	f, ok := x.pattern.(class)
	g, ok2 := y.pattern.(class)
	if ok && ok2 { // functions cannot be compared
		same := f(' ') == g(' ') && f('!') == g('!') && f('1') == g('1')
		return same && x.behavior == y.behavior && x.invert == y.invert
	}
	return !ok && !ok2 && x == y
}
