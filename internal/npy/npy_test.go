package npy

import (
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"testing"
)

// file returns a file of version 1.0 with the given header and n bytes of data.
func file(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint16([]byte(magic+"\x01\x00"), uint16(len(header)))
	return append(append(b, header...), make([]byte, n)...)
}

// file2 is file with version 2.0.
func file2(header string, n int) []byte {
	b := binary.LittleEndian.AppendUint32([]byte(magic+"\x02\x00"), uint32(len(header)))
	return append(append(b, header...), make([]byte, n)...)
}

// The files in testdata were made with NumPy 2.4.6:
//
//	np.save("f32_2x3.npy", np.array([[0, 1, 2], [3, -4, np.inf]], dtype="<f4"))
//	with open("f16_v2.npy", "wb") as f:
//	    np.lib.format.write_array(f, np.array([1, 0.5, 65504], dtype="<f2"), version=(2, 0))
//	with open("f64_scalar_v3.npy", "wb") as f:
//	    np.lib.format.write_array(f, np.array(np.pi, dtype="<f8"), version=(3, 0))
func TestParseNumPy(t *testing.T) {
	encode := func(x any) []byte {
		b, err := binary.Append(nil, binary.LittleEndian, x)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	tests := map[string]Array{
		"f32_2x3.npy":       {"F32", []int{2, 3}, encode([]float32{0, 1, 2, 3, -4, float32(math.Inf(1))})},
		"f16_v2.npy":        {"F16", []int{3}, encode([]uint16{0x3c00, 0x3800, 0x7bff})},
		"f64_scalar_v3.npy": {"F64", []int{}, encode(math.Pi)},
	}
	for name, want := range tests {
		b, err := os.ReadFile(filepath.Join("testdata", name))
		if err != nil {
			t.Fatal(err)
		}
		got, err := Parse(b)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		} else if !reflect.DeepEqual(*got, want) {
			t.Errorf("%s: got %+v, want %+v", name, *got, want)
		}
	}
}

// accepted are headers that differ from NumPy's but mean the same.
var accepted = []struct {
	header string
	shape  []int
	data   int
}{
	{`{'descr':'<f4','fortran_order':False,'shape':(2,)}`, []int{2}, 8},
	{`{ "shape" : ( 2 , 3 , ) , "fortran_order" : False , "descr" : "<f4" , } ` + "\n", []int{2, 3}, 24},
	{`{'descr':'<f4','fortran_order':True,'shape':(1,5,1)}`, []int{1, 5, 1}, 20},
	{`{'descr':'<f4','fortran_order':True,'shape':()}`, []int{}, 4},
	{`{'descr':'<f4','fortran_order':False,'shape':(3, 0, 7)}`, []int{3, 0, 7}, 0},
}

func TestParseAccepts(t *testing.T) {
	for _, tt := range accepted {
		for _, b := range [][]byte{file(tt.header, tt.data), file2(tt.header, tt.data)} {
			a, err := Parse(b)
			if err != nil {
				t.Errorf("%s: %v", tt.header, err)
			} else if a.DType != "F32" || !reflect.DeepEqual(a.Shape, tt.shape) || len(a.Data) != tt.data {
				t.Errorf("%s: got %+v", tt.header, a)
			}
		}
	}
}

func TestTypes(t *testing.T) {
	for descr, want := range map[string]string{"<f2": "F16", "<f4": "F32", "<f8": "F64", "|b1": "BOOL", "|u1": "U8", "<i4": "I32", "<i8": "I64"} {
		n := 3 * int(descr[2]-'0')
		a, err := Parse(file(dict("'"+descr+"'", "False", "(3,)"), n))
		if err != nil || a.DType != want || len(a.Data) != n {
			t.Errorf("%s: %+v, %v", descr, a, err)
		}
	}
}

// dict returns a header with the given values.
func dict(descr, fortran, shape string) string {
	return "{'descr': " + descr + ", 'fortran_order': " + fortran + ", 'shape': " + shape + ", }\n"
}

// Numbers at the limits of int, whatever its size.
var (
	maxInt  = strconv.Itoa(math.MaxInt)
	tooHigh = strconv.FormatUint(math.MaxInt+1, 10)
	root    = strconv.Itoa(1 << (strconv.IntSize / 2))
)

