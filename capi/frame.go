package main

// #include "abi.h"
import "C"

import (
	"math"
	"sync"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/dispatch"
)

// A frame holds a call's arguments, converted to Go. Frames are pooled, so that calls do not
// allocate.
type frame struct {
	problem flashkit.Problem
	args    flashkit.Args
	seqs    flashkit.Sequences
	prefix  dispatch.Prefix
	device  *device // device of the tensors, nil if they are on the host

	lists  cuda.DeviceSequences // buffers over the sequence arrays in device memory; kept, because the next call often has the same arrays
	listed bool                 // whether lists holds the sequence arrays of this call
}

var frames = sync.Pool{New: func() any { return new(frame) }}

func (f *frame) release() {
	*f = frame{lists: f.lists}
	frames.Put(f)
}

// setProblem converts a C problem. It checks only the fields that it decodes. Package flashkit
// validates the other fields.
func (f *frame) setProblem(p *C.fk_problem) error {
	switch {
	case p.features&^knownFeatures != 0:
		return wrong(C.FK_ERR_VALUE, "features", uint32(p.features), "has bits that this library does not know")
	case p.dtype < 0 || p.dtype > C.FK_BOOL:
		return wrong(C.FK_ERR_DTYPE, "dtype", p.dtype, "must be FK_F32, FK_F16 or FK_BF16")
	case p.kv_dtype < 0 || p.kv_dtype > C.FK_BOOL:
		return wrong(C.FK_ERR_DTYPE, "kv_dtype", p.kv_dtype, "must be FK_F16 or FK_BF16, or 0 for dtype")
	}
	band, err := bandOf(p)
	if err != nil {
		return err
	}
	f.problem = flashkit.Problem{
		Batch: int(p.batch), Heads: int(p.heads), KVHeads: int(p.kv_heads), QLen: int(p.q_len), KVLen: int(p.kv_len),
		Dim: int(p.dim), VDim: int(p.v_dim), DType: flashkit.DType(p.dtype), KVDType: flashkit.DType(p.kv_dtype),
		Band: band,
	}
	setParameters(&f.problem, p)
	return nil
}

func bandOf(p *C.fk_problem) (b flashkit.Band, err error) {
	switch p.band {
	case C.FK_BAND_FULL:
	case C.FK_BAND_CAUSAL:
		b = flashkit.Causal()
	case C.FK_BAND_WINDOW:
		b = flashkit.Window(int(p.left), int(p.right))
	default:
		return b, wrong(C.FK_ERR_VALUE, "band", p.band, "must be FK_BAND_FULL, FK_BAND_CAUSAL or FK_BAND_WINDOW")
	}
	if p.band != C.FK_BAND_WINDOW {
		if p.left != 0 {
			return b, wrong(C.FK_ERR_VALUE, "left", p.left, "must be 0 where band is not FK_BAND_WINDOW")
		}
		if p.right != 0 {
			return b, wrong(C.FK_ERR_VALUE, "right", p.right, "must be 0 where band is not FK_BAND_WINDOW")
		}
	}
	switch p.top_left {
	case 0:
	case 1:
		b = b.TopLeft()
	default:
		return b, wrong(C.FK_ERR_VALUE, "top_left", p.top_left, "must be 0 or 1")
	}
	return b.Shift(int(p.shift)), nil
}

func (f *frame) describe(p *C.fk_problem) error {
	for _, t := range [...]struct {
		name string
		t    *flashkit.Tensor
	}{{"q", &f.args.Q}, {"k", &f.args.K}, {"v", &f.args.V}} {
		if t.t.IsZero() {
			return &failure{C.FK_ERR_NULL, t.name, "flashkit: " + t.name + ": the tensor is missing"}
		}
	}
	x := flashkit.ProblemOf(&f.args, flashkit.Band{})
	if rows := f.args.Q.Shape()[0]; x.Ragged && f.seqs.QStarts == nil && rows != x.Batch {
		return wrong(C.FK_ERR_DIMENSION, "seqs", x.Batch, "must be q.shape[0] = %d, as q_starts is not given", rows)
	}
	if shape := f.args.K.Shape(); x.Ragged && x.Page == 0 && f.seqs.KVStarts == nil && shape[0] != x.Batch {
		return wrong(C.FK_ERR_DIMENSION, "k.shape", shape, "must have batch %d, the sequences, as kv_starts is not given", x.Batch)
	}
	p.batch, p.heads, p.kv_heads = C.int64_t(x.Batch), C.int64_t(x.Heads), C.int64_t(x.KVHeads)
	p.q_len, p.kv_len, p.dim, p.v_dim = C.int64_t(x.QLen), C.int64_t(x.KVLen), C.int64_t(x.Dim), C.int64_t(x.VDim)
	p.dtype, p.kv_dtype, p.page, p.ranges, p.int8group = C.int32_t(x.DType), C.int32_t(x.KVDType), C.int64_t(x.Page), C.int64_t(x.Score.Ranges), C.int64_t(x.Int8Group)
	p.features = p.features&(C.FK_CARRY|C.FK_ORIGIN) | featureBits(&x)
	return nil
}

