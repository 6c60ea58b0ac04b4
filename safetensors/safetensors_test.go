package safetensors

import (
	"bytes"
	"encoding/binary"
	"errors"
	"math"
	"reflect"
	"strings"
	"testing"
)

// file returns the bytes of a file with the given header and n bytes of data.
func file(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint64(nil, uint64(len(header)))
	return append(append(b, header...), make([]byte, n)...)
}

// write returns the bytes of f. It fails the test if Write fails.
func write(t *testing.T, f *File) []byte {
	t.Helper()
	var b bytes.Buffer
	if err := f.Write(&b); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

func TestRoundTrip(t *testing.T) {
	want := &File{
		Metadata: map[string]string{"format": "pt", "quote \" \\ / \u2028 <&>": "line\n\x00\U0001f600", "": ""},
		Tensors: []Tensor{
			FromUint16s("b", "BF16", []int{3}, []uint16{0, 0x3f80, 0xffff}), // misaligns the next one
			FromFloat32s("a", []int{2, 3}, []float32{1, 2, -3, 4, 5, float32(math.Inf(1))}),
			FromFloat32s("empty", []int{4, 0, 7}, nil),
			FromFloat32s("also empty", []int{0}, nil),
			FromFloat32s("scalar", []int{}, []float32{math.Pi}),
			{Name: "naïve \t<name>", DType: "BOOL", Shape: []int{1}, Data: []byte{1}},
		},
	}
	got, err := Parse(write(t, want))
	if err != nil {
		t.Fatal(err)
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
}

// A tensor whose elements share bytes is no reason to refuse the others. It fails where its
// elements are asked for.
func TestPackedTypes(t *testing.T) {
	for dtype, size := range map[string]int{"F4": 4, "F6_E2M3": 6, "F6_E3M2": 6} {
		want := &File{Tensors: []Tensor{
			FromFloat32s("a", []int{1}, []float32{2}),
			{Name: "p", DType: dtype, Shape: []int{2, 4}, Data: make([]byte, size)},
			{Name: "none", DType: dtype, Shape: []int{0}, Data: []byte{}},
		}}
		f, err := Parse(write(t, want))
		if err != nil || !reflect.DeepEqual(f, want) {
			t.Fatalf("%s: got %+v, %v", dtype, f, err)
		}
		if _, err := f.Decode("a"); err != nil {
			t.Error(err)
		}
		p, _ := f.Tensor("p")
		_, e1 := p.Decode()
		_, e2 := p.Float32s()
		_, e3 := p.Uint16s()
		_, e4 := p.Int64s()
		for i, err := range []error{e1, e2, e3, e4} {
			if err == nil || !strings.Contains(err.Error(), `tensor "p": dtype is `+dtype) {
				t.Errorf("%s, %d: got error %v", dtype, i, err)
			}
		}
	}
}

// A tensor of an unknown type is no reason to refuse the others. Whatever asks for its elements
// gets an error with its name and its type.
func TestUnknownTypes(t *testing.T) {
	const member = `"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"p":{"dtype":"F4_NEW","shape":[3,5],"data_offsets":[4,11]},` +
		`"z":{"dtype":"U8","shape":[2],"data_offsets":[11,13]}`
	f, err := Parse(file("{"+member+"}", 13))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Decode("a", "z"); err != nil {
		t.Error(err)
	}
	p, _ := f.Tensor("p")
	if len(p.Data) != 7 || !reflect.DeepEqual(p.Shape, []int{3, 5}) {
		t.Errorf("got %+v", p)
	}
	_, e1 := p.Decode()
	_, e2 := p.Float32s()
	_, e3 := p.Uint16s()
	_, e4 := p.Int64s()
	_, e5 := p.DecodeBSHD()
	_, e6 := f.Decode("a", "p")
	e7 := f.Write(new(bytes.Buffer))
	for i, err := range []error{e1, e2, e3, e4, e5, e6, e7} {
		if err == nil || !strings.Contains(err.Error(), `tensor "p": dtype`) || !strings.Contains(err.Error(), "F4_NEW") {
			t.Errorf("%d: got error %v", i, err)
		}
	}
}

// A missing tensor is told with the names that there are, similar ones first.
func TestMissingTensors(t *testing.T) {
	var many []Tensor
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h.q", "Q"} {
		many = append(many, FromFloat32s(name, []int{0}, nil))
	}
	for _, x := range []struct {
		tensors []Tensor
		want    string
	}{
		{nil, `safetensors: tensor "q" is missing: the file has no tensors`},
		{many[:2], `safetensors: tensor "q" is missing: the file has "a", "b"`},
		{many, `safetensors: tensor "q" is missing: the file has "h.q", "Q", "a", "b", "c", "d" and 3 more`},
	} {
		f := File{Tensors: x.tensors}
		_, e1 := f.Require("q")
		_, e2 := f.Decode("q")
		for _, err := range []error{e1, e2} {
			if err == nil || err.Error() != x.want {
				t.Errorf("got error %v, want %s", err, x.want)
			}
		}
	}
	if x, err := (&File{Tensors: many}).Require("Q"); err != nil || x.Name != "Q" {
		t.Errorf("got %v, %v", x, err)
	}
}

// A file of another format is named.
func TestOtherFormats(t *testing.T) {
	rest := strings.Repeat("x", 100)
	for start, want := range map[string]string{
		"version https://git-lfs.github.com/spec/v1\noid sha256:5555\nsize 90868376\n": "the file is a pointer of Git LFS",
		"PK\x03\x04\x00\x00\x08\x08":                 "the file is a zip archive, as PyTorch's .pt",
		"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.": "the file is a Python pickle",
		"\x80\x04\x95\x10\x00\x00\x00\x00":           "the file is a Python pickle",
		"GGUF\x03\x00\x00\x00":                       "the file is a GGUF file",
		"\x93NUMPY\x01\x00":                          "the file is a NumPy array",
		"\x89HDF\r\n\x1a\n":                          "the file is an HDF5 file",
		"\x1f\x8b\x08\x08abcd":                       "the file is compressed by gzip",
		"\x28\xb5\x2f\xfdabcd":                       "the file is compressed by zstd",
		"\ufeff\n<!DOCTYPE html><html>":              "the file is a web page",
		"{\"metadata\": {}, \"weight_map\": {\"a\": \"model-00001-of-00002.safetensors\"}}": "the file is an index of shards",
		"{\"hidden_size\": 384}": "the file is JSON text",
		"not a file of tensors":  `the file begins with "not a fi", as no safetensors file does`,
	} {
		_, err := Parse([]byte(start + rest))
		if err == nil || !strings.HasPrefix(err.Error(), "safetensors: ") || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%q: got error %v, want %q", start, err, want)
		}
	}
}

