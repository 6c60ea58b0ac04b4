package simd

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/items"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

const (
	decodeBlock = 128 // most keys of a block
	decodeStep  = 144 // elements from one row of scores to the next
	decodePad   = 3   // rows past the last that a register tile may touch

	decodeWidest = 32 // most elements of a vector
	fewestLanes  = 16 // of a vector of scores
)

// decodePlan is the plan of the decode kernels, which split the keys of a head (split-KV).
type decodePlan struct {
	decodeShape
	itemKeys int     // keys of an item, approximately
	short    bool    // all keys of a head are in one block, and an item has several heads
	one      kvSplit // split of the sequence last passed to splitSequence, or of all sequences if their lengths are equal
}

type decodeShape struct {
	kvHeads  int
	group    int // query heads of a KV head
	turns    int // KV heads of an item, which take turns after each block
	shortest int // fewest keys of a chunk
	qStep    int // elements from one row of Q to the next, in workspace
	lColumn  int // column of l in a row of O, after the sums of values
	oStep    int // elements from one row of O to the next, in workspace
}

// kvSplit is the partition of a sequence's keys into chunks, and of the chunks into items. Other
// chunks would round differently, so chunks depend on the sequence alone. Items do not affect the
// bits, so items also depend on the batch and the number of workers.
type kvSplit struct {
	decodeShape
	flashkit.Seq
	b           int // the sequence, or 0 for all
	heads       int // KV heads of the sequence, or of all sequences if their lengths are equal
	rows        int // query rows of a KV head, in all query heads of its group
	written     int // rows, padding included
	first, last int // keys that any row sees
	chunk       int // keys of a chunk
	block       int // most keys of a block
	chunks      int // chunks of a KV head, at least one
	run         int // most chunks of an item
	part        int // floats of a chunk's result: m, then O
}

// If pages of keys are short, the KV heads of an item take turns after each block. The rows of
// different heads in a page are near one another in memory. So the CPU has already translated the
// addresses of these pages when the next head reads them.
const (
	decodeTurns = 8
	turnRows    = 64      // most query rows of all heads of an item
	turnBytes   = 1 << 15 // if a head has at least this number of bytes in a page, turns gain nothing
)

// decodeTurnsOf returns the largest number of KV heads that an item of the call may have.
func decodeTurnsOf(c *flashkit.Call) int {
	if c.Page == 0 || c.Page*max(c.Dim, c.VDim)*c.KVType().Size() >= turnBytes {
		return 1
	}
	return max(1, min(decodeTurns, c.KVHeads, turnRows/max(1, c.Heads/c.KVHeads*c.QLen)))
}

// Limits of chunks. The merge of a chunk takes time, so a chunk has at least chunkBytes of K and V,
// and chunkRows keys for each query row. Chunks are longer if all heads of a sequence together
// would have more than chunksEnough chunks, a number that is enough for many workers. A chunk has
// at most longestChunk keys, because a float32 sum of more keys would lose digits. There is one
// exception: chunks have more keys if the results of a head would otherwise exceed resultsOfHead
// floats.
const (
	chunksEnough  = 64
	chunkBytes    = 1 << 17
	chunkRows     = 8
	longestChunk  = 32 * decodeBlock
	resultsOfHead = 1 << 18 // a page table may repeat pages, so the memory of K and V does not limit the results
)

func newDecodeShape(c *flashkit.Call) decodeShape {
	qStep, oStep := decodeSteps(&c.Problem)
	return decodeShape{
		kvHeads: c.KVHeads, group: c.Heads / c.KVHeads, turns: 1, shortest: chunkBytes / ((c.Dim + c.VDim) * c.KVType().Size()),
		qStep: qStep, lColumn: oStep - decodeWidest, oStep: oStep,
	}
}

// decodeSteps returns the distances between rows of Q and between rows of O in workspace, in
// elements.
func decodeSteps(p *flashkit.Problem) (qStep, oStep int) {
	return ceilDiv(p.Dim, decodeWidest) * decodeWidest, ceilDiv(p.VDim, decodeWidest)*decodeWidest + decodeWidest
}

// planDecode plans a call of a decode kernel. It limits the keys of an item so that there are items
// for many workers. With enough heads, each item has a whole head, so nothing is merged. most is
// the largest number of KV heads of an item. floats is the number of floats of workspace that an
// item needs.
func (pl *plan) planDecode(most, floats int) {
	const (
		enough = 128     // items of a call, if heads are split
		fewest = 2       // least items per worker, if items have several heads
		afford = 1 << 24 // items have at most longestChunk keys if the results of all chunks need at most this number of floats
	)
	c, d := pl.call, &pl.decode
	d.decodeShape = newDecodeShape(c)
	keys, chunks := 0, 0
	for b := range pl.sequences() {
		s := c.Seq(b)
		first, last := seenOf(&s)
		keys += c.KVHeads * (last - first)
		chunks += c.KVHeads * max(1, (last-first)/d.keysOfChunk(d.group*s.N, last-first))
	}
	keys, chunks = keys*pl.alike(), chunks*pl.alike()
	d.turns = max(1, min(most, decodeTurnsOf(c), chunks/(fewest*pl.workers)))
	heads := float64(c.Batch) * float64(c.KVHeads)
	d.itemKeys = ceilDiv(keys, enough)
	parts := float64(c.Batch)*chunksEnough + float64(keys)/longestChunk + heads // an upper bound
	if parts*float64(d.group*c.QLen)*float64(d.oStep) <= afford {
		d.itemKeys = min(d.itemKeys, longestChunk)
	}
	var all items.Counts
	for b := range pl.sequences() {
		pl.splitSequence(&d.one, b)
		all.Add(d.one.span().Counts)
	}
	merge := 2*d.oStep + decodeWidest // floats to merge a row
	pl.work, pl.shared = [2]pool.Phase{{Items: all.Items, Floats: floats}, {Items: all.Merges, Floats: merge}}, all.Results
}

