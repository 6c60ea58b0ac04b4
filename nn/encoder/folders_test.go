package encoder

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"maps"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/half"
	"github.com/flashkit-go/flashkit/nn"
	"github.com/flashkit-go/flashkit/safetensors"
)

// published are the files of a folder as all-MiniLM-L6-v2 is published, around the tiny model.
var published = map[string]string{
	"1_Pooling/config.json": `{"word_embedding_dimension": 32, "pooling_mode_cls_token": false, "pooling_mode_mean_tokens": true,
		"pooling_mode_max_tokens": false, "pooling_mode_mean_sqrt_len_tokens": false}`,
	"modules.json": `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
		{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.models.Pooling"},
		{"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.models.Normalize"}]`,
	"config_sentence_transformers.json": `{"__version__": {"sentence_transformers": "2.0.0", "transformers": "4.6.1", "pytorch": "1.8.1"}}`,
	"sentence_bert_config.json":         `{"max_seq_length": 30, "do_lower_case": false}`,
	"tokenizer_config.json": `{"do_lower_case": true, "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]",
		"mask_token": "[MASK]", "tokenize_chinese_chars": true, "strip_accents": null, "tokenizer_class": "BertTokenizer", "model_max_length": 512}`,
}

// current are the files of a folder as transformers 5 and sentence-transformers 6 write it.
var current = map[string]string{
	"1_Pooling/config.json":   `{"embedding_dimension": 32, "pooling_mode": "mean", "include_prompt": true}`,
	"2_Normalize/config.json": `{"module_input_name": "sentence_embedding", "module_output_name": "sentence_embedding"}`,
	"modules.json": `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
		{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling"},
		{"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.base.modules.normalize.Normalize"}]`,
	"config_sentence_transformers.json": `{"model_type": "SentenceTransformer", "__version__": {"sentence_transformers": "6.2.0"},
		"prompts": {"query": "11 12 ", "document": ""}, "default_prompt_name": null, "similarity_fn_name": "cosine"}`,
	"sentence_bert_config.json": `{"transformer_task": "feature-extraction", "module_output_name": "token_embeddings",
		"modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}}`,
	"tokenizer_config.json": `{"backend": "tokenizers", "cls_token": "[CLS]", "do_lower_case": true, "is_local": true,
		"mask_token": "[MASK]", "model_max_length": 30, "pad_token": "[PAD]", "sep_token": "[SEP]", "strip_accents": null,
		"tokenize_chinese_chars": true, "tokenizer_class": "BertTokenizer", "unk_token": "[UNK]"}`,
}

// merged returns a folder's files with others over them.
func merged(base, over map[string]string) map[string]string {
	all := maps.Clone(base)
	maps.Copy(all, over)
	return all
}

// changed is merged with one edited file.
func changed(base map[string]string, name string, replacements ...string) map[string]string {
	return merged(base, map[string]string{name: edit(base[name], replacements...)})
}

var someTexts = []string{"5 17 20", "49", "", strings.Repeat("7 8 9 ", 12)}

// vectorsOf returns the vectors of someTexts, one of which has between 30 and 40 tokens.
func vectorsOf(t *testing.T, files map[string]string, o Options) ([][]float32, error) {
	o.Dispatcher = opened(t)
	e, err := OpenWith(context.Background(), folder(t, files), o)
	if err != nil {
		return nil, err
	}
	defer e.Close()
	return e.Embed(context.Background(), someTexts)
}

// inHalf returns the tiny weights in another type.
func inHalf(t *testing.T, dtype string) string {
	to := map[string]func(float32) uint16{"F16": half.ToF16, "BF16": half.ToBF16}[dtype]
	_, weights := readTiny(t)
	f, err := safetensors.Parse(weights)
	require.NoError(t, err)
	for i, x := range f.Tensors {
		data, err := x.Float32s()
		require.NoError(t, err)
		bits := make([]uint16, len(data))
		for j, v := range data {
			bits[j] = to(v)
		}
		f.Tensors[i] = safetensors.FromUint16s(x.Name, dtype, x.Shape, bits)
	}
	return written(t, f)
}

