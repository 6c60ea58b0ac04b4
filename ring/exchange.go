package ring

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/flashkit-go/flashkit"
)

// An exchange is what a rank sends and receives beside the work of a step.
type exchange struct{ send, receive []Message }

func (e *exchange) isEmpty() bool { return len(e.send) == 0 && len(e.receive) == 0 }

// to sends tensors, from receives them; a message of no elements does not travel.
func (e *exchange) to(rank int, t ...flashkit.Tensor) {
	if t = slices.DeleteFunc(t, isEmpty); len(t) > 0 {
		e.send = append(e.send, Message{rank, t})
	}
}

func (e *exchange) from(rank int, t ...flashkit.Tensor) {
	if t = slices.DeleteFunc(t, isEmpty); len(t) > 0 {
		e.receive = append(e.receive, Message{rank, t})
	}
}

// start begins the exchange and counts its bytes.
func (j *job) start(ctx context.Context, e *exchange) error {
	if e.isEmpty() {
		return nil
	}
	for _, m := range e.send {
		for _, t := range m.Tensors {
			j.stats.Sent += sizeOf(t)
		}
	}
	for _, m := range e.receive {
		for _, t := range m.Tensors {
			j.stats.Received += sizeOf(t)
		}
	}
	err := j.group.Start(ctx, e.send, e.receive)
	if err != nil {
		j.giveUp(ctx, err)
	}
	return err
}

// giveUp breaks the group and returns when nobody copies this rank's tensors any more.
func (j *job) giveUp(ctx context.Context, err error) {
	j.group.Fail(err)
	j.group.Wait(ctx) // its error is that of the group
}

// wait ends the exchange, and tells of every second that it takes.
func (j *job) wait(ctx context.Context, e *exchange, at Progress) error {
	if e.isEmpty() {
		return nil
	}
	begin := time.Now()
	defer func() { j.stats.Wait += time.Since(begin) }()
	if len(e.receive) > 0 {
		at.From = e.receive[0].Peer
	} else {
		at.From = e.send[0].Peer
	}
	return j.watch(at, func() error { return j.group.Wait(ctx) })
}

// watch tells of every second that f waits for other ranks.
func (j *job) watch(at Progress, f func() error) error {
	if j.o.Progress == nil {
		return f()
	}
	begin, done := time.Now(), make(chan struct{})
	var told sync.WaitGroup
	told.Go(func() {
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				at.Waiting = time.Since(begin)
				j.o.Progress(at)
			}
		}
	})
	err := f()
	close(done)
	told.Wait()
	return err
}

// tell reports that a step is done.
func (j *job) tell(at Progress) {
	if j.o.Progress != nil {
		j.o.Progress(at)
	}
}

// keysFor adds to e the keys that travel before step t: those of the rank that is t behind,
// into buffers, and this rank's to the rank that is t ahead. It returns what arrives.
func (j *job) keysFor(e *exchange, t int) (k, v flashkit.Tensor) {
	if t >= len(j.steps) {
		return k, v
	}
	st := &j.steps[t]
	e.to((j.rank+t)%j.size, st.give.of(j.a.K), st.give.of(j.a.V))
	k = j.buffer(slotK0+t%2*2, j.p.KVType(), [4]int{st.need.nb, j.p.KVHeads, st.need.n, j.p.Dim})
	v = j.buffer(slotV0+t%2*2, j.p.KVType(), [4]int{st.need.nb, j.p.KVHeads, st.need.n, j.p.VDim})
	e.from((j.rank-t+j.size)%j.size, k, v)
	return k, v
}

// walk does the steps. Beside step t, which work computes, travel the keys of step t+1 and
// what behind adds, of step t-1; arrived is told when they are there. One step more has
// nothing but what travels.
func (j *job) walk(ctx context.Context, work func(t int, k, v flashkit.Tensor) error, behind func(e *exchange, t int), arrived func(t int)) error {
	var ahead exchange
	k, v := j.a.K, j.a.V
	last := len(j.steps)
	for t := 0; t <= last; t++ {
		ahead = exchange{}
		nextK, nextV := j.keysFor(&ahead, t+1)
		if behind != nil {
			behind(&ahead, t)
		}
		err := j.math.err // of a buffer
		compute := func() {
			if err == nil && t < last && len(j.steps[t].calls) > 0 {
				begin := time.Now()
				err = cmp.Or(work(t, k, v), j.math.err)
				j.stats.Compute += time.Since(begin)
				j.stats.Steps++
			}
		}
		early := !j.met
		if early {
			compute()
		}
		if err == nil {
			if err := j.meet(ctx); err != nil {
				return err
			}
			if err := j.start(ctx, &ahead); err != nil {
				return err
			}
		}
		if !early {
			compute()
		}
		if err != nil {
			j.giveUp(ctx, err)
			return err
		}
		if err := j.wait(ctx, &ahead, Progress{Step: min(t+1, last), Steps: last}); err != nil {
			return err
		}
		if arrived != nil {
			arrived(t)
		}
		if t < last {
			next := Progress{Step: t + 1, Steps: last, From: -1}
			if t+1 < last && j.steps[t+1].need.n > 0 {
				next.From = (j.rank - t - 1 + j.size) % j.size
			}
			j.tell(next)
		}
		k, v = nextK, nextV
	}
	return nil
}
