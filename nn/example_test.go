package nn_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log"
	"sync"

	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/nn"
	"github.com/flashkit-go/flashkit/safetensors"
)

// A model of one layer learns to double its input.
func Example() {
	ctx := context.Background()
	d, err := dispatch.Default(ctx)
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	e := nn.NewEngine(d)
	defer e.Close()

	model := nn.NewLinear(nn.NewInit(1), 1, 1, false)
	optimizer := nn.NewSGD(model.Params(), 0.1)
	s := e.NewStep()
	for number := range uint64(50) {
		s.BeginTraining(ctx, 1, number)
		nn.ZeroGrads(model.Params())
		y := model.Forward(s, nn.NewTensor([]float32{1, 2}, 2, 1, 1))
		model.Backward(s, nn.NewTensor([]float32{y.Data[0] - 2, y.Data[1] - 4}, 2, 1, 1)) // of half the squared distance
		if err := s.Err(); err != nil {
			log.Fatal(err)
		}
		optimizer.Update()
	}
	fmt.Printf("%.4f\n", model.Weight.Data[0])
	// Output: 2.0000
}

// The set-up of a program: a Dispatcher, an Engine, and a Step for each goroutine.
func ExampleNewEngine() {
	d, err := dispatch.Default(context.Background()) // every backend that this machine can run
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	e := nn.NewEngine(d) // once per program
	defer e.Close()
	s := e.NewStep() // once per goroutine
	s.Begin(context.Background())
	y := nn.ReLU.Forward(s, nn.NewTensor([]float32{-1, 2}, 1, 1, 2))
	fmt.Println(y.Data, s.Err())
	// Output: [0 2] <nil>
}

// One Engine serves all goroutines, each with its own Step.
func ExampleEngine() {
	d, err := dispatch.Default(context.Background())
	if err != nil {
		log.Fatal(err)
	}
	defer d.Close()
	e := nn.NewEngine(d)
	defer e.Close()
	l := nn.NewLinear(nn.Blank(), 1, 1, false)
	l.Weight.Data[0] = 2
	y := make([]float32, 3)
	var wg sync.WaitGroup
	for i := range y {
		wg.Go(func() {
			s := e.NewStep()
			s.Begin(context.Background())
			y[i] = l.Forward(s, nn.NewTensor([]float32{float32(i)}, 1, 1, 1)).Data[0]
		})
	}
	wg.Wait()
	fmt.Println(y)
	// Output: [0 2 4]
}

// A Step begins again and again, for inference or for training.
func ExampleEngine_NewStep() {
	s := engine.NewStep()
	s.Workers = 1
	s.Begin(context.Background())
	fmt.Println(s.Train(), s.Err())
	s.BeginTraining(context.Background(), 42, 0)
	fmt.Println(s.Train(), s.Err())
	// Output:
	// false <nil>
	// true <nil>
}

// A double is a layer outside of this package.
type double struct{}

func (l *double) Forward(s *nn.Step, x nn.Tensor) nn.Tensor {
	m := s.Mark()
	y := s.Keep(m, s.Add(x, x)) // frees all memory except y
	s.Push(l, x)                // for Backward
	return y
}

func (l *double) Backward(s *nn.Step, dy nn.Tensor) nn.Tensor {
	x := s.Pop(l)
	if s.Err() == nil && x.Count() != dy.Count() {
		s.Fail(fmt.Errorf("double: dy has %d rows, want %d", dy.Count(), x.Count()))
	}
	dx := s.NewTensor(x.Rows, x.Features)
	for i := range dx.Count() {
		for j, v := range dy.Row(i) {
			dx.Row(i)[j] = 2 * v
		}
	}
	return dx
}

// A layer outside of this package uses the Step as the layers of nn do.
func ExampleStep() {
	l, s := new(double), engine.NewStep()
	s.BeginTraining(context.Background(), 1, 1)
	y := l.Forward(s, nn.NewTensor([]float32{1, 2, 3}, 1, 3, 1))
	dx := l.Backward(s, nn.NewTensor([]float32{1, 1, 1}, 1, 3, 1))
	fmt.Println(y.Data, dx.Data, s.Err(), s.Memory() > 0)
	// Output: [2 4 6] [2 2 2] <nil> true
}

// The keys of a product that has query, key and value in each row: a view, without a copy.
func ExampleTensor() {
	qkv := nn.NewTensor([]float32{1, 2, 3, 4, 5, 6, 7, 8, 9}, 1, 3, 3) // one sequence of three rows
	k := qkv.Columns(1, 1)                                             // a view
	for i := range k.Count() {
		fmt.Print(k.Row(i), " ")
	}
	// Output: [2] [5] [8]
}

// Two sequences of three rows, one after the other.
func ExampleNewTensor() {
	x := nn.NewTensor([]float32{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}, 2, 3, 2)
	fmt.Println(x.Count(), x.Row(3)) // row 3 is the first of the second sequence
	// Output: 6 [7 8]
}

// Two texts of three tokens.
func ExampleNewTokens() {
	tokens := nn.NewTokens([]int32{7, 8, 9, 7, 8, 8}, 2, 3)
	fmt.Println(tokens.Batch, tokens.T, tokens.Count())
	// Output: 2 3 6
}

// A transposed batch, as PyTorch has with batch_first=False: attention sees the same sequences.
func ExampleRows() {
	m, s := nn.NewMultiHeadAttention(1), engine.NewStep()
	m.Causal = true
	s.Begin(context.Background())
	x := nn.Tensor{Data: []float32{1, 10, 1, 10}, Features: 1, Rows: nn.Rows{Batch: 2, T: 2, TimeFirst: true}}
	fmt.Println(m.Forward(s, x, x, x).Data, x.Rows.Count(), s.Err()) // sequences 1, 1 and 10, 10
	// Output: [1 10 1 10] 4 <nil>
}

