package dispatch

import (
	"context"
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// What a probe may take, and when it is worth that.
const (
	probeCalls  = 6                      // of a kernel that are timed
	probeTime   = 300 * time.Microsecond // of a call, as predicted
	probeLimit  = 100 * time.Millisecond // of all calls, should they take longer
	probeBytes  = 16 << 20               // of tensors
	worthwhile  = 2 * time.Millisecond   // predicted for the problem itself
	contestants = 4                      // as many times slower a kernel may be predicted to be
)

// probe measures, on a smaller problem of the same kind, the kernels that may be
// the fastest and of which nothing is known for its type, and reports whether it
// measured any. Problems shorter than a probe go without, and so do calls beside
// another probe.
func (d *Dispatcher) probe(ctx context.Context, x *plan) (measured bool) {
	m, best := d.memory, d.fastest(x, nil)
	if d.frozen || ctx == nil || ctx.Err() != nil || best == nil || best.predicted() < worthwhile || !m.probing.TryLock() {
		return false
	}
	defer m.probing.Unlock()
	var probes []*probe
	for i := range x.candidates {
		c, t := &x.candidates[i], x.problem.DType
		if d.admitted[c.kernel] && c.predicted() <= contestants*best.predicted() && m.unknown(c.kernel, t) {
			m.probed[c.kernel][t] = true
			if y := m.newProbe(c.kernel, x.problem); y != nil {
				probes = append(probes, y)
			}
		}
	}
	m.measure(ctx, probes)
	return len(probes) > 0
}

// unknown reports whether nothing was ever measured, or probed in vain, of a
// kernel on a type.
func (m *memory) unknown(kernel int, t flashkit.DType) bool {
	if m.probed[kernel][t] {
		return false
	}
	for r := range regimes {
		if _, calls := m.rates[kernel][r].load(); calls > 0 && int(coordinates[r][axisType]) == int(t) {
			return false
		}
	}
	return true
}

// shrink returns a problem like p that is predicted to take probeTime at most, if
// one can be had by leaving out batches, rows, heads and keys.
func shrink(p flashkit.Problem, cost func(flashkit.Problem) time.Duration) flashkit.Problem {
	const rows = 128 // enough to fill a tile
	group := p.Heads / p.KVHeads
	for cost(p) > probeTime {
		switch {
		case p.Batch > 1:
			p.Batch = (p.Batch + 1) / 2
		case p.QLen > rows:
			p.QLen, p.KVLen = p.QLen/2, max(p.KVLen/2, min(p.KVLen, rows))
		case p.KVHeads > 2:
			p.KVHeads = (p.KVHeads + 1) / 2
			p.Heads = p.KVHeads * group
		case p.KVLen > rows:
			p.KVLen /= 2
		case p.QLen > rows/4:
			p.QLen /= 2
		default:
			return p
		}
	}
	return p
}

// A probe is a kernel that is measured on a problem.
type probe struct {
	kernel  int
	problem flashkit.Problem
	cost    time.Duration
	call    func(context.Context) error
	best    time.Duration
}

// newProbe returns a probe on a problem of the same kind as p, nil if there is
// none that is small enough.
func (m *memory) newProbe(kernel int, p flashkit.Problem) *probe {
	k := &m.kernels[kernel]
	p = shrink(p, func(p flashkit.Problem) time.Duration { return m.cost(kernel, p) })
	x := &probe{kernel: kernel, problem: p, cost: m.cost(kernel, p), best: math.MaxInt64}
	if x.cost <= 0 || p.Bytes(k.Pass()) > probeBytes || k.Fits(p) != "" {
		return nil
	}
	x.call = example(k, p)
	return x
}

// measure calls the kernels a few times, in turns, so that what else happens on
// the machine hits all alike, and learns from the fastest call of each. An error
// is no news here: whoever runs the kernel will get it.
func (m *memory) measure(ctx context.Context, probes []*probe) {
	for _, x := range probes {
		if x.call(ctx) != nil { // it may have to compile or load something first
			x.best = 0
		}
	}
	ctx, cancel := context.WithTimeout(ctx, probeLimit)
	defer cancel()
	for range probeCalls {
		for _, x := range probes {
			start := time.Now()
			if x.best > 0 && x.call(ctx) != nil {
				x.best = 0
			}
			x.best = min(x.best, time.Since(start))
		}
	}
	for _, x := range probes {
		m.rates[x.kernel][regimeOf(x.problem, m.kernels[x.kernel].Pass())].learn(float64(x.best) / float64(x.cost))
	}
}

// example returns a call of the kernel on tensors made for it.
func example(k *flashkit.Kernel, p flashkit.Problem) func(context.Context) error {
	tensor := func(t flashkit.DType, shape [4]int) flashkit.Tensor {
		n := shape[0] * shape[1] * shape[2] * shape[3]
		if t == flashkit.Float32 {
			x := make([]float32, n)
			for i := range x {
				x[i] = float32(i%13) / 16
			}
			return flashkit.F32(x, shape[0], shape[1], shape[2], shape[3])
		}
		x := make([]uint16, n)
		for i := range x {
			x[i] = 0x3800 // 0.5 in f16, about 3e-5 in bf16
		}
		if t == flashkit.Float16 {
			return flashkit.F16(x, shape[0], shape[1], shape[2], shape[3])
		}
		return flashkit.BF16(x, shape[0], shape[1], shape[2], shape[3])
	}
	q, key, v, o := tensor(p.DType, p.QShape()), tensor(p.DType, p.KShape()), tensor(p.DType, p.VShape()), tensor(p.DType, p.OShape())
	lse := tensor(flashkit.Float32, p.LSEShape())
	if k.Pass() == flashkit.PassForward {
		f := &flashkit.Forward{Q: q, K: key, V: v, O: o, LSE: lse}
		return func(ctx context.Context) error { return k.Forward(ctx, p, f) }
	}
	b := &flashkit.Backward{Q: q, K: key, V: v, O: o, LSE: lse, DO: tensor(p.DType, p.OShape()),
		DQ: tensor(p.DType, p.QShape()), DK: tensor(p.DType, p.KShape()), DV: tensor(p.DType, p.VShape())}
	return func(ctx context.Context) error { return k.Backward(ctx, p, b) }
}
