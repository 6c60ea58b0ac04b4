package pool

import (
	"context"
	"math"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/workers"
)

// task counts the calls of each item, and calls f.
type task struct {
	came []atomic.Int32
	f    func(ws *Arena, item int)
}

func (t *task) Item(ws *Arena, item int) {
	t.came[item].Add(1)
	t.f(ws, item)
}

// Every item runs once. Each worker has its own slot and workspace.
func TestQueue(t *testing.T) {
	var q Queue
	p := new(Pool)
	defer p.Close()
	for i, workers := range []int{1, 3, 1, 3} {
		apart := i >= 2
		for _, items := range []int{0, 1, 2, 100} {
			x := task{came: make([]atomic.Int32, items), f: func(ws *Arena, item int) {
				require.GreaterOrEqual(t, ws.Slot, 0)
				require.Less(t, ws.Slot, max(1, min(workers, items)))
				a, b := ws.Take(3), ws.Take(4)
				a = append(a, 1) // must not reach b
				require.NotSame(t, &a[3], &b[0])
				if next, ok := q.Next(); ok {
					require.Greater(t, next, item)
				}
			}}
			q.Run(t.Context(), p, &x, workers, Phase{items, 7}, apart)
			for i := range x.came {
				require.EqualValues(t, 1, x.came[i].Load(), "item %d of %d", i, items)
			}
			_, ok := q.Next()
			require.False(t, ok)
		}
	}
}

// A worker with a share of its own takes the first item of the share first.
func TestQueueApart(t *testing.T) {
	var q Queue
	p := new(Pool)
	defer p.Close()
	var first [2]atomic.Int32
	var begun sync.WaitGroup
	begun.Add(2)
	x := task{came: make([]atomic.Int32, 10), f: func(ws *Arena, item int) {
		if first[ws.Slot].CompareAndSwap(0, int32(item)+1) {
			begun.Done()
			begun.Wait()
		}
	}}
	withTwoProcs(t)
	q.Run(t.Context(), p, &x, 2, Phase{10, 0}, true)
	require.EqualValues(t, 1, first[0].Load())
	require.EqualValues(t, 6, first[1].Load())
}

// withTwoProcs makes sure that a caller gets a helper.
func withTwoProcs(t *testing.T) {
	before := runtime.GOMAXPROCS(2)
	time.Sleep(2 * workers.ProcsAge)
	t.Cleanup(func() { runtime.GOMAXPROCS(before) })
}

func TestQueueEndsWithItsContext(t *testing.T) {
	var q Queue
	ctx, cancel := context.WithCancel(t.Context())
	x := task{came: make([]atomic.Int32, 10), f: func(*Arena, int) { cancel() }}
	require.False(t, q.Canceled())
	q.Run(ctx, new(Pool), &x, 1, Phase{10, 0}, false)
	require.True(t, q.Canceled())
	require.EqualValues(t, 1, x.came[0].Load())
	require.EqualValues(t, 0, x.came[1].Load())
}

// A worker needs no workspace for a phase that has no item for this worker.
func TestFloats(t *testing.T) {
	require.EqualValues(t, 10+10+7, Floats(4, Phase{2, 10}, Phase{3, 7}))
	require.EqualValues(t, 10, Floats(1, Phase{2, 10}, Phase{3, 7}))
	require.EqualValues(t, 0, Floats(4, Phase{0, math.MaxInt}))
	require.Equal(t, 3, Size(4, Phase{2, 10}, Phase{3, 7}))
	require.Equal(t, 1, Size(4))
}

// A poisoned queue hands out workspace full of NaN, and never more floats than were reserved.
func TestPoison(t *testing.T) {
	var q Queue
	q.Poison()
	x := task{came: make([]atomic.Int32, 2), f: func(ws *Arena, _ int) {
		require.Len(t, ws.Free, 5)
		for i, v := range ws.Take(5) {
			require.True(t, v != v, i)
			ws.All[i] = 0
		}
	}}
	q.Run(t.Context(), new(Pool), &x, 1, Phase{2, 5}, false)
	require.EqualValues(t, 1, x.came[1].Load())
}
