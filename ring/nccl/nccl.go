// Package nccl is a transport of package ring over NCCL, for GPUs of any number of processes and
// machines. Tensors are on the GPUs. A rank is a [peer.Rank], the Group and Runner of a ring.Ring,
// whose messages NCCL moves.
//
// The package loads libnccl.so.2, version 2.18 or later, at run time: $FLASHKIT_NCCL, else the
// loader's choice. PyPI's packages nvidia-nccl-cu13 and nvidia-nccl-cu12 provide that library.
//
// Ranks meet through another group, which also gathers small messages on the host and announces
// faults: ring.Local for goroutines of one process, package mpi for processes. OpenLaunched needs
// no other group.
//
//	control, err := mpi.Open(ctx)
//	rank, err := nccl.Open(ctx, control, gpu, nccl.Options{})
//	r, err := ring.New(rank, rank, ring.Options{})
//
// A communicator starts in nonblocking mode. Every wait ends when its context is done, when control
// announces another rank's fault, or when NCCL returns an error. The communicator is then aborted,
// which ends the GPU's waits for other ranks. The GPU remains usable in a new group.
//
// In nonblocking mode NCCL creates a thread per group of messages. From NCCL 2.28 on, messages
// therefore move in a blocking communicator, which is split off once all ranks have exchanged
// messages. In the blocking communicator, a group of messages is enqueued at once, without waiting
// for other ranks.
package nccl

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/internal/nccl"
	"github.com/flashkit-go/flashkit/ring"
	"github.com/flashkit-go/flashkit/ring/peer"
)

// ErrNoNCCL is wrapped by Open's error if there is no library. It wraps flashkit.ErrUnavailable.
var ErrNoNCCL = fmt.Errorf("ring/nccl: no NCCL: set FLASHKIT_NCCL to a libnccl.so.2 of version 2.18 or later, as the packages nvidia-nccl-cu13 and nvidia-nccl-cu12 of PyPI have it: %w", flashkit.ErrUnavailable)

// Options configure NCCL. All ranks need the same Options, except for Library. The zero value suits
// most programs.
type Options struct {
	// Library is the file to load instead of $FLASHKIT_NCCL.
	Library string

	// Channels is the maximum number of channels that NCCL may use, from 1 to 32, or 0 for 16. Two
	// channels occupy one multiprocessor. Kernels that fill the GPU leave these multiprocessors
	// free while messages are under way or about to begin.
	Channels int
}

func (o *Options) channels() int { return cmp.Or(o.Channels, 16) }

// spare returns the number of multiprocessors that kernels leave free: NCCL's kernel has one block
// per two channels.
func (o *Options) spare() int { return (o.channels() + 1) / 2 }

// A group is one rank's membership in a set of ranks.
type group struct {
	control ring.Group
	rank    *peer.Rank
	gpu     *cuda.Backend
	lib     nccl.Library

	mu      sync.Mutex
	comm    nccl.Comm // 0 once released
	parent  nccl.Comm // the communicator from which comm was split, 0 without a split
	err     error     // why the group is broken; set before broken is closed
	broken  chan struct{}
	closing chan struct{}
	closed  bool

	current *exchange // under way
	staged  []*cuda.Buffer
}

var _ ring.Breaker = (*group)(nil)

// Open creates a communicator of control's ranks, each with one GPU, and returns this rank. All
// ranks call Open together. If one rank fails, all ranks return an error that names the failed rank
// and the cause. Open returns early when ctx is done. NCCL refuses a GPU shared by two ranks.
//
// The GPU and control remain the caller's, and must stay open until the rank is closed. Close the
// GPU before an MPI group, whose end may shut down the CUDA driver.
func Open(ctx context.Context, control ring.Group, gpu *cuda.Backend, o Options) (*peer.Rank, error) {
	if control == nil {
		return nil, &flashkit.ProblemError{Field: "control", Value: "nil", Reason: "is missing"}
	}
	if err := o.check(ctx, gpu); err != nil {
		return nil, err
	}
	g := newGroup(gpu)
	g.control = control
	return peer.Over(gpu, o.spare(), func(r *peer.Rank) (ring.Group, error) {
		id, err := g.exchangeID(ctx, o)
		if err != nil {
			return nil, err
		}
		return g.join(ctx, r, id, o)
	})
}

func (o *Options) check(ctx context.Context, gpu *cuda.Backend) error {
	switch {
	case ctx == nil:
		return &flashkit.ProblemError{Field: "ctx", Value: "nil", Reason: "must not be nil"}
	case gpu == nil:
		return &flashkit.ProblemError{Field: "gpu", Value: "nil", Reason: "is missing"}
	case o.Channels < 0 || o.Channels > 32:
		return &flashkit.ProblemError{Field: "Options.Channels", Value: fmt.Sprint(o.Channels), Reason: "must be from 0 to 32"}
	}
	return nil
}

func newGroup(gpu *cuda.Backend) *group {
	return &group{gpu: gpu, broken: make(chan struct{}), closing: make(chan struct{})}
}

