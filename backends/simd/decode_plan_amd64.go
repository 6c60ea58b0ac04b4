//go:build !noasm && !purego

package simd

import (
	"fmt"
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

const (
	decodeBlock = 128 // keys of a block, at most
	decodeStep  = 144 // elements from one row of scores to the next
	decodePad   = 3   // rows beyond the last that a register tile may reach

	decodeWidest = 32 // elements of a vector, at most
)

// fitsDecode limits the rows: with many of them memory is not what a call waits
// for, and the state of a block no longer stays in the first-level cache.
func fitsDecode(t tier, p flashkit.Problem) string {
	if reason := t.refuses(p); reason != "" {
		return reason
	}
	if rows := p.Heads / p.KVHeads * p.QLen; rows > decodeRows {
		return fmt.Sprintf("supports at most %d query rows per KV head, not %d", decodeRows, rows)
	}
	return ""
}

func (isa *decodeISA) cost(p flashkit.Problem) time.Duration {
	f := isa.times(p)
	return cost(f[:]...)
}

// times predicts the time of the arithmetic, of whole register tiles, and of
// reading the keys, which overlap, and that of merging chunks.
func (isa *decodeISA) times(p flashkit.Problem) [2]timedPhase {
	d, c := planDecode(&p), &isa.pace
	heads, keys := float64(d.heads), float64(d.last-d.first)
	elements, rows := heads*keys*float64(p.Dim+p.VDim), float64(tiles(d.rows, isa.rows)*isa.rows)
	read := elements * c.element
	if p.DType != flashkit.Float32 {
		read = elements * c.widen
	}
	return d.times(&p, c, max(2*elements*rows*c.flop, read)+heads*keys*rows*c.pair)
}

// times returns the phases of chunks and of merging them, where the keys take so many
// nanoseconds.
func (d *decodePlan) times(p *flashkit.Problem, c *pace, keys float64) [2]timedPhase {
	const (
		step  = 45  // a row, for each block of keys
		merge = 1.4 // an element of O, for each chunk
	)
	work, rows := d.work(0), float64(d.heads*d.rows)
	most := float64(d.chunk) / float64(max(d.chunk, d.last-d.first)) / float64(max(1, d.heads))
	return [2]timedPhase{
		uneven(work[0].items, rows*c.start, keys+rows*float64(d.blocks(p))*step, most),
		{items: work[1].items, nanoseconds: rows * float64(d.chunks*p.VDim) * merge},
	}
}

// blocks returns the blocks of keys of a KV head. They are cut where the rows change:
// at each edge of the band, once for each row.
func (d *decodePlan) blocks(p *flashkit.Problem) int {
	keys := d.last - d.first
	n := tiles(keys, d.block)
	for _, side := range [2]int{p.Band.Left(), p.Band.Right()} {
		if side != flashkit.Unlimited {
			n += p.QLen - 1
		}
	}
	return max(0, min(n, keys))
}

// A decodePlan says how a problem is cut.
type decodePlan struct {
	heads       int // KV heads of all batches
	group       int // query heads of one
	rows        int // query rows of a KV head
	first, last int // keys that any row sees
	chunk       int // keys of a chunk
	block       int // of a block, at most
	chunks      int // of a KV head, at least one
	qStep       int // from one row of Q to the next
	lColumn     int // where l is in a row of O, beyond its end
	oStep       int // from one row of O to the next
	part        int // floats of the result of a chunk: m, then O
	merged      int // rows that an item merges
}

// planDecode cuts the keys into chunks that are long, since each begins and ends
// with waiting for memory, unless that makes too few of them for many workers.
// The shortest ones are still long beside their result.
func planDecode(p *flashkit.Problem) decodePlan {
	const (
		shortest, longest, enough = decodeBlock, 32 * decodeBlock, 128

		most      = 1 << 24 // floats of all results, unless heads need more: K and V may repeat few keys without end
		mergeItem = 4096    // floats of the results that an item merges, at least
	)
	d := decodePlan{heads: p.Batch * p.KVHeads, group: p.Heads / p.KVHeads}
	d.rows = d.group * p.QLen
	if p.QLen > 0 {
		d.first, _ = p.Keys(0)
		_, d.last = p.Keys(p.QLen - 1)
	}
	d.last = max(d.first, d.last)
	keys := d.last - d.first
	wanted := tiles(p.Batch*p.KVHeads*keys, enough*decodeBlock) * decodeBlock
	d.qStep, d.lColumn = tiles(p.Dim, decodeWidest)*decodeWidest, tiles(p.VDim, decodeWidest)*decodeWidest
	d.oStep = d.lColumn + decodeWidest
	d.part = pad(d.rows) + d.rows*d.oStep
	chunks := max(1, int(most/max(1, float64(d.heads)*float64(d.part))))
	d.chunk = max(shortest, tiles(8*d.rows, decodeBlock)*decodeBlock, min(wanted, longest), tiles(tiles(keys, chunks), decodeBlock)*decodeBlock)
	d.chunks = max(1, tiles(keys, d.chunk))
	d.block = min(decodeBlock, d.chunk/2) // values are those of the block before, so one alone would wait
	d.merged = max(1, mergeItem/(d.chunks*d.oStep))
	return d
}

// decodeWork returns the chunks and the rows of all KV heads, and what each needs.
func decodeWork(p *flashkit.Problem) [2]phase {
	d := planDecode(p)
	return d.work((d.rows+decodePad)*(2*decodeStep+d.qStep) + decodeBlock*(p.Dim+p.VDim) + d.rows + d.oStep)
}

// work returns them where a chunk needs so many floats.
func (d *decodePlan) work(chunk int) [2]phase {
	return [2]phase{{d.heads * d.chunks, chunk}, {tiles(d.heads*d.rows, d.merged), (1+decodePad)*decodeStep + 2*d.oStep + 2}}
}

// keysOf returns the keys of a chunk.
func (d *decodePlan) keysOf(item int) (from, to int) {
	from = d.first + item%d.chunks*d.chunk
	return from, min(from+d.chunk, d.last)
}

// queryOf returns the query head and the row in it of row r of KV head g.
func (d *decodePlan) queryOf(g, r int) (head, row int) { return g*d.group + r%d.group, r / d.group }

// begin returns the result of a chunk that has seen no key. l is that of its rows.
func (d *decodePlan) begin(j *job, item int, l []float32) (m, o []float32) {
	m, o = d.result(j, item)
	clear(o)
	clear(l)
	for r := range m {
		m[r] = float32(math.Inf(-1))
	}
	return m, o
}

// end puts l into its column of O.
func (d *decodePlan) end(o, l []float32) {
	for r, x := range l {
		o[r*d.oStep+d.lColumn] = x
	}
}

// result returns m and O with l, [rows][oStep], of a chunk.
func (d *decodePlan) result(j *job, item int) (m, o []float32) {
	x := j.shared.all[item*d.part:][:d.part]
	return x[:d.rows], x[pad(d.rows):]
}

// A seenKeys is a block of keys that are all seen by the same rows.
type seenKeys struct {
	from, n   int
	row, rows int
	s         []float32 // [rows][decodeStep], scores and then weights
}

// cut returns the keys from a given one on, up to the first that other rows see.
func (d *decodePlan) cut(p *flashkit.Problem, from, to int) seenKeys {
	first, last := p.Queries(from)
	to = min(to, from+d.block)
	if first < last {
		_, end := p.Keys(first)
		to = min(to, end)
	}
	if last < p.QLen {
		if begin, _ := p.Keys(last); begin > from {
			to = min(to, begin)
		}
	}
	return seenKeys{from: from, n: to - from, row: first * d.group, rows: max(0, last-first) * d.group}
}
