package cuda

import (
	"fmt"
	"math"
	"slices"

	"github.com/flashkit-go/flashkit"
)

// A family is one source file of kernels/: its instances and the limits of its calls.
type family struct {
	name   string // name of the source file, and prefix of its kernels' names
	pass   flashkit.Pass
	arch   int  // lowest compute capability, times 10
	hopper bool // runs on compute capability arch only, and reads tensors through tensor maps
	dtypes []flashkit.DType
	dims   []headDims // padded head dims, ascending
	rows   int        // maximum query rows per KV head; 0: no limit
	takes  flashkit.Feature

	instances []instance

	shapes []blockShape // by padded head dim
	costs  *costs
	plans  *costs // costs that decide partitions; they stay fixed, because refitting must not change results
}

type familyID int

const (
	fwdSM90 familyID = iota
	fwdSM90Short
	fwdSM90Wide
	fwdSM80
	bwdSM90
	bwdSM80
	fwdF32
	bwdF32
	decodeSM80
	decodeInt8 // of kernel decode_sm80, for int8 keys

	numKernels = int(decodeInt8) // families that are kernels of the backend
)

// dtypes lists the number formats, by flashkit.DType.
var dtypes = [...]flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16}

var families = [...]family{
	fwdSM90:      {"fwd_sm90", flashkit.PassForward, 90, true, dtypes[1:], hopperDims(plainFeatures|layoutFeatures, headDims{80, 80, 1, plainFeatures}, headDims{96, 96, 1, plainFeatures}), 0, takesForward | flashkit.FeatureRanges | flashkit.FeatureRowMax, fwdSM90Instances, fwdSM90Tiles, &fwdSM90Costs, &fwdSM90Plans},
	fwdSM90Short: {"fwd_sm90_short", flashkit.PassForward, 90, true, dtypes[1:], square(64, 80, 128), 0, plainFeatures, plainInstances, fwdSM90ShortTiles, &fwdSM90ShortCosts, nil},
	fwdSM90Wide:  {"fwd_sm90_wide", flashkit.PassForward, 90, true, dtypes[1:], square(320, 512), 0, plainFeatures, plainInstances, fwdSM90WideTiles, &fwdSM90WideCosts, nil},
	fwdSM80:      {"fwd_sm80", flashkit.PassForward, 80, false, dtypes[1:], square(32, 64, 96, 128, 192, 256, 320, 512), 0, takesForward, forwardInstances, fwdSM80Tiles, &fwdSM80Costs, nil},
	bwdSM90:      {"bwd_sm90", flashkit.PassBackward, 90, true, dtypes[1:], hopperDims(plainFeatures), 0, takesBackward | flashkit.FeatureRanges, bwdSM90Instances, bwdSM90Tiles, &bwdSM90Costs, &bwdSM90Plans},
	bwdSM80:      {"bwd_sm80", flashkit.PassBackward, 80, false, dtypes[1:], square(32, 64, 96, 128, 192, 256, 512), 0, takesBackward, backwardInstances, bwdSM80Tiles, &bwdSM80Costs, nil},
	fwdF32:       {"fwd_f32", flashkit.PassForward, 80, false, dtypes[:1], square(32, 64, 128, 256, 512), 0, takesForward | flashkit.FeatureMixed, forwardInstances, fwdF32Tiles, &fwdF32Costs, nil},
	bwdF32:       {"bwd_f32", flashkit.PassBackward, 80, false, dtypes[:1], square(32, 64, 128, 256, 512), 0, takesBackward, bwdF32Instances, bwdF32Tiles, &bwdF32Costs, nil},

	decodeSM80: {"decode_sm80", flashkit.PassForward, 80, false, dtypes[:], append(square(64, 128, 256), headDims{512, 512, 2, flashkit.AllFeatures}), 64, takesForward | flashkit.FeatureInt8, decodeInstances, decodeTiles, &decodeCosts, nil},
	decodeInt8: {"decode_int8", flashkit.PassForward, 80, false, dtypes[:], square(128), 64, takesInt8, int8Instances, int8Tiles, &decodeInt8Costs, nil},
}

// A refusal is the reason why a family cannot run a call. The refusal none means that the family
// can run the call.
type refusal uint8

const (
	none refusal = iota
	otherFeature
	looseTensor
	oldDevice
	newDevice
	otherDType
	wideHead
	manyRows
	longSequence
	manyBlocks
	oddPage
)

