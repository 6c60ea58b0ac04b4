package safetensors

import (
	"bytes"
	"fmt"
	"math"
	"reflect"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// entryText returns a header with one tensor.
func entryText(dtype, shape, offsets string) string {
	return fmt.Sprintf(`{"t":{"dtype":%s,"shape":%s,"data_offsets":%s}}`, dtype, shape, offsets)
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
	// The JSON text.
	{`header starts with "", want a JSON object`, ``, 0},
	{`header starts with "[]", want a JSON object`, `[]`, 0},
	{`header starts with " {}", want a JSON object`, ` {}`, 0},
	{`header is not valid UTF-8`, "{\"\xff\":1}", 0},
	{`header has "x" after the JSON object`, `{}x`, 0},
	{`header has " {}" after the JSON object`, `{} {}`, 0},
	{`header has "\n" after the JSON object`, "{}\n", 0},
	{`header has "\x00" after the JSON object`, "{}\x00", 0},
	{`found "", want '"'`, `{`, 0},
	{`found "", want ':'`, `{"a"`, 0},
	{`found ",1", want ':'`, `{"a",1`, 0},
	{`found "}", want '"'`, `{"__metadata__":{},}`, 0},
	{`found "\"t\":{}}", want ','`, `{"__metadata__":{} "t":{}}`, 0},
	{`string "abc" has no end`, `{"abc`, 0},
	{`string "abc\\" has no end`, `{"abc\`, 0},
	{`string "a\n" has a control character`, "{\"a\n\"", 0},
	{`bad escape sequence "\\x41"`, `{"\x41":`, 0},
	{`bad escape sequence "\\u12g4`, `{"\u12g4":`, 0},
	{`bad escape sequence "\\u12"`, `{"\u12":`, 0},
	{`bad escape sequence "\\ud800"`, `{"\ud800":`, 0},
	{`bad escape sequence "\\ud800ude00"`, `{"\ud800ude00":`, 0},
	{`bad escape sequence "\\udc00\\ud800"`, `{"\udc00\ud800":`, 0},
	{"bad escape sequence \"\\\\\\n\"", "{\"\\\n\":", 0},

	// The names, the fields and the metadata.
	{`duplicate name "t"`, `{"t":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"\u0074":{}}`, 1},
	{`duplicate name "__metadata__"`, `{"__metadata__":{},"__metadata__":{}}`, 0},
	{`__metadata__: duplicate key "a"`, `{"__metadata__":{"a":"","a":""}}`, 0},
	{`__metadata__: found "1}}", want '"'`, `{"__metadata__":{"a":1}}`, 0},
	{`__metadata__: found "null}", want '{'`, `{"__metadata__":null}`, 0},
	{`tensor "t": found "[]}", want '{'`, `{"t":[]}`, 0},
	{`tensor "t": unknown field "dtypes"`, `{"t":{"dtypes":"U8"}}`, 0},
	{`tensor "t": unknown field "Shape"`, `{"t":{"Shape":[]}}`, 0},
	{`tensor "t": duplicate field "dtype"`, `{"t":{"dtype":"U8","dtype":"U8"}}`, 0},
	{`tensor "t": duplicate field "shape"`, `{"t":{"shape":[],"shape":[]}}`, 0},
	{`tensor "t": duplicate field "data_offsets"`, `{"t":{"data_offsets":[],"data_offsets":[0,0]}}`, 0},
	{`tensor "t": dtype is missing`, `{"t":{}}`, 0},
	{`tensor "t": shape is missing`, `{"t":{"dtype":"U8","data_offsets":[0,1]}}`, 1},
	{`tensor "t": data_offsets is missing`, `{"t":{"dtype":"U8","shape":[]}}`, 1},
	{`the file is cut: it has 78 bytes, but its tensors end at byte 79`, entryText(`"F128"`, `[]`, `[0,16]`), 15},
	{`tensor "t": data_offsets [16 0] are reversed`, entryText(`"F128"`, `[]`, `[16,0]`), 16},
	{`tensor "t": dtype: "F\x1b[31m" is not the name of a type`, entryText(`"F\u001b[31m"`, `[]`, `[0,16]`), 16},
	{`tensor "t": dtype: "` + strings.Repeat("F", 60) + `" is not the name of a type`, entryText(`"`+strings.Repeat("F", 99)+`"`, `[]`, `[0,16]`), 16},
	{`tensor "t": shape has 12 bits of F4, which end within a byte`, entryText(`"F4"`, `[3]`, `[0,2]`), 2},
	{`tensor "t": data_offsets [0 4] span 4 bytes, want 3`, entryText(`"F6_E2M3"`, `[4]`, `[0,4]`), 4},
	{`tensor "t": shape is too large`, entryText(`"F4"`, `[`+maxInt+`]`, `[0,2]`), 2},
	{`tensor "t": dtype: "" is not the name of a type`, entryText(`""`, `[]`, `[0,0]`), 0},
	{`tensor "t": dtype: found "32,`, entryText(`32`, `[]`, `[0,4]`), 4},

	// The numbers.
	{`tensor "t": shape: found "-1", want a natural number`, entryText(`"U8"`, `[-1]`, `[0,1]`), 1},
	{`tensor "t": shape: found "1.0", want a natural number`, entryText(`"U8"`, `[1.0]`, `[0,1]`), 1},
	{`tensor "t": shape: found "1e0", want a natural number`, entryText(`"U8"`, `[1e0]`, `[0,1]`), 1},
	{`tensor "t": shape: found "+1", want a natural number`, entryText(`"U8"`, `[+1]`, `[0,1]`), 1},
	{`tensor "t": shape: found "01", want a natural number`, entryText(`"U8"`, `[01]`, `[0,1]`), 1},
	{`tensor "t": shape: found "null", want a natural number`, entryText(`"U8"`, `[null]`, `[0,1]`), 1},
	{`tensor "t": shape: found "", want a natural number`, entryText(`"U8"`, `[1,]`, `[0,1]`), 1},
	{`tensor "t": shape: found "1],`, entryText(`"U8"`, `[1 1]`, `[0,1]`), 1},
	{`tensor "t": shape: found "{},`, entryText(`"U8"`, `{}`, `[0,1]`), 1},
	{`tensor "t": shape: found "", want ','`, `{"t":{"shape":[1`, 1},
	{`tensor "t": shape: ` + tooHigh + ` overflows int`, entryText(`"U8"`, `[`+tooHigh+`]`, `[0,1]`), 1},
	{`tensor "t": shape is too large: its size in bytes overflows int at dimension ` + maxInt, entryText(`"U16"`, `[`+maxInt+`]`, `[0,1]`), 1},
	{`tensor "t": shape is too large: its size in bytes overflows int at dimension ` + root, entryText(`"U8"`, `[`+root+`,`+root+`]`, `[0,0]`), 0},

	// The offsets.
	{`tensor "t": data_offsets: ` + tooHigh + ` overflows int`, entryText(`"U8"`, `[]`, `[0,`+tooHigh+`]`), 1},
	{`tensor "t": data_offsets: found "-1"`, entryText(`"U8"`, `[]`, `[-1,0]`), 1},
	{`tensor "t": data_offsets has 0 numbers, want 2`, entryText(`"U8"`, `[]`, `[]`), 1},
	{`tensor "t": data_offsets has 3 numbers, want 2`, entryText(`"U8"`, `[]`, `[0,1,1]`), 1},
	{`tensor "t": data_offsets [1 0] are reversed`, entryText(`"U8"`, `[]`, `[1,0]`), 1},
	{`tensor "t": data_offsets [0 5] span 5 bytes, want 4`, entryText(`"F32"`, `[1]`, `[0,5]`), 5},
	{`the file is cut: it has `, entryText(`"U8"`, `[`+maxInt+`]`, `[0,`+maxInt+`]`), 4},
	{`the file is cut: it has `, entryText(`"U8"`, `[0]`, `[5,5]`), 4},
	{`tensor "t": data_offsets [1 2] leave a hole after 0`, entryText(`"U8"`, `[]`, `[1,2]`), 2},
	{`the tensors end at 1 but the data has 2 bytes`, entryText(`"U8"`, `[]`, `[0,1]`), 2},
	{`the tensors end at 0 but the data has 1 bytes`, `{}`, 1},
	{`tensor "b": data_offsets [1 3] overlap the tensor that ends at 2`,
		`{"b":{"dtype":"U8","shape":[2],"data_offsets":[1,3]},"a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}}`, 3},
}

func TestParseRefuses(t *testing.T) {
	check := func(b []byte, want string) {
		f, err := Parse(b)
		if err == nil {
			t.Errorf("no error for %q, want %q", b, want)
		} else if !strings.HasPrefix(err.Error(), "safetensors: ") || !strings.Contains(err.Error(), want) {
			t.Errorf("got error %v, want %q", err, want)
		}
		if f != nil {
			t.Errorf("got a file and the error %v", err)
		}
		if _, again := Read(bytes.NewReader(b), int64(len(b))); again == nil || err != nil && again.Error() != err.Error() {
			t.Errorf("Read: got error %v, Parse %v", again, err)
		}
	}
	check(nil, "file has 0 bytes, want at least 8")
	check(make([]byte, 7), "file has 7 bytes, want at least 8")
	check([]byte("\x03\x00\x00\x00\x00\x00\x00\x00{}"), "header length 3 is above the 2 bytes that follow it")
	check([]byte("\x00\xe1\xf5\x05\x00\x00\x00\x00{}"), "header length 100000000 is above the 2 bytes")
	check([]byte("\x01\xe1\xf5\x05\x00\x00\x00\x00{}"), "header length 100000001 is above the limit of 100000000")
	check(bytes.Repeat([]byte{0xff}, 16), "header length 18446744073709551615 is above the limit")
	for _, tt := range hostileHeaders {
		check(file(tt.header, tt.data), tt.want)
	}
}

// repeat returns n members, each made by format from its number. The numbers
// are characters that need no escape.
func repeat(n int, format string) string {
	var b strings.Builder
	for i := range n {
		fmt.Fprintf(&b, format, 0x10000+i)
		b.WriteByte(',')
	}
	return strings.TrimSuffix(b.String(), ",")
}

func TestParseAllocatesLittle(t *testing.T) {
	const n = 58_000 // just above a size at which a map doubles
	metadata := func(members string) string { return `{"__metadata__":{` + members + `}}` }
	long := strings.Repeat("\x7f", n) // grows fourfold when quoted
	headers := map[string]string{
		"huge shape claim":     entryText(`"U8"`, `[`+maxInt+`]`, `[0,`+maxInt+`]`),
		"many dimensions":      entryText(`"U8"`, `[0`+strings.Repeat(",0", n)+`]`, `[0,0]`),
		"many offsets":         entryText(`"U8"`, `[]`, `[0`+strings.Repeat(",0", n)+`]`),
		"commas":               `{"t":{"shape":[` + strings.Repeat(",", n),
		"tensors":              `{` + repeat(n, `"%x":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}`) + `}`,
		"escaped fields":       `{` + repeat(n, `"%x":{"dtype":"U8","shape":[0],"data_offset\u0073":[0,0]}`) + `}`,
		"fields only":          `{` + strings.Repeat(`"data_offsets"`, n),
		"duplicate tensors":    `{` + strings.Repeat(`"":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},`, n),
		"metadata":             metadata(repeat(n, `"%x":""`)),
		"short keys":           metadata(repeat(n, `"%c":""`)),
		"duplicate metadata":   metadata(strings.Repeat(`"":"",`, n) + `"":""`),
		"escapes":              metadata(repeat(n, `"\n%x":"\n"`)),
		"one long escape":      metadata(`"":"` + strings.Repeat(`\n`, n) + `"`),
		"long name":            `{"` + long + `":0}`,
		"long dtype":           entryText(`"`+long+`"`, `[]`, `[]`),
		"long number":          entryText(`"U8"`, `[`+strings.Repeat("9", n)+`]`, `[]`),
		"braces":               strings.Repeat(`{`, n),
		"nested":               strings.Repeat(`{"":`, n),
		"string without end":   `{"` + long,
		"garbage after header": `{}` + long,
	}
	for name, header := range headers {
		b := file(header, 0)
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		f, err := Parse(b)
		runtime.ReadMemStats(&after)
		got := after.TotalAlloc - before.TotalAlloc
		t.Logf("%-20s %8d bytes, %5.2f times that allocated, error %.80v", name, len(b), float64(got)/float64(len(b)), err)
		if limit := uint64(20*len(b) + 8192); got > limit {
			t.Errorf("%s: allocated %d bytes for a file of %d, want at most %d", name, got, len(b), limit)
		}
		runtime.KeepAlive(f)
	}
}

func FuzzParse(f *testing.F) {
	for _, tt := range hostileHeaders {
		f.Add(file(tt.header, tt.data))
	}
	f.Add(file(entryText(`"F32"`, `[1,2]`, `[0,8]`), 8))
	f.Add(file(`{"__metadata__":{"a":"\ud83d\ude00\b"},"b":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"a":{"dtype":"F16","shape":[0,3],"data_offsets":[0,0]}}  `, 1))
	f.Fuzz(func(t *testing.T, b []byte) {
		first, err := Parse(b)
		if err != nil {
			return
		}
		if slices.ContainsFunc(first.Tensors, func(x Tensor) bool { return !known(x.DType) }) {
			return // which cannot be written
		}
		if read, err := Read(bytes.NewReader(b), int64(len(b))); err != nil || !reflect.DeepEqual(first, read) {
			t.Fatalf("Read: got %+v and error %v, want %+v", read, err, first)
		}
		written := write(t, first)
		second, err := Parse(written)
		if err != nil {
			t.Fatalf("cannot parse what was written: %v", err)
		}
		if !reflect.DeepEqual(first, second) {
			t.Fatalf("got %+v, want %+v", second, first)
		}
		if !bytes.Equal(write(t, second), written) {
			t.Fatal("equal files give different bytes")
		}
	})
}
