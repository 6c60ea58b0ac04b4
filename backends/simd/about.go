package simd

import "github.com/flashkit-go/flashkit"

// widest is the largest head dim of the kernels in assembly. This limit bounds the workspace: each
// worker's workspace holds hundreds of rows, even if the tensors of the call have only a few.
const widest = 1 << 13

// decodeRows is the largest number of query rows per KV head that decode kernels support. The rows
// of all query heads that share the KV head are counted.
const decodeRows = 64

// Requirements of the kernels in assembly.
const (
	onAVX512     = "amd64 with AVX-512 F, BW, DQ and VL"
	onAVX512BF16 = "amd64 with AVX-512 F, BW, DQ, VL and BF16"
	onAMX        = "Linux on amd64 with AMX-BF16 and AVX-512 F, BW, DQ, VL and BF16"
	onAVX2       = "amd64 with AVX2, FMA and F16C"
	onNEON       = "arm64"
	onNEONFHM    = "arm64 with FEAT_FHM"
	onNEONBF16   = "arm64 with FEAT_BF16"
)

// evenOdd names the order in which most kernels sum a dot product over the head dim: even and odd
// elements separately. The order does not depend on the vector width.
const evenOdd = "even and odd"

var (
	allTypes = []flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16}
	bf16Only = allTypes[2:]
	f16Only  = allTypes[1:2]
	notBF16  = allTypes[:2]
)

// Features that every kernel of a pass supports. A feature that only one kernel supports belongs in
// the entry of this kernel in abouts.
const (
	bwdFeatures = flashkit.FeatureShift | flashkit.FeatureSoftcap | flashkit.FeatureALiBi | flashkit.FeatureBias | flashkit.FeatureMask |
		flashkit.FeatureSink | flashkit.FeatureDropout | flashkit.FeatureOrigin | flashkit.FeatureRagged | flashkit.FeatureRanges
	fwdFeatures = bwdFeatures | flashkit.FeaturePage | flashkit.FeatureCarry | flashkit.FeatureRowMax
)

