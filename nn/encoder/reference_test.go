package encoder

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

// A reference is the output of tools/minilm_reference.py.
type reference struct {
	Published [][3]any // two texts and their similarity
	Sets      []struct {
		Most    int
		Texts   []string
		Tokens  []int
		Vectors [][]float32
	}
}

// The vectors of the published model, on every kernel that this machine can run.
func TestReference(t *testing.T) {
	dir := os.Getenv("MINILM_MODEL")
	if dir == "" {
		t.Skip("MINILM_MODEL names no folder; make verify-minilm makes one")
	}
	text, err := os.ReadFile(filepath.Join(dir, "reference.json"))
	require.NoError(t, err)
	var want reference
	require.NoError(t, json.Unmarshal(text, &want))
	require.Len(t, want.Sets, 2)
	all := dispatch.All(context.Background())
	defer all.Close()
	ran := 0
	for _, k := range all.Kernels() {
		if k.Pass != flashkit.PassForward {
			continue
		}
		d, err := all.With(k.Name)
		if err == nil {
			_, err = d.Pick(flashkit.Problem{Batch: 2, Heads: 12, KVHeads: 12, QLen: 512, KVLen: 512, Dim: 32, VDim: 32, Ragged: true}, k.Pass)
		}
		if err != nil {
			t.Logf("%s: %v", k.Name, err)
			continue
		}
		ran++
		sets := len(want.Sets)
		if !strings.HasPrefix(k.Name, "simd/") {
			sets = 1 // the long one takes minutes in the sandbox
		}
		t.Run(k.Name, func(t *testing.T) { want.compare(t, dir, d, sets) })
	}
	require.Positive(t, ran)
	t.Run("auto", func(t *testing.T) { want.compare(t, dir, all, len(want.Sets)) })
	for name, bound := range map[string]struct {
		least, near float64
		calibration []string
		float32     []string
	}{"bf16-weights": {0.9999, 1e-2, nil, nil}, "bf16": {0.9999, 1e-2, nil, nil}, "int8": {0.98, 5e-2, nil, nil}, "int8 calibrated": {0.99, 3e-2, someSentences, nil},
		"int8 calibrated, one product in f32": {0.995, 3e-2, someSentences, []string{"encoder.layer.2.output.dense.weight"}}} {
		t.Run(name, func(t *testing.T) {
			precision, _, _ := strings.Cut(name, " ")
			_, cosine := want.measure(t, dir, Options{Dispatcher: all, Precision: precision, Calibration: bound.calibration, Float32: bound.float32}, len(want.Sets), bound.near)
			require.GreaterOrEqual(t, cosine, bound.least)
			require.Less(t, cosine, 0.999999, "nothing is rounded")
		})
	}
}

// someSentences are the texts of a calibration.
var someSentences = []string{
	"The river rose after three days of rain, and the old bridge was closed.",
	"How do I reset the password of my account?",
	"Revenue grew by 12 % in the third quarter, mostly in Asia.",
	"Cells divide, and each of the two has the same genes.",
}

func (want *reference) compare(t *testing.T, dir string, d *dispatch.Dispatcher, sets int) {
	apart, cosine := want.measure(t, dir, Options{Dispatcher: d}, sets, 1e-4)
	require.LessOrEqual(t, apart, 1e-5)
	require.GreaterOrEqual(t, cosine, 0.999999)
}

// measure returns how far apart vectors are at most, and the least of their cosines. Published
// similarities must be that near.
func (want *reference) measure(t *testing.T, dir string, o Options, sets int, near float64) (apart, cosine float64) {
	cosine = 1.0
	for i, set := range want.Sets[:sets] {
		o.MaxTokens = 0
		if i > 0 {
			o.MaxTokens = set.Most
		}
		e, err := OpenWith(context.Background(), dir, o)
		require.NoError(t, err)
		defer e.Close()
		require.Equal(t, set.Most, e.MaxTokens())
		texts := set.Texts
		if testing.Short() {
			texts = texts[:30] // the later ones are longer and longer
		}
		got, err := e.Embed(context.Background(), texts)
		require.NoError(t, err)
		byText := map[string][]float32{}
		for i, v := range got {
			require.Equal(t, set.Tokens[i], min(e.Tokens(texts[i]), e.MaxTokens()), texts[i])
			cosine = min(cosine, dot(v, set.Vectors[i])/math.Sqrt(dot(v, v)*dot(set.Vectors[i], set.Vectors[i])))
			for j, x := range v {
				if a := math.Abs(float64(x) - float64(set.Vectors[i][j])); !(a <= apart) {
					apart = a
				}
			}
			byText[texts[i]] = v
		}
		for _, pair := range want.Published {
			s := dot(byText[pair[0].(string)], byText[pair[1].(string)])
			t.Logf("%.4f, published %.4f: %q / %q", s, pair[2], pair[0], pair[1])
			require.InDelta(t, pair[2], s, near)
		}
	}
	t.Logf("at most %.2g apart, cosine at least %.9f", apart, cosine)
	return apart, cosine
}

func dot(a, b []float32) (sum float64) {
	for i := range a {
		sum += float64(a[i]) * float64(b[i])
	}
	return sum
}
