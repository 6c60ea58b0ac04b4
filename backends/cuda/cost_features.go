package cuda

import (
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// What features add to the time of a pass, as a fraction of it: any at all, which takes
// other code, and each by itself.
const anyFeature = .05

var featureTimes = [...]struct {
	feature flashkit.Feature
	share   float64
}{
	{flashkit.FeatureSoftcap, .2}, {flashkit.FeatureALiBi, .05}, {flashkit.FeatureBias, .3}, {flashkit.FeatureMask, .3},
	{flashkit.FeatureDropout, .5}, {flashkit.FeaturePage, .1}, {flashkit.FeatureMixed, .2},
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
	asked, share, us := c.Features(), 1+anyFeature, 0.
	for _, f := range featureTimes {
		if asked&f.feature != 0 {
			share += f.share
		}
	}
	if c.Ragged {
		share *= math.Exp2(-float64(c.Traits.Load) / 4)
		us += launchTime
	}
	if c.Carry {
		us += launchTime
	}
	if s.pass == flashkit.PassBackward {
		if c.Score.Sink {
			us += launchTime
		}
		if c.Score.Bias { // two products in float32
			us += launchTime + float64(c.Batch)*float64(c.Heads)*float64(c.Problem.Area())*float64(c.Dim+c.VDim)*dbiasCycles/
				float64(max(1, dev.SMs)*max(1, dev.ClockMHz))
		}
	}
	return fixed + time.Duration(float64(max(0, whole-fixed))*share) + microseconds(us)
}

// dbiasCycles are those of a multiprocessor for a product of sums_dbias.
const dbiasCycles = 1. / 128

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
