//go:build arm64 && !linux && !darwin && !windows && !noasm && !purego

package simd

func hasBF16() bool { return false }
