package encoder

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/foreign"
)

// A config reads the keys of a JSON object, such as config.json. Its methods return the value of a
// key, or a default for a missing key, and mark the key as read. Errors are sticky. After all keys
// are read, done returns the first error, or an error for a key that was not read.
type config struct {
	file   string // path for errors
	prefix string // path of a nested object, with a dot at the end
	keys   map[string]json.RawMessage
	order  []string // names of the keys as in the file
	read   map[string]bool
	inner  []*config // nested objects
	shared *error    // the first error of this object and its nested objects

	elements int // most weights that the model's files may have
}

// maxSettings is the maximum size in bytes of a JSON file other than a tokenizer's.
const maxSettings = 64 << 20

// openConfig reads the JSON object of dir/name. If the file does not exist, openConfig returns an
// object without keys, and false.
func openConfig(dir, name string) (*config, bool, error) {
	path := filepath.Join(dir, name)
	text, err := readFile(path, maxSettings)
	if errors.Is(err, fs.ErrNotExist) {
		return newConfig(path), false, nil
	}
	if err != nil {
		return nil, false, err
	}
	c, err := parseConfig(path, text)
	return c, true, err
}

// readFile returns the content of a file of at most the given number of bytes.
func readFile(path string, most int64) ([]byte, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return nil, err
	case !info.Mode().IsRegular():
		return nil, fmt.Errorf("%s: not a regular file", path)
	case info.Size() > most:
		return nil, fmt.Errorf("%s: %d bytes are more than the limit of %d", path, info.Size(), most)
	}
	return os.ReadFile(path)
}

func newConfig(file string) *config {
	return &config{file: file, keys: map[string]json.RawMessage{}, read: map[string]bool{}, shared: new(error)}
}

func parseConfig(file string, text []byte) (*config, error) {
	c := newConfig(file)
	if err := c.parse(text); err != nil {
		return nil, err
	}
	return c, nil
}

// parse adds the keys of a JSON object. A repeated key is an error.
func (c *config) parse(text []byte) error {
	if err := validJSON(c.file, text); err != nil {
		return err
	}
	d := json.NewDecoder(bytes.NewReader(text))
	if start, err := d.Token(); err != nil || start != json.Delim('{') {
		return fmt.Errorf("%s: must be a JSON object", c.where(""))
	}
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return fmt.Errorf("%s: %w", c.file, err)
		}
		key := name.(string) // the keys of an object are strings
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return fmt.Errorf("%s: %w", c.file, err)
		}
		if _, twice := c.keys[key]; twice {
			return c.problem(key, value, "must not be there twice")
		}
		c.keys[key] = value
		c.order = append(c.order, key)
	}
	return nil
}

// validJSON returns an error unless text is JSON. The error names the format of a file that is
// something else.
func validJSON(file string, text []byte) error {
	var x json.RawMessage
	err := json.Unmarshal(text, &x)
	if err == nil {
		return nil
	}
	if other := foreign.Format(text); other != "" && text[0] != '{' && text[0] != '[' {
		return fmt.Errorf("%s: the file is %s", file, other)
	}
	return fmt.Errorf("%s: %w", file, err)
}

func (c *config) where(key string) string {
	return strings.TrimSuffix(c.file+": "+c.prefix+shown(key), ": ")
}

func (c *config) problem(key string, value json.RawMessage, format string, args ...any) error {
	text := "nothing"
	if value != nil {
		text = shown(compact(value))
	}
	return &flashkit.ProblemError{Field: c.where(key), Value: text, Reason: fmt.Sprintf(format, args...)}
}

// fail sets the error of a key, unless an error is already set.
func (c *config) fail(key, format string, args ...any) {
	if *c.shared == nil {
		*c.shared = c.problem(key, c.keys[key], format, args...)
	}
}

// value returns the value of a key and whether the file has the key, and marks the key as read.
func (c *config) value(key string) (json.RawMessage, bool) {
	c.read[key] = true
	x, ok := c.keys[key]
	return x, ok
}

// has reports whether the file has the key, with a value other than null. It does not mark the key
// as read, unless the value is null.
func (c *config) has(key string) bool {
	x, ok := c.keys[key]
	if ok && compact(x) == "null" {
		c.read[key] = true
		return false
	}
	return ok
}

// take stores the value of a key in *to and reports whether the file has the key. If T is not a
// pointer, null is an error.
func take[T any](c *config, key string, to *T) bool {
	x, ok := c.value(key)
	if !ok {
		return false
	}
	kind := fmt.Sprintf("%T", *to)
	if compact(x) == "null" && !strings.HasPrefix(kind, "*") || json.Unmarshal(x, to) != nil {
		c.fail(key, "must be of type %s", strings.TrimPrefix(kind, "*"))
	}
	return true
}

