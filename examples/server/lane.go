package main

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// A lane is the requests that one goroutine computes, one call after the other, in
// the order of their deadlines. There are two, so that a short request need not wait
// for the end of a long call: the two calls then share the processors. Nobody is
// starved, as nobody is admitted who would make another one late.
// Server.mu guards everything here.
type lane struct {
	waiting []*Ticket // by deadline; some are not ready, as their tensors are being read
	changed *sync.Cond
	busy    bool
	free    time.Time // when the call in progress is predicted to end
	pace    estimate  // what calls of this lane took, over what was predicted
}

func newLane(mu sync.Locker) *lane {
	return &lane{changed: sync.NewCond(mu), pace: estimate{normal: 1, most: 32}}
}

// admits reports whether t and everything that waits are predicted to make their
// deadlines, and a little before. Those that would not anyway do not count.
func (l *lane) admits(t *Ticket, now time.Time) bool {
	pace, end := l.pace.at(now), now
	expect := func(t *Ticket, from time.Time) time.Time { // when t ends that may start at from
		if t.readable.After(from) {
			from = t.readable
		}
		return from.Add(scaled(t.cost, pace))
	}
	if l.busy && l.free.After(now) {
		end = l.free
	}
	at := l.place(t)
	for _, w := range l.waiting[:at] {
		end = expect(w, end)
	}
	without := end
	if end = expect(t, end); end.After(t.due) {
		return false
	}
	for _, w := range l.waiting[at:] {
		without, end = expect(w, without), expect(w, end)
		if end.After(w.due) && !without.After(w.due) {
			return false
		}
	}
	return true
}

// place returns the index of the first request with a later deadline.
func (l *lane) place(t *Ticket) int {
	i, _ := slices.BinarySearchFunc(l.waiting, t, func(w, t *Ticket) int {
		if w.deadline.After(t.deadline) {
			return 1
		}
		return -1
	})
	return i
}

func (l *lane) insert(t *Ticket) { l.waiting = slices.Insert(l.waiting, l.place(t), t) }

func (l *lane) remove(t *Ticket) {
	if i := slices.Index(l.waiting, t); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}

// take removes and returns the requests of the next call: the first that is ready, and
// those for the same problem that can share its call and make nobody late whom they
// pass. It answers those whose time has run out.
func (l *lane) take(now time.Time, m *Limits) (batch []*Ticket) {
	pace, end, spare := l.pace.at(now), now, time.Duration(math.MaxInt64)
	keep := l.waiting[:0]
	for _, t := range l.waiting {
		cost := scaled(t.cost, pace)
		switch {
		case !t.ready:
			keep = append(keep, t)
		case now.Add(scaled(t.cost, min(pace, 1))).After(t.deadline): // even at best
			t.answer <- answer{err: fmt.Errorf("%w: %s waited too long", ErrMissed, t.problem)}
		case batch == nil:
			batch, end = append(batch, t), now.Add(cost)
		case t.problem == batch[0].problem && t.copied() <= m.Copied && len(batch) < m.Batch && cost <= spare:
			batch, end, spare = append(batch, t), end.Add(cost), spare-cost
		default:
			keep = append(keep, t)
			end = end.Add(cost)
			if left := t.deadline.Sub(end); left >= 0 {
				spare = min(spare, left)
			}
		}
	}
	clear(l.waiting[len(keep):])
	l.waiting = keep
	if batch != nil {
		l.busy, l.free = true, now.Add(scaled(batch[0].cost, pace*float64(len(batch))))
	}
	return batch
}
