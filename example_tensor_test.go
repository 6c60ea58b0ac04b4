package flashkit_test

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
)

// A view of the caller's memory: nothing is copied, and nothing is checked before a call.
func ExampleF32() {
	memory := make([]float32, 8*6*64)
	q := flashkit.F32(memory, 1, 8, 6, 64)
	memory[0] = 3
	fmt.Println(q.Shape(), q.DType(), q.Float32s()[0])
	// Output: [1 8 6 64] f32 3
}

// Half-precision weights of a file, read as float32.
func ExampleToF32() {
	bits := []uint16{0x3c00, 0xc000, 0x3800}
	fmt.Println(flashkit.ToF32(flashkit.F16(bits, 1, 1, 1, 3)))
	fmt.Println(flashkit.ToF32(flashkit.Bools([]bool{true, false}, 1, 1, 1, 2)))
	// Output:
	// [1 -2 0.5]
	// [1 0]
}

// Rounding loses bits, and numbers beyond 65504 become infinite.
func ExampleToF16() {
	bits := flashkit.ToF16([]float32{0.1, 65504, 1e6})
	fmt.Println(flashkit.ToF32(flashkit.F16(bits, 1, 1, 1, 3)))
	// Output: [0.099975586 65504 +Inf]
}

// The dimensions are always [batch, heads, rows, row elements], whatever their order in memory.
func ExampleTensor_Shape() {
	x := flashkit.F32(make([]float32, 2*3*4*5), 2, 3, 4, 5)
	fmt.Println(x.Shape(), x.AsBSHD().Shape())
	// Output: [2 3 4 5] [2 3 4 5]
}

// The steps in memory, in elements, from one batch, head and row to the next.
func ExampleTensor_Strides() {
	x := flashkit.F32(make([]float32, 2*3*4*5), 2, 3, 4, 5)
	fmt.Println(x.Strides(), x.AsBSHD().Strides())
	// Output: [60 20 5 1] [60 5 15 1]
}

// The memory of a view may be larger than the view, such as a KV cache filled in part.
func ExampleTensor_Len() {
	const capacity, keys, dim = 1024, 10, 64
	cache := make([]float32, capacity*dim)
	k := flashkit.F32(cache, 1, 1, keys, dim)
	fmt.Println(k.Shape(), k.Len())
	// Output: [1 1 10 64] 65536
}

// A function for outputs of any type reads the type of the tensor.
func ExampleTensor_DType() {
	o := flashkit.Zeros(flashkit.BFloat16, 1, 1, 2, 4)
	if o.DType() == flashkit.Float32 {
		fmt.Println(o.Float32s())
	} else {
		fmt.Println(o.DType(), flashkit.ToF32(o))
	}
	// Output: bf16 [0 0 0 0 0 0 0 0]
}

// The results of a call are in the memory of its output tensors.
func ExampleTensor_Float32s() {
	args := flashkit.NewArgs(flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 2, Dim: 4, VDim: 3}, flashkit.PassForward)
	copy(args.V.Float32s(), []float32{1, 2, 3})
	fmt.Println(args.V.Float32s(), args.O.Uint16s() == nil)
	// Output: [1 2 3 0 0 0] true
}

// The bits of bfloat16 numbers, to write them to a file.
func ExampleTensor_Uint16s() {
	x := flashkit.BF16(flashkit.ToBF16([]float32{1, -2}), 1, 1, 1, 2)
	fmt.Printf("%#04x\n", x.Uint16s())
	// Output: [0x3f80 0xc000]
}

// A mask that hides the padding after the first two keys.
func ExampleTensor_Bools() {
	mask := flashkit.Zeros(flashkit.Bool, 1, 1, 1, 4)
	for j := range 2 {
		mask.Bools()[j] = true
	}
	fmt.Println(mask.Bools())
	// Output: [true true false false]
}

// An optional argument is absent if its tensor is zero.
func ExampleTensor_IsZero() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 2, Dim: 4, VDim: 4}
	args := flashkit.NewArgs(p, flashkit.PassForward)
	args.LSE = flashkit.Tensor{} // not wanted
	fmt.Println(args.O.IsZero(), args.LSE.IsZero(), p.Check(flashkit.PassForward, args))
	// Output: false true <nil>
}

// Row 3 of head 2 of batch 1 in memory of the order [batch, rows, heads, row elements].
func ExampleTensor_Offset() {
	x := flashkit.F32(make([]float32, 2*3*4*5), 2, 3, 4, 5).AsBSHD()
	at := x.Offset(1, 2, 3)
	fmt.Println(at, len(x.Float32s()[at:at+5]))
	// Output: 115 5
}

// One row of a mask serves all batches, heads and query rows.
func ExampleTensor_Repeated() {
	mask := flashkit.Bools([]bool{true, true, false}, 1, 1, 1, 3)
	const batch, head, row, key = 1, 2, 3, 2
	fmt.Println(mask.Bools()[mask.Repeated(batch, head, row)+key])
	// Output: false
}

// Only tensors on a device have an owner.
func ExampleTensor_Owner() {
	x := flashkit.F32(make([]float32, 64), 1, 1, 1, 64)
	fmt.Println("on the host:", x.Owner() == nil)
	// Output: on the host: true
}

// The distance in bytes between the keys and the values of one allocation.
func ExampleTensor_Address() {
	kv := make([]float32, 2*100*64)
	k, v := flashkit.F32(kv, 1, 1, 100, 64), flashkit.F32(kv[100*64:], 1, 1, 100, 64)
	fmt.Println(v.Address() - k.Address())
	// Output: 25600
}
