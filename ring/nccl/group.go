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

// Gather gathers by control.
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

// reason returns why the group is broken, nil if it is not.
func (g *group) reason() error {
	if b, ok := g.control.(ring.Breaker); ok && b.Err() != nil {
		g.fail(b.Err()) // before listen does
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.err
}

// Broken returns a channel that is closed when the group is broken.
func (g *group) Broken() <-chan struct{} { return g.broken }

// Err returns why it is broken.
func (g *group) Err() error { return g.reason() }

// fail breaks the group, once.
func (g *group) fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.err == nil {
		g.err = err
		close(g.broken)
	}
}

// Fail breaks the group and tells the others where control can. What is under way is aborted by
// the goroutine that sees to it.
func (g *group) Fail(err error) {
	g.control.Fail(err) // first, so that others know why this rank's messages end
	if b, ok := g.control.(ring.Breaker); ok && b.Err() != nil {
		err = b.Err() // who failed first
	}
	g.fail(err)
}

// give fails, and aborts the communicator. It returns why the group is broken.
func (g *group) failAbort(err error) error {
	g.Fail(err)
	return errors.Join(g.reason(), g.abort())
}

// abort gives the communicators up, with what the GPU waits for of them.
func (g *group) abort() (err error) {
	for _, c := range g.takeComms() {
		err = errors.Join(err, g.gpu.Within(func() error { return g.lib.Abort(c) }))
	}
	return err
}

// take returns the communicators, which the group has no more, in the order in which they are given up.
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

// farewell is how long Close waits for the other ranks.
const closeTimeout = 10 * time.Second

// Close ends the communicator, for which it waits for the other ranks, or aborts it in a broken group.
func (g *group) Close() error {
	g.mu.Lock()
	closed := g.closed
	g.closed = true
	g.mu.Unlock()
	if closed {
		return nil
	}
	if x := g.current; x != nil { // which nobody waited for
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

// leave ends the communicator: an abort is right for one that is broken, and for one whose other ranks do
// not come.
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

// rejoin ends the communicator that was split off, for which it waits for nobody.
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

// stage returns memory for the message with that number of an exchange, as large as it must be.
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
