package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/flashkit-go/flashkit/nn/bert"
)

// sentence reads the settings files of sentence-transformers. It returns an error if a sentence's
// vector is not the normalized mean of the token vectors.
func (f *Folder) sentence(dir string, c *bert.Config, lowercase bool) error {
	pooling, normalize, err := modules(dir)
	if err != nil {
		return err
	}
	found, err := read(dir, filepath.Join(pooling, "config.json"), object(poolingRules(c.Hidden)))
	if err == nil && !found && normalize != "" {
		err = fmt.Errorf("%s is missing, and modules.json names its folder", filepath.Join(dir, pooling, "config.json"))
	}
	if err == nil && normalize != "" {
		_, err = read(dir, filepath.Join(normalize, "config.json"), object(rules{
			"module_input_name": only(`"sentence_embedding"`), "module_output_name": only(`"sentence_embedding"`, "null"),
		}))
	}
	if err == nil {
		err = prompts(dir)
	}
	if err != nil {
		return err
	}
	return f.transformer(dir, lowercase, c.Positions)
}

type module struct {
	path, kind string
}

// modules reads modules.json and returns the folders of the modules Pooling and Normalize. Without
// the file it returns the default folder 1_Pooling, and "" for Normalize.
func modules(dir string) (pooling, normalize string, err error) {
	var chain []module
	each := func(value json.RawMessage) error {
		var m module
		err := object(rules{"path": into(&m.path), "type": into(&m.kind), "kwargs": only("[]", "{}", "null")}.harmlessKeys("idx name"), "path", "type")(value)
		if err == nil && m.path != "" && !filepath.IsLocal(m.path) {
			err = within("path", json.RawMessage(fmt.Sprintf("%q", m.path)), errors.New("must be within the model's folder"))
		}
		chain = append(chain, m)
		return err
	}
	found, err := read(dir, "modules.json", list(each))
	if err != nil || !found {
		return "1_Pooling", "", err
	}
	name := filepath.Join(dir, "modules.json")
	for i, want := range []string{"Transformer", "Pooling", "Normalize"} {
		if i >= len(chain) {
			return "", "", fmt.Errorf("%s: no module %s: vectors here are the mean of the tokens, of length 1", name, want)
		}
		if kind := chain[i].kind; !strings.HasPrefix(kind, "sentence_transformers.") || kind[strings.LastIndexByte(kind, '.')+1:] != want {
			return "", "", fmt.Errorf("%s: [%d].type = %s: must be %s of sentence_transformers", name, i, short(kind), want)
		}
	}
	if len(chain) > 3 {
		return "", "", fmt.Errorf("%s: [3].type = %s: no module may follow Normalize", name, short(chain[3].kind))
	}
	if chain[0].path != "" {
		return "", "", fmt.Errorf("%s: [0].path = %s: the Transformer must be in the model's folder itself", name, short(chain[0].path))
	}
	return chain[1].path, chain[2].path, nil
}

// poolingRules returns the rules for the module Pooling's config.json, in its older and newer form.
func poolingRules(hidden int) rules {
	width := only(fmt.Sprint(hidden))
	return rules{
		"word_embedding_dimension": width, "embedding_dimension": width, "include_prompt": only("true", "false"),
		"pooling_mode": only(`"mean"`, `["mean"]`), "pooling_mode_mean_tokens": only("true"),
		"pooling_mode_cls_token": only("false"), "pooling_mode_max_tokens": only("false"), "pooling_mode_mean_sqrt_len_tokens": only("false"),
		"pooling_mode_weightedmean_tokens": only("false"), "pooling_mode_lasttoken": only("false"),
	}
}

// prompts reads config_sentence_transformers.json. It returns an error if the model has a default
// prompt. It ignores prompts that are used only on request.
func prompts(dir string) error {
	var byName map[string]*string
	var name *string
	_, err := read(dir, "config_sentence_transformers.json", object(rules{
		"prompts": into(&byName), "default_prompt_name": into(&name), "model_type": only(`"SentenceTransformer"`), "truncate_dim": only("null"),
		"similarity_fn_name": only(`"cosine"`, `"dot"`, "null"),
	}.harmlessKeys("__version__ requirements")))
	if err != nil || name == nil {
		return err
	}
	if text, ok := byName[*name]; ok && (text == nil || *text == "") {
		return nil
	}
	return fmt.Errorf("%s: default_prompt_name = %.60q: prompts are not supported", filepath.Join(dir, "config_sentence_transformers.json"), *name)
}

// transformer reads sentence_bert_config.json and sets MaxTokens.
func (f *Folder) transformer(dir string, lowercase bool, positions int) error {
	const name = "sentence_bert_config.json"
	var most *int
	empty := only("{}", "null")
	lower := only("false")
	if lowercase { // the tokenizer lowercases in any case, so both values are allowed
		lower = only("false", "true")
	}
	found, err := read(dir, name, object(rules{
		"max_seq_length": into(&most), "do_lower_case": lower, "transformer_task": only(`"feature-extraction"`),
		"modality_config":    object(rules{"text": object(rules{"method": only(`"forward"`), "method_output_name": only(`"last_hidden_state"`)})}),
		"module_output_name": only(`"token_embeddings"`), "processing_kwargs": empty, "query_expansion": only("null"),
		"query_length": only("null"), "document_length": only("null"), "tokenizer_name_or_path": only("null"),
		"model_args": empty, "model_kwargs": empty, "tokenizer_args": empty, "processor_kwargs": empty, "config_args": empty, "config_kwargs": empty,
	}.harmlessKeys("unpad_inputs")))
	if err != nil {
		return err
	}
	if !found {
		return otherSettings(dir, name)
	}
	if most == nil {
		return nil
	}
	if *most < 2 || *most > positions {
		return fmt.Errorf("%s: max_seq_length = %d: must be from 2 to %d, the model's positions", filepath.Join(dir, name), *most, positions)
	}
	f.MaxTokens = *most
	return nil
}

// otherSettings returns an error if dir has a settings file for another model family, such as
// sentence_roberta_config.json.
func otherSettings(dir, name string) error {
	files, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	for _, f := range files {
		if strings.HasPrefix(f.Name(), "sentence_") && strings.HasSuffix(f.Name(), "_config.json") {
			return fmt.Errorf("%s: must be called %s", filepath.Join(dir, f.Name()), name)
		}
	}
	return nil
}
