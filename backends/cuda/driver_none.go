//go:build !((linux && (amd64 || arm64)) || (windows && amd64)) || nocuda

package cuda

import "errors"

func openDriver() (*Driver, error) {
	return nil, absentError{errors.New("this program was built without CUDA")}
}
