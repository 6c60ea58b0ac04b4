package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/flashkit-go/flashkit/examples/minilm/wordpiece"
	"github.com/flashkit-go/flashkit/nn/bert"
	"github.com/flashkit-go/flashkit/safetensors"
)

// A Folder is a model as it is published: config.json, vocab.txt and model.safetensors, and
// tokenizer_config.json, sentence_bert_config.json and 1_Pooling/config.json where they are.
type Folder struct {
	Model     *bert.Model
	Tokenizer *wordpiece.Tokenizer
	MaxTokens int // of a text, [CLS] and [SEP] included; the rest is cut off
}

// openFolder reads a model, and refuses one whose vectors would not be those of its makers, but
// for the precision of products.
func openFolder(dir, precision string) (*Folder, error) {
	text, err := os.ReadFile(filepath.Join(dir, "config.json"))
	if err != nil {
		return nil, err
	}
	c, err := bert.ParseConfig(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, "config.json"), err)
	}
	c.Precision = precision
	f := &Folder{MaxTokens: c.Positions}
	if err := f.settings(dir); err != nil {
		return nil, err
	}
	if f.Tokenizer, err = openTokenizer(dir); err != nil {
		return nil, err
	}
	if n := f.Tokenizer.Len(); n > c.Vocab {
		return nil, fmt.Errorf("%s has %d tokens, and the model %d", filepath.Join(dir, "vocab.txt"), n, c.Vocab)
	}
	name := filepath.Join(dir, "model.safetensors")
	weights, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	file, err := safetensors.Parse(weights)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if f.Model, err = bert.Load(c, file); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return f, nil
}

func openTokenizer(dir string) (*wordpiece.Tokenizer, error) {
	settings := struct {
		Lowercase *bool `json:"do_lower_case"`
		Strip     *bool `json:"strip_accents"`
		Chinese   *bool `json:"tokenize_chinese_chars"`
	}{}
	if err := readJSON(filepath.Join(dir, "tokenizer_config.json"), &settings); err != nil {
		return nil, err
	}
	lowercase := settings.Lowercase == nil || *settings.Lowercase
	if settings.Strip != nil && *settings.Strip != lowercase || settings.Chinese != nil && !*settings.Chinese {
		return nil, fmt.Errorf("%s: strip_accents must follow do_lower_case, and tokenize_chinese_chars be true", filepath.Join(dir, "tokenizer_config.json"))
	}
	name := filepath.Join(dir, "vocab.txt")
	vocab, err := os.Open(name)
	if err != nil {
		return nil, err
	}
	defer vocab.Close()
	t, err := wordpiece.New(vocab, lowercase)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return t, nil
}

// settings reads what sentence-transformers adds to a model.
func (f *Folder) settings(dir string) error {
	name := filepath.Join(dir, "sentence_bert_config.json")
	length := struct {
		Most int `json:"max_seq_length"`
	}{f.MaxTokens}
	if err := readJSON(name, &length); err != nil {
		return err
	}
	if length.Most < 2 || length.Most > f.MaxTokens {
		return fmt.Errorf("%s: max_seq_length = %d: must be from 2 to %d, the model's positions", name, length.Most, f.MaxTokens)
	}
	f.MaxTokens = length.Most
	name = filepath.Join(dir, "1_Pooling", "config.json")
	pooling := map[string]any{"pooling_mode_mean_tokens": true}
	if err := readJSON(name, &pooling); err != nil {
		return err
	}
	for mode, on := range pooling {
		if yes, ok := on.(bool); ok && len(mode) > 13 && mode[:13] == "pooling_mode_" && yes != (mode == "pooling_mode_mean_tokens") {
			return fmt.Errorf("%s: %.60q = %v: vectors here are the mean of the tokens", name, mode, yes)
		}
	}
	return nil
}

// readJSON leaves to as it is where there is no file.
func readJSON(name string, to any) error {
	text, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil {
		err = json.Unmarshal(text, to)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
