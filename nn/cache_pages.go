package nn

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

// Reset empties the cache, for new sequences in the same memory.
func (c *KVCache) Reset() {
	for b := range c.lens {
		c.empty(b)
	}
}

// Remove empties sequence b, for a new sequence in its place. Its pages that no other sequence shares
// are free again.
func (c *KVCache) Remove(b int) error {
	if err := c.checkSequence("b", b); err != nil {
		return err
	}
	c.empty(b)
	return nil
}

func (c *KVCache) empty(b int) {
	c.shrink(b, 0)
	c.next[b] = 0
}

// Truncate removes all rows of sequence b but the first n, such as rejected draft tokens. The next
// row gets the position of the first removed row.
func (c *KVCache) Truncate(b, n int) error {
	if err := c.checkSequence("b", b); err != nil {
		return err
	}
	l := int(c.lens[b])
	if n < 0 || n > l {
		return problem("KVCache: n", n, "must be from 0 to %d, the rows of sequence %d", l, b)
	}
	if n < l {
		c.next[b] = c.positions[b*c.config.Capacity+n]
		c.shrink(b, n)
	}
	return nil
}

// Fork makes sequence `to` a copy of sequence b, in place of its earlier rows. With pages, the two
// sequences share all pages, and a change of one copies only the pages that it writes. Without
// pages, Fork copies all rows.
func (c *KVCache) Fork(b, to int) error {
	if err := c.checkSequence("b", b); err != nil {
		return err
	}
	if err := c.checkSequence("to", to); err != nil {
		return err
	}
	if b == to {
		return nil
	}
	c.shrink(to, 0)
	n := c.lens[b]
	c.lens[to], c.next[to] = n, c.next[b]
	copy(c.positions[to*c.config.Capacity:], c.Positions(b))
	if c.config.Page == 0 {
		c.copyRows(to, 0, b, 0, int(n))
		return nil
	}
	for i, page := range c.table[b*c.width:][:c.pagesOf(int(n))] {
		c.table[to*c.width+i] = page
		c.refs[page]++
	}
	return nil
}

// Evict removes rows [from, to) of sequence b. Later rows move down, in their order, and keep their
// positions: a key stays rotated as it is, and the next row's position does not change. So the
// scores of the remaining keys do not change, but a Band of a call counts the remaining rows only.
// Whole pages in the range return to the pool without a copy. The rows of a partial page move, which
// copies shared pages.
func (c *KVCache) Evict(b, from, to int) error {
	if err := c.checkSequence("b", b); err != nil {
		return err
	}
	n := int(c.lens[b])
	switch {
	case from < 0 || from > n:
		return problem("KVCache: from", from, "must be from 0 to %d, the rows of sequence %d", n, b)
	case to < from || to > n:
		return problem("KVCache: to", to, "must be from %d to %d", from, n)
	}
	first, dropped := ceilDiv(from, c.page), 0 // whole pages in the range
	if c.config.Page > 0 {
		dropped = max(0, to/c.page-first)
	}
	pages := c.table[b*c.width:][:c.pagesOf(n)]
	rest := to - from - dropped*c.page // rows by which later rows move within pages
	last := from / c.page              // pages [from/page, last) are written
	if rest > 0 && to < n {
		last = ceilDiv(n-(to-from), c.page)
	}
	if err := c.checkEvict(pages, from/c.page, first, dropped, last); err != nil {
		return err
	}
	c.drop(pages[first:], dropped)
	positions := c.Positions(b)
	copy(positions[from:], positions[to:])
	for i := from / c.page; i < last; i++ {
		c.own(b, i)
	}
	if rest > 0 {
		c.copyRows(b, from, b, from+rest, n-to)
	}
	c.lens[b] -= int32(dropped * c.page)
	c.shrink(b, n-(to-from))
	return nil
}

// checkEvict returns an error if the pool lacks pages for copies of the shared pages that Evict writes.
// These are pages [from, last), after it has dropped pages from the first on.
func (c *KVCache) checkEvict(pages []int32, from, first, dropped, last int) error {
	need, free := 0, len(c.free)
	for _, page := range pages[first:][:dropped] {
		if c.refs[page] == 1 {
			free++
		}
	}
	for i := from; i < last; i++ {
		j := i
		if i >= first {
			j += dropped
		}
		if c.refs[pages[j]] > 1 {
			need++
		}
	}
	if need > free {
		return problem("KVCache: pages", need, "are needed, and %d of %d are free", free, len(c.refs))
	}
	return nil
}

// Prefix returns the pages that all sequences share, as Fork leaves them, and the sequences' other
// rows, for dispatch.Dispatcher.ForwardPrefix. If the sequences share no full page, the prefix is
// empty. ForwardPrefix refuses Int8. The next call of Prefix overwrites the results, and so may a change of the cache.
func (c *KVCache) Prefix() (dispatch.Prefix, flashkit.Sequences) {
	shared := c.sharedPages()
	p := dispatch.Prefix{K: c.k, V: c.v, Pages: c.table[:shared], Len: shared * c.page}
	if shared == 0 {
		return p, c.Sequences()
	}
	c.others, c.rest = c.others[:0], c.rest[:0]
	for b, l := range c.lens {
		c.others = append(c.others, l-int32(p.Len))
		c.rest = append(c.rest, c.table[b*c.width+shared:(b+1)*c.width]...)
	}
	return p, flashkit.Sequences{KVLens: c.others, Pages: c.rest}
}

