//go:build !linux || !amd64

package amx

// ask returns false, because no request for AMX is known on this system.
func ask() bool { return false }
