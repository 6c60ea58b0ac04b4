package nn_test

import (
	"bytes"
	"context"
	"fmt"
	"log"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/nn"
)

// Two layers in a row are a perceptron; the first one has the activation.
func ExampleNewLinear() {
	i := nn.NewInit(1)
	up, down := nn.NewLinear(i.In("up"), 4, 16, true), nn.NewLinear(i.In("down"), 16, 4, true)
	up.Activation = nn.ReLU
	if err := i.Err(); err != nil {
		log.Fatal(err)
	}
	s := begin()
	y := down.Forward(s, up.Forward(s, nn.NewTensor(make([]float32, 2*4), 1, 2, 4)))
	fmt.Println(up.Weight.Name, up.Weight.Shape, down.Weight.Shape)
	fmt.Println(y.Count(), "rows of", y.Features, s.Err())
	// Output:
	// up.weight [16 4] [4 16]
	// 2 rows of 4 <nil>
}

// Rows of different scale become rows of mean 0 and variance 1.
func ExampleNewLayerNorm() {
	norm, s := nn.NewLayerNorm(nn.NewInit(1), 4), begin()
	y := norm.Forward(s, nn.NewTensor([]float32{1, 2, 3, 4, 100, 200, 300, 400}, 1, 2, 4))
	fmt.Printf("%.2f\n%.2f\n", y.Row(0), y.Row(1))
	// Output:
	// [-1.34 -0.45 0.45 1.34]
	// [-1.34 -0.45 0.45 1.34]
}

// The input of a language model: a row of 8 features for each token. Equal tokens have equal rows.
func ExampleNewEmbedding() {
	words, s := nn.NewEmbedding(nn.NewInit(1), 50, 8), begin()
	x := words.Forward(s, nn.NewTokens([]int32{7, 49, 7}, 1, 3))
	fmt.Println(x.Count(), x.Features, x.Row(0)[0] == x.Row(2)[0], x.Row(0)[0] == x.Row(1)[0])

	words.Forward(s, nn.NewTokens([]int32{50}, 1, 1))
	fmt.Println(s.Err())
	// Output:
	// 3 8 true false
	// flashkit: Tokens.IDs[0] = 50: must be from 0 to 49, as weight is of 50 tokens
}

// The positions bound the length of a sequence.
func ExampleNewPositionalEmbedding() {
	positions, s := nn.NewPositionalEmbedding(nn.Blank(), 3, 1), begin()
	copy(positions.Weight.Data, []float32{0.1, 0.2, 0.3})
	fmt.Println(positions.Forward(s, nn.NewTensor([]float32{0, 0, 0}, 1, 3, 1)).Data)

	positions.Forward(s, nn.NewTensor(make([]float32, 4), 1, 4, 1))
	fmt.Println(s.Err())
	// Output:
	// [0.1 0.2 0.3]
	// flashkit: weight: rows of sequence 0 = 4: from position 0 on are beyond the 3 positions that there are
}

// Grouped-query attention: four query heads of 8 features share two KV heads.
func ExampleNewMultiHeadAttention() {
	m, s := nn.NewMultiHeadAttention(4), begin()
	m.KVHeads, m.Causal = 2, true
	q := nn.NewTensor(make([]float32, 3*32), 1, 3, 32)
	k, v := nn.NewTensor(make([]float32, 3*16), 1, 3, 16), nn.NewTensor(make([]float32, 3*16), 1, 3, 16)
	y := m.Forward(s, q, k, v)
	fmt.Println(y.Count(), "rows of", y.Features, s.Err())
	// Output: 3 rows of 32 <nil>
}

// A score of rotated rows depends on their distance, not on their positions.
func ExampleNewRotary() {
	r, err := nn.NewRotary(100, 4, 10000, false)
	if err != nil {
		log.Fatal(err)
	}
	s := begin()
	score := func(at, keyAt int32) (sum float32) {
		q := r.ForwardFrom(s, nn.NewTensor([]float32{1, 2, 3, 4}, 1, 1, 4), 1, []int32{at})
		k := r.ForwardFrom(s, nn.NewTensor([]float32{4, 3, 2, 1}, 1, 1, 4), 1, []int32{keyAt})
		for j := range q.Data {
			sum += q.Data[j] * k.Data[j]
		}
		return sum
	}
	fmt.Printf("%.3f %.3f %.3f\n", score(2, 0), score(92, 90), score(3, 0))
	// Output: -3.456 -3.456 -1.616
}

