package simd

// itemOfKeys is the chunks [from, to) of a KV head.
type itemOfKeys struct {
	kvSplit
	g        int
	results  []float32 // of all chunks of the head
	from, to int
}

func (x *itemOfKeys) setSplit(j *job, b int) {
	if j.sequences() == 1 {
		x.kvSplit = j.decode.one
		return
	}
	j.splitSequence(&x.kvSplit, b)
}

// setItem sets x to the chunks of an item's KV head number turn. It returns the number of heads
// that take turns.
func (x *itemOfKeys) setItem(j *job, item, turn int) (turns int) {
	s := j.byKey.Span(item)
	x.setSplit(j, s.B)
	first, run := (item-s.Items)/s.Tiles*x.turns, (item-s.Items)%s.Tiles
	x.from, x.to = run*x.run, min((run+1)*x.run, x.chunks)
	x.setHead(j, s.Results, first+turn)
	return min(x.turns, x.heads-first)
}

// setRows sets x to the chunks of all heads of a sequence. It returns the start of their results,
// and the rows [from, to) that the item merges.
func (x *itemOfKeys) setRows(j *job, item int) (results, from, to int) {
	s := j.byKey.MergeSpan(item)
	x.setSplit(j, s.B)
	n := x.merged()
	from = (item - s.Merges) * n
	return s.Results, from, min(from+n, x.heads*x.written)
}

// setHead sets x to the chunks of a head of its sequence, or of all equal sequences. results is the
// start of the results.
func (x *itemOfKeys) setHead(j *job, results, head int) {
	if head >= j.p.KVHeads { // of equal sequences
		x.b = head / j.p.KVHeads
		x.QBatch, x.KVBatch = x.b, x.b
	}
	x.g = head % j.p.KVHeads
	if n := x.chunks * x.part; x.isSplit() {
		x.results = j.Shared.All[results+head*n:][:n]
	}
}

// result returns m and O, [rows][oStep] with l, of a chunk.
func (x *itemOfKeys) result(chunk int) (m, o []float32) {
	part := x.results[chunk*x.part:][:x.part]
	return part[:x.rows], part[x.part-x.rows*x.oStep:]
}

// seenKeys is a block of keys that the band shows to the same rows.
type seenKeys struct {
	from, n   int
	row, rows int
	s         []float32 // [rows][decodeStep], scores and then weights
	seen      []uint32  // [rows][words], a bit per key, if a mask hides some
	head      int       // head number in the item
	kAt, vAt  *int      // offsets of the rows of K and V
}

// cut returns the block that begins at key from. It ends at the latest before key to, or where the
// rows that see the keys change.
func (d *kvSplit) cut(from, to int) seenKeys {
	first, last := d.Queries(from)
	to = min(to, from+d.block)
	if first < last {
		_, end := d.Keys(first)
		to = min(to, end)
	}
	if last < d.N {
		if begin, _ := d.Keys(last); begin > from {
			to = min(to, begin)
		}
	}
	return seenKeys{from: from, n: to - from, row: first * d.group, rows: max(0, last-first) * d.group}
}
