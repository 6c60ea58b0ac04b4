package flashkit_test

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
)

// A decoder attends to earlier tokens only. With a KV cache of 3 keys, the first of two new rows sees
// these and its own key.
func ExampleCausal() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 2, KVLen: 5, Dim: 8, VDim: 8, Band: flashkit.Causal()}
	fmt.Println(p.Keys(0))
	fmt.Println(p.Keys(1))
	// Output:
	// 0 4
	// 0 5
}

// A loop over the keys of a row needs two offsets, here for 4 query rows and 6 keys: row i sees the
// keys from i+lo to i+hi.
func ExampleBand_Diagonals() {
	lo, hi := flashkit.Window(1, 0).Diagonals(4, 6)
	fmt.Println(lo, hi)
	// Output: 1 2
}

// The last row meets the last key, unless the band is aligned at the first.
func ExampleBand_Diagonal() {
	b := flashkit.Causal()
	fmt.Println(b.Diagonal(4, 6), b.TopLeft().Diagonal(4, 6), b.Shift(-1).Diagonal(4, 6))
	// Output: 2 0 1
}

// A KV cache needs no key that is more than Left keys before the next row.
func ExampleBand_Left() {
	b, tokens := flashkit.Window(1023, 0), 5000
	if b.Left() != flashkit.Unlimited {
		fmt.Println("drop", max(0, tokens-b.Left()), "keys")
	}
	// Output: drop 3977 keys
}

// Generation needs a band that hides later keys.
func ExampleBand_Right() {
	for _, b := range []flashkit.Band{flashkit.Causal(), flashkit.Window(64, 64), {}} {
		fmt.Println(b.Right(), b.Right() == 0)
	}
	// Output:
	// 0 true
	// 64 false
	// -1 false
}

// The alignment matters only if the numbers of rows and keys differ.
func ExampleBand_IsTopLeft() {
	fmt.Println(flashkit.Causal().IsTopLeft(), flashkit.Causal().TopLeft().IsTopLeft())
	// Output: false true
}

// Shifts add up, and a shift of 0 needs no kernel for FeatureShift.
func ExampleBand_Shifted() {
	b := flashkit.Causal().Shift(512).Shift(-512)
	fmt.Println(b.Shifted(), b == flashkit.Causal())
	// Output: 0 true
}

// The keys that a row sees. Both ends are as in a slice.
func ExampleProblem_Keys() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 4, KVLen: 6, Dim: 8, VDim: 8, Band: flashkit.Causal()}
	lo, hi := p.Keys(1)
	fmt.Println([]string{"a", "b", "c", "d", "e", "f"}[lo:hi])
	// Output: [a b c d]
}

// The rows that see a key, whose gradient is a sum over them.
func ExampleProblem_Queries() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 4, KVLen: 6, Dim: 8, VDim: 8, Band: flashkit.Causal()}
	fmt.Println(p.Queries(0))
	fmt.Println(p.Queries(5))
	// Output:
	// 0 4
	// 3 4
}

// A flag for the type of tensors.
func ExampleParseDType() {
	t, err := flashkit.ParseDType("f16")
	fmt.Println(t, t.Size(), err)
	_, err = flashkit.ParseDType("f64")
	fmt.Println(err)
	// Output:
	// f16 2 <nil>
	// flashkit: DType = f64: must be f32, f16 or bf16
}

// Numbers of 16 bits are slices of any type over uint16.
func ExampleF16() {
	bits := flashkit.ToF16([]float32{1, -2, 0.5})
	x := flashkit.F16(bits, 1, 1, 1, 3)
	fmt.Printf("%#04x %v %v\n", x.Uint16s(), x.Shape(), x.DType())
	// Output: [0x3c00 0xc000 0x3800] [1 1 1 3] f16
}
