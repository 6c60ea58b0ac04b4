package main

import (
	"encoding/binary"
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

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
	"special_tokens_map.json":           `{"unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]", "mask_token": "[MASK]"}`,
	"tokenizer_config.json": `{"do_lower_case": true, "unk_token": "[UNK]", "sep_token": "[SEP]", "pad_token": "[PAD]", "cls_token": "[CLS]",
		"mask_token": "[MASK]", "tokenize_chinese_chars": true, "strip_accents": null, "name_or_path": "nreimers/MiniLM-L6-H384-uncased",
		"do_basic_tokenize": true, "never_split": null, "tokenizer_class": "BertTokenizer", "model_max_length": 512}`,
	"tokenizer.json": fast(""),
}

// current are the files of a folder as transformers 5 and sentence-transformers 6 write it.
var current = map[string]string{
	"vocab.txt":             "",
	"1_Pooling/config.json": `{"embedding_dimension": 32, "pooling_mode": "mean", "include_prompt": true}`,
	"2_Normalize/config.json": `{"module_input_name": "sentence_embedding",
		"module_output_name": "sentence_embedding"}`,
	"modules.json": `[{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.base.modules.transformer.Transformer"},
		{"idx": 1, "name": "1", "path": "1_Pooling", "type": "sentence_transformers.sentence_transformer.modules.pooling.Pooling"},
		{"idx": 2, "name": "2", "path": "2_Normalize", "type": "sentence_transformers.base.modules.normalize.Normalize"}]`,
	"config_sentence_transformers.json": `{"model_type": "SentenceTransformer", "__version__": {"sentence_transformers": "6.2.0"},
		"prompts": {"query": "query: ", "document": ""}, "default_prompt_name": null, "similarity_fn_name": "cosine"}`,
	"sentence_bert_config.json": `{"transformer_task": "feature-extraction", "module_output_name": "token_embeddings",
		"modality_config": {"text": {"method": "forward", "method_output_name": "last_hidden_state"}}}`,
	"tokenizer_config.json": `{"backend": "tokenizers", "cls_token": "[CLS]", "do_lower_case": true, "is_local": true, "local_files_only": false,
		"mask_token": "[MASK]", "max_length": 128, "model_max_length": 30, "pad_to_multiple_of": null, "pad_token": "[PAD]", "pad_token_type_id": 0,
		"padding_side": "right", "sep_token": "[SEP]", "stride": 0, "strip_accents": null, "tokenize_chinese_chars": true,
		"tokenizer_class": "BertTokenizer", "truncation_side": "right", "truncation_strategy": "longest_first", "unk_token": "[UNK]"}`,
	"tokenizer.json": fast(""),
}

// fast returns a tokenizer.json with replacements, alternately old and new text.
func fast(replacements ...string) string {
	vocab := map[string]int{}
	for i, token := range strings.Fields(tinyVocab()) {
		vocab[token] = i
	}
	ids, err := json.Marshal(vocab)
	if err != nil {
		panic(err)
	}
	var added []string
	for i, token := range []string{"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"} {
		added = append(added, fmt.Sprintf(`{"id":%d,"special":true,"content":"%s","single_word":false,"lstrip":false,"rstrip":false,"normalized":false}`, i, token))
	}
	text := `{"version":"1.0","truncation":{"max_length":128,"strategy":"LongestFirst","stride":0},"padding":null,"added_tokens":[` + strings.Join(added, ",") + `],
		"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true},
		"pre_tokenizer":{"type":"BertPreTokenizer"},
		"post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"[CLS]","type_id":0}},{"Sequence":{"id":"A","type_id":0}},
		{"SpecialToken":{"id":"[SEP]","type_id":0}}],"pair":[],"special_tokens":{"[CLS]":{"id":"[CLS]","ids":[2],"tokens":["[CLS]"]},"[SEP]":{"id":"[SEP]","ids":[3],"tokens":["[SEP]"]}}},
		"decoder":{"type":"WordPiece","prefix":"##","cleanup":true},
		"model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,"vocab":` + string(ids) + `}}`
	return edit(text, replacements...)
}

