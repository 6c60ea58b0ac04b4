package safetensors_test

import (
	"bytes"
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/safetensors"
)

// A file has q, k and v, as another program wrote them. Three lines make arguments of them, and
// ProblemOf returns the problem.
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

// Tensors of a file other than rows of attention: lengths, starts, 16-bit weights.
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

// Errors name the fault, so that a user sees a download that ended early.
func ExampleParse() {
	file := exampleFile()
	f, err := safetensors.Parse(file)
	fmt.Println(len(f.Tensors), err)
	_, err = safetensors.Parse(file[:100])
	fmt.Println(err)
	// Output:
	// 3 <nil>
	// safetensors: header length 192 is above the 92 bytes that follow it: the file is truncated, or no safetensors file
}

// Read needs the file's size, and reads each tensor into memory of its own.
func ExampleRead() {
	file := exampleFile()
	f, err := safetensors.Read(bytes.NewReader(file), int64(len(file)))
	fmt.Println(len(f.Tensors), err)
	// Output: 3 <nil>
}

// A file with one more tensor: the others keep their bytes, of whatever type they are.
func ExampleFile() {
	f, err := safetensors.Parse(exampleFile())
	if err != nil {
		panic(err)
	}
	f.Tensors = append(f.Tensors, safetensors.FromFloat32s("scale", nil, []float32{0.125})) // a scalar
	f.Metadata = map[string]string{"layer": "3"}
	var b bytes.Buffer
	if err := f.Write(&b); err != nil {
		panic(err)
	}
	again, err := safetensors.Parse(b.Bytes())
	if err != nil {
		panic(err)
	}
	for _, t := range again.Tensors {
		fmt.Println(t.Name, t.DType, t.Shape)
	}
	// Output:
	// q BF16 [1 4 3 8]
	// k BF16 [1 2 5 8]
	// v BF16 [1 2 5 8]
	// scale F32 []
}

// A mask is optional in the file; q is not.
func ExampleFile_Tensor() {
	f, err := safetensors.Parse(exampleFile())
	if err != nil {
		panic(err)
	}
	_, masked := f.Tensor("mask")
	q, err := f.Require("q")
	fmt.Println(masked, q.Shape, err)
	// Output: false [1 4 3 8] <nil>
}

// The error of a wrong name lists the names of the file, similar ones first.
func ExampleFile_Require() {
	f, err := safetensors.Parse(exampleFile())
	if err != nil {
		panic(err)
	}
	_, err = f.Require("K")
	fmt.Println(err)
	// Output: safetensors: tensor "K" is missing: the file has "k", "q", "v"
}

// A matrix becomes one head of one batch entry. Its type stays.
func ExampleTensor() {
	t := safetensors.FromFloat32s("q", []int{2, 3}, []float32{1, 2, 3, 4, 5, 6})
	x, err := t.Decode()
	fmt.Println(x.Shape(), x.DType(), err)
	numbers, err := t.Float32s()
	fmt.Println(numbers, err)
	_, err = t.Int64s()
	fmt.Println(err)
	// Output:
	// [1 1 2 3] f32 <nil>
	// [1 2 3 4 5 6] <nil>
	// safetensors: tensor "q": dtype is F32, want I32 or I64
}

// A view of a kernel's output: the file has its rows without the gaps between them.
func ExampleEncode() {
	o := flashkit.F32([]float32{1, 2, 0, 3, 4, 0}, 1, 1, 2, 2).WithStrides(0, 0, 3)
	t, err := safetensors.Encode("o", o)
	if err != nil {
		panic(err)
	}
	fmt.Println(t.Float32s())
	// Output: [1 2 3 4] <nil>
}

// Write refuses numbers that do not fill the shape.
func ExampleFromFloat32s() {
	f := safetensors.File{Tensors: []safetensors.Tensor{safetensors.FromFloat32s("bias", []int{4}, []float32{1, 2, 3})}}
	fmt.Println(f.Write(new(bytes.Buffer)))
	// Output: safetensors: tensor "bias": data has 12 bytes, want 16 for the dtype and shape
}

// The starts of packed sequences, for other programs that run attention on the file.
func ExampleFromInt32s() {
	t := safetensors.FromInt32s("q_starts", []int{4}, []int32{0, 3, 10, 12})
	fmt.Println(t.DType, len(t.Data), "bytes")
	// Output: I32 16 bytes
}

// Weights rounded to 16 bits.
func ExampleFromUint16s() {
	t := safetensors.FromUint16s("weight", "F16", []int{2}, flashkit.ToF16([]float32{1, 0.1}))
	x, err := t.Decode()
	fmt.Println(x.DType(), x.Shape(), len(t.Data), "bytes", err)
	// Output: f16 [1 1 1 2] 4 bytes <nil>
}

// A program reads one tensor of a file, without the memory for the others.
func ExampleReadIndex() {
	var b bytes.Buffer
	f := &safetensors.File{Tensors: []safetensors.Tensor{
		safetensors.FromFloat32s("a", []int{1000}, make([]float32, 1000)), safetensors.FromFloat32s("b", []int{2}, []float32{1, 2})}}
	if err := f.Write(&b); err != nil {
		fmt.Println(err)
		return
	}
	x, err := safetensors.ReadIndex(bytes.NewReader(b.Bytes()), int64(b.Len()))
	if err != nil {
		fmt.Println(err)
		return
	}
	t, err := x.Read(1)
	if err != nil {
		fmt.Println(err)
		return
	}
	values, err := t.Float32s()
	fmt.Println(x.Tensors[0].Name, x.Size(0), t.Name, values, err)
	// Output: a 4000 b [1 2] <nil>
}