var hostileHeaders = []struct {
	want   string // a part of the error
	header string
	data   int
}{
	// The dict.
	{`header: found "", want "{"`, ``, 0},
	{`header: found "['descr']", want "{"`, `['descr']`, 0},
	{`header: found "", want a string`, `{`, 0},
	{`header: found ",}", want a string`, `{,}`, 0},
	{`header: found "1: 2}", want a string`, `{1: 2}`, 0},
	{`header: string "descr: 1}" has no end`, `{'descr: 1}`, 0},
	{`header: string "descr\": 1}" has no end`, `{'descr": 1}`, 0},
	{`header: found "}", want ":"`, `{'descr'}`, 0},
	{`header: "d\\x65scr": unknown key`, `{'d\x65scr': '<f4'}`, 0},
	{`header: "order": unknown key`, `{'order': 'C'}`, 0},
	{`header: "descr": duplicate key`, `{'descr': '<f4', "descr": '<f4'}`, 4},
	{`header: found "'shape': ()}", want "}"`, `{'descr': '<f4' 'shape': ()}`, 4},
	{`header: descr is missing`, `{}`, 0},
	{`header: fortran_order is missing`, `{'descr': '<f4', 'shape': ()}`, 4},
	{`header: shape is missing`, `{'descr': '<f4', 'fortran_order': False}`, 4},
	{`header has "x\n" after the dict`, `{'descr': '<f4', 'fortran_order': False, 'shape': ()}` + "x\n", 4},
	{`header has "\x00" after the dict`, `{'descr': '<f4', 'fortran_order': False, 'shape': ()}` + "\x00", 4},

	// The values.
	{`descr ">f4" is big endian`, dict(`'>f4'`, `False`, `()`), 4},
	{`descr "|f4" is not supported`, dict(`'|f4'`, `False`, `()`), 4},
	{`descr "=f4" is not supported`, dict(`'=f4'`, `False`, `()`), 4},
	{`descr "<u4" is not supported`, dict(`'<u4'`, `False`, `()`), 4},
	{`descr ">i8" is big endian`, dict(`'>i8'`, `False`, `()`), 8},
	{`descr "|O" is not supported`, dict(`'|O'`, `False`, `()`), 4},
	{`descr "" is not supported`, dict(`''`, `False`, `()`), 4},
	{`"descr": structured types are not supported`, dict(`[('x', '<f4')]`, `False`, `()`), 4},
	{`"descr": found "None, `, dict(`None`, `False`, `()`), 4},
	{`fortran_order is True, want C order`, dict(`'<f4'`, `True`, `(2, 2)`), 16},
	{`"fortran_order": found "false, `, dict(`'<f4'`, `false`, `()`), 4},
	{`"fortran_order": found "0, `, dict(`'<f4'`, `0`, `()`), 4},
	{`header: found "1, 'shape': (), }\n", want "}"`, dict(`'<f4'`, `True1`, `()`), 4},

	// The shape.
	{`"shape": found "[1], `, dict(`'<f4'`, `False`, `[1]`), 4},
	{`"shape": found "1, `, dict(`'<f4'`, `False`, `1`), 4},
	{`"shape": found "), }\n" after the only dimension, want a comma`, dict(`'<f4'`, `False`, `(1)`), 4},
	{`"shape": found "", want a natural number`, dict(`'<f4'`, `False`, `(,)`), 4},
	{`"shape": found "", want a natural number`, dict(`'<f4'`, `False`, `(1,,1)`), 4},
	{`"shape": found "2), }\n", want ")"`, dict(`'<f4'`, `False`, `(1, 1 2)`), 4},
	{`"shape": found "-1", want a natural number`, dict(`'<f4'`, `False`, `(-1,)`), 4},
	{`"shape": found "1.0", want a natural number`, dict(`'<f4'`, `False`, `(1.0,)`), 4},
	{`"shape": found "1L", want a natural number`, dict(`'<f4'`, `False`, `(1L,)`), 4},
	{`"shape": found "1_0", want a natural number`, dict(`'<f4'`, `False`, `(1_0,)`), 40},
	{`"shape": found "01", want a natural number`, dict(`'<f4'`, `False`, `(01,)`), 4},
	{`"shape": ` + tooHigh + ` overflows int`, dict(`'<f4'`, `False`, `(`+tooHigh+`,)`), 4},
	{`its size in bytes overflows int at dimension ` + maxInt, dict(`'<f2'`, `False`, `(`+maxInt+`,)`), 4},
	{`its size in bytes overflows int at dimension ` + root, dict(`'<f2'`, `False`, `(`+root+`, `+root+`)`), 4},

	// The data.
	{`data has 3 bytes, want 4`, dict(`'<f4'`, `False`, `()`), 3},
	{`data has 5 bytes, want 4`, dict(`'<f4'`, `False`, `()`), 5},
	{`data has 0 bytes, want 16`, dict(`'<f8'`, `False`, `(2, 1)`), 0},
	{`data has 1 bytes, want 0`, dict(`'<f2'`, `False`, `(0, 9)`), 1},
}

