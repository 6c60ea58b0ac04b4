// Package fastest chooses among kernels by predicted times, and remembers the choices of
// recent calls, so that a call in a loop is neither predicted again nor allocates.
package fastest

import (
	"cmp"
	"hash/maphash"
	"sync/atomic"

	"github.com/flashkit-go/flashkit"
)

// A Subject is a call without its arguments: a choice depends on it alone.
type Subject struct {
	Problem flashkit.Problem
	Pass    flashkit.Pass
	Traits  flashkit.Traits
	Paired  bool // a forward pass before a backward pass, which is to sum scores alike
}

// Ask returns a call of the subject to ask kernels about.
func (s *Subject) Ask() *flashkit.Call {
	c := s.Problem.Ask(s.Pass)
	c.Traits = s.Traits
	return c
}

// Least returns which of n candidates has the shortest time, the first of equals, or -1 if none
// may run.
func Least[T cmp.Ordered](n int, time func(i int) (t T, may bool)) int {
	best, shortest := -1, *new(T)
	for i := range n {
		if t, may := time(i); may && (best < 0 || t < shortest) {
			best, shortest = i, t
		}
	}
	return best
}

// Each subject has a place in one set.
const (
	sets = 256
	ways = 4
)

// A Cache keeps the values of recent subjects. Its size is bounded, and its methods do
// not lock. The zero Cache is empty.
type Cache[T any] struct {
	recent  [sets][ways]atomic.Pointer[entry[T]]
	evicted atomic.Uint32
}

type entry[T any] struct {
	subject Subject
	value   T
}

var seed = maphash.MakeSeed()

// set returns where a subject may be. It hashes what subjects differ in most often, as one
// piece of memory: a whole subject takes several times as long.
func (c *Cache[T]) set(s *Subject) *[ways]atomic.Pointer[entry[T]] {
	p := &s.Problem
	key := [...]int{
		p.Batch, p.Heads, p.KVHeads, p.QLen, p.KVLen, p.Dim, p.Band.Left(), p.Band.Right(), p.Band.Shifted(), p.Page,
		int(p.DType) | int(p.KVDType)<<4 | int(s.Pass)<<8 | int(s.Traits.Load)<<16,
	}
	return &c.recent[maphash.Comparable(seed, key)%sets]
}

// Find returns the value that is kept for a subject.
func (c *Cache[T]) Find(s *Subject) (value T, ok bool) {
	set := c.set(s)
	for i := range set {
		if x := set[i].Load(); x != nil && x.subject == *s {
			return x.value, true
		}
	}
	return value, false
}

// Keep puts a value into an empty place of its subject's set, or in the place of another.
func (c *Cache[T]) Keep(s *Subject, value T) {
	x, set := &entry[T]{*s, value}, c.set(s)
	for i := range set {
		if set[i].CompareAndSwap(nil, x) {
			return
		}
	}
	set[c.evicted.Add(1)%ways].Store(x)
}

// Kept returns the values that are kept.
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

// Evicted returns how many values made room for others.
func (c *Cache[T]) Evicted() int { return int(c.evicted.Load()) }
