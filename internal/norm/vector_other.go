//go:build !amd64 || noasm || purego

package norm

var chosen *isa

func available() map[string]*isa { return nil }
