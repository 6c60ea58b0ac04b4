//go:build !amd64 || purego

package elements

var chosen *isa

func available() map[string]*isa { return nil }
