package safetensors_test

import (
	"bytes"
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/safetensors"
)

// A file holds q, k and v as a model's program wrote them. Three lines make arguments
// of them, and ProblemOf knows the problem.
func ExampleFile_Decode() {
	file, err := safetensors.Parse(exampleFile())
	if err != nil {
		panic(err)
	}
	x, err := file.Decode("q", "k", "v")
	if err != nil {
		panic(err)
	}
	args := flashkit.Args{Q: x[0], K: x[1], V: x[2]}
	fmt.Println(flashkit.ProblemOf(&args, flashkit.Causal()))
	// Output:
	// b1-h4-g2-n3-m5-d8-bf16-causal
}

// A kernel's output is written in its memory order, here with rows before heads.
func ExampleEncodeBSHD() {
	o := flashkit.F32(make([]float32, 1*2*3*4), 1, 2, 3, 4).AsBSHD()
	t, err := safetensors.EncodeBSHD("o", o)
	if err != nil {
		panic(err)
	}
	var b bytes.Buffer
	file := safetensors.File{Tensors: []safetensors.Tensor{t}, Metadata: map[string]string{"layout": "bshd"}}
	if err := file.Write(&b); err != nil {
		panic(err)
	}
	again, err := safetensors.Parse(b.Bytes())
	fmt.Println(again.Tensors[0].DType, again.Tensors[0].Shape, again.Metadata["layout"], err)
	// Output:
	// F32 [1 3 2 4] bshd <nil>
}

// Tensors of a file that are no rows of attention: lengths, starts, 16-bit weights.
func ExampleTensor_Int32s() {
	lens := safetensors.FromInt32s("kv_lens", []int{2}, []int32{20, 3})
	weights := safetensors.FromUint16s("weight", "BF16", []int{1, 3}, flashkit.ToBF16([]float32{1, -2, 0.5}))
	fmt.Println(lens.Int32s())
	fmt.Println(lens.Int64s())
	bits, err := weights.Uint16s()
	fmt.Printf("%#04x %v\n", bits, err)
	// Output:
	// [20 3] <nil>
	// [20 3] <nil>
	// [0x3f80 0xc000 0x3f00] <nil>
}

// A tensor with rows before heads has the same shape as any other, and other strides.
func ExampleTensor_DecodeBSHD() {
	x, err := safetensors.FromFloat32s("q", []int{1, 3, 2, 4}, make([]float32, 24)).DecodeBSHD() // 3 rows, 2 heads
	if err != nil {
		panic(err)
	}
	t, err := safetensors.Encode("q", x) // heads before rows
	fmt.Println(x.Shape(), x.Strides(), t.Shape, err)
	// Output: [1 2 3 4] [24 4 8 1] [1 2 3 4] <nil>
}

// exampleFile returns a file with q, k and v.
func exampleFile() []byte {
	var b bytes.Buffer
	var f safetensors.File
	for _, x := range []struct {
		name  string
		shape []int
	}{{"q", []int{1, 4, 3, 8}}, {"k", []int{1, 2, 5, 8}}, {"v", []int{1, 2, 5, 8}}} {
		n := x.shape[0] * x.shape[1] * x.shape[2] * x.shape[3]
		f.Tensors = append(f.Tensors, safetensors.FromUint16s(x.name, "BF16", x.shape, make([]uint16, n)))
	}
	if err := f.Write(&b); err != nil {
		panic(err)
	}
	return b.Bytes()
}
