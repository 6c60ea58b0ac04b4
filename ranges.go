package flashkit

import (
	"math"
	"slices"
	"strconv"
)

// maxRanges is the largest number of ranges of a row.
const maxRanges = 2

// VisibleRanges returns the keys that row i of query head h of sequence b sees, as two half-open
// ranges [first, end) in the order of the keys: the ranges in Args.Ranges, cut by the band and the
// sequence's length. Without Score.Ranges, the first range has all keys in the band. Unused ranges
// are empty. s is Seq(b). Rows and keys count from the start of the sequence. A mask may hide some
// of the keys. VisibleRanges panics if the ranges exist only on a device.
func (c *Call) VisibleRanges(s *Seq, b, h, i int) (keys [maxRanges][2]int) {
	lo, hi := s.Keys(i)
	if c.Score.Ranges == 0 {
		return [maxRanges][2]int{{lo, hi}, {hi, hi}}
	}
	row, within := c.rangesOf(b, h, i), func(x int32) int { return max(lo, min(int(x), hi)) }
	keys[1] = [2]int{hi, hi}
	for r := range c.Score.Ranges {
		keys[r] = [2]int{within(row[2*r]), within(row[2*r+1])}
	}
	return keys
}

func (c *Call) rangesOf(b, h, i int) []int32 {
	t := &c.Args.Ranges
	return t.Int32s()[t.Repeated(b, h, i):][:2*c.Score.Ranges]
}