// set converts the arguments of a pass. s is nil if the caller will not run the pass.
func (f *frame) set(a *C.fk_args, pass flashkit.Pass, s *session) error {
	if err := f.place(a, s); err != nil {
		return err
	}
	to, n := &f.args, len(slots)
	if pass == flashkit.PassForward {
		n = forwardSlots
	}
	for i := range slots[:n] {
		x := &slots[i]
		from, t := (*C.fk_tensor)(unsafe.Add(unsafe.Pointer(a), x.from)), (*flashkit.Tensor)(unsafe.Add(unsafe.Pointer(to), x.to))
		if err := f.view(from, t, x.name); err != nil {
			return err
		}
	}
	if a.workers < 0 || a.workers > math.MaxInt32 {
		return wrong(C.FK_ERR_VALUE, "workers", a.workers, "must be at least 1, or 0 for no limit")
	}
	to.Seed, to.Workers = uint64(a.seed), int(a.workers)
	to.Origin = flashkit.Origin{Batch: int(a.origin_batch), Head: int(a.origin_head), Row: int(a.origin_row), Key: int(a.origin_key)}
	return f.setSequences(a)
}

// place sets f.device to the device of Q. flashkit checks that all other tensors are on the same
// device.
func (f *frame) place(a *C.fk_args, s *session) (err error) {
	if a.q.device < C.FK_CUDA || a.q.device > lastDevice || s == nil {
		return nil
	}
	f.device, err = s.gpu(a.q.device)
	return err
}

// setSequences converts the sequence arrays of a ragged problem.
func (f *frame) setSequences(a *C.fk_args) error {
	if a.seqs_device != 0 {
		return f.setDeviceSequences(a)
	}
	s := &f.seqs
	const most = math.MaxInt32
	switch {
	case a.seqs < 0 || a.seqs > most:
		return wrong(C.FK_ERR_DIMENSION, "seqs", a.seqs, "must be from 0 to %d", most)
	case a.pages_per_seq < 0 || a.pages_per_seq > most:
		return wrong(C.FK_ERR_VALUE, "pages_per_seq", a.pages_per_seq, "must be from 0 to %d", most)
	}
	if !f.problem.Ragged && a.seqs == 0 && word(&a.q_lens)|word(&a.kv_lens)|word(&a.q_starts)|word(&a.kv_starts)|word(&a.pages) == 0 {
		return nil
	}
	for _, x := range [...]struct {
		name string
		from **C.int32_t
		n    int
		to   *[]int32
	}{
		{"q_lens", &a.q_lens, int(a.seqs), &s.QLens}, {"kv_lens", &a.kv_lens, int(a.seqs), &s.KVLens},
		{"q_starts", &a.q_starts, int(a.seqs) + 1, &s.QStarts}, {"kv_starts", &a.kv_starts, int(a.seqs) + 1, &s.KVStarts},
		{"pages", &a.pages, int(a.seqs) * int(a.pages_per_seq), &s.Pages},
	} {
		at := word(x.from)
		if at == 0 {
			continue
		}
		if reason := addressFault(at, 4); reason != "" {
			return wrong(C.FK_ERR_STRIDE, x.name, hex(at), "%s", reason)
		}
		*x.to = unsafe.Slice((*int32)(unsafe.Pointer(*x.from)), x.n)
	}
	f.args.Seqs = s
	return nil
}

// setDeviceSequences sets the lengths and the page table of a paged problem if the C program passes
// these arrays in device memory.
func (f *frame) setDeviceSequences(a *C.fk_args) error {
	const most = math.MaxInt32
	switch {
	case a.seqs_device != C.int64_t(a.q.device):
		return wrong(C.FK_ERR_VALUE, "seqs_device", a.seqs_device, "must be 0, or where q is: %d", a.q.device)
	case a.seqs < 0 || a.seqs > most:
		return wrong(C.FK_ERR_DIMENSION, "seqs", a.seqs, "must be from 0 to %d", most)
	case a.pages_per_seq < 1 || a.pages_per_seq > most:
		return wrong(C.FK_ERR_VALUE, "pages_per_seq", a.pages_per_seq, "must be from 1 to %d where the pages are on a device", most)
	case word(&a.q_lens)|word(&a.q_starts)|word(&a.kv_starts) != 0:
		return wrong(C.FK_ERR_VALUE, "seqs_device", a.seqs_device, "must be 0 where there are q_lens, q_starts or kv_starts, which are read on the host")
	}
	n := int(a.seqs)
	for _, x := range [...]struct {
		name string
		at   uintptr
		n    int
		to   **cuda.Buffer
	}{{"kv_lens", word(&a.kv_lens), n, &f.lists.KVLens}, {"pages", word(&a.pages), n * int(a.pages_per_seq), &f.lists.Pages}} {
		switch reason := addressFault(x.at, 4); {
		case x.at == 0 && x.name == "pages":
			return &failure{C.FK_ERR_NULL, x.name, "flashkit: pages: is missing, as seqs_device is given"}
		case x.at == 0:
			*x.to = nil
		case reason != "":
			return wrong(C.FK_ERR_STRIDE, x.name, hex(x.at), "%s", reason)
		case f.device != nil:
			f.device.wrap(x.to, x.at, 4*x.n)
		}
	}
	f.seqs.PagesPerSeq = int(a.pages_per_seq)
	f.args.Seqs, f.listed = &f.seqs, true
	return nil
}
