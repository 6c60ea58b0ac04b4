package safetensors

import (
	"math"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"

	"github.com/flashkit-go/flashkit"
)

// numbered returns a tensor of a type whose elements are told apart by their place.
func numbered(dtype flashkit.DType, b, h, r, c int) flashkit.Tensor {
	n := b * h * r * c
	f, u, m := make([]float32, n), make([]uint16, n), make([]bool, n)
	for i := range n {
		f[i], u[i], m[i] = float32(i), uint16(i), i%3 == 0
	}
	switch dtype {
	case flashkit.Float32:
		return flashkit.F32(f, b, h, r, c)
	case flashkit.Float16:
		return flashkit.F16(u, b, h, r, c)
	case flashkit.BFloat16:
		return flashkit.BF16(u, b, h, r, c)
	}
	return flashkit.Bools(m, b, h, r, c)
}

// bits returns the element of a tensor.
func bits(x flashkit.Tensor, b, h, r, c int) any {
	at := x.Offset(b, h, r) + c
	switch x.DType() {
	case flashkit.Float32:
		return x.Float32s()[at]
	case flashkit.Bool:
		return x.Bools()[at]
	}
	return x.Uint16s()[at]
}

// Encoding and decoding in either order of dimensions preserves a tensor with any strides.
func TestEncodeAndDecode(t *testing.T) {
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for range 200 {
		dtype := flashkit.DType(r.IntN(4))
		b, h, n, c := r.IntN(4), 1+r.IntN(3), r.IntN(4), 1+r.IntN(3)
		x := numbered(dtype, b, h, n, c)
		switch r.IntN(3) {
		case 0:
			x = x.AsBSHD()
		case 1:
			x = x.WithStrides(0, 0, 0)
		}
		for _, order := range []struct {
			encode func(string, flashkit.Tensor) (Tensor, error)
			decode func(Tensor) (flashkit.Tensor, error)
		}{{Encode, Tensor.Decode}, {EncodeBSHD, Tensor.DecodeBSHD}} {
			file, err := order.encode("x", x)
			if err != nil {
				t.Fatal(err)
			}
			y, err := order.decode(file)
			if err != nil {
				t.Fatal(err)
			}
			if y.Shape() != x.Shape() || y.DType() != x.DType() {
				t.Fatalf("%v %v became %v %v", x.DType(), x.Shape(), y.DType(), y.Shape())
			}
			for i := range b * h * n * c {
				at := [4]int{i / c / n / h, i / c / n % h, i / c % n, i % c}
				if got, want := bits(y, at[0], at[1], at[2], at[3]), bits(x, at[0], at[1], at[2], at[3]); got != want {
					t.Fatalf("%v%v: %v, want %v", dtype, at, got, want)
				}
			}
		}
	}
}

func TestDecodeOfFewerDimensions(t *testing.T) {
	for _, shape := range [][]int{{}, {3}, {2, 3}, {2, 2, 3}} {
		n := 1
		want := [4]int{1, 1, 1, 1}
		for i, d := range shape {
			n *= d
			want[4-len(shape)+i] = d
		}
		x, err := FromFloat32s("x", shape, make([]float32, n)).Decode()
		if err != nil || x.Shape() != want {
			t.Errorf("%v: %v, %v", shape, x.Shape(), err)
		}
	}
}

// A Bool holds 0 or 1, whatever the file holds.
func TestDecodeOfBytes(t *testing.T) {
	for _, dtype := range []string{"BOOL", "U8"} {
		x, err := Tensor{Name: "mask", DType: dtype, Shape: []int{4}, Data: []byte{0, 1, 2, 255}}.Decode()
		if err != nil || !reflect.DeepEqual(x.Bools(), []bool{false, true, true, true}) {
			t.Errorf("%s: %v, %v", dtype, x.Bools(), err)
		}
	}
}

func TestWholeNumbers(t *testing.T) {
	short := FromInt32s("n", []int{3}, []int32{-1, 0, math.MaxInt32})
	long := fromSlice("n", "I64", []int{2}, []int64{math.MinInt32, 7})
	for _, c := range []struct {
		t    Tensor
		want []int64
	}{{short, []int64{-1, 0, math.MaxInt32}}, {long, []int64{math.MinInt32, 7}}} {
		x, err := c.t.Int64s()
		if err != nil || !reflect.DeepEqual(x, c.want) {
			t.Errorf("%v: %v, %v", c.t, x, err)
		}
		y, err := c.t.Int32s()
		for i := range y {
			if int64(y[i]) != c.want[i] {
				t.Errorf("%v: %v, %v", c.t, y, err)
			}
		}
		if err != nil || len(y) != len(c.want) {
			t.Errorf("%v: %v, %v", c.t, y, err)
		}
	}
}

// A device owns memory that the host must not touch.
type device struct{}

func (device) Device() string { return "a device" }

func TestBadTensors(t *testing.T) {
	_, missing := (&File{}).Decode("q")
	_, rank := FromFloat32s("q", []int{1, 1, 1, 1, 1}, []float32{0}).Decode()
	_, rank2 := FromFloat32s("q", []int{1, 1, 1, 1, 1}, []float32{0}).DecodeBSHD()
	_, dtype := Tensor{Name: "q", DType: "F64", Shape: []int{1}, Data: make([]byte, 8)}.Decode()
	_, short := Tensor{Name: "q", DType: "F32", Shape: []int{math.MaxInt / 8}, Data: make([]byte, 8)}.Decode()
	_, shortMask := Tensor{Name: "q", DType: "BOOL", Shape: []int{math.MaxInt / 8}, Data: make([]byte, 8)}.Decode()
	_, floats := FromFloat32s("q", []int{1}, []float32{0}).Int64s()
	_, beyond := fromSlice("q", "I64", []int{2}, []int64{1, math.MaxInt32 + 1}).Int32s()
	_, view := Encode("q", flashkit.F32(make([]float32, 7), 1, 2, 2, 2))
	_, rows := Encode("q", flashkit.F32(make([]float32, 8), 1, 2, 2, 2).WithStrides(8, math.MaxInt/2, 2))
	_, back := EncodeBSHD("q", flashkit.F32(make([]float32, 8), 1, 2, 2, 2).WithStrides(8, 4, -2))
	_, large := Encode("q", flashkit.F32([]float32{0}, math.MaxInt/2, math.MaxInt/2, 1, 1).WithStrides(0, 0, 0))
	_, elsewhere := Encode("q", flashkit.OnDevice(device{}, flashkit.Float32, 4096, 8, 1, 2, 2, 2))
	for _, c := range []struct {
		err  error
		want string
	}{
		{elsewhere, "lies on a device"}, {missing, `"q" is missing`}, {rank, "has 5 dimensions"}, {rank2, "has 5 dimensions"}, {dtype, "F64"}, {short, "data has 8 bytes"},
		{shortMask, "data has 8 bytes"}, {floats, "F32"}, {beyond, "element 1 = 2147483648"}, {view, "beyond its 7 elements"},
		{rows, "beyond its 8 elements"}, {back, "beyond its 8 elements"}, {large, "too large"},
	} {
		if c.err == nil || !strings.HasPrefix(c.err.Error(), `safetensors: tensor "q"`) || !strings.Contains(c.err.Error(), c.want) {
			t.Errorf("%v, want %s", c.err, c.want)
		}
	}
}