func edit(text string, replacements ...string) string {
	for i := 0; i+1 < len(replacements); i += 2 {
		if !strings.Contains(text, replacements[i]) {
			panic(replacements[i])
		}
		text = strings.Replace(text, replacements[i], replacements[i+1], 1)
	}
	return text
}

// merged returns a folder's files with others over them.
func merged(base map[string]string, over map[string]string) map[string]string {
	all := maps.Clone(base)
	maps.Copy(all, over)
	return all
}

// changed is merged with one edited file.
func changed(base map[string]string, name string, replacements ...string) map[string]string {
	return merged(base, map[string]string{name: edit(base[name], replacements...)})
}

const longText = "The weather is fine . coldest weather ! the cold is fine . the weather is cold . the WEATHER is fin\u00e9 . the cold is fine . the a"

// vectorsOf returns the program's output for some texts, one of which has between 30 and 40 tokens.
func vectorsOf(t *testing.T, files map[string]string) (code int, out, errs string) {
	return start(t, "", "--model", folder(t, files), "--json", "The weather is fine!", "Cold", "[MASK] \u00e9", longText)
}

// Equivalent folders of different tools give the same bits. Package nn/bert compares the tiny model
// with transformers.
func TestFoldersLoad(t *testing.T) {
	code, want, errs := vectorsOf(t, published)
	require.Zero(t, code, errs)
	require.Contains(t, want, `"tokens":30,"truncated":true`)
	weights, err := os.ReadFile("../../nn/bert/testdata/tiny.safetensors")
	require.NoError(t, err)
	config := tinyConfig(t)
	for name, files := range map[string]map[string]string{
		"current":            current,
		"with vocab.txt":     merged(current, map[string]string{"vocab.txt": tinyVocab()}),
		"no tokenizer.json":  merged(published, map[string]string{"tokenizer.json": "", "special_tokens_map.json": ""}),
		"tjonly":             merged(published, map[string]string{"vocab.txt": ""}),
		"gamma":              merged(published, map[string]string{"model.safetensors": renamed(t, weights)}),
		"packed type":        merged(published, map[string]string{"model.safetensors": withF4(t, weights)}),
		"empty last line":    merged(published, map[string]string{"vocab.txt": tinyVocab() + "\n"}),
		"no hidden_act":      merged(published, map[string]string{"config.json": edit(config, `, "hidden_act": "gelu"`, "")}),
		"vast length":        changed(published, "tokenizer_config.json", `512`, `1000000000000000019884624838656`),
		"no length there":    changed(published, "tokenizer_config.json", `, "model_max_length": 512`, ``),
		"null length":        changed(current, "sentence_bert_config.json", `{`, `{"max_seq_length": null, `),
		"lowercase twice":    changed(published, "sentence_bert_config.json", `false`, `true`),
		"list of one mode":   changed(current, "1_Pooling/config.json", `"mean"`, `["mean"]`),
		"empty prompt":       changed(current, "config_sentence_transformers.json", `null`, `"document"`),
		"pooling elsewhere":  merged(changed(published, "modules.json", `"1_Pooling"`, `"pool/mean"`), map[string]string{"1_Pooling/config.json": "", "pool/mean/config.json": published["1_Pooling/config.json"]}),
		"generic class":      changed(current, "tokenizer_config.json", `"BertTokenizer"`, `"PreTrainedTokenizerFast"`, `"do_lower_case": true, `, ``),
		"special as objects": merged(published, map[string]string{"special_tokens_map.json": `{"mask_token": {"content": "[MASK]", "lstrip": false, "normalized": false, "rstrip": false, "single_word": false}}`}),
		"decoder of tokens":  changed(published, "tokenizer_config.json", `{`, `{"added_tokens_decoder": {"4": {"content": "[MASK]", "lstrip": false, "normalized": false, "rstrip": false, "single_word": false, "special": true}}, `),
		"added as they are":  merged(published, map[string]string{"added_tokens.json": `{"[MASK]": 4}`}),
		"BertProcessing":     merged(current, map[string]string{"tokenizer.json": fast(`"TemplateProcessing","single":[{"SpecialToken":{"id":"[CLS]","type_id":0}},{"Sequence":{"id":"A","type_id":0}},`, `"BertProcessing","sep":["[SEP]",3],"cls":["[CLS]",2]},"padding":[`, `"pair":[],"special_tokens":{"[CLS]":{"id":"[CLS]","ids":[2],"tokens":["[CLS]"]},"[SEP]":{"id":"[SEP]","ids":[3],"tokens":["[SEP]"]}}},`, ``, `{"SpecialToken":{"id":"[SEP]","type_id":0}}],`, `],`, `"padding":null,`, ``)}),
	} {
		t.Run(name, func(t *testing.T) {
			code, out, errs := vectorsOf(t, files)
			require.Zero(t, code, errs)
			require.Equal(t, want, out)
		})
	}
}

