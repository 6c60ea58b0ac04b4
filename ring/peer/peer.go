// Package peer is a transport of package ring for the GPUs of one process. Tensors are on the GPUs.
// Copy engines move keys and gradients in a separate stream, without occupying multiprocessors.
// Events order the work of this stream and of the kernels' stream.
//
// Each rank is for one goroutine:
//
//	ranks, err := peer.Open(gpus)            // *cuda.Backend each
//	r, err := ring.New(ranks[i], ranks[i], ring.Options{})
//	args, err := ranks[i].Upload(shard)      // or tensors of cuda.Backend.Alloc
//	err = r.Forward(ctx, problem, args.Args) // returns when the GPU is done
package peer

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/ring"
)

// A Rank is one GPU of a group, or a share of a GPU's time. It is the Group and the Runner of a
// ring.Ring. Close releases the Rank's streams, but neither the GPU nor the GPU's buffers.
type Rank struct {
	ring.Group
	gpu            *cuda.Backend
	compute        *cuda.Stream
	copies         *cuda.Stream
	overlapStreams [4]*cuda.Stream // used in rotation, for passes that overlap the end of another pass

	mu       sync.Mutex // guards the lists of events, which Move uses concurrently
	free     []*cuda.Event
	used     []*cuda.Event // recorded since the last Begin
	older    []*cuda.Event // recorded between the second last and the last Begin
	begin    *cuda.Event
	early    bool             // Ready returns begin next: the call's first messages have not begun
	waits    [][2]*cuda.Event // waits for other ranks: start and end
	overlaps bool             // the next pass may overlap the previous one
	passes   int              // number of overlapping passes in the current call
	prior    *cuda.Event      // recorded before the last pass
	since    []*cuda.Event    // marks of messages since the last pass, for which the next pass waits
	external bool             // a transport other than copy engines moves messages
	spare    int              // if external, multiprocessors that moving messages occupies
	moving   bool             // messages are under way
	closed   bool
}

var (
	_ ring.Device = (*Rank)(nil)
	_ ring.Mover  = (*Rank)(nil)
)

// Open returns the ranks of a group: rank i computes on gpus[i]. If several ranks share a GPU,
// their kernels take turns. The GPUs remain the caller's. If two GPUs cannot access each other's
// memory, copies go through the host.
func Open(gpus []*cuda.Backend) (ranks []*Rank, err error) {
	defer func() {
		if err != nil {
			for _, r := range ranks {
				err = errors.Join(err, r.closeStreams())
			}
			ranks = nil
		}
	}()
	movers := make([]ring.Mover, len(gpus))
	for i, gpu := range gpus {
		if gpu == nil {
			return ranks, &flashkit.ProblemError{Field: fmt.Sprintf("gpus[%d]", i), Value: "nil", Reason: "is missing"}
		}
		for _, other := range gpus[:i] {
			if _, err := gpu.Reach(other); err != nil {
				return ranks, err
			}
			if _, err := other.Reach(gpu); err != nil {
				return ranks, err
			}
		}
		r, err := newRank(gpu)
		if err != nil {
			return ranks, err
		}
		movers[i], ranks = r, append(ranks, r)
	}
	groups, err := ring.LocalOver(movers)
	for i, g := range groups {
		ranks[i].Group = g
	}
	return ranks, err
}

// newRank returns a rank without a group. Messages have the highest stream priority, because other
// ranks wait for them. The compute stream, whose kernels add the results of a pass, is next. The
// streams of overlapping passes have the lowest priorities.
func newRank(gpu *cuda.Backend) (r *Rank, err error) {
	r = &Rank{gpu: gpu}
	const first = -5
	for i, s := range r.streams() {
		if *s, err = gpu.NewPriorityStream(first + i); err != nil {
			return nil, errors.Join(err, r.closeStreams())
		}
	}
	return r, nil
}

// Over returns a rank for one GPU. Another transport, such as package nccl, moves the rank's
// messages. join gets the rank and returns the rank's group. Rank.Close closes the group.
// multiprocessors is the number of multiprocessors that messages under way occupy, 0 for none.
// Kernels that fill the GPU leave these multiprocessors free while messages are under way or about
// to begin.
func Over(gpu *cuda.Backend, multiprocessors int, join func(r *Rank) (ring.Group, error)) (*Rank, error) {
	switch {
	case gpu == nil:
		return nil, &flashkit.ProblemError{Field: "gpu", Value: "nil", Reason: "is missing"}
	case join == nil:
		return nil, &flashkit.ProblemError{Field: "join", Value: "nil", Reason: "is missing"}
	}
	r, err := newRank(gpu)
	if err != nil {
		return nil, err
	}
	r.external, r.spare = true, min(max(0, multiprocessors), gpu.Device().SMs-1)
	if r.Group, err = join(r); err != nil {
		return nil, errors.Join(err, r.closeStreams())
	}
	return r, nil
}

