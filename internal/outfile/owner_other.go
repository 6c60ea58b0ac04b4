//go:build !unix

package outfile

import (
	"io/fs"
	"os"
)

// keepOwner does nothing on systems without file groups.
func keepOwner(*os.File, fs.FileInfo) bool { return true }
