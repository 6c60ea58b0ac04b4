package nn_test

import (
	"context"
	"fmt"
	"log"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/nn"
)

// infers returns a Step that has begun an inference pass.
func infers() *nn.Step {
	s := begin()
	s.Begin(context.Background())
	return s
}

// Both rows have the root mean square 5.
func ExampleRMSNorm() {
	l, s := nn.NewRMSNorm(nn.NewInit(1), 2), begin()
	l.Eps = 0
	y := l.Forward(s, nn.NewTensor([]float32{5, 5, 7, 1}, 1, 2, 2))
	dx := l.Backward(s, nn.NewTensor([]float32{1, 0, 0, 1}, 1, 2, 2))
	fmt.Printf("%.2f %.2f %d %v\n", y.Data, dx.Data, len(l.Params()), s.Err())
	// Output: [1.00 1.00 1.40 0.20] [0.10 -0.10 -0.03 0.20] 1 <nil>
}

// A row of two heads with two features: each head has the root mean square 1.
func ExampleNewRMSNorm() {
	l := nn.NewRMSNorm(nn.NewInit(1), 2)
	x := nn.NewTensor([]float32{5, 5, 0.7, 0.1}, 1, 1, 4)
	l.Apply(infers(), x)
	fmt.Printf("%.1f\n", x.Data)
	// Output: [1.0 1.0 1.4 0.2]
}

func ExampleLayerNorm_Apply() {
	x := nn.NewTensor([]float32{3, 7}, 1, 1, 2)
	nn.NewLayerNorm(nn.NewInit(1), 2).Apply(infers(), x)
	fmt.Printf("%.3f\n", x.Data)
	// Output: [-1.000 1.000]
}

// SwiGLU: the gate's SiLU multiplies the other product.
func ExampleGatedFeedForward() {
	linear := func(weight float32) *nn.Linear {
		l := nn.NewLinear(nn.Blank(), 1, 1, false)
		l.Weight.Data[0] = weight
		return l
	}
	l, s := &nn.GatedFeedForward{Gate: linear(1), Up: linear(2), Down: linear(3)}, begin()
	l.Gate.Activation = nn.SiLU
	x := nn.NewTensor([]float32{0, 2}, 1, 2, 1)
	y := l.Forward(s, x)
	dx := l.Backward(s, nn.NewTensor([]float32{1, 1}, 1, 2, 1))
	fmt.Printf("%.3f %.3f %d %v\n", y.Data, dx.Data, len(l.Params()), s.Err())
	l.ForwardInto(infers(), x, x, true) // a residual connection in place
	fmt.Printf("%.3f\n", x.Data)
	// Output:
	// [0.000 21.139] [0.000 23.659] 3 <nil>
	// [0.000 23.139]
}

// A product that is added to a residual, in place and for some of the rows.
func ExampleLinear_ForwardInto() {
	l, s := nn.NewLinear(nn.Blank(), 1, 1, false), infers()
	l.Weight.Data[0] = 2
	x, y := nn.NewTensor([]float32{1, 2, 3}, 1, 3, 1), nn.NewTensor([]float32{10, 10, 10}, 1, 3, 1)
	l.ForwardInto(s, y.Part(1, 2), x.Part(1, 2), true)
	s.AddTo(y, x)
	fmt.Println(y.Data, s.Err())
	// Output: [11 16 19] <nil>
}

// Half the frequency turns position 2 as far as the usual frequency turns position 1.
func ExampleNewScaledRotary() {
	r, err := nn.NewScaledRotary(8, []float32{0.5}, 1)
	if err != nil {
		log.Fatal(err)
	}
	x := nn.NewTensor([]float32{1, 0, 1, 0, 1, 0}, 1, 3, 2)
	r.Apply(infers(), x, 1)
	fmt.Printf("%.3f\n", x.Data)
	// Output: [1.000 0.000 0.878 0.479 0.540 0.841]
}

// Each row sees itself and the row before it.
func ExampleMultiHeadAttention_band() {
	m := nn.NewMultiHeadAttention(1)
	m.Band = flashkit.Window(1, 0)
	x := nn.NewTensor([]float32{0, 0, 0}, 1, 3, 1)
	fmt.Println(m.Forward(infers(), x, x, nn.NewTensor([]float32{1, 3, 5}, 1, 3, 1)).Data)
	// Output: [1 2 4]
}

// With Int8, 1.003 has the largest magnitude of its row, so it is kept. 0.498 becomes 63/127.
func ExamplePrecision_int8() {
	l, s := nn.NewLinear(nn.Blank(), 2, 1, false), infers()
	copy(l.Weight.Data, []float32{1, 1})
	l.Precision = nn.Int8
	fmt.Println(l.Forward(s, nn.NewTensor([]float32{1.003, 0, 1, 0.498}, 1, 2, 2)).Data, s.Err())
	s.BeginTraining(context.Background(), 1, 0)
	l.Forward(s, nn.NewTensor([]float32{1, 1}, 1, 1, 2))
	fmt.Println(s.Err())
	// Output:
	// [1.003 1.496063] <nil>
	// nn: weight: Precision Int8 is for inference; the Step is in training
}
