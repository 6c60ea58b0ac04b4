package encoder

import (
	"encoding/json"
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"github.com/flashkit-go/flashkit/internal/strict"
)

// A config reads the keys of a JSON object, such as config.json. Its methods return the value of a
// key, or a default for a missing key.
type config struct {
	*strict.Object

	elements int             // most weights that the model's files may have
	smooth   *calibration    // of loadLayers; may be nil
	gpu      *gpu            // for the weights of the layers' products; may be nil
	float32  map[string]bool // names of the weights that stay in float32; true if a product has the name
}

// maxSettings is the maximum size in bytes of a JSON file other than a tokenizer's.
const maxSettings = 64 << 20

// openConfig reads the JSON object of dir/name. If the file does not exist, openConfig returns an
// object without keys, and false.
func openConfig(dir, name string) (*config, bool, error) {
	o, found, err := strict.Open(filepath.Join(dir, name), maxSettings)
	return &config{Object: o}, found, err
}

func newConfig(file string) *config { return &config{Object: strict.Empty(file)} }

func parseConfig(file string, text []byte) (*config, error) {
	o, err := strict.Parse(file, text)
	return &config{Object: o}, err
}

// take stores the value of a key in *to and reports whether the file has the key. If T is not a
// pointer, null is an error.
func take[T any](c *config, key string, to *T) bool {
	x, ok := c.Value(key)
	if !ok {
		return false
	}
	kind := fmt.Sprintf("%T", *to)
	if string(x) == "null" && !strings.HasPrefix(kind, "*") || json.Unmarshal(x, to) != nil {
		c.Refuse(key, "must be of type %s", strings.TrimPrefix(kind, "*"))
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
		c.Refuse(key, "must be from %d to %d", least, math.MaxInt32)
	}
	return x
}

// number returns a finite number of at least 0.
func (c *config) number(key string, otherwise float64) float64 {
	x := valueOf(c, key, otherwise)
	if !(x >= 0 && x <= math.MaxFloat32) {
		c.Refuse(key, "must be at least 0, and finite")
	}
	return x
}

func (c *config) text(key, otherwise string) string { return valueOf(c, key, otherwise) }

func (c *config) flag(key string, otherwise bool) bool { return valueOf(c, key, otherwise) }

// object returns the nested object of a key. A missing key and null give an object without keys.
func (c *config) object(key string) *config { return &config{Object: c.Inner(key)} }

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
	c.Only("is_decoder", "false")
	c.Only("add_cross_attention", "false")
	c.Only("is_encoder_decoder", "false")
	c.Only("pruned_heads", "{}", "null")
	c.Only("per_layer_config", "{}", "null")
	c.Only("quantization_config", "null")
	if c.text("model_type", "") == "nomic_bert" {
		c.Ignore("auto_map") // it names the published code, which loadNomicBERT follows
	} else {
		c.Only("auto_map", "null")
	}
	c.Only("chunk_size_feed_forward", "0") // transformers stops at lengths that are no multiple
	c.Ignore("architectures", "model_type", "id2label", "label2id", "num_labels", "_num_labels", "problem_type",
		"sentence_transformers", "sbert_ce_default_activation_function", "tokenizer_class")
}
