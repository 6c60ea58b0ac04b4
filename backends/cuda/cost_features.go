package cuda

import (
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// featureShare returns the time that the feature of featureTimes[i] adds to each step of a call, as
// a fraction of the step's time.
func (s *family) featureShare(c *flashkit.Call, i int) float64 {
	switch x := &featureTimes[i]; {
	case s.rows > 0 && i == 0: // the work of many rows is not hidden behind the loads
		return x.decode + .4*min(1, float64(c.Heads/c.KVHeads*c.QLen)/20)
	case s.rows > 0:
		return x.decode
	case c.DType == flashkit.Float32:
		return x.float32
	case s.hopper && s.specialized(c):
		return byPass(s.pass, x.sm90Alone, x.back90Alone)
	case s.hopper:
		return byPass(s.pass, x.sm90, x.back90)
	case s.pass == flashkit.PassBackward:
		return x.back80
	default:
		return x.sm80
	}
}

// specialized reports whether the family has an instance for exactly the score features of a call.
// The bias and mask of the call are assumed to be dense.
func (s *family) specialized(c *flashkit.Call) bool {
	return s.instanceOf(&instanceCall{p: &c.Problem, whole: &c.Problem, scores: denseScoreTensors(&c.Problem)}) != traitFeatures
}

func byPass(pass flashkit.Pass, forward, backward float64) float64 {
	if pass == flashkit.PassBackward {
		return backward
	}
	return forward
}

// launchTime is the cost of one more kernel, in microseconds.
const launchTime = 4

// callCost predicts the time of a call on device tensors. On one device the prediction depends only
// on problem, pass and traits.
func (s *family) callCost(dev *Device, c *flashkit.Call) time.Duration {
	if !hasFeatures(&c.Problem) {
		return s.deviceCost(dev, c.Problem, c.Traits.Loose)
	}
	return s.variant(&c.Problem).featuredCost(dev, c)
}

func (s *family) featuredCost(dev *Device, c *flashkit.Call) time.Duration {
	k := s.costsOf(c.DType)
	asked, x, us := c.Features(), surcharge{step: 1, bytes: 1, begin: k.plus * s.wide(&c.Problem)}, k.first
	for i := range featureTimes {
		if asked&featureTimes[i].feature != 0 {
			x.step += s.featureShare(c, i)
		}
	}
	if s.rows > 0 && c.Page > 0 {
		x.bytes += pageBytes(c.Page)
	}
	if s.pass == flashkit.PassBackward && c.Score.Bias && !s.hopper { // Hopper's kernel writes DBias itself, unless DBias is a sum
		pairs := float64(c.Batch) * float64(c.Heads) * float64(c.Problem.Area())
		us += launchTime + pairs*float64(c.Dim+c.VDim)*dbiasCycles(c.DType)/float64(max(1, dev.SMs)*max(1, dev.ClockMHz))
	}
	return s.sequencesCost(dev, c, x) + microseconds(us)
}

// pageBytes returns the fraction by which pages of the given number of keys raise the time for
// memory traffic.
func pageBytes(keys int) float64 { return min(.3, .6/float64(keys)) }

// sequencesCost predicts the time of a call with a surcharge. Sequences of different lengths cost
// the same as sequences of equal length with the same total of query-key pairs, but at least the
// time of the longest sequence alone. A launch has the same number of blocks for every sequence.
// Shorter sequences therefore have blocks without work, which cost extra.
func (s *family) sequencesCost(dev *Device, c *flashkit.Call, x surcharge) time.Duration {
	t := s.costWith(dev, c.Problem, c.Traits.Loose, x)
	if !c.Ragged || c.Traits.Load == 0 || c.Batch < 2 {
		return t
	}
	p, one := typical(c.Problem, c.Traits.Load), c.Problem
	one.Batch = 1
	if s.rows > 0 {
		x.cut = s.cutOf(dev, &c.Problem)
	}
	t = min(t, max(s.costWith(dev, p, c.Traits.Loose, x), s.costWith(dev, one, c.Traits.Loose, x)))
	if s.rows > 0 || s.pass == flashkit.PassForward && s.hopper {
		return t
	}
	k, tile := s.costsOf(p.DType), s.shape(&p)
	blocks := ceilDiv(c.QLen, tile.rows) - ceilDiv(p.QLen, tile.rows)
	heads := c.Batch * c.Heads
	if s.pass == flashkit.PassBackward {
		blocks, heads = ceilDiv(c.KVLen, tile.keys)-ceilDiv(p.KVLen, tile.keys), c.Batch*c.KVHeads
		if s.hopper && c.Traits.PackedKV { // with slots (see method slots), at most one block per sequence and KV head has no work
			blocks = min(blocks, 1)
		}
	}
	idle := float64(blocks) * float64(heads) * k.empty / float64(max(1, dev.SMs)*tile.perSM)
	return t + microseconds(idle/float64(max(1, dev.ClockMHz)))
}

func (s *family) cutOf(dev *Device, p *flashkit.Problem) (x cut) {
	t, sms := s.shape(p), max(1, dev.SMs)
	x.splits, x.cluster = cutDecode(s.decodeTiles(p), ceilDiv(seenKeys(p), t.keys), t.warps, sms*t.perSM, sms, dev.Major == 9 && s == &families[decodeSM80])
	return x
}

// typical returns a problem whose sequences have equal lengths, and about the number of query-key
// pairs that load implies. load is a value of Traits.Load.
func typical(p flashkit.Problem, load uint8) flashkit.Problem {
	part := math.Exp2(-float64(load) / 4)
	if p.QLen > 1 {
		part = math.Sqrt(part)
		p.QLen = int(math.Ceil(float64(p.QLen) * part))
	}
	p.KVLen = int(math.Ceil(float64(p.KVLen) * part))
	return p
}

// dbiasCycles returns a multiprocessor's cycles per multiply-add in sums_dbias.
func dbiasCycles(t flashkit.DType) float64 {
	if t == flashkit.Float32 {
		return 1. / 57
	}
	return 1. / 200
}
