package cuda

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// launch enqueues the kernels of a stem. The views of a are set.
func (b *Backend) launch(id stemID, p flashkit.Problem, a *arguments, s StreamHandle) error {
	err := b.do(func() error { return b.enqueue(id, p, a, s) })
	if err != nil {
		return fmt.Errorf("cuda/%s: %w", stems[id].name, err)
	}
	return nil
}

func (b *Backend) enqueue(id stemID, p flashkit.Problem, x *arguments, s StreamHandle) error {
	if x.featured {
		return b.enqueueFeatured(id, p, x, s)
	}
	if p.Batch == 0 {
		return nil
	}
	a := &x.params
	if s := &stems[id]; s.pass == flashkit.PassForward && s.rows == 0 && x.whole == nil {
		if q, fewer := folded(p); fewer && a.fold(q) {
			p = q
		}
	}
	switch id {
	case fwdSM90:
		return b.enqueueHopper(id, p, x, s)
	case fwdSM90Short:
		return b.enqueueShort(id, p, x, s)
	case decodeSM80:
		return b.enqueueDecode(id, p, x, s)
	case bwdSM90, bwdSM80:
		return b.enqueueBackward(id, p, x, s)
	case bwdF32:
		return b.enqueueBackwardF32(id, p, x, s)
	}
	f, err := b.images.get(b.drv, id, partMain, p)
	if err != nil {
		return err
	}
	blocks := ceilDiv(p.QLen, f.rows) * p.Batch * p.Heads
	if id == fwdF32 {
		blocks *= f32Parts(id, p, p.VDim, f32Columns)
	}
	return b.run(f, blocks, unsafe.Pointer(a), s)
}

// The float32 kernels for wide heads deal columns out to several blocks: as many
// of O and dQ, and as many of dK and dV, as a block has registers for.
const (
	f32Columns    = 256
	f32KeyColumns = 128
)

// f32Parts returns the blocks among which the columns of a result are dealt out.
func f32Parts(id stemID, p flashkit.Problem, columns, each int) int {
	if s := &stems[id]; s.dims[s.pad(p)].dim <= each {
		return 1
	}
	return ceilDiv(columns, each)
}

// plan returns the workspace of a stem for a problem. That of a call with sequences has
// what they say too.
func (b *Backend) plan(id stemID, p flashkit.Problem) (w workspace, err error) {
	w, err = b.planParts(id, p)
	if p.Carry {
		w.carried = p.Batch * p.Heads * p.QLen
	}
	return w, err
}

func (b *Backend) planParts(id stemID, p flashkit.Problem) (workspace, error) {
	switch id {
	case fwdSM90:
		p, _ = folded(p)
		return planHopper(p, b.dev.SMs).workspace, nil
	case decodeSM80:
		part := partMain
		if featured(&p) {
			part = partFeatures
		}
		f, err := b.images.get(b.drv, id, part, p)
		if err != nil {
			return workspace{}, err
		}
		return b.planDecode(f, id, p).workspace, nil
	case bwdSM90, bwdSM80, bwdF32:
		return b.planBackward(id, p, p).workspace, nil
	}
	return workspace{}, nil
}

const (
	backwardRows    = 64  // bwd_sm80 pads its workspace to a multiple of this many query rows
	hopperRows      = 128 // bwd_sm90 pads its workspace to a multiple of this many query rows
	hopperDQColumns = 64  // columns of dQ that share a counter in bwd_sm90
)

// planBackward makes room for delta, twice where tiles of keys and of query rows sum
// dP in another order. Where blocks of keys add to dQ it makes room for LSE beside
// delta, for dQ in float32, and for the counters by which its sums keep their order:
// two for each tile of query rows, and one that deals out the tiles of keys.
func planBackward(id stemID, p flashkit.Problem) workspace {
	if id == bwdF32 {
		return workspace{delta: 2 * p.Batch * p.Heads * p.QLen}
	}
	s := &stems[id]
	if id == bwdSM90 {
		rows, dim := p.Batch*p.Heads*ceilDiv(p.QLen, hopperRows)*hopperRows, s.dims[s.pad(p)].dim
		return workspace{delta: 2 * rows, dqSum: rows * dim, turn: 1 + rows/backwardRows*dim/hopperDQColumns}
	}
	padded := p.Batch * p.Heads * ceilDiv(p.QLen, backwardRows)
	return workspace{
		delta: 2 * padded * backwardRows,
		dqSum: padded * backwardRows * s.dims[s.pad(p)].dim,
		turn:  1 + 2*padded,
	}
}

