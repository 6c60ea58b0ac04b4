package cuda

// Indices of arguments.seqArrays.
const (
	seqQLens = iota
	seqQStarts
	seqKVLens
	seqKVStarts
	seqPages
)

// slotHeads is the minimum of KV heads for key slots in bwd_sm90: concurrent blocks then belong to
// one sequence. With fewer heads they would wait for each other.
const slotHeads = 8

// slots returns an upper bound of the tiles of packed sequences with up to `most` rows or keys
// each. It returns 0 if that saves less than a fifth of the blocks, unless always is set. Kernels
// search the starts for the sequence of a slot.
func (x *arguments) slots(list, most, size int, always bool) int32 {
	batch := x.seqLens[list] - 1
	if batch < 1 {
		return 0
	}
	tokens := x.shapes[list/seqKVStarts][2] // of Q, of K
	if starts := x.seqArrays[list]; len(starts) > 0 {
		_, tokens = packedRows(starts)
	}
	if n := tokens/size + batch; always || 5*n < 4*batch*ceilDiv(most, size) {
		return int32(n)
	}
	return 0
}
