package cuda

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
)

// launch enqueues the kernels of a family for a call. The caller has set the tensor fields of *a.
func (b *Backend) launch(id familyID, p flashkit.Problem, a *arguments, s StreamHandle) error {
	err := b.do(func() error { return b.enqueue(id, p, a, s) })
	if err != nil {
		return fmt.Errorf("cuda/%s: %w", families[id].name, err)
	}
	return nil
}

// enqueue launches the kernels of a call in stream order.
func (b *Backend) enqueue(id familyID, p flashkit.Problem, x *arguments, s StreamHandle) error {
	id = id.variant(&p)
	l := launch{b, id, &families[id], p, x, s}
	forward := l.family.pass == flashkit.PassForward
	if forward && l.family.rows == 0 && x.whole == nil {
		if q, fewer := packedHeads(p); fewer && x.packHeads(q) {
			l.p = q
		}
	}
	switch {
	case p.Batch == 0 || forward && p.QLen == 0:
		return l.sumsAlone()
	case id == fwdSM90:
		return l.forwardHopper()
	case l.family.rows > 0:
		return l.decode()
	case forward:
		return l.forward()
	case id == bwdF32:
		return l.backwardF32()
	}
	return l.backward()
}

// plan returns the workspace that a family needs for a problem, except the memory for sequence
// arrays.
func (b *Backend) plan(id familyID, p flashkit.Problem) (w workspace, err error) {
	w, err = b.planParts(id, p)
	w.carried = carriedWords(&p)
	return w, err
}

func (b *Backend) planParts(id familyID, p flashkit.Problem) (workspace, error) {
	id = id.variant(&p)
	switch id {
	case fwdSM90:
		p, _ = packedHeads(p)
		return planHopper(p, b.dev.SMs).workspace, nil
	case decodeSM80, decodeInt8:
		i := families[id].instanceOf(&instanceCall{p: &p, whole: &p})
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

// Workspace returns the bytes of device memory that a pass allocates in addition to the tensors of
// the call. The kernel is a name as in Options.Kernel, or "" for the kernel that is predicted
// fastest.
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
		w.seqInts = maxSeqWords(&p)
		n = w.bytes()
		return err
	})
	return n, err
}
