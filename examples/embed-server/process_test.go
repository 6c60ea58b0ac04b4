package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/safetensors"
)

// asServer is the variable of the environment that makes this test a server, with
// its value as flags.
const asServer = "EXAMPLE_EMBED_SERVER"

func TestMain(m *testing.M) {
	if flags := os.Getenv(asServer); flags != "" {
		os.Args = append(os.Args[:1], strings.Fields(flags)...)
		main()
		return
	}
	os.Exit(m.Run())
}

// A process is a server in a process of its own.
type process struct {
	*client
	*exec.Cmd
}

func newProcess(t testing.TB, flags string) *process {
	c := exec.Command(os.Args[0])
	c.Env = append(os.Environ(), asServer+"=-addr localhost:0 "+flags)
	out, err := c.StderrPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	t.Cleanup(func() {
		c.Process.Kill()
		c.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	require.NoError(t, err)
	_, url, found := strings.Cut(strings.TrimSpace(line), "listening on ")
	require.True(t, found, line)
	return &process{newClient(t, url), c}
}

// memory returns the maximum memory of a process in MiB, 0 if unknown.
func memory(pid int) float64 {
	text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	_, line, _ := strings.Cut(string(text), "VmHWM:")
	kib, _, _ := strings.Cut(strings.TrimSpace(line), " ")
	n, _ := strconv.Atoi(kib)
	return float64(n) / 1024
}

// words are the vocabulary of tiny models.
var words = strings.Fields("[PAD] [UNK] [CLS] [SEP] [MASK] the a cat dog sleeps runs black small house tree")

// tinyFolder writes a model of one layer with random weights, and with a classifier of one label if
// it reranks.
func tinyFolder(t testing.TB, id string, reranks bool) string {
	const hidden, inner, positions = 8, 16, 64
	dir := filepath.Join(t.TempDir(), id)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	var f safetensors.File
	add := func(name string, shape ...int) {
		n := 1
		for _, d := range shape {
			n *= d
		}
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(rand.NormFloat64())
		}
		f.Tensors = append(f.Tensors, safetensors.FromFloat32s(name, shape, x))
	}
	linear := func(name string, in, out int) { add(name+".weight", out, in); add(name+".bias", out) }
	norm := func(name string) { add(name+".LayerNorm.weight", hidden); add(name+".LayerNorm.bias", hidden) }
	prefix := map[bool]string{true: "bert."}[reranks]
	for part, rows := range map[string]int{"word": len(words), "position": positions, "token_type": 2} {
		add(prefix+"embeddings."+part+"_embeddings.weight", rows, hidden)
	}
	norm(prefix + "embeddings")
	layer := prefix + "encoder.layer.0."
	for _, part := range []string{"self.query", "self.key", "self.value", "output.dense"} {
		linear(layer+"attention."+part, hidden, hidden)
	}
	norm(layer + "attention.output")
	linear(layer+"intermediate.dense", hidden, inner)
	linear(layer+"output.dense", inner, hidden)
	norm(layer + "output")
	config := map[string]any{"model_type": "bert", "architectures": []string{"BertModel"}, "vocab_size": len(words), "hidden_size": hidden,
		"num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": inner, "max_position_embeddings": positions,
		"type_vocab_size": 2, "layer_norm_eps": 1e-12, "hidden_act": "gelu"}
	if reranks {
		config["architectures"], config["id2label"] = []string{"BertForSequenceClassification"}, map[string]string{"0": "LABEL_0"}
		config["label2id"] = map[string]int{"LABEL_0": 0}
		linear("bert.pooler.dense", hidden, hidden)
		linear("classifier", hidden, 1)
	}
	text, err := json.Marshal(config)
	require.NoError(t, err)
	var weights bytes.Buffer
	require.NoError(t, f.Write(&weights))
	for name, text := range map[string][]byte{"config.json": text, "model.safetensors": weights.Bytes(),
		"vocab.txt": []byte(strings.Join(words, "\n") + "\n")} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), text, 0o644))
	}
	return dir
}

