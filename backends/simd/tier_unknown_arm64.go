//go:build arm64 && !linux && !darwin && !windows && !purego

package simd

func hasBF16() bool { return false }