func (pl *plan) cutDecode() {
	t := &pl.byKey
	t.Reset(items.Order{LongestFirst: true}, 0, pl.sequences())
	for b := range pl.sequences() {
		t.Spans = append(t.Spans, pl.splitOf(b).span())
	}
	t.Arrange()
}

// splitOf returns the split of sequence b, valid until the next call.
func (pl *plan) splitOf(b int) *kvSplit {
	if pl.sequences() > 1 {
		pl.splitSequence(&pl.decode.one, b)
	}
	return &pl.decode.one
}

func (pl *plan) splitSequence(d *kvSplit, b int) {
	c := pl.call
	d.decodeShape, d.Seq, d.b, d.heads = pl.decode.decodeShape, c.Seq(b), b, c.KVHeads*pl.alike()
	d.rows = d.group * d.N
	if d.written = d.group * pl.rowRoom(d.N); d.written == 0 {
		d.heads = 0
	}
	d.first, d.last = seenOf(&d.Seq)
	keys := d.last - d.first
	d.part = ceilDiv(d.rows, decodeWidest)*decodeWidest + d.rows*d.oStep
	d.setChunk(d.keysOfChunk(d.rows, keys))
	if d.chunks > 1 && d.chunks > resultsOfHead/d.part {
		d.setChunk(ceilDiv(keys, max(1, resultsOfHead/d.part)))
	}
	d.block = decodeBlock
	if keys <= decodeBlock {
		d.block /= 2 // values of a block are added during the scores of the next block, so there must be two blocks
	}
	if d.run = d.chunks; d.turns*keys > pl.decode.itemKeys {
		run := max(1, ceilDiv(pl.decode.itemKeys, d.turns*d.chunk))
		d.run = ceilDiv(d.chunks, ceilDiv(d.chunks, run))
	}
}

// keysOfChunk returns the approximate keys of a chunk, for the given numbers of rows and keys of a
// sequence.
func (s *decodeShape) keysOfChunk(rows, keys int) int {
	return min(longestChunk, max(1, chunkRows*rows, s.shortest, ceilDiv(s.kvHeads*keys, chunksEnough)))
}

// seenOf returns the keys [first, last) that any row of a sequence sees.
func seenOf(s *flashkit.Seq) (first, last int) {
	if s.N > 0 {
		first, _ = s.Keys(0)
		_, last = s.Keys(s.N - 1)
	}
	return first, max(first, last)
}

// seeingRows returns the number of query rows of a sequence that see at least one key.
func seeingRows(s *flashkit.Seq) int {
	if s.M == 0 {
		return 0
	}
	first, _ := s.Queries(0)
	_, end := s.Queries(s.M - 1)
	return max(0, end-first)
}

// setChunk cuts the keys into chunks of whole blocks. Each chunk but the last has `keys` keys or
// more.
func (d *kvSplit) setChunk(keys int) {
	d.chunk, d.chunks = max(1, ceilDiv(keys, decodeBlock))*decodeBlock, 1
	if n := d.last - d.first; n > d.chunk {
		d.chunks = ceilDiv(n, d.chunk)
	}
}

// isSplit reports whether several items compute the chunks of a head, so that a later phase must
// merge the chunks.
func (d *kvSplit) isSplit() bool { return d.run < d.chunks }

// merged returns the number of rows whose chunks an item merges.
func (d *kvSplit) merged() int {
	const floats = 4096 // results that an item merges have about this number of floats, or more
	return max(1, floats/(d.chunks*d.oStep))
}

// span returns the sequence's entry in a table of items. In this entry, the chunks of an item count
// as one tile.
func (d *kvSplit) span() items.Span {
	s := items.Span{B: d.b, Heads: ceilDiv(d.heads, d.turns), Tiles: 1, Length: min(d.last-d.first, d.run*d.chunk) * min(d.turns, max(1, d.heads))}
	if d.isSplit() {
		s.Tiles = ceilDiv(d.chunks, d.run)
		s.Merges = ceilDiv(d.heads*d.written, d.merged())
		s.Results = count(float64(d.heads) * float64(d.chunks) * float64(d.part))
	}
	s.Items = s.Heads * s.Tiles
	return s
}

// queryOf returns the query head of row r of KV head g, and the query row in that head.
func (d *kvSplit) queryOf(g, r int) (head, row int) { return g*d.group + r%d.group, r / d.group }
