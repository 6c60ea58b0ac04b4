//go:build unix

package terminal

import (
	"os"

	"golang.org/x/sys/unix"
)

// columns returns the width of the terminal f, or 0 if f is no terminal.
func columns(f *os.File) int {
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	switch {
	case err != nil:
		return 0
	case size.Col == 0: // unknown
		return usualColumns
	}
	return int(size.Col)
}
