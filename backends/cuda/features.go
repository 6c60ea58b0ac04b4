package cuda

import (
	"math"
	"math/bits"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/philox"
)

// features is struct Features of kernels/params.cuh, field for field.
type features struct {
	bias, dbias, mask, slopes, sink, dsink view

	qLens, qStarts, kvLens, kvStarts, pages Pointer
	left, right, shift                      int64
	carriedLSE, delta                       Pointer

	seed                [2]uint32
	dropBelow           uint32
	keep                float32
	capIn, capOut, cap  float32
	topLeft             int32
	page, pageWidth     int32
	pageFactor          uint32
	pageShift           int32
	pageBox             int32
	biasWide, dbiasWide int32
	biasPairs           int32
	maskPairs           int32
	kvType              int32
	carry               int32
	deltaRows           int32
	deltaStep           int32
	dbiasShape          [3]int32
	dbiasApart          int32
	first               [4]uint32 // batch, head, row, key
	keySlots, rowSlots  int32
	_                   [52]byte // the driver copies the block with the padding of its alignment to 64
}

// plainFeatures are those that plain instances of every kernel take, as numbers.
const plainFeatures = flashkit.FeatureShift

// featured reports whether a problem is for the instances with features.
func featured(p *flashkit.Problem) bool { return p.Features()&^plainFeatures != 0 }

// shapedPart returns the instance of fwd_sm90 for softcap, ALiBi or both.
func shapedPart(p *flashkit.Problem) partID {
	switch {
	case p.Score.ALiBi && scoreUnit(p) < 1e-15: // slopes over it may be infinite
		return partFeatures
	case p.Score.Softcap == 0:
		return partALiBi
	case p.Score.ALiBi:
		return partShaped
	}
	return partSoftcap
}

// setFeatures describes what a call has beyond dense attention in a band, but for its tensors
// and sequences.
func (x *arguments) setFeatures(c *flashkit.Call) {
	x.features = features{}
	if x.featured = featured(&c.Problem); !x.featured {
		return
	}
	f, p, args := &x.features, &c.Problem, c.Args
	if c.Pass == flashkit.PassBackward {
		n := args.DBias.Shape()
		f.dbiasShape = [3]int32{int32(n[0]), int32(n[1]), int32(n[2])}
	}
	f.say(p, args)
	f.biasWide, f.dbiasWide = toBit(args.Bias.DType() == flashkit.Float32), toBit(args.DBias.DType() == flashkit.Float32)
}

// say fills in what the problem says.
func (f *features) say(p *flashkit.Problem, args *flashkit.Args) {
	f.left, f.right, f.shift = side(p.Band.Left()), side(p.Band.Right()), int64(p.Band.Shifted())
	f.topLeft = toBit(p.Band.IsTopLeft())
	f.keep = 1
	if d := p.Score.Dropout; d != 0 {
		f.seed, f.dropBelow, f.keep = philox.Key(args.Seed), philox.Below(d), philox.Keep(d)
		o := &args.Origin
		f.first = [4]uint32{uint32(o.Batch), uint32(o.Head), uint32(o.Row), uint32(o.Key)}
	}
	if c := float64(p.Score.Softcap); c != 0 {
		f.capIn, f.capOut, f.cap = float32(p.SoftmaxScale()/c), float32(c*math.Log2E), float32(c)
	}
	switch p.KVDType {
	case flashkit.Float16:
		f.kvType = 1
	case flashkit.BFloat16:
		f.kvType = 2
	}
	f.carry = toBit(p.Carry)
	if f.page = int32(min(p.Page, reach)); p.Page > 0 {
		f.pageFactor, f.pageShift = divisor(uint32(f.page))
	}
}

// align says whether pairs of keys of biases and masks can be read at once.
func (f *features) align(p *flashkit.Problem, biasSize int) {
	pairs := func(v *view, size int) int32 {
		return toBit(v.data != 0 && p.KVLen%2 == 0 && uintptr(v.data)%uintptr(2*size) == 0 && (v.batch|v.head|v.row)%2 == 0)
	}
	f.biasPairs, f.maskPairs = pairs(&f.bias, biasSize), pairs(&f.mask, 1)
}

// chunks reports whether all rows of elements of a size begin at multiples of 16 bytes.
func (v *view) chunks(size int64) bool {
	return uintptr(v.data)%rowAlignment == 0 && (v.batch|v.head|v.row)*size%rowAlignment == 0
}

// side returns the keys that a band shows on a side, so that sums with a shift do not overflow.
func side(n int) int64 { return int64(min(n, math.MaxInt/2)) }

func toBit(x bool) int32 {
	if x {
		return 1
	}
	return 0
}

// divisor returns the numbers with which j / d is j * factor >> shift for 0 <= j < 2^31
// (Granlund and Montgomery 1994).
func divisor(d uint32) (factor uint32, shift int32) {
	l := bits.Len32(d - 1)
	return uint32((uint64(1)<<(31+l) + uint64(d) - 1) / uint64(d)), int32(31 + l)
}

