//go:build !unix

package wasm

// probeMemory always succeeds: only MemoryLimit bounds the memory.
func probeMemory(int) error { return nil }
