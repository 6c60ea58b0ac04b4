//go:build !linux

package conformance

import "errors"

// sparse returns farBytes bytes of zeros, of which memory holds what is written alone.
func sparse() (memory []byte, free func(), err error) {
	return nil, nil, errors.New("sparse mappings are for Linux")
}
