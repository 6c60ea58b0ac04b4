package cuda

import (
	"io/fs"
	"os"
)

// FLASHKIT_IMAGES is a folder with images/, whose files tests take in place of the embedded files.
func init() {
	if dir := os.Getenv("FLASHKIT_IMAGES"); dir != "" {
		imageFiles = overlay{os.DirFS(dir), imageFiles}
	}
}

// An overlay has files, and below them others.
type overlay struct {
	fs.FS
	below fs.FS
}

func (x overlay) Open(name string) (fs.File, error) {
	if f, err := x.FS.Open(name); err == nil {
		return f, nil
	}
	return x.below.Open(name)
}
