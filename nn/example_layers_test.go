package nn_test

import (
	"context"
	"fmt"
	"log"

	"github.com/flashkit-go/flashkit/nn"
	"github.com/flashkit-go/flashkit/safetensors"
)

// begin returns a Step in training.
func begin() *nn.Step {
	s := engine.NewStep()
	s.BeginTraining(context.Background(), 1, 0)
	return s
}

// ReLU hides the second row: its gradient is 0.
func ExampleLinear() {
	l, s := nn.NewLinear(nn.Blank(), 2, 1, true), begin()
	copy(l.Weight.Data, []float32{10, 1})
	l.Bias.Data[0] = 5
	l.Activation = nn.ReLU
	y := l.Forward(s, nn.NewTensor([]float32{1, 2, -3, 4}, 1, 2, 2))
	dx := l.Backward(s, nn.NewTensor([]float32{1, 1}, 1, 2, 1))
	fmt.Println(y.Data, dx.Data, l.Weight.Grad, l.Bias.Grad, s.Err())
	// Output: [17 0] [10 1 0 0] [1 2] [1] <nil>
}

// A residual connection: 2x + x, without a second pass over memory.
func ExampleLinear_ForwardAdd() {
	l, s := nn.NewLinear(nn.Blank(), 1, 1, true), begin()
	l.Weight.Data[0] = 2
	x := nn.NewTensor([]float32{1, 2}, 1, 2, 1)
	fmt.Println(l.ForwardAdd(s, x, x).Data, s.Err())
	// Output: [3 6] <nil>
}

// 1.003 is 1 as bf16.
func ExamplePrecision() {
	l, s := nn.NewLinear(nn.Blank(), 1, 1, false), begin()
	l.Weight.Data[0] = 1.003
	for _, p := range []nn.Precision{nn.Float32, nn.BF16Weights, nn.BF16} {
		l.Precision = p
		fmt.Println(l.Forward(s, nn.NewTensor([]float32{1, 1.003}, 1, 2, 1)).Data)
	}
	// Output:
	// [1.003 1.006009]
	// [1 1.003]
	// [1 1]
}

// The activations and their derivatives at -1, 0 and 2.
func ExampleActivation() {
	s := begin()
	x, dy := nn.NewTensor([]float32{-1, 0, 2}, 1, 3, 1), nn.NewTensor([]float32{1, 1, 1}, 1, 3, 1)
	for _, a := range []nn.Activation{nn.None, nn.ReLU, nn.GELU, nn.GELUTanh} {
		y := a.Forward(s, x)
		dx := a.Backward(s, dy)
		fmt.Printf("%.3f %.3f\n", y.Data, dx.Data)
	}
	// Output:
	// [-1.000 0.000 2.000] [1.000 1.000 1.000]
	// [0.000 0.000 2.000] [0.000 0.000 1.000]
	// [-0.159 0.000 1.954] [-0.083 0.500 1.085]
	// [-0.159 0.000 1.955] [-0.083 0.500 1.086]
}

// A row becomes -1 and 1. A gradient that is the same for both has no effect: norms remove shifts.
func ExampleLayerNorm() {
	l, s := nn.NewLayerNorm(nn.NewInit(1), 2), begin()
	l.Eps = 0
	y := l.Forward(s, nn.NewTensor([]float32{3, 7}, 1, 1, 2))
	dx := l.Backward(s, nn.NewTensor([]float32{1, 1}, 1, 1, 2))
	fmt.Println(y.Data, dx.Data, len(l.Params()), s.Err())
	// Output: [-1 1] [0 0] 2 <nil>
}

// Token 2 occurs twice, so its row has twice the gradient.
func ExampleEmbedding() {
	l, s := nn.NewEmbedding(nn.Blank(), 3, 2), begin()
	copy(l.Weight.Data, []float32{0, 1, 10, 11, 20, 21})
	y := l.Forward(s, nn.NewTokens([]int32{2, 0, 2}, 1, 3))
	l.Backward(s, nn.NewTensor([]float32{1, 1, 1, 1, 1, 1}, 1, 3, 2))
	fmt.Println(y.Data, l.Params()[0].Grad, s.Err())
	// Output: [20 21 0 1 20 21] [1 1 0 0 2 2] <nil>
}

// Two sequences of two rows. With ForwardFrom the second one continues at position 1.
func ExamplePositionalEmbedding() {
	l, s := nn.NewPositionalEmbedding(nn.Blank(), 3, 1), begin()
	copy(l.Weight.Data, []float32{1, 2, 3})
	x := nn.NewTensor([]float32{10, 10, 10, 10}, 2, 2, 1)
	y := l.Forward(s, x)
	dx := l.Backward(s, x)
	later := l.ForwardFrom(s, x, []int32{0, 1})
	fmt.Println(y.Data, dx.Data, later.Data, l.Params()[0].Grad, s.Err())
	// Output: [11 12 11 12] [10 10 10 10] [11 12 12 13] [20 20 0] <nil>
}

