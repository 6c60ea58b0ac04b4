package main

import (
	"math/rand/v2"
	"sync"
)

// A kind is the type of the object behind a handle. It is stored in the handle's lowest bits, so
// that a handle of the wrong type is rejected.
type kind uintptr

const (
	kindDispatcher kind = 1 + iota
	kindCancel
	kindCache

	kindBits = 2
)

func kindOf(handle uintptr) kind { return kind(handle & (1<<kindBits - 1)) }

// A table maps handles, which C programs hold, to objects. It never reuses a handle, so that a
// closed handle is recognized. Handles count up from a random number, so that a handle from another
// process is also rejected.
type table[T any] struct {
	kind kind
	mu   sync.RWMutex
	last uintptr
	held map[uintptr]*entry[T]
}

// An entry is an object of a table. A call in progress holds the read lock of mu, and remove takes
// the write lock.
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
		t.last = uintptr(rand.Uint64()) >> (kindBits + 1) // shifted by one bit more, so that counting cannot overflow
	}
	t.last++
	handle := t.last<<kindBits | uintptr(t.kind)
	t.held[handle] = &entry[T]{value: value}
	return handle
}

// hold returns the entry of a handle, or nil if the handle is not open. The caller must release the
// entry.
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

func (t *table[T]) holds(handle uintptr) bool {
	t.mu.RLock()
	defer t.mu.RUnlock()
	return t.held[handle] != nil
}

func (e *entry[T]) release() { e.mu.RUnlock() }

// remove removes the entry of a handle and waits for the calls that hold the entry. ok reports
// whether the handle was open.
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
