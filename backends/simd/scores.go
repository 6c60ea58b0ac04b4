package simd

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/internal/ends"
	"github.com/flashkit-go/flashkit/internal/half"
	"github.com/flashkit-go/flashkit/internal/philox"
)

// adjusts reports whether scores are more than dot products times the scale.
func adjusts(c *flashkit.Call) bool {
	return c.Score.Softcap != 0 || c.Score.ALiBi || c.Score.Bias
}

// scorer turns dot products into scores, one query row at a time. It applies softmax scale,
// softcap, bias and ALiBi. It also applies the mask and dropout. Keys of a tile are numbered from
// the tile's first one.
//
// Scores are float64, so that the difference of large scores to their maximum is exact.
type scorer struct {
	score  flashkit.Score
	args   *flashkit.Args
	scale  float64
	rowMax bool // the call has Problem.RowMax

	b, h     int
	diagonal int
	slope    float64
	row      int // number of the row in the sequence
	bias     int // offset of the row's biases
	mask     []bool
	ranges   rowRanges

	dropBelow uint32
	keep      float32

	s           [tileK]float64 // scores of the visible keys of the tile
	softcapGrad [tileK]float32 // the derivatives of the caps
	z           [tileK]float32 // factors of dropout
}

func (x *scorer) begin(j *job) {
	x.score, x.args, x.scale, x.rowMax = j.p.Score, j.args, j.scale, j.p.RowMax
	for i := range x.z {
		x.z[i] = 1
	}
	if x.score.Dropout > 0 {
		x.dropBelow, x.keep = philox.Below(x.score.Dropout), philox.Keep(x.score.Dropout)
	}
}

func (x *scorer) setHead(s *flashkit.Seq, b, h int) {
	x.b, x.h, x.diagonal = b, h, s.Diagonal
	if x.score.ALiBi {
		x.slope = float64(slopeOf(x.args, b, h))
	}
}

func slopeOf(args *flashkit.Args, b, h int) float32 {
	t := &args.Slopes
	return ends.Slope(t.Float32s()[t.Repeated(b, h, 0)])
}

func (j *job) sinkOf(h int) float64 {
	if !j.p.Score.Sink {
		return math.Inf(-1)
	}
	t := &j.args.Sink
	return float64(ends.Logit(t.Float32s()[t.Offset(0, h, 0)]))
}

// earlierLSE returns the LSE of the earlier keys of a row, or -Inf if there are none.
func (j *job) earlierLSE(b, h, row int) float64 {
	if !j.p.Carry {
		return math.Inf(-1)
	}
	t := &j.args.LSE
	return float64(ends.Logit(t.Float32s()[t.Offset(b, h, row)]))
}

func (x *scorer) setRow(i int) {
	x.row = i
	if x.score.Bias {
		x.bias = x.args.Bias.Repeated(x.b, x.h, i)
	}
	if x.score.Mask {
		t := &x.args.Mask
		x.mask = t.Bools()[t.Repeated(x.b, x.h, i):]
	}
	x.ranges = rangesOf(x.args, x.score.Ranges, x.b, x.h, i)
}

// seen returns the keys of [lo, hi) that mask and ranges show, counted from k0. The result may be in buf.
func (x *scorer) seen(buf *[tileK]int, k0, lo, hi int) []int {
	if lo >= hi {
		return nil
	}
	ranges, n := x.ranges.within(lo, hi), 0
	if first, second := ranges[0], ranges[1]; !x.score.Mask && second[0] == second[1] {
		return everyKey[first[0]-k0 : first[1]-k0]
	}
	for _, r := range ranges {
		for key := r[0]; key < r[1]; key++ {
			buf[n&(tileK-1)] = key - k0
			if !x.score.Mask || x.mask[key] {
				n++
			}
		}
	}
	return buf[:n]
}

// scores returns the scores of keys, from their dot products with the row. The result is valid
// until the next call.
func (x *scorer) scores(dots []float32, k0 int, keys []int) []float64 {
	s := x.s[:len(dots)]
	for c, d := range dots {
		s[c] = float64(d) * x.scale
	}
	if limit := float64(x.score.Softcap); limit != 0 {
		for c, v := range s {
			t := math.Tanh(v / limit)
			s[c], x.softcapGrad[c] = limit*t, float32(1-t*t)
		}
	}
	if x.score.Bias {
		x.addBias(s, x.bias+k0, keys)
	}
	if x.score.ALiBi {
		at := x.row + x.diagonal - k0
		for c, key := range keys {
			s[c] -= x.slope * math.Abs(float64(key-at))
		}
	}
	return s
}

