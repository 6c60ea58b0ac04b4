package encoder

import (
	"context"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/nn"
	"github.com/flashkit-go/flashkit/safetensors"
)

// A rotaryCase is a folder that tools/rotary_vectors.py writes.
type rotaryCase struct {
	name, config string
	weights      []byte
	batch        batch
	hidden       []float32
}

// rotaryCases returns the cases of testdata, and of the folder that FLASHKIT_ROTARY names.
func rotaryCases(t *testing.T) (list []rotaryCase) {
	folders, err := filepath.Glob("testdata/rotary/*")
	require.NoError(t, err)
	require.NotEmpty(t, folders)
	if more := os.Getenv("FLASHKIT_ROTARY"); more != "" {
		others, err := filepath.Glob(filepath.Join(more, "*"))
		require.NoError(t, err)
		folders = append(folders, others...)
	}
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

func TestRotaryFamilies(t *testing.T) {
	d := opened(t)
	for _, x := range rotaryCases(t) {
		t.Run(x.name, func(t *testing.T) {
			m := x.load(t, nn.Float32)
			s := newTester(t, m, d)
			got := make([]float32, len(x.hidden))
			require.NoError(t, s.run(context.Background(), got, x.batch, hidden(m.shape().hidden), 2))
			worst := 0.0
			for i, want := range x.hidden {
				worst = max(worst, math.Abs(float64(got[i]-want)))
			}
			require.Less(t, worst, 1e-5)
		})
	}
}