// The backward pass drops the same elements as the forward pass.
func ExampleDropout() {
	l, s := &nn.Dropout{P: 0.5}, begin()
	x := nn.NewTensor([]float32{1, 1, 1, 1, 1, 1, 1, 1}, 1, 1, 8)
	y := l.Forward(s, x)
	fmt.Println(y.Data)
	fmt.Println(l.Backward(s, x).Data)
	// Output:
	// [0 2 2 0 2 2 2 0]
	// [0 2 2 0 2 2 2 0]
}

// Two equal logits have the loss log 2. The second row does not count.
func ExampleCrossEntropy() {
	l, s := nn.CrossEntropy{Ignore: -100}, begin()
	logits := nn.NewTensor([]float32{0, 0, 5, 1}, 1, 2, 2)
	loss := l.Forward(s, logits, []int32{1, -100})
	fmt.Printf("%.4f %v %v\n", loss, l.Backward(s).Data, s.Err())
	// Output: 0.6931 [0.5 -0.5 0 0] <nil>
}

// The first update is LR against the gradient's sign, whatever the gradient's size.
func ExampleAdamW() {
	p := &nn.Param{Name: "p", Shape: []int{1}, Data: []float32{1}}
	o := nn.NewAdamW([]*nn.Param{p}, 0.1)
	o.WeightDecay = 0
	p.ZeroGrad()
	p.Grad[0] = 3
	o.Update()
	fmt.Printf("%.4f after %d step, %d tensors of state\n", p.Data[0], o.Steps, len(o.State()))
	// Output: 0.9000 after 1 step, 2 tensors of state
}

// The second step is longer, by the momentum of the first one.
func ExampleSGD() {
	p := &nn.Param{Name: "p", Shape: []int{1}, Data: []float32{1}}
	o := nn.NewSGD([]*nn.Param{p}, 0.1)
	o.Momentum = 0.5
	p.ZeroGrad()
	p.Grad[0] = 1
	o.Update()
	o.Update()
	fmt.Printf("%.4f, %s\n", p.Data[0], o.State()[0].Name)
	// Output: 0.7500, sgd.velocity.p
}

// A norm of 5 becomes 1; the direction stays.
func ExampleClipGradients() {
	p := &nn.Param{Name: "p", Shape: []int{2}, Data: make([]float32, 2), Grad: []float32{3, 4}}
	norm := nn.ClipGradients([]*nn.Param{p}, 1)
	fmt.Printf("%v %.2f\n", norm, p.Grad)
	// Output: 5 [0.60 0.80]
}

// Causal self-attention of two rows with two heads of two features.
func ExampleMultiHeadAttention() {
	m, s := nn.NewMultiHeadAttention(2), begin()
	m.Causal = true
	x := nn.NewTensor([]float32{1, 2, 3, 4, 5, 6, 7, 8}, 1, 2, 4)
	y := m.Forward(s, x, x, x) // self-attention; k and v of another tensor make it cross-attention
	dq, dk, dv := m.Backward(s, x)
	fmt.Println(y.Row(0), s.Err()) // the first row sees itself alone
	fmt.Println(dq.Features, dk.Features, dv.Features)
	// Output:
	// [1 2 3 4] <nil>
	// 4 4 4
}

// A picture of the attention weights needs them all, so flash attention is off.
func ExampleMultiHeadAttention_ForwardWeights() {
	m, s := nn.NewMultiHeadAttention(1), begin()
	m.UseFlashAttention = false
	q, k := nn.NewTensor([]float32{0, 0}, 1, 1, 2), nn.NewTensor([]float32{1, 2, 3, 4}, 1, 2, 2)
	y, weights := m.ForwardWeights(s, q, k, k)
	fmt.Println(y.Data, weights, s.Err())
	// Output: [2 3] [0.5 0.5] <nil>
}

// Position 0 stays, position 1 turns by one radian, and Backward turns back.
func ExampleRotary() {
	r, err := nn.NewRotary(8, 2, 10000, false)
	if err != nil {
		log.Fatal(err)
	}
	s := begin()
	y := r.Forward(s, nn.NewTensor([]float32{1, 0, 1, 0}, 1, 2, 2), 1)
	back := r.Backward(s, y, 1)
	later := r.ForwardFrom(s, nn.NewTensor([]float32{1, 0}, 1, 1, 2), 1, []int32{1})
	fmt.Printf("%.3f %.3f %.3f\n", y.Data, back.Data, later.Data)
	// Output: [1.000 0.000 0.540 0.841] [1.000 0.000 1.000 0.000] [0.540 0.841]
}

