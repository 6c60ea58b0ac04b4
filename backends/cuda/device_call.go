package cuda

import (
	"cmp"
	"context"
	"errors"
	"strconv"

	"github.com/flashkit-go/flashkit"
)

// Options configure a pass on device tensors. Forward and Backward use the zero value.
type Options struct {
	Kernel           string // such as cuda/fwd_sm80; "" for the one predicted fastest
	Nondeterministic bool   // permits blocks to add to dQ in any order: faster, but the bits of dQ differ from run to run
	Paired           bool   // selects a forward kernel that sums scores in the backward kernel's order; implied by Args.LSE
	Unpaired         bool   // permits any forward kernel although Args.LSE is given, because no backward pass follows; Paired overrules Unpaired

	// Spare is the number of multiprocessors that the kernel leaves free for other work, such as
	// messages that must move at the same time. It must be from 0 to Device.SMs-1. Only persistent
	// kernels obey Spare: their blocks process many tiles and run until the kernel ends. Other
	// kernels free multiprocessors as their blocks end.
	Spare int

	// Beside announces that other work runs on the GPU while the kernel begins or ends. A
	// persistent kernel then gives its next tile to the first block that becomes free. Otherwise
	// each block's tiles are fixed in advance.
	Beside bool

	// PartOf, unless nil, is a larger problem. The call computes a range of the rows, keys or heads
	// of PartOf. The kernel then partitions keys and groups of heads as for the whole problem.
	// Results of every row and key therefore have the same bits as in one call for the whole
	// problem.
	//
	// The range must begin at a multiple of 128 rows or keys, or of 384 if the band has a left
	// limit. It must end at a multiple of the same number, or at the end of the sequence. The
	// call's band must be the whole problem's band, shifted by the position of the range, even if
	// the band hides nothing: the kernel finds the position from this shift. Dim, VDim, DType and
	// the ratio of Heads to KVHeads must be equal in both problems.
	PartOf *flashkit.Problem

	Sequences *DeviceSequences // for a Ragged problem: the arrays of Args.Seqs in device memory; if nil, the call copies Args.Seqs
}

// Forward enqueues a forward pass on device tensors in the stream, and returns without waiting for
// the device. ctx is checked only before work is enqueued. Errors are as for flashkit.Kernel.Do.
// The first call of a kernel loads the kernel; a CUDA graph may capture later calls.
//
// The arrays of Args.Seqs are copied to the device, unless the previous call in the stream had
// equal arrays. If a CUDA graph captures the call, every replay repeats that copy. The backend
// therefore keeps its own host copy of the arrays until Close. If the arrays change between
// replays, use Launch with Options.Sequences.
func (b *Backend) Forward(ctx context.Context, s *Stream, p flashkit.Problem, args *flashkit.Args) error {
	return b.Launch(ctx, s, p, flashkit.PassForward, args, Options{})
}

// Backward enqueues a backward pass on device tensors in the stream, under the same conditions as
// Forward. Backward allocates workspace from the device's pool in stream order. The method
// Workspace returns the number of bytes.
func (b *Backend) Backward(ctx context.Context, s *Stream, p flashkit.Problem, args *flashkit.Args) error {
	return b.Launch(ctx, s, p, flashkit.PassBackward, args, Options{})
}

