package cuda

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// Limits of the driver's time. Open is called by name, so it may wait while the driver starts many
// GPUs.
const (
	openLimit  = time.Minute
	closeLimit = 5 * time.Second
)

// ErrSilent is wrapped by errors of Open and its kin if the driver did not answer in time. A C call
// cannot be canceled: its goroutine and thread stay behind. Until it returns, other calls of Open
// and its kin return this error at once.
var ErrSilent = errors.New("driver does not answer")

// stuck counts the goroutines that were left behind in the driver.
var stuck atomic.Int32

// States of a call of answer.
const (
	waiting int32 = iota
	returned
	abandoned
)

// answer returns the results of f, which calls the driver. If the context ends or the limit passes
// first, it returns an error, and a later result of f goes to drop.
func answer[T any](ctx context.Context, limit time.Duration, f func() (T, error), drop func(T)) (x T, err error) {
	if stuck.Load() > 0 {
		return x, ErrSilent
	}
	if err := ctx.Err(); err != nil {
		return x, err
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	type results struct {
		x   T
		err error
	}
	done, state := make(chan results, 1), new(atomic.Int32)
	go func() {
		x, err := f()
		done <- results{x, err}
		if !state.CompareAndSwap(waiting, returned) {
			stuck.Add(-1)
			if err == nil {
				drop(x)
			}
		}
	}()
	select {
	case r := <-done:
		return r.x, r.err
	case <-ctx.Done():
	}
	stuck.Add(1)
	if !state.CompareAndSwap(waiting, abandoned) {
		stuck.Add(-1)
		r := <-done
		return r.x, r.err
	}
	if errors.Is(ctx.Err(), context.DeadlineExceeded) {
		return x, ErrSilent
	}
	return x, ctx.Err()
}
