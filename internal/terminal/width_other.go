//go:build !unix

package terminal

import "os"

// columns returns the usual width if f is a terminal, else 0.
func columns(f *os.File) int {
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return 0
	}
	return usualColumns
}
