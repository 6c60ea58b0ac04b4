package cuda

import (
	"encoding/binary"
	"math"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/philox"
)

// The results of instances with features, computed from the argument block alone.

// isFeatured reports whether a kernel has features in its arguments.
func isFeatured(name string) bool {
	return strings.Contains(name, "_features") || strings.HasPrefix(name, "sums_")
}

// A fakeSequence is a kernel's view of a sequence.
type fakeSequence struct {
	b                           int
	qBatch, q0, rows, rowEnd    int
	kvBatch, key0, keys, keyEnd int
	lo, hi, diagonal            int
	pages                       []int32
	k, v                        [][][]float64 // [head][key][element]
}

// A fakeFeatured is one launch of an instance with features.
type fakeFeatured struct {
	*fakeKernel
	f    features
	fake *fakeDriver
	name string

	bias, dbias, mask, slopes, sink, dsink fakeView
	carried, deltas                        *fakeView
	scales                                 [2]*fakeView // of int8 K and V
	scaleShift                             int32
	seqs                                   []fakeSequence
}

func (f *fakeDriver) computeFeatured(fn *fakeFunction, k *fakeKernel, block features, dtype flashkit.DType, int8 *int8Args) {
	x := &fakeFeatured{fakeKernel: k, f: block, fake: f, name: fn.name}
	for _, v := range []struct {
		to   *fakeView
		from view
		t    flashkit.DType
	}{
		{&x.bias, block.bias, wide(block.biasWide, dtype)}, {&x.dbias, block.dbias, wide(block.dbiasWide, dtype)}, {&x.mask, block.mask, flashkit.Bool},
		{&x.slopes, block.slopes, flashkit.Float32}, {&x.sink, block.sink, flashkit.Float32}, {&x.dsink, block.dsink, flashkit.Float32},
	} {
		m, _ := f.at(v.from.data)
		*v.to = fakeView{memory: m, view: v.from, dtype: v.t}
	}
	if block.kvType != 0 {
		for _, i := range []int{vK, vV} {
			k.views[i].dtype = dtypes[block.kvType]
		}
	}
	if int8 != nil {
		x.scaleShift = int8.scaleShift
		for i, from := range []view{int8.kScale, int8.vScale} {
			k.views[vK+i].dtype = flashkit.Int8
			m, _ := f.at(from.data)
			x.scales[i] = &fakeView{memory: m, view: from, dtype: []flashkit.DType{flashkit.Float32, flashkit.Float16}[[]int32{int8.kHalf, int8.vHalf}[i]]}
		}
	}
	m, _ := f.at(block.carriedLSE)
	d, _ := f.at(block.delta)
	x.carried, x.deltas = &fakeView{memory: m}, &fakeView{memory: d}
	for b := range int(k.batch) {
		x.seqs = append(x.seqs, x.sequence(b))
	}
	switch {
	case fn.name == "sums_carry":
		x.copyLSE()
	case fn.name == "sums_dsink":
		x.sumSink()
	case strings.HasPrefix(fn.name, "sums_dbias"):
		x.sumBias()
	case strings.Contains(fn.name, "_bounds"): // forward reads the ranges themselves
	case strings.Contains(fn.name, "_delta"):
		x.sumDeltas()
	case strings.Contains(fn.name, "_finish"):
		x.finish()
	case strings.HasPrefix(fn.name, "bwd_"):
		x.backward()
	case strings.HasPrefix(fn.name, "decode_"):
		x.decode()
	default:
		x.forward()
	}
}

func wide(is int32, t flashkit.DType) flashkit.DType {
	if is != 0 {
		return flashkit.Float32
	}
	return t
}

// list returns n integers of device memory, nil for a null pointer.
func (x *fakeFeatured) list(p Pointer, n int) (list []int32) {
	m, ok := x.fake.at(p)
	if p == 0 || !ok {
		return nil
	}
	for i := range n {
		list = append(list, int32(binary.LittleEndian.Uint32(m[4*i:])))
	}
	return list
}

