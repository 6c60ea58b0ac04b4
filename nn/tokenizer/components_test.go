package tokenizer

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/strict"
)

const componentText = " \u2167\u00e9 \ufb01x\u0301 \u0130\uc758 A-b--c!? 12\u00bd \t\u7684_z\u200b``q'' "

// The results of Hugging Face's tokenizers.
func TestNormalizers(t *testing.T) {
	loadClasses()
	for _, c := range []struct{ spec, want string }{
		{`{"type": "NFC"}`, " \u2167\u00e9 \ufb01x\u0301 \u0130\uc758 A-b--c!? 12\u00bd \t\u7684_z\u200b``q'' "},
		{`{"type": "NFD"}`, " \u2167e\u0301 \ufb01x\u0301 I\u0307\u110b\u1174 A-b--c!? 12\u00bd \t\u7684_z\u200b``q'' "},
		{`{"type": "NFKC"}`, " VIII\u00e9 fix\u0301 \u0130\uc758 A-b--c!? 121\u20442 \t\u7684_z\u200b``q'' "},
		{`{"type": "NFKD"}`, " VIIIe\u0301 fix\u0301 I\u0307\u110b\u1174 A-b--c!? 121\u20442 \t\u7684_z\u200b``q'' "},
		{`{"type": "Lowercase"}`, " \u2177\u00e9 \ufb01x\u0301 i\u0307\uc758 a-b--c!? 12\u00bd \t\u7684_z\u200b``q'' "},
		{`{"type": "StripAccents"}`, " \u2167\u00e9 \ufb01x \u0130\uc758 A-b--c!? 12\u00bd \t\u7684_z\u200b``q'' "},
		{`{"type": "Nmt"}`, " \u2167\u00e9 \ufb01x\u0301 \u0130\uc758 A-b--c!? 12\u00bd  \u7684_z ``q'' "},
		{`{"type": "Strip", "strip_left": true, "strip_right": true}`, "\u2167\u00e9 \ufb01x\u0301 \u0130\uc758 A-b--c!? 12\u00bd \t\u7684_z\u200b``q''"},
		{`{"type": "Strip", "strip_left": false, "strip_right": true}`, " \u2167\u00e9 \ufb01x\u0301 \u0130\uc758 A-b--c!? 12\u00bd \t\u7684_z\u200b``q''"},
		{`{"type": "Replace", "pattern": {"String": "\u0060\u0060"}, "content": "\""}`, " \u2167\u00e9 \ufb01x\u0301 \u0130\uc758 A-b--c!? 12\u00bd \t\u7684_z\u200b\"q'' "},
		{`{"type": "Prepend", "prepend": "_"}`, "_ \u2167\u00e9 \ufb01x\u0301 \u0130\uc758 A-b--c!? 12\u00bd \t\u7684_z\u200b``q'' "},
		{`{"type": "ByteLevel"}`, "\u0120\u00e2\u0127\u00a7\u00c3\u00a9\u0120\u00ef\u00ac\u0123x\u00cc\u0123\u0120\u00c4\u00b0\u00ec\u013f\u013a\u0120A-b--c!?\u012012\u00c2\u00bd\u0120\u0109\u00e7\u013c\u0126_z\u00e2\u0122\u012d``q''\u0120"},
		{`{"type": "BertNormalizer", "clean_text": true, "handle_chinese_chars": true, "strip_accents": null, "lowercase": true}`, " \u2177e \ufb01x i\u110b\u1174 a-b--c!? 12\u00bd   \u7684 _z``q'' "},
		{`{"type": "BertNormalizer", "clean_text": false, "handle_chinese_chars": false, "strip_accents": false, "lowercase": true}`, " \u2177\u00e9 \ufb01x\u0301 i\u0307\uc758 a-b--c!? 12\u00bd \t\u7684_z\u200b``q'' "},
		{`{"type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "Lowercase"}, {"type": "StripAccents"}]}`, " \u2177e \ufb01x i\u110b\u1174 a-b--c!? 12\u00bd \t\u7684_z\u200b``q'' "},
	} {
		r := &strict.File{Name: "x"}
		tok := &Tokenizer{normalizers: newNormalizers(objectOf(r, "", json.RawMessage(c.spec), 0), nil)}
		require.NoError(t, r.Err)
		require.Equal(t, c.want, tok.normalized(&scratch{}, componentText), c.spec)
	}
}

