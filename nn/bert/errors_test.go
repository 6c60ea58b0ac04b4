package bert

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/safetensors"
)

// refused requires a *flashkit.ProblemError that names a field.
func refused(t *testing.T, err error, field, value string) {
	var wrong *flashkit.ProblemError
	require.ErrorAs(t, err, &wrong)
	require.Equal(t, []string{field, value}, []string{wrong.Field, wrong.Value}, wrong.Reason)
}

func TestParseConfigRefuses(t *testing.T) {
	const good = `{"model_type":"bert","vocab_size":50,"hidden_size":32,"num_hidden_layers":2,"num_attention_heads":4,` +
		`"intermediate_size":56,"max_position_embeddings":40,"type_vocab_size":2,"hidden_act":"gelu"}`
	c, err := ParseConfig([]byte(good))
	require.NoError(t, err)
	require.Equal(t, Config{50, 32, 2, 4, 56, 40, 2, 1e-12, "gelu", ""}, c)
	for _, x := range []struct{ old, new, field, value string }{
		{`"bert"`, `"roberta"`, "model_type", `"roberta"`},
		{`"model_type":"bert",`, ``, "model_type", `""`},
		{`"gelu"`, `"silu"`, "Config.Activation", `"silu"`},
		{`"gelu"`, `"gelu","position_embedding_type":"relative_key"`, "position_embedding_type", `"relative_key"`},
		{`"gelu"`, `"gelu","is_decoder":true`, "is_decoder", `true`},
		{`"gelu"`, `"gelu","layer_norm_eps":-1`, "Config.Eps", `-1`},
		{`"gelu"`, `"gelu","layer_norm_eps":1e300`, "Config.Eps", `1e+300`},
		{`:50`, `:0`, "Config.Vocab", `0`},
		{`:32`, `:-32`, "Config.Hidden", `-32`},
		{`:32`, `:2147483648`, "Config.Hidden", `2147483648`},
		{`layers":2`, `layers":-1`, "Config.Layers", `-1`},
		{`:4,`, `:5,`, "Config.Heads", `5`},
		{`:4,`, `:0,`, "Config.Heads", `0`},
		{`:56`, `:0`, "Config.Intermediate", `0`},
		{`:40`, `:0`, "Config.Positions", `0`},
		{`"type_vocab_size":2`, `"type_vocab_size":0`, "Config.Types", `0`},
		{`"gelu"`, `null`, "hidden_act", `null`},
		{`:40`, `:null`, "max_position_embeddings", `null`},
		{`"gelu"`, `"gelu","hidden_act":"relu"`, "config.hidden_act", `"relu"`},
		{`"hidden_act"`, `"Hidden_Act"`, "config.Hidden_Act", `"gelu"`},
		{`"gelu"`, `"gelu","position_embedding_type":null`, "position_embedding_type", `null`},
		{`"gelu"`, `"gelu","add_cross_attention":true`, "add_cross_attention", `true`},
		{`"gelu"`, `"gelu","pruned_heads": {"1": [0, 2]}`, "pruned_heads", `{"1":[0,2]}`},
		{`"gelu"`, `"gelu","quantization_config":{"bits":8}`, "quantization_config", `{"bits":8}`},
		{`"gelu"`, `"gelu","auto_map":{"AutoModel":"m.M"}`, "auto_map", `{"AutoModel":"m.M"}`},
		{`"gelu"`, `"gelu","tokenizer_class":"BertJapaneseTokenizer"`, "tokenizer_class", `"BertJapaneseTokenizer"`},
		{`"gelu"`, `"gelu","rope_theta":1e4`, "config.rope_theta", `1e4`},
		{`"gelu"`, `"gelu","\u001b[31m":1`, "config.\\x1b[31m", `1`},
	} {
		require.Contains(t, good, x.old)
		_, err := ParseConfig([]byte(strings.Replace(good, x.old, x.new, 1)))
		refused(t, err, x.field, x.value)
	}
	for _, text := range []string{"", "[]", "{", `{"hidden_size":"32"}`, `{"hidden_size":1e99}`} {
		_, err := ParseConfig([]byte(text))
		require.ErrorContains(t, err, "bert: config: ")
	}
}

