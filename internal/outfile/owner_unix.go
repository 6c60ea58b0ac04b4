//go:build unix

package outfile

import (
	"io/fs"
	"os"
	"syscall"
)

// keepOwner gives f the owner and group of another file, as far as the system permits. It reports
// whether f has that group.
func keepOwner(f *os.File, info fs.FileInfo) bool {
	old, ok := info.Sys().(*syscall.Stat_t)
	if !ok {
		return false
	}
	uid, gid := int(old.Uid), int(old.Gid)
	if f.Chown(uid, gid) == nil {
		return true
	}
	return f.Chown(-1, gid) == nil
}
