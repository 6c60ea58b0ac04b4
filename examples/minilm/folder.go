package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/flashkit-go/flashkit/nn/bert"
	"github.com/flashkit-go/flashkit/nn/tokenizer"
	"github.com/flashkit-go/flashkit/safetensors"
)

// A Folder is a published model, read from a folder of files: config.json, model.safetensors, and
// vocab.txt or tokenizer.json. Other settings files of sentence-transformers and of the tokenizer
// are optional.
type Folder struct {
	Model     *bert.Model
	Tokenizer *tokenizer.Tokenizer
	MaxTokens int // most tokens of a text, including [CLS] and [SEP]; longer texts are truncated
}

// openFolder reads a model. It returns an error if the files ask for anything that this program
// does not compute, because its vectors would then be wrong.
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
	f := &Folder{}
	tok, files, err := openTokenizer(dir)
	if err != nil {
		return nil, err
	}
	if n := tok.Len(); n > c.Vocab {
		return nil, fmt.Errorf("%s has %d tokens, and the model %d", filepath.Join(dir, files.source), n, c.Vocab)
	}
	f.Tokenizer = tok
	if f.MaxTokens, err = files.limit(c.Positions); err != nil {
		return nil, err
	}
	if err := f.sentence(dir, &c, files.lower); err != nil {
		return nil, err
	}
	f.Model, err = openWeights(dir, c)
	return f, err
}

// openWeights reads model.safetensors. If the file is missing but the folder has weights in another
// format, the error names such a file.
func openWeights(dir string, c bert.Config) (*bert.Model, error) {
	if name := filepath.Join(dir, "adapter_config.json"); exists(name) {
		return nil, fmt.Errorf("%s: adapters are not supported", name)
	}
	name := filepath.Join(dir, "model.safetensors")
	weights, err := os.ReadFile(name)
	if errors.Is(err, fs.ErrNotExist) {
		if exists(name + ".index.json") {
			return nil, fmt.Errorf("%s: weights in several files are not supported: write them to one, model.safetensors", name+".index.json")
		}
		if other := filepath.Join(dir, "pytorch_model.bin"); exists(other) {
			return nil, fmt.Errorf("%w, and %s is not read: convert it to safetensors", err, other)
		}
	}
	if err != nil {
		return nil, err
	}
	file, err := safetensors.Parse(weights)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	m, err := bert.Load(c, file)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return m, nil
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}