// checkRanges returns an error if the ranges of a row are not in [0, KVLen], or not in order. Like
// a page table, Ranges is read on the host only. Rows past the end of a sequence are not read.
func (c *Call) checkRanges() error {
	t := &c.Args.Ranges
	if c.Score.Ranges == 0 || t.owner != nil || t.empty() {
		return nil
	}
	batches := t.distinct(0)
	for b := range batches {
		rows := min(c.rowsFrom(b, batches), t.distinct(2))
		for h := range t.distinct(1) {
			for i := range rows {
				if err := c.checkRow(b, h, i); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

func (c *Call) checkRow(b, h, i int) error {
	before := int32(0)
	for at, x := range c.rangesOf(b, h, i) {
		if x >= before && int(x) <= c.KVLen {
			before = x
			continue
		}
		field := element("Ranges", b) + "[" + strconv.Itoa(h) + "][" + strconv.Itoa(i) + "][" + strconv.Itoa(at) + "]"
		if x >= 0 && x < before {
			return problemErr(field, x, "must not be below %d before it", before)
		}
		return problemErr(field, x, "must be from 0 to KVLen = %d", c.KVLen)
	}
	return nil
}

// rowsFrom returns the number of rows of sequence b, or of the longest sequence if batches is 1.
func (c *Call) rowsFrom(b, batches int) (n int) {
	if c.Args.Seqs == nil || c.Args.Seqs.count(-1) < 0 {
		return c.QLen
	}
	end := b + 1
	if batches == 1 {
		end = c.Batch
	}
	for ; b < end; b++ {
		s := Seq{N: c.QLen}
		c.Args.Seqs.locate(&s, b)
		n = max(n, s.N)
	}
	return n
}

// distinct returns the number of indices of dimension d with memory of their own.
func (t *Tensor) distinct(d int) int {
	if t.strides[d] == 0 {
		return min(1, t.shape[d])
	}
	return t.shape[d]
}

// The following functions make the ranges of common masks, for Args.Ranges. The result broadcasts
// over batch and heads. Rows and keys are aligned at the end, like the default Band. If an argument
// is negative, or a length exceeds math.MaxInt32, the result is the zero Tensor, which calls refuse.
// Only PageRanges returns an error.

// DocumentRanges returns the ranges [1, 1, N, 2] of documents that follow each other in one
// sequence. lengths has the number of tokens of each document. Each row sees the keys of its
// document. Add Causal for documents of a decoder.
func DocumentRanges(lengths ...int) Tensor {
	n := 0
	for _, length := range lengths {
		if length < 0 || length > math.MaxInt32-n {
			return Tensor{}
		}
		n += length
	}
	ends, first := make([]int32, 0, 2*n), 0
	for _, length := range lengths {
		for range length {
			ends = append(ends, int32(first), int32(first+length))
		}
		first += length
	}
	return Int32s(ends, 1, 1, n, 2)
}

// PrefixRanges returns the ranges [1, 1, rows, 2] of a prefix language model. Each row sees the
// first prefix keys, and all keys up to the diagonal.
func PrefixRanges(prefix, rows, keys int) Tensor {
	return rangesOfRows(1, rows, keys, prefix, func(ends []int32, diagonal int) {
		ends[1] = within32(max(prefix, diagonal+1), keys)
	})
}

// BlockRanges returns the ranges [1, 1, rows, 2] of a block-causal mask. Each row sees the keys of
// its block, which has size keys, and of all earlier blocks. Blocks begin at key 0.
func BlockRanges(size, rows, keys int) Tensor {
	return rangesOfRows(1, rows, keys, size-1, func(ends []int32, diagonal int) {
		if diagonal >= 0 {
			ends[1] = within32(min(diagonal/size, keys)*size+size, keys)
		}
	})
}

// SinkRanges returns the ranges [1, 1, rows, 4] of a sliding window with attention sinks in the
// first keys. Each row sees the key on the diagonal, the window keys before it, and the first sinks
// keys up to the diagonal.
func SinkRanges(sinks, window, rows, keys int) Tensor {
	return rangesOfRows(2, rows, keys, min(sinks, window), func(ends []int32, diagonal int) {
		first := within32(diagonal-min(window, rows+keys), keys)
		ends[1], ends[2], ends[3] = min(within32(sinks, keys), first), first, within32(diagonal+1, keys)
	})
}

// PageRanges returns the ranges [1, 1, rows, 2R] of a block mask. pages[i] lists the pages that block i
// of rows sees, in any order. A block has block rows, and a page has page keys; the last of each may be
// shorter. R is 2 if the pages of some block are two runs of neighbors, else 1. If they are more runs,
// PageRanges returns a *ProblemError that names the block. Use a mask instead.
func PageRanges(pages [][]int, block, page, rows, keys int) (Tensor, error) {
	for _, x := range []struct {
		field    string
		x, least int
	}{{"block", block, 1}, {"page", page, 1}, {"rows", rows, 0}, {"keys", keys, 0}} {
		if x.x < x.least || x.x > math.MaxInt32 {
			return Tensor{}, problemErr(x.field, x.x, "must be from %d to %d", x.least, math.MaxInt32)
		}
	}
	if blocks := (rows-1)/block + min(rows, 1); len(pages) != blocks {
		return Tensor{}, problemErr("len(pages)", len(pages), "must be the number of blocks of rows, %d", blocks)
	}
	runs, count := make([][2 * maxRanges]int32, len(pages)), 1
	for i := range pages {
		n, err := setRuns(&runs[i], pages[i], element("pages", i), page, keys)
		if err != nil {
			return Tensor{}, err
		}
		count = max(count, n)
	}
	ends := make([]int32, 0, 2*count*rows)
	for i := range rows {
		ends = append(ends, runs[i/block][:2*count]...)
	}
	return Int32s(ends, 1, 1, rows, 2*count), nil
}

// setRuns sets ends to the runs of keys in a list of pages, and returns their number.
func setRuns(ends *[2 * maxRanges]int32, pages []int, field string, page, keys int) (runs int, err error) {
	pages = slices.Clone(pages)
	slices.Sort(pages)
	for i, x := range pages {
		if x < 0 || x > (keys-1)/page || keys == 0 {
			return 0, problemErr(field, x, "must be a page of %d keys below key %d", page, keys)
		}
		if i == 0 || x > pages[i-1]+1 {
			if runs++; runs <= maxRanges {
				ends[2*runs-2] = int32(x * page)
			}
		}
		if runs <= maxRanges {
			ends[2*runs-1] = int32(x*page + min(page, keys-x*page))
		}
	}
	if runs > maxRanges {
		return 0, problemErr(field, pages, "must be at most %d runs of neighboring pages, not %d", maxRanges, runs)
	}
	for r := runs; r < maxRanges && r > 0; r++ { // unused ranges are empty, after the others
		ends[2*r], ends[2*r+1] = ends[2*r-1], ends[2*r-1]
	}
	return runs, nil
}

// rangesOfRows returns count ranges for each row. set sets the ends of a row's ranges, which begin
// as 0.
func rangesOfRows(count, rows, keys, least int, set func(ends []int32, diagonal int)) Tensor {
	if rows < 0 || keys < 0 || least < 0 || max(rows, keys) > math.MaxInt32 {
		return Tensor{}
	}
	ends := make([]int32, 2*count*rows)
	for i := range rows {
		set(ends[2*count*i:][:2*count], i+keys-rows)
	}
	return Int32s(ends, 1, 1, rows, 2*count)
}

// within32 returns x clamped to [0, keys].
func within32(x, keys int) int32 { return int32(clamp(x, keys)) }
