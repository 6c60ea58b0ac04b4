package tokenizer

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/strict"
)

const bertFile = `{"version":"1.0","truncation":{"direction":"Right","max_length":128,"strategy":"LongestFirst","stride":0},"padding":null,
"added_tokens":[{"id":0,"content":"[PAD]","single_word":false,"lstrip":false,"rstrip":false,"normalized":false,"special":true},
{"id":1,"content":"[UNK]","special":true},{"id":2,"content":"[CLS]","special":true},{"id":3,"content":"[SEP]","special":true},
{"id":4,"content":"[MASK]","special":true}],
"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true},
"pre_tokenizer":{"type":"BertPreTokenizer"},
"post_processor":{"type":"TemplateProcessing",
"single":[{"SpecialToken":{"id":"[CLS]","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"[SEP]","type_id":0}}],
"pair":[{"SpecialToken":{"id":"[CLS]","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"[SEP]","type_id":0}},
{"Sequence":{"id":"B","type_id":1}},{"SpecialToken":{"id":"[SEP]","type_id":1}}],
"special_tokens":{"[CLS]":{"id":"[CLS]","ids":[2],"tokens":["[CLS]"]},"[SEP]":{"id":"[SEP]","ids":[3],"tokens":["[SEP]"]}}},
"decoder":{"type":"WordPiece","prefix":"##","cleanup":true},
"model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,
"vocab":{"[PAD]":0,"[UNK]":1,"[CLS]":2,"[SEP]":3,"[MASK]":4,"a":5,"b":6,"##c":7}}}`

func TestParse(t *testing.T) {
	tok, err := Parse([]byte(bertFile))
	require.NoError(t, err)
	require.Equal(t, 8, tok.Len())
	require.Equal(t, 128, tok.MaxTokens())
	id, ok := tok.ID("##c")
	require.True(t, ok)
	require.Equal(t, int32(7), id)
	_, ok = tok.ID("c")
	require.False(t, ok)
	var e Encoding
	tok.EncodePair(&e, 0, "A[MASK]", "bc d")
	require.Equal(t, []int32{2, 5, 4, 3, 6, 7, 1, 3}, e.IDs)
	require.Equal(t, []int32{0, 0, 0, 0, 1, 1, 1, 1}, e.Types)
	tok.EncodePair(&e, 6, "A", "bc d")
	require.Equal(t, []int32{2, 5, 3, 6, 7, 3}, e.IDs)
	require.Equal(t, 7, e.Tokens)
}

func TestParseRefuses(t *testing.T) {
	for _, c := range []struct{ old, new, want string }{
		{`"type":"BertNormalizer"`, `"type":"Bert"`, `normalizer.type: "Bert" is not supported`},
		{`"clean_text":true`, `"clean_text":1`, `normalizer.clean_text: must be true or false, not 1`},
		{`"clean_text":true`, `"clean":true`, `normalizer.clean = true: the key is unknown, and may change results`},
		{`"type":"BertPreTokenizer"`, `"type":"Sequence","pretokenizers":[{"type":"Digits"},{"type":"X"}]`, `pre_tokenizer.pretokenizers[1].type: "X" is not supported`},
		{`"type":"BertPreTokenizer"`, `"type":"CharDelimiterSplit","delimiter":"ab"`, `pre_tokenizer.delimiter: must be a character, not "ab"`},
		{`"type":"WordPiece","unk`, `"type":"Word","unk`, `model.type: "Word" is not supported`},
		{`"unk_token":"[UNK]"`, `"unk_token":"<unk>"`, `model.unk_token: "<unk>" is not in the vocabulary of 8 tokens`},
		{`"##c":7`, `"##c":-7`, `model.vocab: token "##c" has the id -7`},
		{`"##c":7`, `"##c":7.5`, `model.vocab: must be an object of ids, not {"[PAD]":0,"[UNK]":1,"[CLS]":2,"[SEP]":3,"[MASK]":4,"a":5,"b...`},
		{`"id":4,"content"`, `"id":5,"content"`, `added_tokens[4].id: "[MASK]" gets the id 4, not 5`},
		{`"id":4,"content":"[MASK]"`, `"id":9,"content":"<mask>"`, `added_tokens[4].id: "<mask>" gets the id 8, not 9`},
		{`"special_tokens":{"[CLS]"`, `"special_tokens":{"CLS"`, `post_processor.single[0].SpecialToken.id: "[CLS]" is not in special_tokens`},
		{`"ids":[2]`, `"ids":[-2]`, `post_processor.special_tokens.[CLS].ids: is out of range: -2`},
		{`"direction":"Right"`, `"direction":"Up"`, `truncation.direction: "Up" is not supported`},
		{`"version":"1.0"`, `"versions":"1.0"`, `versions = "1.0": the key is unknown, and may change results`},
		{`"model":{`, `"model":[{`, `invalid character '}' after array element`},
	} {
		require.Contains(t, bertFile, c.old)
		_, err := Parse([]byte(strings.Replace(bertFile, c.old, c.new, 1)))
		require.ErrorContains(t, err, "tokenizer.json: "+c.want)
	}
	deep := strings.Repeat(`{"type":"Sequence","normalizers":[`, 500) + strings.Repeat("]}", 500)
	_, err := Parse([]byte(`{"model":{},"normalizer":` + deep + `}`))
	require.ErrorContains(t, err, "is nested deeper than 16")
}

