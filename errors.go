package flashkit

import (
	"errors"
	"fmt"
)

// ErrUnavailable is the error that backend constructors wrap if the machine lacks the backend's
// device, driver or instructions. Callers should report it and continue without the backend.
var ErrUnavailable = errors.New("unavailable on this machine")

// A ProblemError reports a request that no kernel could serve. Examples are an invalid
// dimension, or a tensor whose shape, type or length does not match the problem. Another kernel
// cannot help; the caller must correct the request.
type ProblemError struct {
	Field  string // invalid field, such as "KVHeads" or "Q.shape"
	Value  string // value of the field, as text
	Reason string // reason for the refusal
}

// Error returns the field, its value and the reason in one line.
func (e *ProblemError) Error() string {
	return fmt.Sprintf("flashkit: %s = %s: %s", e.Field, e.Value, e.Reason)
}

func problemErr(field string, value any, format string, args ...any) error {
	return &ProblemError{field, fmt.Sprint(value), fmt.Sprintf(format, args...)}
}

// An UnsupportedError reports that one kernel does not support a valid problem. Another kernel
// may support the problem. errors.Is(err, errors.ErrUnsupported) is true for an
// UnsupportedError.
type UnsupportedError struct {
	Kernel  string  // full name, such as "simd/fwd_avx512"
	Problem Problem // the valid problem
	Reason  string  // result of Kernel.Fits
}

// Error returns the kernel, the problem and the reason in one line.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s: does not support %s: %s", e.Kernel, e.Problem, e.Reason)
}

// Is reports whether target is errors.ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }
