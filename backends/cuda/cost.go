package cuda

import (
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// What a call costs beside the arithmetic and the device's memory: the launches
// and the wait; and host tensors on their way, packed and copied, of which the
// first chunk comes before any arithmetic and the last one after.
const (
	launchTime = 5 * time.Microsecond
	callTime   = 30 * time.Microsecond
	hostRate   = 20e9 // bytes per second, of both ways together
	tileRows   = 128  // about
)

// deviceCost predicts the time of a call on the device's own memory. Few blocks
// leave multiprocessors idle, which then neither compute nor read; decode cuts
// the keys to fill them.
func (s *stem) deviceCost(dev *Device, p flashkit.Problem) time.Duration {
	busy := 1.0
	if n := p.QLen; s.rows == 0 {
		if s.pass == flashkit.PassBackward {
			n = p.KVLen
		}
		blocks := float64(tiles(n, tileRows)) * float64(p.Batch*p.Heads)
		busy = max(1, min(float64(dev.SMs), blocks)) / float64(max(1, dev.SMs))
	}
	rate := s.rate / 132 * float64(max(1, dev.SMs)) // of as many multiprocessors as the rates are of
	return duration(max(s.work(p)/rate, p.Bytes(s.pass)/float64(max(1, dev.Bandwidth)))/busy) + launchTime
}

// work returns the operations of a pass as the tiles do them: with head dims
// padded, and with what the edges of a band hide.
func (s *stem) work(p flashkit.Problem) float64 {
	flops := p.FLOPs(s.pass)
	if p.Mask != (flashkit.Band{}) && s.rows == 0 {
		full := p
		full.Mask = flashkit.Band{}
		edge := float64(min(tileRows, p.KVLen)) / 2 / float64(max(1, p.KVLen))
		flops = min(full.FLOPs(s.pass), flops+edge*full.FLOPs(s.pass))
	}
	return flops * float64(2*s.dims[min(s.pad(p), len(s.dims)-1)]) / float64(p.Dim+p.VDim)
}

// hostCost predicts the time of a call with host tensors.
func (s *stem) hostCost(dev *Device, p flashkit.Problem) time.Duration {
	return callTime + s.deviceCost(dev, p) + duration(p.Bytes(s.pass)/hostRate)
}

// duration converts seconds, however many.
func duration(seconds float64) time.Duration {
	return time.Duration(min(seconds*1e9, math.MaxInt64/4))
}
