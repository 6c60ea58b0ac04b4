package encoder

import (
	"context"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The products that KeepFloat32 returns bring each cosine above the bound, fewer of them do not, and
// no number of workers changes them.
func TestKeepFloat32(t *testing.T) {
	dir := folder(t, published)
	exact, err := vectorsOf(t, published, Options{})
	require.NoError(t, err)
	least := func(o Options) float64 {
		v, err := vectorsOf(t, published, o)
		require.NoError(t, err)
		lowest := 1.0
		for i, v := range v {
			lowest = min(lowest, cosine(v, exact[i]))
		}
		return lowest
	}
	for name, o := range map[string]Options{
		"int8": {Precision: "int8"}, "calibrated": {Precision: "int8", Calibration: someTexts[:2]},
		"bf16": {Precision: "bf16"}, "listed": {Precision: "int8", Float32: []string{"encoder.layer.1.output.dense.weight"}},
	} {
		o.Dispatcher, o.Workers = opened(t), 1
		rounded := least(o)
		require.Less(t, rounded, 1.0, name)
		for _, part := range []float64{0, 0.3, 0.8, 0.999999} {
			bound, calls := rounded+part*(1-rounded), 0
			o.Progress = func(done, total int) { calls++; require.LessOrEqual(t, done, total) }
			kept, err := KeepFloat32(context.Background(), dir, o, someTexts, bound)
			require.NoError(t, err)
			require.Equal(t, 8-len(o.Float32), calls)
			found := o
			found.Progress, found.Float32 = nil, kept
			require.GreaterOrEqual(t, least(found), bound, name)
			require.True(t, slices.Equal(o.Float32, kept[:len(o.Float32)]), name)
			switch {
			case part == 0:
				require.Len(t, kept, len(o.Float32), name)
			case part > 0.9:
				require.Len(t, kept, 8, name)
			default:
				require.Greater(t, len(kept), len(o.Float32), name)
			}
			o.Progress, o.Workers = nil, 3
			again, err := KeepFloat32(context.Background(), dir, o, someTexts, bound)
			require.NoError(t, err)
			require.Equal(t, kept, again, name)
			o.Workers = 1
			t.Logf("%s: %.6f, at least %.6f: %v", name, rounded, bound, kept)
		}
	}
}

func TestKeepFloat32Refuses(t *testing.T) {
	dir, d := folder(t, published), opened(t)
	canceled, cancel := context.WithCancel(context.Background())
	cancel()
	rounded := Options{Precision: "int8", Dispatcher: d}
	for want, c := range map[string]struct {
		ctx   context.Context
		o     Options
		texts []string
		least float64
	}{
		"context canceled": {canceled, rounded, someTexts, 0.99},
		`Options.Precision = "": must be bf16-weights, bf16 or int8`: {context.Background(), Options{Dispatcher: d}, someTexts, 0.99},
		"Options.Workers = -1":                                   {context.Background(), Options{Workers: -1}, someTexts, 0.99},
		"texts = no texts: must have at least one text":          {context.Background(), rounded, nil, 0.99},
		"least = 1: must be above 0 and below 1":                 {context.Background(), rounded, someTexts, 1},
		"least = 0: must be above 0 and below 1":                 {context.Background(), rounded, someTexts, 0},
		`Options.Float32 = "x": must be the name of a product's`: {context.Background(), Options{Precision: "int8", Float32: []string{"x"}, Dispatcher: d}, someTexts, 0.99},
		"texts[3] = 38 tokens: must have at most 9":              {context.Background(), Options{Precision: "int8", MaxTokens: 9, Overflow: Refuse, Dispatcher: d}, someTexts, 0.99},
	} {
		_, err := KeepFloat32(c.ctx, dir, c.o, c.texts, c.least)
		require.ErrorContains(t, err, want)
	}
}
