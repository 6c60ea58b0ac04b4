//go:build !((linux && (amd64 || arm64)) || (windows && amd64)) || nocuda

package cuda

import (
	"embed"
	"errors"
	"io"
	"io/fs"
)

// A program built without CUDA contains neither kernels nor a decompressor. Tests set both
// variables.
var (
	imageFiles fs.FS = embed.FS{}
	decompress       = func(io.Reader) (io.ReadCloser, error) { return nil, errors.New("this program was built without CUDA") }
)
