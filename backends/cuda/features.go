package cuda

import (
	"math"
	"math/bits"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/philox"
)

// features is struct Features of kernels/params.cuh, field for field.
type features struct {
	bias, dbias, mask, slopes, sink, dsink view

	qLens, qStarts, kvLens, kvStarts, pages Pointer
	left, right, shift                      int64
	carriedLSE, delta                       Pointer

	seed                [2]uint32
	dropBelow           uint32
	keep                float32
	capIn, capOut, cap  float32
	topLeft             int32
	page, pageWidth     int32
	pageFactor          uint32
	pageShift           int32
	pageBox             int32
	biasWide, dbiasWide int32
	biasPairs           int32
	maskPairs           int32
	kvType              int32
	carry               int32
	deltaRows           int32
	deltaStep           int32
	dbiasShape          [3]int32
	dbiasApart          int32
	first               [4]uint32 // batch, head, row, key
	keySlots, rowSlots  int32
	rangeCount          int32
	ranges              view
	rowBounds           Pointer
	_                   [8]byte // the driver copies the block with the padding of its alignment to 64
}

// int8Args are the fields of struct Int8Params of kernels/decode_int8.cuh after FeatureParams.
type int8Args struct {
	kScale, vScale view
	dtype          int32 // of Q and O
	kHalf, vHalf   int32 // 1: the scales are Float16
	scaleShift     int32 // elements 32c to 32c+31 of a row have scale c >> scaleShift
	_              [48]byte
}

// oneScale is the shift of rows with one scale.
const oneScale = 8

// set sets the fields other than the tensors.
func (x *int8Args) set(p *flashkit.Problem, args *flashkit.Args) {
	*x = int8Args{dtype: int32(p.DType), kHalf: toBit(args.KScale.DType() == flashkit.Float16), vHalf: toBit(args.VScale.DType() == flashkit.Float16), scaleShift: oneScale}
	if g := p.Int8Group; g < max(p.Dim, p.VDim) {
		x.scaleShift = int32(g / 64) // groups of 32 or 64
	}
}

// Sets of features.
const (
	plainFeatures  = flashkit.FeatureShift                                                                        // supported by plain instances of every kernel
	layoutFeatures = flashkit.FeatureRagged | flashkit.FeaturePage | flashkit.FeatureSink | flashkit.FeatureCarry // features that leave scores unchanged
	rangedFeatures = flashkit.FeatureRanges | flashkit.FeatureRowMax                                              // features of traitRanges, which also supports layoutFeatures

	// Features that kernels support, beyond dense attention with a band mask.
	takesScores   = flashkit.FeatureSoftcap | flashkit.FeatureALiBi | flashkit.FeatureBias | flashkit.FeatureMask | flashkit.FeatureSink | flashkit.FeatureDropout | flashkit.FeatureOrigin
	takesBackward = plainFeatures | takesScores | flashkit.FeatureRagged
	takesInt8     = plainFeatures | layoutFeatures | flashkit.FeatureSoftcap | flashkit.FeatureALiBi | flashkit.FeatureMask | flashkit.FeatureInt8
	takesForward  = takesBackward | flashkit.FeaturePage | flashkit.FeatureCarry
)

// hasFeatures reports whether a problem needs instances with features.
func hasFeatures(p *flashkit.Problem) bool { return p.Features()&^plainFeatures != 0 }

// setFeatures fills in the features of a call, except the tensors and sequences of these features.
func (x *arguments) setFeatures(c *flashkit.Call) {
	x.features = features{}
	if x.hasFeatures = hasFeatures(&c.Problem) || c.Pass == flashkit.PassBackward && c.DType != flashkit.Float32 && max(c.Dim, c.VDim) > plainDim; !x.hasFeatures {
		return
	}
	f, p, args := &x.features, &c.Problem, c.Args
	if c.Pass == flashkit.PassBackward {
		n := args.DBias.Shape()
		f.dbiasShape = [3]int32{int32(n[0]), int32(n[1]), int32(n[2])}
	}
	f.fill(p, args)
	x.int8Args.set(p, args)
	f.biasWide, f.dbiasWide = toBit(args.Bias.DType() == flashkit.Float32), toBit(args.DBias.DType() == flashkit.Float32)
}

// fill sets the features of a problem, the dropout seed and the origin.
func (f *features) fill(p *flashkit.Problem, args *flashkit.Args) {
	f.left, f.right, f.shift = side(p.Band.Left()), side(p.Band.Right()), int64(p.Band.Shifted())
	f.topLeft = toBit(p.Band.IsTopLeft())
	f.keep = 1
	if d := p.Score.Dropout; d != 0 {
		f.seed, f.dropBelow, f.keep = philox.Key(args.Seed), philox.Below(d), philox.Keep(d)
		o := &args.Origin
		f.first = [4]uint32{uint32(o.Batch), uint32(o.Head), uint32(o.Row), uint32(o.Key)}
	}
	if c := float64(p.Score.Softcap); c != 0 {
		f.capIn, f.capOut, f.cap = float32(p.SoftmaxScale()/c), float32(c*math.Log2E), float32(c)
	}
	switch p.KVDType {
	case flashkit.Float16:
		f.kvType = 1
	case flashkit.BFloat16:
		f.kvType = 2
	}
	f.carry, f.rangeCount = toBit(p.Carry), int32(p.Score.Ranges)
	if f.page = int32(min(p.Page, reach)); p.Page > 0 {
		f.pageFactor, f.pageShift = divisor(uint32(f.page))
	}
}

// align sets biasPairs to 1 if one load can read the bias of two adjacent keys, else to 0. It sets
// maskPairs likewise for the mask. biasSize is the size of a bias element in bytes.
func (f *features) align(p *flashkit.Problem, biasSize int) {
	pairs := func(v *view, size int) int32 {
		return toBit(v.data != 0 && p.KVLen%2 == 0 && uintptr(v.data)%uintptr(2*size) == 0 && (v.batch|v.head|v.row)%2 == 0)
	}
	f.biasPairs, f.maskPairs = pairs(&f.bias, biasSize), pairs(&f.mask, 1)
}

// chunks reports whether all rows of v begin at multiples of 16 bytes. size is the size of an
// element in bytes.
func (v *view) chunks(size int64) bool {
	return uintptr(v.data)%rowAlignment == 0 && (v.batch|v.head|v.row)*size%rowAlignment == 0
}

// side returns the smaller of n and half of the largest int. n is the number of keys on one side of
// a band. The sum of the result and the band's shift does not overflow.
func side(n int) int64 { return int64(min(n, math.MaxInt/2)) }

func toBit(x bool) int32 {
	if x {
		return 1
	}
	return 0
}

// divisor returns factor and shift such that j/d is j*factor>>shift for 0 <= j < 2^31 (Granlund and
// Montgomery 1994).
func divisor(d uint32) (factor uint32, shift int32) {
	l := bits.Len32(d - 1)
	return uint32((uint64(1)<<(31+l) + uint64(d) - 1) / uint64(d)), int32(31 + l)
}

func commonDivisor(a, b int) int {
	for b != 0 {
		a, b = b, a%b
	}
	return a
}
