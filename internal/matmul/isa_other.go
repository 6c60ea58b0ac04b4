//go:build !amd64 || noasm || purego

package matmul

func available() []*isa { return []*isa{&portable} }