func valueOf[T any](c *config, key string, otherwise T) T {
	take(c, key, &otherwise)
	return otherwise
}

// integer returns a whole number from least to the maximum of int32. If the key is missing,
// integer returns otherwise.
func (c *config) integer(key string, otherwise, least int) int {
	x := valueOf(c, key, otherwise)
	if x < least || x > math.MaxInt32 {
		c.fail(key, "must be from %d to %d", least, math.MaxInt32)
	}
	return x
}

// number returns a finite number of at least 0.
func (c *config) number(key string, otherwise float64) float64 {
	x := valueOf(c, key, otherwise)
	if !(x >= 0 && x <= math.MaxFloat32) {
		c.fail(key, "must be at least 0, and finite")
	}
	return x
}

func (c *config) text(key, otherwise string) string { return valueOf(c, key, otherwise) }

func (c *config) flag(key string, otherwise bool) bool { return valueOf(c, key, otherwise) }

// only fails unless the key is missing or has one of the given values, which are JSON without white
// space.
func (c *config) only(key string, values ...string) {
	if x, ok := c.value(key); ok && !slices.Contains(values, compact(x)) {
		c.fail(key, "must be %s", strings.Join(values, " or "))
	}
}

// ignore marks keys without effect on results as read.
func (c *config) ignore(keys ...string) {
	for _, key := range keys {
		c.read[key] = true
	}
}

// object returns the nested object of a key. A missing key and null give an object without keys.
func (c *config) object(key string) *config {
	n := newConfig(c.file)
	n.prefix, n.shared = c.prefix+key+".", c.shared
	c.inner = append(c.inner, n)
	x, ok := c.value(key)
	if !ok || compact(x) == "null" {
		return n
	}
	if err := n.parse(x); err != nil && *c.shared == nil {
		*c.shared = err
	}
	return n
}

// done returns the first error, or an error for a key that was neither read nor is one of the
// harmless names.
func (c *config) done(harmless ...string) error {
	if *c.shared != nil {
		return *c.shared
	}
	for _, key := range c.order {
		if !c.read[key] && !slices.Contains(harmless, key) {
			return c.problem(key, c.keys[key], "the key is unknown, and may change results")
		}
	}
	for _, n := range c.inner {
		if err := n.done(harmless...); err != nil {
			return err
		}
	}
	return nil
}

// harmlessKeys of config.json do not affect results: they concern training, outputs, generation,
// file formats and the software that wrote the file.
var harmlessKeys = strings.Fields(`
	name_or_path _name_or_path transformers_version _commit_hash adapters
	attention_probs_dropout_prob hidden_dropout_prob classifier_dropout initializer_range gradient_checkpointing
	pad_token_id bos_token_id eos_token_id sep_token_id cls_token_id mask_token_id unk_token_id decoder_start_token_id
	finetuning_task task_specific_params
	directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
	output_attentions output_hidden_states output_past output_scores return_dict return_dict_in_generate use_return_dict use_cache
	torchscript torch_dtype dtype use_bfloat16 tf_legacy_loss tie_word_embeddings tie_encoder_decoder cross_attention_hidden_size
	attn_implementation _attn_implementation _attn_implementation_autoset prefix
	max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p
	repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences
	forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens`)

// checkCommon checks the keys of config.json that all families share. Heads of classification read
// id2label, problem_type and the like; other models ignore these keys.
func (c *config) checkCommon() {
	c.only("is_decoder", "false")
	c.only("add_cross_attention", "false")
	c.only("is_encoder_decoder", "false")
	c.only("pruned_heads", "{}", "null")
	c.only("per_layer_config", "{}", "null")
	c.only("quantization_config", "null")
	if c.text("model_type", "") == "nomic_bert" {
		c.read["auto_map"] = true // it names the published code, which loadNomicBERT follows
	} else {
		c.only("auto_map", "null")
	}
	c.only("chunk_size_feed_forward", "0") // transformers stops at lengths that are no multiple
	c.ignore("architectures", "model_type", "id2label", "label2id", "num_labels", "_num_labels", "problem_type",
		"sentence_transformers", "sbert_ce_default_activation_function", "tokenizer_class")
}

func compact(value json.RawMessage) string {
	var b bytes.Buffer
	if json.Compact(&b, value) != nil {
		return string(value)
	}
	return b.String()
}

// shown returns the start of an untrusted text, escaped for an error message.
func shown(text string) string {
	quoted := fmt.Sprintf("%+.60q", text)
	return strings.ReplaceAll(quoted[1:len(quoted)-1], `\"`, `"`)
}
