//go:build (amd64 || arm64) && !purego

package simd

import (
	"fmt"
	"math"

	"github.com/flashkit-go/flashkit"
)

// decodeRoutines holds the routines of an instruction set for kernels with the head dim in the lanes.
// The declarations document the routines. Their arguments must be workspace or the caller's memory,
// as for laneRoutines.
type decodeRoutines struct {
	*laneRoutines
	rows   int  // of a register tile
	split  int  // elements of a bfloat16 vector, stored even ones first; 0: original order
	tails  bool // rows of 16-bit elements need not be whole vectors
	halves bool // Q has K's type, and O is scaled by weightUnit
	pace   pace // element is the time of reading 4 bytes, widen of 2 bytes

	attend  [3]attendFunc // by the type in which K and V are read
	weights func(s *float32, rows, keys int, m, l *float32, scale float32, o *float32, oStep int)
}

type attendFunc func(s *float32, k *byte, kAt *int, kAhead int, q *float32, qStep, dim, qRows, kKeys int,
	o *float32, oStep int, scratch, p *float32, v *byte, vAt *int, vAhead, vdim, oRows, vKeys, ahead int)

// weightUnit scales the weights in routines of halves, so that fewer of them are rounded as
// denormals.
const weightUnit = 1 << 15

// fitsDecode limits the rows. With many rows a call is not bound by memory, and the state of a
// block exceeds L1.
func fitsDecode(t tier, p flashkit.Problem) string {
	if reason := t.refuses(p); reason != "" {
		return reason
	}
	if rows := p.Heads / p.KVHeads * p.QLen; rows > decodeRows {
		return fmt.Sprintf("supports at most %d query rows per KV head, not %d", decodeRows, rows)
	}
	return ""
}

// storage returns the type in which K and V are read: their own, or float32 if they must be widened
// first.
func (isa *decodeRoutines) storage(j *job) flashkit.DType {
	t := j.args.K.DType()
	if t != j.args.V.DType() || !isa.tails && (j.p.Dim%isa.split != 0 || j.p.VDim%isa.split != 0) {
		return flashkit.Float32
	}
	return t
}

// split moves the even elements of each n to the front.
func split(row, buf []float32, n int) {
	for ; len(row) > 0; row = row[n:] {
		copy(buf, row[:n])
		for i := range n / 2 {
			row[i], row[n/2+i] = buf[2*i], buf[2*i+1]
		}
	}
}

// unsplit reverses split.
func unsplit(row, buf []float32, n int) {
	for ; len(row) > 0; row = row[n:] {
		copy(buf, row[:n])
		for i := range n / 2 {
			row[2*i], row[2*i+1] = buf[i], buf[n/2+i]
		}
	}
}

// weigh computes the weights of any number of keys: it pads each row to whole vectors.
func (isa *decodeRoutines) weigh(s []float32, rows, keys int, m, l *float32, scale float32, o *float32, oStep int) {
	for r := range rows {
		for i := keys; i < pad(keys); i++ {
			s[r*decodeStep+i] = float32(math.Inf(-1))
		}
	}
	isa.weights(&s[0], rows, keys, m, l, scale, o, oStep)
}