// enqueueFeatured is enqueue for the instances with features.
func (b *Backend) enqueueFeatured(id stemID, p flashkit.Problem, x *arguments, s StreamHandle) error {
	w, err := b.plan(id, p)
	if err != nil {
		return err
	}
	if kept, err := x.keepInts(b, s); err != nil {
		return err
	} else if !kept {
		w.ints = x.words
	}
	return w.within(b, x, s, func() error {
		if w.ints > 0 {
			if err := x.copyInts(b.drv, x.intsAt, s); err != nil {
				return err
			}
		}
		if p.Carry {
			if err := b.sum(sumCarry, p, x, ceilDiv(p.QLen, carryRows)*p.Batch*p.Heads, s); err != nil {
				return err
			}
		}
		if p.Batch > 0 {
			if err := b.enqueueParts(id, p, x, s); err != nil {
				return err
			}
		}
		if stems[id].pass == flashkit.PassForward {
			return nil
		}
		return b.enqueueSums(p, x, s)
	})
}

// enqueueParts launches the kernels of a stem that have instances with features.
func (b *Backend) enqueueParts(id stemID, p flashkit.Problem, x *arguments, s StreamHandle) error {
	block := unsafe.Pointer(&x.mapped)
	part := x.part(&stems[id], &p)
	if id == bwdSM90 && part == partLayout {
		part = stems[id].layoutPart(x.wholeOf(&p), b.dev.SMs)
	}
	f, err := b.images.get(b.drv, id, part, p)
	if err != nil {
		return err
	}
	heads := p.Batch * p.Heads
	switch id {
	case fwdSM90:
		return b.runHopperFeatures(f, p, x, s)
	case decodeSM80:
		return b.runDecode(b.planDecode(f, id, p), f, p, x, block, s)
	}
	if stems[id].pass == flashkit.PassForward {
		blocks := ceilDiv(p.QLen, f.rows) * heads
		if id == fwdF32 {
			blocks *= f32Parts(id, p, p.VDim, f32Columns)
		}
		return b.run(f, blocks, block, s)
	}
	delta, err := b.images.get(b.drv, id, partFeaturesDelta, p)
	if err != nil {
		return err
	}
	if id == bwdSM80 || id == bwdSM90 {
		return b.enqueueBackwardFeatures(id, part, delta, f, p, x, s)
	}
	x.features.delta, x.deltaRows, x.deltaStep = x.params.delta+Pointer(4*heads*p.QLen), int32(p.QLen), 1
	if err := b.run(delta, heads*ceilDiv(p.QLen, delta.rows), block, s); err != nil {
		return err
	}
	keys := ceilDiv(p.KVLen, f.keys) * p.Batch * p.KVHeads * f32Parts(id, p, max(p.Dim, p.VDim), f32KeyColumns)
	rows := ceilDiv(p.QLen, f.rows) * heads * f32Parts(id, p, p.Dim, f32KeyColumns)
	return b.run(f, keys+rows, block, s)
}

// runHopperFeatures launches fwd_sm90 with features.
func (b *Backend) runHopperFeatures(f *function, p flashkit.Problem, x *arguments, s StreamHandle) error {
	box := f.keys
	if p.Page > 0 {
		box = commonDivisor(p.Page, f.keys)
	}
	heads, sms := p.Batch*p.Heads, b.dev.SMs-x.spare
	x.pageBox, x.rows = int32(box), rowTiles{tall: int32(ceilDiv(p.QLen, f.rows))}
	x.rowSlots = x.slots(seqQStarts, p.QLen, f.rows, b.eager)
	switch {
	case x.rowSlots > 0:
		x.rows.tall = int32(ceilDiv(int(x.rowSlots), p.Batch)) // what all have in the mean
	case !banded(p):
		x.rows, _ = cutRows(p.QLen, heads, f.rows/groupRows, sms)
	}
	blocks := min(sms, int(x.rows.tall+x.rows.low)*heads)
	if blocks == 0 {
		return nil
	}
	if err := b.mapTensors(x, flashkit.PassForward, p.DType, x.shapes, [...]int{f.rows, box, box, groupRows}); err != nil {
		return err
	}
	if banded(p) || p.Ragged || p.Score.Mask {
		if err := b.drv.MemsetD32Async(x.turn, 0, 1, s); err != nil {
			return err
		}
	} else {
		x.turn = 0 // tiles are alike: none need be dealt out
	}
	return b.run(f, blocks, unsafe.Pointer(&x.mapped), s)
}

func commonDivisor(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}

