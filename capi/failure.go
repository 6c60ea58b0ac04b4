package main

// #include "abi.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
)

// A failure is an error with a code and a field name of flashkit.h.
type failure struct {
	code  C.int
	field string
	text  string
}

func (f *failure) Error() string { return f.text }

// wrong returns the failure for a field with an invalid value.
func wrong(code C.int, field string, value any, format string, args ...any) error {
	return &failure{code, field, fmt.Sprintf("flashkit: %s = %v: %s", field, value, fmt.Sprintf(format, args...))}
}

// report writes err to e and returns the code of err. If err is nil, report returns FK_OK.
func report(e *C.fk_error, err error) C.int {
	if err == nil {
		return C.FK_OK
	}
	code, field := classify(err)
	return write(e, code, field, message(err))
}

func write(e *C.fk_error, code C.int, field, message string) C.int {
	e.size, e.code, e.reserved = C.sizeof_fk_error, C.int32_t(code), 0
	put(bytesAt(&e.field[0], len(e.field)), field)
	put(bytesAt(&e.message[0], len(e.message)), message)
	return code
}

// put copies s and a zero byte into the slice named to. If s is too long, put cuts s between two
// characters.
func put(to []byte, s string) {
	if len(s) >= len(to) {
		s = strings.ToValidUTF8(s[:len(to)-1], "")
	}
	clear(to[copy(to, s):])
}

// report writes err to e and returns the code of err. If err is about a tensor's head dim, the code
// is FK_ERR_HEAD_DIM.
func (f *frame) report(e *C.fk_error, err error) C.int {
	code, field := classify(err)
	if code == C.FK_ERR_DIMENSION && f.isHeadDim(err) {
		code = C.FK_ERR_HEAD_DIM
	}
	return write(e, code, field, message(err))
}

// isHeadDim reports whether err is about the shape of a tensor whose head dim, the last dimension,
// is wrong.
func (f *frame) isHeadDim(err error) bool {
	var p *flashkit.ProblemError
	if !errors.As(err, &p) {
		return false
	}
	for _, a := range flashkit.Arguments() {
		if p.Field != a.Name+".shape" {
			continue
		}
		has, want := a.Of(&f.args).Shape(), a.Shape(&f.problem)
		switch a.Name {
		case "Q", "K", "V", "O", "DO", "DQ", "DK", "DV":
			return has[3] != want[3]
		}
	}
	return p.Field == "Prefix.K.shape" && f.prefix.K.Shape()[3] != f.problem.Dim || p.Field == "Prefix.V.shape" && f.prefix.V.Shape()[3] != f.problem.VDim
}

// classify returns the code of an error, and the name in flashkit.h of the invalid field.
func classify(err error) (C.int, string) {
	var own *failure
	var problem *flashkit.ProblemError
	var driver *cuda.Error
	switch {
	case errors.As(err, &own):
		return own.code, own.field
	case errors.Is(err, context.Canceled):
		return C.FK_ERR_CANCELED, "cancel"
	case errors.Is(err, context.DeadlineExceeded):
		return C.FK_ERR_TIMEOUT, "timeout_ns"
	case errors.As(err, &problem):
		return problemCode(problem), fieldName(problem.Field)
	case errors.Is(err, flashkit.ErrUnavailable):
		return C.FK_ERR_UNAVAILABLE, "backend"
	case errors.Is(err, errors.ErrUnsupported):
		return C.FK_ERR_UNSUPPORTED, ""
	case errors.As(err, &driver) && driver.Code == outOfMemory:
		return C.FK_ERR_MEMORY, ""
	case driver != nil:
		return C.FK_ERR_DRIVER, ""
	}
	return C.FK_ERR_INTERNAL, ""
}

// outOfMemory is CUDA_ERROR_OUT_OF_MEMORY.
const outOfMemory = 2

func problemCode(e *flashkit.ProblemError) C.int {
	field, of, _ := strings.Cut(strings.TrimPrefix(strings.TrimPrefix(e.Field, "Prefix."), "KVCacheConfig."), ".")
	switch {
	case strings.HasPrefix(e.Reason, "has no backward pass"):
		return C.FK_ERR_UNSUPPORTED
	case e.Value == "none":
		return C.FK_ERR_NULL
	case e.Value == "output" || strings.HasPrefix(of, "strides") && strings.Contains(e.Reason, "overlap"):
		return C.FK_ERR_OVERLAP
	case of == "shape":
		return C.FK_ERR_DIMENSION
	case of == "dtype":
		return C.FK_ERR_DTYPE
	case strings.HasPrefix(of, "strides"):
		return C.FK_ERR_STRIDE
	}
	switch field {
	case "Batch", "Heads", "KVHeads", "QLen", "KVLen", "Capacity", "the scores":
		return C.FK_ERR_DIMENSION
	case "Q", "K", "V", "O":
		if strings.Contains(e.Reason, "overflows") {
			return C.FK_ERR_DIMENSION
		}
	case "Dim", "VDim":
		return C.FK_ERR_HEAD_DIM
	case "DType", "KVDType":
		return C.FK_ERR_DTYPE
	}
	return C.FK_ERR_VALUE
}