// abouts lists the kernels of all platforms. The list is the same on every platform.
// Backend.Kernels adds the kernels' functions.
var abouts = [...]flashkit.Kernel{
	{Name: "simd/fwd_avx512", Takes: fwdFeatures | flashkit.FeatureMixed | flashkit.FeatureInt8 | flashkit.FeatureKeyMass, Scores: evenOdd, Requires: onAVX512, DTypes: allTypes, MaxDim: widest,
		About: "AVX-512: 32 query rows in the lanes, online softmax over key blocks; bound by multiply-adds"},
	{Name: "simd/decode_avx512", Takes: fwdFeatures | flashkit.FeatureMixed | flashkit.FeatureInt8, Scores: "decode_avx512", Requires: onAVX512, DTypes: allTypes, MaxDim: widest, MaxRows: decodeRows,
		About: "AVX-512: split-KV for few query rows, head dim in the lanes, K and V read once; bound by memory bandwidth"},
	{Name: "simd/bwd_avx512", Pass: flashkit.PassBackward, Takes: bwdFeatures, Scores: evenOdd, Requires: onAVX512, DTypes: allTypes, MaxDim: widest,
		About: "AVX-512: five products, P recomputed from LSE, key blocks add to dQ in order; bound by multiply-adds"},
	{Name: "simd/bwd_decode_avx512", Pass: flashkit.PassBackward, Takes: flashkit.FeatureShift | flashkit.FeatureRagged, Scores: "decode_avx512", Requires: onAVX512, DTypes: allTypes, MaxDim: widest, MaxRows: decodeRows,
		About: "AVX-512: few query rows, head dim in the lanes, each key visited once, no gradient shared between items; bound by short products"},
	{Name: "simd/bwd_fewkeys_avx512", Pass: flashkit.PassBackward, Takes: flashkit.FeatureShift | flashkit.FeatureRagged, Scores: evenOdd, Requires: onAVX512, DTypes: allTypes, MaxDim: widest,
		About: "AVX-512: at most 128 keys, query rows in the lanes, each row visited once; bound by transposes"},
	{Name: "simd/fwd_amxf32", Takes: fwdFeatures | flashkit.FeatureMixed, Scores: "amxf32", Requires: onAMX, DTypes: notBF16, MaxDim: widest,
		About: "AMX: each float32 product as six bf16 tile products, softmax by AVX-512; bound by tile products"},
	{Name: "simd/bwd_amxf32", Pass: flashkit.PassBackward, Takes: bwdFeatures, Scores: "amxf32", Requires: onAMX, DTypes: notBF16, MaxDim: widest,
		About: "AMX: five float32 products as six bf16 tile products each, dQ summed in order; bound by tile products"},
	{Name: "simd/fwd_amxbf16", Takes: fwdFeatures, Scores: "amxbf16", Requires: onAMX, DTypes: bf16Only, MaxDim: widest,
		About: "AMX: bf16 tile products, softmax by AVX-512; bound by exponentials at small head dims, else by tile products"},
	{Name: "simd/decode_amxbf16", Takes: fwdFeatures, Scores: "decode_amxbf16", Requires: onAMX, DTypes: bf16Only, MaxDim: widest, MaxRows: decodeRows,
		About: "AMX: split-KV with 16 query rows in a tile, for grouped heads; bound by memory bandwidth and packing"},
	{Name: "simd/fwd_avx512bf16", Takes: fwdFeatures | flashkit.FeatureKeyMass, Scores: "avx512bf16", Requires: onAVX512BF16, DTypes: bf16Only, MaxDim: widest,
		About: "AVX-512: 32 query rows in the lanes, products of bf16 pairs by VDPBF16PS; bound by that instruction"},
	{Name: "simd/bwd_amxbf16", Pass: flashkit.PassBackward, Takes: bwdFeatures, Scores: "amxbf16", Requires: onAMX, DTypes: bf16Only, MaxDim: widest,
		About: "AMX: five bf16 tile products, key blocks add to dQ in order; bound by exponentials and tile products alike"},
	{Name: "simd/bwd_avx512bf16", Pass: flashkit.PassBackward, Takes: bwdFeatures, Scores: "avx512bf16", Requires: onAVX512BF16, DTypes: bf16Only, MaxDim: widest,
		About: "AVX-512: five products of bf16 pairs by VDPBF16PS, dQ summed in order; bound by that instruction"},
	{Name: "simd/fwd_avx2", Takes: fwdFeatures | flashkit.FeatureMixed | flashkit.FeatureInt8 | flashkit.FeatureKeyMass, Scores: evenOdd, Requires: onAVX2, DTypes: allTypes, MaxDim: widest,
		About: "AVX2: 16 query rows in the lanes, online softmax over key blocks; bound by multiply-adds"},
	{Name: "simd/decode_avx2", Takes: fwdFeatures | flashkit.FeatureMixed | flashkit.FeatureInt8, Scores: "decode_avx2", Requires: onAVX2, DTypes: allTypes, MaxDim: widest, MaxRows: decodeRows,
		About: "AVX2: split-KV for few query rows, head dim in the lanes, K and V read once; bound by memory bandwidth"},
	{Name: "simd/bwd_avx2", Pass: flashkit.PassBackward, Takes: bwdFeatures, Scores: evenOdd, Requires: onAVX2, DTypes: allTypes, MaxDim: widest,
		About: "AVX2: five products, P recomputed from LSE, key blocks add to dQ in order; bound by multiply-adds"},
	{Name: "simd/bwd_decode_avx2", Pass: flashkit.PassBackward, Takes: flashkit.FeatureShift | flashkit.FeatureRagged, Scores: "decode_avx2", Requires: onAVX2, DTypes: allTypes, MaxDim: widest, MaxRows: decodeRows,
		About: "AVX2: few query rows, head dim in the lanes, each key visited once, no gradient shared between items; bound by short products"},
	{Name: "simd/bwd_fewkeys_avx2", Pass: flashkit.PassBackward, Takes: flashkit.FeatureShift | flashkit.FeatureRagged, Scores: evenOdd, Requires: onAVX2, DTypes: allTypes, MaxDim: widest,
		About: "AVX2: at most 128 keys, query rows in the lanes, each row visited once; bound by transposes"},
	{Name: "simd/fwd_neon", Takes: fwdFeatures | flashkit.FeatureMixed | flashkit.FeatureInt8 | flashkit.FeatureKeyMass, Scores: evenOdd, Requires: onNEON, DTypes: allTypes, MaxDim: widest,
		About: "NEON: 16 query rows in the lanes, online softmax over key blocks; bound by multiply-adds"},
	{Name: "simd/fwd_neonbf16", Takes: fwdFeatures, Scores: "neonbf16", Requires: onNEONBF16, DTypes: bf16Only, MaxDim: widest,
		About: "NEON: 16 query rows in the lanes, products of bf16 in fours by BFMMLA; bound by that instruction and exponentials"},
	{Name: "simd/decode_neon", Takes: fwdFeatures | flashkit.FeatureMixed | flashkit.FeatureInt8, Scores: "decode_neon", Requires: onNEON, DTypes: allTypes, MaxDim: widest, MaxRows: decodeRows,
		About: "NEON: split-KV for few query rows, head dim in the lanes, K and V read once; bound by memory bandwidth"},
	{Name: "simd/decode_neonfhm", Takes: fwdFeatures, Scores: "decode_neon", Requires: onNEONFHM, DTypes: f16Only, MaxDim: widest, MaxRows: decodeRows,
		About: "NEON: split-KV for few query rows, f16 multiplied as it lies by FMLAL, weights rounded to f16; bound by memory bandwidth"},
	{Name: "simd/decode_neonbf16", Takes: fwdFeatures, Scores: "decode_neonbf16", Requires: onNEONBF16, DTypes: bf16Only, MaxDim: widest, MaxRows: decodeRows,
		About: "NEON: split-KV for few query rows, bf16 multiplied as it lies by BFMLALB and BFMLALT, weights rounded to bf16; bound by memory bandwidth"},
	{Name: "simd/bwd_neon", Pass: flashkit.PassBackward, Takes: bwdFeatures, Scores: evenOdd, Requires: onNEON, DTypes: allTypes, MaxDim: widest,
		About: "NEON: five products, P recomputed from LSE, key blocks add to dQ in order; bound by multiply-adds"},
	{Name: "simd/bwd_decode_neon", Pass: flashkit.PassBackward, Takes: flashkit.FeatureShift | flashkit.FeatureRagged, Scores: "decode_neon", Requires: onNEON, DTypes: allTypes, MaxDim: widest, MaxRows: decodeRows,
		About: "NEON: few query rows, head dim in the lanes, each key visited once, no gradient shared between items; bound by short products"},
	{Name: "simd/fwd_generic", Takes: fwdFeatures | flashkit.FeatureMixed | flashkit.FeatureInt8 | flashkit.FeatureKeyMass, Scores: "fours", DTypes: allTypes,
		About: "Go: online softmax over key tiles, one row at a time; bound by scalar arithmetic"},
	{Name: "simd/bwd_generic", Pass: flashkit.PassBackward, Takes: bwdFeatures, Scores: "fours", DTypes: allTypes,
		About: "Go: seven products, P recomputed from LSE, no gradient shared between goroutines; bound by scalar arithmetic"},
}
