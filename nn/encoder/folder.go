package encoder

import (
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

	"github.com/flashkit-go/flashkit/internal/strict"
	"github.com/flashkit-go/flashkit/nn"
	"github.com/flashkit-go/flashkit/nn/tokenizer"
)

// A module is an entry of modules.json.
type module struct {
	name string // last part of its Python class
	path string // folder within the model's folder
}

// read reads the model's folder.
func (e *Encoder) read(dir string) error {
	if err := checkFolder(dir); err != nil {
		return err
	}
	list, err := readModules(dir)
	if err != nil {
		return err
	}
	home := dir // the folder of the Transformer
	if len(list) > 0 {
		home = filepath.Join(dir, list[0].path)
	}
	if config := filepath.Join(home, "config.json"); !exists(config) && !exists(filepath.Join(home, "adapter_config.json")) {
		return fmt.Errorf("%s is missing: the folder is no model's, or not all of it: %w", config, fs.ErrNotExist)
	}
	if e.tokenizer, err = tokenizer.Open(home); err != nil { // first, so that its garbage is small beside the weights
		return err
	}
	if err := e.readModel(home, len(list) < 2); err != nil {
		return err
	}
	if n, most := e.tokenizer.Len(), e.model.shape().vocab; n > most {
		return problem(filepath.Join(home, "config.json")+": vocab_size", most, "must be at least %d, the tokens of the tokenizer", n)
	}
	switch len(list) {
	case 0: // sentence-transformers ignores its own files, too
		if name := e.options.Prompt; name != "" {
			return problem("Options.Prompt", fmt.Sprintf("%.60q", name), "must be a prompt of the model, which has none")
		}
		e.vectors = &chain{[]stage{&pool{by: []pooling{e.pooling}}}, e.model.shape().hidden}
		return e.readTransformer(newConfig(home), home, "")
	case 1:
		if e.head == nil {
			return fmt.Errorf("%s: no module Pooling follows the Transformer, and the model is no sequence classifier", filepath.Join(dir, "modules.json"))
		}
	default:
		if e.vectors, err = readChain(dir, list[1:], e.model.shape().hidden); err != nil {
			return err
		}
	}
	c, err := transformerFile(home)
	if err != nil {
		return err
	}
	if err := e.readTransformer(c, home, list[len(list)-1].name); err != nil {
		return err
	}
	return e.readSettings(dir)
}

// checkFolder returns an error unless dir is a folder.
func checkFolder(dir string) error {
	info, err := os.Stat(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return fmt.Errorf("%.300q: there is no such folder; a model must be a folder of this machine: %w", dir, fs.ErrNotExist)
	case err != nil:
		return err
	case !info.IsDir():
		return fmt.Errorf("%.300q: must be a model's folder, not a file", dir)
	}
	return nil
}

// readModel reads the weights that config.json describes. With an adapter, both are of the base
// model. If head is true, the model may be a sequence classifier.
func (e *Encoder) readModel(dir string, head bool) error {
	a, err := openAdapter(dir)
	if err != nil {
		return err
	}
	if a != nil {
		dir = a.base
	}
	c, found, err := openConfig(dir, "config.json")
	if err != nil {
		return err
	}
	if !found {
		return fmt.Errorf("%s: %w", c.Name, fs.ErrNotExist)
	}
	k, err := kindOf(c)
	if err != nil {
		return err
	}
	c.checkCommon()
	f, err := openWeights(dir, k.prefix)
	if err != nil {
		return err
	}
	defer f.close()
	if a != nil {
		if err := a.merge(f, k.prefix); err != nil {
			return err
		}
	}
	w := nn.FromTensors(f.require)
	c.elements, c.smooth, c.gpu, c.float32 = f.elements(), e.smooth, e.gpuFor(c), map[string]bool{}
	for _, name := range e.options.Float32 {
		c.float32[name] = false
	}
	if e.model, err = k.load(c, w, precisions[e.options.Precision]); err != nil {
		if c.Done(harmlessKeys...) == nil { // the error is about a tensor
			err = within(filepath.Join(dir, "model.safetensors"), err)
		}
		return err
	}
	if err := c.Done(harmlessKeys...); err != nil {
		return err
	}
	if err := c.checkKept(e.options.Float32); err != nil {
		return err
	}
	e.pooling = poolMean
	if strings.HasSuffix(c.architecture(), "ForCausalLM") && valueOf(c, "is_causal", true) {
		e.pooling = poolLast
	}
	if head {
		if err := e.readHeads(c, k, w); err != nil {
			return within(dir, err)
		}
	}
	return c.Err
}