// Folders for other vectors are rejected: the error names the file, the key and the value.
func TestFoldersRefused(t *testing.T) {
	pooling, modules, bert := "1_Pooling/config.json", "modules.json", "sentence_bert_config.json"
	for want, files := range map[string]map[string]string{
		`1_Pooling/config.json: pooling_mode = "cls": must be "mean"`:                               changed(current, pooling, `"mean"`, `"cls"`),
		`1_Pooling/config.json: pooling_mode = ["mean","max"]: must be "mean"`:                      changed(current, pooling, `"mean"`, `["mean", "max"]`),
		`1_Pooling/config.json: pooling_mode_max_tokens = true: must be false`:                      changed(published, pooling, `"pooling_mode_max_tokens": false`, `"pooling_mode_max_tokens": true`),
		`1_Pooling/config.json: pooling_mode_median_tokens = true: the key is unknown`:              changed(published, pooling, `{`, `{"pooling_mode_median_tokens": true, `),
		`1_Pooling/config.json: embedding_dimension = 31: must be 32`:                               changed(current, pooling, `32`, `31`),
		`1_Pooling/config.json: pooling_mode = "mean": the key must not be there twice`:             changed(current, pooling, `{`, `{"pooling_mode": "mean", `),
		`1_Pooling/config.json is missing, and modules.json names its folder`:                       merged(current, map[string]string{pooling: ""}),
		`pool/config.json: pooling_mode = "cls": must be "mean"`:                                    merged(changed(current, modules, `"1_Pooling"`, `"pool"`), map[string]string{"pool/config.json": `{"pooling_mode": "cls"}`}),
		`modules.json: [1].path = "../1_Pooling": must be within the model's folder`:                changed(current, modules, `"1_Pooling"`, `"../1_Pooling"`),
		`modules.json: [2].type = sentence_transformers.models.Dense: must be Normalize`:            changed(published, modules, `models.Normalize`, `models.Dense`),
		`modules.json: [0].type = custom.Transformer: must be Transformer of sentence_transformers`: changed(published, modules, `sentence_transformers.models.Transformer`, `custom.Transformer`),
		`modules.json: [2].kwargs = ["task"]: must be []`:                                           changed(published, modules, `"idx": 2`, `"kwargs": ["task"]`),
		`modules.json: [0].path = 0_Transformer: the Transformer must be in the model's folder`:     changed(published, modules, `"path": ""`, `"path": "0_Transformer"`),
		`modules.json: no module Normalize: vectors here are the mean of the tokens, of length 1`: merged(published, map[string]string{modules: published[modules][:strings.Index(published[modules], `,
		{"idx": 2`)] + "]"}),
		`modules.json: [3].type = sentence_transformers.models.Dense: no module may follow`: changed(published, modules, `}]`, `}, {"path": "3", "type": "sentence_transformers.models.Dense"}]`),
		`modules.json: must be a list`:                                                            merged(published, map[string]string{modules: `{}`}),
		`2_Normalize/config.json: module_input_name = "token_embeddings": must be`:                changed(current, "2_Normalize/config.json", `"sentence_embedding"`, `"token_embeddings"`),
		`config_sentence_transformers.json: default_prompt_name = "query": prompts`:               changed(current, "config_sentence_transformers.json", `null`, `"query"`),
		`config_sentence_transformers.json: truncate_dim = 16: must be null`:                      changed(current, "config_sentence_transformers.json", `{`, `{"truncate_dim": 16, `),
		`config_sentence_transformers.json: model_type = "SparseEncoder": must be`:                changed(current, "config_sentence_transformers.json", `"SentenceTransformer"`, `"SparseEncoder"`),
		`config_sentence_transformers.json: similarity_fn_name = "euclidean": must be`:            changed(current, "config_sentence_transformers.json", `"cosine"`, `"euclidean"`),
		`sentence_bert_config.json: do_lower_case = true: must be false`:                          merged(changed(published, bert, `false`, `true`), changed(map[string]string{"tokenizer_config.json": published["tokenizer_config.json"], "tokenizer.json": ""}, "tokenizer_config.json", `"do_lower_case": true`, `"do_lower_case": false`)),
		`sentence_bert_config.json: query_length = 8: must be null`:                               changed(current, bert, `{`, `{"query_length": 8, `),
		`sentence_bert_config.json: modality_config.text.method = "embed": must be "forward"`:     changed(current, bert, `"forward"`, `"embed"`),
		`sentence_bert_config.json: model_args = {"revision":"x"}: must be {}`:                    changed(current, bert, `{`, `{"model_args": {"revision": "x"}, `),
		`sentence_roberta_config.json: must be called sentence_bert_config.json`:                  merged(published, map[string]string{bert: "", "sentence_roberta_config.json": `{"max_seq_length": 8}`}),
		`tokenizer_config.json: tokenizer_class = "BertJapaneseTokenizer": must be`:               changed(published, "tokenizer_config.json", `"BertTokenizer"`, `"BertJapaneseTokenizer"`),
		`tokenizer_config.json: model_max_length = 1: must be a whole number from 2`:              changed(published, "tokenizer_config.json", `512`, `1`),
		`tokenizer_config.json: do_lower_case = null: must be true or false`:                      changed(published, "tokenizer_config.json", `"do_lower_case": true`, `"do_lower_case": null`),
		`tokenizer_config.json: tokenize_chinese_chars = false: must be true`:                     changed(published, "tokenizer_config.json", `"tokenize_chinese_chars": true`, `"tokenize_chinese_chars": false`),
		`tokenizer_config.json: word_tokenizer_type = "mecab": the key is unknown`:                changed(published, "tokenizer_config.json", `{`, `{"word_tokenizer_type": "mecab", `),
		`tokenizer_config.json: never_split = ["the"]: must be null`:                              changed(published, "tokenizer_config.json", `"never_split": null`, `"never_split": ["the"]`),
		`tokenizer_config.json: padding_side = "left": must be "right"`:                           changed(current, "tokenizer_config.json", `"padding_side": "right"`, `"padding_side": "left"`),
		`tokenizer_config.json: mask_token = "<mask>": must be "[MASK]"`:                          changed(current, "tokenizer_config.json", `"[MASK]"`, `"<mask>"`),
		`tokenizer_config.json: mask_token.normalized = true: must be false`:                      changed(current, "tokenizer_config.json", `"[MASK]"`, `{"content": "[MASK]", "normalized": true}`),
		`tokenizer_config.json: additional_special_tokens = ["[Q]"]: must be []`:                  changed(current, "tokenizer_config.json", `{`, `{"additional_special_tokens": ["[Q]"], `),
		`tokenizer_config.json: added_tokens_decoder: token "is", 7: added tokens are not`:        changed(published, "tokenizer_config.json", `{`, `{"added_tokens_decoder": {"7": {"content": "is"}}, `),
		`tokenizer_config.json: tokenizer_class = "TokenizersBackend": tokenizer.json is missing`: merged(changed(published, "tokenizer_config.json", `"BertTokenizer"`, `"TokenizersBackend"`), map[string]string{"tokenizer.json": ""}),
		`special_tokens_map.json: cls_token = "<s>": must be "[CLS]"`:                             changed(published, "special_tokens_map.json", `"[CLS]"`, `"<s>"`),
		`added_tokens.json: token "<new>" has the id 50, and another or none in the vocabulary`:   merged(published, map[string]string{"added_tokens.json": `{"<new>": 50}`}),
		`tokenizer.json: added_tokens: token "is", 7: added tokens are not supported`:             merged(current, map[string]string{"tokenizer.json": fast(`"added_tokens":[`, `"added_tokens":[{"id":7,"content":"is"},`)}),
		`tokenizer.json: added_tokens[0].lstrip = true: must be false`:                            merged(current, map[string]string{"tokenizer.json": fast(`"lstrip":false`, `"lstrip":true`)}),
		`tokenizer.json: normalizer.lowercase = false: must be do_lower_case of`:                  merged(current, map[string]string{"tokenizer.json": fast(`"lowercase":true`, `"lowercase":false`)}),
		`tokenizer.json: normalizer.strip_accents = false: must be null, or lowercase`:            merged(current, map[string]string{"tokenizer.json": fast(`"strip_accents":null`, `"strip_accents":false`)}),
		`tokenizer.json: normalizer.type = "NFKC": must be "BertNormalizer"`:                      merged(current, map[string]string{"tokenizer.json": fast(`"BertNormalizer"`, `"NFKC"`)}),
		`tokenizer.json: normalizer = null: must be an object`:                                    merged(current, map[string]string{"tokenizer.json": fast(`"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true}`, `"normalizer":null`)}),
		`tokenizer.json: normalizer.lowercase = nothing: the key is missing`:                      merged(current, map[string]string{"tokenizer.json": fast(`,"lowercase":true`, ``)}),
		`tokenizer.json: pre_tokenizer.type = "Metaspace": must be "BertPreTokenizer"`:            merged(current, map[string]string{"tokenizer.json": fast(`"BertPreTokenizer"`, `"Metaspace"`)}),
		`tokenizer.json: post_processor: token "[SEP]" has the id 5, and another or none in`:      merged(current, map[string]string{"tokenizer.json": fast(`"ids":[3]`, `"ids":[5]`)}),
		`tokenizer.json: model.type = "Unigram": must be "WordPiece"`:                             merged(current, map[string]string{"tokenizer.json": fast(`"type":"WordPiece","unk`, `"type":"Unigram","unk`)}),
		`tokenizer.json: model.max_input_chars_per_word = 50: must be 100`:                        merged(current, map[string]string{"tokenizer.json": fast(`100`, `50`)}),
		`vocab.txt: token "cold" has another id, or none, in tokenizer.json`:                      merged(published, map[string]string{"tokenizer.json": fast(`"cold":9`, `"cold":8`)}),
		`tokenizer.json has 51 tokens, and the model 50`:                                          merged(current, map[string]string{"tokenizer.json": fast(`"cold":9`, `"cold":50`)}),
		`tokenizer.json: model.vocab: token "cold" has the id -9`:                                 merged(current, map[string]string{"tokenizer.json": fast(`"cold":9`, `"cold":-9`)}),
		`adapter_config.json: adapters are not supported`:                                         merged(published, map[string]string{"adapter_config.json": `{}`}),
		`config.json: flashkit: config.rope_theta = 1e4: the key is unknown`:                      merged(published, map[string]string{"config.json": edit(tinyConfig(t), `{`, `{"rope_theta": 1e4, `)}),
		`model.safetensors: safetensors: the file is a pointer of Git LFS`:                        merged(published, map[string]string{"model.safetensors": "version https://git-lfs.github.com/spec/v1\noid sha256:" + strings.Repeat("5", 64) + "\nsize 90868376\n"}),
		`model.safetensors.index.json: weights in several files are not supported`:                merged(published, map[string]string{"model.safetensors": "", "model.safetensors.index.json": `{"weight_map": {}}`}),
		`pytorch_model.bin is not read: convert it to safetensors`:                                merged(published, map[string]string{"model.safetensors": "", "pytorch_model.bin": "PK\x03\x04"}),
	} {
		t.Run("", func(t *testing.T) {
			code, out, errs := vectorsOf(t, files)
			require.Contains(t, filepath.ToSlash(errs), want)
			require.Equal(t, 1, strings.Count(errs, "\n"), errs)
			require.Equal(t, 1, code)
			require.Empty(t, out)
		})
	}
}