// The results of Hugging Face's tokenizers: words, separated by |.
func TestPreTokenizers(t *testing.T) {
	loadClasses()
	for _, c := range []struct{ spec, want string }{
		{`{"type": "BertPreTokenizer"}`, "\u2167\u00e9|\ufb01x\u0301|\u0130\uc758|A|-|b|-|-|c|!|?|12\u00bd|\u7684|_|z\u200b|`|`|q|'|'"},
		{`{"type": "Whitespace"}`, "\u2167\u00e9|\ufb01x\u0301|\u0130\uc758|A|-|b|--|c|!?|12|\u00bd|\u7684_z|\u200b``|q|''"},
		{`{"type": "WhitespaceSplit"}`, "\u2167\u00e9|\ufb01x\u0301|\u0130\uc758|A-b--c!?|12\u00bd|\u7684_z\u200b``q''"},
		{`{"type": "Punctuation", "behavior": "Removed"}`, " \u2167\u00e9 \ufb01x\u0301 \u0130\uc758 A|b|c| 12\u00bd \t\u7684|z\u200b|q| "},
		{`{"type": "Punctuation", "behavior": "Isolated"}`, " \u2167\u00e9 \ufb01x\u0301 \u0130\uc758 A|-|b|-|-|c|!|?| 12\u00bd \t\u7684|_|z\u200b|`|`|q|'|'| "},
		{`{"type": "Punctuation", "behavior": "MergedWithPrevious"}`, " \u2167\u00e9 \ufb01x\u0301 \u0130\uc758 A-|b-|-|c!|?| 12\u00bd \t\u7684_|z\u200b`|`|q'|'| "},
		{`{"type": "Punctuation", "behavior": "MergedWithNext"}`, " \u2167\u00e9 \ufb01x\u0301 \u0130\uc758 A|-b|-|-c|!|? 12\u00bd \t\u7684|_z\u200b|`|`q|'|' "},
		{`{"type": "Punctuation", "behavior": "Contiguous"}`, " \u2167\u00e9 \ufb01x\u0301 \u0130\uc758 A|-|b|--|c|!?| 12\u00bd \t\u7684|_|z\u200b|``|q|''| "},
		{`{"type": "Digits", "individual_digits": true}`, " |\u2167|\u00e9 \ufb01x\u0301 \u0130\uc758 A-b--c!? |1|2|\u00bd| \t\u7684_z\u200b``q'' "},
		{`{"type": "Digits", "individual_digits": false}`, " |\u2167|\u00e9 \ufb01x\u0301 \u0130\uc758 A-b--c!? |12\u00bd| \t\u7684_z\u200b``q'' "},
		{`{"type": "CharDelimiterSplit", "delimiter": "-"}`, " \u2167\u00e9 \ufb01x\u0301 \u0130\uc758 A|b|c!? 12\u00bd \t\u7684_z\u200b``q'' "},
		{`{"type": "Sequence", "pretokenizers": [{"type": "WhitespaceSplit"}, {"type": "Punctuation", "behavior": "Isolated"}]}`, "\u2167\u00e9|\ufb01x\u0301|\u0130\uc758|A|-|b|-|-|c|!|?|12\u00bd|\u7684|_|z\u200b|`|`|q|'|'"},
	} {
		r := &strict.File{Name: "x"}
		list := newPreTokenizers(objectOf(r, "", json.RawMessage(c.spec), 0), nil)
		require.NoError(t, r.Err)
		w := words{text: []byte(componentText), list: []word{{0, len(componentText)}}}
		for _, p := range list {
			p.split(&w)
		}
		var got []string
		for _, x := range w.list {
			got = append(got, string(w.text[x.from:x.to]))
		}
		require.Equal(t, c.want, strings.Join(got, "|"), c.spec)
	}
}

// Letters and numbers of Unicode 16 are letters and numbers for the reference: 's is a word after
// them, but not after a symbol.
func TestNewerCharacters(t *testing.T) {
	loadClasses()
	r := &strict.File{Name: "x"}
	list := newPreTokenizers(objectOf(r, "", json.RawMessage(`{"type":"ByteLevel","add_prefix_space":false}`), 0), nil)
	require.NoError(t, r.Err)
	for text, want := range map[string]int{"\U00013864'splay": 3, "\U000116D0's": 2, "\u1C89's": 2, "\U000E0001'splay": 2} {
		w := words{text: []byte(text), list: []word{{0, len(text)}}}
		list[0].split(&w)
		require.Len(t, w.list, want, "%+q", text)
	}
}
