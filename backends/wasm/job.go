package wasm

import (
	"context"
	"math"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/workers"
)

// A job is a call in progress. A pool keeps finished jobs, so that later calls reuse their
// workspace.
type job struct {
	plan
	args   *flashkit.Args
	places places
	ctx    context.Context

	next     atomic.Int64   // next head or item that no worker has claimed
	begun    []atomic.Int64 // forward: claimed tiles of each head
	progress []atomic.Int64 // backward: finished tiles of each item; later items wait for these tiles
	sinks    atomic.Int64   // backward: next head whose dSink no worker has claimed
	dq       []float32      // backward: sums of dQ, if DQ has 16 bits and there are several chunks
	dbias    []float32      // backward: sums of dBias, if DBias has 16 bits and several heads share it

	wideBias []float64 // backward: sums of a float32 dBias that more than biasRun heads share

	failed atomic.Bool
	once   sync.Once
	err    error // error of the first failed worker
	helper sync.WaitGroup
}

func (b *Backend) newJob(v *variant, c *flashkit.Call) *job {
	j := b.jobs.Get().(*job)
	j.plan, j.args = b.box.plan(v, c), c.Args
	return j
}

// do runs the job on one or more instances, then returns the job to the pool.
func (b *Backend) do(ctx context.Context, j *job) error {
	j.ctx, j.err, j.once = ctx, nil, sync.Once{}
	j.failed.Store(false)
	err := j.begin(b.box)
	j.plan, j.args, j.ctx = plan{}, nil, nil
	b.jobs.Put(j)
	return err
}

// begin runs the job. A job without items uses neither an instance nor memory, even if its
// dimensions are huge.
func (j *job) begin(s *sandbox) error {
	if err := j.ctx.Err(); err != nil {
		return err
	}
	j.sinks.Store(0)
	j.clearOutputs()
	if j.items() == 0 {
		j.sinkGradients()
		return j.ctx.Err()
	}
	j.prepare()
	j.poisonSums(s)
	if err := j.parallel(s); err != nil {
		return err
	}
	j.roundBias()
	return j.ctx.Err()
}

func (j *job) parallel(s *sandbox) error {
	first, err := s.acquire(j.ctx, j.memory())
	if err != nil {
		return err
	}
	j.places = j.place(first.base)
	for range min(j.workers(s), j.items()) - 1 {
		x := s.tryAcquire(j.ctx, j.memory())
		if x == nil {
			break
		}
		j.helper.Add(1)
		go func() {
			defer j.helper.Done()
			j.work(s, x)
		}()
	}
	j.work(s, first)
	j.helper.Wait()
	if j.err != nil {
		return j.err
	}
	return j.ctx.Err()
}

// workers returns the maximum number of concurrent instances of a call.
func (x *plan) workers(s *sandbox) int {
	if n := x.c.Workers; n > 0 {
		return min(n, cap(s.slots))
	}
	return cap(s.slots)
}

// work runs items on the instance x until none is left, then releases x.
func (j *job) work(s *sandbox, x *instance) {
	defer s.release(x)
	x.poisoned = s.poisoned.Load()
	if err := j.run(x); err != nil {
		j.once.Do(func() { j.err = err })
		j.failed.Store(true)
	}
}

// run runs the job's pass on the instance x. After a panic, which only a bug can cause, the
// instance is not used again.
func (j *job) run(x *instance) (err error) {
	pass := j.forward
	if j.v.pass == flashkit.PassBackward {
		pass = j.backward
	}
	if j.v.isDecode() {
		pass = j.decode
	}
	if j.batch > 0 {
		pass = j.batches
	}
	if panicked := recovered(func() { err = pass(x) }); panicked != nil {
		x.failed = true
		return panicked
	}
	if err == errStopped {
		return nil
	}
	return err
}

// stopped reports whether the context is done or a worker failed. Workers call stopped before each
// call of the module, because nothing can interrupt the module. stopped first lets other goroutines
// run.
func (j *job) stopped() bool {
	runtime.Gosched()
	select {
	case <-j.ctx.Done():
		return true
	default:
		return j.failed.Load()
	}
}

// prepare resets the counters and sizes the workspace.
func (j *job) prepare() {
	j.next.Store(0)
	j.begun = counters(j.begun, j.heads())
	j.progress = counters(j.progress, j.owners()*j.chunks())
	if n := elements(&j.args.DQ); j.gathers() && len(j.dq) < n {
		j.dq = make([]float32, n)
	}
	if n := elements(&j.args.DBias); j.gathersBias() {
		j.dbias = zeros(j.dbias, n)
	} else if j.needsFloat64Bias() {
		j.wideBias = zeros(j.wideBias, n)
	}
}

// zeros returns at least n zeros. It reuses the memory of old if old is large enough.
func zeros[F float32 | float64](old []F, n int) []F {
	if len(old) < n {
		return make([]F, n)
	}
	clear(old[:n])
	return old
}

// counters returns n zero counters. It reuses the memory of old if old is large enough.
func counters(old []atomic.Int64, n int) []atomic.Int64 {
	if cap(old) < n {
		return make([]atomic.Int64, n)
	}
	old = old[:n]
	for i := range old {
		old[i].Store(0)
	}
	return old
}

// rowsOf returns the number of query rows in the sequence of a KV head. head counts the KV heads of
// all sequences.
func (j *job) rowsOf(head int) int {
	if !j.c.Ragged {
		return j.c.QLen
	}
	return j.c.Seq(head / j.c.KVHeads).N
}

func elements(t *flashkit.Tensor) int {
	s := t.Shape()
	return s[0] * s[1] * s[2] * s[3]
}

// takeTile claims a tile of query rows and returns the tile's KV head and number. It prefers the
// current head, whose keys are already packed. If no tile of the current head is left, it takes a
// tile of the next head of which no tile is claimed. If there is no such head, it takes a tile of
// the head with the most tiles left. head is -1 if no head has a tile left.
func (j *job) takeTile(current int) (head, item int) {
	perHead := func(head int) int { return j.group() * j.tiles(j.rowsOf(head)) }
	try := func(head int) (int, bool) {
		item := int(j.begun[head].Add(1) - 1)
		return item, item < perHead(head)
	}
	if current >= 0 {
		if item, ok := try(current); ok {
			return current, item
		}
	}
	for {
		if head := int(j.next.Add(1) - 1); head < j.heads() {
			if item, ok := try(head); ok {
				return head, item
			}
			continue
		}
		head, left := -1, int64(0)
		for h := range j.begun {
			if n := int64(perHead(h)) - j.begun[h].Load(); n > left {
				head, left = h, n
			}
		}
		if head < 0 {
			return -1, 0
		}
		if item, ok := try(head); ok {
			return head, item
		}
	}
}

// waitFor waits until the item has finished at least the given number of tiles. It returns false if
// the call has stopped.
func (j *job) waitFor(item int, at int64) bool {
	return workers.Await(func() bool { return j.progress[item].Load() >= at }, j.stopped)
}

const allFinished = math.MaxInt64
