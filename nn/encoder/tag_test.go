package encoder

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/nn"
	"github.com/flashkit-go/flashkit/safetensors"
)

// A token's tag is the best of a linear layer over its hidden state.
func TestTag(t *testing.T) {
	v, weights := readTiny(t)
	f, err := safetensors.Parse(weights)
	require.NoError(t, err)
	r := rand.New(rand.NewPCG(rand.Uint64(), 1))
	weight, bias := make([]float32, 3*32), make([]float32, 3)
	for i := range weight {
		weight[i] = float32(r.NormFloat64())
	}
	for i := range bias {
		bias[i] = float32(r.NormFloat64())
	}
	f.Tensors = append(f.Tensors, safetensors.FromFloat32s("classifier.weight", []int{3, 32}, weight), safetensors.FromFloat32s("classifier.bias", []int{3}, bias))
	files := map[string]string{"model.safetensors": written(t, f),
		"config.json": edit(string(v.Config), `{`, `{"architectures": ["BertForTokenClassification"], "id2label": {"0": "O", "1": "B", "2": "I"}, `)}
	e := openFiles(t, files, Options{})
	tags, err := e.Tag(context.Background(), []string{"", "5 17 20 30"})
	require.NoError(t, err)
	require.Len(t, tags[0], 2)
	require.Len(t, tags[1], 6)
	s := newTester(t, loadTiny(t, "", nn.Float32), opened(t))
	hidden := poisoned(6 * 32)
	require.NoError(t, s.hidden(context.Background(), hidden, batch{ids: []int32{2, 5, 17, 20, 30, 3}, starts: []int32{0, 6}}))
	for i, tag := range tags[1] {
		logits, best, sum := make([]float64, 3), 0, 0.0
		for j := range logits {
			logits[j] = float64(bias[j])
			for k, x := range hidden[i*32:][:32] {
				logits[j] += float64(x) * float64(weight[j*32+k])
			}
			sum += math.Exp(logits[j])
			if logits[j] > logits[best] {
				best = j
			}
		}
		require.Equal(t, []string{"O", "B", "I"}[best], tag.Label)
		require.InDelta(t, math.Exp(logits[best])/sum, tag.Score, 1e-5)
		require.Equal(t, []int32{2, 5, 17, 20, 30, 3}[i], tag.ID)
	}
	_, err = e.Classify(context.Background(), []string{"5"})
	require.ErrorContains(t, err, "no labels")
	_, err = openFiles(t, nil, Options{}).Tag(context.Background(), []string{"5"})
	require.ErrorContains(t, err, "no token classifier")
}