func (x *fakeFeatured) sequence(b int) fakeSequence {
	n := int(x.batch)
	s := fakeSequence{b: b, qBatch: b, rows: int(x.qLen), rowEnd: int(x.qLen), kvBatch: b, keys: int(x.kvLen), keyEnd: int(x.kvLen)}
	if starts := x.list(x.f.qStarts, n+1); starts != nil {
		s.qBatch, s.q0, s.rows = 0, int(starts[b]), int(starts[b+1]-starts[b])
		s.rowEnd = s.rows
	} else if lens := x.list(x.f.qLens, n); lens != nil {
		s.rows = int(lens[b])
	}
	if starts := x.list(x.f.kvStarts, n+1); starts != nil {
		s.kvBatch, s.key0, s.keys = 0, int(starts[b]), int(starts[b+1]-starts[b])
		s.keyEnd = s.keys
	} else if lens := x.list(x.f.kvLens, n); lens != nil {
		s.keys = int(lens[b])
	}
	if w := int(x.f.pageWidth); x.f.page != 0 {
		s.pages = x.list(x.f.pages, n*w)[b*w:][:w]
	}
	if s.diagonal = int(x.f.shift); x.f.topLeft == 0 {
		s.diagonal += s.keys - s.rows
	}
	s.lo, s.hi = -reach, reach
	if x.f.left >= 0 {
		s.lo = max(-reach, min(s.diagonal-int(x.f.left), reach))
	}
	if x.f.right >= 0 {
		s.hi = max(-reach, min(s.diagonal+int(x.f.right), reach))
	}
	s.k, s.v = x.keyRows(&s, vK, int(x.dim)), x.keyRows(&s, vV, int(x.vDim))
	return s
}

// keyRows returns K or V of a sequence.
func (x *fakeFeatured) keyRows(s *fakeSequence, i, cols int) [][][]float64 {
	heads := make([][][]float64, x.kvHeads)
	if x.views[i].view.data == 0 || strings.HasPrefix(x.name, "sums_carry") || x.name == "sums_dsink" { // their names have no type
		return heads
	}
	for g := range heads {
		for j := range s.keys {
			batch, at := s.kvBatch, s.key0+j
			if s.pages != nil {
				page := int(uint64(j) * uint64(x.f.pageFactor) >> x.f.pageShift)
				batch, at = int(s.pages[page]), j-page*int(x.f.page)
			}
			row := x.elements(i, batch, g, at, cols)
			if scales := x.scales[i-vK]; scales != nil {
				for c := range row {
					row[c] *= scales.get(batch, g, at, c/32>>x.scaleShift)
				}
			}
			heads[g] = append(heads[g], row)
		}
	}
	return heads
}

func (x *fakeFeatured) elements(i, b, h, r, cols int) []float64 {
	row := make([]float64, cols)
	if cols > 0 {
		x.views[i].read(row, b, h, r)
	}
	return row
}

// scores returns the scores of row i, -Inf if hidden, and the slopes of their caps.
func (x *fakeFeatured) scores(s *fakeSequence, h, i int) (scores, slopes []float64, seen []bool) {
	q := x.elements(vQ, s.qBatch, h, s.q0+i, int(x.dim))
	scores, slopes, seen = make([]float64, s.keys), make([]float64, s.keys), make([]bool, s.keys)
	for j := range scores {
		scores[j] = math.Inf(-1)
		if j < i+s.lo || j > i+s.hi || !x.inRanges(s.b, h, i, j) || x.mask.view.data != 0 && x.mask.memory[x.mask.at(s.b, h, i, j)] == 0 {
			continue
		}
		dot := 0.0
		for c, k := range s.k[h/int(x.heads/x.kvHeads)][j] {
			dot += q[c] * k
		}
		scores[j], slopes[j], seen[j] = dot*float64(x.scale), 1, true
		if x.f.capIn != 0 {
			t := math.Tanh(dot * float64(x.f.capIn))
			scores[j], slopes[j] = float64(x.f.cap)*t, 1-t*t
		}
		if x.bias.view.data != 0 {
			scores[j] += x.bias.get(s.b, h, i, j)
		}
		if x.slopes.view.data != 0 {
			slope := x.slopes.get(s.b, h, 0, 0)
			if math.IsInf(slope, 0) {
				slope = math.NaN()
			}
			scores[j] -= slope * math.Abs(float64(j-i-s.diagonal))
		}
	}
	return scores, slopes, seen
}

// inRanges reports whether a range of the row has the key.
func (x *fakeFeatured) inRanges(b, h, i, j int) bool {
	v := &x.f.ranges
	for r := range int(x.f.rangeCount) {
		ends := x.list(v.data+Pointer(4*(int(v.batch)*b+int(v.head)*h+int(v.row)*i+2*r)), 2)
		if int(ends[0]) <= j && j < int(ends[1]) {
			return true
		}
	}
	return x.f.rangeCount == 0
}

