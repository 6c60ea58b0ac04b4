//go:build !purego

package simd

var testedISAs = []testedISA{{"avx512", &avx512Lanes, avx512}, {"avx2", &avx2Lanes, avx2}}