func written(t testing.TB, f *safetensors.File) string {
	var b bytes.Buffer
	require.NoError(t, f.Write(&b))
	return b.String()
}

// shards returns the tiny model's tensors in two files, and their index.
func shards(t *testing.T) map[string]string {
	_, weights := readTiny(t)
	f, err := safetensors.Parse(weights)
	require.NoError(t, err)
	first, where := len(f.Tensors)/2, []string{}
	files := map[string]string{"model.safetensors": ""}
	for i, tensors := range [][]safetensors.Tensor{f.Tensors[:first], f.Tensors[first:]} {
		name := fmt.Sprintf("model-%05d-of-00002.safetensors", i+1)
		files[name] = written(t, &safetensors.File{Tensors: tensors})
		for _, x := range tensors {
			where = append(where, fmt.Sprintf("%q: %q", x.Name, name))
		}
	}
	files["model.safetensors.index.json"] = `{"metadata": {"total_size": 1}, "weight_map": {` + strings.Join(where, ", ") + `}}`
	return files
}

// renamed returns the tiny weights with the names of bert-base-uncased.
func renamed(t *testing.T) string {
	_, weights := readTiny(t)
	f, err := safetensors.Parse(weights)
	require.NoError(t, err)
	old := strings.NewReplacer("LayerNorm.weight", "LayerNorm.gamma", "LayerNorm.bias", "LayerNorm.beta")
	for i := range f.Tensors {
		f.Tensors[i].Name = "bert." + old.Replace(f.Tensors[i].Name)
	}
	return written(t, f)
}

// withF4 returns the tiny weights and a tensor of a type that this module does not decode.
func withF4(t *testing.T) string {
	_, weights := readTiny(t)
	n := binary.LittleEndian.Uint64(weights)
	header, data := string(weights[8:8+n]), string(weights[8+n:])
	header = strings.TrimRight(header, " ")
	header = fmt.Sprintf(`%s,"other":{"dtype":"F4","shape":[4],"data_offsets":[%d,%d]}}`, strings.TrimSuffix(header, "}"), len(data), len(data)+2)
	return string(binary.LittleEndian.AppendUint64(nil, uint64(len(header)))) + header + data + "\x00\x00"
}

// Equivalent folders of different tools give the same bits.
func TestFoldersLoad(t *testing.T) {
	want, err := vectorsOf(t, published, Options{})
	require.NoError(t, err)
	v, _ := readTiny(t)
	config := string(v.Config)
	with := func(name, text string) map[string]string { return merged(published, map[string]string{name: text}) }
	for name, files := range map[string]map[string]string{
		"current":           current,
		"gamma":             with("model.safetensors", renamed(t)),
		"packed type":       with("model.safetensors", withF4(t)),
		"shards":            merged(published, shards(t)),
		"no hidden_act":     with("config.json", edit(config, `, "hidden_act": "gelu"`, "")),
		"vast length":       changed(published, "tokenizer_config.json", `512`, `1000000000000000019884624838656`),
		"no length there":   changed(published, "tokenizer_config.json", `, "model_max_length": 512`, ``),
		"null length":       changed(current, "sentence_bert_config.json", `{`, `{"max_seq_length": null, `),
		"lowercase twice":   changed(published, "sentence_bert_config.json", `false`, `true`),
		"another name":      merged(published, map[string]string{"sentence_bert_config.json": "", "sentence_roberta_config.json": published["sentence_bert_config.json"]}),
		"list of one mode":  changed(current, "1_Pooling/config.json", `"mean"`, `["mean"]`),
		"empty prompt":      changed(current, "config_sentence_transformers.json", `null`, `"document"`),
		"no pooling keys":   with("1_Pooling/config.json", `{"word_embedding_dimension": 32}`),
		"pooling elsewhere": merged(changed(published, "modules.json", `"1_Pooling"`, `"pool/mean"`), map[string]string{"1_Pooling/config.json": "", "pool/mean/config.json": published["1_Pooling/config.json"]}),
		"dropout module":    changed(published, "modules.json", `{"idx": 2`, `{"idx": 3, "path": "3_Dropout", "type": "sentence_transformers.models.Dropout"}, {"idx": 2`),
		"transformer elsewhere": merged(changed(published, "modules.json", `"path": ""`, `"path": "0_Transformer"`), map[string]string{
			"config.json": "", "0_Transformer/config.json": config, "model.safetensors": "", "0_Transformer/model.safetensors": string(readWeights(t)),
			"tokenizer.json": "", "0_Transformer/tokenizer.json": numbers(50), "0_Transformer/sentence_bert_config.json": published["sentence_bert_config.json"]}),
	} {
		t.Run(name, func(t *testing.T) {
			got, err := vectorsOf(t, files, Options{})
			require.NoError(t, err)
			require.Equal(t, want, got)
		})
	}
}

