//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

// int8Routines read int8 keys and values in place. A scale multiplies the sum of a group of a key's
// products, and the weight of a group of values.
type int8Routines struct {
	scores func(s *float32, k *int8, step int, scale *float32, q *float32, qStep, n, keys int, ahead uintptr)
	values func(o *float32, oStep int, p, scale, scaled *float32, without float32, v *int8, step, n, keys int, ahead uintptr)
}

const (
	int8Rows = 4  // rows that int8Routines process at a time
	int8Step = 16 // elements of a group are a multiple of this number
)

// int8Item is the workspace of an item that reads int8 keys in place.
type int8Item struct {
	in     bool      // keys are read in place
	scales []float32 // of the keys of a run, one group after the other, [groups][decodeBlock]
	raw    []float32 // the scales as they follow in memory
	scaled []float32 // [int8Rows][decodeStep]
	o      []float32 // [int8Rows][oStep], for the last rows
}

// readsInt8 reports whether decode kernels with int8Routines read the keys of p in place.
func readsInt8(p *flashkit.Problem) bool {
	return p.Int8Group != 0 && p.Dim%int8Step == 0 && p.VDim%int8Step == 0 && p.Int8Group%int8Step == 0
}

func int8Floats(c *flashkit.Call) int {
	if !readsInt8(&c.Problem) {
		return 0
	}
	_, oStep := decodeSteps(&c.Problem)
	groups := ceilDiv(max(c.Dim, c.VDim), c.Int8Group)
	return 2*(groups*decodeBlock+8) + int8Rows*(decodeStep+oStep)
}

func (x *int8Item) set(j *job, ws *pool.Arena, oStep int) {
	groups := ceilDiv(max(j.p.Dim, j.p.VDim), j.p.Int8Group)
	x.in, x.scales, x.raw = true, ws.Take(groups*decodeBlock+8), ws.Take(groups*decodeBlock+8)
	x.scaled, x.o = ws.Take(int8Rows*decodeStep), ws.Take(int8Rows*oStep)
}

// stepInt8 does the work of step for int8 keys that are read in place.
func (isa *decodeRoutines) stepInt8(j *job, x *decodeItem, next, before seenKeys) {
	if next.n > 0 {
		for r := range ceilDiv(next.rows, int8Rows) * int8Rows {
			clear(next.s[r*decodeStep:][:next.n])
		}
		isa.eachRun(j, x, &next, false)
	}
	if before.n > 0 {
		isa.eachRun(j, x, &before, true)
	}
}

// An int8Run is a run of a block's keys that follow each other in memory.
type int8Run struct {
	at, n        int // first key in the block, and number of keys
	batch, g     int
	row          int // first row in the tensor
	scales       []float32
	element, dim int // first element of the group, and number of elements
}

// eachRun reads each group of elements of each run of the block's keys, or of their values.
func (isa *decodeRoutines) eachRun(j *job, x *decodeItem, block *seenKeys, values bool) {
	k := &x.k
	if values {
		k = &x.v
	}
	h, dim := &x.head(block.head).itemOfKeys, k.t.Shape()[3]
	for i := 0; i < block.n; {
		run := int8Run{at: i, g: h.g}
		run.batch, run.row, run.n = j.keyPlace(&h.Seq, h.b, block.from+i)
		run.n = min(run.n, block.n-i)
		isa.loadScales(x, k, &run)
		for ; run.element < dim; run.element += j.p.Int8Group {
			run.dim = min(j.p.Int8Group, dim-run.element)
			if values {
				isa.valueRun(j, x, block, &run)
			} else {
				isa.scoreRun(j, x, block, &run)
			}
			run.scales = run.scales[min(decodeBlock, len(run.scales)):]
		}
		i += run.n
	}
}

