package cuda

import (
	"slices"
	"strconv"

	"github.com/flashkit-go/flashkit"
)

// headDims are the padded head dims of an instance.
type headDims struct {
	dim, vDim int
	shares    int              // number of blocks that divide columns: bwd_sm90: of a key tile's dK and dV; decode_sm80: of O
	takes     flashkit.Feature // features for which these dims have instances
}

// square returns head dims with equal dims of keys and values.
func square(dims ...int) (all []headDims) {
	for _, d := range dims {
		all = append(all, headDims{d, d, 1, flashkit.AllFeatures})
	}
	return all
}

// hopperDims returns the padded head dims of fwd_sm90 or bwd_sm90. Instances for head dim 192
// support only the features in takes. Calls with other features are padded to 256. The parameter
// narrow adds head dims below 128 for calls without features.
func hopperDims(takes flashkit.Feature, narrow ...headDims) []headDims {
	return append(slices.Insert(square(64, 128), 1, narrow...), headDims{192, 128, 1, takes}, headDims{192, 192, 2, takes}, headDims{256, 256, 2, flashkit.AllFeatures})
}

// name returns the end of an instance's name, such as d64 or d192_dv128.
func (d headDims) name() string {
	n := "d" + strconv.Itoa(d.dim)
	if d.vDim != d.dim {
		n += "_dv" + strconv.Itoa(d.vDim)
	}
	return n
}

func (d headDims) fits(p *flashkit.Problem) bool {
	return p.Dim <= d.dim && p.VDim <= d.vDim && p.Features()&^d.takes == 0
}

// pad returns the index in s.dims of the head dims to which a problem is padded. It returns
// len(s.dims) if the problem's head dims are too large.
func (s *family) pad(p flashkit.Problem) int {
	if i := slices.IndexFunc(s.dims, func(d headDims) bool { return d.fits(&p) }); i >= 0 {
		return i
	}
	return len(s.dims)
}

// padded returns the head dims to which a problem is padded. For a problem with wider head dims it
// returns the widest head dims of the family.
func (s *family) padded(p *flashkit.Problem) headDims {
	return s.dims[min(s.pad(*p), len(s.dims)-1)]
}

// columnShares returns the number of blocks of a decode kernel that divide the columns of O.
func (s *family) columnShares(p *flashkit.Problem) int {
	d := s.padded(p)
	return max(1, min(d.shares, ceilDiv(p.VDim, d.vDim/d.shares)))
}

// decodeTiles returns the number of tiles of query rows and columns of a call of a decode kernel.
func (s *family) decodeTiles(p *flashkit.Problem) int {
	return p.Batch * p.KVHeads * ceilDiv(p.Heads/max(1, p.KVHeads)*p.QLen, s.shape(p).rows) * s.columnShares(p)
}

func (s *family) widest() int { return s.dims[len(s.dims)-1].dim }

// A blockShape describes the thread blocks of an instance on Hopper: their tile, their number of
// warps, and the number of blocks per multiprocessor. On other GPUs some numbers differ a little.
type blockShape struct {
	rows, keys int // query rows and keys of a step; decode kernels: rows of a block, keys of a warp
	warps      int // per block
	perSM      int // blocks per multiprocessor
}

// Block shapes by padded head dim. TestShapesAreTheKernels checks rows, keys and warps.
var (
	bwdF32Tiles       = []blockShape{{64, 64, 4, 3}, {64, 64, 4, 2}, {64, 64, 4, 2}, {64, 64, 4, 2}, {64, 64, 4, 2}}
	bwdSM80Tiles      = []blockShape{{64, 128, 4, 2}, {64, 128, 4, 2}, {64, 128, 8, 1}, {64, 128, 8, 1}, {64, 64, 8, 1}, {64, 64, 8, 1}, {64, 32, 8, 1}}
	bwdSM90Tiles      = []blockShape{{128, 128, 12, 1}, {64, 128, 12, 1}, {64, 128, 12, 1}, {64, 128, 12, 1}, {64, 128, 12, 1}}
	decodeTiles       = []blockShape{{128, 16, 8, 1}, {128, 16, 8, 1}, {64, 16, 4, 1}, {32, 16, 2, 1}}
	decodeF32Tiles    = []blockShape{{64, 8, 8, 1}, {64, 8, 8, 1}, {64, 4, 8, 1}, {32, 4, 4, 1}}
	int8Tiles         = []blockShape{{32, 32, 12, 1}}
	fwdF32Tiles       = []blockShape{{64, 64, 4, 3}, {64, 64, 4, 3}, {64, 64, 4, 2}, {64, 32, 4, 2}, {32, 32, 2, 2}}
	fwdSM80Tiles      = []blockShape{{128, 64, 4, 3}, {128, 64, 4, 3}, {128, 64, 4, 2}, {128, 64, 4, 2}, {128, 64, 8, 1}, {128, 64, 8, 1}, {64, 64, 8, 1}, {64, 32, 8, 1}}
	fwdSM90Tiles      = []blockShape{{192, 128, 16, 1}, {192, 112, 16, 1}, {192, 96, 16, 1}, {128, 128, 12, 1}, {128, 128, 12, 1}, {128, 112, 12, 1}, {128, 80, 12, 1}}
	fwdSM90ShortTiles = []blockShape{{128, 128, 8, 2}, {128, 64, 8, 2}, {128, 64, 8, 2}}
	fwdSM90WideTiles  = []blockShape{{64, 64, 12, 1}, {64, 64, 12, 1}}
)

func (s *family) shape(p *flashkit.Problem) *blockShape {
	shapes := s.shapesOf(p.DType)
	return &shapes[min(s.pad(*p), len(shapes)-1)]
}

func (s *family) shapesOf(t flashkit.DType) []blockShape {
	if s == &families[decodeSM80] && t == flashkit.Float32 {
		return decodeF32Tiles
	}
	return s.shapes
}