// A query attends to all tokens so far; each token is appended once.
func ExampleKVCache() {
	m, s := nn.NewMultiHeadAttention(1), engine.NewStep()
	cache, err := nn.NewKVCache(nn.KVCacheConfig{Batch: 1, Heads: 1, Capacity: 16, Dim: 2})
	if err != nil {
		log.Fatal(err)
	}
	s.Begin(context.Background())
	for token := range 3 {
		x := nn.NewTensor([]float32{0, float32(token)}, 1, 1, 2)
		y := m.Decode(s, nn.NewTensor([]float32{1, 0}, 1, 1, 2), x, x, cache)
		fmt.Printf("%.2f %v %v\n", y.Data, cache.Lens(), s.Err())
	}
	k, _ := cache.View()
	fmt.Println(k.Shape(), cache.Capacity())
	cache.Reset()
	fmt.Println(cache.Append(nn.NewTensor([]float32{1, 2}, 1, 1, 2), nn.NewTensor([]float32{3, 4}, 1, 1, 2)), cache.Lens())
	// Output:
	// [0.00 0.00] [1] <nil>
	// [0.00 0.50] [2] <nil>
	// [0.00 1.00] [3] <nil>
	// [1 1 16 2] 16
	// <nil> [1]
}

// Cross-attention of text to an image, and causal self-attention that decodes.
func ExampleAttentionLayer() {
	i := nn.NewInit(1)
	l := nn.NewAttentionLayer(i, nn.AttentionConfig{QFeatures: 6, KFeatures: 4, VFeatures: 4, Heads: 2, DimHead: 8})
	if err := i.Err(); err != nil {
		log.Fatal(err)
	}
	s := begin()
	text, image := s.NewTensor(nn.Rows{Batch: 1, T: 3}, 6), s.NewTensor(nn.Rows{Batch: 1, T: 5}, 4)
	y := l.Forward(s, text, image, image)
	dq, dk, dv := l.Backward(s, y)
	fmt.Println(y.T, y.Features, dq.T, dk.T, dv.Features, len(l.Params()), s.Err())

	self := nn.NewAttentionLayer(i, nn.AttentionConfig{QFeatures: 6, Heads: 2, DimHead: 8, Causal: true})
	self.UseFlashAttention(false)
	cache, err := nn.NewKVCache(nn.KVCacheConfig{Batch: 1, Heads: 2, Capacity: 10, Dim: 8})
	if err != nil {
		log.Fatal(err)
	}
	s.Begin(context.Background())
	fmt.Println(self.Decode(s, text, cache).T, cache.Lens(), s.Err())
	// Output:
	// 3 6 3 5 4 10 <nil>
	// 3 [3] <nil>
}

// A layer in training, then in decoding.
func ExampleTransformerLayer() {
	i := nn.NewInit(1)
	l := nn.NewTransformerLayer(i, nn.TransformerConfig{Embedding: 6, Hidden: 24, Heads: 2, DimHead: 8, Dropout: 0.1, Causal: true})
	if err := i.Err(); err != nil {
		log.Fatal(err)
	}
	l.UseFlashAttention(true) // the default
	s := begin()
	y := l.Forward(s, s.NewTensor(nn.Rows{Batch: 2, T: 3}, 6))
	dx := l.Backward(s, y)
	cache, _ := nn.NewKVCache(nn.KVCacheConfig{Batch: 2, Heads: 2, Capacity: 10, Dim: 8})
	s.Begin(context.Background())
	next := l.Decode(s, dx, cache)
	fmt.Println(y.Features, dx.Count(), next.Count(), len(l.Params()), s.Err())
	// Output: 6 6 6 16 <nil>
}

// A batch of padded sequences, then decoding of one sequence.
func ExampleTransformer() {
	i := nn.NewInit(1)
	l := nn.NewTransformer(i, nn.TransformerConfig{Embedding: 6, Hidden: 24, Layers: 2, Heads: 2, DimHead: 8, SequenceLen: 10})
	if err := i.Err(); err != nil {
		log.Fatal(err)
	}
	l.UseFlashAttention(false)
	s := begin()
	y := l.Forward(s, s.NewTensor(nn.Padded(4, []int32{4, 2}), 6))
	dx := l.Backward(s, y)
	fmt.Println(y.Count(), dx.Features, len(l.Params()), s.Err())
	caches, err := l.NewCaches(1)
	if err != nil {
		log.Fatal(err)
	}
	s.Begin(context.Background())
	fmt.Println(l.Decode(s, s.NewTensor(nn.Rows{Batch: 1, T: 1}, 6), caches).Count(), s.Err())
	// Output:
	// 8 6 33 <nil>
	// 1 <nil>
}

