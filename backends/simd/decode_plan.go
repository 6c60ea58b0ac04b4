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
)

// decodePlan is the plan of kernels for few query rows: split-KV.
type decodePlan struct {
	decodeShape
	itemKeys int     // keys of an item, approximately
	one      kvSplit // of the last sequence, or of all if they are equal
}

type decodeShape struct {
	kvHeads  int
	group    int // query heads of a KV head
	turns    int // KV heads of an item that take turns, block by block
	shortest int // least keys of a chunk
	qStep    int // from one row of Q to the next
	lColumn  int // column of l in a row of O, after the values
	oStep    int // from one row of O to the next
}

// kvSplit cuts the keys of a sequence into chunks and assigns them to items. Chunks depend on the
// sequence alone, since their sums round; items may depend on anything.
type kvSplit struct {
	decodeShape
	flashkit.Seq
	b           int // the sequence, or 0 for all
	heads       int // KV heads, of all sequences if they are equal
	rows        int // query rows of a KV head
	written     int // query rows with padding
	first, last int // keys that any row sees
	chunk       int // keys of a chunk
	block       int // most keys of a block
	chunks      int // of a KV head, at least one
	run         int // chunks of an item
	part        int // floats of a chunk's result: m, then O
}

// KV heads take turns if pages are short: rows of different heads in a page are adjacent, so the
// next head's page addresses are already translated.
const (
	decodeTurns = 8
	turnRows    = 64      // most rows of all heads that take turns
	turnBytes   = 1 << 15 // bytes of a head's rows in a page, from which on turns gain nothing
)

// decodeTurnsOf returns the most KV heads that take turns.
func decodeTurnsOf(c *flashkit.Call) int {
	if c.Page == 0 || c.Page*max(c.Dim, c.VDim)*c.KVType().Size() >= turnBytes {
		return 1
	}
	return max(1, min(decodeTurns, c.KVHeads, turnRows/max(1, c.Heads/c.KVHeads*c.QLen)))
}

// Limits of chunks. Chunks are long because each ends with a merge, unless too few would be left
// for many workers. They are long compared with their results, too. A sum of too many keys would
// lose digits.
const (
	chunksEnough  = 64      // chunks of all heads of a sequence
	chunkBytes    = 1 << 17 // least bytes of K and V
	chunkRows     = 8       // least keys per query row
	longestChunk  = 32 * decodeBlock
	resultsOfHead = 1 << 18 // most floats; a page table may repeat few keys without end
)

func newDecodeShape(c *flashkit.Call) decodeShape {
	qStep, oStep := decodeSteps(&c.Problem)
	return decodeShape{
		kvHeads: c.KVHeads, group: c.Heads / c.KVHeads, turns: 1, shortest: chunkBytes / ((c.Dim + c.VDim) * c.KVType().Size()),
		qStep: qStep, lColumn: oStep - decodeWidest, oStep: oStep,
	}
}

// decodeSteps returns the distance between rows of Q, and between rows of O, in workspace.
func decodeSteps(p *flashkit.Problem) (qStep, oStep int) {
	return ceilDiv(p.Dim, decodeWidest) * decodeWidest, ceilDiv(p.VDim, decodeWidest)*decodeWidest + decodeWidest
}

// planDecode sets the keys of an item so that many workers have items. With enough heads, each item
// is a head, and no results are kept for a merge. Up to most KV heads take turns in an item. floats
// is the workspace of an item.
func (pl *plan) planDecode(most, floats int) {
	const (
		enough = 128
		fewest = 2       // least items per worker with turns
		afford = 1 << 24 // most floats of all results, in items shorter than necessary
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
		d.block /= 2 // half: values trail scores by a block, so one block alone would not overlap
	}
	if d.run = d.chunks; d.turns*keys > pl.decode.itemKeys {
		run := max(1, ceilDiv(pl.decode.itemKeys, d.turns*d.chunk))
		d.run = ceilDiv(d.chunks, ceilDiv(d.chunks, run))
	}
}

// keysOfChunk returns the approximate keys of a chunk, for the given rows and keys of a sequence.
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

// setChunk cuts the keys into chunks of whole blocks, with at least the given keys.
func (d *kvSplit) setChunk(keys int) {
	d.chunk, d.chunks = max(1, ceilDiv(keys, decodeBlock))*decodeBlock, 1
	if n := d.last - d.first; n > d.chunk {
		d.chunks = ceilDiv(n, d.chunk)
	}
}

// isSplit reports whether several items share the chunks of a head and their results are merged.
func (d *kvSplit) isSplit() bool { return d.run < d.chunks }

func (d *kvSplit) merged() int {
	const floats = 4096 // least floats of results
	return max(1, floats/(d.chunks*d.oStep))
}

// span returns the items of the sequence. A tile is a run of chunks.
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

// queryOf returns the query head and row of row r of KV head g.
func (d *kvSplit) queryOf(g, r int) (head, row int) { return g*d.group + r%d.group, r / d.group }