// A cache for two sequences of at most 4 rows, with one head of 2 features.
func ExampleNewKVCache() {
	cache, err := nn.NewKVCache(nn.KVCacheConfig{Batch: 2, Heads: 1, Capacity: 4, Dim: 2})
	if err != nil {
		log.Fatal(err)
	}
	x := nn.NewTensor(make([]float32, 2*3*2), 2, 3, 2)
	x.Lens = []int32{3, 1} // the second sequence has two rows of padding
	fmt.Println(cache.Append(x, x), cache.Lens())
	fmt.Println(cache.Append(x, x), cache.Lens())
	// Output:
	// <nil> [3 1]
	// flashkit: KVCache: rows of sequence 0 = 3: do not fit: it has 3 of 4 [3 1]
}

// A cache of 3 pages of 2 rows. Both sequences continue one prompt, whose pages they share.
func ExampleKVCache_Fork() {
	cache, err := nn.NewKVCache(nn.KVCacheConfig{Batch: 2, Heads: 1, Capacity: 4, Dim: 1, Page: 2, Pages: 3})
	if err != nil {
		log.Fatal(err)
	}
	rows := func(lens ...int32) nn.Tensor {
		x := nn.NewTensor([]float32{1, 2, 3, 4, 5, 6}, 2, 3, 1)
		x.Lens = lens
		return x
	}
	fmt.Println(cache.Append(rows(3, 0), rows(3, 0)), cache.FreePages())
	fmt.Println(cache.Fork(0, 1), cache.Lens(), cache.FreePages())
	fmt.Println(cache.Append(rows(0, 1), rows(0, 1)), cache.FreePages()) // copies the second page
	k, v := cache.View()
	seqs := cache.Sequences()
	fmt.Println(k.Float32s(), seqs.Pages, seqs.KVLens)

	q := flashkit.F32([]float32{0, 0}, 2, 1, 1, 1)
	args := &flashkit.Args{Q: q, K: k, V: v, O: flashkit.F32(make([]float32, 2), 2, 1, 1, 1), Seqs: &seqs}
	fmt.Println(flashkit.ProblemOf(args, flashkit.Band{})) // the same for all lengths
	// Output:
	// <nil> 1
	// <nil> [3 3] 1
	// <nil> 0
	// [1 2 3 0 3 4] [0 1 0 2] [3 4]
	// b2-h1-g1-n1-m4-d1-f32-ragged-page2
}

// An evicted span leaves the positions of the other rows. A truncated tail gives its positions back.
func ExampleKVCache_Evict() {
	cache, err := nn.NewKVCache(nn.KVCacheConfig{Batch: 1, Heads: 1, Capacity: 8, Dim: 1, DType: flashkit.BFloat16})
	if err != nil {
		log.Fatal(err)
	}
	x := nn.NewTensor(make([]float32, 6), 1, 6, 1)
	fmt.Println(cache.Append(x, x), cache.Positions(0), cache.Next())
	fmt.Println(cache.Evict(0, 1, 3), cache.Positions(0), cache.Next())
	fmt.Println(cache.Truncate(0, 2), cache.Positions(0), cache.Next())
	fmt.Println(cache.Remove(0), cache.Positions(0), cache.Next())
	// Output:
	// <nil> [0 1 2 3 4 5] [6]
	// <nil> [0 3 4 5] [6]
	// <nil> [0 3] [4]
	// <nil> [] [0]
}

// Keys and values in 8 bits: each head of a row has a scale.
func ExampleKVCache_Scales() {
	cache, err := nn.NewKVCache(nn.KVCacheConfig{Batch: 1, Heads: 1, Capacity: 2, Dim: 2, DType: flashkit.Int8})
	if err != nil {
		log.Fatal(err)
	}
	x := nn.NewTensor([]float32{127, -2, 254, 0}, 1, 2, 2)
	fmt.Println(cache.Append(x, x))
	k, _ := cache.View()
	scales, _ := cache.Scales()
	fmt.Println(k.Int8s(), scales.Float32s())
	// Output:
	// <nil>
	// [127 -2 127 0] [1 2]
}

