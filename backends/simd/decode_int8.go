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
	scores func(s *float32, k *int8, step int, scale *float32, scaleStep int, q *float32, qStep, n, group, keys int, ahead uintptr)
	values func(o *float32, oStep int, p, scale, scaled *float32, without float32, v *int8, step, n, keys int, ahead uintptr)

	// For one query row. valueRow multiplies by all groups' scales.
	scoreRow func(s *float32, k *int8, step int, scale *float32, scaleStep int, q *float32, n, group, keys int, ahead uintptr)
	valueRow func(o, p *float32, v *int8, step int, scale *float32, scaleStep, n, group, keys int, ahead uintptr)
}

const (
	int8Rows = 4  // rows that int8Routines process at a time
	int8Few  = 2  // rows that the routines for one row process faster, one after the other
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

// eachRun reads each run of the block's keys, or of their values.
func (isa *decodeRoutines) eachRun(j *job, x *decodeItem, block *seenKeys, values bool) {
	h, few := &x.head(block.head).itemOfKeys, block.rows <= int8Few && block.seen == nil
	for i := 0; i < block.n; {
		run := int8Run{at: i, g: h.g}
		run.batch, run.row, run.n = j.keyPlace(&h.Seq, h.b, block.from+i)
		run.n = min(run.n, block.n-i)
		switch {
		case !values:
			isa.scoreRun(x, block, &run, j.p.Int8Group)
		case few:
			isa.addFewValues(x, block, &run, j.p.Int8Group)
		default:
			isa.addValuesInt8(x, block, &run, j.p.Int8Group)
		}
		i += run.n
	}
}

// scoreRun computes the scores of a run of keys.
func (isa *decodeRoutines) scoreRun(x *decodeItem, block *seenKeys, run *int8Run, group int) {
	h, dim := x.head(block.head), x.k.t.Shape()[3]
	k, step := run.rowOf(&x.k)
	scales, scaleStep := isa.rawScales(x, &x.k, run)
	ahead := run.ahead(&x.v, 0)
	for r, rows := 0, int8Rows; r < block.rows; r += rows {
		s, q := &block.s[r*decodeStep+run.at], &h.q[(block.row+r)*h.qStep]
		if block.rows-r <= int8Few {
			rows = 1
			isa.int8.scoreRow(s, k, step, scales, scaleStep, q, dim, group, run.n, ahead)
			continue
		}
		isa.int8.scores(s, k, step, scales, scaleStep, q, h.qStep, dim, group, run.n, ahead)
	}
}

// addFewValues adds the weighted values of a run of keys to a few rows of O.
func (isa *decodeRoutines) addFewValues(x *decodeItem, block *seenKeys, run *int8Run, group int) {
	h, dim := x.head(block.head), x.v.t.Shape()[3]
	v, step := run.rowOf(&x.v)
	scales, scaleStep := isa.rawScales(x, &x.v, run)
	ahead := run.ahead(&x.k, 2*decodeBlock)
	for r := range block.rows {
		isa.int8.valueRow(&h.o[(block.row+r)*h.oStep], &block.s[r*decodeStep+run.at], v, step, scales, scaleStep, dim, group, run.n, ahead)
	}
}

// addValuesInt8 adds the weighted values of a run of keys to O, one group of elements after the other.
func (isa *decodeRoutines) addValuesInt8(x *decodeItem, block *seenKeys, run *int8Run, group int) {
	dim := x.v.t.Shape()[3]
	isa.loadScales(x, &x.v, run)
	for ; run.element < dim; run.element += group {
		run.dim = min(group, dim-run.element)
		isa.valueRun(x, block, run)
		run.scales = run.scales[min(decodeBlock, len(run.scales)):]
	}
}

// rawScales returns the scales of the run's keys as float32, and the scales from one key to the next.
func (isa *decodeRoutines) rawScales(x *decodeItem, k *keyRows, run *int8Run) (first *float32, step int) {
	t, groups := k.scale, k.scale.Shape()[3]
	at, step := t.Offset(run.batch, run.g, run.row), rowStep(t)
	if t.DType() == flashkit.Float32 {
		return &t.Float32s()[at], step
	}
	for i := range run.n {
		if step == groups {
			isa.load(x.int8.raw[:run.n*groups], t, at)
			break
		}
		isa.load(x.int8.raw[i*groups:][:groups], t, at+i*step)
	}
	return &x.int8.raw[0], groups
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
			to, from := run.scales[g*decodeBlock:][:n], x.int8.raw[g:]
			for i := range to {
				to[i] = from[i*groups]
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

func (isa *decodeRoutines) valueRun(x *decodeItem, block *seenKeys, run *int8Run) {
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