// An unknown key is rejected at any depth.
func TestUnknownKeys(t *testing.T) {
	files := merged(current, map[string]string{"config.json": tinyConfig(t), "special_tokens_map.json": published["special_tokens_map.json"], "added_tokens.json": `{}`})
	skipped := []string{`"__version__": {`, `"prompts": {`, `"truncation":{`, `"decoder":{`, `"vocab":{`, `"SpecialToken":{`, `"Sequence":{`, `"special_tokens":{`, `"[CLS]":{`, `"[SEP]":{`}
	objects := 0
	for _, name := range slices.Sorted(maps.Keys(files)) {
		text := files[name]
		for at := range text {
			if text[at] != '{' || slices.ContainsFunc(skipped, func(s string) bool { return strings.HasSuffix(text[:at+1], s) }) {
				continue
			}
			if name == "tokenizer.json" && strings.HasPrefix(text[at:], `{"Sp`) || strings.HasPrefix(text[at:], `{"Seq`) {
				continue // compared as a whole
			}
			objects++
			separator := ", "
			if strings.HasPrefix(text[at:], "{}") {
				separator = ""
			}
			code, _, errs := vectorsOf(t, merged(files, map[string]string{name: text[:at+1] + `"surprise": 1` + separator + text[at+1:]}))
			require.Equal(t, 1, code, "%s, byte %d: %s", name, at, text[:at+1])
			require.Contains(t, filepath.ToSlash(errs), name)
			require.Contains(t, errs, "surprise")
		}
	}
	require.GreaterOrEqual(t, objects, 21)
}

