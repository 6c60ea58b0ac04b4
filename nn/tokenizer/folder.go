package tokenizer

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode"

	"github.com/flashkit-go/flashkit/internal/strict"
)

// maxFile is the most bytes of a file.
const maxFile = 1 << 28

// Open reads the tokenizer of a model's folder: tokenizer.json, or vocab.txt of a BERT model, and the
// settings of tokenizer_config.json, special_tokens_map.json and added_tokens.json. Errors have the
// file and the path of the key.
func Open(dir string) (*Tokenizer, error) {
	c := newConfig()
	if err := c.read(dir); err != nil {
		return nil, err
	}
	file, ok, err := readFile(dir, "tokenizer.json")
	if err != nil {
		return nil, err
	}
	r := &strict.File{Name: filepath.Join(dir, "tokenizer.json")}
	if err := c.readModelType(dir); err != nil {
		return nil, err
	}
	var t *Tokenizer
	if ok {
		t = parseFile(r, file, c)
	} else if file, ok, err = readFile(dir, "vocab.txt"); err != nil {
		return nil, err
	} else if ok {
		r.Name = filepath.Join(dir, "vocab.txt")
		t = parseVocabulary(r, file, c)
	} else {
		return nil, noVocabulary(dir)
	}
	if r.Err != nil {
		return nil, r.Err
	}
	return t, nil
}

// readFile returns a file of a folder. It returns false if the file does not exist.
func readFile(dir, name string) ([]byte, bool, error) {
	b, err := strict.Read(filepath.Join(dir, name), maxFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, false, nil
	}
	return b, err == nil, err
}

// config has the settings of the other files of a folder.
type config struct {
	file              string
	class             string
	modelType         string // of config.json
	lower, ideographs bool
	strip             *bool
	given             map[string]bool // keys of the file
	left              *bool           // truncation
	prefix            *bool           // add_prefix_space
	most              *float64
	special           map[string]addedToken // by key, such as cls_token
	extra             []addedToken          // additional special tokens
	added             []addedToken          // added_tokens_decoder or added_tokens.json
}

func newConfig() *config {
	return &config{lower: true, ideographs: true, given: map[string]bool{}, special: map[string]addedToken{}}
}

// specialKeys are the keys of special tokens.
var specialKeys = []string{"bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token"}

func (c *config) read(dir string) error {
	for _, file := range []struct {
		name string
		read func(f *fields)
	}{{"tokenizer_config.json", c.settings}, {"special_tokens_map.json", c.specialMap}, {"added_tokens.json", c.addedMap}} {
		o, found, err := strict.Open(filepath.Join(dir, file.name), maxFile)
		if err != nil {
			return err
		} else if !found {
			continue
		}
		file.read(&fields{o})
		if err := o.Done(); err != nil {
			return err
		}
	}
	return nil
}

// readModelType reads the keys model_type and tokenizer_class of config.json.
func (c *config) readModelType(dir string) error {
	b, ok, err := readFile(dir, "config.json")
	var x struct {
		Type  string `json:"model_type"`
		Class string `json:"tokenizer_class"`
	}
	if !ok || err != nil || json.Unmarshal(b, &x) != nil {
		return err // a reader of the model refuses a wrong file
	}
	c.modelType = x.Type
	if c.class == "" && x.Class != "" {
		c.class, c.file = x.Class, filepath.Join(dir, "config.json")
	}
	return nil
}

// settings reads tokenizer_config.json.
func (c *config) settings(f *fields) {
	c.file = f.Name
	for _, key := range f.Unread() {
		c.given[key] = true
	}
	if v, ok := f.take("tokenizer_class"); ok && f.into("tokenizer_class", v, &c.class, "a string") && !c.supported() {
		f.fail("tokenizer_class", "%.60q is not supported", c.class) // before its settings, which are unknown too
	}
	c.lower = f.flag("do_lower_case", true)
	c.ideographs = f.flag("tokenize_chinese_chars", true)
	if v, ok := f.take("strip_accents"); ok {
		f.into("strip_accents", v, &c.strip, "true or false")
	}
	if v, ok := f.take("model_max_length"); ok {
		f.into("model_max_length", v, &c.most, "a number")
	}
	if v, ok := f.take("truncation_side"); ok {
		left := f.oneOf("truncation_side", v, "right", "left") == "left"
		c.left = &left
	}
	if v, ok := f.take("add_prefix_space"); ok {
		f.into("add_prefix_space", v, &c.prefix, "true or false")
	}
	f.only("clean_text", "true")
	f.only("do_basic_tokenize", "true")
	f.only("never_split", "[]")
	f.only("wordpieces_prefix", `"##"`)
	f.only("split_special_tokens", "false")
	f.only("init_inputs", "[]")
	f.only("auto_map")
	if v, ok := f.take("added_tokens_decoder"); ok {
		x := f.inner("added_tokens_decoder", v)
		for _, key := range slices.Sorted(slices.Values(x.Unread())) {
			a := newAddedToken(x.object(key), false)
			if _, err := fmt.Sscan(key, &a.id); err != nil {
				x.fail(key, "must be an id")
			}
			c.added = append(c.added, a)
		}
	}
	c.tokens(f)
	f.Ignore(strings.Fields(`name_or_path special_tokens_map_file tokenizer_file full_tokenizer_file vocab_file merges_file
		clean_up_tokenization_spaces spaces_between_special_tokens use_fast processor_class is_local local_files_only backend model_input_names errors max_length stride
		padding padding_side truncation truncation_strategy pad_to_multiple_of pad_token_type_id chat_template trim_offsets
		add_bos_token add_eos_token model_specific_special_tokens response_template legacy sp_model_kwargs`)...)
}

