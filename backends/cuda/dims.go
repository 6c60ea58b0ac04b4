package cuda

import (
	"slices"
	"strconv"

	"github.com/flashkit-go/flashkit"
)

// headDims are what an instance pads the head dims of a problem to.
type headDims struct {
	dim, vDim int
	shares    int              // bwd_sm90: blocks that share the sums of a tile of keys
	takes     flashkit.Feature // that there are instances for
}

// square returns the padded head dims of instances that pad both alike.
func square(dims ...int) (all []headDims) {
	for _, d := range dims {
		all = append(all, headDims{d, d, 1, flashkit.AllFeatures})
	}
	return all
}

// hopperDims are those of fwd_sm90 or bwd_sm90, whose instances for 192 take so many features. Other
// calls take those for 256. Some have instances for plain calls of fewer columns than 128, too.
func hopperDims(takes flashkit.Feature, narrow ...headDims) []headDims {
	return append(slices.Insert(square(64, 128), 1, narrow...), headDims{192, 128, 1, takes}, headDims{192, 192, 2, takes}, headDims{256, 256, 2, flashkit.AllFeatures})
}

// name returns the end of an instance's name: d64, d192_dv128.
func (d headDims) name() string {
	n := "d" + strconv.Itoa(d.dim)
	if d.vDim != d.dim {
		n += "_dv" + strconv.Itoa(d.vDim)
	}
	return n
}

// holds reports whether the instances take a problem.
func (d headDims) fits(p *flashkit.Problem) bool {
	return p.Dim <= d.dim && p.VDim <= d.vDim && p.Features()&^d.takes == 0
}

// pad returns which of the stem's head dims a problem is padded to, if one of
// them is wide enough.
func (s *family) pad(p flashkit.Problem) int {
	if i := slices.IndexFunc(s.dims, func(d headDims) bool { return d.fits(&p) }); i >= 0 {
		return i
	}
	return len(s.dims)
}

// padded returns the head dims of the instances for a problem, the widest if none holds it.
func (s *family) padded(p *flashkit.Problem) headDims {
	return s.dims[min(s.pad(*p), len(s.dims)-1)]
}

func (s *family) widest() int { return s.dims[len(s.dims)-1].dim }

// A blockShape is the geometry of an instance's blocks on Hopper; elsewhere some differ a little.
type blockShape struct {
	rows, keys int // of a step; decode_sm80: rows of a block, keys of a warp
	warps      int // of a block
	perSM      int // blocks that a multiprocessor holds
}

// The shapes by padded head dim, whose rows, keys and warps TestShapesAreTheKernels holds.
var (
	bwdF32Tiles       = []blockShape{{64, 64, 4, 3}, {64, 64, 4, 2}, {64, 64, 4, 2}, {64, 64, 4, 2}, {64, 64, 4, 2}}
	bwdSM80Tiles      = []blockShape{{64, 128, 4, 2}, {64, 128, 4, 2}, {64, 128, 8, 1}, {64, 128, 8, 1}, {64, 64, 8, 1}, {64, 64, 8, 1}}
	bwdSM90Tiles      = []blockShape{{128, 128, 12, 1}, {64, 128, 12, 1}, {64, 128, 12, 1}, {64, 128, 12, 1}, {64, 128, 12, 1}}
	decodeTiles       = []blockShape{{128, 16, 8, 1}, {128, 16, 8, 1}, {64, 16, 4, 1}}
	decodeF32Tiles    = []blockShape{{64, 8, 8, 1}, {64, 8, 8, 1}, {64, 4, 8, 1}}
	fwdF32Tiles       = []blockShape{{64, 64, 4, 3}, {64, 64, 4, 3}, {64, 64, 4, 2}, {64, 32, 4, 2}, {32, 32, 2, 2}}
	fwdSM80Tiles      = []blockShape{{128, 64, 4, 3}, {128, 64, 4, 3}, {128, 64, 4, 2}, {128, 64, 4, 2}, {128, 64, 8, 1}, {128, 64, 8, 1}}
	fwdSM90Tiles      = []blockShape{{192, 128, 16, 1}, {192, 112, 16, 1}, {192, 96, 16, 1}, {128, 128, 12, 1}, {128, 128, 12, 1}, {128, 112, 12, 1}, {128, 80, 12, 1}}
	fwdSM90ShortTiles = []blockShape{{128, 128, 8, 2}, {128, 64, 8, 2}, {128, 64, 8, 2}}
)

// shape returns the blocks of the instances for a problem.
func (s *family) shape(p *flashkit.Problem) *blockShape {
	shapes := s.shapesOf(p.DType)
	return &shapes[min(s.pad(*p), len(shapes)-1)]
}

// shapesOf returns the blocks of the stem's instances for a dtype, by padded head dim.
func (s *family) shapesOf(t flashkit.DType) []blockShape {
	if s.rows > 0 && t == flashkit.Float32 {
		return decodeF32Tiles
	}
	return s.shapes
}