func readWeights(t testing.TB) []byte {
	_, weights := readTiny(t)
	return weights
}

// Folders whose settings change vectors give other vectors.
func TestFoldersDiffer(t *testing.T) {
	plain, err := vectorsOf(t, published, Options{})
	require.NoError(t, err)
	seen := map[string]string{fmt.Sprint(plain[0]): "published"}
	noModules := merged(published, map[string]string{"modules.json": ""})
	for name, files := range map[string]map[string]string{
		"cls":          changed(current, "1_Pooling/config.json", `"mean"`, `"cls"`),
		"max":          changed(published, "1_Pooling/config.json", `"pooling_mode_mean_tokens": true`, `"pooling_mode_mean_tokens": false`, `"pooling_mode_max_tokens": false`, `"pooling_mode_max_tokens": true`),
		"last":         changed(current, "1_Pooling/config.json", `"mean"`, `"lasttoken"`),
		"two":          changed(current, "1_Pooling/config.json", `"mean"`, `["cls", "max"]`),
		"weighted":     changed(current, "1_Pooling/config.json", `"mean"`, `"weightedmean"`),
		"no modules":   noModules,
		"prompt":       changed(current, "config_sentence_transformers.json", `null`, `"query"`),
		"prompt apart": merged(changed(current, "config_sentence_transformers.json", `null`, `"query"`), changed(map[string]string{"1_Pooling/config.json": current["1_Pooling/config.json"]}, "1_Pooling/config.json", `true`, `false`)),
		"length":       changed(current, "config_sentence_transformers.json", `{`, `{"truncate_dim": 16, `),
		"F16":          merged(published, map[string]string{"model.safetensors": inHalf(t, "F16")}),
		"BF16":         merged(published, map[string]string{"model.safetensors": inHalf(t, "BF16")}),
	} {
		got, err := vectorsOf(t, files, Options{})
		require.NoError(t, err, name)
		require.Empty(t, seen[fmt.Sprint(got[0])], name)
		seen[fmt.Sprint(got[0])] = name
		require.Len(t, got[0], map[string]int{"two": 64, "length": 16}[name]+map[bool]int{true: 32}[name != "two" && name != "length"], name)
	}
	byName, err := vectorsOf(t, current, Options{Prompt: "query"})
	require.NoError(t, err)
	require.Equal(t, "prompt", seen[fmt.Sprint(byName[0])])
	got, err := vectorsOf(t, noModules, Options{})
	require.NoError(t, err)
	s := newTester(t, loadTiny(t, "", nn.Float32), opened(t))
	want := poisoned(32)
	require.NoError(t, s.run(context.Background(), want, batch{ids: []int32{2, 5, 17, 20, 3}, starts: []int32{0, 5}}, &chain{[]stage{&pool{by: []pooling{poolMean}}}, 32}, 1))
	requireNear(t, 1e-5, want, got[0], "as sentence-transformers, without Normalize")
}

