package flashkit

import (
	"math"
	"math/bits"
)

// A Problem specifies an attention computation without its data or its place of execution. It
// is comparable, so it can be a map key. String returns the problem's name, which identifies it
// in subtests, data files, benchmarks, command lines and error messages.
//
// Batch, QLen and KVLen may be 0; the other dimensions are at least 1. Everything beyond dense
// attention in an unshifted band is a Feature that a kernel must list in Kernel.Takes. The zero
// value of a feature's field turns the feature off.
type Problem struct {
	Batch   int // B, number of sequences
	Heads   int // H, number of query heads
	KVHeads int // G, number of KV heads (key and value); divides Heads. Query head h uses KV head h / (H/G)
	QLen    int // N, query rows of a sequence
	KVLen   int // M, keys (key and value rows) of a sequence
	Dim     int // D, head dim of Q and K: the elements of a row
	VDim    int // DV, head dim of V and O

	DType   DType   // type of Q, K, V, O and their gradients
	KVDType DType   // type of K and V, such as a 16-bit KV cache: Float16 or BFloat16, and only if DType is Float32. 0 means DType
	Band    Band    // the zero value hides nothing
	Scale   float32 // multiplies Q·K, in [2^-126, 2.358e38]; 0 means 1/sqrt(Dim)
	Score   Score   // the zero value is plain attention

	Int8Group int // elements of a row of K and V that share a scale, if K and V are Int8: 32, 64, or the larger head dim for one scale a row; 0 if K and V are not Int8. Only the forward pass supports Int8

	Ragged bool // sequences differ in length: QLen and KVLen are the maxima, and Args.Seqs has the lengths
	Page   int  // keys per page, if K and V are pools of pages with a page table in Args.Seqs; 0 means not paged
	Carry  bool // O and LSE hold the results over earlier keys, to which the forward pass adds this call's keys

	// With RowMax, the forward pass also writes Args.RowMax: the largest score of each row over
	// the keys that it sees, as the softmax reads it: after Scale, Softcap, Bias and ALiBi, in natural
	// units. The sink is no score. A row that sees no key has -Inf; a row with a score of NaN or +Inf
	// has NaN. With Carry, RowMax also has the maxima of the earlier keys, if their LSE is not -Inf.
	RowMax bool

	// With KeyMass, the forward pass also writes Args.KeyMass: for each query head and key, the sum
	// over the head's query rows of exp(score - LSE), the weight before dropout. Caches that evict keys
	// rank them by it. Keys count from the start of the sequence in every layout. A key that no row sees
	// has 0, and so have elements beyond the sequence. With Carry, LSE includes the earlier keys.
	KeyMass bool
}

// The range of Scale. Kernels compute exponentials to base 2, so Scale and Scale*log2(e) must
// be finite, normal float32 numbers. Denormals are excluded because processors may flush them
// to 0.
const (
	minScale = 0x1p-126
	maxScale = math.MaxFloat32 / math.Log2E
)

// SoftmaxScale returns the factor of Q·K: Scale, or 1/sqrt(Dim) if Scale is 0.
func (p Problem) SoftmaxScale() float64 {
	if p.Scale != 0 {
		return float64(p.Scale)
	}
	return 1 / math.Sqrt(float64(p.Dim))
}

// KVType returns the type of K and V: Int8 with Int8Group, else KVDType, or DType if KVDType is 0.
func (p Problem) KVType() DType {
	if p.Int8Group != 0 {
		return Int8
	}
	if p.KVDType != 0 {
		return p.KVDType
	}
	return p.DType
}

// The following methods return shapes of tensors with dense or padded sequences. A gradient has
// the same shape as its tensor.

// QShape returns the shape of Q, [B, H, N, D].
func (p Problem) QShape() [4]int { return [4]int{p.Batch, p.Heads, p.QLen, p.Dim} }

// KShape returns the shape of K, [B, G, M, D].
func (p Problem) KShape() [4]int { return [4]int{p.Batch, p.KVHeads, p.KVLen, p.Dim} }

// scales returns the number of scales of a row with dim elements of K or V.
func (p *Problem) scales(dim int) int {
	if p.Int8Group == 0 {
		return 0
	}
	return (dim-1)/p.Int8Group + 1
}

// VShape returns the shape of V, [B, G, M, DV].
func (p Problem) VShape() [4]int { return [4]int{p.Batch, p.KVHeads, p.KVLen, p.VDim} }

