package workers_test

import (
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/internal/workers"
)

// withProcs sets GOMAXPROCS for a test.
func withProcs(t *testing.T, n int) {
	before := runtime.GOMAXPROCS(n)
	time.Sleep(2 * workers.ProcsAge)
	t.Cleanup(func() {
		runtime.GOMAXPROCS(before)
		time.Sleep(2 * workers.ProcsAge)
	})
}

// A meeting is a task whose goroutines wait for each other, up to a timeout.
type meeting struct {
	want, now, top, came atomic.Int64
	slots                sync.Map
	t                    *testing.T
}

func (m *meeting) Work(slot int) {
	_, taken := m.slots.LoadOrStore(slot, true)
	if taken {
		m.t.Errorf("slot %d is given twice", slot)
	}
	n := m.now.Add(1)
	for top := m.top.Load(); n > top && !m.top.CompareAndSwap(top, n); top = m.top.Load() {
	}
	m.came.Add(1)
	for range 5000 {
		if m.came.Load() >= m.want.Load() {
			break
		}
		time.Sleep(time.Millisecond)
	}
	time.Sleep(time.Millisecond) // time for a helper too many to come
	m.now.Add(-1)
}

func newMeeting(t *testing.T, want int) *meeting {
	m := &meeting{t: t}
	m.want.Store(int64(want))
	return m
}

// A task gets the goroutines that it asks for, within GOMAXPROCS and the limit, each in its own
// slot. Run returns when the helpers have left.
func TestRun(t *testing.T) {
	withProcs(t, 5)
	for _, c := range []struct{ limit, helpers, want int }{
		{0, 4, 5}, {0, 1, 2}, {0, 0, 1}, {0, -1, 1}, {3, 4, 3}, {1, 4, 1}, {9, 9, 5}, {2, 1, 2}, {0, 9, 5},
	} {
		p := new(workers.Pool)
		p.SetLimit(c.limit)
		require.Equal(t, c.limit, p.Limit())
		m := newMeeting(t, c.want)
		p.Run(m, c.helpers)
		require.EqualValues(t, c.want, m.top.Load(), "%+v", c)
		require.Zero(t, m.now.Load())
		p.Close()
	}
}

// Two tasks share the goroutines, and the limit of one pool does not bound the other.
func TestPoolsShare(t *testing.T) {
	withProcs(t, 4)
	before := runtime.NumGoroutine()
	narrow, wide := new(workers.Pool), new(workers.Pool)
	narrow.SetLimit(2)
	var wait sync.WaitGroup
	for range 20 {
		wait.Go(func() { narrow.Run(newMeeting(t, 1), 3) })
	}
	m := newMeeting(t, 2)
	wide.Run(m, 3)
	require.GreaterOrEqual(t, m.top.Load(), int64(2))
	wait.Wait()
	settle(t, before+3) // callers that are done may still be ending
	narrow.Close()
	m = newMeeting(t, 4)
	wide.Run(m, 3)
	require.EqualValues(t, 4, m.top.Load(), "another pool's end takes no helpers")
	wide.Close()
	settle(t, before)
}

// All tasks of a pool together have at most its limit minus one helpers.
func TestLimitOfAllTasks(t *testing.T) {
	withProcs(t, 8)
	p := new(workers.Pool)
	defer p.Close()
	p.SetLimit(3)
	var now, top atomic.Int64
	var wait sync.WaitGroup
	for range 6 {
		wait.Go(func() {
			p.Run(work(func(slot int) {
				if slot == 0 {
					time.Sleep(5 * time.Millisecond)
					return
				}
				n := now.Add(1)
				for old := top.Load(); n > old && !top.CompareAndSwap(old, n); old = top.Load() {
				}
				time.Sleep(time.Millisecond)
				now.Add(-1)
			}), 7)
		})
	}
	wait.Wait()
	require.LessOrEqual(t, top.Load(), int64(2))
}

type work func(slot int)

func (f work) Work(slot int) { f(slot) }

// Goroutines end with the last pool, tasks of a closed pool get no help, and a later pool starts
// goroutines again.
func TestClose(t *testing.T) {
	withProcs(t, 3)
	before := runtime.NumGoroutine()
	for range 3 {
		p := new(workers.Pool)
		p.Run(newMeeting(t, 3), 2)
		require.EqualValues(t, 1, p.Asked())
		p.Close()
		p.Close()
		m := newMeeting(t, 1)
		p.Run(m, 2)
		require.EqualValues(t, 1, m.top.Load())
		settle(t, before)
	}
	new(workers.Pool).Close()
}

func settle(t *testing.T, limit int) {
	for range 1000 {
		if runtime.NumGoroutine() <= limit {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("%d goroutines are left, were %d", runtime.NumGoroutine(), limit)
}

// With many callers, temporary pools and short tasks, every item of a task is done once.
func TestConcurrentPools(t *testing.T) {
	withProcs(t, 4)
	before := runtime.NumGoroutine()
	var wait sync.WaitGroup
	for i := range 8 {
		wait.Go(func() {
			for round := range 50 {
				p := new(workers.Pool)
				p.SetLimit(i % 4)
				for range 20 {
					var left atomic.Int64
					left.Store(64)
					var done [64]atomic.Int64
					p.Run(work(func(int) {
						for n := left.Add(-1); n >= 0; n = left.Add(-1) {
							done[n].Add(1)
						}
					}), 1+round%5)
					for n := range done {
						if done[n].Load() != 1 {
							t.Errorf("item %d was done %d times", n, done[n].Load())
						}
					}
				}
				p.Close()
			}
		})
	}
	wait.Wait()
	settle(t, before)
}

type nothing struct{}

func (nothing) Work(int) {}

func TestRunAllocatesNothing(t *testing.T) {
	withProcs(t, 2)
	p := new(workers.Pool)
	defer p.Close()
	var task workers.Task = nothing{}
	p.Run(task, 1)
	require.Zero(t, allocs.PerRun(100, func() { p.Run(task, 1) }))
}

func TestProcs(t *testing.T) {
	withProcs(t, 3)
	require.Equal(t, 3, workers.Procs())
	require.Equal(t, []int{3, 1, 2, 3}, []int{workers.Most(0), workers.Most(1), workers.Most(2), workers.Most(9)})
	runtime.GOMAXPROCS(5)
	time.Sleep(2 * workers.ProcsAge)
	require.Equal(t, 5, workers.Procs())
}

// Await returns when ready, at once or after it has slept, or when stopped. It allocates nothing.
func TestAwait(t *testing.T) {
	var ready, stop atomic.Bool
	never := func() bool { return false }
	require.False(t, workers.Await(never, func() bool { return true }))
	require.True(t, workers.Await(func() bool { return true }, func() bool { t.Error("asked for nothing"); return true }))
	for _, x := range []*atomic.Bool{&ready, &stop} {
		time.AfterFunc(50*time.Millisecond, func() { x.Store(true) })
		require.Equal(t, x == &ready, workers.Await(ready.Load, stop.Load))
		ready.Store(false)
	}
	n := 0
	require.Zero(t, allocs.PerRun(10, func() {
		n = 0
		workers.Await(func() bool { n++; return n > 100 }, never)
	}))
}
