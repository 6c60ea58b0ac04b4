package cuda

import (
	"math"
	"math/bits"
	"slices"

	"github.com/flashkit-go/flashkit"
)

// An instance is a kernel of a stem, as the set of its traits. The names of the traits are part of the kernel's name:
// bwd_sm90_features_groups_bf16_d64. The instance without traits is the stem's plain main kernel.
type instance uint32

const (
	traitFeatures instance = 1 << iota

	traitDelta   // backward: computes delta, and zeros
	traitFinish  // backward: rounds dQ, where blocks of keys add to it
	traitMerge   // decode: merges the parts of the keys
	traitSums    // bwd_sm90: adds up the parts of a group
	traitCluster // decode: the parts of the keys are a cluster

	// Main kernels with features other than all of them. Each has traitFeatures too, and layoutFeatures.
	traitLayout // no more than layoutFeatures
	traitShaped // softcap and ALiBi
	traitSoftcap
	traitALiBi
	traitBias
	traitMask
	traitKeys // a mask that is the same for all rows: the kernel lists the tiles of keys that take part
	traitDropout

	// Main kernels with other schedules.
	traitSplit     // fwd_sm90: a block has a part of the keys
	traitParts     // bwd_sm90: a block has a part of the query heads of a group
	traitPairs     // two blocks share a tile of keys
	traitGroups    // row by row, with the query heads of a group inside
	traitUp        // the last keys first, each from its first row on
	traitWide      // dV has blocks of its own
	traitColumns80 // 80 of the 128 columns
	traitColumns96 // 96 of the 128 columns
	traitOnce      // all blocks run at the same time
)

// traits are the names by bit, and the padded head dims that have instances with the trait.
var traits = [...]struct {
	name     string
	from, to int
}{
	{"features", 0, math.MaxInt},
	{"delta", 0, math.MaxInt}, {"finish", 0, math.MaxInt}, {"merge", 0, math.MaxInt}, {"sums", 0, math.MaxInt}, {"cluster", 0, math.MaxInt},
	{"layout", 0, math.MaxInt}, {"shaped", 0, math.MaxInt}, {"softcap", 0, math.MaxInt}, {"alibi", 0, math.MaxInt}, {"bias", 0, math.MaxInt},
	{"mask", 0, math.MaxInt}, {"keys", 0, math.MaxInt}, {"dropout", 0, math.MaxInt},
	{"split", 0, math.MaxInt}, {"parts", 0, math.MaxInt}, {"pairs", 0, groupedDim}, {"groups", 0, groupedDim}, {"up", upDim, upDim},
	{"wide", wideDim, wideDim}, {"columns80", narrowedDim, narrowedDim}, {"columns96", narrowedDim, narrowedDim}, {"once", 0, groupedDim},
}

// What the sources in kernels/ instantiate, by stem. TestImagesHoldKernels holds that the images have these kernels.
var (
	plainInstances    = []instance{0}
	forwardInstances  = []instance{0, traitFeatures}
	decodeInstances   = []instance{0, traitMerge, traitFeatures, traitFeatures | traitMerge, traitCluster, traitFeatures | traitCluster}
	backwardInstances = []instance{0, traitDelta, traitFinish, traitFeatures, traitFeatures | traitDelta, traitFeatures | traitFinish}
	bwdF32Instances   = []instance{0, traitDelta, traitFeatures, traitFeatures | traitDelta}
	singleInstances   = []instance{traitFeatures | traitSoftcap, traitFeatures | traitALiBi, traitFeatures | traitBias, traitFeatures | traitMask, traitFeatures | traitKeys, traitFeatures | traitDropout}
	fwdSM90Instances  = slices.Concat(forwardInstances, []instance{traitFeatures | traitLayout, traitFeatures | traitShaped}, singleInstances, []instance{traitSplit})
	bwdSM90Instances  = slices.Concat(backwardInstances, []instance{traitFeatures | traitLayout}, singleInstances, []instance{traitParts, traitPairs, traitSums, traitGroups, traitUp, traitWide,
		traitColumns80, traitColumns96, traitOnce, traitFeatures | traitGroups, traitFeatures | traitUp})
)

// name returns the traits in words, each after an underscore.
func (i instance) name() (name string) {
	for ; i != 0; i &= i - 1 {
		name += "_" + traits[bits.TrailingZeros32(uint32(i))].name
	}
	return name
}

// perDim reports whether there is an instance for each of several padded head dims, not one for all.
func (i instance) perDim() bool { return i&(traitDelta|traitFinish|traitSums) == 0 }

