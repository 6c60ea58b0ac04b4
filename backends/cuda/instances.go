package cuda

import (
	"math"
	"math/bits"
	"slices"

	"github.com/flashkit-go/flashkit"
)

// An instance is one kernel of a family, given as a set of traits. The kernel's name contains the
// traits' names, as in bwd_sm90_features_groups_bf16_d64. The empty set is the main kernel without
// features.
type instance uint32

const (
	traitFeatures instance = 1 << iota

	traitDelta   // backward: computes delta, the sums of dO∘O by row, and zeroes the counters
	traitFinish  // backward: rounds dQ, to which blocks of the main kernel have added in float32
	traitMerge   // decode: merges the split-KV parts
	traitBounds  // fwd_sm90: finds the bounds of the ranges of keys
	traitSums    // bwd_sm90: adds up dK and dV of the parts of a group
	traitCluster // decode: the blocks of the split-KV parts form a cluster

	// Traits of main kernels for some features only. Each of these kernels also has traitFeatures,
	// and supports layoutFeatures.
	traitLayout // layoutFeatures only
	traitShaped // softcap and ALiBi
	traitSoftcap
	traitALiBi
	traitBias
	traitMask
	traitKeys // a mask that is equal for all rows: the kernel first lists the key tiles with visible keys, and skips the others
	traitDropout
	traitRanges // ranges of keys and row maxima; in an image of its own

	// Main kernels with other schedules.
	traitSplit     // fwd_sm90: split-KV
	traitParts     // bwd_sm90: a block processes some query heads of a group, not all
	traitPairs     // a cluster of two blocks shares a key tile
	traitGroups    // a block loops over row tiles, and for each row tile over the query heads of a group
	traitUp        // blocks of the last key tiles begin first; each block loops from the first row that sees its keys to the last row
	traitWide      // separate blocks compute dK and dV
	traitColumns80 // for head dims up to 80
	traitColumns96 // for head dims up to 96
	traitOnce      // all blocks run at the same time
)

// traits holds the name of each bit of an instance. Instances with the bit exist for padded head
// dims from traits[].from to traits[].to.
var traits = [...]struct {
	name     string
	from, to int
}{
	{"features", 0, math.MaxInt},
	{"delta", 0, math.MaxInt}, {"finish", 0, math.MaxInt}, {"merge", 0, math.MaxInt}, {"bounds", 0, math.MaxInt}, {"sums", 0, math.MaxInt}, {"cluster", 0, math.MaxInt},
	{"layout", 0, math.MaxInt}, {"shaped", 0, math.MaxInt}, {"softcap", 0, math.MaxInt}, {"alibi", 0, math.MaxInt}, {"bias", 0, math.MaxInt},
	{"mask", 0, math.MaxInt}, {"keys", 0, math.MaxInt}, {"dropout", 0, math.MaxInt}, {"ranges", 0, math.MaxInt},
	{"split", 0, math.MaxInt}, {"parts", 0, math.MaxInt}, {"pairs", 0, groupedDim}, {"groups", 0, groupedDim}, {"up", upDim, upDim},
	{"wide", wideDim, wideDim}, {"columns80", narrowedDim, narrowedDim}, {"columns96", narrowedDim, narrowedDim}, {"once", 0, groupedDim},
}

// The instances of each source file in kernels/. TestImagesHoldEveryKernel checks that the images
// contain all of them.
var (
	plainInstances    = []instance{0}
	forwardInstances  = []instance{0, traitFeatures}
	decodeInstances   = []instance{0, traitMerge, traitFeatures, traitFeatures | traitMerge, traitCluster, traitFeatures | traitCluster}
	int8Instances     = []instance{traitFeatures}
	backwardInstances = []instance{0, traitDelta, traitFinish, traitFeatures, traitFeatures | traitDelta, traitFeatures | traitFinish}
	bwdF32Instances   = []instance{0, traitDelta, traitFeatures, traitFeatures | traitDelta}
	singleInstances   = []instance{traitFeatures | traitSoftcap, traitFeatures | traitALiBi, traitFeatures | traitBias, traitFeatures | traitMask, traitFeatures | traitKeys, traitFeatures | traitDropout}
	fwdSM90Instances  = slices.Concat(forwardInstances, []instance{traitFeatures | traitLayout, traitFeatures | traitShaped}, singleInstances, []instance{traitFeatures | traitRanges, traitFeatures | traitBounds | traitRanges, traitSplit})
	bwdSM90Instances  = slices.Concat(backwardInstances, []instance{traitFeatures | traitLayout}, singleInstances, []instance{traitParts, traitPairs, traitSums, traitGroups, traitUp, traitWide,
		traitColumns80, traitColumns96, traitOnce, traitFeatures | traitGroups, traitFeatures | traitUp,
		traitFeatures | traitRanges, traitFeatures | traitDelta | traitRanges, traitFeatures | traitFinish | traitRanges})
)

