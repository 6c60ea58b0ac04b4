package simd

import (
	"math"
	"math/bits"
	"unsafe"
)

// The sum of a key's weights has terms from many items. Its bits must not depend on the order in
// which items end. So all terms are rounded to multiples of one power of two, the grid. The grid is
// so fine that float64 sums of its multiples are exact, and so coarse that no sum overflows 53 bits.
// A term is one weight, or the sum of the weights of some rows in an order that is always the same.

// massGrid returns the number that rounds a sum of weights to the grid: (x + massGrid) - massGrid.
// rows is the number of query rows of a head, which is the largest sum.
func massGrid(rows int) float64 { return math.Ldexp(1.5, 2+bits.Len(uint(rows))) }

// massFloats returns the floats of workspace for the sums of all keys.
func (pl *plan) massFloats() int {
	if !pl.p.KeyMass {
		return 0
	}
	return count(2*float64(pl.p.Batch)*float64(pl.p.Heads)*float64(pl.p.KVLen)) + 2
}

// beginMass sets the sums of all keys to 0.
func (j *job) beginMass() {
	j.Shared.Reserve(j.shared)
	j.mass = doubles(j.Shared.All[:j.shared])
	clear(j.mass)
}

// addMass adds terms on the grid to the sums of keys of head h, from the given key on.
func (j *job) addMass(b, h, key int, terms []float64) {
	head := b*j.p.Heads + h
	lock := &j.massLocks[head%len(j.massLocks)]
	lock.Lock()
	defer lock.Unlock()
	sums := j.mass[head*j.p.KVLen+key:][:len(terms)]
	for i, x := range terms {
		sums[i] += x
	}
}

// endMass writes the sums of all keys.
func (j *job) endMass() {
	t := &j.args.KeyMass
	for b := range j.p.Batch {
		for h := range j.p.Heads {
			if j.p.KVLen == 0 {
				return
			}
			to := t.Float32s()[t.Offset(b, h, 0):][:j.p.KVLen]
			for i, x := range j.mass[(b*j.p.Heads+h)*j.p.KVLen:][:j.p.KVLen] {
				if to[i] = float32(x); x != x {
					to[i] = float32(math.NaN()) // the bits of a sum of NaN depend on the order
				}
			}
		}
	}
	j.mass = nil
}

// doubles returns the memory of x as float64, from the first multiple of 8 bytes on.
func doubles(x []float32) []float64 {
	if uintptr(unsafe.Pointer(&x[0]))%8 != 0 {
		x = x[1:]
	}
	return unsafe.Slice((*float64)(unsafe.Pointer(&x[0])), len(x)/2)
}
