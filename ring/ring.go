package ring

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A Runner computes the parts of a step on this rank. A dispatcher is a Runner. A Ring's forward
// calls request LSE. A dispatcher therefore assumes that a backward pass follows. For inference,
// use the dispatcher's Unpaired copy, which is faster for few query rows.
type Runner interface {
	// Forward computes the forward pass of p, with the errors of a dispatcher.
	Forward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error

	// Backward computes the backward pass of p, with the errors of a dispatcher.
	Backward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error
}

// A Chooser is a Runner that names its kernel in advance, as an ordered Ring requires. A dispatcher
// is a Chooser. If a Chooser has a method PickWithLSE, a Ring calls PickWithLSE in place of Pick
// for a forward pass with LSE.
type Chooser interface {
	Runner

	// Pick returns the kernel for a pass of p.
	Pick(p flashkit.Problem, pass flashkit.Pass) (flashkit.Kernel, error)

	// Kernels returns all kernels. Every rank runs the kernel with the name that rank 0 picked.
	Kernels() []flashkit.Kernel
}

// Options configure a Ring. The zero value is a plain ring.
type Options struct {
	// Ordered makes the Ring gather K and V first, and in the backward pass all other inputs too.
	// The Ring then calls the kernel that rank 0 picks for the whole problem, so results have the
	// same bits as on a single device. The backward pass computes every product twice. The Runner
	// must be a Chooser, and the tensors must be shards of an ordered Cut.
	Ordered bool

	// Progress, unless nil, is called after each step, and once a second while the rank waits for
	// other ranks. Calls during a wait come from another goroutine. No two calls are concurrent. A
	// plain Ring does not call Progress if one kernel call is the rank's whole work.
	Progress func(Progress)
}

// Progress reports how far a call has come.
type Progress struct {
	Step, Steps int           // completed and total steps
	From        int           // the rank whose keys come next, -1 for none or any
	Waiting     time.Duration // time for which the call has waited for these keys; 0 when a step is done
}

// Stats describe a Ring's last call on this rank.
type Stats struct {
	Steps    int           // steps with work
	Sent     int64         // bytes to other ranks
	Received int64         // bytes from other ranks
	Compute  time.Duration // time in kernels and in adding their results; 0 on the host if one kernel call is the whole work
	Wait     time.Duration // time of waiting for other ranks after computing: communication that kernels did not hide
	Memory   int64         // bytes of the Ring's buffers
}

// A Ring is one rank's part in the computation. Forward and Backward have the parameters of a
// dispatcher's methods, but the tensors are this rank's shard of the problem's Cut. Bias and Mask
// have the rank's rows and all keys; Slopes and Sink are whole. DSink, and DBias of a bias that
// repeats over rows, are sums over all ranks. Args.Seqs describes the whole problem.
//
// All ranks make the same calls in the same order. Before computing, the ranks compare their
// requests. If one rank's request differs or has a tensor that does not fit, all ranks return an
// error that names the rank with that request. The Ring stays usable, but outputs on a device are
// undefined. Any other error breaks the Ring's group.
//
// Tensors are on the host, or on the group's device if the group is a Device. Dropout drops the
// same elements as in one process: Args.Seed and Args.Origin describe the whole problem and are
// equal on all ranks. Paged keys are refused. A call locks the Ring. The next call reuses the
// Ring's buffers.
type Ring struct {
	group  Group
	runner Runner
	dev    Device // nil for host tensors
	o      Options
	math   arithmetic

	mu     sync.Mutex
	plan   *plan
	slots  [slots]slot
	stats  Stats
	record []byte
	all    []byte
}

// A plan is this rank's work for a problem, kept for the next call.
type plan struct {
	p     flashkit.Problem
	seqs  *flashkit.Sequences
	cut   *Cut
	steps []step

	picked [2]flashkit.Kernel // kernels that rank 0 of an ordered Ring picked, by pass

	pickedWithLSE flashkit.Kernel    // the kernel that rank 0 picked for a forward pass with LSE
	partKernel    [2]flashkit.Kernel // by pass: the picked kernel in the form that computes parts of the problem (Device.PartOf)
}

// New returns this rank's Ring over a group and a Runner. The caller still owns the group and the
// Runner. If g or r is missing or unsuitable, the error is a *flashkit.ProblemError.
func New(g Group, r Runner, o Options) (*Ring, error) {
	switch {
	case g == nil:
		return nil, &flashkit.ProblemError{Field: "Group", Value: "nil", Reason: "is missing"}
	case r == nil:
		return nil, &flashkit.ProblemError{Field: "Runner", Value: "nil", Reason: "is missing"}
	}
	if _, ok := r.(Chooser); o.Ordered && !ok {
		return nil, &flashkit.ProblemError{Field: "Runner", Value: fmt.Sprintf("%T", r), Reason: "must be a Chooser, such as a dispatcher, for an ordered Ring"}
	}
	x := &Ring{group: g, runner: r, o: o}
	if d, ok := g.(Device); ok {
		if r != Runner(d) {
			return nil, &flashkit.ProblemError{Field: "Runner", Value: fmt.Sprintf("%T", r), Reason: "must be the Group, which computes on its device"}
		}
		x.dev, x.math.dev = d, d
	}
	return x, nil
}