// join creates the communicator, which moves messages in the rank's copy stream.
func (g *group) join(ctx context.Context, r *peer.Rank, id nccl.ID, o Options) (ring.Group, error) {
	g.rank = r
	if b, ok := g.control.(ring.Breaker); ok {
		go g.listen(b)
	}
	err := g.connect(ctx, id, o.channels())
	if err == nil && g.lib.Version() >= splitVersion {
		err = g.split(ctx, o.channels())
	}
	if err != nil {
		close(g.closing)
		return nil, g.failAbort(err)
	}
	return g, nil
}

// Version returns the version of the library that Open would load: 23203 is 2.32.3. The error wraps
// ErrNoNCCL.
func Version(o Options) (int, error) {
	lib, err := load(context.Background(), o)
	if err != nil {
		return 0, err
	}
	return lib.Version(), nil
}

func load(ctx context.Context, o Options) (nccl.Library, error) {
	lib, err := nccl.Load(ctx, cmp.Or(o.Library, os.Getenv("FLASHKIT_NCCL")))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrNoNCCL, err)
	}
	return lib, nil
}

// Layout of a greeting, which ranks exchange before there is a communicator.
const (
	greetID      = 0 // the ID, of rank 0
	greetVersion = greetID + len(nccl.ID{})
	greetWrong   = greetVersion + 8 // length of the error text, 0 without an error
	greetText    = greetWrong + 2
	greetSize    = 512
)

// exchangeID loads the library and returns rank 0's ID. It returns an error if any rank reports an
// error, or if ranks have different versions of NCCL.
func (g *group) exchangeID(ctx context.Context, o Options) (id nccl.ID, err error) {
	mine, all := make([]byte, greetSize), make([]byte, greetSize*g.Size())
	g.lib, err = load(ctx, o)
	if err == nil {
		binary.LittleEndian.PutUint64(mine[greetVersion:], uint64(g.lib.Version()))
		if g.Rank() == 0 {
			id, err = g.lib.UniqueID()
			copy(mine[greetID:], id[:])
		}
	}
	if err != nil {
		n := copy(mine[greetText:], err.Error())
		binary.LittleEndian.PutUint16(mine[greetWrong:], uint16(n))
	}
	if failure := g.control.Gather(ctx, mine, all); err != nil || failure != nil {
		return id, cmp.Or(err, failure)
	}
	of := func(r int) []byte { return all[r*greetSize:][:greetSize] }
	version := func(r int) uint64 { return binary.LittleEndian.Uint64(of(r)[greetVersion:]) }
	for r := range g.Size() {
		if n := binary.LittleEndian.Uint16(of(r)[greetWrong:]); n > 0 {
			return id, &ring.RankError{Rank: r, Err: errors.New(string(of(r)[greetText:][:n]))}
		}
	}
	for r := range g.Size() {
		if version(r) != version(0) {
			return id, &ring.RankError{Rank: r, Err: fmt.Errorf("has NCCL %d, rank 0 has %d: must be the same", version(r), version(0))}
		}
	}
	return nccl.ID(of(0)[greetID:]), nil
}

func (g *group) connect(ctx context.Context, id nccl.ID, channels int) error {
	err := g.gpu.Within(func() (err error) {
		g.comm, err = g.lib.Init(g.Size(), id, g.Rank(), channels)
		return err
	})
	if err == nil {
		err = g.waitDone(ctx)
	}
	return err
}

// splitVersion is the first NCCL version whose communicators are split. Splits of earlier versions
// are not tested on GPUs.
const splitVersion = 22800

// split moves messages to a blocking communicator, which makes no thread per group of messages. In
// a blocking communicator, enqueuing the first messages between two ranks would wait for both
// ranks, even after the context is done. All ranks therefore exchange messages before the split.
func (g *group) split(ctx context.Context, channels int) error {
	hello, err := g.gpu.Alloc(g.Size())
	if err != nil {
		return err
	}
	err = g.exchange(ctx, func(r int) flashkit.Tensor { return hello.Tensor(flashkit.Bool, r, 1, 1, 1, 1) })
	if err = errors.Join(err, hello.Free()); err != nil {
		return err
	}
	var c *nccl.Comm
	err = g.gpu.Within(func() (err error) {
		c, err = g.lib.Split(g.comm, g.Rank(), channels)
		return err
	})
	if err == nil {
		err = g.waitDone(ctx)
	}
	if err == nil {
		g.parent, g.comm = g.comm, *c
	}
	return err
}

// listen breaks the group when control breaks.
func (g *group) listen(b ring.Breaker) {
	select {
	case <-b.Broken():
		g.fail(b.Err())
	case <-g.closing:
	}
}

// waitDone polls NCCL: at first without sleeping, after the time eager with sleeps of nap, and
// after one second with sleeps of longNap.
const (
	eager   = 200 * time.Microsecond
	nap     = 50 * time.Microsecond
	longNap = 2 * time.Millisecond
)

// waitDone waits until NCCL has completed its last operation, the context is done or the group
// breaks.
func (g *group) waitDone(ctx context.Context) error {
	for begin := time.Now(); ; {
		if done, err := g.lib.Async(g.comm); done || err != nil {
			return err
		}
		wait := nap
		switch waited := time.Since(begin); {
		case waited < eager:
			wait = 0
		case waited > time.Second:
			wait = longNap
		}
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return ctx.Err()
		case <-g.broken:
			return g.reason()
		}
	}
}
