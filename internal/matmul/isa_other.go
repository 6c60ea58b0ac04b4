//go:build (!amd64 && !arm64) || purego

package matmul

func available() []*isa { return []*isa{&portable} }
