//go:build !amd64 || noasm || purego

package elements

var chosen *isa

func available() map[string]*isa { return nil }