// file returns the name of the source file of a family's instance.
func (s *family) file(i instance) string {
	if i&traitRanges != 0 {
		return s.name + "_ranges"
	}
	return s.name
}

func (i instance) name() (name string) {
	for ; i != 0; i &= i - 1 {
		name += "_" + traits[bits.TrailingZeros32(uint32(i))].name
	}
	return name
}

// perDim reports whether the kernel is compiled for each padded head dim separately.
func (i instance) perDim() bool { return i&(traitDelta|traitFinish|traitBounds|traitSums) == 0 }

// needs returns the features that headDims.takes must contain. If one of these features is missing
// there, the instance does not exist for those head dims.
func (i instance) needs() flashkit.Feature {
	switch {
	case i&traitFeatures == 0 || !i.perDim():
		return 0
	case i&traitLayout != 0:
		return layoutFeatures
	}
	return flashkit.AllFeatures
}

// persistent reports whether a block of bwd_sm90 processes several key tiles.
func (i instance) persistent(d headDims) bool {
	plain := i == 0 || i == traitFeatures|traitLayout
	return i&(traitUp|traitColumns80|traitColumns96) != 0 || plain && d.dim <= groupedDim
}

// plainDim is the maximum padded head dim of bwd_sm80's instance without features. Wider calls
// without features use the instance with features.
const plainDim = 256

// has reports whether the family has the instance i for the padded head dims d.
func (s *family) has(i instance, d headDims) bool {
	if !slices.Contains(s.instances, i) || i.needs()&^d.takes != 0 || s == &families[bwdSM80] && i == 0 && d.dim > plainDim {
		return false
	}
	for ; i != 0; i &= i - 1 {
		if t := &traits[bits.TrailingZeros32(uint32(i))]; d.dim < t.from || d.dim > t.to {
			return false
		}
	}
	return true
}

// An instanceCall holds the properties of a call that select its instance.
type instanceCall struct {
	p, whole *flashkit.Problem // p: problem of the call; whole: Options.PartOf, or p if PartOf is nil
	sms      int
	splits   int  // forward: parts of the keys; backward: parts of the query heads of a group
	halves   bool // two blocks share the rows of a key tile
	scores   scoreTensors
}

// scoreTensors are the properties on which the choice of an instance for a single feature depends.
type scoreTensors struct {
	biasAligned, maskAligned bool // rows begin at multiples of 16 bytes; the bias has the problem's dtype
	maskRows, maskHeads      bool // the mask differs between rows; the mask differs between heads
	drops                    bool // dropout drops some weights
}

// instanceOf returns a call's main kernel: the most specialized instance that supports the call's
// features.
func (s *family) instanceOf(c *instanceCall) instance {
	d := s.padded(c.p)
	asked, i := c.p.Features()&^plainFeatures, instance(0)
	switch {
	case asked == 0 && s.has(0, d):
		return s.schedule(c, d)
	case asked&^layoutFeatures == 0:
		i = s.layoutSchedule(c, d)
	default:
		i = s.scoreTrait(c, asked&^(layoutFeatures|flashkit.FeatureOrigin))
	}
	if s.has(traitFeatures|i, d) {
		return traitFeatures | i
	}
	return traitFeatures
}

