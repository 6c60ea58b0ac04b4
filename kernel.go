package flashkit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A Kernel is one way to compute one pass: a row in a backend's table. Its
// methods may be called from several goroutines at once. The same arguments
// give the same bits from run to run.
type Kernel struct {
	// Name is the backend's name, a slash, and <pass>_<variant>: simd/fwd_avx512.
	Name string

	// About says in one line what the kernel is: instructions, algorithm, and what
	// limits its speed. Requires says which machine it is for, "" for any, whether or
	// not this is one. Both are for people: flashrun list and docs/kernels.md.
	About, Requires string

	// Pass is the pass that the kernel computes.
	Pass Pass

	// Takes is what the kernel takes beyond dense attention in a band. All else is
	// refused before anything below is asked.
	Takes Feature

	// What the kernel takes on such a machine, as far as numbers say it: element
	// types, the largest Dim and VDim, and the most query rows of a KV head,
	// Heads/KVHeads*QLen. 0 is no limit. Fits decides; conformance compares the two.
	DTypes          []DType
	MaxDim, MaxRows int

	// Scores names the order in which the kernel sums Q·K. A backward kernel makes its
	// weights of the LSE that a forward kernel wrote: where both have one name, the
	// rounding of a score is the same in both and cancels. "" says nothing.
	Scores string

	// Code says what executes the kernel's loops. Dispatch runs no kernel of a sandbox where
	// one of vector instructions fits, unless the sandbox is asked for by name.
	Code Code

	// Device says that the kernel takes tensors on its backend's device as well as on
	// the host. A call of tensors on a device is refused for all others.
	Device bool

	// Missing returns what this machine lacks to run the kernel on any problem, "" if
	// nothing. It is nil for kernels that need nothing.
	Missing func() string

	// Refuses returns "" if the kernel takes the call, else why not. It is asked of
	// calls of the kernel's pass and features on machines that lack nothing; nil
	// refuses none of them. The answer depends on the problem, the pass and the
	// traits alone: the call may have no arguments. Ask Fits.
	Refuses func(c *Call) string

	// Cost predicts the time for a call that fits, host tensors in and out
	// included. Package dispatch corrects it by measurements of kernels side by side, a
	// profile or a probe; the times of ordinary calls change nothing.
	Cost func(c *Call) time.Duration

	// Needs returns the memory that a call takes, by formula: an allocator may take
	// more. It is nil where no formula is known.
	Needs func(c *Call) Memory

	// Run computes the call. It is called by the methods below only, with a checked
	// call that fits and outputs that hold an element. Heads is KVHeads where a problem
	// without features, or with a shift alone, has no query rows, as any number of
	// heads without rows could be walked. It returns ctx.Err() soon after ctx is done; the outputs are then
	// undefined.
	Run func(ctx context.Context, c *Call) error
}

// A Code is what executes the loops of a kernel.
type Code uint8

// The codes. Kernels of devices and of plain Go are CodeOther.
const (
	CodeOther   Code = iota
	CodeVector       // vector or matrix instructions of this machine's processor
	CodeSandbox      // a guest, in a sandbox
)

// Memory is what a call takes, in bytes.
type Memory struct {
	Host    float64 // of the host's memory, beside its tensors, with the workers that it would have now
	Tensors float64 // of a device's memory, for its tensors; 0 for kernels that work in the host's memory
	Device  float64 // of a device's memory, beside its tensors
}

// Fits returns "" if the kernel takes the call, else why not. Support, selection
// and explanation are this one answer.
func (k *Kernel) Fits(c *Call) string {
	if k.Run == nil {
		return "the kernel has no Run"
	}
	if k.Missing != nil {
		if reason := k.Missing(); reason != "" {
			return reason
		}
	}
	if c.Pass != k.Pass {
		return "computes the " + k.Pass.String() + " pass only"
	}
	if missing := c.Features() &^ k.Takes; missing != 0 {
		return "does not support " + missing.String()
	}
	if c.Traits.Device && !k.Device {
		return "does not support tensors on a device"
	}
	if k.Refuses == nil {
		return ""
	}
	return k.Refuses(c)
}

// Compute checks p and args and runs the kernel's pass. The error is a
// *ProblemError when nobody could do what was asked, an *UnsupportedError when another
// kernel might, and otherwise a failure that names the kernel and, when the
// context ended the run, wraps ctx.Err().
func (k *Kernel) Compute(ctx context.Context, p Problem, args *Args) error {
	c := calls.Get().(*Call)
	defer c.release()
	if err := c.Set(p, k.Pass, args); err != nil {
		return err
	}
	return k.Do(ctx, c)
}

// calls are those of Compute, so that it allocates none.
var calls = sync.Pool{New: func() any { return new(Call) }}

func (c *Call) release() {
	*c = Call{}
	calls.Put(c)
}

// Do runs a call that Set has checked, with the errors of Compute.
func (k *Kernel) Do(ctx context.Context, c *Call) error {
	if k.Run == nil {
		return k.failed(errors.New("the kernel must have Run"))
	}
	if ctx == nil {
		return problemErr("ctx", "nil", "must not be nil")
	}
	if !c.checked {
		return problemErr("Call", c.Problem, "was not set, or is wrong")
	}
	if reason := k.Fits(c); reason != "" {
		return &UnsupportedError{k.Name, c.Problem, reason}
	}
	if err := ctx.Err(); err != nil || !c.writes() {
		return k.failed(err) // nothing to write: what the other dimensions say must not cost anything
	}
	if c.QLen == 0 && c.Features()&^FeatureShift == 0 {
		c.Heads = c.KVHeads
	}
	return k.failed(k.Run(ctx, c))
}

// writes reports whether an output holds an element.
func (c *Call) writes() bool {
	for i := range arguments {
		if a := &arguments[i]; a.roles[c.Pass&1]&Output != 0 && !a.of(c.Args).empty() {
			return true
		}
	}
	return false
}

func (k *Kernel) failed(err error) error {
	if err != nil {
		return fmt.Errorf("%s: %w", k.Name, err)
	}
	return nil
}

// A Backend runs kernels on one kind of hardware.
type Backend interface {
	// Name returns the part before the slash of every kernel's name.
	Name() string

	// Kernels returns every kernel that the backend has, also those that this
	// machine cannot run: their Fits says why. The slice is the caller's.
	Kernels() []Kernel

	// Close releases what the backend holds. No kernel may be running, and
	// none may be run afterwards.
	Close() error
}