// sharedPages returns the number of leading full pages that all sequences share. One sequence shares
// nothing.
func (c *KVCache) sharedPages() (n int) {
	for ; c.config.Page > 0 && c.config.Batch > 1 && n < c.width; n++ {
		for b, l := range c.lens {
			if (n+1)*c.page > int(l) || c.table[b*c.width+n] != c.table[n] {
				return n
			}
		}
	}
	return n
}

// drop releases the first n pages and moves the others to their place.
func (c *KVCache) drop(pages []int32, n int) {
	for _, page := range pages[:n] {
		c.release(page)
	}
	copy(pages, pages[n:])
}

// pagesOf returns the number of pages of a sequence of n rows. Without pages it is always 1.
func (c *KVCache) pagesOf(n int) int {
	if c.config.Page == 0 {
		return 1
	}
	return ceilDiv(n, c.page)
}

// pagesFor returns the number of pages that Append claims for the rows: new ones, and copies of shared
// ones. The last of the sequences that write a page needs no copy.
func (c *KVCache) pagesFor(rows *Rows) (need int) {
	for b, l := range c.lens {
		_, n, _ := rows.sequence(b)
		need += c.pagesOf(int(l)+n) - c.pagesOf(int(l))
		if n == 0 || int(l)%c.page == 0 {
			continue
		}
		if page := c.table[b*c.width+int(l)/c.page]; c.refs[page] > 1 {
			c.refs[page]--
			c.copied = append(c.copied, page)
			need++
		}
	}
	for _, page := range c.copied {
		c.refs[page]++
	}
	c.copied = c.copied[:0]
	return need
}

// grow claims the pages for n more rows of sequence b.
func (c *KVCache) grow(b, n int) {
	l := int(c.lens[b])
	if n > 0 && l%c.page != 0 {
		c.own(b, l/c.page)
	}
	for i := c.pagesOf(l); i < c.pagesOf(l+n); i++ {
		c.table[b*c.width+i] = c.claim()
	}
}

// shrink releases the pages of sequence b beyond n rows, and sets its length.
func (c *KVCache) shrink(b, n int) {
	for _, page := range c.table[b*c.width:][c.pagesOf(n):c.pagesOf(int(c.lens[b]))] {
		c.release(page)
	}
	c.lens[b] = int32(n)
}

func (c *KVCache) claim() int32 {
	page := c.free[len(c.free)-1]
	c.free = c.free[:len(c.free)-1]
	c.refs[page] = 1
	return page
}

func (c *KVCache) release(page int32) {
	if c.refs[page]--; c.refs[page] == 0 {
		c.free = append(c.free, page)
	}
}

// own gives sequence b a copy of its page i, if other sequences share the page.
func (c *KVCache) own(b, i int) {
	shared := c.table[b*c.width+i]
	if c.refs[shared] == 1 {
		return
	}
	c.refs[shared]--
	page := c.claim()
	c.table[b*c.width+i] = page
	for _, t := range c.stored {
		copyElements(t, t.Offset(int(page), 0, 0), t.Offset(int(shared), 0, 0), t.Strides()[0])
	}
}

// copyRows copies n rows of sequence b, from row i on, to sequence `to`, from row at on. Within a
// sequence, at must not be above i.
func (c *KVCache) copyRows(to, at, b, i, n int) {
	for n > 0 {
		run := min(n, c.page-at%c.page, c.page-i%c.page)
		dst, src := int(c.table[to*c.width+at/c.page]), int(c.table[b*c.width+i/c.page])
		for h := range c.config.Heads {
			for _, t := range c.stored {
				copyElements(t, t.Offset(dst, h, at%c.page), t.Offset(src, h, i%c.page), run*t.Shape()[3])
			}
		}
		at, i, n = at+run, i+run, n-run
	}
}

func copyElements(t *flashkit.Tensor, to, from, n int) {
	switch t.DType() {
	case flashkit.Float32:
		copy(t.Float32s()[to:][:n], t.Float32s()[from:])
	case flashkit.Int8:
		copy(t.Int8s()[to:][:n], t.Int8s()[from:])
	default:
		copy(t.Uint16s()[to:][:n], t.Uint16s()[from:])
	}
}

// checkSequence returns an error if there is no sequence b. name is the parameter's name.
func (c *KVCache) checkSequence(name string, b int) error {
	if b < 0 || b >= c.config.Batch {
		return problem(fmt.Sprintf("KVCache: %s", name), b, "must be from 0 to %d", c.config.Batch-1)
	}
	return nil
}

func ceilDiv(n, by int) int { return (n + by - 1) / by }
