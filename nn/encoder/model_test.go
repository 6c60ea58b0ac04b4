package encoder

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/internal/slow"
	"github.com/flashkit-go/flashkit/internal/workers"
	"github.com/flashkit-go/flashkit/nn"
)

// A tiny is an output of tools/postnorm_vectors.py.
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
	weights, err := os.ReadFile("testdata/tiny/model.safetensors")
	require.NoError(t, err)
	return v, weights
}

// loadText returns the model of a config.json and of weights.
func loadText(config string, weights []byte, p nn.Precision) (family, error) {
	c, err := parseConfig("config.json", []byte(config))
	if err != nil {
		return nil, err
	}
	k, err := kindOf(c)
	if err != nil {
		return nil, err
	}
	c.checkCommon()
	f, err := bytesWeights(weights, k.prefix)
	if err != nil {
		return nil, err
	}
	c.elements = f.elements()
	return k.load(c, nn.FromTensors(f.require), p)
}

// loadTiny returns the tiny model with another activation, if act is not empty.
func loadTiny(t testing.TB, act string, p nn.Precision) family {
	v, weights := readTiny(t)
	config := string(v.Config)
	if act != "" {
		config = edit(config, `"gelu"`, strconv.Quote(act))
	}
	m, err := loadText(config, weights, p)
	require.NoError(t, err)
	return m
}

// edit replaces texts, which are alternately old and new.
func edit(text string, replacements ...string) string {
	for i := 0; i+1 < len(replacements); i += 2 {
		if !strings.Contains(text, replacements[i]) {
			panic(replacements[i])
		}
		text = strings.Replace(text, replacements[i], replacements[i+1], 1)
	}
	return text
}

func opened(t testing.TB) *dispatch.Dispatcher {
	d := dispatch.All(context.Background())
	t.Cleanup(func() { d.Close() })
	return d
}

// A tester runs a model on batches, without files.
type tester struct {
	*step
	workers int
}

func newTester(t testing.TB, m family, d *dispatch.Dispatcher) *tester {
	e := nn.NewEngine(d)
	t.Cleanup(e.Close)
	pool := new(workers.Pool)
	t.Cleanup(pool.Close)
	return &tester{&step{model: m, engine: e, pool: pool}, 0}
}

func meanVector(width int) *chain {
	return &chain{[]stage{&pool{by: []pooling{poolMean}}, normalize{}}, width}
}

func (s *tester) hidden(ctx context.Context, out []float32, b batch) error {
	return s.run(ctx, out, b, hidden(32), s.workers)
}

func (s *tester) vectors(ctx context.Context, out []float32, b batch) error {
	return s.run(ctx, out, b, meanVector(32), s.workers)
}

func poisoned(n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(math.NaN())
	}
	return x
}

func requireNear(t testing.TB, bound float64, want, got []float32, format string, args ...any) {
	require.Len(t, got, len(want), append([]any{format}, args...)...)
	for i := range want {
		if d := math.Abs(float64(want[i]) - float64(got[i])); !(d <= bound) {
			require.Failf(t, "apart", "element %d: got %g, want %g: "+format, append([]any{i, got[i], want[i]}, args...)...)
		}
	}
}

// Vectors equal those by transformers, on every kernel of this machine, for each sequence alone and
// for all packed with an empty one.
func TestTinyVectors(t *testing.T) {
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
				s := newTester(t, loadTiny(t, act, nn.Float32), d)
				packed := batch{starts: []int32{0, 0}, types: []int32{}}
				hidden, vectors := []float32(nil), make([]float32, 32)
				for _, c := range v.Cases {
					if c.Act != act {
						continue
					}
					b := batch{ids: c.IDs, types: c.Types, starts: []int32{0, int32(len(c.IDs))}}
					out := poisoned(len(c.Hidden))
					require.NoError(t, s.hidden(context.Background(), out, b))
					requireNear(t, 1e-5, c.Hidden, out, "%s, %d tokens", act, len(c.IDs))
					out = poisoned(32)
					require.NoError(t, s.vectors(context.Background(), out, b))
					requireNear(t, 1e-5, c.Vector, out, "%s, %d tokens", act, len(c.IDs))
					packed.ids, packed.types = append(packed.ids, c.IDs...), append(packed.types, c.Types...)
					packed.starts = append(packed.starts, int32(len(packed.ids)))
					hidden, vectors = append(hidden, c.Hidden...), append(vectors, c.Vector...)
				}
				out := poisoned(len(hidden))
				require.NoError(t, s.hidden(context.Background(), out, packed))
				requireNear(t, 1e-5, hidden, out, "%s, packed", act)
				out = poisoned(len(vectors))
				require.NoError(t, s.vectors(context.Background(), out, packed))
				requireNear(t, 1e-5, vectors, out, "%s, packed", act)
			}
		})
	}
	require.Positive(t, ran)
}

