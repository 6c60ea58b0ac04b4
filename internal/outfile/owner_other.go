//go:build !unix

package outfile

import (
	"io/fs"
	"os"
)

// keepOwner does nothing, because the system has no file groups.
func keepOwner(*os.File, fs.FileInfo) bool { return true }
