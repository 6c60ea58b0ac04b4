package main

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/flashkit-go/flashkit/nn/tokenizer"
)

// A tokenizerFolder has the tokenizer's settings from all files of a folder.
type tokenizerFolder struct {
	dir       string
	class     string
	lowercase *bool            // of tokenizer_config.json
	strip     *bool            // of tokenizer_config.json
	most      *float64         // maximum tokens of a text, of tokenizer_config.json; 1e30 means no limit
	fast      bool             // tokenizer.json exists
	vocab     map[string]int32 // of tokenizer.json
	fastLower bool             // of tokenizer.json
	fastStrip *bool            // of tokenizer.json
	added     []addedToken     // of all files
	lower     bool             // the tokenizer lowercases letters and strips accents
	source    string           // name of the file with the vocabulary
}

// An addedToken is a token that the tokenizer finds in a text before it splits the text into words.
type addedToken struct {
	id      int32
	content string
	source  string // file and key, for errors
}

// specials are BERT's special tokens, by their keys in the settings.
var specials = map[string]string{
	"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]",
}

// openTokenizer reads the settings, and the vocabulary from vocab.txt or tokenizer.json. It returns
// an error if the settings are not BERT's.
func openTokenizer(dir string) (*tokenizer.Tokenizer, *tokenizerFolder, error) {
	f := &tokenizerFolder{dir: dir}
	_, err := read(dir, "tokenizer_config.json", object(f.configRules()))
	if err == nil {
		_, err = read(dir, "special_tokens_map.json", object(tokenRules()))
	}
	if err == nil {
		_, err = read(dir, "added_tokens.json", f.addedTokens)
	}
	if err == nil {
		f.fast, err = read(dir, "tokenizer.json", object(f.fastRules(), "normalizer", "pre_tokenizer", "post_processor", "model"))
	}
	if err != nil {
		return nil, nil, err
	}
	if f.lower, err = f.letters(); err != nil {
		return nil, nil, err
	}
	vocab, err := f.open()
	if err != nil {
		return nil, nil, err
	}
	if err := f.checkAdded(vocab); err != nil {
		return nil, nil, err
	}
	t, err := tokenizer.Open(dir)
	return t, f, err
}

// letters reports whether the tokenizer lowercases letters and strips accents. BERT's
// models do both or neither, so the settings must agree.
func (f *tokenizerFolder) letters() (lowercase bool, err error) {
	config := filepath.Join(f.dir, "tokenizer_config.json")
	generic := f.class == "PreTrainedTokenizerFast" || f.class == "TokenizersBackend"
	switch lowercase = true; {
	case generic && !f.fast:
		return false, fmt.Errorf("%s: tokenizer_class = %.60q: tokenizer.json is missing", config, f.class)
	case f.lowercase != nil:
		lowercase = *f.lowercase
	case generic:
		lowercase = f.fastLower
	}
	switch {
	case f.fast && f.fastLower != lowercase:
		return false, fmt.Errorf("%s: normalizer.lowercase = %v: must be do_lower_case of tokenizer_config.json, %v", filepath.Join(f.dir, "tokenizer.json"), f.fastLower, lowercase)
	case f.strip != nil && *f.strip != lowercase:
		return false, fmt.Errorf("%s: strip_accents = %v: must be null, or do_lower_case, %v", config, *f.strip, lowercase)
	case f.fastStrip != nil && *f.fastStrip != lowercase:
		return false, fmt.Errorf("%s: normalizer.strip_accents = %v: must be null, or lowercase, %v", filepath.Join(f.dir, "tokenizer.json"), *f.fastStrip, lowercase)
	}
	return lowercase, nil
}

// checkAdded returns an error if an added token is not a special token, or has another id than in
// the vocabulary.
func (f *tokenizerFolder) checkAdded(vocab map[string]int32) error {
	slices.SortFunc(f.added, func(a, b addedToken) int {
		return cmp.Or(cmp.Compare(a.id, b.id), cmp.Compare(a.content, b.content), cmp.Compare(a.source, b.source))
	})
	for _, a := range f.added {
		known := false
		for _, s := range specials {
			known = known || s == a.content
		}
		if id, ok := vocab[a.content]; !ok || id != a.id {
			return fmt.Errorf("%s: token %.60q has the id %d, and another or none in the vocabulary", filepath.Join(f.dir, a.source), a.content, a.id)
		} else if !known {
			return fmt.Errorf("%s: token %.60q, %d: added tokens are not supported", filepath.Join(f.dir, a.source), a.content, a.id)
		}
	}
	return nil
}

