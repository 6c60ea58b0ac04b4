package flashkit

import (
	"errors"
	"fmt"
)

// ErrUnavailable is wrapped by the error of a backend's constructor when this
// machine lacks the device, the driver or the instructions that the backend
// needs. The reaction is to leave the backend out and to say so.
var ErrUnavailable = errors.New("unavailable on this machine")

// A ProblemError says that nobody could ever do what was asked: a dimension
// makes no sense, or a tensor does not have the shape, type or length that the
// problem requires. The caller is wrong; trying another kernel will not help.
type ProblemError struct {
	Field  string // the field at fault, such as "KVHeads" or "Q.shape"
	Value  string // its value, as printed
	Reason string // what is wrong with it
}

// Error returns the field, its value and the reason in one line.
func (e *ProblemError) Error() string {
	return fmt.Sprintf("flashkit: %s = %s: %s", e.Field, e.Value, e.Reason)
}

func problemErr(field string, value any, format string, args ...any) error {
	return &ProblemError{field, fmt.Sprint(value), fmt.Sprintf(format, args...)}
}

// An UnsupportedError says that one kernel does not take a valid problem.
// Another kernel may. It matches errors.ErrUnsupported.
type UnsupportedError struct {
	Kernel  string // full name, such as "simd/fwd_avx512"
	Problem Problem
	Reason  string // what Fits said
}

// Error returns the kernel, the problem and the reason in one line.
func (e *UnsupportedError) Error() string {
	return fmt.Sprintf("%s: does not support %s: %s", e.Kernel, e.Problem, e.Reason)
}

// Is reports whether target is errors.ErrUnsupported.
func (e *UnsupportedError) Is(target error) bool { return target == errors.ErrUnsupported }