// randomBatch returns sequences of 0 to longest tokens.
func randomBatch(seed uint64, sequences, longest int) batch {
	r := rand.New(rand.NewPCG(seed, 0))
	b := batch{starts: []int32{0}}
	for range sequences {
		for range r.IntN(longest + 1) {
			b.ids, b.types = append(b.ids, r.Int32N(50)), append(b.types, r.Int32N(2))
		}
		b.starts = append(b.starts, int32(len(b.ids)))
	}
	return b
}

// Any number of workers, and concurrent steps, give the same bits.
func TestSameBits(t *testing.T) {
	for name, precision := range precisions {
		t.Run(name, func(t *testing.T) { sameBits(t, loadTiny(t, "", precision)) })
	}
}

func sameBits(t *testing.T, m family) {
	d := opened(t).Frozen()
	b := randomBatch(1, 60, 40)
	require.Greater(t, len(b.ids), 4*groupRows)
	s := newTester(t, m, d)
	s.workers = 1
	want := poisoned(60 * 32)
	require.NoError(t, s.vectors(context.Background(), want, b))
	var all sync.WaitGroup
	for workers := range 5 {
		s := &tester{&step{model: m, engine: s.engine, pool: s.pool}, workers}
		all.Go(func() {
			for range 3 {
				got := poisoned(60 * 32)
				if err := s.vectors(context.Background(), got, b); err != nil || !slices.Equal(got, want) {
					t.Errorf("%d workers: %v", workers, err)
				}
			}
		})
	}
	all.Wait()
}

// A step keeps no trace of a batch: large, small and large again.
func TestStepReuse(t *testing.T) {
	m, d := loadTiny(t, "", nn.Float32), opened(t).Frozen()
	s := newTester(t, m, d)
	for seed := range uint64(6) {
		b := randomBatch(seed, int(1+seed*17%23), 40)
		got, want := poisoned(len(b.ids)*32), poisoned(len(b.ids)*32)
		require.NoError(t, s.hidden(context.Background(), got, b))
		require.NoError(t, newTester(t, m, d).hidden(context.Background(), want, b))
		require.Equal(t, want, got)
	}
}

// Missing types are zeros; without layers only the embeddings remain.
func TestTypesAndNoLayers(t *testing.T) {
	v, weights := readTiny(t)
	f, err := loadText(edit(string(v.Config), `layers": 2`, `layers": 0`), weights, nn.Float32)
	require.NoError(t, err)
	m := f.(*bert)
	s := newTester(t, m, opened(t))
	b := randomBatch(3, 5, 9)
	clear(b.types)
	got, want := poisoned(len(b.ids)*32), poisoned(len(b.ids)*32)
	require.NoError(t, s.hidden(context.Background(), got, b))
	b.types = nil
	require.NoError(t, s.hidden(context.Background(), want, b))
	require.Equal(t, want, got)
	row := 0
	for i := range len(b.starts) - 1 {
		for at := range int(b.starts[i+1] - b.starts[i]) {
			x := make([]float64, 32)
			mean, variance := 0.0, 0.0
			for j := range x {
				x[j] = float64(m.word.Weight.Data[int(b.ids[row])*32+j]) + float64(m.position.Weight.Data[at*32+j]) + float64(m.kind.Weight.Data[j])
				mean += x[j] / 32
			}
			for j := range x {
				variance += (x[j] - mean) * (x[j] - mean) / 32
			}
			for j := range x {
				x[j] = (x[j]-mean)/math.Sqrt(variance+1e-12)*float64(m.norm.Weight.Data[j]) + float64(m.norm.Bias.Data[j])
				require.InDelta(t, x[j], got[row*32+j], 1e-5)
			}
			row++
		}
	}
}

func TestStepAllocates(t *testing.T) {
	if slow.Race {
		t.Skip("under the race detector, pools forget at random")
	}
	m, d := loadTiny(t, "", nn.Float32), opened(t).Frozen()
	for _, workers := range []int{1, 0} {
		s := newTester(t, m, d)
		s.workers = workers
		large, small := randomBatch(1, 30, 40), randomBatch(2, 1, 8)
		require.Greater(t, len(large.ids), 2*groupRows, "or no worker would have groups of its own")
		out, tail := poisoned(30*32), meanVector(32)
		call := func() {
			if s.run(context.Background(), out, large, tail, workers) != nil || s.run(context.Background(), out[:32], small, tail, workers) != nil {
				t.Fail()
			}
		}
		for range 5 {
			call()
		}
		require.Less(t, allocs.PerRun(20, call), 1.0, "%d workers", workers)
	}
}

