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

// A launch is a call of a stem in a stream.
type launch struct {
	b    *Backend
	id   stemID
	stem *stem
	p    flashkit.Problem // with groups folded, where that has fewer tiles
	x    *arguments
	s    StreamHandle
}

// enqueue launches the kernels of a call, in the order of the stream.
func (b *Backend) enqueue(id stemID, p flashkit.Problem, x *arguments, s StreamHandle) error {
	l := launch{b, id, &stems[id], p, x, s}
	forward := l.stem.pass == flashkit.PassForward
	if forward && l.stem.rows == 0 && x.whole == nil {
		if q, fewer := folded(p); fewer && x.fold(q) {
			l.p = q
		}
	}
	switch {
	case p.Batch == 0 || forward && p.QLen == 0:
		return l.sumsAlone()
	case id == fwdSM90:
		return l.forwardHopper()
	case id == decodeSM80:
		return l.decode()
	case forward:
		return l.forward()
	case id == bwdF32:
		return l.backwardF32()
	}
	return l.backward()
}

// get returns an instance of the stem. Instances are loaded before anything is enqueued, as a later call may be captured.
func (l *launch) get(i instance) (*function, error) { return l.b.images.get(l.b.drv, l.id, i, l.p) }

// known returns traitFeatures for a call with features, whose kernels before and after the main one have it too.
func (l *launch) known() instance {
	if l.x.featured {
		return traitFeatures
	}
	return 0
}

// instance returns the main instance for a call that is cut.
func (l *launch) instance(splits int, halves bool) instance {
	c := instanceCall{p: &l.p, whole: l.x.wholeOf(&l.p), sms: l.b.dev.SMs, splits: splits, halves: halves}
	if l.x.featured {
		c.scores = l.x.scoreTensors()
	}
	return l.stem.instanceOf(&c)
}

// block returns the arguments of a kernel. Those with features want tensor maps before them too.
func (l *launch) block(mapped bool) unsafe.Pointer {
	if mapped || l.x.featured {
		return unsafe.Pointer(&l.x.mapped)
	}
	return unsafe.Pointer(&l.x.params)
}

// mapTensors makes the tensor maps of Q, K, V, and O or dO. A copy moves tiles[i] rows of map i.
func (l *launch) mapTensors(tiles [4]int) error {
	shapes := l.x.shapes
	if !l.x.featured {
		shapes = [...][4]int{l.p.QShape(), l.p.KShape(), l.p.VShape(), l.p.OShape()}
	}
	return l.b.mapTensors(l.x, l.stem.pass, l.p.DType, shapes, tiles)
}

// sumsAlone computes the sums of a call that has nothing else to compute.
func (l *launch) sumsAlone() error {
	if !l.x.featured {
		return nil
	}
	w, err := l.b.plan(l.id, l.p)
	if err != nil {
		return err
	}
	return l.within(&w, func() error { return nil })
}

// forward launches a block for each tile of a head's query rows.
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
	if l.stem.hopper {
		l.x.rows = rowTiles{tall: int32(tiles)}
		if err := l.mapTensors([...]int{groupRows, f.keys, f.keys, groupRows}); err != nil {
			return err
		}
	}
	return l.within(new(workspace), func() error { return l.run(f, blocks, l.stem.hopper) })
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
	w.carried = carriedWords(&p)
	return w, err
}

// carriedWords returns the words of workspace for the LSE that a call continues.
func carriedWords(p *flashkit.Problem) int {
	if p.Carry {
		return p.Batch * p.Heads * p.QLen
	}
	return 0
}

func (b *Backend) planParts(id stemID, p flashkit.Problem) (workspace, error) {
	switch id {
	case fwdSM90:
		p, _ = folded(p)
		return planHopper(p, b.dev.SMs).workspace, nil
	case decodeSM80:
		i := stems[id].instanceOf(&instanceCall{p: &p, whole: &p})
		f, err := b.images.get(b.drv, id, i, p)
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

// backwardF32 launches the kernels of bwd_f32: that of delta, and one whose blocks own keys or query rows.
func (l *launch) backwardF32() error {
	p := &l.p
	main, err := l.get(l.instance(1, false))
	if err != nil {
		return err
	}
	delta, err := l.get(l.known() | traitDelta)
	if err != nil {
		return err
	}
	columns := f32Columns
	if l.x.featured { // which take registers
		columns = f32KeyColumns
	}
	w, heads := planBackward(l.id, *p), p.Batch*p.Heads
	keys := ceilDiv(p.KVLen, main.keys) * p.Batch * p.KVHeads * f32Parts(l.id, *p, max(p.Dim, p.VDim), f32KeyColumns)
	rows := ceilDiv(p.QLen, main.rows) * heads * f32Parts(l.id, *p, p.Dim, columns)
	return l.within(&w, func() error {
		if l.x.featured {
			if err := l.placeDelta(); err != nil {
				return err
			}
		}
		if err := l.run(delta, heads*ceilDiv(p.QLen, delta.rows), false); err != nil {
			return err
		}
		return l.run(main, keys+rows, false)
	})
}

// run launches one kernel, whose arguments begin with tensor maps if mapped.
func (l *launch) run(f *function, blocks int, mapped bool) error {
	return f.run(l.b.drv.LaunchKernel, blocks, l.block(mapped), l.s)
}

// run launches the kernel by one of the driver's calls, unless it has no block.
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

// within runs main in a workspace, after the copy of the sequence lists, and before the sums of DBias and DSink. The
// workspace is allocated and freed in the order of the stream.
func (l *launch) within(w *workspace, main func() error) error {
	b, x, s := l.b, l.x, l.s
	if w.carried = carriedWords(&l.p); x.featured {
		if kept, err := x.keepInts(b, s); err != nil {
			return err
		} else if !kept {
			w.ints = x.words
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

// around runs main between what features add to it.
func (l *launch) around(w *workspace, main func() error) error {
	if w.ints > 0 {
		if err := l.x.copyInts(l.b.drv, l.x.intsAt, l.s); err != nil {
			return err
		}
	}
	if l.p.Carry {
		if err := l.sum(sumCarry, ceilDiv(l.p.QLen, carryRows)*l.p.Batch*l.p.Heads); err != nil {
			return err
		}
	}
	if err := main(); err != nil || !l.x.featured {
		return err
	}
	return l.enqueueSums()
}
