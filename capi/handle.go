package main

import "sync"

// A table gives what C programs hold numbers. A number is never given twice, so that one
// which is closed is known to be.
type table[T any] struct {
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
	}
	t.last++
	t.held[t.last] = &entry[T]{value: value}
	return t.last
}

// hold returns the entry of a number, to be released, or nil.
func (t *table[T]) hold(number uintptr) *entry[T] {
	t.mu.RLock()
	e := t.held[number]
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

func (e *entry[T]) release() { e.mu.RUnlock() }

// remove takes the entry of a number away, after the calls that hold it. It reports
// whether there was one.
func (t *table[T]) remove(number uintptr) (value T, ok bool) {
	t.mu.Lock()
	e := t.held[number]
	delete(t.held, number)
	t.mu.Unlock()
	if e == nil {
		return value, false
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	e.closed = true
	return e.value, true
}