// OShape returns the shape of O, [B, H, N, DV].
func (p Problem) OShape() [4]int { return [4]int{p.Batch, p.Heads, p.QLen, p.VDim} }

// LSEShape returns the shape of LSE, [B, H, N, 1].
func (p Problem) LSEShape() [4]int { return [4]int{p.Batch, p.Heads, p.QLen, 1} }

// Validate returns nil or a *ProblemError that names the first field at fault.
func (p Problem) Validate() error {
	for _, d := range [...]struct {
		name       string
		value, min int
	}{
		{"Batch", p.Batch, 0}, {"Heads", p.Heads, 1}, {"KVHeads", p.KVHeads, 1},
		{"QLen", p.QLen, 0}, {"KVLen", p.KVLen, 0}, {"Dim", p.Dim, 1}, {"VDim", p.VDim, 1},
	} {
		if d.value < d.min {
			return problemErr(d.name, d.value, "must be at least %d", d.min)
		}
	}
	if p.Heads%p.KVHeads != 0 {
		return problemErr("KVHeads", p.KVHeads, "must divide Heads = %d", p.Heads)
	}
	if !p.DType.isData() {
		return problemErr("DType", uint8(p.DType), "must be f32, f16 or bf16")
	}
	if !p.KVDType.isData() {
		return problemErr("KVDType", uint8(p.KVDType), "must be f16 or bf16, or 0 for DType")
	}
	if p.KVDType != 0 && p.DType != Float32 {
		return problemErr("KVDType", p.KVDType, "must be 0 where DType is %v: keys of another type go with f32 alone", p.DType)
	}
	if g, row := p.Int8Group, max(p.Dim, p.VDim); g != 0 && g != row && (g != 32 && g != 64 || g > row) {
		return problemErr("Int8Group", g, "must be 32, 64 or %d, the larger head dim, or 0 if K and V are not int8", row)
	}
	if p.Int8Group != 0 && p.KVDType != 0 {
		return problemErr("KVDType", p.KVDType, "must be 0 with Int8Group: K and V are int8")
	}
	if err := p.Band.validate(); err != nil {
		return err
	}
	if s := float64(p.Scale); s != 0 && !(s >= minScale && s <= maxScale) {
		return problemErr("Scale", p.Scale, "must be from %.8g to %.7g, or 0 for 1/sqrt(Dim)", minScale, maxScale)
	}
	if err := p.Score.validate(); err != nil {
		return err
	}
	if p.Page < 0 || p.Page > 0 && !p.Ragged {
		return problemErr("Page", p.Page, "must be 0, or at least 1 in a Ragged problem")
	}
	return p.validateSize()
}

// validateSize returns an error if a tensor's size in bytes overflows an int, or if 4 times the
// number of scores overflows an int64. After this check, products of dimensions cannot
// overflow.
func (p Problem) validateSize() error {
	const elem = 4 // bytes per element, because workspace may hold a float32 copy of any tensor
	for _, t := range [...]struct {
		name  string
		shape [4]int
		limit uint64
	}{
		{"Q", p.QShape(), math.MaxInt}, {"K", p.KShape(), math.MaxInt},
		{"V", p.VShape(), math.MaxInt}, {"O", p.OShape(), math.MaxInt},
		{"the scores", [4]int{p.Batch, p.Heads, p.QLen, p.KVLen}, math.MaxInt64}, // kernels count the scores but never store all of them
	} {
		if overflows(t.limit, elem, t.shape[0], t.shape[1], t.shape[2], t.shape[3]) {
			return problemErr(t.name, t.shape, "size in bytes overflows int")
		}
	}
	if p.Page > 0 && overflows(math.MaxInt, elem, p.Batch, p.KVHeads, (p.KVLen-1)/p.Page+1, p.Page, max(p.Dim, p.VDim)) {
		return problemErr("Page", p.Page, "whole pages of KVLen = %d overflow int in bytes", p.KVLen)
	}
	return nil
}

// overflows reports whether the product of the dimensions exceeds limit. A dimension of 0 counts
// as 1, so that it cannot hide an overflow of the other dimensions.
func overflows(limit uint64, dims ...int) bool {
	n := uint64(1)
	for _, d := range dims {
		hi, lo := bits.Mul64(n, uint64(max(d, 1)))
		if hi != 0 || lo > limit {
			return true
		}
		n = lo
	}
	return false
}