// only fails if the value of a key is not null and not the given JSON.
func (f *fields) only(key string, want ...string) { f.Only(key, append(want, "null")...) }

// tokens reads the keys of special tokens.
func (c *config) tokens(f *fields) {
	for _, key := range specialKeys {
		if v, ok := f.take(key); ok {
			c.special[key] = f.specialToken(key, v)
		}
	}
	for _, key := range slices.Sorted(slices.Values(f.Unread())) {
		if v, _ := f.Raw(key); strings.HasSuffix(key, "_token") && v[0] == '"' { // of a model, such as image_token
			f.Ignore(key)
			c.extra = append(c.extra, f.specialToken(key, v))
		}
	}
	for _, key := range []string{"additional_special_tokens", "extra_special_tokens"} {
		v, ok := f.take(key)
		if !ok {
			continue
		}
		if v[0] == '{' { // names of tokens
			x := f.inner(key, v)
			for _, name := range slices.Sorted(slices.Values(x.Unread())) {
				v, _ := x.Value(name)
				c.extra = append(c.extra, x.specialToken(name, v))
			}
			continue
		}
		var list []json.RawMessage
		f.into(key, v, &list, "a list of tokens")
		for i, v := range list {
			c.extra = append(c.extra, f.specialToken(fmt.Sprintf("%s[%d]", key, i), v))
		}
	}
}

// specialToken returns a special token: a string, or an object with the key content.
func (f *fields) specialToken(key string, v json.RawMessage) addedToken {
	a := addedToken{extra: true}
	if len(v) > 0 && v[0] == '{' {
		x := f.inner(key, v)
		x.Ignore("__type")
		a = newAddedToken(x, false)
		a.extra = true
		x.Done()
		return a
	}
	f.into(key, v, &a.content, "a token")
	return a
}

func (c *config) specialMap(f *fields) {
	if c.given["added_tokens_decoder"] {
		f.Ignore(f.Unread()...)
		return
	}
	before := c.extra
	c.extra = nil
	if c.tokens(f); len(c.extra) == 0 {
		c.extra = before
	} else if (len(before) > 0 || c.given["additional_special_tokens"] || c.given["extra_special_tokens"]) && !slices.Equal(before, c.extra) {
		f.fail("additional_special_tokens", "contradicts tokenizer_config.json")
	}
}

// addedMap reads added_tokens.json, an object from tokens to ids.
func (c *config) addedMap(f *fields) {
	for _, token := range slices.Sorted(slices.Values(f.Unread())) {
		a := addedToken{content: token, id: f.whole(token), normal: true}
		if c.given["added_tokens_decoder"] {
			continue
		}
		for _, s := range append(slices.Collect(maps.Values(c.special)), c.extra...) {
			if s.content == token {
				a.normal, a.extra = false, true
			}
		}
		c.added = append(c.added, a)
	}
}

// parseVocabulary makes a tokenizer of a vocab.txt. Each line is a token, whose id is the number of the
// line, from 0. If a token is repeated, its last line counts. Empty lines have a number, but no
// token.
func parseVocabulary(r *strict.File, file []byte, c *config) *Tokenizer {
	k := c.rules(r, false)
	if r.Err != nil {
		return nil
	}
	loadClasses()
	ids := map[string]int32{}
	for n := int32(0); len(file) > 0; n++ {
		line, rest, _ := bytes.Cut(file, []byte("\n"))
		ids[strings.ToValidUTF8(strings.TrimRightFunc(string(line), unicode.IsSpace), "\uFFFD")], file = n, rest
	}
	t := &Tokenizer{added: map[string]int32{}, preTokenizers: []preTokenizer{bertPreTokenizer{}}, normalizers: []normalizer{c.normalizer()}}
	unk, _ := c.token(k, "unk_token")
	t.model = newWordPiece(objectOf(r, "", json.RawMessage("{}"), 0), ids, unk.content, "##", 100)
	if r.Err != nil {
		return nil
	}
	if k.setTemplates(r, c, t); r.Err == nil {
		c.finish(r, k, t, nil)
	}
	return t
}

// finish adds the tokens of tokenizer.json and of the settings.
func (c *config) finish(r *strict.File, k *pretrained, t *Tokenizer, tokens []addedToken) {
	index := map[string]int{}
	for i, a := range tokens {
		index[a.content] = i
	}
	add := func(a addedToken, replace bool) {
		i, ok := index[a.content]
		if !ok {
			index[a.content] = len(tokens)
			tokens = append(tokens, a)
		} else if replace {
			tokens[i] = a
		}
	}
	for _, a := range c.added {
		add(a, c.given["added_tokens_decoder"])
	}
	for _, key := range specialKeys {
		if a, ok := c.token(k, key); ok {
			a.id = -1
			add(a, false)
		}
	}
	for _, a := range c.extra {
		a.id = -1
		add(a, false)
	}
	t.add(r, tokens)
	if c.left != nil {
		t.left = *c.left
	}
	if c.most != nil {
		t.most = 0
		if *c.most >= 1 && *c.most < 1<<31-1 {
			t.most = int(*c.most)
		}
	}
}

// otherVocabularies are vocabularies in formats that are not read.
var otherVocabularies = []string{"sentencepiece.bpe.model", "spiece.model", "tokenizer.model", "vocab.json", "merges.txt"}

// noVocabulary returns the error for a folder without a vocabulary that is read.
func noVocabulary(dir string) error {
	for _, name := range otherVocabularies {
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			return fmt.Errorf("%s: not read: save tokenizer.json, as transformers does, beside it", filepath.Join(dir, name))
		}
	}
	return fmt.Errorf("%s: no tokenizer.json and no vocab.txt: %w", dir, fs.ErrNotExist)
}