// Early returns true: messages need no resources that kernels occupy.
func (r *Rank) Early() bool { return true }

// Close leaves the group and releases the rank's streams once the GPU has finished with them. A
// second call does nothing.
func (r *Rank) Close() error {
	if r.closed {
		return nil
	}
	r.closed = true
	return errors.Join(r.Group.Close(), r.closeStreams())
}

func (r *Rank) closeStreams() (err error) {
	for _, s := range r.streams() {
		if *s != nil {
			err = errors.Join(err, (*s).Sync(), (*s).Close())
		}
	}
	for _, e := range slices.Concat(r.free, r.used, r.older) {
		err = errors.Join(err, e.Close())
	}
	r.free, r.used, r.older, r.waits = nil, nil, nil, nil
	return err
}

// streams returns the rank's stream fields, highest priority first.
func (r *Rank) streams() [6]**cuda.Stream {
	return [...]**cuda.Stream{&r.copies, &r.compute, &r.overlapStreams[0], &r.overlapStreams[1], &r.overlapStreams[2], &r.overlapStreams[3]}
}

// GPU returns the rank's GPU, which the caller opened.
func (r *Rank) GPU() *cuda.Backend { return r.gpu }

// Stream returns the compute stream. Work that a program enqueues there precedes the Ring's next
// call.
func (r *Rank) Stream() *cuda.Stream { return r.compute }

// Copies returns the stream in which messages move.
func (r *Rank) Copies() *cuda.Stream { return r.copies }

// Forward enqueues a forward pass on the GPU.
func (r *Rank) Forward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	return r.launch(ctx, p, flashkit.PassForward, args)
}

// Backward enqueues a backward pass on the GPU.
func (r *Rank) Backward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	return r.launch(ctx, p, flashkit.PassBackward, args)
}

func (r *Rank) launch(ctx context.Context, p flashkit.Problem, pass flashkit.Pass, args *flashkit.Args) error {
	return r.pass(func(s *cuda.Stream, o cuda.Options) error { return r.gpu.Launch(ctx, s, p, pass, args, o) })
}

// Beside lets the next pass begin while the last blocks of the previous pass run and some
// multiprocessors are idle.
func (r *Rank) Beside() { r.overlaps = true }

func (r *Rank) nextStream() *cuda.Stream { return r.overlapStreams[r.passes%len(r.overlapStreams)] }

// pass enqueues a pass. A pass that may overlap the previous pass runs in the next stream of
// overlapStreams.
func (r *Rank) pass(enqueue func(*cuda.Stream, cuda.Options) error) (err error) {
	overlaps, prior := r.overlaps && r.prior != nil, r.prior
	o := cuda.Options{Beside: overlaps}
	if r.external && (r.early || r.moving) {
		o.Spare, o.Beside = r.spare, true
	}
	r.overlaps = false
	if r.prior, err = r.record(r.compute); err != nil {
		return err
	}
	defer func() { r.since = r.since[:0] }()
	if !overlaps {
		return enqueue(r.compute, o)
	}
	s := r.nextStream()
	if r.passes > 0 && s == r.overlapStreams[0] {
		prior = r.prior // when the rotation returns to the first stream, the pass waits for all passes enqueued before
	}
	r.passes++
	for _, e := range append(r.since, prior) {
		if err := s.Wait(e); err != nil {
			return err
		}
	}
	if err := enqueue(s, o); err != nil {
		return err
	}
	done, err := r.record(s)
	if err != nil {
		return err
	}
	return r.compute.Wait(done)
}

// Pick returns the GPU's kernel for p, in the form that PartOf returns.
func (r *Rank) Pick(p flashkit.Problem, pass flashkit.Pass) (flashkit.Kernel, error) {
	k, err := r.gpu.Pick(p, pass)
	return r.enqueued(k, &p), err
}

// PartOf returns a form of the kernel k for calls with p or with parts of p. k is one of the
// results of Kernels. Every row and key has the same bits in a call with a part as in a call with
// all of p.
func (r *Rank) PartOf(k flashkit.Kernel, p flashkit.Problem) flashkit.Kernel {
	return r.enqueued(k, &p)
}

