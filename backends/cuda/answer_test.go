package cuda

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// A hanging call is left behind; meanwhile no other call waits, and its late result is closed.
func TestAnswer(t *testing.T) {
	broken := errors.New("broken")
	dropped := make(chan int, 1)
	ask := func(ctx context.Context, f func() (int, error)) (int, error) {
		return answer(ctx, time.Minute, f, func(x int) { dropped <- x })
	}
	x, err := ask(t.Context(), func() (int, error) { return 7, nil })
	require.NoError(t, err)
	require.Equal(t, 7, x)
	_, err = ask(t.Context(), func() (int, error) { return 0, broken })
	require.ErrorIs(t, err, broken)

	ended, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = ask(ended, func() (int, error) { panic("called") })
	require.ErrorIs(t, err, context.Canceled)

	late, cancel := context.WithCancel(t.Context())
	release := make(chan struct{})
	_, err = ask(late, func() (int, error) { cancel(); <-release; return 8, nil })
	require.ErrorIs(t, err, context.Canceled)
	_, err = ask(t.Context(), func() (int, error) { panic("called") })
	require.ErrorIs(t, err, ErrSilent)
	close(release)
	require.Equal(t, 8, <-dropped)
	x, err = ask(t.Context(), func() (int, error) { return 9, nil })
	require.NoError(t, err)
	require.Equal(t, 9, x)

	release = make(chan struct{})
	_, err = answer(t.Context(), time.Millisecond, func() (int, error) { <-release; return 0, broken }, func(int) { panic("dropped an error") })
	require.ErrorIs(t, err, ErrSilent)
	close(release)
	require.Eventually(t, func() bool { return stuck.Load() == 0 }, time.Minute, time.Millisecond)
}

// A driver that hangs during Close does not block the program.
func TestCloseDoesNotWait(t *testing.T) {
	f := newFake()
	b, err := OpenWith(&f.Driver, 0)
	require.NoError(t, err)
	release := make(chan struct{})
	f.Driver.DevicePrimaryCtxRelease = func(int) error { <-release; return nil }
	require.ErrorIs(t, b.Close(), ErrSilent)
	require.NoError(t, b.Close(), "twice")
	_, err = Devices()
	require.ErrorIs(t, err, ErrSilent)
	require.ErrorIs(t, err, flashkit.ErrUnavailable)
	require.NotErrorIs(t, err, ErrNoDevice)
	close(release)
	require.Eventually(t, func() bool { return stuck.Load() == 0 }, time.Minute, time.Millisecond)
}
