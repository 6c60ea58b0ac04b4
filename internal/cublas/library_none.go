//go:build !(linux && (amd64 || arm64)) || nocuda

package cublas

import "fmt"

// Open returns an error: this build can load no library.
func Open(string) (Library, error) {
	return nil, fmt.Errorf("%w: this build can load none", ErrMissing)
}
