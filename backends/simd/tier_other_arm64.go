//go:build arm64 && !windows && !purego

package simd

import "golang.org/x/sys/cpu"

func hasFHM() bool { return cpu.ARM64.HasASIMDFHM }
