package flashkit

// A Pass is the forward or the backward pass of attention.
type Pass uint8

// The passes.
const (
	PassForward  Pass = iota // computes O and LSE from Q, K and V
	PassBackward             // computes the gradients of Q, K and V from the gradients of O and LSE
)

// String returns "forward" or "backward".
func (s Pass) String() string {
	if s == PassBackward {
		return "backward"
	}
	return "forward"
}

// Validate returns nil, or a *ProblemError if s is neither pass.
func (s Pass) Validate() error {
	if s > PassBackward {
		return problemErr("Pass", uint8(s), "must be %d, forward, or %d, backward", PassForward, PassBackward)
	}
	return nil
}

// Area returns the number of (row, key) pairs that the band lets through, for one head of one
// sequence of full length. If the band hides nothing, the number is QLen*KVLen.
func (p Problem) Area() int64 {
	first, last := p.Band.Diagonals(p.QLen, p.KVLen)
	seen := sumClamped(last+1, p.QLen, p.KVLen) - sumClamped(first, p.QLen, p.KVLen)
	return int64(seen)
}

// sumClamped returns the sum over i in [0, n) of the number i+c clamped to [0, m].
func sumClamped(c, n, m int) uint64 {
	from := clamp(-c, n)  // the first i with i+c > 0, or n
	full := clamp(m-c, n) // the first i with i+c >= m, or n
	rising := uint64(full - from)
	sum := uint64(n-full) * uint64(m)
	if rising > 0 {
		sum += rising * uint64(from+c+full-1+c) / 2
	}
	return sum
}

// FLOPs returns the number of floating-point operations of a pass by the usual convention (Dao,
// FlashAttention-2, 2023, section 4.1). Each multiply-add of the two forward products counts as
// 2. Pairs that the band hides are not counted. If the band hides nothing and VDim = Dim, the
// forward pass has 4*B*H*N*M*D operations. The backward pass has 2.5 times the operations of the
// forward pass. Exponentials and features are not counted. All sequences count with full length;
// Call.FLOPs uses the actual lengths.
func (p Problem) FLOPs(s Pass) float64 {
	f := 2 * float64(p.Batch) * float64(p.Heads) * float64(p.Area()) * float64(p.Dim+p.VDim)
	if s == PassBackward {
		f *= 2.5
	}
	return f
}

// Bytes returns the size in bytes of the tensors that every call of a pass reads or writes.
// Each tensor counts once: Q, K, V, O and LSE, and in the backward pass the gradients of Q, K,
// V and O. Tensors of features are not counted, because they may broadcast. All sequences count
// with full length.
func (p Problem) Bytes(s Pass) float64 {
	rows := float64(p.Batch) * float64(p.Heads) * float64(p.QLen)
	keys := float64(p.Batch) * float64(p.KVHeads) * float64(p.KVLen)
	elem, kv := float64(p.DType.Size()), float64(p.KVType().Size())
	q, k, v, o := rows*float64(p.Dim)*elem, keys*float64(p.Dim)*kv, keys*float64(p.VDim)*kv, rows*float64(p.VDim)*elem
	lse := rows * 4
	if s == PassBackward {
		return 2*(q+k+v) + 2*o + lse // Q K V and their gradients; O and dO
	}
	return q + k + v + o + lse
}
