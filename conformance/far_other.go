//go:build !linux

package conformance

import "errors"

// sparse returns farBytes bytes of zeros, of which memory holds what is written alone.
func sparse() (memory []byte, free func(), err error) {
	return nil, nil, errors.New("sparse mappings are for Linux")
}

// guarded returns pieces of memory of at least so many bytes, each between pages that nobody may touch.
func guarded(_, _ int) (list [][]byte, free func(), err error) {
	return nil, nil, errors.New("pages that nobody may touch are for Linux")
}