// open returns the vocabulary. If both vocab.txt and tokenizer.json have a vocabulary, the two
// vocabularies must be equal.
func (f *tokenizerFolder) open() (map[string]int32, error) {
	f.source = "vocab.txt"
	name := filepath.Join(f.dir, f.source)
	text, err := os.ReadFile(name)
	if f.fast && errors.Is(err, fs.ErrNotExist) {
		f.source = "tokenizer.json"
		return f.vocab, nil
	}
	if err != nil {
		return nil, err
	}
	vocab := map[string]int32{}
	for i, line := range strings.Split(string(text), "\n") {
		if token := strings.TrimRightFunc(line, unicode.IsSpace); token != "" {
			vocab[token] = int32(i)
		}
	}
	if f.fast {
		if token := difference(vocab, f.vocab); token != "" {
			return nil, fmt.Errorf("%s: token %.60q has another id, or none, in tokenizer.json", name, token)
		}
	}
	return vocab, nil
}

// difference returns the first token whose id differs between two vocabularies, or "". It ignores
// tokens that end in white space, because no word contains white space.
func difference(a, b map[string]int32) string {
	var apart []string
	for i, x := range []map[string]int32{a, b} {
		for token, id := range x {
			other, ok := []map[string]int32{b, a}[i][token]
			if token == strings.TrimRightFunc(token, unicode.IsSpace) && token != "" && (!ok || other != id) {
				apart = append(apart, token)
			}
		}
	}
	if len(apart) == 0 {
		return ""
	}
	return slices.Min(apart)
}

func (f *tokenizerFolder) configRules() rules {
	class := func(value json.RawMessage) error {
		err := only(`"BertTokenizer"`, `"BertTokenizerFast"`, `"PreTrainedTokenizerFast"`, `"TokenizersBackend"`, `null`)(value)
		if err == nil {
			err = json.Unmarshal(value, &f.class)
		}
		return err
	}
	r := rules{
		"tokenizer_class": class, "do_lower_case": both(only("true", "false"), into(&f.lowercase)), "strip_accents": into(&f.strip), "model_max_length": into(&f.most),
		"tokenize_chinese_chars": only("true"), "clean_text": only("true"), "do_basic_tokenize": only("true"), "never_split": only("null", "[]"),
		"wordpieces_prefix": only(`"##"`), "truncation_side": only(`"right"`), "padding_side": only(`"right"`),
		"split_special_tokens": only("false", "null"), "auto_map": only("null"), "chat_template": only("null"), "init_inputs": only("[]"),
		"added_tokens_decoder": f.decoderTokens,
	}
	for key, take := range tokenRules() {
		r[key] = take
	}
	return r.harmlessKeys(`name_or_path special_tokens_map_file tokenizer_file full_tokenizer_file vocab_file clean_up_tokenization_spaces use_fast
		processor_class is_local local_files_only backend model_input_names errors max_length stride padding truncation truncation_strategy
		pad_to_multiple_of pad_token_type_id`)
}

// tokenRules returns the rules for special tokens in tokenizer_config.json and
// special_tokens_map.json.
func tokenRules() rules {
	none := only("[]", "{}", "null")
	r := rules{"additional_special_tokens": none, "extra_special_tokens": none, "bos_token": only("null", `"[CLS]"`), "eos_token": only("null", `"[SEP]"`)}
	for key, want := range specials {
		r[key] = token(only(fmt.Sprintf("%q", want)))
	}
	return r
}

// token returns a rule for a special token. The token is a string, or an object that has the string
// under the key content. The rule content checks the string.
func token(content rule) rule {
	return func(value json.RawMessage) error {
		if len(value) == 0 || value[0] != '{' {
			return content(value)
		}
		return object(tokenKeys(content).harmlessKeys("__type special"))(value)
	}
}

// tokenKeys returns the rules for an added token's object. The rules require that the token matches
// the text before normalization, also within words.
func tokenKeys(content rule) rules {
	return rules{"content": content, "normalized": only("false"), "lstrip": only("false"), "rstrip": only("false"), "single_word": only("false")}
}

