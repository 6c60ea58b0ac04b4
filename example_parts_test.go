package flashkit_test

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
)

// A band in plain numbers, for 4 query rows and 6 keys: its diagonal begins at key 2, as the last row is
// aligned with the last key.
func ExampleBand_Diagonals() {
	b := flashkit.Window(1, 0)
	fmt.Println(b.Left(), b.Right(), b.IsTopLeft(), b.Shifted())
	lo, hi := b.Diagonals(4, 6)
	fmt.Println(b.Diagonal(4, 6), lo, hi, b.TopLeft().Diagonal(4, 6), b.Shift(-1).Diagonal(4, 6))
	// Output:
	// 1 0 false 0
	// 2 1 2 0 1
}

// Which keys a row sees, and which rows see a key. Both ends are as in a slice.
func ExampleProblem_Keys() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 4, KVLen: 6, Dim: 8, VDim: 8, Band: flashkit.Causal()}
	lo, hi := p.Keys(1)
	first, last := p.Queries(5)
	fmt.Println(lo, hi, first, last)
	// Output: 0 4 3 4
}

// The shapes of a problem's tensors: a cache in bf16 under float32 queries, values of another head dim.
func ExampleProblem_KShape() {
	p, err := flashkit.ParseProblem("b2-h8-g2-n1-m512-d64-dv32-f32-kvbf16")
	if err != nil {
		panic(err)
	}
	fmt.Println(p.QShape(), p.KShape(), p.VShape(), p.OShape(), p.LSEShape())
	fmt.Println(p.DType, p.KVType(), p.SoftmaxScale(), p.Validate())
	// Output:
	// [2 8 1 64] [2 2 512 64] [2 2 512 32] [2 8 1 32] [2 8 1 1]
	// f32 bf16 0.125 <nil>
}

func ExampleParseDType() {
	t, err := flashkit.ParseDType("f16")
	fmt.Println(t, t.Size(), err)
	_, err = flashkit.ParseDType("f64")
	fmt.Println(err != nil)
	// Output:
	// f16 2 <nil>
	// true
}

// Numbers of 16 bits are slices of any type over uint16.
func ExampleF16() {
	bits := flashkit.ToF16([]float32{1, -2, 0.5})
	x := flashkit.F16(bits, 1, 1, 1, 3)
	fmt.Printf("%#04x %v %v\n", x.Uint16s(), x.Shape(), x.DType())
	// Output: [0x3c00 0xc000 0x3800] [1 1 1 3] f16
}

// The accessors of a tensor. Strides and offsets count elements.
func ExampleTensor_Offset() {
	x := flashkit.F32(make([]float32, 2*3*4*5), 2, 3, 4, 5).AsBSHD()
	fmt.Println(x.Shape(), x.Strides(), x.Len(), x.Offset(1, 2, 3))
	fmt.Println(x.IsZero(), flashkit.Tensor{}.IsZero(), x.Owner())
	mask := flashkit.Bools(make([]bool, 7), 1, 1, 1, 7) // one row of keys for all
	fmt.Println(mask.Repeated(1, 2, 3))
	// Output:
	// [2 3 4 5] [60 5 15 1] 120 115
	// false true <nil>
	// 0
}
