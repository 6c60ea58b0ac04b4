package cuda

import (
	"errors"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// A launch is one call of a family in a stream.
type launch struct {
	b      *Backend
	id     familyID
	family *family
	p      flashkit.Problem // the call's problem, or the result of packedHeads if that has fewer tiles
	x      *arguments
	s      StreamHandle
}

// get returns an instance of the family. A call loads all of its instances before its first launch.
// Later equal calls, which a CUDA graph may capture, therefore load no instance.
func (l *launch) get(i instance) (*function, error) { return l.b.images.get(l.b.drv, l.id, i, l.p) }

// featureTrait returns traitFeatures for a call with features, and 0 for other calls. All kernels
// of a call with features have the trait.
func (l *launch) featureTrait() instance {
	switch {
	case l.p.Score.Ranges != 0:
		return traitFeatures | traitRanges
	case l.x.hasFeatures:
		return traitFeatures
	}
	return 0
}

func (l *launch) instance(splits int, halves bool) instance {
	c := instanceCall{p: &l.p, whole: l.x.wholeOf(&l.p), sms: l.b.dev.SMs, splits: splits, halves: halves}
	if l.x.hasFeatures {
		c.scores = l.x.scoreTensors()
	}
	return l.family.instanceOf(&c)
}

// block returns the address of a kernel's arguments. The arguments begin with the tensor maps if
// mapped is true or the call has features.
func (l *launch) block(mapped bool) unsafe.Pointer {
	if mapped || l.x.hasFeatures {
		return unsafe.Pointer(&l.x.mapped)
	}
	return unsafe.Pointer(&l.x.params)
}

// mapTensors encodes the tensor maps of Q, K, V, and O (forward) or dO (backward). A copy with map
// i moves tiles[i] rows.
func (l *launch) mapTensors(tiles [4]int) error {
	shapes := l.x.shapes
	if !l.x.hasFeatures {
		shapes = [...][4]int{l.p.QShape(), l.p.KShape(), l.p.VShape(), l.p.OShape()}
	}
	return l.b.mapTensors(l.x, l.family.pass, l.p.DType, shapes, tiles)
}

// sumsAlone launches only the kernels that sum DBias and DSink, for a call that needs no main
// kernel.
func (l *launch) sumsAlone() error {
	if !l.x.hasFeatures {
		return nil
	}
	w, err := l.b.plan(l.id, l.p)
	if err != nil {
		return err
	}
	return l.within(&w, func() error { return nil })
}

// forward launches one block for each tile of a head's query rows, or several if fwd_f32 divides
// the columns of O.
func (l *launch) forward() error {
	f, err := l.get(l.instance(1, false))
	if err != nil {
		return err
	}
	tiles := ceilDiv(l.p.QLen, f.rows)
	blocks := tiles * l.p.Batch * l.p.Heads
	if l.id == fwdF32 {
		blocks *= f32Parts(l.id, l.p, l.p.VDim, f32Columns)
	}
	if l.family.hopper {
		l.x.rows = rowTiles{tall: int32(tiles)}
		boxes := [...]int{groupRows, f.keys, f.keys, groupRows}
		if l.id == fwdSM90Wide {
			boxes[2] = wideValueRows
		}
		if err := l.mapTensors(boxes); err != nil {
			return err
		}
	}
	return l.within(new(workspace), func() error { return l.run(f, blocks, l.family.hopper) })
}

// wideValueRows is the number of rows of V that fwd_sm90_wide copies at once.
const wideValueRows = 16

// The float32 kernels divide the columns of wide heads among blocks. The registers of a block hold
// f32Columns columns of O or dQ, or f32KeyColumns columns of both dK and dV.
const (
	f32Columns    = 256
	f32KeyColumns = 128
)

// f32Parts returns the number of blocks that share a result's columns. `each` is the maximum number
// of columns of a block.
func f32Parts(id familyID, p flashkit.Problem, columns, each int) int {
	if s := &families[id]; s.padded(&p).dim <= each {
		return 1
	}
	return ceilDiv(columns, each)
}

// carriedWords returns the words of workspace for the LSE of the earlier keys in a call with Carry.
// For other calls it returns 0.
func carriedWords(p *flashkit.Problem) int {
	if p.Carry {
		return p.Batch * p.Heads * p.QLen
	}
	return 0
}

const (
	backwardRows    = 64  // bwd_sm80 pads its workspace to a multiple of this many query rows
	hopperRows      = 128 // fwd_sm90 with ranges and bwd_sm90 pad its workspace to a multiple of this many query rows
	hopperDQColumns = 64  // columns of dQ that share a counter in bwd_sm90
)

// backwardWorkspace returns the sizes of a backward pass's workspace. bwd_f32 stores delta twice,
// because blocks that own keys and blocks that own query rows sum dP in different orders. In
// bwd_sm80 and bwd_sm90, the blocks that own keys also add to dQ. These kernels need LSE next to
// delta, dQ in float32, and counters. The counters assign key tiles to blocks, and fix the order in
// which blocks add to dQ.
func backwardWorkspace(id familyID, p flashkit.Problem) workspace {
	if id == bwdF32 {
		return workspace{delta: 2 * p.Batch * p.Heads * p.QLen}
	}
	s := &families[id]
	if id == bwdSM90 {
		rows, dim := p.Batch*p.Heads*ceilDiv(p.QLen, hopperRows)*hopperRows, s.padded(&p).dim
		return workspace{delta: 2 * rows, dqSum: rows * dim, counters: 1 + rows/backwardRows*dim/hopperDQColumns, rowBounds: boundWords(&p, p.KVHeads)}
	}
	padded := p.Batch * p.Heads * ceilDiv(p.QLen, backwardRows)
	return workspace{
		delta:    2 * padded * backwardRows,
		dqSum:    padded * backwardRows * s.padded(&p).dim,
		counters: 1 + 2*padded,
	}
}

// run launches one kernel. If mapped is true, the kernel's arguments begin with tensor maps.
func (l *launch) run(f *function, blocks int, mapped bool) error {
	return f.run(l.b.drv.LaunchKernel, blocks, l.block(mapped), l.s)
}

// run launches the kernel through the parameter launch, such as Driver.LaunchKernel. With 0 blocks
// it does nothing.
func (f *function) run(launch func(Function, int, int, int, StreamHandle, unsafe.Pointer) error, blocks int, a unsafe.Pointer, s StreamHandle) error {
	if blocks == 0 {
		return nil
	}
	return launch(f.handle, blocks, f.threads, f.shared, s, a)
}

// A workspace holds the sizes of a call's temporary arrays, in words of 4 bytes.
type workspace struct {
	delta, dqSum, counters, partO, partLSE int
	carried, seqInts, rowBounds            int
}

// boundWords returns the number of words for the bounds of the ranges of keys, if the problem has ranges. Bounds are of
// each hopperRows rows of one of the given number of sets of heads: see kernels/ranges.cuh.
func boundWords(p *flashkit.Problem, sets int) int {
	const words = 16
	if p.Score.Ranges == 0 {
		return 0
	}
	return words * p.Batch * sets * ceilDiv(p.QLen, hopperRows)
}

// maxSeqWords returns an upper bound of the words of a call's sequence arrays.
func maxSeqWords(p *flashkit.Problem) int {
	n := 0
	if p.Ragged {
		n = 2 * (p.Batch + 1)
	}
	if p.Page > 0 {
		n += p.Batch * ceilDiv(p.KVLen, p.Page)
	}
	return n
}

// A workArray is the variable that gets an array's address, and the array's size in words.
type workArray struct {
	at    *Pointer
	words int
}

func (w *workspace) arrays(a *arguments) [8]workArray {
	return [...]workArray{
		{&a.params.delta, w.delta}, {&a.dqSum, w.dqSum}, {&a.counters, w.counters}, {&a.partO, w.partO}, {&a.partLSE, w.partLSE},
		{&a.carriedLSE, w.carried}, {&a.seqAt, w.seqInts}, {&a.rowBounds, w.rowBounds},
	}
}

func (w *workspace) bytes() int {
	n := 0
	for _, words := range [...]int{w.delta, w.dqSum, w.counters, w.partO, w.partLSE, w.carried, w.seqInts, w.rowBounds} {
		n += ceilDiv(4*words, granule) * granule
	}
	return n
}

// within calls main with a workspace that is allocated and freed in stream order. It copies the
// sequence arrays before main, and sums DBias and DSink after main.
func (l *launch) within(w *workspace, main func() error) error {
	b, x, s := l.b, l.x, l.s
	if w.carried = carriedWords(&l.p); x.hasFeatures {
		if kept, err := x.cacheSeqs(b, s); err != nil {
			return err
		} else if !kept {
			w.seqInts = x.seqWords
		}
	}
	n := w.bytes()
	if n == 0 {
		return l.around(w, main)
	}
	at, err := b.drv.MemAllocAsync(n, s)
	if err != nil {
		return err
	}
	next := at
	for _, a := range w.arrays(x) {
		if a.words > 0 {
			*a.at = next
		}
		next += Pointer(ceilDiv(4*a.words, granule) * granule)
	}
	if b.poison.Load() {
		err = b.drv.MemsetD32Async(at, poisonBits, n/4, s)
	}
	if err == nil {
		err = l.around(w, main)
	}
	return errors.Join(err, b.drv.MemFreeAsync(at, s))
}

// around calls main. Before main it copies the sequence arrays, and the LSE of earlier keys, to the
// workspace. After main it sums DBias and DSink.
func (l *launch) around(w *workspace, main func() error) error {
	if w.seqInts > 0 {
		if err := l.x.copySeqs(l.b, l.x.seqAt, l.s); err != nil {
			return err
		}
	}
	if l.p.Carry {
		if err := l.sum(sumCarry, ceilDiv(l.p.QLen, carryRows)*l.p.Batch*l.p.Heads); err != nil {
			return err
		}
	}
	if err := main(); err != nil || !l.x.hasFeatures {
		return err
	}
	return l.enqueueSums()
}
