package cuda

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// openLimit and closeLimit are the longest times that answer waits for a call of the driver.
// openLimit is long, because the driver of a machine with many GPUs starts slowly.
const (
	openLimit  = time.Minute
	closeLimit = 5 * time.Second
)

// ErrSilent is wrapped by errors of Open, OpenContext, OpenDevice, Devices and Close if the driver
// did not answer in time. A C call cannot be canceled, so the goroutine and the thread of the call
// remain in the driver. Until that C call returns, the five functions return ErrSilent at once.
var ErrSilent = errors.New("driver does not answer")

// stuck counts the driver calls that answer no longer waits for and that have not returned yet.
var stuck atomic.Int32

// States of a call of answer.
const (
	waiting int32 = iota
	returned
	abandoned
)

// answer calls f, which calls the driver, and returns f's results. If ctx ends or the limit passes
// before f returns, answer returns an error. If f later returns a result without an error, answer
// passes it to drop.
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