func TestRoundTripOfNothing(t *testing.T) {
	for _, metadata := range []map[string]string{nil, {}} {
		got, err := Parse(write(t, &File{Metadata: metadata}))
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Tensors) != 0 || !reflect.DeepEqual(got.Metadata, metadata) {
			t.Errorf("got %+v for metadata %#v", got, metadata)
		}
	}
}

func TestGolden(t *testing.T) {
	f := &File{
		Metadata: map[string]string{"b": "2", "a": "<12>"},
		Tensors: []Tensor{
			FromFloat32s("x", []int{1, 2}, []float32{1, -2}),
			FromUint16s("s", "F16", nil, []uint16{0x3c01}),
		},
	}
	want := "\x98\x00\x00\x00\x00\x00\x00\x00" +
		`{"__metadata__":{"a":"<12>","b":"2"},` +
		`"x":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},` +
		`"s":{"dtype":"F16","shape":[],"data_offsets":[8,10]}}` + strings.Repeat(" ", 7) +
		"\x00\x00\x80\x3f\x00\x00\x00\xc0\x01\x3c"
	if got := string(write(t, f)); got != want {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

func TestParseSortsByOffset(t *testing.T) {
	f, err := Parse(file(`{
		"z" : {"data_offsets": [1, 3], "dtype": "U8", "shape": [2]},
		"\u0061\ud83d\ude00\/": {"dtype": "I8", "shape": [], "data_offsets": [0, 1]} }   `, 3))
	if err != nil {
		t.Fatal(err)
	}
	if len(f.Tensors) != 2 || f.Tensors[0].Name != "a\U0001f600/" || f.Tensors[1].Name != "z" {
		t.Errorf("got %+v", f.Tensors)
	}
	if f.Metadata != nil {
		t.Errorf("got metadata %v, want nil", f.Metadata)
	}
	first := append(f.Tensors[0].Data, 9)
	if z, ok := f.Tensor("z"); !ok || z.Data[0] != 0 {
		t.Errorf("appending to %v changed the next tensor to %v", first, z)
	}
	if _, ok := f.Tensor("y"); ok {
		t.Error("found a tensor that is not there")
	}
}

func TestElements(t *testing.T) {
	floats := []float32{0, 1.5, float32(math.Inf(-1))}
	x := FromFloat32s("x", []int{3}, floats)
	if got, err := x.Float32s(); err != nil || !reflect.DeepEqual(got, floats) {
		t.Errorf("got %v, %v", got, err)
	}
	bits := []uint16{1, 0xfffe}
	for _, dtype := range []string{"F16", "BF16"} {
		got, err := FromUint16s("h", dtype, []int{2}, bits).Uint16s()
		if err != nil || !reflect.DeepEqual(got, bits) {
			t.Errorf("got %v, %v", got, err)
		}
	}
	if _, err := x.Uint16s(); err == nil || err.Error() != `safetensors: tensor "x": dtype is F32, want F16 or BF16` {
		t.Errorf("got error %v", err)
	}
	x.Data = x.Data[:11]
	if _, err := x.Float32s(); err == nil || !strings.Contains(err.Error(), "data has 11 bytes, want 12") {
		t.Errorf("got error %v", err)
	}
}

func TestWriteRefuses(t *testing.T) {
	u8 := func(name string, n int, shape ...int) Tensor {
		return Tensor{Name: name, DType: "U8", Shape: shape, Data: make([]byte, n)}
	}
	tests := []struct {
		want string
		file File
	}{
		{`duplicate or reserved name "a"`, File{Tensors: []Tensor{u8("a", 1), u8("a", 1)}}},
		{`duplicate or reserved name "__metadata__"`, File{Tensors: []Tensor{u8("__metadata__", 1)}}},
		{`tensor name "\xff" is not valid UTF-8`, File{Tensors: []Tensor{u8("\xff", 1)}}},
		{`__metadata__: "k": "\xff" is not valid UTF-8`, File{Metadata: map[string]string{"k": "\xff"}}},
		{`tensor "a": data has 5 bytes, want 6`, File{Tensors: []Tensor{u8("a", 5, 2, 3)}}},
		{`tensor "a": shape has the negative dimension -1`, File{Tensors: []Tensor{u8("a", 1, -1, -1)}}},
		{`overflows int at dimension 2`, File{Tensors: []Tensor{u8("a", 0, math.MaxInt, 2)}}},
		{`dtype "F128" is unknown`, File{Tensors: []Tensor{{Name: "a", DType: "F128"}}}},
		{`tensor "a": shape has 12 bits of F4, which end within a byte`, File{Tensors: []Tensor{{Name: "a", DType: "F4", Shape: []int{3}, Data: []byte{1}}}}},
	}
	if !testing.Short() { // takes most of the time of all tests
		long := map[string]string{"": strings.Repeat("x", maxHeader)}
		tests = append(tests, struct {
			want string
			file File
		}{`header length 100000024 is above the limit of 100000000`, File{Metadata: long}})
	}
	for _, tt := range tests {
		var b bytes.Buffer
		err := tt.file.Write(&b)
		if err == nil || !strings.HasPrefix(err.Error(), "safetensors: ") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("got error %v, want %q", err, tt.want)
		}
		if b.Len() != 0 {
			t.Errorf("wrote %d bytes before the error %v", b.Len(), err)
		}
	}
}

// A fullDisk accepts the given number of calls.
type fullDisk int

func (d *fullDisk) Write(p []byte) (int, error) {
	if *d == 0 {
		return 0, errors.New("disk is full")
	}
	*d--
	return len(p), nil
}

func TestWriteReportsTheWriter(t *testing.T) {
	f := &File{Tensors: []Tensor{FromFloat32s("x", []int{1}, []float32{1})}}
	for calls := range fullDisk(2) {
		if err := f.Write(&calls); err == nil || !strings.Contains(err.Error(), "disk is full") {
			t.Errorf("got error %v", err)
		}
	}
}
