// Package fastest chooses among kernels by predicted times. It remembers recent choices: a call in
// a loop is not predicted again, and does not allocate.
package fastest

import (
	"cmp"
	"hash/maphash"
	"sync/atomic"

	"github.com/flashkit-go/flashkit"
)

// A Subject is a call without its arguments. The choice of a kernel depends only on the subject.
type Subject struct {
	Problem flashkit.Problem
	Pass    flashkit.Pass
	Traits  flashkit.Traits
	Paired  bool // a forward pass before a backward pass, whose kernel sums scores in the same order
}

// Ask returns a call of the subject without arguments, for a kernel's Fits, Cost and Needs.
func (s *Subject) Ask() *flashkit.Call {
	c := s.Problem.Ask(s.Pass)
	c.Traits = s.Traits
	return c
}

// Least returns the index of the candidate with the shortest time, or the first of several
// candidates with this time. It returns -1 if no candidate may run.
func Least[T cmp.Ordered](n int, time func(i int) (t T, may bool)) int {
	best, shortest := -1, *new(T)
	for i := range n {
		if t, may := time(i); may && (best < 0 || t < shortest) {
			best, shortest = i, t
		}
	}
	return best
}

const (
	sets = 256
	ways = 4
)

// A Cache keeps the values of recent subjects, in sets of a few entries. Its size is bounded, and
// its methods take no locks. The zero Cache is empty.
type Cache[T any] struct {
	recent  [sets][ways]atomic.Pointer[entry[T]]
	evicted atomic.Uint32
}

type entry[T any] struct {
	subject Subject
	value   T
}

var seed = maphash.MakeSeed()

// set returns the cache's set of entries for a subject, chosen by a hash. It hashes only the fields
// that differ most often, as one block of memory. Hashing a whole subject would take several times
// as long.
func (c *Cache[T]) set(s *Subject) *[ways]atomic.Pointer[entry[T]] {
	p := &s.Problem
	key := [...]int{
		p.Batch, p.Heads, p.KVHeads, p.QLen, p.KVLen, p.Dim, p.Band.Left(), p.Band.Right(), p.Band.Shifted(), p.Page,
		int(p.DType) | int(p.KVDType)<<4 | int(s.Pass)<<8 | int(s.Traits.Load)<<16,
	}
	return &c.recent[maphash.Comparable(seed, key)%sets]
}

// Find returns the value of a subject, if the cache has it.
func (c *Cache[T]) Find(s *Subject) (value T, ok bool) {
	set := c.set(s)
	for i := range set {
		if x := set[i].Load(); x != nil && x.subject == *s {
			return x.value, true
		}
	}
	return value, false
}

// Keep stores the value of a subject in an empty entry of the subject's set. In a full set, it
// replaces another subject's value.
func (c *Cache[T]) Keep(s *Subject, value T) {
	x, set := &entry[T]{*s, value}, c.set(s)
	for i := range set {
		if set[i].CompareAndSwap(nil, x) {
			return
		}
	}
	set[c.evicted.Add(1)%ways].Store(x)
}

// Kept returns all values of the cache.
func (c *Cache[T]) Kept() (list []T) {
	for i := range c.recent {
		for j := range c.recent[i] {
			if x := c.recent[i][j].Load(); x != nil {
				list = append(list, x.value)
			}
		}
	}
	return list
}

// Evicted returns the number of replaced values.
func (c *Cache[T]) Evicted() int { return int(c.evicted.Load()) }
