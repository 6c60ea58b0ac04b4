package pool

import (
	"context"
	"sync/atomic"
)

// A Queue hands the items of a call to its workers, phase by phase. Items are numbered so that the
// long ones come first; a worker takes the next number until none is left. Its workspace stays
// from call to call. The zero value is ready.
type Queue struct {
	Items  int   // of the phase
	Shared Arena // of all workers, where a kernel needs it

	task   Task
	next   atomic.Int64
	done   <-chan struct{} // of the call's context
	arenas []Arena         // one for each worker
}

// A Task computes an item in the workspace of one worker.
type Task interface {
	Item(ws *Arena, item int)
}

// A Phase is items that run at the same time, and the floats of workspace that
// each worker needs for them.
type Phase struct{ Items, Floats int }

// Run runs the items of a phase on up to the given number of workers, until the context is done.
func (q *Queue) Run(ctx context.Context, p *Pool, t Task, workers int, work Phase) {
	q.task, q.Items, q.done = t, work.Items, ctx.Done()
	q.next.Store(0)
	q.Hold(workers, work) // here, not by the worker, so that a second call allocates nothing
	p.Run(q, Size(workers, work)-1)
}

// Work takes items until none is left.
func (q *Queue) Work(slot int) {
	ws := &q.arenas[slot]
	for !q.Canceled() {
		item := int(q.next.Add(1) - 1)
		if item >= q.Items {
			return
		}
		ws.Reset()
		q.task.Item(ws, item)
	}
}

// Canceled reports whether the call's context is done. Kernels ask often enough
// to end within 200 microseconds.
func (q *Queue) Canceled() bool {
	select {
	case <-q.done:
		return true
	default:
		return false
	}
}

// Next returns the item that a worker is likely to take next, and false if none is left.
func (q *Queue) Next() (item int, ok bool) {
	item = int(q.next.Load())
	return item, item < q.Items
}

// Hold reserves the workspace of all the phases at once, so that a larger one
// does not replace the workspace of a smaller one.
func (q *Queue) Hold(workers int, phases ...Phase) {
	n := Size(workers, phases...)
	for len(q.arenas) < n {
		q.arenas = append(q.arenas, Arena{Slot: len(q.arenas), poisoned: q.Shared.poisoned})
	}
	for w := range n {
		q.arenas[w].Reserve(space(w, phases))
	}
}

// Forget drops the references to the last call.
func (q *Queue) Forget() { q.task, q.done = nil, nil }

// Poison fills all workspace with NaN, whenever a call or an item begins.
func (q *Queue) Poison() {
	q.Shared.poisoned = true
	for w := range q.arenas {
		q.arenas[w].poisoned = true
	}
}

// Size returns the number of workers that have an item in some phase, at least 1.
func Size(workers int, phases ...Phase) int {
	items := 1
	for _, f := range phases {
		items = max(items, f.Items)
	}
	return min(workers, items)
}

// Floats returns the floats of workspace that Hold reserves.
func Floats(workers int, phases ...Phase) (sum float64) {
	for w := range Size(workers, phases...) {
		sum += float64(space(w, phases))
	}
	return sum
}

// space returns the floats that worker w needs for all of the phases, one after
// the other. A phase without items needs none, whatever its dimensions are.
func space(w int, phases []Phase) int {
	most := 0
	for _, f := range phases {
		if w < f.Items {
			most = max(most, f.Floats)
		}
	}
	return most
}
