package cuda

import (
	"encoding/binary"
	"math"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// The kernels' results, computed plainly from the argument block alone. The whole conformance suite
// thus tests the host's side of a launch without a GPU. Rows and keys that the grid does not cover
// stay unwritten.

// A fakeView reads and writes a view in the fake's memory.
type fakeView struct {
	memory            []byte
	view              view
	dtype             flashkit.DType
	dense             []float64 // its elements, once load has read them
	heads, rows, cols int
	exact             []float64 // replaces memory: a sum that the kernel keeps in registers
}

// load reads all elements, for row.
func (v *fakeView) load(batch, heads, rows, cols int32) {
	if v.view.data == 0 {
		return
	}
	v.heads, v.rows, v.cols = int(heads), int(rows), int(cols)
	v.dense = make([]float64, int(batch)*v.heads*v.rows*v.cols)
	if v.cols == 0 {
		return
	}
	for b := range int(batch) {
		for h := range v.heads {
			for r := range v.rows {
				v.read(v.row(b, h, r), b, h, r)
			}
		}
	}
}

// read fills x with the first elements of a row.
func (v *fakeView) read(x []float64, b, h, r int) {
	m, size := v.memory[v.at(b, h, r, 0):], v.dtype.Size()
	m = m[:len(x)*size]
	for c := range x {
		switch e := m[c*size:]; v.dtype {
		case flashkit.Float16:
			x[c] = float64(half.FromF16(binary.LittleEndian.Uint16(e)))
		case flashkit.BFloat16:
			x[c] = float64(half.FromBF16(binary.LittleEndian.Uint16(e)))
		case flashkit.Int8:
			x[c] = float64(int8(e[0]))
		default:
			x[c] = float64(math.Float32frombits(binary.LittleEndian.Uint32(e)))
		}
	}
}

func (v *fakeView) row(b, h, r int) []float64 {
	return v.dense[((b*v.heads+h)*v.rows+r)*v.cols:][:v.cols]
}

func (v *fakeView) at(b, h, r, c int) int {
	return (int(v.view.batch)*b + int(v.view.head)*h + int(v.view.row)*r + c) * v.dtype.Size()
}

func (v *fakeView) get(b, h, r, c int) float64 {
	if v.exact != nil {
		return v.exact[c]
	}
	m := v.memory[v.at(b, h, r, c):]
	switch v.dtype {
	case flashkit.Float16:
		return float64(half.FromF16(binary.LittleEndian.Uint16(m)))
	case flashkit.BFloat16:
		return float64(half.FromBF16(binary.LittleEndian.Uint16(m)))
	}
	return float64(math.Float32frombits(binary.LittleEndian.Uint32(m)))
}

func (v *fakeView) set(b, h, r, c int, x float64) {
	if v.exact != nil {
		v.exact[c] = x
		return
	}
	m := v.memory[v.at(b, h, r, c):]
	switch v.dtype {
	case flashkit.Float16:
		binary.LittleEndian.PutUint16(m, half.ToF16(float32(x)))
	case flashkit.BFloat16:
		binary.LittleEndian.PutUint16(m, half.ToBF16(float32(x)))
	default:
		binary.LittleEndian.PutUint32(m, math.Float32bits(float32(x)))
	}
}

// add adds scaled values to the elements of an array from first on.
func (v *fakeView) add(first int, scale float64, values []float64) {
	if v.exact != nil {
		for c, x := range values {
			v.exact[first+c] += scale * x
		}
		return
	}
	for c, x := range values {
		v.set(0, 0, 0, first+c, v.get(0, 0, 0, first+c)+scale*x)
	}
}

// A fakeKernel is one launch.
type fakeKernel struct {
	params
	views  [len(params{}.views)]fakeView
	plan   [4]int32
	blocks int
	arrays map[Pointer]*fakeView // workspace
}

const (
	vQ = iota
	vK
	vV
	vO
	vLSE
	vDO
	vDLSE
	vDQ
	vDK
	vDV
)

func (f *fakeDriver) compute(fn *fakeFunction, l fakeLaunch, block *features, int8 *int8Args) error {
	k := &fakeKernel{params: l.params, plan: fn.plan, blocks: l.blocks, arrays: map[Pointer]*fakeView{}}
	dtype := flashkit.Float32
	for _, t := range dtypes[1:] {
		if strings.Contains(fn.name, "_"+t.String()) {
			dtype = t
		}
	}
	if int8 != nil {
		dtype = dtypes[int8.dtype]
	}
	for i := range k.views {
		t := dtype
		if i == vLSE || i == vDLSE {
			t = flashkit.Float32
		}
		m, ok := f.at(l.params.views[i].data)
		if !ok && l.params.views[i].data != 0 {
			return f.fail("cuLaunchKernel", 700)
		}
		k.views[i] = fakeView{memory: m, view: l.params.views[i], dtype: t}
	}
	for _, p := range []Pointer{k.delta, k.dqSum, k.counters, k.partO, k.partLSE} {
		if m, ok := f.at(p); ok {
			k.arrays[p] = &fakeView{memory: m}
		}
	}
	if block != nil {
		f.computeFeatured(fn, k, *block, dtype, int8)
		return nil
	}
	k.load()
	switch {
	case strings.HasPrefix(fn.name, "fwd_f32"):
		k.blocks /= k.parts(fn.name, k.vDim, 256)
		k.forward()
	case strings.HasPrefix(fn.name, "fwd_sm90_split"):
		k.forwardParts()
	case strings.HasPrefix(fn.name, "fwd_sm90"): // few blocks process all tiles
		k.blocks = ceilDiv(int(k.qLen), int(k.plan[2])) * int(k.batch*k.heads)
		k.forward()
	case strings.HasPrefix(fn.name, "fwd_"):
		k.forward()
	case strings.Contains(fn.name, "_merge"):
		k.merge()
	case strings.Contains(fn.name, "_cluster"):
		k.blocks /= int(k.splits) * k.parts(fn.name, k.vDim, 256)
		k.splits = 1
		k.decode()
	case strings.HasPrefix(fn.name, "decode_"):
		k.blocks /= k.parts(fn.name, k.vDim, 256)
		if k.decode(); k.splits > 1 && k.counters != 0 {
			k.merge()
		}
	case strings.Contains(fn.name, "_delta"):
		k.doDelta()
	case strings.Contains(fn.name, "_finish"):
		k.finish()
	case strings.HasPrefix(fn.name, "bwd_sm90_sums"):
		k.sumParts()
	case strings.HasPrefix(fn.name, "bwd_sm90_parts"):
		k.blocks /= int(k.splits)
		k.backward()
	case strings.HasPrefix(fn.name, "bwd_sm90_pairs"):
		k.blocks /= 2
		k.backward()
	case strings.HasPrefix(fn.name, "bwd_sm90_once"):
		k.backward()
	case strings.HasPrefix(fn.name, "bwd_sm90"): // few blocks may process all tiles
		k.blocks = ceilDiv(int(k.kvLen), int(k.plan[3])) * int(k.batch*k.kvHeads)
		k.backward()
	case strings.HasPrefix(fn.name, "bwd_f32_d"):
		k.backwardF32(fn.name)
	default:
		k.backward()
	}
	return nil
}

// load reads the inputs.
func (k *fakeKernel) load() {
	for _, x := range []struct{ i, heads, rows, cols int32 }{
		{vQ, k.heads, k.qLen, k.dim}, {vK, k.kvHeads, k.kvLen, k.dim}, {vV, k.kvHeads, k.kvLen, k.vDim}, {vDO, k.heads, k.qLen, k.vDim},
	} {
		k.views[x.i].load(k.batch, x.heads, x.rows, x.cols)
	}
}

func (k *fakeKernel) sees(i, j int) bool { return j >= i+int(k.lo) && j <= i+int(k.hi) }

func (k *fakeKernel) dlse(b, h, i int) float64 {
	if k.views[vDLSE].view.data == 0 {
		return 0
	}
	return k.views[vDLSE].get(b, h, i, 0)
}

func (k *fakeKernel) score(b, h, i, j int) float64 {
	s, key := 0.0, k.views[vK].row(b, h/int(k.heads/k.kvHeads), j)
	for c, q := range k.views[vQ].row(b, h, i) {
		s += q * key[c]
	}
	return s * float64(k.scale)
}

// attend returns O and LSE of a row over some of the keys.
func (k *fakeKernel) attend(b, h, i, from, to int) (o []float64, lse float64) {
	o = make([]float64, k.vDim)
	top, sum := math.Inf(-1), 0.0
	scores := make([]float64, to)
	for j := from; j < to; j++ {
		if k.sees(i, j) {
			scores[j] = k.score(b, h, i, j)
			top = max(top, scores[j])
		}
	}
	for j := from; j < to; j++ {
		if !k.sees(i, j) {
			continue
		}
		p := math.Exp(scores[j] - top)
		sum += p
		for c, v := range k.views[vV].row(b, h/int(k.heads/k.kvHeads), j) {
			o[c] += p * v
		}
	}
	if math.IsInf(top, -1) {
		return o, top
	}
	for c := range o {
		o[c] /= sum
	}
	return o, top + math.Log(sum)
}

func (k *fakeKernel) write(b, h, i int, o []float64, lse float64) {
	for c, x := range o {
		k.views[vO].set(b, h, i, c, x)
	}
	if k.views[vLSE].view.data != 0 {
		k.views[vLSE].set(b, h, i, 0, lse)
	}
}

// eachRow calls f for the rows that the grid of row tiles covers. Tiles of some kernels cross from
// one head to the next.
func (k *fakeKernel) eachRow(f func(b, h, i int)) {
	rows := int(k.plan[2])
	perHead := ceilDiv(int(k.qLen), rows)
	for block := range min(k.blocks, perHead*int(k.batch*k.heads)) {
		bh := block / perHead
		for i := block % perHead * rows; i < min(block%perHead*rows+rows, int(k.qLen)); i++ {
			f(bh/int(k.heads), bh%int(k.heads), i)
		}
	}
}

func (k *fakeKernel) forward() {
	k.eachRow(func(b, h, i int) {
		o, lse := k.attend(b, h, i, 0, int(k.kvLen))
		k.write(b, h, i, o, lse)
	})
}

func (k *fakeKernel) index(b, h, i int) int {
	return (b*int(k.heads)+h)*int(k.qLen) + i
}

func (k *fakeKernel) decode() {
	group := int(k.heads / k.kvHeads)
	packed := ceilDiv(group*int(k.qLen), int(k.plan[2]))
	all := int(k.batch * k.heads * k.qLen)
	for block := range k.blocks {
		split, unit := block%int(k.splits), block/int(k.splits)
		b, g, tile := unit/packed/int(k.kvHeads), unit/packed%int(k.kvHeads), unit%packed
		from, to := split*int(k.kvLen)/int(k.splits), (split+1)*int(k.kvLen)/int(k.splits)
		for r := tile * int(k.plan[2]); r < min((tile+1)*int(k.plan[2]), group*int(k.qLen)); r++ {
			h, i := g*group+r/int(k.qLen), r%int(k.qLen)
			o, lse := k.attend(b, h, i, from, to)
			if k.splits == 1 {
				k.write(b, h, i, o, lse)
				continue
			}
			k.writePart(split*all+k.index(b, h, i), o, lse)
		}
	}
}

func (k *fakeKernel) merge() {
	all := int(k.batch * k.heads * k.qLen)
	for at := range all {
		o, top, sum := make([]float64, k.vDim), math.Inf(-1), 0.0
		for s := range int(k.splits) {
			top = max(top, k.arrays[k.partLSE].get(0, 0, 0, s*all+at))
		}
		for s := range int(k.splits) {
			if math.IsInf(top, -1) {
				break
			}
			w := math.Exp(k.arrays[k.partLSE].get(0, 0, 0, s*all+at) - top)
			sum += w
			for c := range o {
				o[c] += w * k.arrays[k.partO].get(0, 0, 0, (s*all+at)*int(k.vDim)+c)
			}
		}
		lse := top
		if sum > 0 {
			lse = top + math.Log(sum)
			for c := range o {
				o[c] /= sum
			}
		}
		k.write(at/int(k.qLen)/int(k.heads), at/int(k.qLen)%int(k.heads), at%int(k.qLen), o, lse)
	}
}

func (k *fakeKernel) doDelta() {
	k.eachRow(func(b, h, i int) {
		d := 0.0
		for c := range int(k.vDim) {
			d += k.views[vO].get(b, h, i, c) * k.views[vDO].get(b, h, i, c)
		}
		d = float64(float32(d)) - k.dlse(b, h, i) // rounded like dP, so that they cancel if O is a row of V
		k.arrays[k.delta].set(0, 0, 0, k.index(b, h, i), d)
		if k.dqSum == 0 {
			k.arrays[k.delta].set(0, 0, 0, k.index(b, h, i)+int(k.batch*k.heads*k.qLen), d)
		}
		for c := range int(k.dim) {
			if k.dqSum != 0 {
				k.arrays[k.dqSum].set(0, 0, 0, k.index(b, h, i)*int(k.dim)+c, 0)
			}
		}
	})
}

func (k *fakeKernel) finish() {
	k.eachRow(func(b, h, i int) {
		for c := range int(k.dim) {
			k.views[vDQ].set(b, h, i, c, k.arrays[k.dqSum].get(0, 0, 0, k.index(b, h, i)*int(k.dim)+c)*float64(k.scale))
		}
	})
}

func (k *fakeKernel) backward() {
	keys := int(k.plan[3])
	perHead := ceilDiv(int(k.kvLen), keys)
	for block := range min(k.blocks, perHead*int(k.batch*k.kvHeads)) {
		bg := block / perHead
		for j := block % perHead * keys; j < min(block%perHead*keys+keys, int(k.kvLen)); j++ {
			k.backwardKey(bg/int(k.kvHeads), bg%int(k.kvHeads), j)
		}
	}
}

// backwardF32 computes blocks of keys, then blocks of rows, which alone write dQ.
func (k *fakeKernel) backwardF32(name string) {
	rowParts := k.parts(name, k.dim, 256)
	rows := ceilDiv(int(k.qLen), int(k.plan[2])) * int(k.batch*k.heads)
	k.dqSum = 1
	k.arrays[k.dqSum] = &fakeView{exact: make([]float64, k.batch*k.heads*k.qLen*k.dim)}
	k.blocks = (k.blocks - rows*rowParts) / k.parts(name, max(k.dim, k.vDim), 128)
	k.backward()
	k.blocks = rows
	k.finish()
}

func (k *fakeKernel) backwardKey(b, g, j int) {
	group := int(k.heads / k.kvHeads)
	dk, dv := make([]float64, k.dim), make([]float64, k.vDim)
	parts := max(1, int(k.splits))
	for h := g * group; h < (g+1)*group; h++ {
		if parts > 1 && h%(group/parts) == 0 {
			clear(dk)
			clear(dv)
		}
		for i := range int(k.qLen) {
			if !k.sees(i, j) {
				continue
			}
			p := math.Exp(k.score(b, h, i, j) - k.views[vLSE].get(b, h, i, 0))
			dp, v := 0.0, k.views[vV].row(b, g, j)
			for c, do := range k.views[vDO].row(b, h, i) {
				dp += do * v[c]
				dv[c] += p * do
			}
			ds := p * (float64(float32(dp)) - k.arrays[k.delta].get(0, 0, 0, k.index(b, h, i)))
			q, key, sum, first := k.views[vQ].row(b, h, i), k.views[vK].row(b, g, j), k.arrays[k.dqSum], k.index(b, h, i)*int(k.dim)
			for c := range dk {
				dk[c] += ds * q[c]
			}
			sum.add(first, ds, key)
		}
		if parts > 1 {
			k.partOfGroup(b, g, h%group/(group/parts), j, dk, dv)
		}
	}
	if parts > 1 {
		return
	}
	for c, x := range dk {
		k.views[vDK].set(b, g, j, c, x*float64(k.scale))
	}
	for c, x := range dv {
		k.views[vDV].set(b, g, j, c, x)
	}
}