// Two texts without padding.
func ExamplePacked() {
	rows := nn.Packed([]int32{0, 3, 5}) // a sequence of 3 rows, and one of 2
	tokens := nn.Tokens{IDs: []int32{7, 8, 9, 7, 8}, Rows: rows}
	fmt.Println(tokens.Batch, tokens.T, tokens.Count())
	// Output: 2 3 5
}

// The same texts, with padding.
func ExamplePadded() {
	rows := nn.Padded(3, []int32{3, 2}) // in rows of 3
	fmt.Println(rows.Batch, rows.T, rows.Count())
	// Output: 2 3 6
}

// Names of parameters follow from the prefixes, as in PyTorch.
func ExampleNewInit() {
	i := nn.NewInit(1)
	l := nn.NewLinear(i.In("layers").In("0"), 4, 3, true)
	norm := nn.NewLayerNorm(i.In("norm"), 4)
	if err := i.Err(); err != nil {
		log.Fatal(err)
	}
	for _, p := range append(l.Params(), norm.Params()...) {
		fmt.Println(p.Name, p.Shape)
	}
	// Output:
	// layers.0.weight [3 4]
	// layers.0.bias [3]
	// norm.weight [4]
	// norm.bias [4]
}

// Layers of other packages make their parameters with the same Init.
func ExampleInit() {
	i := nn.NewInit(1).In("mine")
	a, b, c := i.Uniform("a", 0.5, 2, 3), i.Normal("b", 1, 3), i.Constant("c", 1, 3)
	fmt.Println(a.Name, b.Name, c.Data, nn.Count([]*nn.Param{a, b, c}), i.Err())
	i.Fail(errors.New("mine: two and three do not go together"))
	fmt.Println(i.Err())
	// Output:
	// mine.a mine.b [1 1 1] 12 <nil>
	// mine: two and three do not go together
}

// Random numbers would be a waste for a model that is loaded.
func ExampleBlank() {
	l := nn.NewLinear(nn.Blank(), 2, 2, false) // to be loaded
	fmt.Println(l.Weight.Data)
	// Output: [0 0 0 0]
}

// A frozen layer: an optimizer updates only the parameters that it has.
func ExampleParam() {
	i := nn.NewInit(1)
	body, head := nn.NewLinear(i.In("body"), 4, 8, true), nn.NewLinear(i.In("head"), 8, 2, true)
	before := body.Weight.Data[0]
	for _, p := range append(body.Params(), head.Params()...) {
		p.ZeroGrad()
		p.Grad[0] = 1
		fmt.Println(p.Name, p.Shape)
	}
	nn.NewSGD(head.Params(), 0.1).Update()
	fmt.Println(body.Weight.Data[0] == before)
	// Output:
	// body.weight [8 4]
	// body.bias [8]
	// head.weight [2 8]
	// head.bias [2]
	// true
}

// The size of a model, for a log.
func ExampleCount() {
	l := nn.NewLinear(nn.NewInit(1), 4, 8, true)
	fmt.Println(nn.Count(l.Params()), "numbers") // 8 x 4 weights and 8 biases
	// Output: 40 numbers
}

// A program that writes weights itself tells the layers.
func ExampleParam_Changed() {
	l, s := nn.NewLinear(nn.Blank(), 1, 1, false), engine.NewStep()
	l.Weight.Data[0] = 3
	l.Weight.Changed() // else the packed copy would be used
	s.Begin(context.Background())
	fmt.Println(l.Forward(s, nn.NewTensor([]float32{2}, 1, 1, 1)).Data)
	// Output: [6]
}

// Backward adds to gradients, so a training step begins with zeros.
func ExampleZeroGrads() {
	l := nn.NewLinear(nn.NewInit(1), 2, 1, false)
	l.Weight.Grad = []float32{1, 2}
	nn.ZeroGrads(l.Params()) // l.Weight.ZeroGrad() zeros a single one
	fmt.Println(l.Weight.Grad)
	// Output: [0 0]
}

// A checkpoint: parameters, and the number of the step as metadata.
func ExampleSave() {
	from, to := nn.NewLinear(nn.NewInit(1), 2, 1, true), nn.NewLinear(nn.Blank(), 2, 1, true)
	var file bytes.Buffer
	if err := nn.Save(&file, from.Params(), map[string]string{"step": "100"}); err != nil {
		log.Fatal(err)
	}
	metadata, err := nn.Load(file.Bytes(), to.Params())
	fmt.Println(metadata, err, from.Bias.Data[0] == to.Bias.Data[0])
	// Output: map[step:100] <nil> true
}

// A file of another model: the error has every fault.
func ExampleLoad() {
	var file bytes.Buffer
	if err := nn.Save(&file, nn.NewLinear(nn.NewInit(1), 2, 1, true).Params(), nil); err != nil {
		log.Fatal(err)
	}
	_, err := nn.Load(file.Bytes(), nn.NewLinear(nn.Blank(), 3, 1, false).Params())
	fmt.Println(err)
	// Output:
	// flashkit: tensor weight = [1 2]: must be of shape [1 3]
	// nn: tensor "bias" belongs to no parameter
}

// Tensors of a file may be renamed before loading.
func ExampleAssign() {
	f := &safetensors.File{Tensors: []safetensors.Tensor{safetensors.FromFloat32s("dense.kernel", []int{1, 1}, []float32{5})}}
	f.Tensors[0].Name = "weight"
	l := nn.NewLinear(nn.Blank(), 1, 1, false)
	fmt.Println(nn.Assign(f, l.Params()), l.Weight.Data)
	// Output: <nil> [5]
}
