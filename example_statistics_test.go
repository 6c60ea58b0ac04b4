package flashkit_test

import (
	"context"
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

// The largest score of each row, and the weight that each key received.
func ExampleProblem_statistics() {
	d, err := dispatch.Default(context.Background())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer d.Close()
	q, k := []float32{1, 2}, []float32{0, 1, 3} // two query rows and three keys of one element
	args := &flashkit.Args{
		Q: flashkit.F32(q, 1, 1, 2, 1), K: flashkit.F32(k, 1, 1, 3, 1), V: flashkit.F32(k, 1, 1, 3, 1), O: flashkit.Zeros(flashkit.Float32, 1, 1, 2, 1),
		RowMax: flashkit.Zeros(flashkit.Float32, 1, 1, 2, 1), KeyMass: flashkit.Zeros(flashkit.Float32, 1, 1, 1, 3),
	}
	if err := d.Forward(context.Background(), flashkit.ProblemOf(args, flashkit.Causal()), args); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(args.RowMax.Float32s()) // the first row does not see the last key
	fmt.Printf("%.3f\n", args.KeyMass.Float32s())
	// Output:
	// [1 6]
	// [0.271 0.749 0.980]
}
