package encoder

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/internal/slow"
	"github.com/flashkit-go/flashkit/safetensors"
)

// openFiles opens the tiny model's folder, with some files replaced.
func openFiles(t testing.TB, files map[string]string, o Options) *Encoder {
	o.Dispatcher = opened(t).Frozen()
	e, err := OpenWith(context.Background(), folder(t, files), o)
	require.NoError(t, err)
	t.Cleanup(e.Close)
	return e
}

// reranker returns the files of a RoBERTa with a head, whose config is edited.
func reranker(t testing.TB, replacements ...string) map[string]string {
	text, err := os.ReadFile("testdata/roberta.json")
	require.NoError(t, err)
	var v struct{ Config json.RawMessage }
	require.NoError(t, json.Unmarshal(text, &v))
	weights, err := os.ReadFile("testdata/roberta.safetensors")
	require.NoError(t, err)
	return map[string]string{"config.json": edit(string(v.Config), replacements...), "model.safetensors": string(weights), "tokenizer.json": numbers(40), "tokenizer_config.json": `{"tokenizer_class": "PreTrainedTokenizerFast"}`}
}

// one turns a classifier of three labels into a reranker of one.
func one(t testing.TB, files map[string]string) map[string]string {
	f, err := safetensors.Parse([]byte(files["model.safetensors"]))
	require.NoError(t, err)
	for i, x := range f.Tensors {
		if strings.HasPrefix(x.Name, "classifier.out_proj") {
			f.Tensors[i].Shape = append([]int{1}, x.Shape[1:]...)
			f.Tensors[i].Data = x.Data[:len(x.Data)/3]
		}
	}
	files["model.safetensors"] = written(t, f)
	return files
}

// Scores are the activation of the logits of a pair. Text order and batches do not matter.
func TestScore(t *testing.T) {
	const labels = `"id2label": {"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}`
	const identity = `, "sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity", "version": "5.0.0"}`
	texts := []string{"5 6 7", "8", "", "9 10 11 12 13 14 15 16 17"}
	raw, err := openFiles(t, one(t, reranker(t, labels, `"id2label": {"0": "LABEL_0"}`+identity)), Options{}).Score(context.Background(), "20 21", texts)
	require.NoError(t, err)
	require.Len(t, raw, 4)
	e := openFiles(t, one(t, reranker(t, labels, `"id2label": {"0": "LABEL_0"}`)), Options{})
	scores, err := e.Score(context.Background(), "20 21", texts)
	require.NoError(t, err)
	for i := range texts {
		require.InDelta(t, 1/(1+math.Exp(-float64(raw[i]))), scores[i], 1e-6)
		alone, err := e.Score(context.Background(), "20 21", texts[i:i+1])
		require.NoError(t, err)
		require.InDelta(t, scores[i], alone[0], 1e-6)
	}
	other, err := e.Score(context.Background(), "22", texts)
	require.NoError(t, err)
	require.NotEqual(t, scores, other)
	_, err = openFiles(t, reranker(t), Options{}).Score(context.Background(), "20 21", texts)
	require.ErrorContains(t, err, "3 labels: must have one label")
	_, err = openFiles(t, nil, Options{}).Score(context.Background(), "20 21", texts)
	require.ErrorContains(t, err, "no labels: must have one label")
}

// Classes are sorted by scores, which are a softmax, sigmoids or the logits themselves.
func TestClassify(t *testing.T) {
	texts := []string{"5 6 7", "", "9 10 11 12 13 14 15 16 17"}
	classes := func(kind string) (list []map[string]float64) {
		e := openFiles(t, reranker(t, `"id2label": {"0": "LABEL_0"`, kind+`"id2label": {"0": "zero"`), Options{})
		results, err := e.Classify(context.Background(), texts)
		require.NoError(t, err)
		for _, r := range results {
			require.True(t, slices.IsSortedFunc(r, func(a, b Class) int { return int(math.Copysign(1, float64(b.Score-a.Score))) }), "%v", r)
			m := map[string]float64{}
			for _, c := range r {
				m[c.Label] = float64(c.Score)
			}
			list = append(list, m)
		}
		return list
	}
	logits, soft, many := classes(`"problem_type": "regression", `), classes(``), classes(`"problem_type": "multi_label_classification", `)
	for i := range texts {
		sum := 0.0
		for _, x := range logits[i] {
			sum += math.Exp(x)
		}
		for label, x := range logits[i] {
			require.InDelta(t, math.Exp(x)/sum, soft[i][label], 1e-6)
			require.InDelta(t, 1/(1+math.Exp(-x)), many[i][label], 1e-6)
		}
		require.Contains(t, soft[i], "zero")
	}
	for want, files := range map[string]map[string]string{
		`problem_type = "ranking": must be regression`:       reranker(t, `"id2label"`, `"problem_type": "ranking", "id2label"`),
		`id2label = {"0":"LABEL_0","1":"LABEL_1","3":"`:      reranker(t, `"2": "LABEL_2"`, `"3": "LABEL_2"`),
		`num_labels = 2: must be the number of labels in id`: reranker(t, `"id2label"`, `"num_labels": 2, "id2label"`),
		`activation_fn = "custom.Act": must be one of torch`: reranker(t, `"id2label"`, `"sentence_transformers": {"activation_fn": "custom.Act"}, "id2label"`),
	} {
		_, err := OpenWith(context.Background(), folder(t, files), Options{Dispatcher: opened(t)})
		require.ErrorContains(t, err, want)
	}
}

