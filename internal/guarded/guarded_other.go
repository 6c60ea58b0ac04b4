//go:build !linux

package guarded

import "errors"

// Memory returns an error, because package guarded makes inaccessible pages on Linux only.
func Memory(_, _ int) (list [][]byte, free func(), err error) {
	return nil, nil, errors.New("pages without access are for Linux")
}
