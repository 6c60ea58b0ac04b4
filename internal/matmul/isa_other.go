//go:build (!amd64 && !arm64) || noasm || purego

package matmul

func available() []*isa { return []*isa{&portable} }