func (b *Backend) enqueueBackward(id stemID, p flashkit.Problem, x *arguments, s StreamHandle) error {
	w := b.planBackward(id, p, *x.wholeOf(&p))
	var kernels [4]*function
	for i, part := range [...]partID{partDelta, w.part, partFinish, partSums} {
		if part == partSums && w.splits == 1 {
			break
		}
		var err error
		if kernels[i], err = b.images.get(b.drv, id, part, p); err != nil {
			return err
		}
	}
	delta, main, finish, sums := kernels[0], kernels[1], kernels[2], kernels[3]
	a, mainArgs := &x.params, unsafe.Pointer(&x.params)
	w.describe(a)
	blocks, launch := p.Batch*p.KVHeads*ceilDiv(p.KVLen, main.keys)*w.splits, b.drv.LaunchKernel
	if id == bwdSM90 {
		mainArgs = unsafe.Pointer(&x.mapped)
		if b.drv.LaunchDependent != nil {
			launch = b.drv.LaunchDependent
		}
		blocks *= stems[id].dims[stems[id].pad(p)].shares
		if stems[id].stays(w.part, &p) {
			blocks = min(blocks, b.dev.SMs-x.spare)
		}
		if err := b.mapTensors(x, flashkit.PassBackward, p.DType, mappedShapes(p), [...]int{main.rows, main.keys, main.keys, main.rows}); err != nil {
			return err
		}
	}
	heads := p.Batch * p.Heads
	return w.within(b, x, s, func() error {
		if err := b.run(delta, max(1, heads*ceilDiv(p.QLen, delta.rows)), unsafe.Pointer(a), s); err != nil { // also without rows: it sets the counters
			return err
		}
		err := error(nil)
		if w.part == partPairs {
			err = b.drv.LaunchDependentCluster(main.handle, 2*blocks, main.threads, main.shared, 2, s, mainArgs)
		} else {
			err = main.run(launch, blocks, mainArgs, s)
		}
		if err != nil {
			return err
		}
		if err := finish.run(launch, heads*ceilDiv(p.QLen, finish.rows), unsafe.Pointer(a), s); err != nil || w.splits == 1 {
			return err
		}
		return b.run(sums, 2*p.Batch*p.KVHeads*ceilDiv(p.KVLen, sums.rows), unsafe.Pointer(a), s)
	})
}

func (b *Backend) enqueueBackwardF32(id stemID, p flashkit.Problem, x *arguments, s StreamHandle) error {
	delta, err := b.images.get(b.drv, id, partDelta, p)
	if err != nil {
		return err
	}
	main, err := b.images.get(b.drv, id, partMain, p)
	if err != nil {
		return err
	}
	w, heads := planBackward(id, p), p.Batch*p.Heads
	keys := ceilDiv(p.KVLen, main.keys) * p.Batch * p.KVHeads * f32Parts(id, p, max(p.Dim, p.VDim), f32KeyColumns)
	rows, a := ceilDiv(p.QLen, main.rows)*heads*f32Parts(id, p, p.Dim, f32Columns), &x.params
	return w.within(b, x, s, func() error {
		if err := b.run(delta, heads*ceilDiv(p.QLen, delta.rows), unsafe.Pointer(a), s); err != nil {
			return err
		}
		return b.run(main, keys+rows, unsafe.Pointer(a), s)
	})
}

// run launches one kernel, unless it has no block.
func (b *Backend) run(f *function, blocks int, a unsafe.Pointer, s StreamHandle) error {
	return f.run(b.drv.LaunchKernel, blocks, a, s)
}

// run is Backend.run with one of the driver's two launches.
func (f *function) run(launch func(Function, int, int, int, StreamHandle, unsafe.Pointer) error, blocks int, a unsafe.Pointer, s StreamHandle) error {
	if blocks == 0 {
		return nil
	}
	return launch(f.handle, blocks, f.threads, f.shared, s, a)
}

// Workspace returns the bytes of the device's memory that a pass takes beside
// its tensors while it runs, by the kernel of that name, or "" for the one that
// is predicted fastest.
func (b *Backend) Workspace(p flashkit.Problem, pass flashkit.Pass, kernel string) (int, error) {
	if err := p.Validate(); err != nil {
		return 0, err
	}
	c := p.Ask(pass)
	c.Traits = flashkit.Traits{Device: true, Loose: looseRows(p)}
	id, err := b.choose(kernel, c, false)
	if err != nil {
		return 0, err
	}
	var n int
	err = b.do(func() (err error) {
		w, err := b.plan(id, p)
		w.ints = mostInts(&p)
		n = w.bytes()
		return err
	})
	return n, err
}

// A workspace is the arrays of one call, in words of 4 bytes.
type workspace struct {
	delta, dqSum, turn, partO, partLSE int
	carried, ints                      int
}

// mostInts bounds what the sequences of a call say.
func mostInts(p *flashkit.Problem) int {
	n := 0
	if p.Ragged {
		n = 2 * (p.Batch + 1)
	}
	if p.Page > 0 {
		n += p.Batch * ceilDiv(p.KVLen, p.Page)
	}
	return n
}

// workArray is where an array lies, and its words.
type workArray struct {
	at    *Pointer
	words int
}

func (w *workspace) arrays(a *arguments) [7]workArray {
	return [...]workArray{
		{&a.params.delta, w.delta}, {&a.dqSum, w.dqSum}, {&a.turn, w.turn}, {&a.partO, w.partO}, {&a.partLSE, w.partLSE},
		{&a.carriedLSE, w.carried}, {&a.intsAt, w.ints},
	}
}

func (w *workspace) bytes() int {
	n := 0
	for _, words := range [...]int{w.delta, w.dqSum, w.turn, w.partO, w.partLSE, w.carried, w.ints} {
		n += ceilDiv(4*words, granule) * granule
	}
	return n
}

// within allocates the workspace in the order of the stream, runs f, and frees it
// in that order.
func (w *workspace) within(b *Backend, a *arguments, s StreamHandle, f func() error) error {
	n := w.bytes()
	if n == 0 {
		return f()
	}
	at, err := b.drv.MemAllocAsync(n, s)
	if err != nil {
		return err
	}
	next := at
	for _, x := range w.arrays(a) {
		if x.words > 0 {
			*x.at = next
		}
		next += Pointer(ceilDiv(4*x.words, granule) * granule)
	}
	if b.poison.Load() {
		err = b.drv.MemsetD32Async(at, poisonBits, n/4, s)
	}
	if err == nil {
		err = f()
	}
	return errors.Join(err, b.drv.MemFreeAsync(at, s))
}