// folder writes files to a folder, and returns its name.
func folder(t testing.TB, files map[string]string) string {
	dir := t.TempDir()
	for name, content := range files {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), []byte(content), 0o666))
	}
	return dir
}

func TestOpen(t *testing.T) {
	const cased = `{"do_lower_case":false,"model_max_length":32,"tokenizer_class":"BertTokenizer"}`
	casedFile := strings.Replace(bertFile, `"lowercase":true`, `"lowercase":false`, 1)
	lines := specialLines + "a\nb\n##c\n"
	for i, c := range []struct {
		files map[string]string
		want  string // ids of "A ac a<x>", and MaxTokens
	}{
		{map[string]string{"tokenizer.json": bertFile}, "[2 5 5 7 5 1 1 1 3] 128"},
		{map[string]string{"vocab.txt": lines}, "[2 5 5 7 5 1 1 1 3] 0"},
		{map[string]string{"vocab.txt": lines, "tokenizer_config.json": cased}, "[2 1 5 7 5 1 1 1 3] 32"},
		{map[string]string{"tokenizer.json": casedFile, "tokenizer_config.json": cased}, "[2 1 5 7 5 1 1 1 3] 32"},
		{map[string]string{"tokenizer.json": bertFile, "tokenizer_config.json": cased}, "[2 1 5 7 5 1 1 1 3] 32"}, // the class ignores the file's normalizer
		{map[string]string{"tokenizer.json": casedFile, "config.json": `{"model_type":"bert"}`}, "[2 5 5 7 5 1 1 1 3] 128"},
		{map[string]string{"tokenizer.json": casedFile, "tokenizer_config.json": `{"tokenizer_class":"PreTrainedTokenizerFast"}`, "config.json": `{"model_type":"bert"}`}, "[2 1 5 7 5 1 1 1 3] 128"},
		{map[string]string{"tokenizer.json": bertFile, "tokenizer_config.json": `{"extra_special_tokens":{"x_token":"<x>"},"truncation_side":"left"}`}, "[2 5 5 7 5 8 3] 128"},
		{map[string]string{"vocab.txt": lines + "<s>\n</s>\n<pad>\n<mask>\n", "config.json": `{"model_type":"mpnet"}`}, "[8 5 5 7 5 1 1 1 9] 0"},
		{map[string]string{"vocab.txt": lines, "added_tokens.json": `{"<x>":8}`}, "[2 5 5 7 5 8 3] 0"},
		{map[string]string{"vocab.txt": lines, "special_tokens_map.json": `{"additional_special_tokens":["<x>"]}`}, "[2 5 5 7 5 8 3] 0"},
		{map[string]string{"vocab.txt": lines, "tokenizer_config.json": `{"model_max_length":1e30,"added_tokens_decoder":{"8":{"content":"<x>","special":true}}}`}, "[2 5 5 7 5 8 3] 0"},
	} {
		tok, err := Open(folder(t, c.files))
		require.NoError(t, err, i)
		require.Equal(t, c.want, fmt.Sprint(encode(tok, "A ac a<x>", 0), tok.MaxTokens()), i)
	}
}

