//go:build !linux

package conformance

import "errors"

// sparse returns so many bytes of zeros, of which memory holds what is written alone.
func sparse(uint64) (memory []byte, free func(), err error) {
	return nil, nil, errors.New("sparse mappings are for Linux")
}
