package nccl

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/internal/nccl"
	"github.com/flashkit-go/flashkit/ring"
)

func (g *group) Rank() int { return g.control.Rank() }
func (g *group) Size() int { return g.control.Size() }

// Gather uses control's Gather.
func (g *group) Gather(ctx context.Context, mine, all []byte) error {
	if err := g.usable(); err != nil {
		return err
	}
	err := g.control.Gather(ctx, mine, all)
	if err != nil {
		g.Fail(err)
	}
	return err
}

func (g *group) usable() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errClosed
	}
	return g.err
}

var errClosed = errors.New("ring/nccl: the group is closed")

// reason returns the reason why the group is broken, or nil if the group is not broken.
func (g *group) reason() error {
	if b, ok := g.control.(ring.Breaker); ok && b.Err() != nil {
		g.fail(b.Err()) // the goroutine of listen may not have run yet
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

func (g *group) Broken() <-chan struct{} { return g.broken }

func (g *group) Err() error { return g.reason() }

func (g *group) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = err
		close(g.broken)
	}
}

// Fail breaks the group, and notifies the other ranks if the control group can do so. The
// exchange's goroutine aborts messages under way.
func (g *group) Fail(err error) {
	g.control.Fail(err) // first, so that other ranks learn why this rank's messages end
	if b, ok := g.control.(ring.Breaker); ok && b.Err() != nil {
		err = b.Err() // the error of the rank that failed first
	}
	g.fail(err)
}

// failAbort breaks the group and aborts the communicators. It returns why the group is broken.
func (g *group) failAbort(err error) error {
	g.Fail(err)
	return errors.Join(g.reason(), g.abort())
}

// abort aborts the communicators. The GPU's waits for other ranks then end.
func (g *group) abort() (err error) {
	for _, c := range g.takeComms() {
		err = errors.Join(err, g.gpu.Within(func() error { return g.lib.Abort(c) }))
	}
	return err
}

// takeComms removes the communicators from the group, and returns them in the order in which they
// must be released.
func (g *group) takeComms() (list []nccl.Comm) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, c := range [...]nccl.Comm{g.comm, g.parent} {
		if c != 0 {
			list = append(list, c)
		}
	}
	g.comm, g.parent = 0, 0
	return list
}

// closeTimeout is the maximum time for which Close waits for the other ranks.
const closeTimeout = 10 * time.Second

// Close ends the communicators. It waits for the other ranks, or aborts the communicators if the
// group is broken.
func (g *group) Close() error {
	g.mu.Lock()
	closed := g.closed
	g.closed = true
	g.mu.Unlock()
	if closed {
		return nil
	}
	if x := g.current; x != nil { // an exchange without a Wait
		g.Fail(errClosed)
		<-x.finished
		g.current = nil
	}
	err := g.leave()
	close(g.closing)
	for _, m := range g.staged {
		err = errors.Join(err, m.Free())
	}
	g.staged = nil
	if w, ok := g.control.(*wire); ok {
		err = errors.Join(err, w.Close())
	}
	return err
}

// leave ends the communicators. It aborts them if the group is broken, or if other ranks do not
// close in time.
func (g *group) leave() error {
	if g.reason() != nil {
		return g.abort()
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := g.closeSplit()
	if err == nil {
		err = g.gpu.Within(func() error { return g.lib.Finalize(g.comm) })
	}
	if err == nil {
		err = g.waitDone(ctx)
	}
	if err != nil && g.reason() != nil { // another rank failed meanwhile
		return g.abort()
	}
	if err != nil {
		return errors.Join(fmt.Errorf("ring/nccl: rank %d leaves alone: %w", g.Rank(), err), g.abort())
	}
	for _, c := range g.takeComms() {
		err = errors.Join(err, g.gpu.Within(func() error { return g.lib.Destroy(c) }))
	}
	return err
}

// closeSplit ends the split communicator, without waiting for other ranks.
func (g *group) closeSplit() error {
	if g.parent == 0 {
		return nil
	}
	g.mu.Lock()
	c := g.comm
	g.comm, g.parent = g.parent, 0
	g.mu.Unlock()
	return g.gpu.Within(func() error { return errors.Join(g.lib.Finalize(c), g.lib.Destroy(c)) })
}

// stage returns staging buffer i of an exchange, which has at least the given number of bytes.
func (g *group) stage(i, bytes int) (*cuda.Buffer, error) {
	for len(g.staged) <= i {
		g.staged = append(g.staged, nil)
	}
	if m := g.staged[i]; m != nil {
		if m.Bytes() >= bytes {
			return m, nil
		}
		g.staged[i] = nil
		if err := m.Free(); err != nil {
			return nil, err
		}
	}
	m, err := g.gpu.Alloc(bytes)
	if err == nil {
		g.staged[i] = m
	}
	return m, err
}
