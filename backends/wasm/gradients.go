package wasm

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// A biasSum describes the broadcast dimensions of the bias: dBias is a sum over these dimensions.
// Heads that share elements of dBias belong to one item. The item adds the terms of these heads in
// the order of sequence, head and row, so the bits do not depend on the workers.
type biasSum struct {
	wanted   bool
	allSeqs  bool // all sequences share one dBias
	allHeads bool // all heads share one dBias
	allRows  bool // all query rows of a head share one row of dBias
}

func newBiasSum(c *flashkit.Call) biasSum {
	if !wantsDBias(c) {
		return biasSum{}
	}
	shape := c.Args.DBias.Shape()
	return biasSum{true, shape[0] == 1 && c.Batch > 1, shape[1] == 1 && c.Heads > 1, shape[2] == 1}
}

// gathersBias reports whether several heads or sequences add to each element of a 16-bit dBias,
// which then needs float32 workspace.
func (x *plan) gathersBias() bool {
	return x.bias.wanted && (x.bias.allSeqs || x.bias.allHeads) && x.c.Args.DBias.DType() != flashkit.Float32
}

// biasRun is the maximum number of terms that are added in float32 to an element of dBias. Each
// head of each sequence gives one term. Longer float32 sums would lose precision.
const biasRun = 512

// needsFloat64Bias reports whether a float32 dBias needs float64 workspace, because more than
// biasRun terms are added to an element.
func (x *plan) needsFloat64Bias() bool {
	n := 1
	if x.bias.allSeqs {
		n *= min(x.c.Batch, biasRun+1)
	}
	if x.bias.allHeads {
		n *= min(x.c.Heads, biasRun+1)
	}
	return n > biasRun && !x.gathersBias()
}

// biasRow returns the index, in the workspace of dBias, of row i of head h and sequence b.
func (j *job) biasRow(b, h, i int) int {
	s := j.args.DBias.Shape()
	return ((b%s[0]*s[1]+h%s[1])*s[2] + i%s[2]) * s[3]
}

// addBias adds the stage's tile of dBias, for rows [i0, i1) and keys [j0, j1), to the call's dBias.
// If all query rows share one row of dBias, addBias adds to x.columns instead. k0 is the first key
// of the item.
func (j *job) addBias(x *instance, b, h, i0, i1, j0, j1, k0 int) {
	for r := range i1 - i0 {
		from := x.at(j.places.dbias+uint64(4*r*tile), j1-j0)
		if !j.bias.allRows {
			j.addBiasRow(from, b, h, i0+r, j0)
			continue
		}
		to := x.columns[j0-k0:]
		for c := range j1 - j0 {
			to[c] += float64(get(from, c))
		}
	}
}

// addColumns adds x.columns, the sums over all rows of a head, to dBias of the keys [k0, k1).
func (j *job) addColumns(x *instance, b, h, k0, k1 int) {
	from := x.at(j.places.dbias, k1-k0)
	for c := range k1 - k0 {
		put(from, c, float32(x.columns[c]))
	}
	j.addBiasRow(from, b, h, 0, k0)
}

// addBiasRow adds floats to row i of dBias of head h and sequence b. from has these floats, the
// first of which is for key j0.
func (j *job) addBiasRow(from []byte, b, h, i, j0 int) {
	t, n := &j.args.DBias, len(from)/4
	at := t.Repeated(b, h, i) + j0
	var sum []float32
	switch {
	case j.needsFloat64Bias():
		for c := range n {
			j.wideBias[j.biasRow(b, h, i)+j0+c] += float64(get(from, c))
		}
	case t.DType() == flashkit.Float32:
		sum = t.Float32s()[at:][:n]
	case j.gathersBias():
		sum = j.dbias[j.biasRow(b, h, i)+j0:][:n]
	default:
		storeRow(from, t, at, n)
	}
	for c := range sum {
		sum[c] += get(from, c)
	}
}

// roundBias rounds the workspace of dBias to the element type of DBias and writes it to DBias.
func (j *job) roundBias() {
	wide := j.needsFloat64Bias()
	if !wide && !j.gathersBias() {
		return
	}
	t, round := &j.args.DBias, half.ToBF16
	if t.DType() == flashkit.Float16 {
		round = half.ToF16
	}
	s := t.Shape()
	for row := range s[0] * s[1] * s[2] {
		b, h, i := row/s[2]/s[1], row/s[2]%s[1], row%s[2]
		if i%tile == 0 && j.stopped() {
			return
		}
		at, from := t.Offset(b, h, i), j.biasRow(b, h, i)
		if wide {
			for c, v := range j.wideBias[from:][:s[3]] {
				t.Float32s()[at+c] = float32(v)
			}
			continue
		}
		for c, v := range j.dbias[from:][:s[3]] {
			t.Uint16s()[at+c] = round(v)
		}
	}
}

// sinkGradients claims heads and computes their dSink until no head is left. The dSink of a head is
// the sum, over all sequences and rows in order, of -delta times the weight of the sink.
func (j *job) sinkGradients() {
	f, c := j.args, j.c
	if c.Pass != flashkit.PassBackward || f.DSink.IsZero() {
		return
	}
	for {
		h := int(j.sinks.Add(1) - 1)
		if h >= c.Heads || j.stopped() {
			return
		}
		sink, sum := float64(f.Sink.Float32s()[f.Sink.Repeated(0, h, 0)]), 0.0
		for b := 0; b < c.Batch && c.QLen > 0; b++ {
			s := c.Seq(b)
			for i := range s.N {
				if i%tile == 0 && j.stopped() {
					return
				}
				sum += j.sinkGradient(&s, h, i, sink)
			}
		}
		f.DSink.Float32s()[f.DSink.Offset(0, h, 0)] = float32(sum)
	}
}

// sinkGradient returns the dSink term of row i of a sequence for head h.
func (j *job) sinkGradient(s *flashkit.Seq, h, i int, sink float64) float64 {
	f := j.args
	i += s.Q0
	lse := float64(f.LSE.Float32s()[f.LSE.Offset(s.QBatch, h, i)])
	weight := math.Exp(sink - lse)
	if math.IsInf(lse, -1) || weight == 0 {
		return 0
	}
	delta := dot(&f.DO, &f.O, f.DO.Offset(s.QBatch, h, i), f.O.Offset(s.QBatch, h, i), j.c.VDim)
	if !f.DLSE.IsZero() {
		delta -= float64(f.DLSE.Float32s()[f.DLSE.Offset(s.QBatch, h, i)])
	}
	return -weight * delta
}

// dot returns the dot product of n elements of x and n elements of y, which have the same type. at
// is the index of the first element in x, and other the index of the first element in y.
func dot(x, y *flashkit.Tensor, at, other, n int) (sum float64) {
	switch x.DType() {
	case flashkit.Float32:
		a, b := x.Float32s()[at:][:n], y.Float32s()[other:][:n]
		for i := range a {
			sum += float64(a[i]) * float64(b[i])
		}
	case flashkit.Float16:
		a, b := x.Uint16s()[at:][:n], y.Uint16s()[other:][:n]
		for i := range a {
			sum += float64(half.FromF16(a[i])) * float64(half.FromF16(b[i]))
		}
	case flashkit.BFloat16:
		a, b := x.Uint16s()[at:][:n], y.Uint16s()[other:][:n]
		for i := range a {
			sum += float64(half.FromBF16(a[i])) * float64(half.FromBF16(b[i]))
		}
	}
	return sum
}
