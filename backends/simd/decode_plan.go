package simd

import (
	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/items"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
)

const (
	decodeBlock = 128 // keys of a block, at most
	decodeStep  = 144 // elements from one row of scores to the next
	decodePad   = 3   // rows beyond the last that a register tile may reach

	decodeWidest = 32 // elements of a vector, at most
)

// A decodePlan is the part of kernels for few query rows: split KV.
type decodePlan struct {
	decodeShape
	itemKeys int     // of an item, about
	one      kvSplit // of the last sequence: of all sequences if they are equal
}

// A decodeShape holds the sizes that all splits of a call share.
type decodeShape struct {
	kvHeads  int
	group    int // query heads of one
	turns    int // KV heads of an item, whose blocks take turns
	shortest int // chunk, in keys
	qStep    int // from one row of Q to the next
	lColumn  int // where l is in a row of O, beyond its end
	oStep    int // from one row of O to the next
}

// A kvSplit cuts the keys of a sequence into chunks, and shares these out to items. The chunks follow
// from the sequence alone, since their sums round; the items may follow from anything.
type kvSplit struct {
	decodeShape
	flashkit.Seq
	b           int // the sequence, or the first of all
	heads       int // KV heads, of all sequences if they are equal
	rows        int // query rows of a KV head
	written     int // these and those of padding
	first, last int // keys that any row sees
	chunk       int // keys of a chunk
	block       int // of a block, at most
	chunks      int // of a KV head, at least one
	run         int // chunks of an item
	part        int // floats of the result of a chunk: m, then O
}

// KV heads take turns where pages are short: rows of a page lie beside the rows of other
// heads, so that the next head finds the addresses of its pages known.
const (
	decodeTurns = 8
	turnRows    = 64      // of all of them, at most
	turnBytes   = 1 << 15 // of a head's rows in a page, or more are no gain
)

// decodeTurnsOf returns the KV heads that may take turns.
func decodeTurnsOf(c *flashkit.Call) int {
	if c.Page == 0 || c.Page*max(c.Dim, c.VDim)*c.KVType().Size() >= turnBytes {
		return 1
	}
	return max(1, min(decodeTurns, c.KVHeads, turnRows/max(1, c.Heads/c.KVHeads*c.QLen)))
}

// The limits of chunks. They are long, since each ends with sums that are added up, unless
// that makes too few of them for many workers, and still long beside their result. A sum
// of very many keys would keep few digits.
const (
	chunksEnough  = 64      // of all heads of a sequence
	chunkBytes    = 1 << 17 // of keys and values, at least
	chunkRows     = 8       // keys for each query row, at least
	longestChunk  = 32 * decodeBlock
	resultsOfHead = 1 << 18 // floats, at most: K and V may repeat few keys without end
)

func newDecodeShape(c *flashkit.Call) decodeShape {
	qStep, oStep := decodeSteps(&c.Problem)
	return decodeShape{
		kvHeads: c.KVHeads, group: c.Heads / c.KVHeads, turns: 1, shortest: chunkBytes / ((c.Dim + c.VDim) * c.KVType().Size()),
		qStep: qStep, lColumn: oStep - decodeWidest, oStep: oStep,
	}
}

// decodeSteps returns the distance between rows of Q, and of O, in workspace.
func decodeSteps(p *flashkit.Problem) (qStep, oStep int) {
	return ceilDiv(p.Dim, decodeWidest) * decodeWidest, ceilDiv(p.VDim, decodeWidest)*decodeWidest + decodeWidest
}

// planDecode chooses the keys of an item: few enough that many workers have items. Where there are
// enough heads, each is an item, for then no results of chunks need to be kept. Up to
// most KV heads take turns in an item. floats is the workspace of an item.
func (pl *plan) planDecode(most, floats int) {
	const (
		enough = 128
		fewest = 2       // of a worker, where heads take turns
		afford = 1 << 24 // floats of all results, in shorter items than need be
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
	parts := float64(c.Batch)*chunksEnough + float64(keys)/longestChunk + heads // or fewer
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

// cutDecode makes the table of chunks of a planned call.
func (pl *plan) cutDecode() {
	t := &pl.byKey
	t.Reset(items.Order{LongestFirst: true}, 0, pl.sequences())
	for b := range pl.sequences() {
		t.Spans = append(t.Spans, pl.splitOf(b).span())
	}
	t.Arrange()
}

// splitOf returns the split of sequence b, until the next call.
func (pl *plan) splitOf(b int) *kvSplit {
	if pl.sequences() > 1 {
		pl.splitSequence(&pl.decode.one, b)
	}
	return &pl.decode.one
}

// splitSequence sets d to the split of sequence b.
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
		d.block /= 2 // values are those of the block before, so one alone would wait
	}
	if d.run = d.chunks; d.turns*keys > pl.decode.itemKeys {
		run := max(1, ceilDiv(pl.decode.itemKeys, d.turns*d.chunk))
		d.run = ceilDiv(d.chunks, ceilDiv(d.chunks, run))
	}
}

// keysOfChunk returns about how many keys a chunk has, of a sequence with the given rows and keys.
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

// setChunk cuts the keys into chunks of at least the given keys, in whole blocks.
func (d *kvSplit) setChunk(keys int) {
	d.chunk, d.chunks = max(1, ceilDiv(keys, decodeBlock))*decodeBlock, 1
	if n := d.last - d.first; n > d.chunk {
		d.chunks = ceilDiv(n, d.chunk)
	}
}

// isSplit reports whether several items share the chunks of a head, whose results are then merged.
func (d *kvSplit) isSplit() bool { return d.run < d.chunks }

// merged returns the rows that an item merges.
func (d *kvSplit) merged() int {
	const floats = 4096 // of results, at least
	return max(1, floats/(d.chunks*d.oStep))
}

// span returns the items of the sequence, with its own counts. A tile is a run of chunks.
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

// queryOf returns the query head, and its row, of row r of KV head g.
func (d *kvSplit) queryOf(g, r int) (head, row int) { return g*d.group + r%d.group, r / d.group }
