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
	recent atomic.Uint64 // the logarithms of the last four factors in units of 1/rateUnit, 16 bits each, the latest lowest; 0 is none
	loaded atomic.Bool   // they are of a profile
}

const rateUnit = 2048

// encode returns a logarithm as it stands in recent.
func encode(log float64) uint64 {
	x := int16(max(math.MinInt16, min(math.Round(log*rateUnit), math.MaxInt16)))
	if x == 0 {
		x = 1 // 0 is none
	}
	return uint64(uint16(x))
}

// add takes one more call into account. Of two at once, one counts.
func (r *rate) add(log float64) {
	old := r.recent.Load()
	if r.recent.CompareAndSwap(old, old<<16|encode(log)) && r.loaded.Load() {
		r.loaded.Store(false)
	}
}

// load sets the rate to what a profile says.
func (r *rate) load(log float64) {
	const four = 1<<48 | 1<<32 | 1<<16 | 1
	r.recent.Store(encode(log) * four)
	r.loaded.Store(true)
}

// log returns the second fastest of the last four calls, or of two the faster one:
// much can slow a call down, and nothing but the kernel makes it fast. n is the
// number of calls.
func (r *rate) log() (log float64, n int) {
	bits := r.recent.Load()
	if bits == 0 {
		return 0, 0
	}
	first, second := int16(math.MaxInt16), int16(math.MaxInt16)
	for ; bits != 0; bits >>= 16 {
		x := int16(uint16(bits))
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
	return float64(first) / rateUnit, n
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

// alone is the sharing up to which a call counts as alone, and the factor by which a
// call beside others must differ to count at all.
const alone = 1.25

// learn learns from a call of so many nanoseconds. Beside others, its share of them
// is what it would have taken alone if all of them used the whole machine, and the
// whole is if none did: what lies between teaches nothing.
func (c *candidate) learn(took, overhead, sharing float64) {
	most := math.Log(max(took-overhead, took/2) / c.own)
	share := most - math.Log(sharing)
	thought, n := c.near()
	switch {
	case sharing < alone || most < thought:
		c.rates[c.at].add(most)
	case n == 0 || share > thought+math.Log(alone):
		c.rates[c.at].add(share)
	}
}
