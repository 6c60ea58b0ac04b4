//go:build (amd64 || arm64) && !purego

package simd

import (
	"fmt"
	"math"

	"github.com/flashkit-go/flashkit"
)

// decodeRoutines holds an instruction set's routines for kernels with the head dim in the lanes.
// The declarations of the assembly functions document the routines. Pointers passed to the routines
// must point into workspace or the caller's memory; laneRoutines gives the reason.
type decodeRoutines struct {
	*laneRoutines
	rows   int  // query rows of a register tile
	split  int  // for bfloat16: rows of O are cut into groups of this number of elements, even elements first (rows of Q too, unless halves); 0: original order
	tails  bool // rows of 16-bit elements may end with a part of a vector
	halves bool // Q is kept in K's type, and sums in O are weightUnit times too large
	pace   pace // element is the time of reading a float32 of K or V, widen of reading a 16-bit element

	gradPace pace // of the backward kernel

	attend  [3]attendFunc // indexed by the type in which K and V are read
	weights func(s *float32, rows, keys int, m, l *float32, scale float32, o *float32, oStep int)

	int8 int8Routines // may be empty

	splitRow func(x *float32, n int) // puts the even elements of each group first
	joinRow  func(x *float32, n int) // reverses this order
}

type attendFunc func(s *float32, k *byte, kAt *int, kAhead int, q *float32, qStep, dim, qRows, kKeys int,
	o *float32, oStep int, scratch, p *float32, v *byte, vAt *int, vAhead, vdim, oRows, vKeys, ahead int)

// weightUnit is the factor of the weights in routines with halves, which round weights to 16 bits.
// Without the factor, small weights would be binary16 denormals, which have fewer digits.
const weightUnit = 1 << 15

// fitsDecode returns the reason why a decode kernel of tier t does not support p, or "". It limits
// the query rows per KV head. With more rows, a call is not bound by memory, and the scores and
// sums of the rows exceed L1.
func fitsDecode(t tier, p flashkit.Problem) string {
	if reason := t.refuses(p); reason != "" {
		return reason
	}
	if rows := p.Heads / p.KVHeads * p.QLen; rows > decodeRows {
		return fmt.Sprintf("supports at most %d query rows per KV head, not %d", decodeRows, rows)
	}
	return ""
}

// storage returns the type in which attend reads K and V. It is the type of K and V, or Float32 if
// each block must first be widened to a buffer. Without tails, rows of binary16 may still end with half a
// group.
func (isa *decodeRoutines) storage(j *job) flashkit.DType {
	t := j.args.K.DType()
	if t != j.args.V.DType() || !isa.inPlace(t, &j.p) {
		return flashkit.Float32
	}
	return t
}

// inPlace reports whether attend reads rows of K and V of type t in place.
func (isa *decodeRoutines) inPlace(t flashkit.DType, p *flashkit.Problem) bool {
	group := isa.split
	if t == flashkit.Float16 {
		group /= 2
	}
	return t != flashkit.Int8 && (t == flashkit.Float32 || isa.tails || p.Dim%group == 0 && p.VDim%group == 0)
}

// weigh does the work of isa.weights for any number of keys. It first pads each row of scores with
// -Inf to whole vectors.
func (isa *decodeRoutines) weigh(s []float32, rows, keys int, m, l *float32, scale float32, o *float32, oStep int) {
	for r := range rows {
		for i := keys; i < pad(keys); i++ {
			s[r*decodeStep+i] = float32(math.Inf(-1))
		}
	}
	isa.weights(&s[0], rows, keys, m, l, scale, o, oStep)
}

// splits reports whether isa.attend expects rows of Q in groups of even and odd elements.
func (isa *decodeRoutines) splits(as flashkit.DType) bool {
	return as == flashkit.BFloat16 && isa.split > 0
}
