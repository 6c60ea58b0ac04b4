// Command capi is the library libflashkit: flashkit.h over package dispatch. It is built
// with -buildmode=c-shared or c-archive; `make capi` in the root does it.
package main

// #include "abi.h"
// #cgo CFLAGS: -std=c11 -Wall -Wextra -Werror -pedantic -fvisibility=hidden -D_GNU_SOURCE
import "C"

import (
	"context"
	"fmt"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

func main() {}

// What C programs hold.
var (
	dispatchers table[*dispatch.Dispatcher]
	cancels     table[canceler]
)

type canceler struct {
	ctx    context.Context
	cancel context.CancelFunc
}

// caught turns a panic into an error: none may reach a C program.
func caught(code *C.int, e *C.fk_error) {
	if x := recover(); x != nil {
		*code = report(e, &failure{C.FK_ERR_INTERNAL, "", fmt.Sprint("panic: ", x)})
	}
}

//export abiOpen
func abiOpen(backend *C.char, flags C.uint32_t, out *C.abi_handle, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	d, err := open(backend, flags)
	if err != nil {
		return report(e, err)
	}
	*out = C.abi_handle(dispatchers.add(d))
	return C.FK_OK
}

func open(backend *C.char, flags C.uint32_t) (*dispatch.Dispatcher, error) {
	if flags&^(C.FK_OPEN_FROZEN|C.FK_OPEN_PAIRED|C.FK_OPEN_BLANK) != 0 {
		return nil, &failure{C.FK_ERR_VALUE, "flags", fmt.Sprintf("flags = %#x: has bits that this library does not know", uint32(flags))}
	}
	var d *dispatch.Dispatcher
	if backend == nil {
		var err error
		if d, err = dispatch.Default(context.Background()); err != nil {
			return nil, err
		}
	} else {
		all := dispatch.All(context.Background())
		chosen, err := all.With(C.GoString(backend))
		if err != nil {
			all.Close()
			return nil, err
		}
		d = chosen
	}
	if flags&C.FK_OPEN_BLANK != 0 {
		d = d.Blank()
	}
	if flags&C.FK_OPEN_PAIRED != 0 {
		d = d.Paired()
	}
	if flags&C.FK_OPEN_FROZEN != 0 {
		d = d.Frozen()
	}
	return d, nil
}

//export abiClose
func abiClose(h C.abi_handle, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	d, ok := dispatchers.remove(uintptr(h))
	if !ok {
		return report(e, stale("d", h))
	}
	return report(e, d.Close())
}

func stale(field string, h C.abi_handle) error {
	if h == 0 {
		return &failure{C.FK_ERR_NULL, field, field + " is NULL"}
	}
	return &failure{C.FK_ERR_HANDLE, field, field + " is closed, or was never open"}
}

//export abiProblemOf
func abiProblemOf(a *C.fk_args, p *C.fk_problem, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	f := frames.Get().(*frame)
	defer f.release()
	if err := f.set(a, flashkit.PassForward); err != nil {
		return report(e, err)
	}
	return report(e, f.describe(p))
}

//export abiRun
func abiRun(h C.abi_handle, pass C.int, p *C.fk_problem, a *C.fk_args, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	d := dispatchers.hold(uintptr(h))
	if d == nil {
		return report(e, stale("d", h))
	}
	defer d.release()
	f := frames.Get().(*frame)
	defer f.release()
	if err := f.run(d.value, p, a, flashkit.Pass(pass)); err != nil {
		return f.explain(e, err)
	}
	return C.FK_OK
}

// run runs a pass with the frame's memory.
func (f *frame) run(d *dispatch.Dispatcher, p *C.fk_problem, a *C.fk_args, pass flashkit.Pass) error {
	if err := f.setProblem(p); err != nil {
		return err
	}
	if err := f.set(a, pass); err != nil {
		return err
	}
	if f.problem.Ragged && int64(a.seqs) != int64(p.batch) {
		return &failure{C.FK_ERR_DIMENSION, "seqs", fmt.Sprintf("seqs = %d: must be batch = %d in a ragged problem", a.seqs, p.batch)}
	}
	ctx, end, err := contextOf(a)
	if err != nil {
		return err
	}
	if end != nil {
		defer end()
	}
	if pass == flashkit.PassBackward {
		return d.Backward(ctx, f.problem, &f.args)
	}
	return d.Forward(ctx, f.problem, &f.args)
}

// contextOf returns what ends a call, and what to do after it, if anything.
func contextOf(a *C.fk_args) (ctx context.Context, end func(), err error) {
	ctx = context.Background()
	return ctx, nil, nil
}

// text returns n bytes of a C structure as a slice.
func text(at *C.char, n int) []byte { return unsafe.Slice((*byte)(unsafe.Pointer(at)), n) }