func TestParseRefuses(t *testing.T) {
	check := func(b []byte, want string) {
		a, err := Parse(b)
		if err == nil {
			t.Errorf("no error for %q, want %q", b, want)
		} else if !strings.HasPrefix(err.Error(), "npy: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
		if a != nil {
			t.Errorf("got an array and the error %v", err)
		}
	}
	check(nil, `file starts with "", want "\x93NUMPY"`)
	check([]byte("PK\x03\x04 is a zip"), "the file is a zip archive, as PyTorch's .pt and .bin and NumPy's .npz")
	check([]byte("version https://git-lfs.github.com/spec/v1\n"), "the file is a pointer of Git LFS")
	check([]byte("\x02\x00\x00\x00\x00\x00\x00\x00{}"), "the file is a safetensors file")
	check([]byte("nothing known"), `file starts with "nothin", want "\x93NUMPY"`)
	check([]byte(magic+"\x01"), "file ends before its format version")
	check([]byte(magic+"\x00\x00\x00\x00"), "format version 0.0 is unknown")
	check([]byte(magic+"\x01\x01\x00\x00"), "format version 1.1 is unknown")
	check([]byte(magic+"\x04\x00\x00\x00"), "format version 4.0 is unknown")
	check([]byte(magic+"\x01\x00\x00"), "file ends before its header length")
	check([]byte(magic+"\x02\x00\x00\x00\x00"), "file ends before its header length")
	check([]byte(magic+"\x01\x00\x02\x00{"), "header length 2 is above the 1 bytes that follow it")
	check([]byte(magic+"\x03\x00\xff\xff\xff\xff{"), "header length 4294967295 is above the 1 bytes")
	for _, tt := range hostileHeaders {
		check(file(tt.header, tt.data), tt.want)
		check(file2(tt.header, tt.data), tt.want)
	}
}

func TestParseAllocatesLittle(t *testing.T) {
	const n = 100_000
	headers := map[string]string{
		"huge shape claim": dict(`'<f4'`, `False`, `(`+maxInt[1:]+`,)`),
		"many dimensions":  dict(`'<f4'`, `False`, `(0,`+strings.Repeat("0,", n)+`)`),
		"commas":           `{'shape':(` + strings.Repeat(",", n),
		"long number":      `{'shape':(` + strings.Repeat("9", n),
		"long string":      `{'` + strings.Repeat("\x7f", n),
		"long key":         `{'` + strings.Repeat("\x7f", n) + `':`,
		"long descr":       dict(`'`+strings.Repeat("\x7f", n)+`'`, `False`, `()`),
	}
	for name, header := range headers {
		b := file2(header, 0)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		a, err := Parse(b)
		runtime.ReadMemStats(&after)
		got := after.TotalAlloc - before.TotalAlloc
		t.Logf("%-16s %8d bytes, %5.2f times that allocated, error %.80v", name, len(b), float64(got)/float64(len(b)), err)
		if limit := uint64(10*len(b) + 8192); got > limit {
			t.Errorf("%s: allocated %d bytes for a file of %d, want at most %d", name, got, len(b), limit)
		}
		runtime.KeepAlive(a)
	}
}

func FuzzParse(f *testing.F) {
	for _, tt := range hostileHeaders {
		f.Add(file(tt.header, tt.data))
	}
	for _, tt := range accepted {
		f.Add(file2(tt.header, tt.data))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		a, err := Parse(b)
		if err != nil {
			return
		}
		size := map[string]int{"F16": 2, "F32": 4, "F64": 8, "BOOL": 1, "U8": 1, "I32": 4, "I64": 8}[a.DType]
		for _, d := range a.Shape {
			size *= d
		}
		if a.DType == "" || a.Shape == nil || size != len(a.Data) || !strings.HasSuffix(string(b), string(a.Data)) {
			t.Errorf("got %+v", a)
		}
	})
}
