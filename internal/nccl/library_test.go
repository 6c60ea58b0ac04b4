//go:build linux && (amd64 || arm64) && !nocuda

package nccl

import (
	"cmp"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// build compiles C functions that report their arguments.
func build(t *testing.T, version string) string {
	cc, err := exec.LookPath(cmp.Or(os.Getenv("CC"), "cc"))
	if err != nil {
		t.Skip("needs a C compiler: ", err)
	}
	file := filepath.Join(t.TempDir(), "libnccl.so.2")
	text, err := exec.CommandContext(t.Context(), cc, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-DABI_VERSION="+version, "-o", file, "testdata/abi.c").CombinedOutput()
	require.NoError(t, err, "%s", text)
	return file
}

// Arguments reach C as in nccl.h, in particular 128 bytes by value.
func TestABI(t *testing.T) {
	l, err := Load(t.Context(), build(t, "21800"))
	require.NoError(t, err)
	require.Equal(t, 21800, l.Version())
	id, err := l.UniqueID()
	require.NoError(t, err)
	for i, b := range id {
		require.Equal(t, byte(i+1), b)
	}
	c, err := l.Init(8, id, 5, 3)
	require.NoError(t, err, "what is under way is no error")
	require.NotZero(t, c)
	last := func(err error) string { return err.(*Error).Text }
	told := l.(*library).check("", 1)
	require.Equal(t, "told: ranks 8 rank 5 wrong 0 size 48 magic cafebeef version 21800 blocking 0 cluster 0 ctas -2147483648 to 3 net (nil) share 1", last(told))
	done, err := l.Async(c)
	require.NoError(t, err)
	require.False(t, done)
	done, err = l.Async(c)
	require.NoError(t, err)
	require.True(t, done)

	split, err := l.Split(c, 5, 3)
	require.NoError(t, err, "what is under way is no error")
	require.Equal(t, c, *split)
	require.Equal(t, "told: comm 1 color 0 key 5 size 48 magic cafebeef version 21800 blocking 1 ctas to 3 share 1", last(l.(*library).check("", 1)))

	err = l.Send(0x7f0012345678, 1<<33, 3, c, 0x1234)
	require.Equal(t, &Error{"ncclSend", 6, "told: send 0x7f0012345678 8589934592 bytes of type 1 rank 3 comm 1 stream 0x1234"}, err)
	err = l.Receive(0x10, 7, 0, c, 0)
	require.Equal(t, &Error{"ncclRecv", 6, "told: receive 0x10 7 bytes of type 1 rank 0 comm 1 stream (nil)"}, err)

	require.NoError(t, l.Group(func() error { return nil }))
	fault := errors.New("in a group")
	require.ErrorIs(t, l.Group(func() error { return fault }), fault)
	require.NoError(t, l.Group(func() error { return nil }), "the group before was closed")
	require.NoError(t, l.Finalize(c))
	require.NoError(t, l.Destroy(c))
	require.NoError(t, l.Abort(c))
	require.ErrorContains(t, l.Abort(c+8), "ncclCommAbort: invalid argument")
}

func TestLoadRefuses(t *testing.T) {
	_, err := Load(t.Context(), "/nowhere/libnccl.so.2")
	require.ErrorIs(t, err, ErrMissing)
	_, err = Load(t.Context(), "libc.so.6")
	require.ErrorIs(t, err, ErrMissing)
	_, err = Load(t.Context(), build(t, "21706"))
	require.ErrorIs(t, err, ErrMissing)
	require.ErrorContains(t, err, "NCCL 2.17; must be 2.18 or later")
}

// An error names the library, on whichever thread the goroutine reads the text.
func TestLoadNames(t *testing.T) {
	var done sync.WaitGroup
	for range 64 {
		done.Go(func() {
			for range 200 {
				if _, err := Load(t.Context(), "/nowhere/libnccl.so.2"); err == nil || !strings.Contains(err.Error(), "/nowhere/libnccl.so.2") {
					t.Error(err)
					return
				}
			}
		})
	}
	done.Wait()
}

// TestLibrary calls the real library, if present, without a GPU.
func TestLibrary(t *testing.T) {
	l, err := Load(t.Context(), os.Getenv("FLASHKIT_NCCL"))
	if errors.Is(err, ErrMissing) && os.Getenv("FLASHKIT_NCCL") == "" {
		t.Skip(err)
	}
	require.NoError(t, err)
	t.Logf("%s: NCCL %d", l.Name(), l.Version())
	require.GreaterOrEqual(t, l.Version(), minVersion)
	first, err := l.UniqueID()
	require.NoError(t, err)
	second, err := l.UniqueID()
	require.NoError(t, err)
	require.NotEqual(t, first, second)
	require.NoError(t, l.Group(func() error { return nil }))

	c, err := l.Init(1, first, 0, 4)
	for begin := time.Now(); err == nil; time.Sleep(time.Millisecond) {
		var done bool
		if done, err = l.Async(c); done {
			t.Log("there is a GPU")
			require.NoError(t, l.Abort(c))
			return
		}
		require.Less(t, time.Since(begin), time.Minute)
	}
	t.Log(err)
	var e *Error
	require.ErrorAs(t, err, &e)
	require.NotEmpty(t, e.Text)
	if c != 0 {
		require.NoError(t, l.Abort(c))
	}
	var p *int
	require.Panics(t, func() { *p = 1 }, "Go's own handler of signals is there still")
}
