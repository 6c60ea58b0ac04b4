// Package outfile writes files. A written file appears complete or not at all. It replaces only a
// file of the same kind. A file of another kind at the written path, or at the target of a link
// there, stays untouched.
package outfile

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
)

// A Kind is a kind of output file.
type Kind struct {
	Name string // with article, for messages: "a profile"

	// Is reports whether a file with this beginning is of the kind. begin has at most 4096 bytes.
	Is func(begin []byte) bool
}

// beginning is the maximum length of the argument of Kind.Is.
const beginning = 4096

// A File is a temporary file in the folder of its final path.
type File struct {
	path string // final path, links resolved
	kind Kind
	temp *os.File
}

// Create prepares to write path. It fails at once if path, or the target of a link at path, is a
// folder, a device or a file of another kind. It also fails if the folder is not writable. An empty
// file is of every kind.
func Create(path string, kind Kind) (*File, error) {
	return create(path, "", kind)
}

// CreateVia is Create with path plus suffix as the temporary file's name. A killed program leaves
// only this temporary file. The next call replaces this file if it is of the kind. Only one program
// at a time may write path.
func CreateVia(path, suffix string, kind Kind) (*File, error) {
	return create(path, suffix, kind)
}

func create(path, suffix string, kind Kind) (*File, error) {
	target, info, err := resolve(path)
	if err == nil && info != nil {
		err = kind.check(target)
	}
	if err != nil {
		return nil, about(path, err)
	}
	mode := fs.FileMode(0o644)
	if info != nil {
		mode = 0o600 // until Commit copies the old file's mode
	}
	next := func() string {
		return filepath.Join(filepath.Dir(target), fmt.Sprintf(".%s.%d", filepath.Base(target), rand.Uint32()))
	}
	if suffix != "" {
		next = func() string { return target + suffix }
		if err := Remove(next(), kind); err != nil {
			return nil, err
		}
	}
	temp, err := unfinished.create(next, mode)
	if err != nil {
		return nil, about(path, err)
	}
	return &File{target, kind, temp}, nil
}

// Path returns the path of the file, with links resolved.
func (f *File) Path() string { return f.path }

// Commit writes the file and renames it to its path. A file that exists at this path must still be
// of the kind. The new file takes the permissions of the existing file, and the owner and group if
// the system permits.
func (f *File) Commit(write func(io.Writer) error) error {
	defer f.Discard()
	w := bufio.NewWriter(f.temp)
	err := write(w)
	if err == nil {
		err = w.Flush()
	}
	if err == nil {
		err = f.keepRights()
	}
	if err == nil {
		err = f.temp.Sync()
	}
	if closed := f.temp.Close(); err == nil {
		err = closed
	}
	if err == nil {
		err = unfinished.rename(f.temp.Name(), f.path)
	}
	if err == nil {
		f.temp = nil
		return nil
	}
	if p := new(fs.PathError); errors.As(err, &p) && p.Path == f.temp.Name() {
		err = p.Err
	}
	return about(f.path, err)
}

// keepRights gives the temporary file the owner and permissions of the file that it replaces. If
// the system does not permit the old group, the new group gets only the permissions of all other
// users.
func (f *File) keepRights() error {
	info, err := os.Lstat(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !info.Mode().IsRegular() {
		err = errNotRegular
	}
	if err == nil {
		err = f.kind.check(f.path)
	}
	if err != nil {
		return err
	}
	mode := info.Mode().Perm()
	if !keepOwner(f.temp, info) {
		const others = 0o7
		mode = mode&^(others<<3) | mode&others<<3
	}
	return f.temp.Chmod(mode)
}

// Discard removes the temporary file, unless the file was committed.
func (f *File) Discard() {
	if f == nil || f.temp == nil {
		return
	}
	f.temp.Close()
	unfinished.remove(f.temp.Name())
	f.temp = nil
}

// Write writes data to a file.
func Write(path string, kind Kind, data []byte) error {
	f, err := Create(path, kind)
	if err != nil {
		return err
	}
	return f.Commit(func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

var errNotRegular = errors.New("not a regular file")

// resolve returns the path with links resolved, and the file's info, which is nil if there is no
// file. Dangling links, folders and devices are errors.
func resolve(path string) (target string, info fs.FileInfo, err error) {
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return path, nil, nil
	}
	target, err = filepath.EvalSymlinks(path)
	if errors.Is(err, fs.ErrNotExist) {
		return "", nil, errors.New("a link to a file that does not exist")
	}
	if err == nil {
		info, err = os.Stat(target)
	}
	if err == nil && !info.Mode().IsRegular() {
		err = errNotRegular
	}
	return target, info, err
}

// check returns an error if a regular file is of another kind.
func (k Kind) check(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	defer f.Close()
	begin, err := io.ReadAll(io.LimitReader(f, beginning))
	if err == nil && len(begin) > 0 && !k.Is(begin) {
		err = fmt.Errorf("exists and is not %s", k.Name)
	}
	return err
}

// Remove removes a file if it exists. The file must be of the kind and must not be a link.
func Remove(path string, kind Kind) error {
	info, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err == nil && !info.Mode().IsRegular() {
		err = errNotRegular
	}
	if err == nil {
		err = kind.check(path)
	}
	if err == nil {
		err = os.Remove(path)
	}
	if err != nil {
		return about(path, err)
	}
	return nil
}

// about returns err with path, the caller's name of the file, in place of other paths in err.
func about(path string, err error) error {
	switch e := err.(type) {
	case *fs.PathError:
		err = e.Err
	case *os.LinkError:
		err = e.Err
	}
	return fmt.Errorf("%s: %w", path, err)
}

// TempFolder makes an empty folder for temporary files. remove deletes the folder and its files.
func TempFolder(name string) (path string, remove func(), err error) {
	if path, err = os.MkdirTemp("", name); err != nil {
		return "", nil, err
	}
	return path, func() { os.RemoveAll(path) }, nil
}
