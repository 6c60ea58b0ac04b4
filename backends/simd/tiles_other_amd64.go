//go:build !linux && !noasm && !purego

package simd

// allowTiles is for systems of which we do not know how to ask for AMX.
func allowTiles() bool { return false }
