//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"embed"
	"io"
	"io/fs"

	"github.com/klauspost/compress/zstd"
)

// The compiled kernels, made by make cuda: per source file an archive of one cubin per
// architecture, the newest first, and PTX for newer architectures.
//
//go:embed images
var embedded embed.FS

// imageFiles are the embedded files; tests try others.
var imageFiles fs.FS = embedded

// decompress returns a reader of an archive.
func decompress(packed io.Reader) (io.ReadCloser, error) {
	r, err := zstd.NewReader(packed, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	return r.IOReadCloser(), nil
}