// renamed returns weights with the names of the published bert-base-uncased.
func renamed(t *testing.T, weights []byte) string {
	f, err := safetensors.Parse(weights)
	require.NoError(t, err)
	old := strings.NewReplacer("LayerNorm.weight", "LayerNorm.gamma", "LayerNorm.bias", "LayerNorm.beta")
	for i := range f.Tensors {
		f.Tensors[i].Name = "bert." + old.Replace(f.Tensors[i].Name)
	}
	var b strings.Builder
	require.NoError(t, f.Write(&b))
	return b.String()
}

// withF4 returns weights with an additional tensor of type F4.
func withF4(t *testing.T, weights []byte) string {
	n := binary.LittleEndian.Uint64(weights)
	header, data := strings.TrimRight(string(weights[8:8+n]), " "), string(weights[8+n:])
	header = strings.TrimSuffix(header, "}") + fmt.Sprintf(`,"other":{"dtype":"F4","shape":[4],"data_offsets":[%d,%d]}}`, len(data), len(data)+2)
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return string(b) + header + data + "\x00\x00"
}

// Files of anybody's are an error, or not. Nothing panics.
func FuzzFiles(f *testing.F) {
	for _, text := range []string{published["modules.json"], current["tokenizer_config.json"], fast(), current["1_Pooling/config.json"], `{"[MASK]": 4}`, `[{}]`, `null`} {
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		if !json.Valid(text) {
			return
		}
		x := &tokenizerFolder{}
		for _, r := range []rule{object(x.configRules()), object(x.fastRules(), "model"), object(tokenRules()), x.addedTokens, object(poolingRules(32)), list(object(rules{}))} {
			if err := r(text); err != nil {
				require.NotContains(t, err.Error(), "\n")
			}
		}
		_ = x.checkAdded(x.vocab)
	})
}