// Kernels returns the GPU's kernels, which enqueue their work in the rank's streams.
func (r *Rank) Kernels() []flashkit.Kernel {
	list := r.gpu.Kernels()
	for i := range list {
		list[i] = r.enqueued(list[i], nil)
	}
	return list
}

func (r *Rank) enqueued(k flashkit.Kernel, whole *flashkit.Problem) flashkit.Kernel {
	name := k.Name
	k.Run = func(ctx context.Context, c *flashkit.Call) error {
		return r.pass(func(s *cuda.Stream, o cuda.Options) error {
			o.Kernel, o.PartOf = name, whole
			return r.gpu.Launch(ctx, s, c.Problem, c.Pass, c.Args, o)
		})
	}
	return k
}

// Holds reports whether a tensor is in memory of the rank's Backend.
func (r *Rank) Holds(t flashkit.Tensor) bool {
	m, ok := t.Owner().(*cuda.Buffer)
	return ok && m.Backend() == r.gpu
}

// Alloc returns memory of the rank's GPU.
func (r *Rank) Alloc(bytes int) (ring.Memory, error) { return r.gpu.Alloc(bytes) }

// Fill enqueues cuda.Stream.Fill in the compute stream.
func (r *Rank) Fill(t flashkit.Tensor, x float32) error { return r.compute.Fill(t, x) }

// Add enqueues cuda.Stream.Add in the compute stream.
func (r *Rank) Add(dst, x, y flashkit.Tensor) error { return r.compute.Add(dst, x, y) }

// Merge enqueues cuda.Stream.Merge in the compute stream.
func (r *Rank) Merge(o, lse, part, partLSE flashkit.Tensor) error {
	return r.compute.Merge(o, lse, part, partLSE)
}

// Copy enqueues cuda.Stream.Copy in the compute stream.
func (r *Rank) Copy(dst, src flashkit.Tensor) error { return r.compute.Copy(dst, src) }

// Get copies a float32 row to the host, after all earlier work.
func (r *Rank) Get(dst []float32, src flashkit.Tensor) error {
	m, from, err := rowOf(src, len(dst))
	if err != nil {
		return err
	}
	return cuda.Download(r.compute, dst, m, from)
}

// Put copies a float32 row to the GPU.
func (r *Rank) Put(dst flashkit.Tensor, src []float32) error {
	m, from, err := rowOf(dst, len(src))
	if err != nil {
		return err
	}
	return cuda.Upload(r.compute, m, from, src)
}

// rowOf returns the buffer of a row and the row's offset there in bytes.
func rowOf(t flashkit.Tensor, n int) (*cuda.Buffer, int, error) {
	m, ok := t.Owner().(*cuda.Buffer)
	if !ok || t.DType() != flashkit.Float32 || t.Shape() != [4]int{1, 1, 1, n} {
		return nil, 0, &flashkit.ProblemError{Field: "row", Value: fmt.Sprint(t.Shape(), t.DType()), Reason: fmt.Sprintf("must be one of %d float32 on the GPU", n)}
	}
	return m, int(t.Address() - uintptr(m.Address())), nil
}

// Begin marks the start of a call. It keeps the events of the previous call, because another rank
// may still have to wait for copies of that call.
func (r *Rank) Begin(early bool) (err error) {
	r.mu.Lock()
	r.free = append(r.free, r.older...)
	r.older, r.used = r.used, r.older[:0]
	r.mu.Unlock()
	r.waits, r.since, r.early, r.moving, r.overlaps, r.prior, r.passes = r.waits[:0], r.since[:0], early, false, false, nil, 0
	r.begin, err = r.record(r.compute)
	return err
}

// End waits for the work since Begin. It returns the time since Begin, and the part of this time in
// which the GPU waited for copies.
func (r *Rank) End() (took, waited time.Duration, err error) {
	r.early, r.moving = false, false // no message was sent, or sending failed
	end, err := r.record(r.compute)
	for _, s := range r.streams() {
		err = errors.Join(err, (*s).Sync())
	}
	if err != nil {
		return 0, 0, err
	}
	took, err = end.Since(r.begin)
	for _, w := range r.waits {
		t, failure := w[1].Since(w[0])
		waited, err = waited+t, cmp.Or(err, failure)
	}
	return took, waited, err
}

// record records an event that stays valid until the second Begin from now.
func (r *Rank) record(s *cuda.Stream) (e *cuda.Event, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if n := len(r.free); n > 0 {
		e, r.free = r.free[n-1], r.free[:n-1]
	} else if e, err = r.gpu.NewEvent(); err != nil {
		return nil, err
	}
	r.used = append(r.used, e)
	return e, s.Record(e)
}
