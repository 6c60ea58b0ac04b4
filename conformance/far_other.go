//go:build !linux

package conformance

import "errors"

// sparse returns an error: the suite has sparse mappings on Linux only.
func sparse() (memory []byte, free func(), err error) {
	return nil, nil, errors.New("sparse mappings are for Linux")
}
