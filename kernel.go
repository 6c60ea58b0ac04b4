package flashkit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A Kernel is one implementation of one pass, an entry in a backend's list of kernels. Its
// methods are safe for concurrent use. The same arguments give the same output bits in every
// run.
type Kernel struct {
	// Name is <backend>/<pass>_<variant>, such as simd/fwd_avx512.
	Name string

	// About describes the kernel in one line: instructions, algorithm and bottleneck. Requires
	// names the machines that can run the kernel, "" for any. The command flashrun list and
	// docs/kernels.md show About and Requires.
	About, Requires string

	// Pass is the pass that the kernel computes.
	Pass Pass

	// Takes is the set of features that the kernel supports beyond dense attention in a band. If
	// a call has any other feature, Fits refuses the call without calling Refuses.
	Takes Feature

	// DTypes, MaxDim and MaxRows are the kernel's limits, for tables and documentation. A limit
	// of 0 means no limit. Fits alone decides about a call. Package conformance checks that
	// Fits agrees with the limits.
	DTypes  []DType // element types
	MaxDim  int     // the largest Dim and VDim
	MaxRows int     // the most query rows per KV head, Heads/KVHeads*QLen

	// Scores is a name for the order in which the kernel adds the products of a score Q·K, "" if
	// unspecified. A backward kernel recomputes weights from the LSE of a forward kernel. If the
	// two kernels have the same Scores, the rounding errors of their scores are equal and
	// cancel.
	Scores string

	// Code is the execution environment of the kernel's loops. If a CodeVector kernel fits a
	// call, package dispatch runs a CodeSandbox kernel only if the caller names this kernel or
	// its backend.
	Code Code

	// Device is true if the kernel accepts tensors on its backend's device as well as on the
	// host. If Device is false, Fits refuses calls with device tensors.
	Device bool

	// Missing returns the device, driver or instructions that the kernel needs and this machine
	// lacks, "" if none. A kernel without requirements has a nil Missing.
	Missing func() string

	// Refuses returns "" if the kernel supports the call, else the reason. Fits calls Refuses
	// only if Missing returns "" and the kernel has the call's pass and features. A nil Refuses
	// refuses no call. The answer must depend only on the problem, pass and traits, because a
	// call from Ask has no arguments. Other code calls Fits, not Refuses.
	Refuses func(c *Call) string

	// Cost predicts the time of a call that fits, with all tensors on the host. Package dispatch
	// corrects the prediction by measurements from a profile or a probe. It never uses the times
	// of ordinary calls.
	Cost func(c *Call) time.Duration

	// Needs returns the memory use of a call by formula. An allocator may use more. Needs is
	// nil if no formula is known.
	Needs func(c *Call) Memory

	// Run computes the call. Only Do may call Run, with a checked call that fits and has output
	// elements. Run returns ctx.Err() soon after ctx is done; the outputs are then undefined.
	//
	// If QLen is 0, Heads may be huge, although query heads need no work. If such a problem has
	// no feature other than a shift, Do reduces Heads to KVHeads before it calls Run.
	Run func(ctx context.Context, c *Call) error
}

// A Code is the execution environment of a kernel's loops.
type Code uint8

// The codes. Kernels on devices and in plain Go have CodeOther.
const (
	CodeOther   Code = iota
	CodeVector       // vector or matrix instructions of the CPU
	CodeSandbox      // guest code in a sandbox
)

// Memory is the memory use of a call in bytes.
type Memory struct {
	Host    float64 // host workspace, tensors excluded, for the current number of workers
	Tensors float64 // device memory for the tensors; 0 for kernels that compute in host memory
	Device  float64 // device workspace, tensors excluded
}

// Fits returns "" if the kernel supports the call, else the reason. Package dispatch selects
// kernels and explains refusals with this answer.
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

// Compute checks p and args and runs the kernel's pass. It returns a *ProblemError if the
// request is invalid, and an *UnsupportedError if the kernel does not support a valid request.
// Any other error is a failure of the run and names the kernel. Such an error wraps ctx.Err() if
// the context ended the run.
func (k *Kernel) Compute(ctx context.Context, p Problem, args *Args) error {
	c := calls.Get().(*Call)
	defer c.release()
	if err := c.Set(p, k.Pass, args); err != nil {
		return err
	}
	return k.Do(ctx, c)
}

// calls holds Call values for reuse, so that Compute allocates nothing.
var calls = sync.Pool{New: func() any { return new(Call) }}

func (c *Call) release() {
	*c = Call{}
	calls.Put(c)
}

// Do runs a call that Set has checked. It returns the same kinds of errors as Compute.
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
		return k.failed(err) // a call without output elements returns at once, even if its other dimensions are huge
	}
	if c.QLen == 0 && c.Features()&^FeatureShift == 0 {
		c.Heads = c.KVHeads
	}
	return k.failed(k.Run(ctx, c))
}

// writes reports whether any output of the call has an element.
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
	// Name returns the prefix of every kernel's name: the part before the slash.
	Name() string

	// Kernels returns all kernels of the backend, including kernels that this machine cannot
	// run. For such a kernel, Kernel.Fits returns the reason. The caller owns the slice.
	Kernels() []Kernel

	// Close releases the backend's resources. When Close is called, no kernel may be running.
	// No kernel may run afterwards.
	Close() error
}
