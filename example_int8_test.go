package flashkit_test

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
)

// A cache of int8 keys and values: each new token is quantized on append, and a call reads the cache
// in place.
func ExampleQuantizeRows() {
	const heads, room, dim = 1, 4, 32
	k, kScale := flashkit.Zeros(flashkit.Int8, 1, heads, room, dim), flashkit.Zeros(flashkit.Float16, 1, heads, room, 1)
	v, vScale := flashkit.Zeros(flashkit.Int8, 1, heads, room, dim), flashkit.Zeros(flashkit.Float16, 1, heads, room, 1)
	for token := range int32(2) {
		row := make([]float32, dim)
		row[token] = 127
		x := flashkit.F32(row, 1, heads, 1, dim)
		if err := flashkit.QuantizeRows(k, kScale, x, []int32{token}, nil); err != nil {
			fmt.Println(err)
		}
		if err := flashkit.QuantizeRows(v, vScale, x, []int32{token}, nil); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(k.Int8s()[:3], k.Int8s()[dim:dim+3], flashkit.ToF32(kScale))
	args := flashkit.Args{Q: flashkit.Zeros(flashkit.BFloat16, 1, 4, 1, dim), K: k, V: v, KScale: kScale, VScale: vScale}
	args.Seqs = &flashkit.Sequences{KVLens: []int32{2}}
	fmt.Println(flashkit.ProblemOf(&args, flashkit.Band{}))
	// Output:
	// [127 0 0] [0 127 0] [1 1 0 0]
	// b1-h4-g1-n1-m4-d32-bf16-int8group32-ragged
}

func ExampleInt8s() {
	k := flashkit.Int8s([]int8{1, -2, 3, -4}, 1, 1, 2, 2)
	fmt.Println(k.DType(), k.Shape())
	// Output:
	// i8 [1 1 2 2]
}

func ExampleTensor_Int8s() {
	k := flashkit.Zeros(flashkit.Int8, 1, 1, 1, 2)
	k.Int8s()[1] = -128
	fmt.Println(k.Int8s(), len(flashkit.Zeros(flashkit.Float32, 1, 1, 1, 2).Int8s()))
	// Output:
	// [0 -128] 0
}
