package encoder

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/nn"
	"github.com/flashkit-go/flashkit/safetensors"
)

// A rotaryCase is a folder that tools/rotary_vectors.py writes.
type rotaryCase struct {
	name, config   string
	weights        []byte
	batch          batch
	hidden, logits []float32
}

// rotaryCases returns the cases of testdata.
func rotaryCases(t *testing.T) (list []rotaryCase) {
	folders, err := filepath.Glob("testdata/rotary/*")
	require.NoError(t, err)
	require.NotEmpty(t, folders)
	for _, folder := range folders {
		config, err := os.ReadFile(filepath.Join(folder, "config.json"))
		require.NoError(t, err)
		weights, err := os.ReadFile(filepath.Join(folder, "model.safetensors"))
		require.NoError(t, err)
		f, err := safetensors.Parse(weights)
		require.NoError(t, err)
		x := rotaryCase{name: filepath.Base(folder), config: string(config), weights: weights}
		x.batch = batch{ids: integers(t, f, "test.ids"), starts: integers(t, f, "test.starts")}
		want, err := f.Require("test.hidden")
		require.NoError(t, err)
		x.hidden, err = want.Float32s()
		require.NoError(t, err)
		if logits, ok := f.Tensor("test.logits"); ok {
			x.logits, err = logits.Float32s()
			require.NoError(t, err)
		}
		list = append(list, x)
	}
	return list
}

func integers(t *testing.T, f *safetensors.File, name string) []int32 {
	tensor, err := f.Require(name)
	require.NoError(t, err)
	x := make([]int32, len(tensor.Data)/4)
	for i := range x {
		x[i] = int32(binary.LittleEndian.Uint32(tensor.Data[4*i:]))
	}
	return x
}

func (x *rotaryCase) load(t testing.TB, p nn.Precision) family {
	m, err := loadText(x.config, x.weights, p)
	require.NoError(t, err, x.name)
	return m
}

// Hidden states and logits equal transformers' for packed sequences. One has one token,
// and others are longer than windows.
func TestRotaryFamilies(t *testing.T) {
	d := opened(t)
	for _, x := range rotaryCases(t) {
		t.Run(x.name, func(t *testing.T) {
			e := &Encoder{}
			require.NoError(t, e.read(folder(t, map[string]string{"config.json": x.config, "model.safetensors": string(x.weights), "tokenizer.json": numbers(40)})))
			for _, workers := range []int{1, 2} {
				s := newTester(t, e.model, d)
				out := poisoned(len(x.hidden))
				require.NoError(t, s.run(t.Context(), out, x.batch, hidden(e.model.shape().hidden), workers))
				requireNear(t, 1e-5, x.hidden, out, "hidden states")
				if x.logits == nil {
					require.Nil(t, e.head)
					continue
				}
				out = poisoned(len(x.logits))
				require.NoError(t, s.run(t.Context(), out, x.batch, e.head, workers))
				requireNear(t, 1e-5, x.logits, out, "logits")
			}
		})
	}
}

// A token classifier has the layers of a classifier of first tokens, for each token.
func TestModernBERTTags(t *testing.T) {
	for _, x := range rotaryCases(t) {
		if x.name != "modernbert" {
			continue
		}
		e := &Encoder{}
		require.NoError(t, e.read(folder(t, map[string]string{"config.json": edit(x.config, "ForSequenceC", "ForTokenC"),
			"model.safetensors": string(x.weights), "tokenizer.json": numbers(40)})))
		require.Len(t, e.tagger.labels, 3)
		s, out := newTester(t, e.model, opened(t)), poisoned(3*len(x.batch.ids))
		require.NoError(t, s.run(t.Context(), out, x.batch, e.tagger, 1))
		for i, at := range x.batch.starts[:len(x.batch.starts)-1] {
			requireNear(t, 1e-5, x.logits[3*i:][:3], out[3*at:][:3], "sequence %d", i)
		}
		return
	}
}

// A published config.json has the keys of transformers and of the first models' code. transformers
// rotates all positions, and the first code's number of positions is larger.
func TestNomicBERTBothKeys(t *testing.T) {
	for _, x := range rotaryCases(t) {
		if x.name != "nomicbert" {
			continue
		}
		x.config = edit(x.config, `"head_dim": 8`, `"n_embd": 16, "n_layer": 2, "n_head": 2, "n_inner": 24, "n_positions": 8192, "max_trained_positions": 2048,
			"activation_function": "swiglu", "causal": false, "layer_norm_epsilon": 1e-12, "qkv_proj_bias": false, "rotary_emb_base": 1000, "rotary_emb_fraction": 1.0,
			"rotary_emb_interleaved": false, "rotary_emb_scale_base": null, "rotary_scaling_factor": null, "use_flash_attn": true, "use_rms_norm": false`)
		m := x.load(t, nn.Float32)
		require.Equal(t, 8192, m.shape().positions)
		s, out := newTester(t, m, opened(t)), poisoned(len(x.hidden))
		require.NoError(t, s.run(t.Context(), out, x.batch, hidden(m.shape().hidden), 1))
		requireNear(t, 1e-5, x.hidden, out, "hidden states")
		return
	}
	t.Fatal("no case nomicbert")
}