// kept returns the dropout factor of a weight.
func (x *fakeFeatured) kept(b, h, i, j int) float64 {
	key := uint32(j) + x.f.first[3]
	words := philox.Words([4]uint32{key / 8, uint32(i) + x.f.first[2], uint32(h) + x.f.first[1], uint32(b) + x.f.first[0]}, x.f.seed)
	if philox.Dropped(words, int(key%8), x.f.dropBelow) {
		return 0
	}
	return float64(x.f.keep)
}

func (x *fakeFeatured) forward() {
	rows, parts := int(x.plan[2]), 1
	if strings.HasPrefix(x.name, "fwd_f32") {
		parts = x.parts(x.name, x.vDim, 256)
	}
	tiles := ceilDiv(int(x.qLen), rows)
	if x.f.rowSlots > 0 {
		x.slotted(rows)
		return
	}
	if strings.HasPrefix(x.name, "fwd_sm90") { // few blocks process all tiles
		x.blocks = tiles * int(x.batch*x.heads)
	}
	for block := range min(x.blocks/parts, tiles*int(x.batch*x.heads)) {
		s, h := &x.seqs[block/tiles/int(x.heads)], block/tiles%int(x.heads)
		for i := block % tiles * rows; i < min((block%tiles+1)*rows, s.rowEnd); i++ {
			x.row(s, h, i)
		}
	}
}

// slotted computes the row tiles of packed sequences that have slots.
func (x *fakeFeatured) slotted(rows int) {
	at := func(b int) int { return (x.seqs[b].q0-x.seqs[0].q0)/rows + b }
	for b := range x.seqs {
		s := &x.seqs[b]
		end := (s.q0+s.rows-x.seqs[0].q0)/rows + b + 1
		for slot := at(b); slot < min(end, int(x.f.rowSlots)); slot++ {
			for i := (slot - at(b)) * rows; i < min((slot-at(b)+1)*rows, s.rowEnd); i++ {
				for h := range int(x.heads) {
					x.row(s, h, i)
				}
			}
		}
	}
}

// decode computes all rows in the last step: the merge kernel, or the last blocks to end.
func (x *fakeFeatured) decode() {
	if merge := strings.Contains(x.name, "_merge"); !merge && x.splits > 1 && x.counters == 0 && !strings.Contains(x.name, "_cluster") {
		return
	} else if tiles := ceilDiv(int(x.heads/x.kvHeads*x.qLen), int(x.plan[2])) * x.parts(x.name, x.vDim, 256); !merge && x.blocks != int(x.batch*x.kvHeads*x.splits)*tiles {
		return // rows are left out
	}
	for i := range x.seqs {
		for h := range int(x.heads) {
			for row := range x.seqs[i].rowEnd {
				x.row(&x.seqs[i], h, row)
			}
		}
	}
}

// row computes a row of O and LSE.
func (x *fakeFeatured) row(s *fakeSequence, h, i int) {
	o, lse, most := make([]float64, x.vDim), math.Inf(-1), math.Inf(-1)
	if i < s.rows {
		o, lse = x.sum(s, h, i)
	}
	if to := &x.views[vDLSE]; to.view.data != 0 { // RowMax
		if scores, _, _ := x.scores(s, h, i); i < s.rows {
			for _, y := range scores {
				most = max(most, y)
			}
			if x.f.carry != 0 && !math.IsInf(x.carried.get(0, 0, 0, x.index(s.b, h, i)), -1) {
				most = max(most, to.get(s.qBatch, h, s.q0+i, 0))
			}
			if math.IsInf(most, 1) {
				most = math.NaN()
			}
		}
		to.set(s.qBatch, h, s.q0+i, 0, most)
	}
	for c, y := range o {
		x.views[vO].set(s.qBatch, h, s.q0+i, c, y)
	}
	if x.views[vLSE].view.data != 0 {
		x.views[vLSE].set(s.qBatch, h, s.q0+i, 0, lse)
	}
}