// readHeads reads the head of a sequence classifier or of a token classifier, if the model is one.
func (e *Encoder) readHeads(c *config, k kind, w *nn.Init) (err error) {
	switch architecture := c.architecture(); {
	case strings.HasSuffix(architecture, "ForSequenceClassification"):
		e.head, err = e.readHead(c, k, w)
	case strings.HasSuffix(architecture, "ForTokenClassification"):
		e.tagger, err = e.readTagger(c, w)
	}
	return err
}

// architecture returns the first of architectures, or "".
func (c *config) architecture() string {
	var list []string
	if c.Has("architectures") {
		take(c, "architectures", &list)
	}
	return strings.Join(list[:min(1, len(list))], "")
}

func exists(name string) bool {
	_, err := os.Lstat(name)
	return err == nil
}

// readModules reads modules.json. Without the file, it returns no modules.
func readModules(dir string) (list []module, err error) {
	name := filepath.Join(dir, "modules.json")
	text, err := strict.Read(name, maxSettings)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if err := strict.Valid(name, text); err != nil {
		return nil, err
	}
	var entries []json.RawMessage
	if json.Unmarshal(text, &entries) != nil || len(entries) == 0 {
		return nil, fmt.Errorf("%s: must be a list of modules", name)
	}
	for i, text := range entries {
		c, err := parseConfig(fmt.Sprintf("%s: [%d]", name, i), text)
		if err != nil {
			return nil, err
		}
		class := c.text("type", "")
		m := module{class[strings.LastIndexByte(class, '.')+1:], c.text("path", "")}
		allowed := afterPooling
		if i < 2 {
			allowed = [][]string{{"Transformer"}, {"Pooling"}}[i]
		}
		if !strings.HasPrefix(class, "sentence_transformers.") || !slices.Contains(allowed, m.name) {
			c.Refuse("type", "must be %s of sentence_transformers", strings.Join(allowed, ", "))
		}
		if m.path != "" && !filepath.IsLocal(m.path) {
			c.Refuse("path", "must be within the model's folder")
		}
		c.Only("kwargs", "[]", "{}", "null")
		if err := c.Done("idx", "name"); err != nil {
			return nil, err
		}
		list = append(list, m)
	}
	return list, nil
}

// transformerFiles are the names of the Transformer's settings file. sentence-transformers reads
// the first that exists.
var transformerFiles = [...]string{"sentence_bert_config.json", "sentence_roberta_config.json", "sentence_distilbert_config.json",
	"sentence_camembert_config.json", "sentence_albert_config.json", "sentence_xlm-roberta_config.json", "sentence_xlnet_config.json"}

// transformerFile reads the Transformer's settings file, which may be missing.
func transformerFile(dir string) (*config, error) {
	for _, name := range transformerFiles {
		if c, found, err := openConfig(dir, name); found || err != nil {
			return c, err
		}
	}
	return newConfig(filepath.Join(dir, transformerFiles[0])), nil
}

// readTransformer reads the Transformer's settings and sets the maximum number of tokens. last is
// the name of the last module: a Transformer alone is a sequence classifier.
func (e *Encoder) readTransformer(c *config, dir, last string) error {
	e.most = e.model.shape().positions
	limit, err := modelMaxLength(dir)
	if err != nil {
		return err
	}
	if c.Has("max_seq_length") {
		limit = c.integer("max_seq_length", 0, 1)
		// With rotary positions, sentence-transformers computes such a text.
		if size := e.model.shape(); size.rotary && limit > size.positions && e.options.MaxTokens == 0 {
			c.Refuse("max_seq_length", "must be at most %d, the model's positions; Options.MaxTokens replaces it", size.positions)
		}
	}
	if limit > 0 && (e.most == 0 || limit < e.most) {
		e.most = limit
	}
	if c.Has("do_lower_case") && c.flag("do_lower_case", false) {
		e.tokenizer = e.tokenizer.Lowercased()
	}
	task, output, result := `"feature-extraction"`, `"last_hidden_state"`, `"token_embeddings"`
	if last == "Transformer" {
		task, output, result = `"sequence-classification"`, `"logits"`, `"scores"`
	}
	c.Only("transformer_task", task)
	text := c.object("modality_config").object("text")
	text.Only("method", `"forward"`)
	text.Only("method_output_name", output)
	c.Only("module_output_name", result)
	for _, key := range []string{"query_expansion", "query_length", "document_length", "tokenizer_name_or_path"} {
		c.Only(key, "null")
	}
	for _, key := range []string{"processing_kwargs", "model_args", "model_kwargs", "tokenizer_args", "processor_kwargs", "config_args", "config_kwargs"} {
		c.Only(key, "{}", "null")
	}
	if err := c.Done("unpad_inputs"); err != nil {
		return err
	}
	if m := e.options.MaxTokens; m > 0 {
		if p := e.model.shape().positions; p > 0 && m > p {
			return problem("Options.MaxTokens", m, "must be at most %d, the model's positions", p)
		}
		e.most = m
	}
	return nil
}