// Missing keys have transformers' defaults. Keys without effect on hidden states are ignored.
func TestParseConfigDefaults(t *testing.T) {
	base := Config{30522, 768, 12, 12, 3072, 512, 2, 1e-12, "gelu", ""}
	c, err := ParseConfig([]byte(`{"model_type":"bert"}`))
	require.NoError(t, err)
	require.Equal(t, base, c)
	c, err = ParseConfig([]byte(`{"architectures": ["BertForMaskedLM"], "model_type": "bert", "directionality": "bidi",
		"torch_dtype": "float32", "pruned_heads": {}, "is_decoder": false, "id2label": {"0": "x"}, "hidden_size": 384, "max_length": 20}`))
	require.NoError(t, err)
	base.Hidden = 384
	require.Equal(t, base, c)
}

// The error names every tensor that is missing, or has another shape or type.
func TestLoadRefuses(t *testing.T) {
	v, weights := readTiny(t)
	c, err := ParseConfig(v.Config)
	require.NoError(t, err)
	parsed := func() *safetensors.File {
		f, err := safetensors.Parse(weights)
		require.NoError(t, err)
		return f
	}
	used := 0
	for i, x := range parsed().Tensors {
		f := parsed()
		f.Tensors[i].Name = "other"
		_, err := Load(c, f)
		if strings.HasPrefix(x.Name, "pooler.") {
			require.NoError(t, err)
			continue
		}
		used++
		require.ErrorContains(t, err, fmt.Sprintf("safetensors: tensor %q is missing: the file has ", x.Name))
		f = parsed()
		f.Tensors[i].Shape = append([]int{1}, x.Shape...)
		_, err = Load(c, f)
		refused(t, err, "tensor "+x.Name, fmt.Sprint(f.Tensors[i].Shape))
		f = parsed()
		f.Tensors[i].DType = "F16"
		_, err = Load(c, f)
		refused(t, err, "tensor "+x.Name, "F16")
		f = parsed()
		f.Tensors[i].Data = x.Data[4:] // not as Parse makes it
		_, err = Load(c, f)
		require.Error(t, err, x.Name)
	}
	require.Equal(t, 5+16*c.Layers, used)
	for _, change := range []func(*Config){
		func(c *Config) { c.Layers = 3 }, func(c *Config) { c.Layers = 1 << 30 }, func(c *Config) { c.Vocab = 1 << 30 },
		func(c *Config) { c.Hidden = 1 << 30 }, func(c *Config) { c.Intermediate = 57 }, func(c *Config) { c.Heads = 3 },
	} {
		x := c
		change(&x)
		_, err := Load(x, parsed())
		require.Error(t, err)
	}
	_, err = Load(c, &safetensors.File{})
	require.Error(t, err)
}

// A checkpoint with a head prefixes names with "bert."; older ones have gamma and beta. Bytes may
// be unaligned.
func TestLoadNamesAndAlignment(t *testing.T) {
	v, weights := readTiny(t)
	c, err := ParseConfig(v.Config)
	require.NoError(t, err)
	d, b := opened(t).Frozen(), randomBatch(1, 3, 9)
	want := make([]float32, 3*32)
	require.NoError(t, newStep(t, loadTiny(t, ""), d).Vectors(context.Background(), want, b))
	old := strings.NewReplacer("LayerNorm.weight", "LayerNorm.gamma", "LayerNorm.bias", "LayerNorm.beta")
	for i := range 8 {
		f, err := safetensors.Parse(append(make([]byte, i%4), weights...)[i%4:])
		require.NoError(t, err)
		for j := range f.Tensors {
			name := "bert." + f.Tensors[j].Name
			if i >= 4 {
				name = old.Replace(name)
			}
			f.Tensors[j].Name = name
		}
		m, err := Load(c, f)
		require.NoError(t, err)
		got := poisoned(3 * 32)
		require.NoError(t, newStep(t, m, d).Vectors(context.Background(), got, b))
		require.Equal(t, want, got)
	}
	f, err := safetensors.Parse(weights)
	require.NoError(t, err)
	x, ok := f.Tensor("embeddings.LayerNorm.bias")
	require.True(t, ok)
	x.Name = "embeddings.LayerNorm.beta"
	f.Tensors = append(f.Tensors, x)
	_, err = Load(c, f)
	require.EqualError(t, err, `bert: tensors "embeddings.LayerNorm.bias" and "embeddings.LayerNorm.beta" are the same parameter`)
}

