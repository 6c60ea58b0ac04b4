//go:build !linux

package conformance

import "errors"

// sparse fails: sparse mappings need Linux.
func sparse() (memory []byte, free func(), err error) {
	return nil, nil, errors.New("sparse mappings are for Linux")
}