// refuses returns why the family cannot run a valid call on dev. If c is nil, refuses checks only
// the device. The method refuses does not allocate, because it runs for every call. Hopper families
// refuse device tensors whose addresses or strides are not multiples of 16 bytes, because tensor
// maps require such multiples. Host tensors are copied to aligned memory first.
func (s *family) refuses(dev *Device, c *flashkit.Call) refusal {
	arch := dev.Major*10 + dev.Minor
	if c != nil {
		s = s.variant(&c.Problem)
	}
	switch {
	case c != nil && s.unsupported(c) != 0:
		return otherFeature
	case c != nil && s.hopper && c.Traits.Loose:
		return looseTensor
	case arch < s.arch:
		return oldDevice
	case s.hopper && arch > s.arch:
		return newDevice
	case c == nil:
		return none
	case !slices.Contains(s.dtypes, c.DType):
		return otherDType
	case max(c.Dim, c.VDim) > s.widestOn(arch):
		return wideHead
	case s.rows > 0 && c.Heads/c.KVHeads*c.QLen > s.rows:
		return manyRows
	case max(c.QLen, c.KVLen) > s.reach(c):
		return longSequence
	case blocks(&c.Problem) > math.MaxInt32:
		return manyBlocks
	case s.hopper && c.Page%mappedKeys != 0:
		return oddPage
	}
	return none
}

// unsupported returns the features of a call that the family does not support. Ranges and row maxima
// are not supported together with features of scores or weights.
func (s *family) unsupported(c *flashkit.Call) flashkit.Feature {
	asked, takes := c.Features(), s.takes
	if asked&takes&rangedFeatures != 0 {
		takes &^= takesScores &^ flashkit.FeatureSink
	}
	return asked &^ takes
}

// reason returns the result of refuses in words, "" if the family can run the call.
func (s *family) reason(dev *Device, c *flashkit.Call) string {
	if c != nil {
		s = s.variant(&c.Problem)
	}
	switch s.refuses(dev, c) {
	case otherFeature:
		reason := "does not support " + s.unsupported(c).String()
		switch {
		case c.Int8Group != 0:
			reason += " with keys in i8"
		case c.Features()&^s.takes == 0:
			reason += " with " + (c.Features() & rangedFeatures).String()
		}
		return reason
	case looseTensor:
		return "requires rows of the tensors on the device to begin at multiples of 16 bytes"
	case oldDevice:
		return fmt.Sprintf("requires compute capability %d.%d; %s has %d.%d", s.arch/10, s.arch%10, dev.Name, dev.Major, dev.Minor)
	case newDevice:
		return fmt.Sprintf("supports compute capability %d.%d only; %s has %d.%d", s.arch/10, s.arch%10, dev.Name, dev.Major, dev.Minor)
	case otherDType:
		return fmt.Sprintf("supports %v, not %v", s.dtypes, c.DType)
	case wideHead:
		return s.wideReason(dev.Major*10+dev.Minor, max(c.Dim, c.VDim))
	case manyRows:
		return fmt.Sprintf("supports at most %d query rows per KV head, not %d", s.rows, c.Heads/c.KVHeads*c.QLen)
	case longSequence:
		return fmt.Sprintf("supports sequence lengths up to %d, not %d", s.reach(c), max(c.QLen, c.KVLen))
	case manyBlocks:
		return fmt.Sprintf("supports up to %d thread blocks, not %.0f", math.MaxInt32, blocks(&c.Problem))
	case oddPage:
		return fmt.Sprintf("supports pages of a multiple of %d keys, not %d", mappedKeys, c.Page)
	}
	return ""
}

// variant returns the family whose instances compute p: decode_int8 for decode_sm80 with int8 keys,
// else id.
func (id familyID) variant(p *flashkit.Problem) familyID {
	if id == decodeSM80 && p.Int8Group != 0 {
		return decodeInt8
	}
	return id
}

func (s *family) variant(p *flashkit.Problem) *family {
	if s == &families[decodeSM80] {
		return &families[decodeSM80.variant(p)]
	}
	return s
}

// widestOn returns the widest head dim on a compute capability, times 10. Wide heads of bwd_sm80
// need more shared memory than a block has on 8.6 and 8.9, and in the PTX for newer GPUs.
func (s *family) widestOn(arch int) int {
	if s == &families[bwdSM80] && arch != 80 && arch != 90 {
		return plainDim
	}
	return s.widest()
}

func (s *family) wideReason(arch, dim int) string {
	if most := s.widestOn(arch); most < s.widest() {
		return fmt.Sprintf("supports head dims up to %d on compute capability %d.%d, not %d", most, arch/10, arch%10, dim)
	}
	return fmt.Sprintf("supports head dims up to %d, not %d", s.widest(), dim)
}

// reach returns the maximum sequence length of a call. With ranges, blocks of bwd_sm90 list row tiles.
func (s *family) reach(c *flashkit.Call) int {
	if s == &families[bwdSM90] && c.Score.Ranges != 0 {
		return listedKeys
	}
	return reach
}

// blocks returns an upper bound of the number of thread blocks of a launch. The driver permits
// fewer than 2^31 blocks. Every tile has at least 16 rows or keys.
func blocks(p *flashkit.Problem) float64 {
	return float64(p.Batch) * float64(p.Heads) * float64(max(p.QLen, p.KVLen)/16+1)
}
