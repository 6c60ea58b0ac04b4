package main

import "strings"

// backendOf returns the backend's part of a kernel's name.
func backendOf(kernel string) string {
	backend, _, _ := strings.Cut(kernel, "/")
	return backend
}
