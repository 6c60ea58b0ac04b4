package main

import (
	"math/rand/v2"
	"sync"
)

// A kind is what a handle stands for. It is the lowest bits of the handle, so that a handle in the
// place of another type is refused.
type kind uintptr

const (
	kindDispatcher kind = 1 + iota
	kindCancel

	kindBits = 2
)

// kindOf returns the kind of a handle.
func kindOf(handle uintptr) kind { return kind(handle & (1<<kindBits - 1)) }

// A table gives handles to what C programs hold. No handle is given twice, so that a closed one is
// known to be closed. Counting starts at random: a handle of another process is refused too.
type table[T any] struct {
	kind kind
	mu   sync.RWMutex
	last uintptr
	held map[uintptr]*entry[T]
}

// An entry is held for reading by calls in progress, and for writing by the one that closes it.
type entry[T any] struct {
	mu     sync.RWMutex
	closed bool
	value  T
}

func (t *table[T]) add(value T) uintptr {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.held == nil {
		t.held = make(map[uintptr]*entry[T])
		t.last = uintptr(rand.Uint64()) >> (kindBits + 1) // the top bit is room to count on
	}
	t.last++
	handle := t.last<<kindBits | uintptr(t.kind)
	t.held[handle] = &entry[T]{value: value}
	return handle
}

// hold returns the entry of a handle, to be released, or nil.
func (t *table[T]) hold(handle uintptr) *entry[T] {
	t.mu.RLock()
	e := t.held[handle]
	t.mu.RUnlock()
	if e == nil {
		return nil
	}
	e.mu.RLock()
	if e.closed {
		e.mu.RUnlock()
		return nil
	}
	return e
}

// holds reports whether a handle is open.
func (t *table[T]) holds(handle uintptr) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.held[handle] != nil
}

func (e *entry[T]) release() { e.mu.RUnlock() }

// remove removes the entry of a handle, after the calls that hold it. It reports whether there was one.
func (t *table[T]) remove(handle uintptr) (value T, ok bool) {
	t.mu.Lock()
	e := t.held[handle]
	delete(t.held, handle)
	t.mu.Unlock()
	if e == nil {
		return value, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	return e.value, true
}
