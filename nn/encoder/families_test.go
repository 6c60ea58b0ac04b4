package encoder

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/nn"
)

// The hidden states and logits of the other families equal the results of transformers, for each sequence
// alone and for all packed. Some tokens are padding tokens.
func TestFamilies(t *testing.T) {
	for _, name := range []string{"distilbert", "mpnet", "roberta", "xlm-roberta"} {
		t.Run(name, func(t *testing.T) {
			text, err := os.ReadFile("testdata/" + name + ".json")
			require.NoError(t, err)
			var v struct {
				Config json.RawMessage
				Cases  []struct {
					IDs                []int32
					Last, Mean, Logits []float32
				}
			}
			require.NoError(t, json.Unmarshal(text, &v))
			require.Len(t, v.Cases, 4)
			weights, err := os.ReadFile("testdata/" + name + ".safetensors")
			require.NoError(t, err)
			dir := folder(t, map[string]string{"config.json": string(v.Config), "model.safetensors": string(weights), "tokenizer.json": numbers(40),
				"tokenizer_config.json": `{"tokenizer_class": "PreTrainedTokenizerFast"}`})
			e := &Encoder{}
			require.NoError(t, e.read(dir))
			require.Len(t, e.head.labels, 3)
			s := newTester(t, e.model, opened(t))
			both := &chain{[]stage{&pool{by: []pooling{poolLast, poolMean}}}, 16}
			var packed batch
			var vectors, logits []float32
			packed.starts = []int32{0}
			for _, c := range v.Cases {
				b := batch{ids: c.IDs, starts: []int32{0, int32(len(c.IDs))}}
				want, out := append(c.Last, c.Mean...), poisoned(32)
				require.NoError(t, s.run(context.Background(), out, b, both, 0))
				requireNear(t, 1e-5, want, out, "%d tokens", len(c.IDs))
				out = poisoned(3)
				require.NoError(t, s.run(context.Background(), out, b, e.head, 0))
				requireNear(t, 1e-5, c.Logits, out, "%d tokens", len(c.IDs))
				packed.ids, packed.starts = append(packed.ids, c.IDs...), append(packed.starts, int32(len(packed.ids)+len(c.IDs)))
				vectors, logits = append(vectors, want...), append(logits, c.Logits...)
			}
			out := poisoned(len(vectors))
			require.NoError(t, s.run(context.Background(), out, packed, both, 0))
			requireNear(t, 1e-5, vectors, out, "packed")
			out = poisoned(len(logits))
			require.NoError(t, s.run(context.Background(), out, packed, e.head, 0))
			requireNear(t, 1e-5, logits, out, "packed")
			require.Greater(t, e.most, 40)
			long := batch{ids: make([]int32, e.most+1), starts: []int32{0, int32(e.most + 1)}}
			for i := range long.ids {
				long.ids[i] = 9
			}
			require.Error(t, s.run(context.Background(), poisoned(32), long, both, 0), "positions")
		})
	}
}

// Keys that change results, and wrong values, are refused by name.
func TestConfigRefused(t *testing.T) {
	v, weights := readTiny(t)
	good := string(v.Config)
	_, err := loadText(good, weights, nn.Float32)
	require.NoError(t, err)
	for _, x := range []struct{ old, new, want string }{
		{`"bert"`, `"gpt2"`, `model_type = "gpt2"`},
		{`"model_type": "bert", `, ``, `model_type = nothing`},
		{`"gelu"`, `"selu"`, `hidden_act = "selu"`},
		{`"gelu"`, `"gelu","position_embedding_type":"relative_key"`, `position_embedding_type = "relative_key"`},
		{`"gelu"`, `"gelu","is_decoder":true`, `is_decoder = true`},
		{`1e-12`, `-1`, `layer_norm_eps = -1`},
		{`1e-12`, `1e300`, `layer_norm_eps = 1e300`},
		{`size": 50`, `size": 0`, `vocab_size = 0`},
		{`hidden_size": 32`, `hidden_size": -32`, `hidden_size = -32`},
		{`hidden_size": 32`, `hidden_size": 2147483648`, `hidden_size = 2147483648`},
		{`layers": 2`, `layers": -1`, `num_hidden_layers = -1`},
		{`heads": 4`, `heads": 5`, `num_attention_heads = 5: must divide the hidden size 32`},
		{`heads": 4`, `heads": 0`, `num_attention_heads = 0`},
		{`heads": 4`, `heads": "4"`, `num_attention_heads = "4": must be of type int`},
		{`"gelu"`, `null`, `hidden_act = null`},
		{`"gelu"`, `"gelu","hidden_act":"relu"`, `hidden_act = "relu": must not be there twice`},
		{`"hidden_act"`, `"Hidden_Act"`, `Hidden_Act = "gelu": the key is unknown`},
		{`"gelu"`, `"gelu","pruned_heads": {"1": [0, 2]}`, `pruned_heads = {"1":[0,2]}`},
		{`"gelu"`, `"gelu","quantization_config":{"bits":8}`, `quantization_config = {"bits":8}`},
		{`"gelu"`, `"gelu","auto_map":{"AutoModel":"m.M"}`, `auto_map = {"AutoModel":"m.M"}`},
		{`"gelu"`, `"gelu","chunk_size_feed_forward":4`, `chunk_size_feed_forward = 4`},
		{`"gelu"`, `"gelu","rope_theta":1e4`, `rope_theta = 1e4: the key is unknown`},
		{`"gelu"`, `"gelu","\u001b[31m":1`, `config.json: \x1b[31m = 1`},
		{`layers": 2`, `layers": 3`, `tensor "encoder.layer.2.attention.self.query.weight" is missing`},
		{`layers": 2`, `layers": 1073741824`, `tensor "encoder.layer.2.attention.self.query.weight" is missing`},
		{`vocab_size": 50`, `vocab_size": 1048576`, `must be of shape [1048576 32]`},
		{good, `[]`, `must be a JSON object`},
		{good, `{`, `unexpected end`},
	} {
		_, err := loadText(edit(good, x.old, x.new), weights, nn.Float32)
		require.ErrorContains(t, err, x.want)
	}
}

// An untrusted config gives an error, or a model that runs.
func FuzzConfig(f *testing.F) {
	v, weights := readTiny(f)
	f.Add([]byte(v.Config))
	f.Add([]byte(edit(string(v.Config), `layers": 2`, `layers": 0`)))
	for _, text := range []string{published["1_Pooling/config.json"], current["sentence_bert_config.json"], `{"a":{"a":{}}}`, `null`} {
		f.Add([]byte(text))
	}
	d := opened(f)
	f.Fuzz(func(t *testing.T, text []byte) {
		if c, err := parseConfig("file", text); err == nil {
			_, err := readPooling(c, 32)
			_ = err
		}
		m, err := loadText(string(text), weights, nn.Float32)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		s := newTester(t, m, d)
		n := m.shape().hidden
		if err := s.run(context.Background(), make([]float32, 2*n), batch{ids: []int32{0, int32(m.shape().vocab - 1)}, starts: []int32{0, 1, 2}}, meanVector(n), 1); err != nil {
			require.ErrorIs(t, err, errors.ErrUnsupported)
		}
	})
}