// A process serves two models of nn/encoder in int8, with a calibration. SIGTERM ends it, with status 0, after it has answered.
func TestProcess(t *testing.T) {
	if runtime.GOOS == "windows" || runtime.GOOS == "js" || testing.Short() && runtime.GOOS != "linux" {
		t.Skip("no signals between processes")
	}
	texts := filepath.Join(t.TempDir(), "texts")
	require.NoError(t, os.WriteFile(texts, []byte("the cat\r\n\nthe dog\n"), 0o644))
	rounded := " -precision int8 -calibration " + texts + " -float32 encoder.layer.0.output.dense.weight"
	p := newProcess(t, "-model "+tinyFolder(t, "small", false)+" -reranker "+tinyFolder(t, "judge", true)+rounded)
	a := ask[embeddings](t, p.client, onEmbeddings, `{"model":"small","input":["the cat sleeps","the dog runs","the cat sleeps"]}`)
	require.Equal(t, 15, a.Usage["total_tokens"])
	require.Len(t, a.Data, 3)
	require.Equal(t, a.Data[0].Embedding, a.Data[2].Embedding)
	require.NotEqual(t, a.Data[0].Embedding, a.Data[1].Embedding)
	r := ask[scores](t, p.client, onRerank, `{"query":"the cat","documents":["a cat sleeps","a dog runs"]}`)
	require.Len(t, r.Results, 2)
	require.GreaterOrEqual(t, r.Results[0].Score, r.Results[1].Score)
	require.Equal(t, 2*(4+5), r.Usage["total_tokens"])
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	ended := make(chan error, 1)
	go func() { ended <- p.Wait() }()
	select {
	case err := <-ended:
		require.NoError(t, err)
	case <-time.After(time.Minute):
		t.Fatal("it goes on")
	}
}

func TestRun(t *testing.T) {
	for _, c := range []struct{ flags, words string }{
		{"x", `"x"`},
		{"", "no model: set -model FOLDER, -reranker FOLDER, or both"},
		{"-model a -requests 0", "positive"},
		{"-model a -connections 0", "positive"},
		{"-model a -batch 0", "positive"},
		{"-model a -timeout 0s", "positive"},
		{"-model a -body 1000 -bytes 3999", "at most a quarter"},
		{"-model a/b -reranker c/b", `not both "b"`},
		{"-model nowhere/at/all", "nowhere"},
		{"-reranker a -prompt query", "-prompt: needs -model"},
		{"-reranker a -float32 x", "-float32: needs -model"},
		{"-model a -calibration nowhere", "nowhere"},
	} {
		var text bytes.Buffer
		require.ErrorContains(t, run(t.Context(), strings.Fields(c.flags), &text), c.words, c.flags)
	}
	var text bytes.Buffer
	require.Error(t, run(t.Context(), []string{"--help"}, &text))
	require.Contains(t, text.String(), "-matryoshka")
	require.ErrorContains(t, run(t.Context(), []string{"-model", tinyFolder(t, "small", false), "-addr", "nowhere:-1"}, &text), "invalid port")
	for flags, words := range map[string]string{"-precision int8 -float32 a,b": `Options.Float32 = "a"`, "-float32 a": "Options.Float32 = 1 names", "-calibration " + os.Args[0]: "Options.Calibration"} {
		require.ErrorContains(t, run(t.Context(), append([]string{"-model", tinyFolder(t, "small", false)}, strings.Fields(flags)...), &text), words)
	}
	require.ErrorContains(t, run(t.Context(), []string{"-reranker", tinyFolder(t, "small", false)}, &text), "small: ")
}

// A model's costs lie between measurements, rise with the tokens, and go on after the last one.
func TestCosts(t *testing.T) {
	m := known(&fake{}, false)
	m.rows = []row{{10, 0.001}, {100, 0.02}, {1000, 0.5}}
	for tokens, ms := range map[int]float64{1: 0.1, 10: 1, 55: 10.5, 100: 20, 550: 260, 1000: 500, 2000: 500 + 1000*480/900.} {
		require.InDelta(t, ms, float64(m.cost(tokens))/1e6, 1e-3, "%d", tokens)
	}
	m.rows = []row{{10, 0.001}, {100, 0.0005}} // noise
	require.Equal(t, time.Millisecond, m.cost(1000))
	m.rows = []row{{10, math.MaxFloat64}}
	require.Positive(t, m.cost(1000))
}

// newModel measures up to the model's limit, with calls of several short texts.
func TestNewModel(t *testing.T) {
	f := &fake{dim: 2, most: 100, perToken: 20 * time.Microsecond, perCall: 5 * time.Millisecond}
	m, err := newModel(t.Context(), "small", f, false)
	require.NoError(t, err)
	require.Len(t, m.rows, 3)
	for i, tokens := range []float64{10, 34, 100} {
		require.Equal(t, tokens, m.rows[i].tokens)
	}
	require.Positive(t, m.fixed)
	m, err = newModel(t.Context(), "small", &fake{dim: 2, perToken: 1200 * time.Microsecond}, true)
	require.NoError(t, err)
	require.Len(t, m.rows, 1, "the first call is slow")
}
