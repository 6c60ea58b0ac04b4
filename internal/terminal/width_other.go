//go:build !unix

package terminal

import "os"

// columns returns the usual width of a terminal, 0 if f is none.
func columns(f *os.File) int {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return 0
	}
	return usualColumns
}