// One Encoder has the vectors of all prompts.
func TestEmbedPrompt(t *testing.T) {
	for _, include := range []string{"true", "false"} {
		files := changed(current, "1_Pooling/config.json", `"include_prompt": true`, `"include_prompt": `+include)
		e, err := OpenWith(t.Context(), folder(t, files), Options{Dispatcher: opened(t)})
		require.NoError(t, err)
		defer e.Close()
		want, err := vectorsOf(t, files, Options{Prompt: "query"})
		require.NoError(t, err)
		got, err := e.EmbedPrompt(t.Context(), "query", someTexts)
		require.NoError(t, err)
		require.Equal(t, want, got)
		plain, err := e.Embed(t.Context(), someTexts)
		require.NoError(t, err)
		require.NotEqual(t, plain, got)
		got, err = e.EmbedPrompt(t.Context(), "document", someTexts)
		require.NoError(t, err)
		require.Equal(t, plain, got, "an empty prompt")
		_, err = e.EmbedPrompt(t.Context(), "queries", someTexts)
		require.ErrorContains(t, err, `prompt = "queries": must be a prompt of the model: ["document" "query"]`)
	}
}

// Folders for other vectors are rejected: the error names the file, the key and the value.
func TestFoldersRefused(t *testing.T) {
	pooling, modules, sentence := "1_Pooling/config.json", "modules.json", "sentence_bert_config.json"
	settings := "config_sentence_transformers.json"
	with := func(name, text string) map[string]string { return merged(published, map[string]string{name: text}) }
	for want, files := range map[string]map[string]string{
		`1_Pooling/config.json: pooling_mode = "median": must be names among cls`:                             changed(current, pooling, `"mean"`, `"median"`),
		`1_Pooling/config.json: pooling_mode = 3: must be of type string`:                                     changed(current, pooling, `"mean"`, `3`),
		`1_Pooling/config.json: pooling_mode_median_tokens = true: the key is unknown`:                        changed(published, pooling, `{`, `{"pooling_mode_median_tokens": true, `),
		`1_Pooling/config.json: embedding_dimension = 31: must be the model's hidden size, 32`:                changed(current, pooling, `32`, `31`),
		`1_Pooling/config.json: pooling_mode = "mean": must not be there twice`:                               changed(current, pooling, `{`, `{"pooling_mode": "mean", `),
		`1_Pooling/config.json = nothing: the file is missing, and modules.json names its folder`:             with(pooling, ""),
		`modules.json: [1]: path = "../1_Pooling": must be within the model's folder`:                         changed(current, modules, `"1_Pooling"`, `"../1_Pooling"`),
		`modules.json: [2]: type = "sentence_transformers.models.LSTM": must be Dense, Dropout, LayerNorm, N`: changed(published, modules, `models.Normalize`, `models.LSTM`),
		`modules.json: [0]: type = "custom.Transformer": must be Transformer of sentence_transformers`:        changed(published, modules, `sentence_transformers.models.Transformer`, `custom.Transformer`),
		`modules.json: [2]: kwargs = ["task"]: must be []`:                                                    changed(published, modules, `"idx": 2`, `"kwargs": ["task"]`),
		`modules.json: must be a list of modules`:                                                             with(modules, `{}`),
		`modules.json: no module Pooling follows the Transformer, and the model is no sequence classifier`: with(modules, published[modules][:strings.Index(published[modules], `,
		{"idx": 1`)]+"]"),
		`2_Normalize/config.json: module_input_name = "token_embeddings": must be`:                                   changed(current, "2_Normalize/config.json", `{"module_input_name": "sentence_embedding"`, `{"module_input_name": "token_embeddings"`),
		`config_sentence_transformers.json: default_prompt_name = "queries": must be a name in prompts, with a text`: changed(current, settings, `null`, `"queries"`),
		`config_sentence_transformers.json: model_type = "SparseEncoder": must be`:                                   changed(current, settings, `"SentenceTransformer"`, `"SparseEncoder"`),
		`config_sentence_transformers.json: similarity_fn_name = "maxsim": must be`:                                  changed(current, settings, `"cosine"`, `"maxsim"`),
		`config_sentence_transformers.json: vector_scale = 2: the key is unknown`:                                    changed(current, settings, `{`, `{"vector_scale": 2, `),
		`sentence_bert_config.json: query_length = 8: must be null`:                                                  changed(current, sentence, `{`, `{"query_length": 8, `),
		`sentence_bert_config.json: modality_config.text.method = "embed": must be "forward"`:                        changed(current, sentence, `"forward"`, `"embed"`),
		`sentence_bert_config.json: model_args = {"revision":"x"}: must be {}`:                                       changed(current, sentence, `{`, `{"model_args": {"revision": "x"}, `),
		`sentence_bert_config.json: max_seq_length = 0: must be from 1`:                                              changed(published, sentence, `30`, `0`),
		`sentence_bert_config.json: unexpected end`:                                                                  with(sentence, `{`),
		`tokenizer_config.json: model_max_length = 1.5: must be a whole number from 1`:                               changed(current, "tokenizer_config.json", `30`, `1.5`),
		`config.json: model_type = "gpt2": must be bert, `:                                                           with("config.json", `{"model_type":"gpt2"}`),
		`config.json: the file is a web page (HTML)`:                                                                 with("config.json", "<!doctype html>"),
		`modules.json: the file is a pointer of Git LFS`:                                                             with("modules.json", "version https://git-lfs.github.com/spec/v1\n"),
		`config.json is missing: the folder`:                                                                         with("config.json", ""),
		`config.json: vocab_size = 50: must be at least 51, the tokens of the tokenizer`:                             with("tokenizer.json", numbers(51)),
		`model.safetensors: file does not exist`:                                                                     with("model.safetensors", ""),
		`pytorch_model.bin is not read: convert it to safetensors`:                                                   merged(published, map[string]string{"model.safetensors": "", "pytorch_model.bin": "x"}),
		`model.safetensors: safetensors: the file is a pointer of Git LFS`:                                           with("model.safetensors", "version https://git-lfs.github.com/spec/v1\noid sha256:5\nsize 90868376\n"),
		`model.safetensors: safetensors: the file is cut: it has `:                                                   with("model.safetensors", string(readWeights(t)[:len(readWeights(t))-100])),
		`model.safetensors: safetensors: the file is a web page (HTML)`:                                              with("model.safetensors", "<!DOCTYPE html><html>"),
		`model.safetensors.index.json: weight_map: "../x": must be a file of the folder`:                             merged(published, map[string]string{"model.safetensors": "", "model.safetensors.index.json": `{"weight_map": {"a": "../x"}}`}),
		`model-1.safetensors is missing, and`:                                                                        merged(published, map[string]string{"model.safetensors": "", "model.safetensors.index.json": `{"weight_map": {"a": "model-1.safetensors"}}`}),
		`adapter_config.json: base_model_name_or_path = "some/model": must be the folder of the base model`:          with("adapter_config.json", `{"peft_type": "LORA", "base_model_name_or_path": "some/model"}`),
	} {
		_, err := vectorsOf(t, files, Options{})
		require.Error(t, err, want)
		require.Contains(t, filepath.ToSlash(err.Error()), want)
		require.NotContains(t, err.Error(), "\n")
	}
}

