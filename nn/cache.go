package nn

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
)

// A KVCache stores the keys and values of growing sequences, so that each row's key and value are
// computed only once. One goroutine at a time may use a KVCache.
type KVCache struct {
	batch, heads, dim, capacity int

	k, v []float32 // [batch, heads, capacity, dim]
	lens []int32
}

// NewKVCache returns an empty cache. batch is the number of sequences, and capacity is the maximum
// number of rows of a sequence. A row has heads * dim features: dim features for each KV head. The
// cache takes 8 * batch * heads * capacity * dim bytes.
func NewKVCache(batch, heads, capacity, dim int) (*KVCache, error) {
	n := 1
	for _, d := range [...]struct {
		name  string
		value int
	}{{"batch", batch}, {"heads", heads}, {"capacity", capacity}, {"dim", dim}} {
		if d.value < 1 || d.value > maxElements/n {
			return nil, problem("KVCache: "+d.name, d.value, "must be at least 1, and all elements at most %d", maxElements)
		}
		n *= d.value
	}
	return &KVCache{batch, heads, dim, capacity, make([]float32, n), make([]float32, n), make([]int32, batch)}, nil
}

// Capacity returns the number of rows that a sequence can have.
func (c *KVCache) Capacity() int { return c.capacity }

// Lens returns each sequence's number of rows. The slice is not a copy: Append and Reset change it.
func (c *KVCache) Lens() []int32 { return c.lens }

// Reset empties the cache, for new sequences in the same memory.
func (c *KVCache) Reset() { clear(c.lens) }

// View returns the keys and values without a copy, in the kernels' layout, [batch, heads, capacity,
// dim]. Only the first Lens()[b] rows of sequence b are valid.
func (c *KVCache) View() (k, v flashkit.Tensor) {
	return flashkit.F32(c.k, c.batch, c.heads, c.capacity, c.dim), flashkit.F32(c.v, c.batch, c.heads, c.capacity, c.dim)
}

// Append copies the rows of k and v, [rows, heads * dim], to the ends of their sequences. It skips
// padding rows. If the rows do not fit, Append changes nothing and returns a
// *flashkit.ProblemError.
func (c *KVCache) Append(k, v Tensor) error {
	for _, x := range [...]*Tensor{&k, &v} {
		if err := x.check("KVCache: k, v", c.heads*c.dim); err != nil {
			return err
		}
	}
	if k.Batch != c.batch || !v.Rows.equal(&k.Rows) {
		return problem("KVCache: Batch", k.Batch, "must be %d, and the rows of k and v the same", c.batch)
	}
	for b := range c.batch {
		if _, n, _ := k.sequence(b); n > c.capacity-int(c.lens[b]) {
			return problem(fmt.Sprintf("KVCache: rows of sequence %d", b), n, "do not fit: it has %d of %d", c.lens[b], c.capacity)
		}
	}
	for b := range c.batch {
		first, n, step := k.sequence(b)
		for i := range n {
			kRow, vRow := k.Row(first+i*step), v.Row(first+i*step)
			for h := range c.heads {
				at := ((b*c.heads+h)*c.capacity + int(c.lens[b]) + i) * c.dim
				copy(c.k[at:][:c.dim], kRow[h*c.dim:])
				copy(c.v[at:][:c.dim], vRow[h*c.dim:])
			}
		}
		c.lens[b] += int32(n)
	}
	return nil
}