// modelMaxLength returns model_max_length of tokenizer_config.json, or 0 if it has no limit. The
// truncation of tokenizer.json does not count: transformers replaces it.
func modelMaxLength(dir string) (int, error) {
	c, _, err := openConfig(dir, "tokenizer_config.json")
	if err != nil || !c.Has("model_max_length") {
		return 0, err
	}
	n := valueOf(c, "model_max_length", 0.0)
	if n < 1 || n != math.Trunc(n) {
		c.Refuse("model_max_length", "must be a whole number from 1")
	}
	if n > math.MaxInt32 {
		n = 0
	}
	return int(n), c.Err
}

// readSettings reads the prompts and the length of vectors.
func (e *Encoder) readSettings(dir string) error {
	c, _, err := openConfig(dir, "config_sentence_transformers.json")
	if err != nil {
		return err
	}
	prompts := map[string]*string{}
	if c.Has("prompts") {
		take(c, "prompts", &prompts)
	}
	name := e.options.Prompt
	if c.Has("default_prompt_name") && name == "" {
		if name = c.text("default_prompt_name", ""); prompts[name] == nil {
			c.Refuse("default_prompt_name", "must be a name in prompts, with a text")
		}
	}
	c.Ignore("default_prompt_name")
	if e.head == nil {
		c.Only("model_type", `"SentenceTransformer"`)
	} else {
		c.Only("model_type", `"CrossEncoder"`)
		c.Only("default_prompt_name", "null")
		c.Only("keep_in_fp32_modules", "null")
		if c.Has("activation_fn") {
			e.head.score = c.function("activation_fn", "")
		}
	}
	c.Only("similarity_fn_name", `"cosine"`, `"dot"`, `"euclidean"`, `"manhattan"`, "null")
	if e.vectors != nil && c.Has("truncate_dim") {
		e.vectors.stages = append(e.vectors.stages, truncated(c.integer("truncate_dim", 0, 1)))
	}
	if err := c.Done("__version__", "requirements"); err != nil {
		return err
	}
	e.prompts = map[string]*prompt{}
	for name, text := range prompts {
		if e.prompts[name] = nil; text != nil {
			e.prompts[name] = e.newPrompt(*text)
		}
	}
	if name == "" {
		return nil
	}
	p, err := e.promptOf("Options.Prompt", name)
	e.prompt = p
	return err
}

// promptOf returns the prompt of a name. The field is the name's for an error.
func (e *Encoder) promptOf(field, name string) (prompt, error) {
	if p := e.prompts[name]; p != nil {
		return *p, nil
	}
	return prompt{}, problem(field, fmt.Sprintf("%.60q", name), "must be a prompt of the model: %.300q", slices.Sorted(maps.Keys(e.prompts)))
}

// newPrompt returns the prompt of a text. As in sentence-transformers, a special token at the end of
// the prompt's tokens does not count among the tokens of the prompt.
func (e *Encoder) newPrompt(text string) *prompt {
	p := &prompt{text: text}
	if text == "" {
		return p
	}
	var x, empty tokenizer.Encoding
	e.tokenizer.Encode(&x, e.most, text)
	e.tokenizer.Encode(&empty, 0, "")
	p.skip = len(x.IDs)
	if n := len(empty.IDs); n > 0 && p.skip > 0 && x.IDs[p.skip-1] == empty.IDs[n-1] {
		p.skip--
	}
	return p
}
