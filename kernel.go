package flashkit

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Forward is the arguments of a forward pass. O is written, and LSE when it is
// not the zero Tensor. Outputs must not share memory with any other tensor.
type Forward struct {
	Q   Tensor // [B, H, N, D]
	K   Tensor // [B, G, M, D]
	V   Tensor // [B, G, M, DV]
	O   Tensor // [B, H, N, DV], written; 0 for a row that sees no key
	LSE Tensor // [B, H, N, 1] float32, natural logarithm, written; -Inf for a row that sees no key. May be the zero Tensor
}

// Backward is the arguments of a backward pass: the gradients of
// sum(O*DO) + sum(LSE*DLSE). O and LSE are what the forward pass wrote.
// DQ, DK and DV are written, never added to. Outputs must not share memory
// with any other tensor.
type Backward struct {
	Q, K, V Tensor // as in Forward
	O       Tensor // [B, H, N, DV]
	LSE     Tensor // [B, H, N, 1] float32
	DO      Tensor // [B, H, N, DV]
	DLSE    Tensor // [B, H, N, 1] float32. May be the zero Tensor, which is a gradient of 0

	DQ Tensor // [B, H, N, D], written
	DK Tensor // [B, G, M, D], written
	DV Tensor // [B, G, M, DV], written
}

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

	// What the kernel takes on such a machine, as far as numbers say it: element
	// types, the largest Dim and VDim, and the most query rows of a KV head,
	// Heads/KVHeads*QLen. 0 is no limit. Fits decides; conformance compares the two.
	DTypes          []DType
	MaxDim, MaxRows int

	// Fits returns "" if the kernel takes the valid problem p, else why not.
	// Support, selection and explanation are this one answer.
	Fits func(p Problem) string

	// Missing returns what this machine lacks to run the kernel on any problem, "" if
	// nothing. Fits says the same then. It is nil for kernels that need nothing.
	Missing func() string

	// Cost predicts the time for a problem that fits, host tensors in and out
	// included. Package dispatch corrects it by what calls on the machine take.
	Cost func(p Problem) time.Duration

	// DeviceMemory returns the bytes of a device's memory that the problem's
	// tensors take there and those that a call needs beside them. It is nil for
	// kernels that work in the host's memory.
	DeviceMemory func(p Problem) (tensors, workspace int64)

	// HostMemory returns the bytes of the host's memory that a call needs beside
	// its tensors, with the workers that it would have now. It is by formula, so
	// it may be less than what an allocator takes. It is nil where no formula is
	// known.
	HostMemory func(p Problem) float64

	// Exactly one of the two is set. It is called by the methods below only,
	// with a problem that fits, arguments that have passed the check, and outputs
	// that hold an element. Heads is KVHeads where there are no query rows, as any
	// number of heads without rows could be walked. It returns ctx.Err() soon after ctx
	// is done; the outputs are then undefined.
	RunForward  func(ctx context.Context, p Problem, f *Forward) error
	RunBackward func(ctx context.Context, p Problem, b *Backward) error
}

// Pass returns the pass that the kernel computes.
func (k Kernel) Pass() Pass {
	if k.RunBackward != nil {
		return PassBackward
	}
	return PassForward
}

// Forward checks p and f and runs the kernel. The error is a *ProblemError
// when nobody could do what was asked, an *UnsupportedError when another
// kernel might, and otherwise a failure that names the kernel and, when the
// context ended the run, wraps ctx.Err().
func (k Kernel) Forward(ctx context.Context, p Problem, f *Forward) error {
	if err := p.CheckForward(f); err != nil {
		return err
	}
	if err := k.ready(ctx, p, PassForward); err != nil || f.O.empty() {
		return err // nothing to write: what the other dimensions say must not cost anything
	}
	return k.failed(k.RunForward(ctx, p, f))
}

// Backward checks p and b and runs the kernel, with the errors of Forward.
func (k Kernel) Backward(ctx context.Context, p Problem, b *Backward) error {
	if err := p.CheckBackward(b); err != nil {
		return err
	}
	if err := k.ready(ctx, p, PassBackward); err != nil || b.DQ.empty() && b.DK.empty() {
		return err
	}
	if p.QLen == 0 {
		p.Heads = p.KVHeads
	}
	return k.failed(k.RunBackward(ctx, p, b))
}

// ready reports whether k can run the pass s of the valid problem p now.
func (k Kernel) ready(ctx context.Context, p Problem, s Pass) error {
	if k.Fits == nil || (k.RunForward == nil) == (k.RunBackward == nil) {
		return k.failed(errors.New("the kernel must have Fits and exactly one of RunForward and RunBackward"))
	}
	if ctx == nil {
		return problemErr("ctx", "nil", "must not be nil")
	}
	if s != k.Pass() {
		return &UnsupportedError{k.Name, p, "computes the " + k.Pass().String() + " pass only"}
	}
	if reason := k.Fits(p); reason != "" {
		return &UnsupportedError{k.Name, p, reason}
	}
	return k.failed(ctx.Err())
}

func (k Kernel) failed(err error) error {
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
