package main

// #include "abi.h"
import "C"

import (
	"context"
	"sync"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
)

// classic returns the dispatcher of the flash_attention_cpu functions. The dispatcher holds no
// resources and is never closed.
var classic = sync.OnceValue(func() *dispatch.Dispatcher { return dispatch.New(simd.New()) })

// floats pools memory for the O and LSE that flash_attention_cpu_backward recomputes.
var floats = sync.Pool{New: func() any { return new([]float32) }}

// setClassic sets the problem and the arguments of f. pointers are the tensors of the pass, in the
// order of the C function's parameters.
func (f *frame) setClassic(p *C.FlashAttentionParams, pass flashkit.Pass, pointers ...*C.float) error {
	b, h, n, d := int(p.batch), int(p.heads), int(p.seq_len), int(p.head_dim)
	f.problem = flashkit.Problem{Batch: b, Heads: h, KVHeads: h, QLen: n, KVLen: n, Dim: d, VDim: d}
	if p.causal != 0 {
		f.problem.Band = flashkit.Causal()
	}
	a := &f.args
	tensors := [...]*flashkit.Tensor{&a.Q, &a.K, &a.V, &a.O}
	list := tensors[:]
	if pass == flashkit.PassBackward {
		gradients := [...]*flashkit.Tensor{&a.Q, &a.K, &a.V, &a.DO, &a.DQ, &a.DK, &a.DV}
		list = gradients[:]
	}
	if err := f.problem.Validate(); err != nil {
		return err
	}
	for i, at := range pointers {
		if reason := addressFault(uintptr(unsafe.Pointer(at)), 4); reason != "" {
			return &failure{C.FK_ERR_STRIDE, "", reason}
		}
		*list[i] = flashkit.F32(unsafe.Slice((*float32)(at), b*h*n*d), b, h, n, d)
	}
	return nil
}

func classicCode(code C.int) C.int {
	switch code {
	case C.FK_OK:
		return C.FLASH_ATTENTION_OK
	case C.FK_ERR_DIMENSION:
		return C.FLASH_ATTENTION_ERR_DIMENSION
	case C.FK_ERR_HEAD_DIM:
		return C.FLASH_ATTENTION_ERR_HEAD_DIM
	case C.FK_ERR_STRIDE:
		return C.FLASH_ATTENTION_ERR_NULL
	case C.FK_ERR_OVERLAP:
		return C.FLASH_ATTENTION_ERR_OVERLAP
	case C.FK_ERR_MEMORY:
		return C.FLASH_ATTENTION_ERR_MEMORY
	}
	return C.FLASH_ATTENTION_ERR_INTERNAL
}

//export abiClassicForward
func abiClassicForward(q, k, v, o *C.float, p *C.FlashAttentionParams) (code C.int) {
	var e C.fk_error
	defer func() { code = classicCode(code) }()
	defer caught(&code, &e)
	f := frames.Get().(*frame)
	defer f.release()
	if err := f.setClassic(p, C.FK_PASS_FORWARD, q, k, v, o); err != nil {
		return report(&e, err)
	}
	return report(&e, classic().Forward(context.Background(), f.problem, &f.args))
}

//export abiClassicBackward
func abiClassicBackward(q, k, v, dout, dq, dk, dv *C.float, p *C.FlashAttentionParams) (code C.int) {
	var e C.fk_error
	defer func() { code = classicCode(code) }()
	defer caught(&code, &e)
	f := frames.Get().(*frame)
	defer f.release()
	if err := f.setClassic(p, C.FK_PASS_BACKWARD, q, k, v, dout, dq, dk, dv); err != nil {
		return report(&e, err)
	}
	x := f.problem
	rows := x.Batch * x.Heads * x.QLen
	again := floats.Get().(*[]float32)
	defer floats.Put(again)
	if n := rows * (x.Dim + 1); cap(*again) < n {
		*again = make([]float32, n)
	}
	lse, o := (*again)[:rows:rows], (*again)[rows:rows*(x.Dim+1)]
	f.args.LSE = flashkit.F32(lse, x.Batch, x.Heads, x.QLen, 1)
	f.args.O = flashkit.F32(o, x.Batch, x.Heads, x.QLen, x.Dim)
	if err := f.problem.Check(flashkit.PassBackward, &f.args); err != nil { // so that an invalid call fails before the forward pass runs
		return report(&e, err)
	}
	d := classic()
	if err := d.Forward(context.Background(), f.problem, &f.args); err != nil {
		return report(&e, err)
	}
	return report(&e, d.Backward(context.Background(), f.problem, &f.args))
}
