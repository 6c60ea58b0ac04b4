package simd

// itemOfKeys is an item of a decode kernel: the chunks with indices [from, to) of a KV head's keys.
type itemOfKeys struct {
	kvSplit
	g        int
	results  []float32 // results of all chunks of the head, to be merged; unused unless isSplit
	from, to int       // chunks of the item
}

func (x *itemOfKeys) setSplit(j *job, b int) {
	if j.sequences() == 1 {
		x.kvSplit = j.decode.one
		return
	}
	j.splitSequence(&x.kvSplit, b)
}

// setItem initializes x for one KV head of an item. turn is the index of this head among the item's
// heads. setItem returns the number of the item's heads.
func (x *itemOfKeys) setItem(j *job, item, turn int) (turns int) {
	s := j.byKey.Span(item)
	x.setSplit(j, s.B)
	first, run := (item-s.Items)/s.Tiles*x.turns, (item-s.Items)%s.Tiles
	x.from, x.to = run*x.run, min((run+1)*x.run, x.chunks)
	x.setHead(j, s.Results, first+turn)
	return min(x.turns, x.heads-first)
}

// setRows initializes x for an item that merges the chunks of the rows [from, to) of a sequence.
// Rows are numbered over all heads, with x.written rows per head. results is the index of the first
// head's results in shared workspace.
func (x *itemOfKeys) setRows(j *job, item int) (results, from, to int) {
	s := j.byKey.MergeSpan(item)
	x.setSplit(j, s.B)
	n := x.merged()
	from = (item - s.Merges) * n
	return s.Results, from, min(from+n, x.heads*x.written)
}

// setHead sets x to the KV head with the given number. If all sequences have equal lengths, heads
// are numbered over all sequences, otherwise in x's sequence. results is the index of head 0's
// results in shared workspace.
func (x *itemOfKeys) setHead(j *job, results, head int) {
	if head >= j.p.KVHeads { // a head of a later sequence, equal to the first
		x.b = head / j.p.KVHeads
		x.QBatch, x.KVBatch = x.b, x.b
	}
	x.g = head % j.p.KVHeads
	if n := x.chunks * x.part; x.isSplit() {
		x.results = j.Shared.All[results+head*n:][:n]
	}
}

// result returns the sums of a chunk: m, [rows], and o, [rows][oStep], which holds l in lColumn.
func (x *itemOfKeys) result(chunk int) (m, o []float32) {
	part := x.results[chunk*x.part:][:x.part]
	return part[:x.rows], part[x.part-x.rows*x.oStep:]
}

// seenKeys is a block of keys.
type seenKeys struct {
	from, n   int       // first key and number of keys
	row, rows int       // first row that sees any of the keys, and number of rows up to the last such row
	edge      bool      // the band hides some of the keys from some of the rows
	s         []float32 // [rows][decodeStep], scores and then weights
	seen      []uint32  // [rows][words], a bit for each key that a row sees; nil if all rows see all keys
	head      int       // index of the KV head among the item's heads
	kAt, vAt  *int      // first entry of the tables with the offsets of the rows of K and V
}

// cut returns the block that begins at key from. The block ends before key to or earlier: after
// d.block keys, or where the rows that see the keys change. If the rows change within edgeKeys keys,
// the block continues, and some rows do not see some of its keys.
func (d *kvSplit) cut(from, to int) seenKeys {
	const edgeKeys = 16
	first, last := d.Queries(from)
	to = min(to, from+d.block)
	end := to
	if first < last {
		_, end = d.Keys(first)
		end = min(end, to)
	}
	if last < d.N {
		if begin, _ := d.Keys(last); begin > from {
			end = min(end, begin)
		}
	}
	edge := first < last && end < min(to, from+edgeKeys)
	if edge {
		end = to
		_, last = d.Queries(end - 1)
	}
	return seenKeys{from: from, n: end - from, row: first * d.group, rows: max(0, last-first) * d.group, edge: edge}
}
