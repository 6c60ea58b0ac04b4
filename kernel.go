package flashkit

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// A Kernel is one implementation of one pass, an entry of a backend's table. Its methods are
// safe for concurrent use. The same arguments give the same bits in every run.
type Kernel struct {
	// Name is <backend>/<pass>_<variant>, such as simd/fwd_avx512.
	Name string

	// About describes the kernel in one line: instructions, algorithm and bottleneck. Requires
	// names the machines that can run it, "" for any. Both are text for flashrun list and
	// docs/kernels.md.
	About, Requires string

	// Pass is the pass that the kernel computes.
	Pass Pass

	// Takes is the set of features that the kernel supports beyond dense attention in a band.
	// Fits refuses all others without calling Refuses.
	Takes Feature

	// DTypes, MaxDim and MaxRows are limits for tables and documentation: element types, the
	// largest Dim and VDim, and the most query rows per KV head, Heads/KVHeads*QLen. 0 is no
	// limit. Fits is authoritative; conformance checks that both agree.
	DTypes  []DType
	MaxDim  int // the largest Dim and VDim
	MaxRows int // the most query rows per KV head

	// Scores names the summation order of Q·K, "" if unspecified. A backward kernel recomputes
	// weights from the LSE of a forward kernel. If both have the same Scores, the rounding
	// errors of their scores are equal and cancel.
	Scores string

	// Code is the execution environment of the kernel's loops. If a CodeVector kernel fits,
	// package dispatch runs a sandbox kernel only if chosen by name.
	Code Code

	// Device reports whether the kernel accepts tensors on its backend's device as well as on
	// the host. Fits refuses device tensors for all other kernels.
	Device bool

	// Missing returns the device, driver or instructions that this machine lacks for the
	// kernel, "" if none. It is nil for kernels without requirements.
	Missing func() string

	// Refuses returns "" if the kernel supports the call, else the reason. Fits calls it only
	// for the kernel's pass and features, on machines with nothing missing; nil refuses
	// nothing. The answer must depend only on the problem, pass and traits, since a call from
	// Ask has no arguments. Callers use Fits.
	Refuses func(c *Call) string

	// Cost predicts the time of a call that fits, with input and output tensors on the host.
	// Package dispatch corrects it by paired measurements of kernels, from a profile or a
	// probe, never by the times of ordinary calls.
	Cost func(c *Call) time.Duration

	// Needs returns the workspace of a call by formula; an allocator may use more. It is nil
	// if no formula is known.
	Needs func(c *Call) Memory

	// Run computes the call. Only Do may call it, with a checked call that fits and has output
	// elements. An empty problem may claim any number of heads: with QLen 0 and no features
	// but a shift, Do sets Heads to KVHeads. Run returns ctx.Err() soon after ctx is done and
	// leaves the outputs undefined.
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

// Fits returns "" if the kernel supports the call, else the reason. Selection and explanation
// use this answer.
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

// Compute checks p and args and runs the kernel's pass. It returns a *ProblemError for an
// invalid request and an *UnsupportedError if another kernel might serve it. Any other error
// is a failure that names the kernel; it wraps ctx.Err() if the context ended the run.
func (k *Kernel) Compute(ctx context.Context, p Problem, args *Args) error {
	c := calls.Get().(*Call)
	defer c.release()
	if err := c.Set(p, k.Pass, args); err != nil {
		return err
	}
	return k.Do(ctx, c)
}

// calls recycles the calls of Compute, which allocates nothing.
var calls = sync.Pool{New: func() any { return new(Call) }}

func (c *Call) release() {
	*c = Call{}
	calls.Put(c)
}

// Do runs a call that Set has checked. Its errors are as for Compute.
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
		return k.failed(err) // no output elements: return at once, however large the other dimensions
	}
	if c.QLen == 0 && c.Features()&^FeatureShift == 0 {
		c.Heads = c.KVHeads
	}
	return k.failed(k.Run(ctx, c))
}

// writes reports whether an output has an element.
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
	// Name returns the prefix of every kernel's name, before the slash.
	Name() string

	// Kernels returns all kernels of the backend, including kernels that this machine cannot
	// run; their Fits gives the reason. The caller owns the slice.
	Kernels() []Kernel

	// Close releases the backend's resources. No kernel may be running, and none may run
	// afterwards.
	Close() error
}
