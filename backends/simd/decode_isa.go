//go:build (amd64 || arm64) && !purego

package simd

import (
	"fmt"
	"math"

	"github.com/flashkit-go/flashkit"
)

// A decodeISA is an instruction set for kernels that have the head dim in the
// lanes. The routines are documented where they are declared. They may be given
// workspace and the caller's memory only, as those of a laneISA.
type decodeISA struct {
	*laneISA
	rows   int  // of a register tile
	split  int  // elements of a bfloat16 vector, of which the even ones come first; 0 if they keep their order
	tails  bool // rows of 16-bit elements need not be whole vectors
	halves bool // Q is read as K is, and O has weightUnit times the sums
	pace   pace // element is a read of 4 bytes, widen one of 2

	attend  [3]attendFunc // by the type that K and V are read in
	weights func(s *float32, rows, keys int, m, l *float32, scale float32, o *float32, oStep int)
}

type attendFunc func(s *float32, k *byte, kAt *int, kAhead int, q *float32, qStep, dim, qRows, kKeys int,
	o *float32, oStep int, scratch, p *float32, v *byte, vAt *int, vAhead, vdim, oRows, vKeys, ahead int)

// weightUnit is what routines of halves multiply weights with, that they are rounded to few bits less often.
const weightUnit = 1 << 15

// fitsDecode limits the rows: with many of them memory is not what a call waits
// for, and the state of a block no longer stays in the first-level cache.
func fitsDecode(t tier, p flashkit.Problem) string {
	if reason := t.refuses(p); reason != "" {
		return reason
	}
	if rows := p.Heads / p.KVHeads * p.QLen; rows > decodeRows {
		return fmt.Sprintf("supports at most %d query rows per KV head, not %d", decodeRows, rows)
	}
	return ""
}

// storage returns the type that K and V are read in: their own, unless they have
// to be widened before.
func (isa *decodeISA) storage(j *job) flashkit.DType {
	t := j.args.K.DType()
	if t != j.args.V.DType() || !isa.tails && (j.p.Dim%isa.split != 0 || j.p.VDim%isa.split != 0) {
		return flashkit.Float32
	}
	return t
}

// split puts of each n elements of a row the even ones first.
func split(row, buf []float32, n int) {
	for ; len(row) > 0; row = row[n:] {
		copy(buf, row[:n])
		for i := range n / 2 {
			row[i], row[n/2+i] = buf[2*i], buf[2*i+1]
		}
	}
}

// unsplit undoes the order of split.
func unsplit(row, buf []float32, n int) {
	for ; len(row) > 0; row = row[n:] {
		copy(buf, row[:n])
		for i := range n / 2 {
			row[2*i], row[2*i+1] = buf[i], buf[n/2+i]
		}
	}
}

// weigh is weights for any number of keys: it fills the last vector of each row.
func (isa *decodeISA) weigh(s []float32, rows, keys int, m, l *float32, scale float32, o *float32, oStep int) {
	for r := range rows {
		for i := keys; i < pad(keys); i++ {
			s[r*decodeStep+i] = float32(math.Inf(-1))
		}
	}
	isa.weights(&s[0], rows, keys, m, l, scale, o, oStep)
}