// Close releases goroutines and buffers, but neither the group nor the Runner. No call may be in
// progress. Close returns an error of the device, if any.
func (r *Ring) Close() (err error) {
	r.math.pool.Close()
	for i := range r.slots {
		err = errors.Join(err, r.slots[i].free())
	}
	r.plan = nil
	return err
}

// Stats returns the last call's statistics, of this rank alone. Stats waits for a call in progress.
func (r *Ring) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.stats
}

// Forward computes the forward pass of the whole problem p for the rank's rows. All ranks call
// Forward together. args are the rank's shard.
func (r *Ring) Forward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	return r.do(ctx, p, flashkit.PassForward, args)
}

// Backward computes the backward pass of the whole problem p: DQ of the rank's rows, DK and DV of
// the rank's keys. All ranks call Backward together. args are the rank's shard, with the O and LSE
// of Forward.
func (r *Ring) Backward(ctx context.Context, p flashkit.Problem, args *flashkit.Args) error {
	return r.do(ctx, p, flashkit.PassBackward, args)
}

func (r *Ring) do(ctx context.Context, p flashkit.Problem, pass flashkit.Pass, args *flashkit.Args) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	if ctx == nil {
		return &flashkit.ProblemError{Field: "ctx", Value: "nil", Reason: "must not be nil"}
	}
	r.stats = Stats{}
	j := &job{Ring: r, p: p, pass: pass, rank: r.group.Rank(), size: r.group.Size()}
	err := j.prepare(args)
	if err != nil || !j.beginsEarly() {
		if err = j.agree(ctx, err); err != nil {
			return err
		}
		j.met = true
	}
	err = j.run(ctx)
	for i := range r.slots {
		r.stats.Memory += int64(r.slots[i].bytes)
	}
	if err == nil || j.refused != nil {
		return j.refused
	}
	r.group.Fail(err)
	if e := (*RankError)(nil); errors.As(err, &e) {
		return err
	}
	return &RankError{j.rank, err}
}

// beginsEarly reports whether the first step is enqueued before the ranks agree. That saves time on
// a device if other steps follow.
func (j *job) beginsEarly() bool {
	if j.dev == nil || j.o.Ordered || !j.dev.Early() {
		return false
	}
	return j.soleCall() == nil || j.pass == flashkit.PassBackward && j.size > 1
}

// agreeOnce compares requests with the other ranks, once per call. On a device the first step may
// already be enqueued, because the first step needs no data of other ranks.
func (j *job) agreeOnce(ctx context.Context) error {
	if j.met {
		return nil
	}
	j.met = true
	j.refused = j.agree(ctx, nil)
	return j.refused
}

func (j *job) run(ctx context.Context) (err error) {
	j.math.err = nil
	if j.dev != nil {
		if err := j.dev.Begin(!j.met); err != nil {
			return err
		}
		defer func() {
			took, waited, failure := j.dev.End()
			j.stats.Compute, j.stats.Wait = max(0, took-waited), waited
			err = cmp.Or(err, failure)
		}()
	}
	switch {
	case j.o.Ordered:
		err = j.ordered(ctx)
	case j.pass == flashkit.PassForward:
		err = j.forward(ctx)
	default:
		err = j.backward(ctx)
	}
	return cmp.Or(err, j.math.err)
}

// A job is one call on one rank.
type job struct {
	*Ring
	p          flashkit.Problem
	pass       flashkit.Pass
	a          flashkit.Args // the rank's arguments; buffers may have replaced outputs
	rank, size int
	*plan
	kernel flashkit.Kernel // kernel of an ordered Ring

	met     bool  // the ranks have compared their requests
	refused error // the error if the requests differed or one was invalid
	count   int   // kernel calls
	turns   []turn

	biasRepeats, maskRepeats bool // Bias, or Mask, repeats over the rows of all ranks
}