// loadScales sets run.scales to the scales of the run's keys, one group after the other.
func (isa *decodeRoutines) loadScales(x *decodeItem, k *keyRows, run *int8Run) {
	t, groups, n := k.scale, k.scale.Shape()[3], run.n
	at, step := t.Offset(run.batch, run.g, run.row), rowStep(t)
	if groups == 1 && step == 1 && t.DType() == flashkit.Float32 && n%8 == 0 {
		run.scales = t.Float32s()[at:]
		return
	}
	run.scales = x.int8.scales
	switch {
	case step == groups && groups == 1:
		isa.load(run.scales[:n], t, at)
	case step == groups:
		isa.load(x.int8.raw[:n*groups], t, at)
		for g := range groups {
			for i := range n {
				run.scales[g*decodeBlock+i] = x.int8.raw[i*groups+g]
			}
		}
	default:
		for i := range n * groups {
			run.scales[i%groups*decodeBlock+i/groups] = scaleAt(t, at+i/groups*step+i%groups)
		}
	}
}

// rowOf returns the address of the group's elements in the run's first key, and the elements from
// one key to the next.
func (run *int8Run) rowOf(k *keyRows) (first *int8, step int) {
	return &k.t.Int8s()[k.t.Offset(run.batch, run.g, run.row)+run.element], rowStep(k.t)
}

// ahead returns the address to prefetch while the routines read a group of the run's keys: the same
// part of the run, the given number of keys later. Rows with gaps are left to the processor.
func (run *int8Run) ahead(k *keyRows, keys int) uintptr {
	at, step := k.t.Offset(run.batch, run.g, run.row), rowStep(k.t)
	if step == k.t.Shape()[3] {
		at += keys*step + run.element*run.n
	}
	return k.t.Address() + uintptr(at)
}

func (isa *decodeRoutines) scoreRun(j *job, x *decodeItem, block *seenKeys, run *int8Run) {
	h := x.head(block.head)
	k, step := run.rowOf(&x.k)
	ahead := run.ahead(&x.v, 0)
	for r := 0; r < block.rows; r += int8Rows {
		s := block.s[r*decodeStep+run.at:]
		isa.int8.scores(&s[0], k, step, &run.scales[0], &h.q[(block.row+r)*h.qStep+run.element], h.qStep, run.dim, run.n, ahead)
		for i := 0; i < int8Rows && run.n%2 != 0; i++ { // the routine wrote one more key
			s[i*decodeStep+run.n] = 0
		}
	}
}

func (isa *decodeRoutines) valueRun(j *job, x *decodeItem, block *seenKeys, run *int8Run) {
	h, without := x.head(block.head), float32(math.NaN())
	if block.seen != nil {
		without = 0
	}
	v, step := run.rowOf(&x.v)
	ahead := run.ahead(&x.k, 2*decodeBlock)
	for r := 0; r < block.rows; r += int8Rows {
		o := h.o[(block.row+r)*h.oStep:]
		rows, part := min(int8Rows, block.rows-r), o
		if rows < int8Rows {
			part = x.int8.o
			copy(part, o[:rows*h.oStep])
		}
		isa.int8.values(&part[run.element], h.oStep, &block.s[r*decodeStep+run.at], &run.scales[0], &x.int8.scaled[0], without, v, step, run.dim, run.n, ahead)
		if rows < int8Rows {
			copy(o[:rows*h.oStep], part)
		}
	}
}

// dequantizeRows is a rowDequantizer.
func (isa *convertRoutines) dequantizeRows(dst []float32, t, scale *flashkit.Tensor, batch, g, row, n, group int) {
	dim := t.Shape()[3]
	if isa.dequantize == nil || dim%8 != 0 || group%8 != 0 {
		dequantizeRows(dst, t, scale, batch, g, row, n, group)
		return
	}
	for i := range n {
		codes, at := t.Int8s()[t.Offset(batch, g, row+i):][:dim], scale.Offset(batch, g, row+i)
		for c := 0; c < dim; c += group {
			isa.dequantize(&dst[i*dim+c], &codes[c], scaleAt(scale, at), min(group, dim-c))
			at++
		}
	}
}
