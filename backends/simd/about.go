package simd

import (
	"slices"

	"github.com/flashkit-go/flashkit"
)

// widest is the head dim that kernels of vectors take. Each worker keeps hundreds of
// rows, so with few rows that are wider the workspace would be far beyond the tensors.
const widest = 1 << 13

// decodeRows is the most query rows of a KV head that decode kernels take.
const decodeRows = 64

// What the kernels in assembly require of a machine.
const (
	onAVX512     = "amd64 with AVX-512 F, BW, DQ and VL"
	onAVX512BF16 = "amd64 with AVX-512 F, BW, DQ, VL and BF16"
	onAMX        = "Linux on amd64 with AMX-BF16 and AVX-512 F, BW, DQ, VL and BF16"
	onAVX2       = "amd64 with AVX2, FMA and F16C"
	onNEON       = "arm64"
	onNEONFHM    = "arm64 with FEAT_FHM"
	onNEONBF16   = "arm64 with FEAT_BF16"
)

// evenOdd is the order of the sums of kernels that add up the even elements of a head and
// the odd ones, whatever the width of their vectors.
const evenOdd = "even and odd"

var (
	allTypes = []flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16}
	bf16Only = allTypes[2:]
	f16Only  = allTypes[1:2]
	notBF16  = allTypes[:2]
)

// abouts describe the kernels in assembly, on every platform.
var abouts = [...]flashkit.Kernel{
	{Name: "simd/fwd_avx512", Scores: evenOdd, Requires: onAVX512, DTypes: allTypes, MaxDim: widest,
		About: "AVX-512: 32 query rows in the lanes, online softmax over key blocks; bound by multiply-adds"},
	{Name: "simd/decode_avx512", Scores: "decode_avx512", Requires: onAVX512, DTypes: allTypes, MaxDim: widest, MaxRows: decodeRows,
		About: "AVX-512: split-KV for few query rows, head dim in the lanes, K and V read once; bound by memory bandwidth"},
	{Name: "simd/bwd_avx512", Scores: evenOdd, Requires: onAVX512, DTypes: allTypes, MaxDim: widest,
		About: "AVX-512: five products, P recomputed from LSE, key blocks add to dQ in order; bound by multiply-adds"},
	{Name: "simd/fwd_amxf32", Scores: "amxf32", Requires: onAMX, DTypes: notBF16, MaxDim: widest,
		About: "AMX: each float32 product as six bf16 tile products, softmax by AVX-512; bound by tile products"},
	{Name: "simd/bwd_amxf32", Scores: "amxf32", Requires: onAMX, DTypes: notBF16, MaxDim: widest,
		About: "AMX: five float32 products as six bf16 tile products each, dQ summed in order; bound by tile products"},
	{Name: "simd/fwd_amxbf16", Scores: "amxbf16", Requires: onAMX, DTypes: bf16Only, MaxDim: widest,
		About: "AMX: bf16 tile products, softmax by AVX-512; bound by exponentials at small head dims, else by tile products"},
	{Name: "simd/decode_amxbf16", Scores: "decode_amxbf16", Requires: onAMX, DTypes: bf16Only, MaxDim: widest, MaxRows: decodeRows,
		About: "AMX: split-KV with 16 query rows in a tile, for grouped heads; bound by memory bandwidth and packing"},
	{Name: "simd/fwd_avx512bf16", Scores: "avx512bf16", Requires: onAVX512BF16, DTypes: bf16Only, MaxDim: widest,
		About: "AVX-512: 32 query rows in the lanes, products of bf16 pairs by VDPBF16PS; bound by that instruction"},
	{Name: "simd/bwd_amxbf16", Scores: "amxbf16", Requires: onAMX, DTypes: bf16Only, MaxDim: widest,
		About: "AMX: five bf16 tile products, key blocks add to dQ in order; bound by exponentials and tile products alike"},
	{Name: "simd/bwd_avx512bf16", Scores: "avx512bf16", Requires: onAVX512BF16, DTypes: bf16Only, MaxDim: widest,
		About: "AVX-512: five products of bf16 pairs by VDPBF16PS, dQ summed in order; bound by that instruction"},
	{Name: "simd/fwd_avx2", Scores: evenOdd, Requires: onAVX2, DTypes: allTypes, MaxDim: widest,
		About: "AVX2: 16 query rows in the lanes, online softmax over key blocks; bound by multiply-adds"},
	{Name: "simd/decode_avx2", Scores: "decode_avx2", Requires: onAVX2, DTypes: allTypes, MaxDim: widest, MaxRows: decodeRows,
		About: "AVX2: split-KV for few query rows, head dim in the lanes, K and V read once; bound by memory bandwidth"},
	{Name: "simd/bwd_avx2", Scores: evenOdd, Requires: onAVX2, DTypes: allTypes, MaxDim: widest,
		About: "AVX2: five products, P recomputed from LSE, key blocks add to dQ in order; bound by multiply-adds"},
	{Name: "simd/fwd_neon", Scores: evenOdd, Requires: onNEON, DTypes: allTypes, MaxDim: widest,
		About: "NEON: 16 query rows in the lanes, online softmax over key blocks; bound by multiply-adds"},
	{Name: "simd/fwd_neonbf16", Scores: "neonbf16", Requires: onNEONBF16, DTypes: bf16Only, MaxDim: widest,
		About: "NEON: 16 query rows in the lanes, products of bf16 in fours by BFMMLA; bound by that instruction and exponentials"},
	{Name: "simd/decode_neon", Scores: "decode_neon", Requires: onNEON, DTypes: allTypes, MaxDim: widest, MaxRows: decodeRows,
		About: "NEON: split-KV for few query rows, head dim in the lanes, K and V read once; bound by memory bandwidth"},
	{Name: "simd/decode_neonfhm", Scores: "decode_neon", Requires: onNEONFHM, DTypes: f16Only, MaxDim: widest, MaxRows: decodeRows,
		About: "NEON: split-KV for few query rows, f16 multiplied as it lies by FMLAL, weights rounded to f16; bound by memory bandwidth"},
	{Name: "simd/decode_neonbf16", Scores: "decode_neonbf16", Requires: onNEONBF16, DTypes: bf16Only, MaxDim: widest, MaxRows: decodeRows,
		About: "NEON: split-KV for few query rows, bf16 multiplied as it lies by BFMLALB and BFMLALT, weights rounded to bf16; bound by memory bandwidth"},
	{Name: "simd/bwd_neon", Scores: evenOdd, Requires: onNEON, DTypes: allTypes, MaxDim: widest,
		About: "NEON: five products, P recomputed from LSE, key blocks add to dQ in order; bound by multiply-adds"},
	{Name: "simd/fwd_generic", Scores: "fours", DTypes: allTypes,
		About: "Go: online softmax over key tiles, one row at a time; bound by scalar arithmetic"},
	{Name: "simd/bwd_generic", Scores: "fours", DTypes: allTypes,
		About: "Go: seven products, P recomputed from LSE, no gradient shared between goroutines; bound by scalar arithmetic"},
}

// setAbout fills in what abouts say of k.
func setAbout(k *flashkit.Kernel) {
	for i := range abouts {
		if a := &abouts[i]; a.Name == k.Name {
			k.About, k.Requires, k.Scores, k.DTypes, k.MaxDim, k.MaxRows = a.About, a.Requires, a.Scores, slices.Clone(a.DTypes), a.MaxDim, a.MaxRows
			if k.Requires != "" {
				k.Code = flashkit.CodeVector
			}
		}
	}
}
