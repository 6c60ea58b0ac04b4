// Command capi is the library libflashkit, which implements flashkit.h with package dispatch. `make
// capi` in the root builds it with -buildmode=c-shared and c-archive.
//
// C programs call functions of abi.c, which call the exported Go functions. Each exported function
// returns an FK_ code and writes an error to e.
package main

// #include "abi.h"
// #cgo CFLAGS: -std=c11 -Wall -Wextra -Werror -fvisibility=hidden -D_GNU_SOURCE
// #cgo LDFLAGS: -lpthread
import "C"

import (
	"context"
	"fmt"

	"github.com/flashkit-go/flashkit"
)

func main() {}

// caught turns a panic into an error, because a panic must not unwind into C.
func caught(code *C.int, e *C.fk_error) {
	if x := recover(); x != nil {
		*code = write(e, C.FK_ERR_INTERNAL, "", fmt.Sprint("panic: ", x))
	}
}

//export abiOpen
func abiOpen(backend *C.char, flags C.uint32_t, out *C.abi_handle, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	s, err := open(backend, flags)
	if err != nil {
		return report(e, err)
	}
	*out = C.abi_handle(sessions.add(s))
	return C.FK_OK
}

//export abiClose
func abiClose(h C.abi_handle, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	s, ok := sessions.remove(uintptr(h))
	if !ok {
		return report(e, stale("d", uintptr(h)))
	}
	return report(e, s.close())
}

//export abiProblemOf
func abiProblemOf(a *C.fk_args, p *C.fk_problem, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	f := frames.Get().(*frame)
	defer f.release()
	if err := f.set(a, flashkit.PassForward, nil); err != nil {
		return report(e, err)
	}
	return report(e, f.describe(p))
}

//export abiRun
func abiRun(h C.abi_handle, pass C.int, p *C.fk_problem, prefix *C.fk_prefix, a *C.fk_args, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	s := sessions.hold(uintptr(h))
	if s == nil {
		return report(e, stale("d", uintptr(h)))
	}
	defer s.release()
	f := frames.Get().(*frame)
	defer f.release()
	if err := f.run(s.value, p, prefix, a, flashkit.Pass(pass)); err != nil {
		return f.report(e, err)
	}
	return C.FK_OK
}

// run runs a pass. prefix is nil without a shared prefix.
func (f *frame) run(s *session, p *C.fk_problem, prefix *C.fk_prefix, a *C.fk_args, pass flashkit.Pass) error {
	if err := f.setProblem(p); err != nil {
		return err
	}
	if err := f.set(a, pass, s); err != nil {
		return err
	}
	if f.problem.Ragged && int64(a.seqs) != int64(p.batch) {
		return wrong(C.FK_ERR_DIMENSION, "seqs", a.seqs, "must be batch = %d in a ragged problem", p.batch)
	}
	if prefix != nil {
		if err := f.setPrefix(prefix); err != nil {
			return err
		}
	}
	ctx, held, stop, err := limits(a)
	if err != nil {
		return err
	}
	if held != nil {
		defer held.release()
	}
	if stop != nil {
		defer stop()
	}
	switch {
	case prefix != nil:
		return s.forwardPrefix(ctx, f, word(&a.stream))
	case f.device != nil:
		o := s.options(pass)
		if f.listed {
			o.Sequences = &f.lists
		}
		return f.device.launch(ctx, f.problem, pass, &f.args, o, word(&a.stream))
	case pass == flashkit.PassBackward:
		return s.Backward(ctx, f.problem, &f.args)
	}
	return s.Forward(ctx, f.problem, &f.args)
}

//export abiWorkspace
func abiWorkspace(h C.abi_handle, p *C.fk_problem, pass C.int, out *C.fk_memory, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	return ask(h, p, pass, e, func(s *session, p flashkit.Problem, pass flashkit.Pass) error {
		k, err := s.Pick(p, pass)
		if err != nil || k.Needs == nil {
			return err
		}
		m := k.Needs(p.Ask(pass))
		out.host, out.tensors, out.device = C.double(m.Host), C.double(m.Tensors), C.double(m.Device)
		return nil
	})
}

//export abiExplain
func abiExplain(h C.abi_handle, p *C.fk_problem, pass C.int, buf *C.char, n C.size_t, needed *C.size_t, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	return ask(h, p, pass, e, func(s *session, p flashkit.Problem, pass flashkit.Pass) error {
		text, err := explanation(s, p, pass)
		if err == nil {
			*needed = C.size_t(print(buf, n, text))
		}
		return err
	})
}

//export abiKernels
func abiKernels(h C.abi_handle, buf *C.char, n C.size_t, needed *C.size_t, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	s := sessions.hold(uintptr(h))
	if s == nil {
		return report(e, stale("d", uintptr(h)))
	}
	defer s.release()
	*needed = C.size_t(print(buf, n, listing(s.value)))
	return C.FK_OK
}

// ask converts a problem, calls answer with the converted problem, and reports the error of answer.
// The dispatcher stays open during the call.
func ask(h C.abi_handle, p *C.fk_problem, pass C.int, e *C.fk_error, answer func(*session, flashkit.Problem, flashkit.Pass) error) C.int {
	s := sessions.hold(uintptr(h))
	if s == nil {
		return report(e, stale("d", uintptr(h)))
	}
	defer s.release()
	var f frame
	if err := f.setProblem(p); err != nil {
		return report(e, err)
	}
	if pass != C.FK_PASS_FORWARD && pass != C.FK_PASS_BACKWARD {
		return report(e, wrong(C.FK_ERR_VALUE, "pass", pass, "must be FK_PASS_FORWARD or FK_PASS_BACKWARD"))
	}
	return report(e, answer(s.value, f.problem, flashkit.Pass(pass)))
}

//export abiCancelNew
func abiCancelNew(out *C.abi_handle, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	ctx, now := context.WithCancel(context.Background())
	*out = C.abi_handle(tickets.add(ticket{ctx, now}))
	return C.FK_OK
}

//export abiCancelNow
func abiCancelNow(h C.abi_handle, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	t := tickets.hold(uintptr(h))
	if t == nil {
		return report(e, stale("c", uintptr(h)))
	}
	defer t.release()
	t.value.now()
	return C.FK_OK
}

//export abiCancelFree
func abiCancelFree(h C.abi_handle, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	t, ok := tickets.remove(uintptr(h))
	if !ok {
		return report(e, stale("c", uintptr(h)))
	}
	t.now()
	return C.FK_OK
}

//export abiMerge
func abiMerge(o, lse, o1, lse1, o2, lse2 *C.fk_tensor, e *C.fk_error) (code C.int) {
	defer caught(&code, e)
	m := merging{}
	if err := m.set(o, lse, o1, lse1, o2, lse2); err != nil {
		return report(e, err)
	}
	m.run()
	return C.FK_OK
}
