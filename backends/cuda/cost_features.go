package cuda

import (
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// What features add to the time of a pass, as fractions of it: any at all, which takes
// other code, and each by itself. Products of 16 bits take less time beside them, and
// decode hides all behind its reading. Alone, a feature of Hopper's has an instance of its own.
// BenchmarkFeatures measures them.
var featureTimes = [...]struct {
	feature             flashkit.Feature
	float32             float64 // both passes
	sm90, sm90Alone     float64 // forward of 16 bits
	sm80                float64
	back90, back90Alone float64 // backward of 16 bits
	back80              float64
	decode              float64
}{
	{flashkit.AllFeatures, .1, .08, .08, .1, .04, .04, .2, .1},
	{flashkit.FeatureSoftcap, .25, .6, .6, .6, .9, .23, .6, .01}, {flashkit.FeatureALiBi, .05, .2, .2, .6, .3, .02, .02, .01},
	{flashkit.FeatureBias, .1, 1.4, .75, .6, 2, .95, 1.2, .2}, {flashkit.FeatureMask, .1, 1.3, .55, .5, 2.2, .5, 1.5, .06},
	{flashkit.FeatureDropout, .3, 2, 1.6, .9, 1.75, .5, .6, .06}, {flashkit.FeaturePage, .3, .6, .6, .5, 0, 0, 0, .2},
	{flashkit.FeatureCarry, .2, .25, .25, .5, 0, 0, 0, .2}, {flashkit.FeatureMixed, .2, 0, 0, 0, 0, 0, 0, 0},
}

// smallPages is what pages of fewer keys than decode_sm80 loads at a time add to it.
const smallPages = .1

// share returns what a feature adds to a call by the stem.
func (s *stem) share(c *flashkit.Call, i int) float64 {
	switch x := &featureTimes[i]; {
	case s.rows > 0 && x.feature == flashkit.FeaturePage && c.Page < 8:
		return x.decode + smallPages
	case s.rows > 0 && i == 0: // what many rows do is not hidden behind the reading
		return x.decode + .4*min(1, float64(c.Heads/c.KVHeads*c.QLen)/20)
	case s.rows > 0:
		return x.decode
	case c.DType == flashkit.Float32:
		return x.float32
	case s.hopper && s.alone(c):
		return pick(s.pass, x.sm90Alone, x.back90Alone)
	case s.hopper:
		return pick(s.pass, x.sm90, x.back90)
	case s.pass == flashkit.PassBackward:
		return x.back80
	default:
		return x.sm80
	}
}

// alone reports whether the stem has an instance for what a call asks of scores and weights.
func (s *stem) alone(c *flashkit.Call) bool { return s.featurePart(&c.Problem) != partFeatures }

func pick(pass flashkit.Pass, forward, backward float64) float64 {
	if pass == flashkit.PassBackward {
		return backward
	}
	return forward
}

// firstTime is what a launch with features takes longer, in microseconds: its block of arguments and its
// code are larger.
func (s *stem) firstTime() float64 {
	switch {
	case s.dtypes[0] == flashkit.Float32 && s.rows == 0:
		return 0
	case s.rows > 0 || s.hopper:
		return 5
	}
	return 10
}

// launchTime is that of another kernel, in microseconds: of a copy of what sequences say
// too.
const launchTime = 4

// callCost predicts the time of a call on the device's own memory. It depends on the
// problem, the pass and the traits alone.
func (s *stem) callCost(dev *Device, c *flashkit.Call) time.Duration {
	t := s.deviceCost(dev, c.Problem, c.Traits.Loose)
	if !featured(&c.Problem) {
		return t
	}
	return s.withFeatures(dev, c, t, microseconds(s.costsOf(c.DType).launch))
}

// withFeatures returns what a call takes whose like without features takes a time, of which a
// part does not depend on what is computed.
func (s *stem) withFeatures(dev *Device, c *flashkit.Call, whole, fixed time.Duration) time.Duration {
	asked, share, us := c.Features(), 1., s.firstTime()
	for i := range featureTimes {
		if asked&featureTimes[i].feature != 0 {
			share += s.share(c, i)
		}
	}
	if c.Ragged {
		share *= s.shorter(dev, c)
		us += launchTime
	}
	if c.Carry {
		us += launchTime
	}
	if s.pass == flashkit.PassBackward {
		if c.Score.Sink {
			us += launchTime
		}
		if c.Score.Bias && !s.hopper { // which writes DBias by itself, but where it is a sum
			pairs := float64(c.Batch) * float64(c.Heads) * float64(c.Problem.Area())
			us += launchTime + pairs*float64(c.Dim+c.VDim)*dbiasCycles(c.DType)/float64(max(1, dev.SMs)*max(1, dev.ClockMHz))
		}
	}
	return fixed + time.Duration(float64(max(0, whole-fixed))*share) + microseconds(us)
}

// shorter returns what part of the time is left where sequences are shorter than they may be: that of the pairs
// where multiprocessors have many blocks each, more where the longest sequence takes its time.
func (s *stem) shorter(dev *Device, c *flashkit.Call) float64 {
	const tile, many = 128, 8 // rows of a block about; blocks of a multiprocessor
	blocks := c.Batch * c.Heads * ceilDiv(c.QLen, tile)
	if s.pass == flashkit.PassBackward {
		blocks = c.Batch * c.KVHeads * ceilDiv(c.KVLen, tile)
	}
	even := min(1, float64(blocks)/float64(many*max(1, dev.SMs)))
	return math.Exp2(-float64(c.Traits.Load) * (.1 + .15*even))
}

// dbiasCycles returns those of a multiprocessor for a product of sums_dbias.
func dbiasCycles(t flashkit.DType) float64 {
	if t == flashkit.Float32 {
		return 1. / 57
	}
	return 1. / 200
}

// hostCallCost predicts the time of a call with host tensors that has at most so many
// buffers. One with features goes as one chunk.
func (s *stem) hostCallCost(dev *Device, c *flashkit.Call, buffers int) time.Duration {
	if !featured(&c.Problem) {
		return s.hostCost(dev, c.Problem, buffers)
	}
	in, out, rows := hostBytes(c.Problem, s.pass)
	if c.Ragged {
		part := math.Exp2(-float64(c.Traits.Load) / 8) // rows and keys are to pairs as a root
		in, out, rows = in*part, out*part, rows*part
	}
	pairs := float64(c.Batch) * float64(c.Heads) * float64(c.QLen) * float64(c.KVLen)
	if c.Score.Bias {
		in += pairs * float64(c.DType.Size())
	}
	if c.Score.Mask {
		in += pairs
	}
	h := &hostTensorCosts
	return microseconds(h.call+(in*h.pack+out*h.unpack+rows*h.row)/1e3+(in+out)/h.rate*1e6) + s.callCost(dev, c)
}
