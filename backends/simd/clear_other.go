//go:build !amd64 || noasm || purego

package simd

func clearPadding(x []byte) { clear(x) }