func (x *fakeFeatured) sum(s *fakeSequence, h, i int) (o []float64, lse float64) {
	o = make([]float64, x.vDim)
	scores, _, seen := x.scores(s, h, i)
	earlier, sink, top := math.Inf(-1), math.Inf(-1), math.Inf(-1)
	if x.f.carry != 0 {
		earlier = x.carried.get(0, 0, 0, x.index(s.b, h, i))
	}
	if x.sink.view.data != 0 {
		sink = x.sink.get(0, h, 0, 0)
	}
	for _, y := range append([]float64{earlier, sink}, scores...) {
		top = max(top, y)
	}
	if math.IsInf(top, -1) {
		return o, top
	}
	l := math.Exp(earlier-top) + math.Exp(sink-top)
	if w := math.Exp(earlier - top); x.f.carry != 0 && w != 0 {
		for c := range o {
			o[c] += w * x.views[vO].get(s.qBatch, h, s.q0+i, c)
		}
	}
	for j, y := range scores {
		if w := math.Exp(y - top); seen[j] {
			l += w
			if w *= x.kept(s.b, h, i, j); w != 0 {
				for c, v := range s.v[h/int(x.heads/x.kvHeads)][j] {
					o[c] += w * v
				}
			}
		}
	}
	for c := range o {
		o[c] /= l
	}
	return o, top + math.Log(l)
}

func (x *fakeFeatured) copyLSE() {
	for i := range min(x.blocks*int(x.plan[2]), int(x.batch*x.heads*x.qLen)) {
		s, h := &x.seqs[i/int(x.qLen)/int(x.heads)], i/int(x.qLen)%int(x.heads)
		if r := i % int(x.qLen); r < s.rows {
			x.carried.set(0, 0, 0, i, x.views[vLSE].get(s.qBatch, h, s.q0+r, 0))
		}
	}
}

// sumDeltas writes delta to the location that kernels/sums.cu reads.
func (x *fakeFeatured) sumDeltas() {
	for b := range x.seqs {
		s := &x.seqs[b]
		for h := range int(x.heads) {
			for i := range s.rows {
				d := 0.0
				for c := range int(x.vDim) {
					d += x.views[vO].get(s.qBatch, h, s.q0+i, c) * x.views[vDO].get(s.qBatch, h, s.q0+i, c)
				}
				d = float64(float32(d)) - x.dlse(s.qBatch, h, s.q0+i)
				x.deltas.set(0, 0, 0, ((b*int(x.heads)+h)*int(x.f.deltaRows)+i)*int(x.f.deltaStep), d)
			}
		}
	}
}

// gradients returns P before and after dropout, and dS before the slope of the cap, for the keys
// that row i sees.
func (x *fakeFeatured) gradients(s *fakeSequence, h, i int) (dropped, ds, slopes []float64) {
	scores, slopes, seen := x.scores(s, h, i)
	lse, delta := x.views[vLSE].get(s.qBatch, h, s.q0+i, 0), x.deltas.get(0, 0, 0, ((s.b*int(x.heads)+h)*int(x.f.deltaRows)+i)*int(x.f.deltaStep))
	do := x.elements(vDO, s.qBatch, h, s.q0+i, int(x.vDim))
	dropped, ds = make([]float64, s.keys), make([]float64, s.keys)
	for j := range ds {
		w := math.Exp(scores[j] - lse)
		if !seen[j] || math.IsInf(lse, -1) || w == 0 {
			continue
		}
		dp, z := 0.0, x.kept(s.b, h, i, j)
		for c, v := range s.v[h/int(x.heads/x.kvHeads)][j] {
			dp += do[c] * v
		}
		dropped[j], ds[j] = w*z, w*(z*float64(float32(dp))-delta)
	}
	return dropped, ds, slopes
}

