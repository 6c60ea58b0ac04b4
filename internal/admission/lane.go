package admission

import (
	"fmt"
	"math"
	"slices"
	"sync"
	"time"
)

// A lane is the queue of a goroutine that computes one call at a time, in the order of deadlines.
// There are two lanes, so that a short request need not wait for the end of a long call. The calls
// of both lanes share the processors. No request starves, because a Queue rejects requests that would
// make waiting requests late. Queue.mu guards all fields.
type lane[J, A any] struct {
	waiting []*Ticket[J, A] // sorted by deadline; the bodies of some have not arrived yet
	changed *sync.Cond
	busy    bool
	free    time.Time // predicted end of the call in progress
	pace    estimate  // measured time divided by predicted time of the lane's calls
}

func newLane[J, A any](mu sync.Locker) *lane[J, A] {
	return &lane[J, A]{changed: sync.NewCond(mu), pace: estimate{normal: 1, most: 32}}
}

// admits reports whether t is predicted to end before t.due, and makes no waiting request late. A
// waiting request that would be late without t does not count.
func (l *lane[J, A]) admits(t *Ticket[J, A], now time.Time) bool {
	pace, end := l.pace.at(now), now
	expect := func(t *Ticket[J, A], from time.Time) time.Time { // the predicted end of t if the lane is free at from
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
func (l *lane[J, A]) place(t *Ticket[J, A]) int {
	i, _ := slices.BinarySearchFunc(l.waiting, t, func(w, t *Ticket[J, A]) int {
		if w.deadline.After(t.deadline) {
			return 1
		}
		return -1
	})
	return i
}

func (l *lane[J, A]) insert(t *Ticket[J, A]) { l.waiting = slices.Insert(l.waiting, l.place(t), t) }

func (l *lane[J, A]) remove(t *Ticket[J, A]) {
	if i := slices.Index(l.waiting, t); i >= 0 {
		l.waiting = slices.Delete(l.waiting, i, i+1)
	}
}

// take removes and returns the requests of the next call. These are the first ready request, and
// later ready requests that may share its call. A later request joins the call only if this makes
// none of the requests before it late. If a request can no longer end in time, take answers the
// request with ErrMissed.
func (l *lane[J, A]) take(now time.Time, joins func([]J, J) bool) (batch []*Ticket[J, A]) {
	pace, end, spare := l.pace.at(now), now, time.Duration(math.MaxInt64)
	keep := l.waiting[:0]
	var jobs []J
	var total time.Duration
	for _, t := range l.waiting {
		cost := scaled(t.cost, pace)
		switch {
		case !t.ready:
			keep = append(keep, t)
			continue
		case now.Add(scaled(t.cost, min(pace, 1))).After(t.deadline): // late even if the call is as fast as predicted
			t.answer <- answer[A]{err: fmt.Errorf("%w: %s waited too long", ErrMissed, t.what)}
			continue
		case batch == nil || cost <= spare && joins(jobs, t.job):
			batch, jobs, total, spare = append(batch, t), append(jobs, t.job), total+cost, spare-cost
		default:
			keep = append(keep, t)
		}
		end = end.Add(cost)
		for _, limit := range [...]time.Time{t.due, t.deadline} { // a request that cannot keep its reserve shall keep its deadline
			if left := limit.Sub(end); left >= 0 {
				spare = min(spare, left)
				break
			}
		}
	}
	clear(l.waiting[len(keep):])
	l.waiting = keep
	if batch != nil {
		l.busy, l.free = true, now.Add(total)
	}
	return batch
}
