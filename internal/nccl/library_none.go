//go:build !(linux && (amd64 || arm64)) || nocuda

package nccl

import "fmt"

func load(string) (Library, error) {
	return nil, fmt.Errorf("%w: this build can load none", ErrMissing)
}