// needs returns the features that instances for a head dim must know, for this one to be among them.
func (i instance) needs() flashkit.Feature {
	switch {
	case i&traitFeatures == 0 || !i.perDim():
		return 0
	case i&traitLayout != 0:
		return layoutFeatures
	}
	return flashkit.AllFeatures
}

// stays reports whether the blocks of an instance of bwd_sm90 take one tile of keys after the other.
func (i instance) persistent(d headDims) bool {
	plain := i == 0 || i == traitFeatures|traitLayout
	return i&(traitUp|traitColumns80|traitColumns96) != 0 || plain && d.dim <= groupedDim
}

// has reports whether there is an instance for a padded head dim.
func (s *family) has(i instance, d headDims) bool {
	if !slices.Contains(s.instances, i) || i.needs()&^d.takes != 0 {
		return false
	}
	for ; i != 0; i &= i - 1 {
		if t := &traits[bits.TrailingZeros32(uint32(i))]; d.dim < t.from || d.dim > t.to {
			return false
		}
	}
	return true
}

// An instanceCall is a call of a stem, as far as instances depend on it.
type instanceCall struct {
	p, whole *flashkit.Problem // the call's, and that of which it is a part
	sms      int
	splits   int  // parts of the keys, or of the query heads of a group
	halves   bool // two blocks share the rows of a tile of keys
	scores   scoreTensors
}

// scoreTensors are what instances for one feature want of its tensor.
type scoreTensors struct {
	biasAligned, maskAligned bool // all rows begin at multiples of 16 bytes, and the bias has the problem's dtype
	maskRows, maskHeads      bool // the mask differs from row to row, from head to head
	drops                    bool // dropout drops something
}

// instanceOf returns the main kernel for a call: of those that know its features, the most specialized.
func (s *family) instanceOf(c *instanceCall) instance {
	d := s.padded(c.p)
	asked, i := c.p.Features()&^plainFeatures, instance(0)
	switch {
	case asked == 0:
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

// schedule returns the trait of a plain call.
//
// In bwd_sm90, later keys have fewer rows under a mask. Where heads share keys their blocks would come to the next head first, and wait
// there for those of earlier keys: the heads lie inside the walk over rows. Else blocks of the last keys, which have the
// fewest rows, may go first, each from its first row on: they never wait, but the longest blocks end last. Blocks that all
// run at the same time take no tickets, and fetch while delta is computed. dV of wide heads has blocks of its own, but for many
// rows under a mask, whose blocks wait long for others, if there are more than one for each multiprocessor, and they work longer than
// it takes to add to dQ in turn.
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

// layoutSchedule returns the trait of a call with layoutFeatures alone.
func (s *family) layoutSchedule(c *instanceCall, d headDims) instance {
	switch w := c.whole; {
	case s.has(traitFeatures|traitGroups, d) && w.Heads > w.KVHeads && banded(*w):
		return traitGroups
	case s.has(traitFeatures|traitUp, d) && s.reverses(w, c.sms):
		return traitUp
	}
	return traitLayout
}

// scoreTrait returns the trait of a call with features that change scores or weights, 0 where the instance for all of them is the one.
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
	}
	return 0
}

// infiniteSlopes reports whether slopes may be infinite in the unit of fwd_sm90's scores, of which its weights are powers of 2.
func infiniteSlopes(p *flashkit.Problem) bool {
	unit := p.SoftmaxScale() * math.Log2E
	if p.Score.Softcap != 0 {
		unit = float64(p.Score.Softcap) * math.Log2E
	}
	return unit < 1e-15
}

// scoreTensors returns what instances want of the tensors of an argument block.
func (x *arguments) scoreTensors() scoreTensors {
	return scoreTensors{
		biasAligned: x.biasWide == 0 && x.bias.chunks(2), maskAligned: x.mask.chunks(1),
		maskRows: x.mask.row != 0, maskHeads: x.mask.head != 0,
		drops: x.dropBelow != 0,
	}
}

// denseScoreTensors returns what instances want of dense tensors of a problem.
func denseScoreTensors(p *flashkit.Problem) scoreTensors {
	return scoreTensors{
		biasAligned: p.KVLen*p.DType.Size()%rowAlignment == 0, maskAligned: p.KVLen%rowAlignment == 0,
		maskRows: true, maskHeads: true, drops: true,
	}
}

const (
	narrowedDim = 128     // the padded head dim of which some instances leave out the last columns
	listedKeys  = 1 << 17 // keys, up to which traitKeys lists tiles
)
