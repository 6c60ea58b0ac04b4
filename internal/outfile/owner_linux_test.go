package outfile

import (
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

const someone, somegroup = 12345, 23456

// owner returns the owner, the group and the permissions of a file.
func owner(t *testing.T, path string) (uid, gid uint32, mode os.FileMode) {
	info, err := os.Stat(path)
	require.NoError(t, err)
	s := info.Sys().(*syscall.Stat_t)
	return s.Uid, s.Gid, info.Mode().Perm()
}

// A file keeps its owner and group if the system permits.
func TestOwnerStays(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root gives files away")
	}
	path := filepath.Join(t.TempDir(), "x")
	put(t, path, "note 1")
	require.NoError(t, os.Chown(path, someone, somegroup))
	link := path + ".link"
	require.NoError(t, os.Symlink(path, link))
	for _, mode := range []os.FileMode{0o640, 0o464} {
		require.NoError(t, os.Chmod(path, mode))
		require.NoError(t, Write(link, note, []byte("note 2")))
		require.Equal(t, "note 2", content(t, path))
		uid, gid, got := owner(t, path)
		require.Equal(t, []uint32{someone, somegroup, uint32(mode)}, []uint32{uid, gid, uint32(got)})
	}
}

// Otherwise the file is written, and no other group gets the rights of the old one.
func TestOwnerThatCannotStay(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("only root becomes somebody else")
	}
	dir := t.TempDir()
	require.NoError(t, os.Chmod(filepath.Dir(dir), 0o755))
	require.NoError(t, os.Chown(dir, someone, somegroup))
	groups, err := syscall.Getgroups()
	require.NoError(t, err)
	become := func(uid, gid int, groups []int) {
		if uid != 0 {
			require.NoError(t, syscall.Setgroups(groups))
			require.NoError(t, syscall.Setresgid(-1, gid, -1))
		}
		require.NoError(t, syscall.Setresuid(-1, uid, -1))
		if uid == 0 {
			require.NoError(t, syscall.Setresgid(-1, gid, -1))
			require.NoError(t, syscall.Setgroups(groups))
		}
	}
	for i, x := range []struct {
		uid, gid             int // of the old file
		mode                 os.FileMode
		wantGid, wantedRight uint32
	}{
		{0, somegroup, 0o664, somegroup, 0o664}, // a group of the writer's
		{0, 0, 0o664, somegroup, 0o644},
		{someone, 0, 0o666, somegroup, 0o666},
	} {
		path := filepath.Join(dir, string(rune('a'+i)))
		put(t, path, "note 1")
		require.NoError(t, os.Chown(path, x.uid, x.gid))
		require.NoError(t, os.Chmod(path, x.mode))
		become(someone, somegroup, nil)
		err := Write(path, note, []byte("note 2"))
		become(0, 0, groups)
		require.NoError(t, err)
		uid, gid, mode := owner(t, path)
		require.Equal(t, []uint32{someone, x.wantGid, x.wantedRight}, []uint32{uid, gid, uint32(mode)}, "%d", i)
	}
}
