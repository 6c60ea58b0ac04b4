package simd

import "github.com/flashkit-go/flashkit"

const (
	decodeBlock = 128 // keys of a block, at most
	decodeStep  = 144 // elements from one row of scores to the next
	decodePad   = 3   // rows beyond the last that a register tile may reach

	decodeWidest = 32 // elements of a vector, at most
)

// A decodeShape is what the plans of a call's sequences have in common.
type decodeShape struct {
	kvHeads  int
	group    int // query heads of one
	turns    int // KV heads of an item, whose blocks take turns
	shortest int // chunk, in keys
	qStep    int // from one row of Q to the next
	lColumn  int // where l is in a row of O, beyond its end
	oStep    int // from one row of O to the next
}

// A decodePlan says how the keys of a sequence are cut into chunks, and these shared
// out to items. How they are cut follows from the sequence alone, as the sums of chunks
// are what rounds; who takes which of them may follow from anything.
type decodePlan struct {
	decodeShape
	flashkit.Seq
	b           int // the sequence; of a dense call the first
	heads       int // KV heads, of all sequences in a dense call
	rows        int // query rows of a KV head
	written     int // these and those of padding
	first, last int // keys that any row sees
	chunk       int // keys of a chunk
	block       int // of a block, at most
	chunks      int // of a KV head, at least one
	run         int // chunks of an item
	part        int // floats of the result of a chunk: m, then O
}

// The heads whose blocks take turns. Rows of a short page lie beside those of other heads, so that the
// next head finds the addresses of its pages known.
const (
	decodeTurns = 8
	turnRows    = 64      // of all of them, at most
	turnBytes   = 1 << 15 // of a head's rows in a page, or more are no gain
)

// decodeTurnsOf returns how many heads may take turns.
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

// decodeSteps returns how far rows of Q and O lie apart.
func decodeSteps(p *flashkit.Problem) (qStep, oStep int) {
	return ceilDiv(p.Dim, decodeWidest) * decodeWidest, ceilDiv(p.VDim, decodeWidest)*decodeWidest + decodeWidest
}

// setSequence makes d the plan of sequence b. Its items have about so many keys.
func (d *decodePlan) setSequence(c *flashkit.Call, shape *decodeShape, b, itemKeys int) {
	d.decodeShape, d.Seq, d.b, d.heads = *shape, c.Seq(b), b, c.KVHeads
	d.rows = d.group * d.N
	d.written = d.rows
	if !c.Traits.PackedQ {
		d.written = d.group * c.QLen
	}
	if equalLengths(c) {
		d.heads *= c.Batch
	}
	if d.written == 0 {
		d.heads = 0
	}
	d.first, d.last = seenOf(&d.Seq)
	keys := d.last - d.first
	d.part = ceilDiv(d.rows, decodeWidest)*decodeWidest + d.rows*d.oStep
	d.setChunk(shape.keysOfChunk(d.rows, keys))
	if d.chunks > 1 && d.chunks > resultsOfHead/d.part {
		d.setChunk(ceilDiv(keys, max(1, resultsOfHead/d.part)))
	}
	d.block = decodeBlock
	if keys <= decodeBlock {
		d.block /= 2 // values are those of the block before, so one alone would wait
	}
	if d.run = d.chunks; d.turns*keys > itemKeys {
		run := max(1, ceilDiv(itemKeys, d.turns*d.chunk))
		d.run = ceilDiv(d.chunks, ceilDiv(d.chunks, run))
	}
}

// keysOfChunk returns how many keys a chunk has, about, of a sequence of so many.
func (s *decodeShape) keysOfChunk(rows, keys int) int {
	return min(longestChunk, max(1, chunkRows*rows, s.shortest, ceilDiv(s.kvHeads*keys, chunksEnough)))
}

// seenOf returns the keys that any row of a sequence sees.
func seenOf(s *flashkit.Seq) (first, last int) {
	if s.N > 0 {
		first, _ = s.Keys(0)
		_, last = s.Keys(s.N - 1)
	}
	return first, max(first, last)
}

// setChunk cuts the keys into whole blocks of at least so many.
func (d *decodePlan) setChunk(keys int) {
	d.chunk, d.chunks = max(1, ceilDiv(keys, decodeBlock))*decodeBlock, 1
	if n := d.last - d.first; n > d.chunk {
		d.chunks = ceilDiv(n, d.chunk)
	}
}

// items returns the items of a KV head, or of some that take turns.
func (d *decodePlan) items() int {
	if !d.isSplit() {
		return 1
	}
	return ceilDiv(d.chunks, d.run)
}

// isSplit reports whether the chunks of a head are shared out: then their results are merged.
func (d *decodePlan) isSplit() bool { return d.run < d.chunks }

// merged returns the rows that an item merges.
func (d *decodePlan) merged() int {
	const floats = 4096 // of results, at least
	return max(1, floats/(d.chunks*d.oStep))
}

// span returns the items of the plan, those that merge rows, and the floats of the results of chunks.
func (d *decodePlan) span() decodeSpan {
	s := decodeSpan{b: d.b, keys: min(d.last-d.first, d.run*d.chunk) * min(d.turns, max(1, d.heads)), items: ceilDiv(d.heads, d.turns) * d.items()}
	if d.isSplit() {
		s.merges = ceilDiv(d.heads*d.written, d.merged())
		s.results = count(float64(d.heads) * float64(d.chunks) * float64(d.part))
	}
	return s
}

// queryOf returns the query head and the row in it of row r of KV head g.
func (d *decodePlan) queryOf(g, r int) (head, row int) { return g*d.group + r%d.group, r / d.group }

// A seenKeys is a block of keys that the band lets the same rows see.
type seenKeys struct {
	from, n   int
	row, rows int
	s         []float32 // [rows][decodeStep], scores and then weights
	seen      []uint32  // [rows][words], a bit for each key, where a mask hides some of them
	head      int       // of its item
	kAt, vAt  *int      // where its rows of K and V are, in pages
}

// cut returns the keys from a given one on, up to the first that other rows see.
func (d *decodePlan) cut(from, to int) seenKeys {
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
