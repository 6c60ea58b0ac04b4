package simd

import (
	"slices"
	"sort"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// A decodeTable finds the sequence of an item. Where all are equal, all heads of all of
// them are one, and there is nothing to look up.
type decodeTable struct {
	decodeShape
	keys  int          // of an item, about
	one   decodePlan   // of all sequences, where they are equal
	spans []decodeSpan // none where they are equal
	decodeSpan
}

// A decodeSpan is the items of sequence b: from the end of the span before it on. That of
// a table is all items.
type decodeSpan struct {
	b       int
	keys    int // of the longest item
	items   int // up to but not including
	merges  int // likewise
	results int // floats
}

func (s *decodeSpan) add(x decodeSpan) {
	s.keys = max(s.keys, x.keys)
	s.items += x.items
	s.merges += x.merges
	s.results = count(float64(s.results) + float64(x.results))
}

// arePlannedAsOne reports whether one plan is that of all sequences.
func arePlannedAsOne(c *flashkit.Call) bool { return c.Batch <= 1 || equalLengths(c) }

// decodePlans returns how many plans a call has.
func decodePlans(c *flashkit.Call) int {
	if arePlannedAsOne(c) {
		return min(1, c.Batch)
	}
	return c.Batch
}

// choose chooses the items: enough for many workers. Where there are enough heads, each
// is an item, for then no results of chunks need to be kept. So there are never many of them.
// At most so many KV heads take turns in an item.
func (t *decodeTable) choose(c *flashkit.Call, most int) {
	const (
		enough = 128
		fewest = 2       // of a worker, where heads take turns
		floats = 1 << 24 // of all results, in shorter items than need be
	)
	t.decodeShape, t.decodeSpan, t.spans = newDecodeShape(c), decodeSpan{}, t.spans[:0]
	keys, chunks, n := 0, 0, decodePlans(c)
	for b := range n {
		s := c.Seq(b)
		first, last := seenOf(&s)
		keys += c.KVHeads * (last - first)
		chunks += c.KVHeads * max(1, (last-first)/t.keysOfChunk(t.group*s.N, last-first))
	}
	if equalLengths(c) {
		keys, chunks = keys*c.Batch, chunks*c.Batch
	}
	t.turns = max(1, min(most, decodeTurnsOf(c), chunks/(fewest*workersOf(c))))
	heads := float64(c.Batch) * float64(c.KVHeads)
	t.keys = ceilDiv(keys, enough)
	parts := float64(c.Batch)*chunksEnough + float64(keys)/longestChunk + heads // or fewer
	if parts*float64(t.group*c.QLen)*float64(t.oStep) <= floats {
		t.keys = min(t.keys, longestChunk)
	}
	if n == 1 {
		t.one.setSequence(c, &t.decodeShape, 0, t.keys)
		t.decodeSpan = t.one.span()
	}
}

// set makes t the table of a call. Long items come first.
func (t *decodeTable) set(c *flashkit.Call, most int) {
	t.choose(c, most)
	if arePlannedAsOne(c) {
		return
	}
	if cap(t.spans) < c.Batch {
		t.spans = make([]decodeSpan, 0, c.Batch)
	}
	for b := range c.Batch {
		t.one.setSequence(c, &t.decodeShape, b, t.keys)
		t.spans = append(t.spans, t.one.span())
	}
	slices.SortFunc(t.spans, func(x, y decodeSpan) int {
		if x.keys != y.keys {
			return y.keys - x.keys
		}
		return x.b - y.b
	})
	for i := range t.spans {
		t.add(t.spans[i])
		t.spans[i].items, t.spans[i].merges, t.spans[i].results = t.items, t.merges, t.results
	}
}

// bytes returns the bytes of the table's spans.
func (t *decodeTable) bytes(c *flashkit.Call) float64 {
	if arePlannedAsOne(c) {
		return 0
	}
	return float64(c.Batch) * float64(unsafe.Sizeof(decodeSpan{}))
}

// find sets d to the plan that span i has, and returns the ends of those before it.
func (t *decodeTable) find(c *flashkit.Call, d *decodePlan, i int) (before decodeSpan) {
	if len(t.spans) == 0 {
		*d = t.one
		return before
	}
	if i > 0 {
		before = t.spans[i-1]
	}
	d.setSequence(c, &t.decodeShape, t.spans[i].b, t.keys)
	return before
}

// An itemOfKeys is the chunks from up to but not including to of a KV head.
type itemOfKeys struct {
	decodePlan
	g        int
	results  []float32 // of all chunks of the head
	from, to int
}

// setItem makes x that of an item, of the KV head whose turn it is, and returns how many take turns.
func (x *itemOfKeys) setItem(j *job, item, turn int) (turns int) {
	t := &j.decode
	before := t.find(j.call, &x.decodePlan, sort.Search(len(t.spans), func(i int) bool { return t.spans[i].items > item }))
	n := x.items()
	first, run := (item-before.items)/n*x.turns, (item-before.items)%n
	x.from, x.to = run*x.run, min((run+1)*x.run, x.chunks)
	x.setHead(j, before.results, first+turn)
	return min(x.turns, x.heads-first)
}

// setRows makes x that of a sequence whose rows an item merges, of all its heads, and returns these
// and where its results begin.
func (x *itemOfKeys) setRows(j *job, item int) (results, from, to int) {
	t := &j.decode
	before := t.find(j.call, &x.decodePlan, sort.Search(len(t.spans), func(i int) bool { return t.spans[i].merges > item }))
	n := x.merged()
	from = (item - before.merges) * n
	return before.results, from, min(from+n, x.heads*x.written)
}

// setHead makes x that of a head of its sequence, or of all in a dense call, whose results begin
// at the given float.
func (x *itemOfKeys) setHead(j *job, results, head int) {
	if head >= j.p.KVHeads { // of a dense call
		x.b = head / j.p.KVHeads
		x.QBatch, x.KVBatch = x.b, x.b
	}
	x.g = head % j.p.KVHeads
	if n := x.chunks * x.part; x.isSplit() {
		x.results = j.shared.all[results+head*n:][:n]
	}
}

// result returns m and O with l, [rows][oStep], of a chunk.
func (x *itemOfKeys) result(chunk int) (m, o []float32) {
	part := x.results[chunk*x.part:][:x.part]
	return part[:x.rows], part[x.part-x.rows*x.oStep:]
}