// Grouped-query attention over rows of 64 features: the projections of keys and values are narrow.
func ExampleNewAttentionLayer() {
	i := nn.NewInit(1)
	l := nn.NewAttentionLayer(i, nn.AttentionConfig{QFeatures: 64, Heads: 8, KVHeads: 2, DimHead: 16, Causal: true})
	if err := i.Err(); err != nil {
		log.Fatal(err)
	}
	for _, p := range l.Params()[6:] { // after the norms
		fmt.Println(p.Name, p.Shape)
	}
	// Output:
	// q.weight [128 64]
	// k.weight [32 64]
	// v.weight [32 64]
	// out.weight [64 128]
}

// Invalid configs are errors of the Init, so one check covers a whole model.
func ExampleNewTransformerLayer() {
	i := nn.NewInit(1)
	l := nn.NewTransformerLayer(i.In("layer"), nn.TransformerConfig{Embedding: 8, Hidden: 32, Heads: 2, DimHead: 4})
	fmt.Println(nn.Count(l.Params()), i.Err())

	nn.NewTransformerLayer(i.In("wrong"), nn.TransformerConfig{Embedding: 8, Hidden: 32, Heads: 2, DimHead: 4, Dropout: 1})
	fmt.Println(i.Err())
	// Output:
	// 872 <nil>
	// flashkit: Dropout.P = 1: must be at least 0 and less than 1
}

// An encoder of sentences: padding rows have no influence on the others.
func ExampleNewTransformer() {
	i := nn.NewInit(1)
	l := nn.NewTransformer(i, nn.TransformerConfig{Embedding: 8, Hidden: 32, Layers: 2, Heads: 2, DimHead: 4, SequenceLen: 16})
	if err := i.Err(); err != nil {
		log.Fatal(err)
	}
	s, x := engine.NewStep(), make([]float32, 3*8)
	var first []float32
	for _, padding := range []float32{0, 100} {
		x[2*8] = padding
		s.Begin(context.Background())
		y := l.Forward(s, nn.Tensor{Data: x, Features: 8, Rows: nn.Padded(3, []int32{2})})
		first = append(first, y.Row(0)[0])
	}
	fmt.Println(first[0] == first[1], s.Err())
	// Output: true <nil>
}

// A causal model of 100 tokens: a row of logits for each token of the texts.
func ExampleNewLanguageModel() {
	i := nn.NewInit(1)
	m := nn.NewLanguageModel(i, nn.LanguageModelConfig{Vocabulary: 100, TransformerConfig: nn.TransformerConfig{
		Embedding: 16, Hidden: 64, Layers: 2, Heads: 2, DimHead: 8, Causal: true, SequenceLen: 32}})
	if err := i.Err(); err != nil {
		log.Fatal(err)
	}
	s := engine.NewStep()
	s.Begin(context.Background())
	logits := m.Forward(s, nn.NewTokens([]int32{1, 2, 3, 4, 5, 6}, 2, 3)) // two texts of three tokens
	fmt.Println(logits.Count(), "rows of", logits.Features, "logits", s.Err())
	fmt.Println(nn.Count(m.Params()), "numbers to learn")
	// Output:
	// 6 rows of 100 logits <nil>
	// 10372 numbers to learn
}

// Training resumes from the saved parameters, optimizer state and number of steps.
func ExampleNewAdamW() {
	step := func(p *nn.Param, o *nn.AdamW) {
		p.Grad = []float32{p.Data[0] - 3} // of half the squared distance from 3
		o.Update()
	}
	p := &nn.Param{Name: "p", Shape: []int{1}, Data: []float32{1}}
	o := nn.NewAdamW([]*nn.Param{p}, 0.1)
	step(p, o)
	var file bytes.Buffer
	if err := nn.Save(&file, append(o.State(), p), nil); err != nil {
		log.Fatal(err)
	}
	step(p, o)

	q := &nn.Param{Name: "p", Shape: []int{1}, Data: []float32{0}}
	again := nn.NewAdamW([]*nn.Param{q}, 0.1)
	_, err := nn.Load(file.Bytes(), append(again.State(), q))
	again.Steps = 1
	step(q, again)
	fmt.Println(p.Data[0] == q.Data[0], err)
	// Output: true <nil>
}

// The learning rate may follow a schedule.
func ExampleNewSGD() {
	p := &nn.Param{Name: "p", Shape: []int{1}, Data: []float32{0}, Grad: []float32{-1}}
	o := nn.NewSGD([]*nn.Param{p}, 0.5)
	for range 3 {
		o.Update()
		fmt.Print(p.Data[0], " ")
		o.LR /= 2
	}
	// Output: 0.5 0.75 0.875
}
