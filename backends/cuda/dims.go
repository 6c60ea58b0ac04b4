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
func (d headDims) holds(p *flashkit.Problem) bool {
	return p.Dim <= d.dim && p.VDim <= d.vDim && p.Features()&^d.takes == 0
}

// pad returns which of the stem's head dims a problem is padded to, if one of
// them is wide enough.
func (s *stem) pad(p flashkit.Problem) int {
	if i := slices.IndexFunc(s.dims, func(d headDims) bool { return d.holds(&p) }); i >= 0 {
		return i
	}
	return len(s.dims)
}

func (s *stem) widest() int { return s.dims[len(s.dims)-1].dim }
