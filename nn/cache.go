package nn

import (
	"cmp"
	"fmt"
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// A KVCacheConfig configures a KVCache. In the comments, "0:" precedes the meaning of 0. The other
// numbers must be at least 1.
type KVCacheConfig struct {
	Batch    int            // number of sequences
	Heads    int            // KV heads
	Capacity int            // the most rows of a sequence, a multiple of Page
	Dim      int            // features of a head
	DType    flashkit.DType // type of the stored keys and values: Float32, Float16, BFloat16 or Int8
	Page     int            // rows of a page; 0: no pages, each sequence has memory for Capacity rows
	Pages    int            // pages of the pool, for all sequences together; 0: enough for Batch full sequences. Without Page, 0
	Rotary   *Rotary        // rotates keys by their positions before they are stored; nil: none

	Int8Group int            // Int8: features of a head that share a scale, 32, 64 or Dim; 0: Dim. For other types, 0
	Scales    flashkit.DType // Int8: type of the scales, Float32 or Float16. For other types, 0

	// Zeros allocates the keys, values and scales, such as in memory that the garbage collector does
	// not count; nil: flashkit.Zeros.
	Zeros func(t flashkit.DType, batch, heads, rows, row int) flashkit.Tensor
}

// A KVCache stores the keys and values of growing sequences, so that each row's key and value are
// computed only once. Without pages, sequence b has the rows of batch b. With pages, sequences take
// pages from one pool and return them, and Fork shares them.
//
// NewKVCache claims all memory. Methods allocate nothing, except that a Rotary's tables grow with
// the positions. A method that returns an error has changed nothing.
//
// One goroutine at a time may call methods that change a KVCache: Append, Truncate, Remove, Fork,
// Evict and Reset. Meanwhile no other goroutine may use the cache, or run a call with its tensors.
// Between changes any number of goroutines may read the cache and run calls.
type KVCache struct {
	config KVCacheConfig
	page   int // rows of a page; without pages, Capacity
	width  int // page table entries of a sequence

	k, v      flashkit.Tensor // [pages, Heads, page, Dim]
	kScale    flashkit.Tensor // [pages, Heads, page, scales of a head], for Int8 alone
	vScale    flashkit.Tensor
	stored    []*flashkit.Tensor // K, V and their scales
	lens      []int32
	next      []int32 // position of each sequence's next row
	positions []int32 // [Batch, Capacity]
	table     []int32 // [Batch, width]: the pages of each sequence
	refs      []int32 // number of sequences that use each page
	free      []int32 // pages without a sequence, a stack
	copied    []int32 // scratch of pagesFor: pages that will be copied
	others    []int32 // result of Prefix: lengths after the shared pages
	rest      []int32 // result of Prefix: page table without the shared pages
	row       []float32
	first     []int32 // argument of QuantizeRows
}

// NewKVCache returns an empty cache. A cache of n pages takes 2 * n * Heads * Page * Dim elements of
// DType, a cache without pages 2 * Batch * Heads * Capacity * Dim. With Int8, each group of elements
// takes a scale too.
func NewKVCache(config KVCacheConfig) (*KVCache, error) {
	c := &KVCache{config: config, page: config.Page, width: 1}
	pages, err := config.check()
	if err != nil {
		return nil, err
	}
	if c.page == 0 {
		c.page = config.Capacity
	} else {
		c.width = config.Capacity / c.page
	}
	zeros := config.Zeros
	if zeros == nil {
		zeros = flashkit.Zeros
	}
	c.k = zeros(config.DType, pages, config.Heads, c.page, config.Dim)
	c.v = zeros(config.DType, pages, config.Heads, c.page, config.Dim)
	c.stored = []*flashkit.Tensor{&c.k, &c.v}
	if config.DType == flashkit.Int8 {
		scales := ceilDiv(config.Dim, config.int8Group())
		c.kScale = zeros(config.Scales, pages, config.Heads, c.page, scales)
		c.vScale = zeros(config.Scales, pages, config.Heads, c.page, scales)
		c.stored, c.first = append(c.stored, &c.kScale, &c.vScale), make([]int32, 1)
	}
	c.lens, c.next, c.copied = make([]int32, config.Batch), make([]int32, config.Batch), make([]int32, 0, config.Batch)
	c.positions = make([]int32, config.Batch*config.Capacity)
	c.others, c.rest = make([]int32, 0, config.Batch), make([]int32, 0, config.Batch*c.width)
	c.table, c.refs = make([]int32, config.Batch*c.width), make([]int32, pages)
	if config.Rotary != nil || config.DType == flashkit.Int8 {
		c.row = make([]float32, config.Heads*config.Dim)
	}
	for page := pages - 1; page >= 0 && config.Page > 0; page-- {
		c.free = append(c.free, int32(page))
	}
	for b := range c.table {
		if config.Page == 0 { // sequence b has page b for good
			c.table[b], c.refs[b] = int32(b), 1
		}
	}
	return c, nil
}

// check returns the number of pages of a valid config. Without pages, a sequence counts as a page.
func (c *KVCacheConfig) check() (pages int, err error) {
	const name = "KVCacheConfig."
	all := 1
	for _, d := range [...]struct {
		name  string
		value int
	}{{"Batch", c.Batch}, {"Capacity", c.Capacity}, {"Heads", c.Heads}, {"Dim", c.Dim}} {
		if d.value < 1 || d.value > maxElements/all {
			return 0, problem(name+d.name, d.value, "must be at least 1, and all elements at most %d", maxElements)
		}
		if all *= d.value; d.name == "Capacity" && c.Pages > 0 {
			all = 1 // Page and Pages bound the elements of a pool
		}
	}
	switch {
	case c.DType > flashkit.BFloat16 && c.DType != flashkit.Int8:
		return 0, problem(name+"DType", c.DType, "must be f32, f16, bf16 or i8")
	case c.DType != flashkit.Int8 && c.Int8Group != 0:
		return 0, problem(name+"Int8Group", c.Int8Group, "must be 0 without DType i8")
	case c.Int8Group != 0 && c.Int8Group != c.Dim && (c.Int8Group != 32 && c.Int8Group != 64 || c.Int8Group > c.Dim):
		return 0, problem(name+"Int8Group", c.Int8Group, "must be 32, 64 or Dim = %d, or 0 for Dim", c.Dim)
	case c.Scales > flashkit.Float16 || c.DType != flashkit.Int8 && c.Scales != flashkit.Float32:
		return 0, problem(name+"Scales", c.Scales, "must be f32 or f16, and f32 without DType i8")
	case c.Page < 0 || c.Page > 0 && c.Capacity%c.Page != 0:
		return 0, problem(name+"Page", c.Page, "must be at least 1 and divide Capacity = %d, or be 0 for no pages", c.Capacity)
	case c.Pages < 0 || c.Page == 0 && c.Pages > 0:
		return 0, problem(name+"Pages", c.Pages, "must be at least 1, or 0 for enough; without Page it must be 0")
	case c.Pages > 0 && c.Pages > maxElements/(c.Heads*c.Dim)/c.Page:
		return 0, problem(name+"Pages", c.Pages, "must have at most %d elements", maxElements)
	case c.Rotary != nil && (c.Rotary.dim == 0 || c.Rotary.dim > c.Dim):
		return 0, problem(name+"Rotary", c.Rotary.dim, "must be made by NewRotary and rotate at most Dim = %d features", c.Dim)
	case c.Page == 0:
		return c.Batch, nil
	case c.Pages > 0:
		return c.Pages, nil
	}
	return c.Batch * (c.Capacity / c.Page), nil
}

// int8Group returns Problem.Int8Group of calls.
func (c *KVCacheConfig) int8Group() int {
	if c.DType != flashkit.Int8 {
		return 0
	}
	return cmp.Or(c.Int8Group, c.Dim)
}

// Capacity returns the number of rows that a sequence can have.
func (c *KVCache) Capacity() int { return c.config.Capacity }

// Lens returns each sequence's number of rows. The slice is not a copy, and must not be changed.
func (c *KVCache) Lens() []int32 { return c.lens }

// Next returns the position of each sequence's next row. The slice is not a copy, and must not be
// changed. A position differs from Lens after Evict alone. The queries of the next rows have these
// positions: see Rotary.ForwardFrom.
func (c *KVCache) Next() []int32 { return c.next }

// Positions returns the position of each row of sequence b, which increases from row to row. The
// slice is not a copy, and must not be changed. If there is no sequence b, Positions returns nil.
func (c *KVCache) Positions(b int) []int32 {
	if c.checkSequence("b", b) != nil {
		return nil
	}
	return c.positions[b*c.config.Capacity:][:c.lens[b]]
}

// FreePages returns the number of pages that no sequence uses. It is 0 without pages.
func (c *KVCache) FreePages() int { return len(c.free) }

// View returns the keys and values without a copy, for the K and V of flashkit.Args. Without pages
// their shape is [Batch, Heads, Capacity, Dim], and only the first Lens()[b] rows of sequence b are
// valid. With pages their shape is [pages, Heads, Page, Dim].
func (c *KVCache) View() (k, v flashkit.Tensor) { return c.k, c.v }

// Scales returns the scales of Int8 keys and values without a copy, for the KScale and VScale of
// flashkit.Args. For other types they are zero Tensors.
func (c *KVCache) Scales() (k, v flashkit.Tensor) { return c.kScale, c.vScale }

// Sequences returns the lengths and the page table, without a copy, for the Seqs of flashkit.Args.
// Queries may be added to the result. With K and V of View, flashkit.ProblemOf returns the same
// problem for all lengths, so package dispatch plans only once.
func (c *KVCache) Sequences() flashkit.Sequences {
	s := flashkit.Sequences{KVLens: c.lens}
	if c.config.Page > 0 {
		s.Pages = c.table
	}
	return s
}

// Append copies the rows of k and v, [rows, Heads * Dim], to the ends of their sequences: any number
// of rows to each sequence. It skips padding rows, and quantizes to Int8 as flashkit.QuantizeRows. If
// the rows or their pages do not fit, Append changes nothing and returns a *flashkit.ProblemError.
func (c *KVCache) Append(k, v Tensor) error {
	if err := c.checkRows(&k, &v); err != nil {
		return err
	}
	var turn *rotation
	if r := c.config.Rotary; r != nil {
		most := 0
		for b, at := range c.next {
			_, n, _ := k.sequence(b)
			most = max(most, int(at)+n)
		}
		turn = r.upTo(most)
	}
	for b := range c.config.Batch {
		first, n, step := k.sequence(b)
		c.grow(b, n)
		for i := range n {
			kRow, at := k.Row(first+i*step), int(c.lens[b])+i
			if turn != nil {
				kRow = c.row[:copy(c.row, kRow)]
				c.config.Rotary.turnRow(turn, kRow, c.config.Heads, int(c.next[b])+i, 1)
			}
			if err := c.write(&c.k, &c.kScale, b, at, kRow); err != nil {
				return err
			}
			if err := c.write(&c.v, &c.vScale, b, at, v.Row(first+i*step)); err != nil {
				return err
			}
			c.positions[b*c.config.Capacity+at] = c.next[b] + int32(i)
		}
		c.lens[b] += int32(n)
		c.next[b] += int32(n)
	}
	return nil
}

// checkRows returns an error if Append must refuse the rows.
func (c *KVCache) checkRows(k, v *Tensor) error {
	features := c.config.Heads * c.config.Dim
	if err := k.check("KVCache: k", features); err != nil {
		return err
	}
	if err := v.check("KVCache: v", features); err != nil {
		return err
	}
	if k.Batch != c.config.Batch || !v.Rows.equal(&k.Rows) {
		return problem("KVCache: k.Batch", k.Batch, "must be %d, and the rows of k and v the same", c.config.Batch)
	}
	most := math.MaxInt32
	if r := c.config.Rotary; r != nil {
		most = r.positions
	}
	for b, l := range c.lens {
		switch _, n, _ := k.sequence(b); {
		case n > c.config.Capacity-int(l):
			return problem(fmt.Sprintf("KVCache: rows of sequence %d", b), n, "do not fit: it has %d of %d", l, c.config.Capacity)
		case n > most-int(c.next[b]):
			return problem(fmt.Sprintf("KVCache: rows of sequence %d", b), n, "from position %d on are beyond the %d positions that there are", c.next[b], most)
		}
	}
	if n := c.pagesFor(&k.Rows); n > len(c.free) {
		return problem("KVCache: pages", n, "are needed, and %d of %d are free", len(c.free), len(c.refs))
	}
	return nil
}

// write copies a row to row i of sequence b in t, which is K or V. An error would be a fault of the cache.
func (c *KVCache) write(t, scale *flashkit.Tensor, b, i int, row []float32) error {
	dim := c.config.Dim
	if c.config.DType == flashkit.Int8 {
		c.first[0] = int32(i)
		copy(c.row, row)
		return flashkit.QuantizeRows(*t, *scale, flashkit.F32(c.row, 1, c.config.Heads, 1, dim), c.first, c.table[b*c.width:][:c.width])
	}
	for h := range c.config.Heads {
		at, x := t.Offset(int(c.table[b*c.width+i/c.page]), h, i%c.page), row[h*dim:][:dim]
		switch c.config.DType {
		case flashkit.Float16:
			narrow(t.Uint16s()[at:][:dim], x, half.ToF16)
		case flashkit.BFloat16:
			narrow(t.Uint16s()[at:][:dim], x, half.ToBF16)
		default:
			copy(t.Float32s()[at:], x)
		}
	}
	return nil
}

func narrow(dst []uint16, x []float32, to func(float32) uint16) {
	dst = dst[:len(x)]
	for i, f := range x {
		dst[i] = to(f)
	}
}