// enqueueBackwardFeatures launches the kernels of bwd_sm80 or bwd_sm90: those of delta, the
// main one, and the one that rounds dQ.
func (b *Backend) enqueueBackwardFeatures(id stemID, part partID, delta, main *function, p flashkit.Problem, x *arguments, s StreamHandle) error {
	finish, err := b.images.get(b.drv, id, partFeaturesFinish, p)
	if err != nil {
		return err
	}
	heads, blocks, launch := p.Batch*p.Heads, p.Batch*p.KVHeads*ceilDiv(p.KVLen, main.keys), b.drv.LaunchKernel
	deltas, finishes := max(1, heads*ceilDiv(p.QLen, delta.rows)), heads*ceilDiv(p.QLen, finish.rows)                   // also without rows: delta sets the counters
	x.features.delta, x.deltaRows, x.deltaStep = x.params.delta+4, int32(ceilDiv(p.QLen, backwardRows)*backwardRows), 2 // beside LSE
	if id == bwdSM90 {
		rows := ceilDiv(p.QLen, hopperRows) * hopperRows
		x.features.delta, x.deltaRows, x.deltaStep = x.params.delta+Pointer(4*heads*rows), int32(rows), 1
		if err := b.keepApart(&p, x, s); err != nil {
			return err
		}
		if b.drv.LaunchDependent != nil {
			launch = b.drv.LaunchDependent
		}
		if x.keySlots = x.slots(seqKVStarts, p.KVLen, main.keys, b.eager); p.KVHeads < slotHeads && !b.eager {
			x.keySlots = 0
		}
		if x.keySlots > 0 {
			blocks = int(x.keySlots) * p.KVHeads
		}
		if x.rowSlots = x.slots(seqQStarts, p.QLen, delta.rows, b.eager); x.rowSlots > 0 {
			deltas, finishes = int(x.rowSlots)*p.Heads, int(x.rowSlots)*p.Heads
		}
		blocks *= stems[id].dims[stems[id].pad(p)].shares
		if stems[id].stays(part, &p) {
			blocks = min(blocks, b.dev.SMs-x.spare)
		}
		if err := b.mapTensors(x, flashkit.PassBackward, p.DType, x.shapes, [...]int{main.rows, main.keys, main.keys, main.rows}); err != nil {
			return err
		}
	}
	block := unsafe.Pointer(&x.mapped)
	if err := b.run(delta, deltas, block, s); err != nil {
		return err
	}
	if err := main.run(launch, blocks, block, s); err != nil {
		return err
	}
	return finish.run(launch, finishes, block, s)
}

// keepApart lets bwd_sm90 write DBias where that is no sum, and makes what a band hides 0.
func (b *Backend) keepApart(p *flashkit.Problem, x *arguments, s StreamHandle) error {
	v, n := &x.dbias, x.dbiasShape
	if v.data == 0 || p.Score.Softcap != 0 || int(n[0]) != p.Batch || int(n[1]) != p.Heads || int(n[2]) != p.QLen {
		return nil
	}
	if p.Ragged || banded(*p) {
		size := p.DType.Size()
		if x.dbiasWide != 0 {
			size = 4
		}
		rows, bytes := int64(p.QLen), p.Batch*p.Heads*p.QLen*p.KVLen*size
		dense := [...]bool{p.QLen == 1 || v.row == int64(p.KVLen), p.Heads == 1 || v.head == rows*int64(p.KVLen), p.Batch == 1 || v.batch == rows*int64(p.Heads*p.KVLen)}
		if bytes%4 != 0 || dense != [3]bool{true, true, true} {
			return nil
		}
		if bytes > 0 {
			if err := b.drv.MemsetD32Async(v.data, 0, bytes/4, s); err != nil {
				return err
			}
		}
	}
	x.dbiasApart = 1
	return nil
}

// enqueueSums launches what sums DBias and DSink, when they are wanted.
func (b *Backend) enqueueSums(p flashkit.Problem, x *arguments, s StreamHandle) error {
	if x.dsink.data != 0 {
		if err := b.sum(sumDSink, p, x, p.Heads, s); err != nil {
			return err
		}
	}
	if x.dbias.data == 0 || x.dbiasApart != 0 {
		return nil
	}
	d := x.dbiasShape
	return b.sum(sumDBias, p, x, ceilDiv(p.KVLen, dbiasTile)*ceilDiv(int(d[2]), dbiasTile)*int(d[1])*int(d[0]), s)
}

// The tiles of kernels/sums.cu.
const (
	carryRows = 256
	dbiasTile = 64
)

// A sumID is a kernel of kernels/sums.cu.
type sumID int

const (
	sumCarry sumID = iota
	sumDSink
	sumDBias // of each dtype
	numSums  = sumDBias + sumID(len(dtypes))
)

// sumName returns the name of a kernel of kernels/sums.cu.
func sumName(id sumID) string {
	switch id {
	case sumCarry:
		return "sums_carry"
	case sumDSink:
		return "sums_dsink"
	}
	return "sums_dbias_" + dtypes[id-sumDBias].String()
}

// sum launches a kernel of kernels/sums.cu.
func (b *Backend) sum(id sumID, p flashkit.Problem, x *arguments, blocks int, s StreamHandle) error {
	if blocks == 0 {
		return nil
	}
	if id == sumDBias {
		for i, t := range dtypes {
			if t == p.DType {
				id += sumID(i)
			}
		}
	}
	f, err := b.images.getSum(b.drv, id)
	if err != nil {
		return err
	}
	return b.run(f, blocks, unsafe.Pointer(&x.mapped), s)
}