// prepare checks the rank's arguments and plans the call.
func (j *job) prepare(args *flashkit.Args) error {
	if args == nil {
		return &flashkit.ProblemError{Field: "Args", Value: "nil", Reason: "the arguments are missing"}
	}
	j.a = *args
	if x := j.Ring.plan; x != nil && x.p == j.p && sameSeqs(x.seqs, args.Seqs) {
		j.plan = x
	} else {
		cut, err := NewCut(j.p, args.Seqs, j.size, j.o.Ordered)
		if err != nil {
			return err
		}
		j.plan = &plan{p: j.p, seqs: cloneSeqs(args.Seqs), cut: cut}
		if !j.o.Ordered {
			j.plan.steps = cut.steps(j.rank)
		}
		j.Ring.plan = j.plan
	}
	if reason := j.unsupportedReason(); reason != "" {
		return j.unsupported(reason)
	}
	if err := j.check(); err != nil || !j.o.Ordered || j.rank != 0 {
		return err
	}
	return j.pick()
}

// pick picks the kernel of an ordered Ring on rank 0, once per plan.
func (j *job) pick() (err error) {
	k, d := &j.plan.picked[j.pass], j.runner.(Chooser)
	trains, _ := d.(interface {
		PickWithLSE(p flashkit.Problem) (flashkit.Kernel, error)
	})
	if j.pass == flashkit.PassForward && !j.a.LSE.IsZero() && trains != nil {
		if k = &j.plan.pickedWithLSE; k.Run == nil {
			*k, err = trains.PickWithLSE(j.wholeProblem())
		}
	} else if k.Run == nil {
		*k, err = d.Pick(j.wholeProblem(), j.pass)
	}
	j.kernel = *k
	return err
}

// wholeProblem returns the problem of which an ordered Ring's calls are parts.
func (j *job) wholeProblem() flashkit.Problem {
	p := j.p
	if p.Score.Dropout != 0 && j.size > 1 {
		p.Score.Origin = true
	}
	return p
}

func (j *job) unsupported(reason string) error {
	return &flashkit.UnsupportedError{Kernel: "ring", Problem: j.p, Reason: reason}
}

// unsupportedReason names a feature of a valid call that a Ring does not support, or returns "".
func (j *job) unsupportedReason() string {
	inOrder := j.o.Ordered && j.size > 1 && j.pass == flashkit.PassBackward
	switch {
	case j.a.Q.Owner() != nil && j.dev == nil:
		return "does not support tensors on a device, as on " + j.a.Q.Owner().Device() + ", in a group for tensors on the host"
	case inOrder && j.p.Ragged && (!j.a.DBias.IsZero() || !j.a.DSink.IsZero()):
		return "does not support the gradients of a bias or a sink over sequences in order"
	}
	return ""
}

func sameSeqs(a, b *flashkit.Sequences) bool {
	if a == nil || b == nil {
		return a == b
	}
	same := func(x, y []int32) bool { return (x == nil) == (y == nil) && slices.Equal(x, y) }
	return same(a.QLens, b.QLens) && same(a.KVLens, b.KVLens) && same(a.QStarts, b.QStarts) && same(a.KVStarts, b.KVStarts)
}

func cloneSeqs(s *flashkit.Sequences) *flashkit.Sequences {
	if s == nil {
		return nil
	}
	return &flashkit.Sequences{
		QLens: slices.Clone(s.QLens), KVLens: slices.Clone(s.KVLens), QStarts: slices.Clone(s.QStarts), KVStarts: slices.Clone(s.KVStarts),
	}
}

// Buffer slots of a Ring.
const (
	slotK0, slotV0   = 2 * iota, 2*iota + 1 // keys that a step reads
	slotK1, slotV1                          // keys that arrive
	slotDK0, slotDV0                        // gradients of the step's keys
	slotDK1, slotDV1                        // gradients of the previous step, under way
	slotDK2, slotDV2                        // arriving gradients of the rank's own keys
	slotPK, slotPV                          // DK and DV of one call
	slotO, slotLSE                          // O and LSE of one call, if O is not float32
	slotSumO, slotSumLSE
	slotDQ, slotSumDQ
	slotSumDK, slotSumDV
	slotBias, slotSumBias
	slotSink, slotSumSink
	slotO1, slotLSE1 // O and LSE of every other call
	slotDQ1, _
	slotAllK, slotAllV // an ordered Ring's whole tensors on a device
	slotAllQ, slotAllO
	slotAllLSE, slotAllDO
	slotAllDLSE, slotAllPairs // Bias, and Mask in the slot after it
	slots                     = 2*iota + 1
)

// buffer returns dense uninitialized memory for a tensor, valid until the slot is requested again.
// If the device is out of memory, the field math keeps the error, and the result is the zero
// Tensor.
func (r *Ring) buffer(slot int, t flashkit.DType, s [4]int) flashkit.Tensor {
	if err := r.slots[slot].grow(r.dev, s[0]*s[1]*s[2]*s[3]*t.Size()); err != nil {
		r.math.fail(err)
		return flashkit.Tensor{}
	}
	return r.slots[slot].tensor(t, 0, s)
}
