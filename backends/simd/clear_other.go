//go:build !amd64 || purego

package simd

func clearPadding(x []byte) { clear(x) }
