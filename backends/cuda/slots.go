package cuda

// The lists of Sequences, in their order.
const (
	seqQLens = iota
	seqQStarts
	seqKVLens
	seqKVStarts
	seqPages
)

// slotHeads are the KV heads from which on bwd_sm90 has slots for keys: blocks that run at the same time
// are of one sequence then, and those of few heads wait for each other.
const slotHeads = 8

// slots returns how many tiles of a size packed sequences have at most, one of which is as long
// as most; 0 where all of them may have nearly as many as that one. The kernels find by the starts which is whose.
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
