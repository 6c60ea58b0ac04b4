//go:build !((linux && (amd64 || arm64)) || (windows && amd64)) || nocuda

package cuda

import (
	"io"
	"os"

	"github.com/klauspost/compress/zstd"
)

// Tests of the fake driver read the images of the repository. This file's name sorts before
// images_dir_test.go, whose files take precedence.
func init() {
	imageFiles = os.DirFS(".")
	decompress = func(packed io.Reader) (io.ReadCloser, error) {
		r, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1))
		if err != nil {
			return nil, err
		}
		return r.IOReadCloser(), nil
	}
}