// uncapped multiplies the gradients of the last scores by the derivatives of the softcap.
func (x *scorer) uncapped(ds []float32) []float32 {
	if x.score.Softcap != 0 {
		for c := range ds {
			ds[c] *= x.softcapGrad[c]
		}
	}
	return ds
}

// addBias adds the biases of keys to s. The bias of key 0 is the tensor's element with index at.
func (x *scorer) addBias(s []float64, at int, keys []int) {
	switch t := &x.args.Bias; t.DType() {
	case flashkit.Float32:
		bias := t.Float32s()[at:]
		for c, key := range keys {
			s[c] += float64(bias[key])
		}
	case flashkit.Float16:
		bias := t.Uint16s()[at:]
		for c, key := range keys {
			s[c] += float64(half.FromF16(bias[key]))
		}
	case flashkit.BFloat16:
		bias := t.Uint16s()[at:]
		for c, key := range keys {
			s[c] += float64(half.FromBF16(bias[key]))
		}
	}
}

// dropout returns the factors of the keys' weights: 0 or keep, or 1 without dropout. The result is
// valid until the next call.
func (x *scorer) dropout(k0 int, keys []int) []float32 {
	z := x.z[:len(keys)]
	if x.score.Dropout == 0 {
		return z
	}
	seed, o := philox.Key(x.args.Seed), &x.args.Origin
	var words [4]uint32
	block := -1 // number of the eight keys that share a Philox counter
	for c, key := range keys {
		key += k0 + o.Key
		if key>>3 != block {
			block = key >> 3
			words = philox.Words([4]uint32{uint32(block), uint32(o.Row + x.row), uint32(o.Head + x.h), uint32(o.Batch + x.b)}, seed)
		}
		z[c] = x.keep
		if philox.Dropped(words, key, x.dropBelow) {
			z[c] = 0
		}
	}
	return z
}

type kvTile struct {
	k, v         []float32
	kStep, vStep int
	kBuf, vBuf   []float32
}

func newKVTile(j *job, ws *pool.Arena) kvTile {
	return kvTile{kBuf: ws.Take(j.portable.keys * j.p.Dim), vBuf: ws.Take(j.portable.keys * j.p.VDim)}
}

func (x *kvTile) load(j *job, t *flashkit.Seq, b, g, k0, n int) {
	if j.p.Int8Group != 0 {
		j.dequantizeKeys(&j.args.K, t, b, g, k0, n, x.kBuf, dequantizeRows)
		j.dequantizeKeys(&j.args.V, t, b, g, k0, n, x.vBuf, dequantizeRows)
		x.k, x.kStep, x.v, x.vStep = x.kBuf, j.p.Dim, x.vBuf, j.p.VDim
		return
	}
	if j.p.Page == 0 {
		x.k, x.kStep = view(&j.args.K, t.KVBatch, g, t.K0+k0, n, x.kBuf)
		x.v, x.vStep = view(&j.args.V, t.KVBatch, g, t.K0+k0, n, x.vBuf)
		return
	}
	x.k, x.kStep = j.viewPages(&j.args.K, b, g, k0, n, x.kBuf)
	x.v, x.vStep = j.viewPages(&j.args.V, b, g, k0, n, x.vBuf)
}

// viewPages does the work of view for n keys of a sequence in pages, from key k0 on. It reads
// float32 rows in place if one page holds all of them.
func (j *job) viewPages(t *flashkit.Tensor, b, g, k0, n int, buf []float32) (rows []float32, step int) {
	dim, step := t.Shape()[3], rowStep(t)
	for i := 0; i < n; {
		at, run := j.call.KeyRun(t, b, g, k0+i)
		if i == 0 && run >= n && t.DType() == flashkit.Float32 {
			return t.Float32s()[at:], step
		}
		for end := min(i+run, n); i < end; i++ {
			load(buf[i*dim:][:dim], t, at)
			at += step
		}
	}
	return buf, dim
}
