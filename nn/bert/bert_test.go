package bert

import (
	"context"
	"encoding/json"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/internal/slow"
	"github.com/flashkit-go/flashkit/safetensors"
)

// A tiny is an output of tools/bert_vectors.py.
type tiny struct {
	Config json.RawMessage
	Cases  []struct {
		Act            string
		IDs, Types     []int32
		Hidden, Vector []float32
	}
}

func readTiny(t testing.TB) (tiny, []byte) {
	text, err := os.ReadFile("testdata/tiny.json")
	require.NoError(t, err)
	var v tiny
	require.NoError(t, json.Unmarshal(text, &v))
	require.Len(t, v.Cases, 15)
	weights, err := os.ReadFile("testdata/tiny.safetensors")
	require.NoError(t, err)
	return v, weights
}

// loadTiny returns the model with another activation, if act is not empty.
func loadTiny(t testing.TB, act string) *Model { return loadTinyIn(t, act, "") }

func loadTinyIn(t testing.TB, act, precision string) *Model {
	v, weights := readTiny(t)
	c, err := ParseConfig(v.Config)
	require.NoError(t, err)
	c.Precision = precision
	if act != "" {
		c.Activation = act
	}
	f, err := safetensors.Parse(weights)
	require.NoError(t, err)
	m, err := Load(c, f)
	require.NoError(t, err)
	require.Equal(t, c, m.Config())
	return m
}

func opened(t testing.TB) *dispatch.Dispatcher {
	d := dispatch.All(context.Background())
	t.Cleanup(func() { d.Close() })
	return d
}

func newStep(t testing.TB, m *Model, d *dispatch.Dispatcher) *Step {
	e := NewEncoder(m, d)
	t.Cleanup(e.Close)
	return e.NewStep()
}

func poisoned(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.NaN())
	}
	return x
}

func within(t testing.TB, bound float64, want, got []float32, format string, args ...any) {
	require.Len(t, got, len(want), append([]any{format}, args...)...)
	for i := range want {
		if d := math.Abs(float64(want[i]) - float64(got[i])); !(d <= bound) {
			require.Failf(t, "apart", "element %d: got %g, want %g: "+format, append([]any{i, got[i], want[i]}, args...)...)
		}
	}
}

// Vectors equal those by transformers, on every kernel of this machine, for each sequence alone and
// for all packed with an empty one.
func TestVectors(t *testing.T) {
	v, _ := readTiny(t)
	all := opened(t)
	ran := 0
	for _, k := range all.Kernels() {
		if k.Pass != flashkit.PassForward {
			continue
		}
		d, err := all.With(k.Name)
		if err != nil {
			require.ErrorIs(t, err, flashkit.ErrUnavailable)
			t.Log(err)
			continue
		}
		if _, err := d.Pick(flashkit.Problem{Batch: 2, Heads: 4, KVHeads: 4, QLen: 40, KVLen: 40, Dim: 8, VDim: 8, Ragged: true}, k.Pass); err != nil {
			t.Logf("%s: %v", k.Name, err)
			continue
		}
		ran++
		t.Run(k.Name, func(t *testing.T) {
			for _, act := range []string{"gelu", "gelu_new", "relu"} {
				s := newStep(t, loadTiny(t, act), d)
				packed := Batch{Starts: []int32{0, 0}, Types: []int32{}}
				hidden, vectors := []float32(nil), make([]float32, 32)
				for _, c := range v.Cases {
					if c.Act != act {
						continue
					}
					b := Batch{IDs: c.IDs, Types: c.Types, Starts: []int32{0, int32(len(c.IDs))}}
					out := poisoned(len(c.Hidden))
					require.NoError(t, s.Hidden(context.Background(), out, b))
					within(t, 1e-5, c.Hidden, out, "%s, %d tokens", act, len(c.IDs))
					out = poisoned(32)
					require.NoError(t, s.Vectors(context.Background(), out, b))
					within(t, 1e-5, c.Vector, out, "%s, %d tokens", act, len(c.IDs))
					packed.IDs, packed.Types = append(packed.IDs, c.IDs...), append(packed.Types, c.Types...)
					packed.Starts = append(packed.Starts, int32(len(packed.IDs)))
					hidden, vectors = append(hidden, c.Hidden...), append(vectors, c.Vector...)
				}
				out := poisoned(len(hidden))
				require.NoError(t, s.Hidden(context.Background(), out, packed))
				within(t, 1e-5, hidden, out, "%s, packed", act)
				out = poisoned(len(vectors))
				require.NoError(t, s.Vectors(context.Background(), out, packed))
				within(t, 1e-5, vectors, out, "%s, packed", act)
			}
		})
	}
	require.Positive(t, ran)
}

// randomBatch returns sequences of 0 to longest tokens.
func randomBatch(seed uint64, sequences, longest int) Batch {
	r := rand.New(rand.NewPCG(seed, 0))
	b := Batch{Starts: []int32{0}}
	for range sequences {
		for range r.IntN(longest + 1) {
			b.IDs, b.Types = append(b.IDs, r.Int32N(50)), append(b.Types, r.Int32N(2))
		}
		b.Starts = append(b.Starts, int32(len(b.IDs)))
	}
	return b
}