// Concurrent calls of one Encoder, with any number of workers, give the same bits.
func TestConcurrentCalls(t *testing.T) {
	texts := manyTexts(60)
	want, err := openFiles(t, published, Options{Workers: 1}).Embed(context.Background(), texts)
	require.NoError(t, err)
	for _, workers := range []int{0, 2, 5} {
		e := openFiles(t, published, Options{Workers: workers})
		var all sync.WaitGroup
		for range 4 {
			all.Go(func() {
				got, err := e.Embed(context.Background(), texts)
				if err != nil || !slices.EqualFunc(got, want, slices.Equal[[]float32]) {
					t.Errorf("%d workers: %v", workers, err)
				}
			})
		}
		all.Wait()
	}
}

func manyTexts(n int) (texts []string) {
	for i := range n {
		texts = append(texts, strings.TrimSpace(strings.Repeat(fmt.Sprint(5+i%40, " "), i*7%29)))
	}
	return texts
}

// Warm calls allocate their results alone: the vectors and their list.
func TestEmbedAllocates(t *testing.T) {
	if slow.Race {
		t.Skip("under the race detector, pools forget at random")
	}
	for _, workers := range []int{1, 0} {
		e, texts := openFiles(t, published, Options{Workers: workers}), manyTexts(60)
		call := func() {
			if _, err := e.Embed(context.Background(), texts); err != nil {
				t.Error(err)
			}
		}
		for range 5 {
			call()
		}
		require.LessOrEqual(t, allocs.PerRun(20, call), 2.5, "%d workers", workers)
	}
}

// A canceled call is an error, and later calls go on. Progress counts all texts.
func TestContextAndProgress(t *testing.T) {
	var mu sync.Mutex
	last, calls := 0, 0
	e := openFiles(t, published, Options{Progress: func(done, total int) {
		mu.Lock()
		defer mu.Unlock()
		if done <= last || total != 60 {
			t.Errorf("%d of %d after %d", done, total, last)
		}
		last, calls = done, calls+1
	}})
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	_, err := e.Embed(ctx, manyTexts(60))
	require.ErrorIs(t, err, context.Canceled)
	for _, err := range e.EmbedSeq(ctx, slices.Values(manyTexts(3))) {
		require.ErrorIs(t, err, context.Canceled)
	}
	last, calls = 0, 0
	_, err = e.Embed(context.Background(), manyTexts(60))
	require.NoError(t, err)
	require.Equal(t, 60, last)
	require.Greater(t, calls, 1)
	empty, err := e.Embed(context.Background(), nil)
	require.NoError(t, err)
	require.Empty(t, empty)
}

// A consumer may stop early. Texts of many chunks keep their order.
func TestEmbedSeq(t *testing.T) {
	e := openFiles(t, published, Options{})
	texts := manyTexts(2*chunkTexts + 3)
	n := 0
	for v, err := range e.EmbedSeq(context.Background(), slices.Values(texts)) {
		require.NoError(t, err)
		if n%500 == 0 || n == len(texts)-1 {
			alone, err := e.Embed(context.Background(), texts[n:n+1])
			require.NoError(t, err)
			requireNear(t, 1e-5, alone[0], v, "text %d", n)
		}
		n++
	}
	require.Equal(t, len(texts), n)
	for range e.EmbedSeq(context.Background(), slices.Values(texts)) {
		break
	}
}

// Token ids are checked.
func TestEmbedTokensRefused(t *testing.T) {
	e := openFiles(t, published, Options{})
	for want, ids := range map[string][][]int32{
		"sequences[1][0] = 50: must be from 0 to 49":     {{2}, {50}},
		"sequences[0][1] = -1: must be from 0 to 49":     {{2, -1}},
		"sequences[0] = 31 tokens: must have at most 30": {make([]int32, 31)},
	} {
		_, err := e.EmbedTokens(context.Background(), ids)
		require.ErrorContains(t, err, want)
	}
}

// Close ends all goroutines.
func TestClose(t *testing.T) {
	before := runtime.NumGoroutine()
	e, err := Open(context.Background(), folder(t, published))
	require.NoError(t, err)
	_, err = e.Embed(context.Background(), manyTexts(60))
	require.NoError(t, err)
	e.Close()
	for range 100 {
		if runtime.NumGoroutine() <= before {
			return
		}
		runtime.Gosched()
	}
	require.LessOrEqual(t, runtime.NumGoroutine(), before+1)
	_, err = OpenWith(canceled(), folder(t, published), Options{})
	require.True(t, errors.Is(err, context.Canceled))
}

func canceled() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}
