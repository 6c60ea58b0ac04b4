//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"embed"
	"io"
	"io/fs"

	"github.com/klauspost/compress/zstd"
)

// embedded holds the compiled kernels, which `make cuda` writes. The archive of a source file has a
// cubin for each architecture, the newest first, and PTX for newer architectures.
//
//go:embed images
var embedded embed.FS

// imageFiles are the embedded files; tests replace them.
var imageFiles fs.FS = embedded

// decompress returns a reader of the uncompressed archive.
func decompress(packed io.Reader) (io.ReadCloser, error) {
	r, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	return r.IOReadCloser(), nil
}