func TestStepContext(t *testing.T) {
	s := newTester(t, loadTiny(t, "", nn.Float32), opened(t))
	ctx, cancel := context.WithCancel(context.Background())
	b := randomBatch(1, 40, 40)
	out := poisoned(40 * 32)
	require.NoError(t, s.vectors(ctx, out, b))
	cancel()
	for _, workers := range []int{1, 2} {
		s.workers = workers
		require.ErrorIs(t, s.vectors(ctx, out, b), context.Canceled)
		require.ErrorIs(t, s.hidden(ctx, poisoned(len(b.ids)*32), b), context.Canceled)
	}
	require.NoError(t, s.vectors(context.Background(), out, b), "a step goes on after an error")
}

// numbers returns a tokenizer.json, whose tokens from id 5 are numbers: their ids.
func numbers(vocab int) string {
	tokens := []string{`"[PAD]":0,"[UNK]":1,"[CLS]":2,"[SEP]":3,"[MASK]":4`}
	for i := 5; i < vocab; i++ {
		tokens = append(tokens, fmt.Sprintf(`"%d":%d`, i, i))
	}
	const a, b = `{"SpecialToken":{"id":"[CLS]","type_id":0}},{"Sequence":{"id":"A","type_id":0}},{"SpecialToken":{"id":"[SEP]","type_id":0}}`,
		`{"Sequence":{"id":"B","type_id":1}},{"SpecialToken":{"id":"[SEP]","type_id":1}}`
	return `{"version":"1.0","truncation":null,"padding":null,"added_tokens":[],
		"normalizer":{"type":"BertNormalizer","clean_text":true,"handle_chinese_chars":true,"strip_accents":null,"lowercase":true},
		"pre_tokenizer":{"type":"BertPreTokenizer"},
		"post_processor":{"type":"TemplateProcessing","single":[` + a + `],"pair":[` + a + `,` + b + `],
			"special_tokens":{"[CLS]":{"id":"[CLS]","ids":[2],"tokens":["[CLS]"]},"[SEP]":{"id":"[SEP]","ids":[3],"tokens":["[SEP]"]}}},
		"decoder":null,"model":{"type":"WordPiece","unk_token":"[UNK]","continuing_subword_prefix":"##","max_input_chars_per_word":100,
		"vocab":{` + strings.Join(tokens, ",") + `}}}`
}

// folder creates the tiny model's folder, with some files replaced. An empty file is removed.
func folder(t testing.TB, files map[string]string) string {
	dir := t.TempDir()
	v, weights := readTiny(t)
	all := map[string]string{"config.json": string(v.Config), "model.safetensors": string(weights), "tokenizer.json": numbers(50),
		"tokenizer_config.json": `{"tokenizer_class": "PreTrainedTokenizerFast"}`}
	for name, text := range files {
		all[name] = text
	}
	for name, text := range all {
		if text != "" {
			name = filepath.Join(dir, name)
			require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o777))
			require.NoError(t, os.WriteFile(name, []byte(text), 0o666))
		}
	}
	return dir
}

// Texts of any length come out as each of them alone, in their order.
func TestEmbed(t *testing.T) {
	e, err := OpenWith(context.Background(), folder(t, nil), Options{Dispatcher: opened(t)})
	require.NoError(t, err)
	defer e.Close()
	require.Equal(t, []int{32, 40}, []int{e.Dim(), e.MaxTokens()})
	r := rand.New(rand.NewPCG(1, 1))
	var texts []string
	for range 100 {
		texts = append(texts, strings.TrimSpace(fmt.Sprintln(toAny(r.Perm(r.IntN(45)))...)))
	}
	vectors, err := e.Embed(context.Background(), texts)
	require.NoError(t, err)
	require.Len(t, vectors, len(texts))
	i := 0
	for v, err := range e.EmbedSeq(context.Background(), slices.Values(texts)) {
		require.NoError(t, err)
		requireNear(t, 1e-5, vectors[i], v, "%q", texts[i])
		alone, err := e.Embed(context.Background(), texts[i:i+1])
		require.NoError(t, err)
		requireNear(t, 1e-5, vectors[i], alone[0], "%q", texts[i])
		i++
	}
	require.Equal(t, len(texts), i)
}

func toAny(x []int) (list []any) {
	for _, n := range x {
		list = append(list, n)
	}
	return list
}
