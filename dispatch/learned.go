package dispatch

import (
	"math"
	"sync"
	"sync/atomic"
	"time"
)

// What a call teaches. A shorter one, by the kernel's own prediction, is all
// overhead: cold caches and sleeping helpers multiply its time, and say nothing of
// a rate.
const short = 50 * time.Microsecond

// A rate is what the latest calls of a kernel took over what it predicts itself,
// for the problems of a regime. Nothing waits for a lock.
type rate struct {
	recent atomic.Uint64 // the logarithms of the latest factors in units of 1/rateUnit, plus rateZero, the latest lowest; 0 is none
	loaded atomic.Bool   // they are of a profile
}

const (
	rateCalls = 6
	rateBits  = 10
	rateUnit  = 64
	rateZero  = 1 << (rateBits - 1)
)

// encode returns a logarithm as it stands in recent.
func encode(log float64) uint64 {
	return uint64(rateZero + max(1-rateZero, min(math.Round(log*rateUnit), rateZero-1)))
}

// add takes one more call into account. Of two at once, one counts.
func (r *rate) add(log float64) {
	old := r.recent.Load()
	if r.recent.CompareAndSwap(old, (old<<rateBits|encode(log))&(1<<(rateBits*rateCalls)-1)) && r.loaded.Load() {
		r.loaded.Store(false)
	}
}

// load sets the rate to what a profile says.
func (r *rate) load(log float64) {
	var bits uint64
	for range rateCalls {
		bits = bits<<rateBits | encode(log)
	}
	r.recent.Store(bits)
	r.loaded.Store(true)
}

// log returns the second fastest of the latest calls, or of two the faster one:
// much can slow a call down, and nothing but the kernel makes it fast. n is the
// number of calls.
func (r *rate) log() (log float64, n int) {
	bits := r.recent.Load()
	if bits == 0 {
		return 0, 0
	}
	first, second := 1<<rateBits, 1<<rateBits
	for ; bits != 0; bits >>= rateBits {
		x := int(bits & (1<<rateBits - 1))
		n++
		if x < first {
			first, second = x, first
		} else if x < second {
			second = x
		}
	}
	if n > 2 {
		first = second
	}
	return float64(first-rateZero) / rateUnit, n
}

// A standing is what a kernel took over what it predicts itself when it was
// measured side by side with others, for the problems of a kind. Only the quotient
// of two standings means something.
type standing struct {
	bits atomic.Uint64 // the logarithm, a float32, above the number of measurements
}

func (s *standing) log() (log float64, n uint32) {
	bits := s.bits.Load()
	return float64(math.Float32frombits(uint32(bits >> 32))), uint32(bits)
}

func (s *standing) set(log float64, n uint32) {
	s.bits.Store(uint64(math.Float32bits(float32(log)))<<32 | uint64(n))
}

// add takes one more measurement into the mean.
func (s *standing) add(log float64) {
	was, n := s.log()
	n = min(n, 1<<16) + 1
	s.set(was+(log-was)/float64(n), n)
}

// elsewhere bounds what is believed without a measurement near the size: no kernel
// moves by more than this factor against another, or passes one whose own
// prediction is faster by more.
const elsewhere = 2

// over returns the logarithm by which s errs more than t, bounded.
func (s *standing) over(t *standing) float64 {
	a, n := s.log()
	b, m := t.log()
	if n == 0 || m == 0 {
		return 0
	}
	return max(-math.Ln2, min(a-b, math.Ln2))
}

// A place is hardware that kernels share: the processor, or a device.
type place struct {
	overhead atomic.Int64 // nanoseconds that a short call takes beyond its prediction
	used     atomic.Bool

	mu      sync.Mutex // held for a few additions
	running int
	since   time.Time
	busy    time.Duration // that calls have taken until then, added up
}

// step notes that a call begins or ends, and returns the time that all calls have
// taken so far. What it grows by during a call, over the time of that call, is how many
// shared the place.
func (p *place) step(now time.Time, by int) time.Duration {
	p.mu.Lock()
	if p.running > 0 {
		p.busy += time.Duration(p.running) * now.Sub(p.since)
	}
	p.running += by
	p.since = now
	busy := p.busy
	p.mu.Unlock()
	return busy
}

// isBusy reports whether a call runs at the place.
func (p *place) isBusy() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.running > 0
}

// learn takes the overhead of one more short call into account, a large one slowly.
func (p *place) learn(over time.Duration) {
	const longest = time.Millisecond
	old := p.overhead.Load()
	step := (max(0, min(over, longest)).Nanoseconds() - old) / 8
	if step < 0 {
		step *= 4
	}
	p.overhead.CompareAndSwap(old, old+step)
}

// learn takes a call of a candidate into account, which shared its place with so
// many calls on average, itself included.
func (m *memory) learn(x *plan, c *candidate, took time.Duration, sharing float64) {
	place := &m.places[c.place]
	place.used.Store(true)
	c.last.Store(max(1, int64(took)))
	switch {
	case c.own <= 0:
	case c.own < float64(short):
		if sharing < alone && len(m.places) > 1 {
			place.learn(took - time.Duration(c.own))
			m.version.Add(1)
		}
	default:
		m.version.Add(1)
		x.spent.Add(int64(took))
		c.learn(float64(took), float64(place.overhead.Load()), sharing)
	}
}

// alone is the sharing up to which a call counts as alone.
const alone = 1.25

// learn learns from a call of so many nanoseconds. Beside others, its share of them
// is what it would have taken alone if all of them used the whole machine, and the
// whole is if none did: what is thought moves no further than into that range.
func (c *candidate) learn(took, overhead, sharing float64) {
	most := math.Log(max(took-overhead, took/2) / c.own)
	if sharing < alone {
		c.rates[c.at].add(most)
		return
	}
	thought, n := c.near()
	share := most - math.Log(sharing)
	if n == 0 {
		thought = share
	}
	c.rates[c.at].add(max(share, min(thought, most)))
}

// compare sets the standing of a candidate that ran in place of the best one to be
// measured, if nothing else is known of it. Two calls that took longer than the best
// one makes one expect may have met something else.
func (c *candidate) compare(best *candidate) {
	log, n := c.near()
	its, m := best.near()
	if _, known := c.standing.log(); n < 2 || m == 0 || known > 0 || n < 3 && log > its+math.Log(alone) {
		return
	}
	of, known := best.standing.log()
	if known == 0 {
		of = its
		best.standing.set(its, 1)
	}
	c.standing.set(of+log-its, 1)
}