func (x *fakeFeatured) backward() {
	rowParts, keyParts, rows := 1, 1, 0
	if strings.HasPrefix(x.name, "bwd_f32") {
		rowParts, keyParts = x.parts(x.name, x.dim, 128), x.parts(x.name, max(x.dim, x.vDim), 128)
		rows = ceilDiv(int(x.qLen), int(x.plan[2])) * int(x.batch*x.heads)
	}
	tiles := ceilDiv(int(x.kvLen), int(x.plan[3])) * int(x.batch)
	if n := int(x.f.keySlots); n > 0 {
		last := &x.seqs[len(x.seqs)-1]
		if tiles = n; n < (last.key0+last.keys-x.seqs[0].key0)/int(x.plan[3])+len(x.seqs) {
			return // too few slots
		}
	}
	if (x.blocks-rows*rowParts)/keyParts < tiles*int(x.kvHeads) {
		return // a grid too small
	}
	group := int(x.heads / x.kvHeads)
	for b := range x.seqs {
		s := &x.seqs[b]
		for g := range int(x.kvHeads) {
			dk, dv := matrix(s.keyEnd, int(x.dim)), matrix(s.keyEnd, int(x.vDim))
			for h := g * group; h < (g+1)*group; h++ {
				for i := range s.rowEnd {
					x.backwardRow(s, h, i, dk, dv)
				}
			}
			x.store(vDK, s.kvBatch, g, s.key0, dk, float64(x.scale))
			x.store(vDV, s.kvBatch, g, s.key0, dv, 1)
		}
	}
	if x.f.dbiasApart != 0 {
		x.sumBias()
	}
}

func matrix(rows, cols int) [][]float64 {
	m := make([][]float64, rows)
	for i := range m {
		m[i] = make([]float64, cols)
	}
	return m
}

func (x *fakeFeatured) store(i, b, h, from int, rows [][]float64, scale float64) {
	for r := range rows {
		for c, y := range rows[r] {
			x.views[i].set(b, h, from+r, c, y*scale)
		}
	}
}

// backwardRow writes a row of dQ, and adds to dK and dV.
func (x *fakeFeatured) backwardRow(s *fakeSequence, h, i int, dk, dv [][]float64) {
	dq := matrix(1, int(x.dim))
	if i < s.rows {
		dropped, ds, slopes := x.gradients(s, h, i)
		q, do := x.elements(vQ, s.qBatch, h, s.q0+i, int(x.dim)), x.elements(vDO, s.qBatch, h, s.q0+i, int(x.vDim))
		for j := range ds {
			if y := ds[j] * slopes[j]; y != 0 {
				for c, k := range s.k[h/int(x.heads/x.kvHeads)][j] {
					dq[0][c] += y * k
					dk[j][c] += y * q[c]
				}
			}
			if w := dropped[j]; w != 0 {
				for c := range do {
					dv[j][c] += w * do[c]
				}
			}
		}
	}
	x.store(vDQ, s.qBatch, h, s.q0+i, dq, float64(x.scale))
}

// finish writes dQ if there are no keys, and so no blocks of keys; else backward wrote it.
func (x *fakeFeatured) finish() {
	if x.kvLen > 0 {
		return
	}
	for b := range x.seqs {
		s := &x.seqs[b]
		for h := range int(x.heads) {
			x.store(vDQ, s.qBatch, h, s.q0, matrix(s.rowEnd, int(x.dim)), 1)
		}
	}
}

func (x *fakeFeatured) sumSink() {
	for h := range x.blocks {
		sum := 0.0
		for b := range x.seqs {
			s := &x.seqs[b]
			for i := range s.rows {
				lse := x.views[vLSE].get(s.qBatch, h, s.q0+i, 0)
				if w := math.Exp(x.sink.get(0, h, 0, 0) - lse); w != 0 && !math.IsInf(lse, -1) {
					sum -= w * x.deltas.get(0, 0, 0, ((b*int(x.heads)+h)*int(x.f.deltaRows)+i)*int(x.f.deltaStep))
				}
			}
		}
		x.dsink.set(0, h, 0, 0, sum)
	}
}

func (x *fakeFeatured) sumBias() {
	n := x.f.dbiasShape
	sums := make([]float64, n[0]*n[1]*n[2]*x.kvLen)
	at := func(b, h, i, j int) int {
		y := 0
		for d, k := range [...]int{b, h, i} {
			if n[d] == 1 {
				k = 0
			}
			y = y*int(n[d]) + k
		}
		return y*int(x.kvLen) + j
	}
	for b := range x.seqs {
		for h := range int(x.heads) {
			for i := range x.seqs[b].rows {
				_, ds, _ := x.gradients(&x.seqs[b], h, i)
				for j, y := range ds {
					sums[at(b, h, i, j)] += y
				}
			}
		}
	}
	for b := range int(n[0]) {
		for h := range int(n[1]) {
			for i := range int(n[2]) {
				for j := range int(x.kvLen) {
					x.dbias.set(b, h, i, j, sums[at(b, h, i, j)])
				}
			}
		}
	}
}
