package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// tinyConfig returns the config.json of the tiny model of nn/bert.
func tinyConfig(t testing.TB) string {
	vectors, err := os.ReadFile("../../nn/bert/testdata/tiny.json")
	require.NoError(t, err)
	var tiny struct{ Config json.RawMessage }
	require.NoError(t, json.Unmarshal(vectors, &tiny))
	return string(tiny.Config)
}

// tinyVocab returns a vocabulary of 50 tokens.
func tinyVocab() string {
	vocab := "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\nthe\nweather\nis\nfine\ncold\n##er\n##est\n!\n.\n"
	for i := strings.Count(vocab, "\n"); i < 50; i++ {
		vocab += string(rune('a'+i%26)) + strings.Repeat("x", i/26) + "\n"
	}
	return vocab
}

// folder creates a model of the tiny weights of nn/bert and a vocabulary of 50 tokens, with some
// files replaced. An empty file is removed.
func folder(t testing.TB, files map[string]string) string {
	dir := t.TempDir()
	weights, err := os.ReadFile("../../nn/bert/testdata/tiny.safetensors")
	require.NoError(t, err)
	all := map[string]string{"config.json": tinyConfig(t), "model.safetensors": string(weights), "vocab.txt": tinyVocab()}
	for name, text := range files {
		all[name] = text
	}
	for name, text := range all {
		if text != "" {
			name = filepath.Join(dir, name)
			require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o777))
			require.NoError(t, os.WriteFile(name, []byte(text), 0o666))
		}
	}
	return dir
}

// start runs the program.
func start(t testing.TB, in string, args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = command(context.Background(), args, strings.NewReader(in), &o, &e)
	return code, o.String(), e.String()
}

func TestTable(t *testing.T) {
	dir := folder(t, nil)
	code, out, errs := start(t, "", "--model", dir, "The weather is fine.", "the WEATHER is fin\u00e9 .", "Cold!\x1b[31m")
	require.Equal(t, "", errs)
	require.Zero(t, code)
	rows := strings.Split(out, "\n")
	require.Len(t, rows, 5)
	require.Equal(t, "      1      2      3", rows[0])
	require.Regexp(t, `^ 1\.0000 1\.0000.{7}  1  The weather is fine\.$`, rows[1])
	require.Regexp(t, `^ 1\.0000 1\.0000.{7}  2  the WEATHER`, rows[2])
	require.Regexp(t, `^.{14} 1\.0000  3  Cold!\.\[31m$`, rows[3], "a terminal must not take it for a command")
}

// Arguments, a file and the standard input give the same, in every form, with any number of
// workers.
func TestForms(t *testing.T) {
	dir := folder(t, nil)
	texts := []string{"the weather is fine", "", "cold coldest", strings.Repeat("a ", 100)}
	input := strings.Join(texts, "\r\n") + "\n"
	file := filepath.Join(t.TempDir(), "texts")
	require.NoError(t, os.WriteFile(file, []byte(input), 0o666))
	code, want, errs := start(t, "", append([]string{"--model", dir, "--json"}, texts...)...)
	require.Zero(t, code, errs)
	_, numbers, _ := start(t, input, "--model", dir, "--vectors")
	for _, args := range [][]string{{"--file", file}, {"--file", "-"}, {"--workers", "1"}, {"--workers", "3"}} {
		code, out, errs := start(t, input, append([]string{"--model", dir, "--json"}, args...)...)
		require.Zero(t, code, errs)
		require.Equal(t, want, out)
	}
	lines, rows := strings.Split(strings.TrimSpace(want), "\n"), strings.Split(strings.TrimSpace(numbers), "\n")
	require.Len(t, lines, len(texts))
	require.Len(t, rows, len(texts))
	for i, line := range lines {
		var r result
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		require.Equal(t, texts[i], r.Text)
		require.Equal(t, []int{6, 2, 5, 40}[i], r.Tokens)
		require.Equal(t, i == 3, r.Truncated)
		require.Len(t, r.Vector, 32)
		require.InDelta(t, 1, dot(r.Vector, r.Vector), 1e-5)
		require.Equal(t, fmt.Sprint(r.Vector), "["+rows[i]+"]")
	}
}

// More texts than a batch has come out as each of them alone.
func TestManyTexts(t *testing.T) {
	dir := folder(t, nil)
	var input strings.Builder
	for i := range 3*batchTexts + 5 {
		input.WriteString(strings.Repeat("cold weather! ", i%7) + fmt.Sprintln("fine", i%3))
	}
	code, out, errs := start(t, input.String(), "--model", dir, "--json")
	require.Zero(t, code, errs)
	seen := map[string][]float32{}
	n := 0
	for line := range strings.Lines(out) {
		var r result
		require.NoError(t, json.Unmarshal([]byte(line), &r))
		if before := seen[r.Text]; before != nil {
			for i, v := range r.Vector {
				require.InDelta(t, before[i], v, 1e-5)
			}
		}
		seen[r.Text] = r.Vector
		n++
	}
	require.Equal(t, 3*batchTexts+5, n)
	require.Len(t, seen, 21)
}