// Results for a text do not depend on other texts of a batch, and warm calls allocate nothing.
func TestRotaryBatches(t *testing.T) {
	d := opened(t).Frozen()
	for _, x := range rotaryCases(t) {
		t.Run(x.name, func(t *testing.T) {
			m := x.load(t, nn.Float32)
			s, h := newTester(t, m, d), m.shape().hidden
			alone, at := make([]float32, len(x.hidden)), 0
			for i := range len(x.batch.starts) - 1 {
				n := x.batch.starts[i+1] - x.batch.starts[i]
				b := batch{ids: x.batch.ids[x.batch.starts[i]:][:n], starts: []int32{0, n}}
				require.NoError(t, s.run(t.Context(), alone[at:][:int(n)*h], b, hidden(h), 1))
				at += int(n) * h
			}
			requireNear(t, 1e-5, x.hidden, alone, "alone")
			ctx, out := t.Context(), poisoned(len(x.hidden))
			var all tail = hidden(h)
			call := func() { require.NoError(t, s.run(ctx, out, x.batch, all, 1)) }
			call()
			call()
			require.Less(t, allocs.PerRun(20, call), 1.0)
		})
	}
}

// The memory of a long text is five rows of hidden features for each token (x, the queries, keys and
// values, and the attention's result), and scratch memory for some rows.
func TestRotaryMemory(t *testing.T) {
	for _, x := range rotaryCases(t) {
		if x.name != "modernbert" {
			continue
		}
		const tokens = 8000
		x.config = edit(x.config, `"max_position_embeddings": 512`, `"max_position_embeddings": 8192`)
		m := x.load(t, nn.Float32)
		s, h := newTester(t, m, opened(t)), m.shape().hidden
		b := batch{ids: make([]int32, tokens), starts: []int32{0, tokens}}
		require.NoError(t, s.run(t.Context(), make([]float32, h), b, meanVector(h), 1))
		require.Less(t, s.groups[0].step.Memory(), 4*5*h*tokens+2<<20)
	}
}

// Each key that changes results is read or refused.
func TestRotaryRefusals(t *testing.T) {
	cases := map[string]rotaryCase{}
	for _, x := range rotaryCases(t) {
		cases[x.name] = x
	}
	for _, c := range []struct{ name, old, now, message string }{
		{"modernbert", `"norm_bias": false`, `"norm_bias": false, "parallel_attn": true`, "parallel_attn"},
		{"modernbert", `"hidden_activation": "gelu"`, `"hidden_activation": "tanh"`, "hidden_activation"},
		{"modernbert", `"rope_type": "default"`, `"rope_type": "dynamic", "factor": 2`, "rope_parameters.full_attention.rope_type"},
		{"modernbert", `"rope_type": "default"`, `"rope_type": "default", "factor": 2`, "rope_parameters.full_attention.factor"},
		{"modernbert", `"sliding_attention",`, `"chunked_attention",`, "layer_types"},
		{"modernbert", `"num_hidden_layers": 4`, `"num_hidden_layers": 3`, "layer_types"},
		{"nomicbert-first", `"causal": false`, `"causal": true`, "causal"},
		{"nomicbert-first", `"swiglu"`, `"geglu"`, "activation_function"},
		{"nomicbert-first", `"rotary_emb_fraction": 1.0`, `"rotary_emb_fraction": 0.5`, "rotary_emb_fraction"},
		{"nomicbert-first", `"causal": false`, `"num_experts": 8, "causal": false`, "num_experts"},
		{"nomicbert", `"head_dim": 8`, `"n_embd": 24`, "n_embd"},
		{"nomicbert", `"head_dim": 8`, `"n_inner": 16`, "n_inner"},
		{"nomicbert", `"head_dim": 8`, `"n_layer": 3`, "n_layer"},
		{"nomicbert", `"head_dim": 8`, `"n_embd": 16, "n_head": 4`, "n_head"},
		{"nomicbert", `"head_dim": 8`, `"layer_norm_epsilon": 1e-5`, "layer_norm_epsilon"},
		{"nomicbert", `"hidden_act": "silu"`, `"hidden_act": "gelu", "activation_function": "swiglu"`, "activation_function"},
		{"nomicbert", `"head_dim": 8`, `"rotary_emb_base": 10000`, "rotary_emb_base"},
		{"nomicbert", `"head_dim": 8`, `"causal": true`, "causal"},
		{"qwen3", `"use_sliding_window": false`, `"use_sliding_window": false, "is_causal": false`, "is_causal"},
		{"qwen3", `"num_key_value_heads": 2`, `"num_key_value_heads": 3`, "num_key_value_heads"},
		{"qwen3", `"head_dim": 8`, `"head_dim": 7`, "head_dim"},
		{"qwen3-window", `"rope_type": "yarn"`, `"rope_type": "longrope"`, "rope_parameters.rope_type"},
		{"qwen3-window", `"factor": 4.0`, `"factor": 0`, "rope_parameters.factor"},
		{"qwen3-window", `"use_sliding_window": true`, `"use_sliding_window": false`, "layer_types"},
		{"gemma3", `"attn_logit_softcapping": null`, `"attn_logit_softcapping": 50`, "attn_logit_softcapping"},
		{"gemma3", `"sliding_window": 8`, `"sliding_window": null`, "sliding_window"},
		{"gemma3", `"query_pre_attn_scalar": 10`, `"query_pre_attn_scalar": 0`, "query_pre_attn_scalar"},
		{"gemma3-old", `"rope_theta": 1000000.0`, `"rope_theta": 1000000.0, "rope_parameters": {"full_attention": {"rope_theta": 1}}`, "rope_scaling"},
	} {
		x := cases[c.name]
		_, err := loadText(edit(x.config, c.old, c.now), x.weights, nn.Float32)
		var p *flashkit.ProblemError
		require.ErrorAs(t, err, &p, "%s: %s", c.name, c.now)
		require.Contains(t, p.Field, c.message)
	}
}

