package bert

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// ParseConfig returns the Config of a model's config.json, which has Hugging Face's keys. The key
// model_type must be present, with the value "bert". Any other missing key has the default of
// Hugging Face's transformers. An unknown key and a repeated key are errors. So is a value that
// asks for a variant that this package does not compute.
func ParseConfig(file []byte) (Config, error) {
	c := struct {
		Type         string  `json:"model_type"`
		Vocab        int     `json:"vocab_size"`
		Hidden       int     `json:"hidden_size"`
		Layers       int     `json:"num_hidden_layers"`
		Heads        int     `json:"num_attention_heads"`
		Intermediate int     `json:"intermediate_size"`
		Positions    int     `json:"max_position_embeddings"`
		Types        int     `json:"type_vocab_size"`
		Eps          float64 `json:"layer_norm_eps"`
		Activation   string  `json:"hidden_act"`
	}{"", 30522, 768, 12, 12, 3072, 512, 2, 1e-12, "gelu"}
	if err := json.Unmarshal(file, &c); err != nil {
		return Config{}, fmt.Errorf("bert: config: %w", err)
	}
	if c.Type != "bert" {
		return Config{}, problem("model_type", fmt.Sprintf("%.40q", c.Type), `must be "bert"`)
	}
	if err := checkKeys(file); err != nil {
		return Config{}, err
	}
	x := Config{c.Vocab, c.Hidden, c.Layers, c.Heads, c.Intermediate, c.Positions, c.Types, c.Eps, c.Activation, ""}
	return x, x.check()
}

var readKeys = strings.Fields(`model_type vocab_size hidden_size num_hidden_layers num_attention_heads intermediate_size
	max_position_embeddings type_vocab_size layer_norm_eps hidden_act`)

// fixedKeys lists the allowed values of keys that select a variant of the model.
var fixedKeys = map[string][]string{
	"position_embedding_type": {`"absolute"`},
	"is_decoder":              {`false`},
	"add_cross_attention":     {`false`},
	"is_encoder_decoder":      {`false`},
	"pruned_heads":            {`{}`, `null`},
	"per_layer_config":        {`{}`, `null`},
	"quantization_config":     {`null`},
	"auto_map":                {`null`},
	"tokenizer_class":         {`"BertTokenizer"`, `"BertTokenizerFast"`, `null`},
}

// harmlessKeys do not affect hidden states: they concern training, heads, outputs, generation, file
// formats and the software that wrote the file.
var harmlessKeys = strings.Fields(`
	architectures name_or_path _name_or_path transformers_version _commit_hash
	attention_probs_dropout_prob hidden_dropout_prob classifier_dropout initializer_range gradient_checkpointing
	pad_token_id bos_token_id eos_token_id sep_token_id cls_token_id mask_token_id unk_token_id decoder_start_token_id
	id2label label2id num_labels _num_labels problem_type finetuning_task task_specific_params sentence_transformers
	directionality pooler_fc_size pooler_num_attention_heads pooler_num_fc_layers pooler_size_per_head pooler_type
	output_attentions output_hidden_states output_past output_scores return_dict return_dict_in_generate use_return_dict use_cache
	torchscript torch_dtype dtype use_bfloat16 tf_legacy_loss tie_word_embeddings tie_encoder_decoder cross_attention_hidden_size
	attn_implementation _attn_implementation _attn_implementation_autoset chunk_size_feed_forward prefix
	max_length min_length do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p
	repetition_penalty length_penalty no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences
	forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens`)

// checkKeys returns an error for an unknown or repeated key, and for a value that fixedKeys does
// not allow. The file must be a JSON object.
func checkKeys(file []byte) error {
	seen := map[string]bool{}
	d := json.NewDecoder(bytes.NewReader(file))
	if _, err := d.Token(); err != nil {
		return fmt.Errorf("bert: config: %w", err)
	}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return fmt.Errorf("bert: config: %w", err)
		}
		name := key.(string) // the keys of an object are strings
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return fmt.Errorf("bert: config: %w", err)
		}
		fixed, isFixed := fixedKeys[name]
		switch text := compact(value); {
		case seen[name]:
			return problem("config."+shown(name), shown(text), "must not be there twice")
		case isFixed && !slices.Contains(fixed, text):
			return problem(name, shown(text), "must be %s", strings.Join(fixed, " or "))
		case slices.Contains(readKeys, name) && text == "null":
			return problem(name, text, "must have a value")
		case !isFixed && !slices.Contains(readKeys, name) && !slices.Contains(harmlessKeys, name):
			return problem("config."+shown(name), shown(text), "the key is unknown, and may change results")
		}
		seen[name] = true
	}
	return nil
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
