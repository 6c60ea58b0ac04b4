// Package foreign recognizes file formats that users often mistake for the expected format.
package foreign

import (
	"bytes"
	"encoding/binary"
	"strings"
)

// formats are the formats that the beginning of a file identifies.
var formats = []struct{ start, is string }{
	{"version https://git-lfs.github.com/spec/", "a pointer of Git LFS, without the weights: git lfs pull fetches them"},
	{"PK\x03\x04", "a zip archive, as PyTorch's .pt and .bin and NumPy's .npz: convert it to safetensors"},
	{"\x80\x02", pickle}, {"\x80\x03", pickle}, {"\x80\x04", pickle}, {"\x80\x05", pickle},
	{"GGUF", "a GGUF file"},
	{"\x93NUMPY", "a NumPy array (.npy)"},
	{"\x89HDF\r\n", "an HDF5 file, as TensorFlow's .h5"},
	{"\x1f\x8b", "compressed by gzip: unpack it first"},
	{"\x28\xb5\x2f\xfd", "compressed by zstd: unpack it first"},
}

const pickle = "a Python pickle, as PyTorch's older .pt and .bin: convert it to safetensors"

// Format returns the format of a file in words, or "" if the format is unknown. b is the file or
// its beginning.
func Format(b []byte) string {
	start := string(b[:min(len(b), 4096)])
	for _, f := range formats {
		if strings.HasPrefix(start, f.start) {
			return f.is
		}
	}
	text := strings.ToLower(strings.TrimLeft(strings.TrimPrefix(start, "\ufeff"), " \t\r\n"))
	switch {
	case isSafetensors(b):
		return "a safetensors file"
	case strings.HasPrefix(text, "<!doctype html"), strings.HasPrefix(text, "<html"):
		return "a web page (HTML), not the weights: the download went wrong"
	case strings.HasPrefix(text, "{") && bytes.Contains(b, []byte(`"weight_map"`)):
		return "an index of shards (JSON), without the weights: these are in the files that it names"
	case strings.HasPrefix(text, "{"), strings.HasPrefix(text, "["):
		return "JSON text, without tensors"
	}
	return ""
}

// isSafetensors reports whether b begins with the length of a header and a header of that length.
func isSafetensors(b []byte) bool {
	const size = 8
	return len(b) > size && binary.LittleEndian.Uint64(b) <= uint64(len(b)-size) && b[size] == '{'
}
