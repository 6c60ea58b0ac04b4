package cuda

import (
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// hostCosts are the costs of moving host tensors. For each staging buffer, a goroutine packs a
// chunk, copies the chunk, runs kernels and takes the next chunk. All buffers share the bus and the
// device.
type hostCosts struct {
	call    float64 // microseconds of a call
	pack    float64 // nanoseconds to pack a byte for the device into one buffer
	unpack  float64 // nanoseconds to unpack a byte from one buffer
	row     float64 // additional nanoseconds to pack an unaligned row separately
	rate    float64 // bytes per second on the bus, both directions together
	exposed float64 // of the times of the buffers, the bus and the device, the longest hides the others, except for this fraction
}

var hostTensorCosts = hostCosts{call: 13, pack: 0.098, unpack: 0.065, row: 20, rate: 54e9, exposed: 0.56}

// hostCost predicts the time of a call without features on host tensors, with at most the given
// number of staging buffers.
func (s *family) hostCost(dev *Device, p flashkit.Problem, buffers int) time.Duration {
	c, units := &hostTensorCosts, p.Batch*p.KVHeads
	if units == 0 {
		return microseconds(c.call)
	}
	in, out, rows := hostBytes(p, s.pass)
	unit := (in + out) / float64(units)
	n := max(1, min(units, int(chunkBytes/max(1, unit))))
	chunks := ceilDiv(units, n)
	buffers = max(1, min(chunks, buffers, int(stagingBytes/max(1, unit*float64(n)))))
	part := p
	part.Batch, part.Heads, part.KVHeads = n, p.Heads/p.KVHeads, 1
	us := func(p flashkit.Problem) float64 { return float64(s.deviceCost(dev, p, false)) / 1e3 }

	chunk := us(part) + float64(n)/float64(units)*(in*c.pack+out*c.unpack+rows*c.row)/1e3
	staged, bus, device := float64(ceilDiv(chunks, buffers))*chunk, (in+out)/c.rate*1e6, us(p)
	return c.total(staged, bus, device, c.exposed)
}

// total returns the time of a call whose buffers, bus and device work at the same time. The longest
// of the three times hides the two shorter times, except for a fraction of their sum: the parameter
// exposed.
func (c *hostCosts) total(staged, bus, device, exposed float64) time.Duration {
	most := max(staged, bus, device)
	return microseconds(c.call + most + exposed*(staged+bus+device-most))
}

// hostCallCost predicts the time of any call on host tensors, with or without features.
func (s *family) hostCallCost(dev *Device, c *flashkit.Call, buffers int) time.Duration {
	if !hasFeatures(&c.Problem) {
		return s.hostCost(dev, c.Problem, buffers)
	}
	in, out, rows := hostBytes(c.Problem, s.pass)
	if c.Ragged {
		part := math.Exp2(-float64(c.Traits.Load) / 8) // rows and keys grow as the square root of pairs
		in, out, rows = in*part, out*part, rows*part
	}
	in += pairBytes(&c.Problem)
	h, chunks := &hostTensorCosts, featureChunks(c, in+out)
	buffers = max(1, min(chunks, buffers, int(stagingBytes*float64(chunks)/max(1, in+out))))
	chunk := (in*h.pack + out*h.unpack + rows*h.row) / 1e3 / float64(chunks)
	exposed := h.exposed
	if chunks == 1 { // nothing overlaps
		exposed = 1
	}
	return h.total(float64(ceilDiv(chunks, buffers))*chunk, (in+out)/h.rate*1e6, float64(s.callCost(dev, c))/1e3, exposed)
}

// featureChunks predicts the number of chunks of a call with features. bytes is the size of the
// call's tensors if they are dense.
func featureChunks(c *flashkit.Call, bytes float64) int {
	sums := c.Pass == flashkit.PassBackward && c.Score.Sink
	return max(1, ceilDiv(c.Batch, batchesOf(c, sums, bytes, featureBytes)))
}

// pairBytes returns the bytes of a dense Bias and Mask.
func pairBytes(p *flashkit.Problem) (bytes float64) {
	pairs := float64(p.Batch) * float64(p.Heads) * float64(p.QLen) * float64(p.KVLen)
	if p.Score.Bias {
		bytes += pairs * float64(p.DType.Size())
	}
	if p.Score.Mask {
		bytes += pairs
	}
	return bytes
}