// A text of too many tokens is truncated, or an error that names it.
func TestOverflow(t *testing.T) {
	_, err := vectorsOf(t, published, Options{Overflow: Refuse})
	require.EqualError(t, err, "flashkit: texts[3] = 38 tokens: must have at most 30")
	_, err = vectorsOf(t, published, Options{Overflow: Refuse, MaxTokens: 38})
	require.NoError(t, err)
	_, err = vectorsOf(t, published, Options{MaxTokens: 41})
	require.EqualError(t, err, "flashkit: Options.MaxTokens = 41: must be at most 40, the model's positions")
}

func TestOptionsRefused(t *testing.T) {
	for want, o := range map[string]Options{
		`Options.Workers = -1: must be at least 1`:                            {Workers: -1},
		`Options.Precision = "int4": must be f32, bf16-weights, bf16 or int8`: {Precision: "int4"},
		`Options.MaxTokens = -1: must be at least 1`:                          {MaxTokens: -1},
		`Options.Overflow = 2: must be Truncate or Refuse`:                    {Overflow: 2},
		`Options.Prompt = "task": must be a prompt of the model: ["docum`:     {Prompt: "task"},
	} {
		_, err := vectorsOf(t, current, o)
		require.ErrorContains(t, err, want)
	}
	_, err := vectorsOf(t, nil, Options{Prompt: "query"})
	require.ErrorContains(t, err, `Options.Prompt = "query": must be a prompt of the model`)
}
