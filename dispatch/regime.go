package dispatch

import (
	"fmt"
	"math"
	"sync/atomic"

	"github.com/flashkit-go/flashkit"
)

// A regime is a kind of problem: those on which a kernel's prediction errs by
// about the same factor. It is a number below regimes.
type regime uint16

// The axes of a regime. The first one counts powers of four of the FLOPs.
const (
	axisSize = iota
	axisDim
	axisShared
	axisMask
	axisType
	axisRows
	axes
)

var axisNames = [axes][]string{
	axisSize:   {"4^6", "4^7", "4^8", "4^9", "4^10", "4^11", "4^12", "4^13", "4^14", "4^15", "4^16", "4^17", "4^18", "4^19", "4^20"},
	axisDim:    {"d64", "d128", "wide"},
	axisShared: {"own", "shared"}, // keys of a head, or of several
	axisMask:   {"full", "masked"},
	axisType:   {"f32", "f16", "bf16"},
	axisRows:   {"row", "few", "many"}, // queries
}

const (
	regimes  = 15 * 3 * 2 * 2 * 3 * 3
	smallest = 6 // exponent of the first size
)

// axisWeights say how much a step along an axis changes a kernel's error: what is
// known of a regime says more about the near ones.
var axisWeights = [axes]int{axisSize: 2, axisDim: 2, axisShared: 3, axisMask: 2, axisType: 6, axisRows: 8}

// coordinates holds the place of every regime on each axis.
var coordinates = func() (list [regimes][axes]int8) {
	for r := range list {
		rest := r
		for a, names := range axisNames {
			list[r][a] = int8(rest % len(names))
			rest /= len(names)
		}
	}
	return list
}()

// regimeOf returns the regime of a problem.
func regimeOf(p flashkit.Problem, s flashkit.Pass) regime {
	var at [axes]int
	_, exponent := math.Frexp(p.FLOPs(s))
	at[axisSize] = max(0, min((exponent-1)/2-smallest, len(axisNames[axisSize])-1))
	switch dim := max(p.Dim, p.VDim); {
	case dim > 128:
		at[axisDim] = 2
	case dim > 64:
		at[axisDim] = 1
	}
	if p.KVHeads < p.Heads {
		at[axisShared] = 1
	}
	if p.Mask != (flashkit.Band{}) {
		at[axisMask] = 1
	}
	at[axisType] = int(p.DType)
	switch {
	case p.QLen > 32:
		at[axisRows] = 2
	case p.QLen > 2:
		at[axisRows] = 1
	}
	r := 0
	for a := axes - 1; a >= 0; a-- {
		r = r*len(axisNames[a]) + at[a]
	}
	return regime(r)
}

// String returns the regime's name in profiles: few-bf16-masked-own-d64-4^12.
func (r regime) String() string {
	c := coordinates[r]
	return fmt.Sprintf("%s-%s-%s-%s-%s-%s", axisNames[axisRows][c[axisRows]], axisNames[axisType][c[axisType]], axisNames[axisMask][c[axisMask]],
		axisNames[axisShared][c[axisShared]], axisNames[axisDim][c[axisDim]], axisNames[axisSize][c[axisSize]])
}

func distance(a, b regime) int {
	sum := 0
	for i, w := range axisWeights {
		step := int(coordinates[a][i]) - int(coordinates[b][i])
		sum += w * max(step, -step)
	}
	return sum
}

// A rate is what calls of a kernel took over what it predicted, for problems of a
// regime, and how many calls say so. Nothing waits for a lock.
type rate struct {
	bits  atomic.Uint64 // the natural logarithm of the factor, a float32, above the number
	prior atomic.Uint64 // what memory.prior has found, 0 before that
}

// widest is how far a prediction may be off. What lies beyond is no measurement.
const widest = 1 << 20

func packRate(log float64, calls uint32) uint64 {
	return uint64(math.Float32bits(float32(log)))<<32 | uint64(calls)
}

func unpackRate(bits uint64) (log float64, calls uint32) {
	return float64(math.Float32frombits(uint32(bits >> 32))), uint32(bits)
}

func (r *rate) load() (log float64, calls uint32) { return unpackRate(r.bits.Load()) }

// learn takes another call into account. The first few are averaged. Later, a
// call that was faster than thought counts for more than one that was slower: much
// can slow a call down, and nothing but the kernel makes it fast. One call alone
// changes little.
func (r *rate) learn(factor float64) {
	const rise, fall, jump = 16, 4, 1.4 // 1.4 is a factor of 4
	if !(factor > 1.0/widest && factor < widest) {
		return
	}
	old := r.bits.Load()
	was, calls := unpackRate(old)
	log := math.Log(factor)
	if calls > 0 {
		weight := 1 / float64(min(calls+1, rise))
		if log < was {
			weight = 1 / float64(min(calls+1, fall))
		}
		log = was + weight*max(-jump, min(log-was, jump))
	}
	r.bits.CompareAndSwap(old, packRate(log, min(calls, math.MaxUint32-1)+1)) // of two calls at once, one counts
}

// with returns the logarithm of the factor to expect, where others like it make
// one expect prior: a few calls alone may be luck.
func (r *rate) with(prior float64) float64 {
	const trust = 2 // calls that the prior counts as
	log, calls := r.load()
	n := float64(min(calls, 64))
	return (n*log + trust*prior) / (n + trust)
}

// rates are all that is known of one kernel.
type rates [regimes]rate

// prior returns what the other regimes make one expect of this one, the nearest
// ones before all: the logarithm of a factor, and false if nothing is known.
func (r *rates) prior(at regime) (log float64, ok bool) {
	const nearby, enough = 2, 8
	sum, weights := 0.0, 0.0
	for i := range r {
		if log, calls := r[i].load(); calls > 0 && regime(i) != at {
			w := float64(min(calls, enough)) * math.Exp(-float64(distance(at, regime(i)))/nearby)
			sum += w * log
			weights += w
		}
	}
	if weights == 0 {
		return 0, false
	}
	return sum / weights, true
}
