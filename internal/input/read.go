package input

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"

	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

const (
	Stdin     = "-"     // as a file to read: the standard input
	mostPiped = 1 << 30 // bytes that are read from a pipe: it does not say how many will come
)

// ReadWhole reads a regular file, or a pipe up to a limit. What has no end, or no
// content, is refused before it is opened.
func ReadWhole(path string) ([]byte, error) {
	if path == Stdin {
		info, err := os.Stdin.Stat()
		if err != nil {
			return nil, err
		}
		return readStream(os.Stdin, info)
	}
	info, err := os.Stat(path)
	if err == nil {
		err = readable(info)
	}
	if err != nil {
		return nil, withoutPath(err)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, withoutPath(err)
	}
	defer f.Close()
	if info, err = f.Stat(); err != nil {
		return nil, withoutPath(err)
	}
	return readStream(f, info)
}

func readable(info fs.FileInfo) error {
	switch mode := info.Mode(); {
	case mode.IsDir():
		return errors.New("is a folder")
	case !mode.IsRegular() && mode&fs.ModeNamedPipe == 0:
		return errors.New("must be a regular file or a pipe")
	}
	return nil
}

// readStream reads f, which info describes.
func readStream(f *os.File, info fs.FileInfo) ([]byte, error) {
	if err := readable(info); err != nil {
		return nil, err
	}
	size, limit := 0, mostPiped
	if info.Mode().IsRegular() {
		if err := machine.Affordable("its bytes and its tensors", 2*float64(info.Size())); err != nil {
			return nil, err
		}
		size = int(info.Size())
		limit = max(limit, size)
	}
	b := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead)) // with the room that finding the end takes
	if _, err := b.ReadFrom(io.LimitReader(f, int64(limit)+1)); err != nil {
		return nil, withoutPath(err)
	}
	if b.Len() > limit {
		return nil, fmt.Errorf("it expands to more than %s", terminal.Bytes(float64(limit)))
	}
	return b.Bytes(), nil
}

// withoutPath returns what is wrong with a file that the message names already.
func withoutPath(err error) error {
	var named *fs.PathError
	if errors.As(err, &named) {
		return named.Err
	}
	return err
}