// A classifier whose tokens see tokens on both sides reads the last token. If that is padding, the
// text is refused, because the padding must not be cut.
func TestBothSidesClassify(t *testing.T) {
	for _, x := range rotaryCases(t) {
		if x.name != "gemma3-both-sides" {
			continue
		}
		f, err := safetensors.Parse(x.weights)
		require.NoError(t, err)
		score := make([]float32, 16)
		score[3] = 2
		f.Tensors = append(f.Tensors, safetensors.FromFloat32s("score.weight", []int{1, 16}, score))
		files := map[string]string{"config.json": edit(x.config, "Gemma3TextModel", "Gemma3TextForSequenceClassification", `"head_dim"`, `"num_labels": 1, "head_dim"`),
			"model.safetensors": written(t, f), "tokenizer.json": numbers(40)}
		e, err := OpenWith(t.Context(), folder(t, files), Options{Dispatcher: opened(t)})
		require.NoError(t, err)
		defer e.Close()
		classes, err := e.Classify(t.Context(), []string{"5 17 20"})
		require.NoError(t, err)
		s, want := newTester(t, e.model, opened(t)), poisoned(16*5)
		require.NoError(t, s.run(t.Context(), want, batch{ids: []int32{2, 5, 17, 20, 3}, starts: []int32{0, 5}}, hidden(16), 1))
		require.InDelta(t, sigmoid(2*float64(want[16*4+3])), float64(classes[0][0].Score), 1e-6)

		files["config.json"] = edit(files["config.json"], `"pad_token_id": 0`, `"pad_token_id": 3`)
		e, err = OpenWith(t.Context(), folder(t, files), Options{Dispatcher: opened(t)})
		require.NoError(t, err)
		defer e.Close()
		_, err = e.Classify(t.Context(), []string{"5 17 20"})
		require.ErrorContains(t, err, "texts[0] = padding tokens at the end")
		return
	}
	t.Fatal("no case gemma3-both-sides")
}

// A limit above the positions is refused where sentence-transformers computes more tokens than the
// model's positions. With a table of positions it stops, and Open truncates.
func TestLimitAbovePositions(t *testing.T) {
	limit := func(files map[string]string, o Options) (int, error) {
		o.Dispatcher = opened(t)
		e, err := OpenWith(t.Context(), folder(t, files), o)
		if err != nil {
			return 0, err
		}
		defer e.Close()
		return e.MaxTokens(), nil
	}
	n, err := limit(changed(published, "sentence_bert_config.json", "30", "64"), Options{})
	require.NoError(t, err)
	require.Equal(t, 40, n)
	for _, x := range rotaryCases(t) {
		if x.name != "qwen3" && x.name != "modernbert" && x.name != "nomicbert" && x.name != "gemma3" {
			continue
		}
		positions := x.load(t, nn.Float32).shape().positions
		files := map[string]string{"config.json": strings.Replace(x.config, "ForSequenceClassification", "Model", 1), "model.safetensors": string(x.weights), "tokenizer.json": numbers(40),
			"modules.json": published["modules.json"], "1_Pooling/config.json": `{"pooling_mode": "mean"}`, "sentence_bert_config.json": fmt.Sprintf(`{"max_seq_length": %d}`, positions+1)}
		_, err = limit(files, Options{})
		require.ErrorContains(t, err, fmt.Sprintf("max_seq_length = %d: must be at most %d, the model's positions", positions+1, positions), x.name)
		n, err := limit(files, Options{MaxTokens: 9})
		require.NoError(t, err, x.name)
		require.Equal(t, 9, n)
	}
}