func TestMaxTokens(t *testing.T) {
	dir := folder(t, map[string]string{"sentence_bert_config.json": `{"max_seq_length": 5}`})
	for _, c := range []struct {
		args []string
		want int
	}{{nil, 5}, {[]string{"--max-tokens", "7"}, 7}, {[]string{"--max-tokens", "2"}, 2}} {
		code, out, errs := start(t, "", append(append([]string{"--model", dir, "--json"}, c.args...), "the weather is fine . the")...)
		require.Zero(t, code, errs)
		var r result
		require.NoError(t, json.Unmarshal([]byte(out), &r))
		require.Equal(t, c.want, r.Tokens)
		require.True(t, r.Truncated)
	}
}

// Each error names the problem and its object.
func TestErrors(t *testing.T) {
	broken := func(name, text string) []string {
		return []string{"--model", folder(t, map[string]string{name: text}), "a", "b"}
	}
	good := folder(t, nil)
	long := filepath.Join(t.TempDir(), "long")
	require.NoError(t, os.WriteFile(long, []byte("a\n"+strings.Repeat("b", longestLine+1)), 0o666))
	for _, c := range []struct {
		code int
		want string
		args []string
	}{
		{2, "minilm: --model is missing: see --help\n", nil},
		{2, "flag provided but not defined: -modle", []string{"--modle", good}},
		{2, "--json and --vectors: one of them", []string{"--model", good, "--json", "--vectors", "a"}},
		{2, `--file beside the argument "a"`, []string{"--model", good, "--file", "f", "a"}},
		{2, `--precision "int8": must be f32, bf16-weights or bf16`, []string{"--model", good, "--precision", "int8", "a"}},
		{2, "--workers -1: must be at least 1, or 0", []string{"--model", good, "--workers", "-1", "a"}},
		{2, "--max-tokens 1: must be at least 2, or 0", []string{"--model", good, "--max-tokens", "1", "a"}},
		{1, "--max-tokens 41: the model has 40 positions", []string{"--model", good, "--max-tokens", "41", "a"}},
		{1, "none/config.json: ", []string{"--model", filepath.Join(good, "none"), "a"}},
		{1, "/none: ", []string{"--model", good, "--file", filepath.Join(good, "none")}},
		{1, "long, line 2: more than 1048576 bytes", []string{"--model", good, "--file", long}},
		{1, `model_type = "gpt2": must be "bert"`, broken("config.json", `{"model_type":"gpt2"}`)},
		{1, "/vocab.txt: ", broken("vocab.txt", "")},
		{1, "vocab.txt: unk_token: \"[UNK]\" is not in the vocabulary of 1 tokens", broken("vocab.txt", "a")},
		{1, "vocab.txt has 51 tokens, and the model 50", broken("vocab.txt", "[UNK]\n[CLS]\n[SEP]\n"+strings.Repeat("x\n", 48))},
		{1, "/model.safetensors: ", broken("model.safetensors", "")},
		{1, "model.safetensors: safetensors: ", broken("model.safetensors", "12345678")},
		{1, "sentence_bert_config.json: max_seq_length = 41: must be from 2 to 40", broken("sentence_bert_config.json", `{"max_seq_length":41}`)},
		{1, "sentence_bert_config.json: unexpected end", broken("sentence_bert_config.json", `{`)},
		{1, `1_Pooling/config.json: pooling_mode_cls_token = true: must be false`, broken("1_Pooling/config.json", `{"pooling_mode_cls_token":true}`)},
		{1, `1_Pooling/config.json: pooling_mode_mean_tokens = false: must be true`, broken("1_Pooling/config.json", `{"pooling_mode_mean_tokens":false}`)},
		{1, "tokenizer_config.json: strip_accents = false: must be null, or do_lower_case, true", broken("tokenizer_config.json", `{"do_lower_case":true,"strip_accents":false}`)},
		{1, "more than 50 texts are too many for a table", append([]string{"--model", good}, strings.Split(strings.Repeat("a ", 50), " ")...)},
	} {
		code, out, errs := start(t, "", c.args...)
		require.Equal(t, c.code, code, errs)
		require.Contains(t, filepath.ToSlash(errs), c.want)
		require.Equal(t, 1, strings.Count(errs, "\n"), errs)
		require.Empty(t, out)
	}
}

func TestHelp(t *testing.T) {
	code, out, errs := start(t, "", "--help")
	require.Zero(t, code, errs)
	for _, part := range []string{"minilm --model", "-workers", "-json", "Exit codes", "FLASHKIT_BACKEND"} {
		require.Contains(t, out, part)
	}
	code, out, _ = start(t, "", "--model", folder(t, nil))
	require.Zero(t, code)
	require.Empty(t, out, "no texts, no table")
}

func TestInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, errs bytes.Buffer
	require.Equal(t, 130, command(ctx, []string{"--model", folder(t, nil), "--json", "a"}, nil, &out, &errs))
	require.Equal(t, "minilm: interrupted\n", errs.String())
	require.Empty(t, out.String())
}

func TestShort(t *testing.T) {
	require.Equal(t, strings.Repeat("\u00e9", 60)+"...", short(strings.Repeat("\u00e9", 61)))
	require.Equal(t, strings.Repeat("\u00e9", 60), short(strings.Repeat("\u00e9", 60)))
	require.LessOrEqual(t, len(short(strings.Repeat("\xff", 1<<20))), 70)
	require.False(t, math.IsNaN(dot(nil, nil)))
}