// schedule returns the trait that determines how blocks divide the work of a call without features.
//
// In bwd_sm90, a block owns a key tile and loops over query rows. Under a causal mask, fewer rows
// see the later keys. If query heads share keys, blocks of late keys would finish a head early, and
// wait at the next head for blocks of earlier keys. traitGroups avoids these waits: for each row
// tile, a block loops over the heads. With traitUp, the blocks of the last keys start first. These
// blocks loop over the fewest rows. With traitUp, blocks never wait, but the longest blocks end
// last.
//
// With traitOnce, all blocks run at the same time. The blocks then need no counter that assigns
// tiles, and load their first tiles while another kernel computes delta. traitWide computes dV of
// wide heads in separate blocks. traitWide is faster only with more blocks than multiprocessors,
// and if a block's loop takes longer than its waits to add to dQ. Under a mask, traitWide is used
// for few rows only: with many rows, many blocks wait long.
func (s *family) schedule(c *instanceCall, d headDims) instance {
	w, columns := c.whole, max(c.p.Dim, c.p.VDim)
	switch {
	case c.splits > 1 && s.has(traitSplit, d):
		return traitSplit
	case s != &families[bwdSM90] || w.Batch*w.Heads*w.QLen*w.KVLen == 0:
		return 0
	case c.splits > 1:
		return traitParts
	case c.halves && c.p.QLen == w.QLen:
		return traitPairs
	case c.halves:
		return 0
	case s.has(traitGroups, d) && w.Heads > w.KVHeads && s.headsInside(w):
		return traitGroups
	case s.has(traitUp, d) && s.reverses(w, c.sms):
		return traitUp
	case s.has(traitOnce, d) && s.backwardBlocks(w) <= c.sms:
		return traitOnce
	case s.has(traitWide, d) && s.splitsDV(w, c.sms):
		return traitWide
	case s.has(traitColumns80, d) && columns <= 80:
		return traitColumns80
	case s.has(traitColumns96, d) && columns <= 96:
		return traitColumns96
	}
	return 0
}

func (s *family) layoutSchedule(c *instanceCall, d headDims) instance {
	switch w := c.whole; {
	case s.has(traitFeatures|traitGroups, d) && w.Heads > w.KVHeads && banded(*w):
		return traitGroups
	case s.has(traitFeatures|traitUp, d) && s.reverses(w, c.sms):
		return traitUp
	}
	return traitLayout
}

// scoreTrait returns the trait of a call with features that change scores or weights. The value 0
// selects the instance for all features.
func (s *family) scoreTrait(c *instanceCall, asked flashkit.Feature) instance {
	forward, t := s.pass == flashkit.PassForward, &c.scores
	switch {
	case asked == flashkit.FeatureSoftcap:
		return traitSoftcap
	case asked&^(flashkit.FeatureSoftcap|flashkit.FeatureALiBi) == 0 && !(forward && infiniteSlopes(c.p)):
		if asked == flashkit.FeatureALiBi {
			return traitALiBi
		}
		return traitShaped
	case asked == flashkit.FeatureBias && (t.biasAligned || !forward):
		return traitBias
	case asked == flashkit.FeatureMask && !t.maskRows && (forward || !t.maskHeads || c.p.Heads == c.p.KVHeads) && c.p.KVLen <= listedKeys:
		return traitKeys
	case asked == flashkit.FeatureMask && (t.maskAligned || !forward):
		return traitMask
	case asked == flashkit.FeatureDropout && t.drops:
		return traitDropout
	case asked&^rangedFeatures == 0:
		return traitRanges
	}
	return 0
}

// infiniteSlopes reports whether ALiBi slopes may overflow in fwd_sm90, which divides slopes by the
// unit of its base-2 scores.
func infiniteSlopes(p *flashkit.Problem) bool {
	unit := p.SoftmaxScale() * math.Log2E
	if p.Score.Softcap != 0 {
		unit = float64(p.Score.Softcap) * math.Log2E
	}
	return unit < 1e-15
}

func (x *arguments) scoreTensors() scoreTensors {
	return scoreTensors{
		biasAligned: x.biasWide == 0 && x.bias.chunks(2), maskAligned: x.mask.chunks(1),
		maskRows: x.mask.row != 0, maskHeads: x.mask.head != 0,
		drops: x.dropBelow != 0,
	}
}

// denseScoreTensors returns the properties of a dense bias and of a dense mask that differs between
// rows and heads. The property drops is set.
func denseScoreTensors(p *flashkit.Problem) scoreTensors {
	return scoreTensors{
		biasAligned: p.KVLen*p.DType.Size()%rowAlignment == 0, maskAligned: p.KVLen%rowAlignment == 0,
		maskRows: true, maskHeads: true, drops: true,
	}
}

const (
	narrowedDim = 128     // padded head dim whose last columns some instances omit
	listedKeys  = 1 << 17 // maximum keys of traitKeys
)
