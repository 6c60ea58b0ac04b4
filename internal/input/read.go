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
	Stdin     = "-"     // path of the standard input
	mostPiped = 1 << 30 // maximum bytes of a pipe, whose size is unknown
)

// ReadWhole reads a regular file, or a pipe up to a limit. It does not open any other file: a
// device such as /dev/zero has no end.
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

// readStream reads f, whose info is given.
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
	b := bytes.NewBuffer(make([]byte, 0, size+bytes.MinRead)) // ReadFrom needs MinRead free bytes to find the end
	if _, err := b.ReadFrom(io.LimitReader(f, int64(limit)+1)); err != nil {
		return nil, withoutPath(err)
	}
	if b.Len() > limit {
		return nil, fmt.Errorf("it expands to more than %s", terminal.Bytes(float64(limit)))
	}
	return b.Bytes(), nil
}

// withoutPath returns err without the path, because the caller's message has the path.
func withoutPath(err error) error {
	var named *fs.PathError
	if errors.As(err, &named) {
		return named.Err
	}
	return err
}
