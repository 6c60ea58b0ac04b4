package tokenizer

import (
	"unicode/utf8"

	"golang.org/x/text/unicode/norm"
)

// newNormalizers appends a normalizer, or the normalizers of a sequence, to list.
func newNormalizers(f *fields, list []normalizer) []normalizer {
	switch kind := f.text("type"); kind {
	case "Sequence":
		f.objects("normalizers", func(f *fields) { list = newNormalizers(f, list) })
		return list
	case "BertNormalizer":
		n := bertNormalizer{clean: f.flag("clean_text", true), ideographs: f.flag("handle_chinese_chars", true), lower: f.flag("lowercase", true)}
		n.strip = f.flag("strip_accents", n.lower)
		return append(list, n)
	case "NFC":
		return append(list, form{norm.NFD, true})
	case "NFD":
		return append(list, form{norm.NFD, false})
	case "NFKC":
		return append(list, form{norm.NFKD, true})
	case "NFKD":
		return append(list, form{norm.NFKD, false})
	case "Lowercase":
		return append(list, lowercase{})
	case "StripAccents":
		return append(list, stripAccents{})
	case "Strip":
		return append(list, strip{f.flag("strip_left", true), f.flag("strip_right", true)})
	case "Replace":
		return append(list, replace{f.pattern("pattern"), f.text("content")})
	case "Prepend":
		return append(list, prepend(f.text("prepend")))
	case "Nmt":
		return append(list, nmt{})
	case "ByteLevel":
		return append(list, byteLevel{})
	case "Precompiled":
		return append(list, newCharsmap(f))
	default:
		f.unsupported(kind)
	}
	return list
}

// pattern returns a pattern: a text.
func (f *fields) pattern(key string) pattern {
	p := f.object(key)
	if p.given("Regex") {
		text := p.text("Regex")
		p.Done()
		x, err := newRegex(text)
		if err != nil {
			p.fail("Regex", "%.200q is not supported: %v", text, err)
		}
		return x
	}
	text := p.text("String")
	p.Done()
	if text == "" {
		p.fail("String", "is empty")
	}
	return literal(text)
}

// newPreTokenizers appends a preTokenizer, or the preTokenizers of a sequence, to list.
func newPreTokenizers(f *fields, list []preTokenizer) []preTokenizer {
	switch kind := f.text("type"); kind {
	case "Sequence":
		f.objects("pretokenizers", func(f *fields) { list = newPreTokenizers(f, list) })
		return list
	case "BertPreTokenizer":
		return append(list, bertPreTokenizer{})
	case "Whitespace":
		return append(list, divide{wordRuns{}, removed, true})
	case "WhitespaceSplit":
		return append(list, divide{class(isSpace), removed, false})
	case "Punctuation":
		return append(list, divide{class(isPunct), f.behavior("behavior", isolated), false})
	case "Digits":
		b := contiguous
		if f.flag("individual_digits", false) {
			b = isolated
		}
		return append(list, divide{class(isNumeric), b, false})
	case "CharDelimiterSplit":
		d := f.text("delimiter")
		r, n := utf8.DecodeRuneInString(d)
		if n != len(d) || n == 0 {
			f.fail("delimiter", "must be a character, not %.60q", d)
		}
		return append(list, divide{literal(string(r)), removed, false})
	case "Metaspace":
		return append(list, newMetaspace(f))
	case "ByteLevel":
		return append(list, newByteLevelWords(f))
	case "Split":
		if !f.given("behavior") {
			f.fail("behavior", "is missing")
		}
		return append(list, divide{f.pattern("pattern"), f.behavior("behavior", isolated), f.flag("invert", false)})
	default:
		f.unsupported(kind)
	}
	return list
}

// behavior returns a behavior, or missing if the key is missing.
func (f *fields) behavior(key string, missing behavior) behavior {
	if v, ok := f.take(key); ok {
		list := []string{string(removed), string(isolated), string(mergedWithPrevious), string(mergedWithNext), string(contiguous)}
		return behavior(f.oneOf(key, v, list...))
	}
	return missing
}

// newModel returns a model. Old files have no type; the keys then tell the models apart.
func newModel(f *fields) model {
	kind := ""
	if v, ok := f.take("type"); ok {
		f.into("type", v, &kind, "a string")
	} else if f.given("merges") {
		kind = "BPE"
	} else if f.given("max_input_chars_per_word") {
		kind = "WordPiece"
	}
	switch kind {
	case "WordPiece":
		return newWordPieceModel(f)
	case "BPE":
		return newBPE(f)
	case "Unigram":
		return newUnigram(f)
	default:
		f.unsupported(kind)
	}
	return nil
}
