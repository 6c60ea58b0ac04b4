package wasm

import (
	"strings"

	"github.com/flashkit-go/flashkit"
)

// abouts maps the stem of a variant to its Kernel.About.
var abouts = map[string]string{
	"fwd_simd128":    "WebAssembly SIMD128: packed tiles of 4 rows by 8 keys, online softmax; bound by instructions, as there is no fused multiply-add",
	"bwd_simd128":    "WebAssembly SIMD128: five products, chunks of keys add to dQ in order; bound by instructions, as there is no fused multiply-add",
	"decode_simd128": "WebAssembly SIMD128 for few query rows: elements of a head in the lanes, keys are read as they lie, 16 bits are widened in the sandbox; bound by the copy of K and V",
	"fwd_scalar":     "WebAssembly: the plain loop, to read and to compare with; bound by scalar arithmetic",
	"bwd_scalar":     "WebAssembly: the plain loop of the backward pass, to read and to compare with; bound by scalar arithmetic",
}

// setAbout sets k's About, Code, DTypes, Scores and MaxRows. MaxDim stays 0, because in practice
// memory limits the head dims.
func setAbout(k *flashkit.Kernel, stem string) {
	k.About, k.Code = abouts[stem], flashkit.CodeSandbox
	switch _, k.Scores, _ = strings.Cut(stem, "_"); stem {
	case "fwd_scalar", "bwd_scalar":
		k.Scores = "fours" // the summation order of package simd's portable kernels
	case "decode_simd128":
		k.Scores, k.MaxRows = stem, headRows
	}
	k.DTypes = []flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16}
}
