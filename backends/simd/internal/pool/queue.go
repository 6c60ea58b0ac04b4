package pool

import (
	"context"
	"sync/atomic"
)

// A Queue hands the items of a call to its workers, phase by phase. Each worker takes the item with
// the next number until none is left: of its own share of the items first, or of all items. Callers
// should number long items first, so that no worker begins a long item at the end. The Queue keeps
// all workspace for later calls. The zero value is ready.
type Queue struct {
	Items  int   // number of items of the phase
	Shared Arena // workspace that all workers share, for kernels that need it

	task   Task
	done   <-chan struct{} // of the call's context
	arenas []Arena         // one for each worker
	shares []share         // the only one, or one for each worker
}

// A share is a range of items, in cache lines of its own.
type share struct {
	next atomic.Int64
	end  int
	_    [14]int64
}

// A Task computes an item in the workspace of one worker.
type Task interface {
	Item(ws *Arena, item int)
}

// A Phase is a number of items that may run at the same time, and the floats of
// workspace that each worker needs for an item.
type Phase struct{ Items, Floats int }

// Run runs the items of a phase on up to the given number of workers, until the context is done.
// If apart is true, each worker begins with a share of its own of neighboring items. So in a series of
// equal calls, most items of a worker use memory in the cache of its processor.
func (q *Queue) Run(ctx context.Context, p *Pool, t Task, workers int, work Phase, apart bool) {
	q.task, q.Items, q.done = t, work.Items, ctx.Done()
	n := 1
	if apart {
		n = Size(workers, work)
	}
	if cap(q.shares) < n {
		q.shares = make([]share, n)
	}
	q.shares = q.shares[:n]
	for i := range q.shares {
		q.shares[i].next.Store(int64(work.Items * i / n))
		q.shares[i].end = work.Items * (i + 1) / n
	}
	q.Hold(workers, work) // here, for all workers: a worker that first joins in a later call must not allocate then
	p.Run(q, Size(workers, work)-1)
}

// Work runs items in the workspace of worker number slot, until none is left or the call is canceled.
func (q *Queue) Work(slot int) {
	ws := &q.arenas[slot]
	for i := range q.shares {
		s := &q.shares[(slot+i)%len(q.shares)]
		for !q.Canceled() {
			item := int(s.next.Add(1) - 1)
			if item >= s.end {
				break
			}
			ws.Reset()
			q.task.Item(ws, item)
		}
	}
}

// Canceled reports whether the call's context is done. Kernels call Canceled often enough to end
// within 200 microseconds.
func (q *Queue) Canceled() bool {
	select {
	case <-q.done:
		return true
	default:
		return false
	}
}

// Next returns the item that a worker is likely to take next, and false if none is left or workers
// have shares of their own.
func (q *Queue) Next() (item int, ok bool) {
	if len(q.shares) != 1 {
		return 0, false
	}
	item = int(q.shares[0].next.Load())
	return item, item < q.Items
}

// Hold reserves each worker's workspace for the largest of the phases. Otherwise a
// later, larger phase would allocate the workspace again.
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

// Poison makes q fill all workspace with NaN whenever a call or an item begins. Tests use Poison to
// find kernels that read stale workspace.
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

// space returns the floats that worker w needs for the largest of the phases. It
// ignores phases with too few items for worker w.
func space(w int, phases []Phase) int {
	most := 0
	for _, f := range phases {
		if w < f.Items {
			most = max(most, f.Floats)
		}
	}
	return most
}