func TestBatchRefuses(t *testing.T) {
	s := newStep(t, loadTiny(t, ""), opened(t))
	for _, x := range []struct {
		b            Batch
		out, workers int
		field, value string
	}{
		{Batch{}, 0, 0, "Batch.Starts", "[]"},
		{Batch{Starts: []int32{1}}, 0, 0, "Batch.Starts", "[1]"},
		{Batch{Starts: []int32{0, 2}, IDs: []int32{1}}, 32, 0, "Batch.Starts", "2"},
		{Batch{Starts: []int32{0}, IDs: []int32{1}}, 0, 0, "Batch.Starts", "0"},
		{Batch{Starts: []int32{0, 2, 1}, IDs: []int32{1}}, 64, 0, "Batch.Starts[2]", "1"},
		{Batch{Starts: []int32{0, -1 << 31, 1<<31 - 1, 1}, IDs: []int32{1}}, 96, 0, "Batch.Starts[1]", "-2147483648"},
		{Batch{Starts: []int32{0, 41}, IDs: make([]int32, 41)}, 32, 0, "Batch.Starts[1]", "41"},
		{Batch{Starts: []int32{0, 2}, IDs: []int32{49, 50}}, 32, 0, "Batch.IDs[1]", "50"},
		{Batch{Starts: []int32{0, 2}, IDs: []int32{-1, 0}}, 32, 0, "Batch.IDs[0]", "-1"},
		{Batch{Starts: []int32{0, 2}, IDs: []int32{1, 0}, Types: []int32{0, 2}}, 32, 0, "Batch.Types[1]", "2"},
		{Batch{Starts: []int32{0, 2}, IDs: []int32{1, 0}, Types: []int32{-1, 0}}, 32, 0, "Batch.Types[0]", "-1"},
		{Batch{Starts: []int32{0, 2}, IDs: []int32{1, 0}, Types: []int32{0}}, 32, 0, "Batch.Types.len", "1"},
		{Batch{Starts: []int32{0, 2}, IDs: []int32{1, 0}}, 31, 0, "out.len", "31"},
		{Batch{Starts: []int32{0, 2}, IDs: []int32{1, 0}}, 33, 0, "out.len", "33"},
		{Batch{Starts: []int32{0, 2}, IDs: []int32{1, 0}}, 32, -1, "Step.Workers", "-1"},
	} {
		s.Workers = x.workers
		out := make([]float32, x.out)
		refused(t, s.Vectors(context.Background(), out, x.b), x.field, x.value)
		require.Equal(t, make([]float32, x.out), out)
	}
	s.Workers = 0
	refused(t, s.Hidden(context.Background(), make([]float32, 32), Batch{Starts: []int32{0, 2}, IDs: []int32{1, 0}}), "out.len", "32")
	require.NoError(t, s.Vectors(context.Background(), nil, Batch{Starts: []int32{0}}))
	empty := poisoned(64)
	require.NoError(t, s.Vectors(context.Background(), empty, Batch{Starts: []int32{0, 0, 0}}))
	require.Equal(t, make([]float32, 64), empty)
	for _, s := range []*Step{{}, new(Encoder).NewStep(), NewEncoder(nil, opened(t)).NewStep(), NewEncoder(loadTiny(t, ""), nil).NewStep()} {
		require.Error(t, s.Vectors(context.Background(), nil, Batch{Starts: []int32{0}}))
	}
}

// An untrusted config and file give an error, or a model that runs.
func FuzzLoad(f *testing.F) {
	v, weights := readTiny(f)
	f.Add([]byte(v.Config), weights)
	f.Add([]byte(strings.Replace(string(v.Config), `layers": 2`, `layers": 0`, 1)), weights)
	f.Add(bytes.Replace(v.Config, []byte("56"), []byte("1"), 1), weights[:1000])
	d := opened(f)
	f.Fuzz(func(t *testing.T, config, file []byte) {
		c, err := ParseConfig(config)
		if err != nil {
			return
		}
		parsed, err := safetensors.Parse(slices.Clone(file))
		if err != nil {
			return
		}
		m, err := Load(c, parsed)
		if err != nil {
			return
		}
		s := newStep(t, m, d)
		err = s.Vectors(context.Background(), make([]float32, 2*c.Hidden), Batch{IDs: []int32{0, int32(c.Vocab - 1)}, Starts: []int32{0, 1, 2}})
		if err != nil && !errors.Is(err, errors.ErrUnsupported) {
			t.Error(err)
		}
	})
}