// Any number of workers, and concurrent Steps, give the same bits.
func TestSameBits(t *testing.T) {
	for _, precision := range []string{"", "bf16-weights", "bf16"} {
		t.Run(precision, func(t *testing.T) { sameBits(t, loadTinyIn(t, "", precision)) })
	}
}

func sameBits(t *testing.T, m *Model) {
	d := opened(t).Frozen()
	b := randomBatch(1, 60, 40)
	require.Greater(t, len(b.IDs), 4*groupRows)
	e := NewEncoder(m, d)
	defer e.Close()
	s := e.NewStep()
	s.Workers = 1
	want := poisoned(60 * 32)
	require.NoError(t, s.Vectors(context.Background(), want, b))
	var all sync.WaitGroup
	for workers := range 5 {
		all.Go(func() {
			s := e.NewStep()
			s.Workers = workers
			for range 3 {
				got := poisoned(60 * 32)
				if err := s.Vectors(context.Background(), got, b); err != nil || !slices.Equal(got, want) {
					t.Errorf("%d workers: %v", workers, err)
				}
			}
		})
	}
	all.Wait()
}

// A Step keeps no trace of a batch: large, small and large again.
func TestStepReuse(t *testing.T) {
	m, d := loadTiny(t, ""), opened(t).Frozen()
	s := newStep(t, m, d)
	for seed := range uint64(6) {
		b := randomBatch(seed, int(1+seed*17%23), 40)
		got, want := poisoned(len(b.IDs)*32), poisoned(len(b.IDs)*32)
		require.NoError(t, s.Hidden(context.Background(), got, b))
		require.NoError(t, newStep(t, m, d).Hidden(context.Background(), want, b))
		require.Equal(t, want, got)
	}
}

// Nil Types are zeros; without layers only the embeddings remain.
func TestTypesAndNoLayers(t *testing.T) {
	v, weights := readTiny(t)
	c, err := ParseConfig(v.Config)
	require.NoError(t, err)
	c.Layers = 0
	f, err := safetensors.Parse(weights)
	require.NoError(t, err)
	m, err := Load(c, f)
	require.NoError(t, err)
	s := newStep(t, m, opened(t))
	b := randomBatch(3, 5, 9)
	clear(b.Types)
	got, want := poisoned(len(b.IDs)*32), poisoned(len(b.IDs)*32)
	require.NoError(t, s.Hidden(context.Background(), got, b))
	b.Types = nil
	require.NoError(t, s.Hidden(context.Background(), want, b))
	require.Equal(t, want, got)
	row := 0
	for i := range len(b.Starts) - 1 {
		for at := range int(b.Starts[i+1] - b.Starts[i]) {
			x := make([]float64, 32)
			mean, variance := 0.0, 0.0
			for j := range x {
				x[j] = float64(m.word.Weight.Data[int(b.IDs[row])*32+j]) + float64(m.position.Weight.Data[at*32+j]) + float64(m.kind.Weight.Data[j])
				mean += x[j] / 32
			}
			for j := range x {
				variance += (x[j] - mean) * (x[j] - mean) / 32
			}
			for j := range x {
				x[j] = (x[j]-mean)/math.Sqrt(variance+c.Eps)*float64(m.norm.Weight.Data[j]) + float64(m.norm.Bias.Data[j])
				require.InDelta(t, x[j], got[row*32+j], 1e-5)
			}
			row++
		}
	}
}

func TestAllocates(t *testing.T) {
	if slow.Race {
		t.Skip("under the race detector, pools forget at random")
	}
	m, d := loadTiny(t, ""), opened(t).Frozen()
	for _, workers := range []int{1, 0} {
		s := newStep(t, m, d)
		s.Workers = workers
		large, small := randomBatch(1, 30, 40), randomBatch(2, 1, 8)
		require.Greater(t, len(large.IDs), 2*groupRows, "or no worker would have groups of its own")
		out := poisoned(30 * 32)
		call := func() {
			if s.Vectors(context.Background(), out, large) != nil || s.Vectors(context.Background(), out[:32], small) != nil {
				t.Fail()
			}
		}
		for range 5 {
			call()
		}
		require.Less(t, allocs.PerRun(20, call), 1.0, "%d workers", workers)
	}
}

func TestContext(t *testing.T) {
	s := newStep(t, loadTiny(t, ""), opened(t))
	ctx, cancel := context.WithCancel(context.Background())
	b := randomBatch(1, 40, 40)
	out := poisoned(40 * 32)
	require.NoError(t, s.Vectors(ctx, out, b))
	cancel()
	for _, workers := range []int{1, 2} {
		s.Workers = workers
		require.ErrorIs(t, s.Vectors(ctx, out, b), context.Canceled)
		require.ErrorIs(t, s.Hidden(ctx, poisoned(len(b.IDs)*32), b), context.Canceled)
	}
	require.NoError(t, s.Vectors(context.Background(), out, b), "a Step goes on after an error")
}