// A model learns that 1 follows 0, 2 follows 1, and 0 follows 2. Then it continues a text.
func ExampleLanguageModel() {
	i := nn.NewInit(1)
	m := nn.NewLanguageModel(i, nn.LanguageModelConfig{Vocabulary: 3, TransformerConfig: nn.TransformerConfig{
		Embedding: 8, Hidden: 16, Layers: 1, Heads: 2, DimHead: 4, Causal: true, SequenceLen: 6}})
	if err := i.Err(); err != nil {
		log.Fatal(err)
	}
	m.UseFlashAttention(true) // the default
	params, cross, s := m.Params(), nn.CrossEntropy{Ignore: -100}, engine.NewStep()
	optimizer := nn.NewAdamW(params, 0.01)
	text := nn.NewTokens([]int32{0, 1, 2, 0, 1, 2}, 1, 6)
	for number := range uint64(100) {
		s.BeginTraining(context.Background(), 1, number)
		nn.ZeroGrads(params)
		cross.Forward(s, m.Forward(s, text), []int32{1, 2, 0, 1, 2, 0})
		m.Backward(s, cross.Backward(s))
		if err := s.Err(); err != nil {
			log.Fatal(err)
		}
		nn.ClipGradients(params, 1)
		optimizer.Update()
	}

	caches, err := m.NewCaches(1)
	if err != nil {
		log.Fatal(err)
	}
	token := int32(0)
	for range 5 { // one row at a time; earlier rows are cached
		s.Begin(context.Background())
		logits := m.Decode(s, nn.NewTokens([]int32{token}, 1, 1), caches)
		if err := s.Err(); err != nil {
			log.Fatal(err)
		}
		for j, x := range logits.Data {
			if x > logits.Data[token] {
				token = int32(j)
			}
		}
		fmt.Print(token, " ")
	}
	// Output: 1 2 0 1 2
}

// A model of a file, for inference: it is not initialized first, and not copied if possible.
func ExampleFromFile() {
	f := &safetensors.File{Tensors: []safetensors.Tensor{safetensors.FromFloat32s("head.weight", []int{1, 2}, []float32{10, 1})}}
	i := nn.FromFile(f)
	l, s := nn.NewLinear(i.In("head"), 2, 1, false), engine.NewStep()
	s.Begin(context.Background())
	fmt.Println(l.Forward(s, nn.NewTensor([]float32{1, 2}, 1, 1, 2)).Data, i.Err(), s.Err())
	// Output: [12] <nil> <nil>
}

// A function reads the tensors of a file when layers need them.
func ExampleFromTensors() {
	i := nn.FromTensors(func(name string) (safetensors.Tensor, error) {
		return safetensors.FromFloat32s(name, []int{1, 2}, []float32{10, 1}), nil
	})
	l, s := nn.NewLinear(i.In("head"), 2, 1, false), engine.NewStep()
	s.Begin(context.Background())
	fmt.Println(l.Weight.Name, l.Forward(s, nn.NewTensor([]float32{1, 2}, 1, 1, 2)).Data, i.Err(), s.Err())
	// Output: head.weight [12] <nil> <nil>
}

// A program frees the weights of a layer before it makes the next one.
func ExampleNewPacker() {
	var layers []*nn.Linear
	var p *nn.Packer
	s := engine.NewStep()
	for k := range 2 {
		l := nn.NewLinear(nn.Blank(), 1, 1, false)
		if l.Weight.Data[0] = float32(10 + k); k == 0 {
			p = nn.NewPacker(2, l)
		}
		if err := p.Pack(l); err != nil {
			fmt.Println(err)
		}
		l.Weight.Data = nil
		layers = append(layers, l)
	}
	s.Begin(context.Background())
	x := nn.NewTensor([]float32{1}, 1, 1, 1)
	fmt.Println(layers[0].Forward(s, x).Data, layers[1].Forward(s, x).Data, s.Err())
	// Output: [10] [11] <nil>
}

// Layers that a Packer was not made for are packed, too.
func ExamplePacker_Pack() {
	l, s := nn.NewLinear(nn.Blank(), 2, 1, false), engine.NewStep()
	copy(l.Weight.Data, []float32{10, 1})
	err := nn.NewPacker(0).Pack(l)
	l.Weight.Data = nil
	s.Begin(context.Background())
	fmt.Println(l.Forward(s, nn.NewTensor([]float32{1, 2}, 1, 1, 2)).Data, err, s.Err())
	// Output: [12] <nil> <nil>
}

// After packing, a program for inference may free the weights.
func ExamplePack() {
	l, s := nn.NewLinear(nn.Blank(), 2, 1, false), engine.NewStep()
	copy(l.Weight.Data, []float32{10, 1})
	err := nn.Pack(l)
	l.Weight.Data = nil // Forward reads the packed weights
	s.Begin(context.Background())
	fmt.Println(l.Forward(s, nn.NewTensor([]float32{1, 2}, 1, 1, 2)).Data, err, s.Err())
	// Output: [12] <nil> <nil>
}
