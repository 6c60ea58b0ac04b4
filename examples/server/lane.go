package main

import (
	"context"
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
	name    string
	waiting []*Ticket // by deadline; some are not ready, as their tensors are being read
	changed *sync.Cond
	busy    bool
	free    time.Time // when the call in progress is predicted to end
	pace    float64   // what calls of this lane took, over what was predicted
}

// expect returns when a request is predicted to end that may start at from.
func (l *lane) expect(t *Ticket, from time.Time) time.Time {
	if t.readable.After(from) {
		from = t.readable
	}
	return from.Add(scaled(t.cost, l.pace))
}

// admits reports whether t and everything that waits are predicted to make their
// deadlines. Those that would miss theirs anyway do not count.
func (l *lane) admits(t *Ticket, now time.Time) bool {
	if !l.busy && len(l.waiting) == 0 {
		return l.mayStart(t, now)
	}
	end := now
	if l.busy && l.free.After(now) {
		end = l.free
	}
	at := l.place(t)
	for _, w := range l.waiting[:at] {
		end = l.expect(w, end)
	}
	without := end
	if end = l.expect(t, end); end.After(t.deadline) {
		return false
	}
	for _, w := range l.waiting[at:] {
		without, end = l.expect(w, without), l.expect(w, end)
		if end.After(w.deadline) && !without.After(w.deadline) {
			return false
		}
	}
	return true
}

// mayStart reports whether t can make its deadline if it starts now. What was learned
// may say yes but not no: else one slow call could stop all, and nothing more be learned.
func (l *lane) mayStart(t *Ticket, now time.Time) bool {
	return !now.Add(scaled(t.cost, min(l.pace, 1))).After(t.deadline)
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
	end, spare := now, time.Duration(math.MaxInt64)
	keep := l.waiting[:0]
	for _, t := range l.waiting {
		cost := scaled(t.cost, l.pace)
		switch {
		case !t.ready:
			keep = append(keep, t)
		case !l.mayStart(t, now):
			t.answer <- answer{err: fmt.Errorf("%w: %s waited too long", context.DeadlineExceeded, t.problem)}
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
		l.busy, l.free = true, now.Add(scaled(batch[0].cost, l.pace*float64(len(batch))))
	}
	return batch
}

// ended takes into account what a call took.
func (l *lane) ended(predicted, took time.Duration) {
	l.busy = false
	const most = 32 // one stall must not close the lane for long
	l.pace = learned(l.pace, min(float64(took)/float64(max(predicted, time.Microsecond)), most))
}
