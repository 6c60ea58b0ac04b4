package main

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// A lane is the queue of a goroutine that computes one call at a time, in the order of deadlines.
// There are two lanes, so that a short request need not wait for the end of a long call. The calls
// of both lanes share the processors. No request starves, because Admit rejects requests that would
// make waiting requests late. Server.mu guards all fields.
type lane struct {
	waiting []*Ticket // sorted by deadline; the tensors of some have not arrived yet
	changed *sync.Cond
	busy    bool
	free    time.Time // predicted end of the call in progress
	pace    estimate  // measured time divided by predicted time of the lane's calls
}

func newLane(mu sync.Locker) *lane {
	return &lane{changed: sync.NewCond(mu), pace: estimate{normal: 1, most: 32}}
}

// admits reports whether t is predicted to end before t.due, and makes no waiting request late. A
// waiting request that would be late without t does not count.
func (l *lane) admits(t *Ticket, now time.Time) bool {
	pace, end := l.pace.at(now), now
	expect := func(t *Ticket, from time.Time) time.Time { // the predicted end of t if the lane is free at from
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

// place returns the index of the first waiting request with a later deadline than t.
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

// take removes and returns the requests of the next call. These are the first ready request, and
// later ready requests with the same problem. A later request joins the call only if this makes
// none of the requests before it late. If a request can no longer end in time, take answers the
// request with ErrMissed.
func (l *lane) take(now time.Time, m *Limits) (batch []*Ticket) {
	pace, end, spare := l.pace.at(now), now, time.Duration(math.MaxInt64)
	keep := l.waiting[:0]
	for _, t := range l.waiting {
		cost := scaled(t.cost, pace)
		switch {
		case !t.ready:
			keep = append(keep, t)
		case now.Add(scaled(t.cost, min(pace, 1))).After(t.deadline): // late even if the call is as fast as predicted
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
