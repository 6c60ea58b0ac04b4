package outfile

import (
	"bytes"
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// note is the kind of files that begin with "note ".
var note = Kind{"a note", func(begin []byte) bool { return bytes.HasPrefix(begin, []byte("note ")) }}

func put(t *testing.T, path, text string) {
	require.NoError(t, os.WriteFile(path, []byte(text), 0o640))
}

func content(t *testing.T, path string) string {
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	return string(text)
}

func alone(t *testing.T, dir string, names ...string) {
	list, err := os.ReadDir(dir)
	require.NoError(t, err)
	var got []string
	for _, f := range list {
		got = append(got, f.Name())
	}
	require.Equal(t, names, got)
}

// A new file, an empty one and one of the kind are written; permissions stay.
func TestWrite(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	require.NoError(t, Write(path, note, []byte("note 1")))
	require.Equal(t, "note 1", content(t, path))
	for _, mode := range []os.FileMode{0o600, 0o444, 0o640} {
		require.NoError(t, os.Chmod(path, mode))
		require.NoError(t, Write(path, note, []byte("note 2")))
		info, err := os.Stat(path)
		require.NoError(t, err)
		if runtime.GOOS != "windows" {
			require.Equal(t, mode, info.Mode().Perm())
		}
	}
	empty := filepath.Join(dir, "y")
	put(t, empty, "")
	require.NoError(t, Write(empty, note, []byte("note 3")))
	require.Equal(t, "note 3", content(t, empty))
	alone(t, dir, "x", "y")
}

// A file of another kind stays untouched, by name or link, even if it appears during the work.
func TestForeignFilesStay(t *testing.T) {
	dir := t.TempDir()
	foreign, link, dangling := filepath.Join(dir, "foreign"), filepath.Join(dir, "link"), filepath.Join(dir, "dangling")
	put(t, foreign, "weights")
	require.NoError(t, os.Symlink(foreign, link))
	require.NoError(t, os.Symlink(filepath.Join(dir, "none"), dangling))
	for path, want := range map[string]string{
		foreign: "exists and is not a note", link: "exists and is not a note", dangling: "a link to a file that does not exist",
		dir: "not a regular file", filepath.Join(dir, "none", "x"): "no such", os.DevNull: "not a regular file", filepath.Join(foreign, "x"): "not a directory",
	} {
		if runtime.GOOS == "windows" {
			want = ""
		}
		err := Write(path, note, []byte("note"))
		require.ErrorContains(t, err, path+": "+want)
	}
	require.Equal(t, "weights", content(t, foreign))
	alone(t, dir, "dangling", "foreign", "link")

	late := filepath.Join(dir, "late")
	f, err := Create(late, note)
	require.NoError(t, err)
	put(t, late, "weights")
	require.ErrorContains(t, f.Commit(func(w io.Writer) error { _, err := w.Write([]byte("note")); return err }), late+": exists and is not a note")
	require.Equal(t, "weights", content(t, late))
	alone(t, dir, "dangling", "foreign", "late", "link")
}

// A link to a file of the kind stays a link.
func TestLinksAreFollowed(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	put(t, target, "note 1")
	require.NoError(t, os.Symlink("target", link))
	f, err := Create(link, note)
	require.NoError(t, err)
	want, err := filepath.EvalSymlinks(target)
	require.NoError(t, err)
	require.Equal(t, want, f.Path())
	f.Discard()
	require.NoError(t, Write(link, note, []byte("note 2")))
	require.Equal(t, "note 2", content(t, target))
	alone(t, dir, "link", "target")
}

// A write error is reported once and leaves nothing behind.
func TestCommitFails(t *testing.T) {
	for name, test := range map[string]struct {
		write func(io.Writer) error
		want  string
	}{
		"the content": {func(io.Writer) error { return errors.New("no luck") }, "no luck"},
		"the disk":    {func(w io.Writer) error { _, err := w.Write(make([]byte, 1<<20)); return err }, "file already closed"},
		"its end":     {func(w io.Writer) error { _, err := w.Write([]byte("x")); return err }, "file already closed"},
	} {
		dir := t.TempDir()
		f, err := Create(filepath.Join(dir, "o"), note)
		require.NoError(t, err)
		if name != "the content" {
			require.NoError(t, f.temp.Close()) // so that writing fails
		}
		require.EqualError(t, f.Commit(test.write), filepath.Join(dir, "o")+": "+test.want)
		alone(t, dir)
		f.Discard() // again, which does nothing
	}
}

// A temporary file of a killed program is replaced, other files are not.
func TestCreateVia(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	write := func() error {
		f, err := CreateVia(path, ".part", note)
		if err != nil {
			return err
		}
		alone(t, dir, "x.part")
		return f.Commit(func(w io.Writer) error { _, err := w.Write([]byte("note 1")); return err })
	}
	for _, left := range []string{"", "note"[:0], "note 0"} {
		put(t, path+".part", left)
		require.NoError(t, write())
		alone(t, dir, "x")
		require.NoError(t, os.Remove(path))
	}
	put(t, path+".part", "weights")
	require.EqualError(t, write(), path+".part: exists and is not a note")
	require.Equal(t, "weights", content(t, path+".part"))
	require.NoError(t, os.Remove(path+".part"))
	require.NoError(t, os.Symlink("elsewhere", path+".part"))
	require.EqualError(t, write(), path+".part: not a regular file")
}

// Concurrent writers of a file leave one of their texts.
func TestConcurrentWriters(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "x")
	var group sync.WaitGroup
	for i := range 8 {
		group.Go(func() {
			for range 8 {
				if err := Write(path, note, []byte("note "+strings.Repeat(string(rune('a'+i)), 9000))); err != nil {
					t.Error(err)
				}
			}
		})
	}
	group.Wait()
	text := content(t, path)
	require.Len(t, text, 9005)
	require.Equal(t, strings.Repeat(text[5:6], 9000), text[5:])
	alone(t, dir, "x")
}