// Launch enqueues a forward or backward pass on device tensors in the stream, with options. With
// zero Options it does the same as Forward or Backward.
func (b *Backend) Launch(ctx context.Context, s *Stream, p flashkit.Problem, pass flashkit.Pass, args *flashkit.Args, o Options) error {
	switch {
	case ctx == nil:
		return missing("ctx")
	case s == nil:
		return missing("Stream")
	case s.b != b:
		return otherDevice("Stream")
	case args == nil:
		return missing("Args")
	case o.Spare < 0 || o.Spare >= b.dev.SMs:
		return &flashkit.ProblemError{Field: "Options.Spare", Value: strconv.Itoa(o.Spare), Reason: "must be at least 0, and less than the multiprocessors, " + strconv.Itoa(b.dev.SMs)}
	}
	a := b.args.Get().(*arguments)
	defer func() {
		a.call, a.seqArrays, a.kept, a.foreign, a.whole = flashkit.Call{}, [5][]int32{}, nil, nil, nil // do not keep the program's tensors alive
		b.args.Put(a)
	}()
	if err := b.owns(args, pass, &p); err != nil {
		return err
	}
	if err := a.call.Set(p, pass, args); err != nil {
		return err
	}
	if err := cmp.Or(o.checkWhole(&p), ctx.Err()); err != nil {
		return err
	}
	id, err := b.choose(o.Kernel, &a.call, o.Paired || !o.Unpaired && !args.LSE.IsZero())
	if err != nil {
		return err
	}
	a.set(&a.call)
	a.spare, a.beside, a.whole = o.Spare, o.Beside, o.PartOf
	if o.Sequences == nil {
		if err := missesTable(args.Seqs); err != nil {
			return err
		}
	} else {
		if err := a.useSequences(b, o.Sequences, args.Seqs); err != nil {
			return err
		}
	}
	if o.Nondeterministic {
		a.deterministic = 0
	}
	switch {
	case a.seqWords == 0:
	case s.foreign:
		a.foreign = &b.foreign
		a.foreign.mu.Lock()
		defer b.foreign.mu.Unlock()
	default:
		a.kept = &s.seqs
		a.kept.mu.Lock()
		defer s.seqs.mu.Unlock()
	}
	return b.launch(id, p, a, s.handle)
}

// checkWhole returns an error if p cannot be a part of the problem o.PartOf.
func (o *Options) checkWhole(p *flashkit.Problem) error {
	w := o.PartOf
	if w == nil {
		return nil
	}
	if err := w.Validate(); err != nil {
		return err
	}
	if w.Dim != p.Dim || w.VDim != p.VDim || w.DType != p.DType || w.Heads*p.KVHeads != p.Heads*w.KVHeads || hasFeatures(w) != hasFeatures(p) {
		return &flashkit.ProblemError{Field: "Options.PartOf", Value: w.String(), Reason: "must be that of a whole of which the call has some heads, rows and keys"}
	}
	return nil
}

// Pick returns the kernel that is predicted fastest for dense device tensors. Pick never returns
// decode_sm80, which cuts the keys into a number of parts that depends on the number of sequences.
// With every other kernel, the bits of a sequence do not depend on the other sequences of the call.
// Errors are as for Launch.
func (b *Backend) Pick(p flashkit.Problem, pass flashkit.Pass) (flashkit.Kernel, error) {
	if err := errors.Join(p.Validate(), pass.Validate()); err != nil {
		return flashkit.Kernel{}, err
	}
	c := p.Ask(pass)
	c.Traits = flashkit.Traits{Device: true, Loose: looseRows(p)}
	id := b.fastest("", c, true)
	if id < 0 {
		return flashkit.Kernel{}, b.refusals("", c)
	}
	return b.Kernels()[id], nil
}

// runDevice runs a call on device tensors and waits for its end.
func (b *Backend) runDevice(ctx context.Context, id familyID, c *flashkit.Call) error {
	if err := cmp.Or(b.owns(c.Args, c.Pass, &c.Problem), missesTable(c.Args.Seqs)); err != nil {
		return err
	}
	l, err := b.staging.take(ctx)
	if err != nil {
		return err
	}
	defer b.staging.put(l)
	a := b.args.Get().(*arguments)
	defer b.args.Put(a)
	a.set(c)
	return b.do(func() error {
		if err := l.grow(b.drv, 0); err != nil {
			return err
		}
		err := b.enqueue(id, c.Problem, a, l.stream)
		return errors.Join(err, b.drv.StreamSynchronize(l.stream))
	})
}