// addedTokens reads added_tokens.json, a map from tokens to ids.
func (f *tokenizerFolder) addedTokens(value json.RawMessage) error {
	var ids map[string]int32
	if json.Unmarshal(value, &ids) != nil {
		return errors.New("must be an object of ids")
	}
	for token, id := range ids {
		f.added = append(f.added, addedToken{id, token, "added_tokens.json"})
	}
	return nil
}

// decoderTokens reads added_tokens_decoder of tokenizer_config.json, a map from ids to tokens.
func (f *tokenizerFolder) decoderTokens(value json.RawMessage) error {
	var tokens map[int32]json.RawMessage
	if json.Unmarshal(value, &tokens) != nil {
		return errors.New("must be an object from ids to tokens")
	}
	for _, id := range slices.Sorted(maps.Keys(tokens)) {
		x, a := tokens[id], addedToken{id: id, source: "tokenizer_config.json: added_tokens_decoder"}
		if err := object(tokenKeys(into(&a.content)).harmlessKeys("special"))(x); err != nil {
			return within(fmt.Sprint(id), x, err)
		}
		f.added = append(f.added, a)
	}
	return nil
}

func (f *tokenizerFolder) fastRules() rules {
	const sequence = `[{"SpecialToken":{"id":"[CLS]","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"[SEP]","type_id":0}}]`
	bert := func(value json.RawMessage) error { // ["[SEP]", 102]
		a := addedToken{source: "tokenizer.json: post_processor"}
		var pair []json.RawMessage
		if json.Unmarshal(value, &pair) != nil || len(pair) != 2 || json.Unmarshal(pair[0], &a.content) != nil || json.Unmarshal(pair[1], &a.id) != nil {
			return errors.New("must be a token and its id")
		}
		f.added = append(f.added, a)
		return nil
	}
	return rules{
		"added_tokens": list(f.fastToken),
		"normalizer": object(rules{
			"type": only(`"BertNormalizer"`), "clean_text": only("true"), "handle_chinese_chars": only("true"),
			"strip_accents": into(&f.fastStrip), "lowercase": into(&f.fastLower),
		}, "type", "clean_text", "handle_chinese_chars", "lowercase"),
		"pre_tokenizer": object(rules{"type": only(`"BertPreTokenizer"`)}, "type"),
		"post_processor": object(rules{
			"type": only(`"TemplateProcessing"`, `"BertProcessing"`), "single": only(sequence), "special_tokens": f.templateTokens, "sep": bert, "cls": bert,
		}.harmlessKeys("pair"), "type"),
		"model": object(rules{
			"type": only(`"WordPiece"`), "unk_token": only(`"[UNK]"`), "continuing_subword_prefix": only(`"##"`),
			"max_input_chars_per_word": only("100"), "vocab": into(&f.vocab),
		}, "vocab"),
	}.harmlessKeys("version truncation padding decoder")
}

// fastToken reads one element of added_tokens in tokenizer.json.
func (f *tokenizerFolder) fastToken(value json.RawMessage) error {
	a := addedToken{source: "tokenizer.json: added_tokens"}
	r := tokenKeys(into(&a.content)).harmlessKeys("special")
	r["id"] = into(&a.id)
	err := object(r, "id", "content")(value)
	f.added = append(f.added, a)
	return err
}

// templateTokens reads special_tokens of the post_processor in tokenizer.json.
func (f *tokenizerFolder) templateTokens(value json.RawMessage) error {
	var tokens map[string]struct{ IDs []int32 }
	if json.Unmarshal(value, &tokens) != nil {
		return errors.New("must be an object of tokens with their ids")
	}
	for content, x := range tokens {
		if len(x.IDs) != 1 {
			return fmt.Errorf("%.60q must have one id", content)
		}
		f.added = append(f.added, addedToken{x.IDs[0], content, "tokenizer.json: post_processor"})
	}
	return nil
}

// limit returns the maximum tokens of a text: the model's positions, or model_max_length if that is
// smaller.
func (f *tokenizerFolder) limit(positions int) (int, error) {
	if f.most == nil || *f.most >= float64(positions) {
		return positions, nil
	}
	if *f.most < 2 || *f.most != math.Trunc(*f.most) {
		return 0, fmt.Errorf("%s: model_max_length = %v: must be a whole number from 2", filepath.Join(f.dir, "tokenizer_config.json"), *f.most)
	}
	return int(*f.most), nil
}