func TestOpenRefuses(t *testing.T) {
	for _, c := range []struct {
		files map[string]string
		want  string
	}{
		{map[string]string{}, "no tokenizer.json and no vocab.txt: file does not exist"},
		{map[string]string{"tokenizer.json": "version https://git-lfs.github.com/spec/v1\n"}, "tokenizer.json: the file is a pointer of Git LFS"},
		{map[string]string{"tokenizer.json": bertFile, "tokenizer_config.json": `{"tokenizer_class":"BertJapaneseTokenizer"}`}, `tokenizer_config.json: tokenizer_class: "BertJapaneseTokenizer" is not supported`},
		{map[string]string{"vocab.txt": specialLines, "tokenizer_config.json": `{"tokenizer_class":"TokenizersBackend"}`}, `tokenizer_config.json: tokenizer_class: "TokenizersBackend" needs tokenizer.json, which is missing`},
		{map[string]string{"tokenizer.json": strings.Replace(bertFile, `"clean_text":true`, `"clean_text":false`, 1), "config.json": `{"model_type":"bert"}`}, `tokenizer.json: normalizer: must be BertNormalizer with clean_text`},
		{map[string]string{"tokenizer.json": bertFile, "tokenizer_config.json": `{"tokenizer_class":"MPNetTokenizer","cls_token":"[CLS]","sep_token":"[SEP]"}`}, `tokenizer.json: post_processor: has another template than the class of tokenizer_config.json`},
		{map[string]string{"tokenizer.json": strings.Replace(bertFile, `"id":4,"content":"[MASK]"`, `"id":5,"content":"a"`, 1), "tokenizer_config.json": `{"tokenizer_class":"BertTokenizer","added_tokens_decoder":{}}`}, `tokenizer.json: added_tokens: "a" is not in added_tokens_decoder of tokenizer_config.json`},
		{map[string]string{"tokenizer.json": bertFile, "tokenizer_config.json": `{"model_max_length":"x"}`}, `tokenizer_config.json: model_max_length: must be a number, not "x"`},
		{map[string]string{"tokenizer.json": bertFile, "tokenizer_config.json": `{`}, `tokenizer_config.json: unexpected end of JSON input`},
		{map[string]string{"tokenizer.json": bertFile, "tokenizer_config.json": `{"tokenizer_class":"MyTokenizer","auto_map":{"AutoTokenizer":["my.MyTokenizer",null]}}`}, `tokenizer_config.json: tokenizer_class: "MyTokenizer" is not supported`},
		{map[string]string{"tokenizer.json": bertFile, "tokenizer_config.json": `{"word_tokenizer_type":"mecab"}`}, `tokenizer_config.json: word_tokenizer_type = "mecab": the key is unknown`},
		{map[string]string{"vocab.txt": specialLines, "added_tokens.json": `{"<x>":7}`}, `vocab.txt: added tokens: "<x>" gets the id 5, not 7`},
	} {
		_, err := Open(folder(t, c.files))
		require.ErrorContains(t, err, c.want)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(bertFile), "a [MASK] b")
	f.Add([]byte(strings.Replace(bertFile, "BertPreTokenizer", "Whitespace", 1)), "\u0301e\uAC00")
	f.Fuzz(func(t *testing.T, file []byte, text string) {
		tok, err := Parse(file)
		if err != nil {
			return
		}
		var e Encoding
		tok.EncodePair(&e, 0, text, "b")
		tok.Encode(&e, 0, text)
		for _, id := range e.IDs {
			require.True(t, id >= 0 && int(id) < tok.Len(), "id %d", id)
		}
	})
}

func FuzzSettings(f *testing.F) {
	f.Add([]byte(`{"do_lower_case":false,"model_max_length":1e30,"mask_token":{"content":"[MASK]","lstrip":true}}`), []byte(`{"cls_token":"a"}`), []byte(`{"<x>":8}`))
	f.Add([]byte(`{"tokenizer_class":"MPNetTokenizer","added_tokens_decoder":{"7":{"content":"b"}}}`), []byte(`{"additional_special_tokens":["a","<y>"]}`), []byte(`{}`))
	f.Add([]byte(`{}`), []byte(`{"extra_special_tokens":}`), []byte(`{}`)) // no JSON
	f.Fuzz(func(t *testing.T, settings, special, added []byte) {
		c := newConfig()
		for i, read := range []func(*fields){c.settings, c.specialMap, c.addedMap} {
			r := &strict.File{Name: "x.json"}
			if read(objectOf(r, "", [][]byte{settings, special, added}[i], 0)); r.Err != nil {
				return
			}
		}
		for _, fast := range []bool{true, false} {
			r, copied := &strict.File{Name: "tokenizer.json"}, *c
			var tok *Tokenizer
			if fast {
				tok = parseFile(r, []byte(bertFile), &copied)
			} else {
				tok = parseVocabulary(r, []byte(specialLines+"a\nb\n<s>\n</s>\n"), &copied)
			}
			if r.Err != nil {
				continue
			}
			for _, id := range encode(tok, "a <x>b [MASK]", 0) {
				require.True(t, id >= 0 && int(id) < tok.Len(), "id %d", id)
			}
		}
	})
}
