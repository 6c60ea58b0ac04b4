package cuda

// Indices of arguments.seqArrays.
const (
	seqQLens = iota
	seqQStarts
	seqKVLens
	seqKVStarts
	seqPages
)

// slotHeads is the minimum number of KV heads with which bwd_sm90 uses slots for the keys: see
// method slots. Concurrent blocks then belong to one sequence. With fewer heads, blocks would wait
// for each other.
const slotHeads = 8

// slots returns the number of slots: an upper bound of the number of tiles of all packed sequences
// together. Each head launches one block per slot. A block finds its sequence in QStarts or
// KVStarts. Without slots, every sequence gets the number of blocks that the longest sequence
// needs. If slots save at most a fifth of these blocks, the result is 0, unless always is set. list
// is seqQStarts or seqKVStarts. most is the length of the longest sequence, and size is the number
// of rows or keys of a tile.
func (x *arguments) slots(list, most, size int, always bool) int32 {
	batch := x.seqLens[list] - 1
	if batch < 1 {
		return 0
	}
	tokens := x.shapes[list/seqKVStarts][2] // rows of Q, or keys of K
	if starts := x.seqArrays[list]; len(starts) > 0 {
		_, tokens = packedRows(starts)
	}
	if n := tokens/size + batch; always || 5*n < 4*batch*ceilDiv(most, size) {
		return int32(n)
	}
	return 0
}
