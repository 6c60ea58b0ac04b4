package encoder

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
)

// BenchmarkGPU reports the median time of a batch on the GPU, and the CPU's over it, from token ids
// to vectors. FLASHKIT_ENCODERS lists the folders of the encoders.
func BenchmarkGPU(b *testing.B) {
	folders := filepath.SplitList(os.Getenv("FLASHKIT_ENCODERS"))
	if len(folders) == 0 {
		b.Skip("FLASHKIT_ENCODERS is not set")
	}
	device, err := cuda.Open()
	if errors.Is(err, flashkit.ErrUnavailable) {
		b.Skip(err)
	}
	require.NoError(b, err)
	defer device.Close()
	for _, folder := range folders {
		open := func(o Options) *Encoder {
			e, err := OpenWith(b.Context(), folder, o)
			require.NoError(b, err)
			return e
		}
		sides := [2]*Encoder{open(Options{}), open(Options{GPU: device})}
		b.Log(sides[1].Explain())
		for _, shape := range [][2]int{{1, 16}, {1, 512}, {8, 128}, {64, 128}, {1, 8192}} {
			if shape[1] <= sides[0].most {
				b.Run(fmt.Sprintf("%s/%dx%d", filepath.Base(folder), shape[0], shape[1]), func(b *testing.B) { benchmarkGPU(b, sides, shape[0], shape[1]) })
			}
		}
		sides[0].Close()
		sides[1].Close()
	}
}

func benchmarkGPU(b *testing.B, sides [2]*Encoder, sequences, tokens int) {
	r := rand.New(rand.NewPCG(1, 1))
	ids := make([][]int32, sequences)
	for i := range ids {
		for range tokens {
			ids[i] = append(ids[i], 1000+r.Int32N(20000))
		}
	}
	var times [2][]float64
	for b.Loop() {
		for side, e := range sides {
			start := time.Now()
			_, err := e.EmbedTokens(b.Context(), ids)
			require.NoError(b, err)
			times[side] = append(times[side], time.Since(start).Seconds())
		}
	}
	median := func(x []float64) float64 { slices.Sort(x); return x[len(x)/2] }
	cpu, gpu := median(times[0]), median(times[1])
	b.ReportMetric(gpu*1e3, "GPU-ms")
	b.ReportMetric(cpu/gpu, "CPU/GPU")
}
