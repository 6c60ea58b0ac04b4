// Package mpi is a transport of package ring over MPI, for host tensors on many machines.
//
// The package loads a library with the standard ABI of MPI 5 at run time: $FLASHKIT_MPI, else
// libmpi_abi.so.1, as in MPICH 5. PyPI's package mpich provides that library, with mpiexec. Other
// ABIs, such as Open MPI 5's, are refused.
//
// MPI is fail-stop. When a rank dies, mpiexec reports the death and ends the other ranks; no rank
// gets an error from which it could recover. When a call returns an error, the program must exit
// with a nonzero status, which also ends the other ranks. The context's deadline detects a rank
// that hangs.
package mpi

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/ring"
)

// ErrNoMPI is wrapped by Open's error if there is no library. It wraps flashkit.ErrUnavailable.
var ErrNoMPI = fmt.Errorf("ring/mpi: no MPI library with the standard ABI: set FLASHKIT_MPI to a libmpi_abi.so.1, as the package mpich of PyPI has it, or start the program with its mpiexec and LD_LIBRARY_PATH: %w", flashkit.ErrUnavailable)

// opened is true once MPI has been initialized. A process can initialize MPI only once.
var opened atomic.Bool

// A Group is this process in MPI_COMM_WORLD. One goroutine at a time may use it; only Fail may be
// called concurrently.
type Group struct {
	ctx        context.Context
	lib        *library
	rank, size int
	leave      chan struct{} // closed so that the MPI thread finalizes MPI
	left       chan error

	current *exchange // under way
	kept    []*exchange
	mu      sync.Mutex
	broken  error
	closed  bool
}

var _ ring.Group = (*Group)(nil)

// grace is the time for which a rank with an MPI error waits for mpiexec to end this rank, before
// the rank returns the error.
const grace = 500 * time.Millisecond

// Open initializes MPI, once per process. ctx limits only the time for which Close waits for other
// ranks. It is an error if a launcher started several processes but MPI has one rank: the program
// was then started by the mpiexec of another MPI, or by another launcher.
func Open(ctx context.Context) (*Group, error) {
	if ctx == nil {
		return nil, &flashkit.ProblemError{Field: "ctx", Value: "nil", Reason: "must not be nil"}
	}
	launch, err := ring.Launched(os.Getenv)
	if err != nil {
		return nil, err
	}
	lib, err := load(os.Getenv("FLASHKIT_MPI"))
	if err != nil {
		return nil, err
	}
	if opened.Swap(true) {
		return nil, errors.New("ring/mpi: MPI was begun before, which a process can do once")
	}
	g := &Group{ctx: ctx, lib: lib, leave: make(chan struct{}), left: make(chan error, 1)}
	begun := make(chan error)
	go g.thread(begun)
	if err := <-begun; err != nil {
		return nil, err
	}
	if g.size == 1 && launch.Size > 1 {
		return nil, errors.Join(fmt.Errorf("ring/mpi: %s started %d processes, but MPI has 1 rank: start the program with the mpiexec of %s", launch.Launcher, launch.Size, lib.name), g.Close())
	}
	return g, nil
}

// Rank returns this process's rank in MPI_COMM_WORLD.
func (g *Group) Rank() int { return g.rank }

// Size returns the number of ranks in MPI_COMM_WORLD.
func (g *Group) Size() int { return g.size }

// Library returns the name of the loaded library.
func (g *Group) Library() string { return g.lib.name }

// Gather sends the bytes `mine` to all ranks, and fills `all` with the bytes of every rank, in rank
// order. The length of `mine` is the same on every rank.
func (g *Group) Gather(ctx context.Context, mine, all []byte) error {
	if len(all) != len(mine)*g.size {
		return fmt.Errorf("ring/mpi: all has %d bytes; must be %d for %d ranks", len(all), len(mine)*g.size, g.size)
	}
	if err := g.usable(); err != nil {
		return err
	}
	x := g.lib.newExchange()
	if err := x.gather(mine, all); err != nil {
		return g.release(x, err)
	}
	return g.finish(ctx, x)
}

// Start begins an exchange of host tensors, which a goroutine advances until the exchange is done.
// It is an error if an exchange is under way.
func (g *Group) Start(ctx context.Context, send, receive []ring.Message) error {
	if err := g.usable(); err != nil {
		return err
	}
	if g.current != nil {
		return errors.New("ring/mpi: an exchange is under way")
	}
	x := g.lib.newExchange()
	for _, list := range [...]struct {
		messages []ring.Message
		send     bool
	}{{receive, false}, {send, true}} {
		for _, m := range list.messages {
			if m.Peer < 0 || m.Peer >= g.size {
				return fmt.Errorf("ring/mpi: rank %d: must be from 0 to %d", m.Peer, g.size-1)
			}
			for _, t := range m.Tensors {
				if t.Owner() != nil {
					return fmt.Errorf("ring/mpi: a tensor on %s: must lie on the host", t.Owner().Device())
				}
				if err := x.add(list.send, m.Peer, t); err != nil {
					return g.release(x, err)
				}
			}
		}
	}
	g.current = x
	go x.watch()
	return ctx.Err()
}

// Wait returns when the current exchange is done, or at once if there is none. In a broken group
// MPI may access the tensors until the program ends.
func (g *Group) Wait(ctx context.Context) error {
	x := g.current
	if g.current = nil; x == nil {
		return nil
	}
	if err := g.usable(); err != nil {
		x.stop.Store(true)
		<-x.done
		return g.release(x, err)
	}
	x.urgent.Store(true)
	select {
	case err := <-x.done:
		if err != nil { // another rank may have died, which mpiexec should report first
			select {
			case <-time.After(grace):
			case <-ctx.Done():
			}
		}
		return g.release(x, err)
	case <-ctx.Done():
		x.stop.Store(true)
		<-x.done
		return g.release(x, ctx.Err())
	}
}

// finish makes x the current exchange, and waits until it is done.
func (g *Group) finish(ctx context.Context, x *exchange) error {
	g.current = x
	go x.watch()
	return g.Wait(ctx)
}

// release frees an exchange that completed without an error. It keeps a failed exchange forever,
// because MPI may still write to the exchange's memory.
func (g *Group) release(x *exchange, err error) error {
	if err != nil {
		g.kept = append(g.kept, x)
		g.Fail(err)
		return err
	}
	x.free()
	return nil
}

func (g *Group) usable() error {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		return errors.New("ring/mpi: the group is closed")
	}
	return g.broken
}

// Fail breaks the group for this rank. MPI cannot notify the other ranks: the program must end.
func (g *Group) Fail(err error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.broken == nil {
		g.broken = fmt.Errorf("ring/mpi: the group is broken: %w", err)
	}
}

// Close finalizes MPI. Unless the group is broken, Close waits for all ranks, at most until Open's
// context is done. It also runs the exit handlers of C libraries, as MPICH requires. Call it last:
// no C library may be used afterwards.
func (g *Group) Close() error {
	g.mu.Lock()
	closed, broken := g.closed, g.broken
	g.closed = true
	g.mu.Unlock()
	if closed {
		return errors.New("ring/mpi: the group is closed already")
	}
	if broken != nil {
		return broken // waiting for other ranks would hang
	}
	close(g.leave)
	select {
	case err := <-g.left:
		return err
	case <-g.ctx.Done():
		return fmt.Errorf("ring/mpi: rank %d waits for others to end: %w", g.rank, g.ctx.Err())
	}
}
