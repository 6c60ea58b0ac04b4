package safetensors

import (
	"bytes"
	"strings"
)

// otherFormats are files that are often taken for safetensors files, by how they begin.
var otherFormats = []struct{ start, is string }{
	{"version https://git-lfs.github.com/spec/", "a pointer of Git LFS, without the weights: git lfs pull fetches them"},
	{"PK\x03\x04", "a zip archive, as PyTorch's .pt and .bin and NumPy's .npz: convert it to safetensors"},
	{"\x80\x02", pickle}, {"\x80\x03", pickle}, {"\x80\x04", pickle}, {"\x80\x05", pickle},
	{"GGUF", "a GGUF file, not safetensors"},
	{"\x93NUMPY", "a NumPy array (.npy), not safetensors"},
	{"\x89HDF\r\n", "an HDF5 file, as TensorFlow's .h5, not safetensors"},
	{"\x1f\x8b", "compressed by gzip: unpack it first"},
	{"\x28\xb5\x2f\xfd", "compressed by zstd: unpack it first"},
}

const pickle = "a Python pickle, as PyTorch's older .pt and .bin: convert it to safetensors"

// otherFormat returns what a file is that is no safetensors file, empty if that is unknown.
func otherFormat(b []byte) string {
	start := string(b[:min(len(b), 4096)])
	for _, f := range otherFormats {
		if strings.HasPrefix(start, f.start) {
			return f.is
		}
	}
	text := strings.ToLower(strings.TrimLeft(strings.TrimPrefix(start, "\ufeff"), " \t\r\n"))
	switch {
	case strings.HasPrefix(text, "<!doctype html"), strings.HasPrefix(text, "<html"):
		return "a web page (HTML), not the weights: the download went wrong"
	case strings.HasPrefix(text, "{") && bytes.Contains(b, []byte(`"weight_map"`)):
		return "an index of shards (JSON), without the weights: these are in the files that it names"
	case strings.HasPrefix(text, "{"), strings.HasPrefix(text, "["):
		return "JSON text, not safetensors"
	}
	return ""
}
