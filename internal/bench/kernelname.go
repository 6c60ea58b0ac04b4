package bench

import "strings"

// BackendOf returns the backend's part of a kernel's name.
func BackendOf(kernel string) string {
	backend, _, _ := strings.Cut(kernel, "/")
	return backend
}
