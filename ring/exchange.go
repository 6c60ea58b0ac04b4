package ring

import (
	"cmp"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/flashkit-go/flashkit"
)

// An exchange holds a rank's messages during a step. The methods `to` and `from` add messages. Each
// message gets the current values of the fields round and apart.
type exchange struct {
	send, receive []Message
	round         int
	apart         bool
}

func (e *exchange) isEmpty() bool { return len(e.send) == 0 && len(e.receive) == 0 }

// `to` adds a message that this rank sends. `from` adds a message that this rank receives. Both
// methods leave out empty tensors.
func (e *exchange) to(rank int, t ...flashkit.Tensor) {
	if t = slices.DeleteFunc(t, isEmpty); len(t) > 0 {
		e.send = append(e.send, Message{rank, t, e.round, e.apart})
	}
}

func (e *exchange) from(rank int, t ...flashkit.Tensor) {
	if t = slices.DeleteFunc(t, isEmpty); len(t) > 0 {
		e.receive = append(e.receive, Message{rank, t, e.round, e.apart})
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
		j.abort(ctx, err)
	}
	return err
}

// abort breaks the group. It returns once no other rank still copies this rank's tensors.
func (j *job) abort(ctx context.Context, err error) {
	j.group.Fail(err)
	j.group.Wait(ctx) // Wait returns the group's error, which the caller has
}

// wait completes the exchange and reports progress every second.
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

// watch calls f and reports progress every second until f returns.
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

func (j *job) report(at Progress) {
	if j.o.Progress != nil {
		j.o.Progress(at)
	}
}

// addKeys adds to e the messages with the keys for turn i. For a turn of step t, rank r sends its
// keys to rank r+t and receives keys from rank r-t. The received keys arrive in buffers, which
// addKeys returns.
func (j *job) addKeys(e *exchange, i int) (k, v flashkit.Tensor) {
	if i >= len(j.turns) {
		return k, v
	}
	x := j.turns[i]
	st, n := &j.steps[x.step], [4]int{0, x.heads.len(), 0, j.p.Dim}
	n[0], n[2] = st.need.nb, st.need.n
	m := n
	m[3] = j.p.VDim
	e.to((j.rank+x.step)%j.size, x.heads.of(st.give.of(j.a.K), 1), x.heads.of(st.give.of(j.a.V), 1))
	if x.heads.len() < j.p.KVHeads {
		k, v = j.halfSlot(slotK1, i%2, j.p.KVType(), n), j.halfSlot(slotV1, i%2, j.p.KVType(), m)
	} else {
		k, v = j.buffer(slotK0+i%2*2, j.p.KVType(), n), j.buffer(slotV0+i%2*2, j.p.KVType(), m)
	}
	e.from((j.rank-x.step+j.size)%j.size, k, v)
	return k, v
}

// rotate runs the steps. The first step is one turn, and each later step is cut into the given
// number of turns. While the function `work` computes turn i, the keys of turn i+1 travel, together
// with the messages that the function `behind` adds. rotate calls the function `arrived` after each
// exchange. An additional turn at the end has messages but no compute.
func (j *job) rotate(ctx context.Context, parts int, work func(i int, k, v flashkit.Tensor) error, behind func(e *exchange, i int), arrived func()) error {
	var ahead exchange
	j.turns = turnsOf(len(j.steps), j.p.KVHeads, parts)
	k, v := j.a.K, j.a.V
	last := len(j.turns)
	for i := 0; i <= last; i++ {
		ahead = exchange{}
		nextK, nextV := j.addKeys(&ahead, i+1)
		if behind != nil {
			behind(&ahead, i)
		}
		err := j.math.err // a buffer may have failed
		early := !j.met
		if early {
			err = j.turn(i, k, v, err, work)
		}
		if err == nil {
			if err := j.agreeOnce(ctx); err != nil {
				return err
			}
			if err := j.start(ctx, &ahead); err != nil {
				return err
			}
		}
		if !early {
			err = j.turn(i, k, v, err, work)
		}
		if err != nil {
			j.abort(ctx, err)
			return err
		}
		if err := j.wait(ctx, &ahead, Progress{Step: j.stepsDone(i), Steps: len(j.steps)}); err != nil {
			return err
		}
		if arrived != nil {
			arrived()
		}
		j.reportTurn(i)
		k, v = nextK, nextV
	}
	return nil
}

// turn computes turn i and returns its error. If err is not nil or the turn has no calls, the
// method turn only returns err.
func (j *job) turn(i int, k, v flashkit.Tensor, err error, work func(i int, k, v flashkit.Tensor) error) error {
	if err != nil || i == len(j.turns) || len(j.steps[j.turns[i].step].calls) == 0 {
		return err
	}
	begin := time.Now()
	err = cmp.Or(work(i, k, v), j.math.err)
	j.stats.Compute += time.Since(begin)
	if j.turns[i].heads.to == j.p.KVHeads {
		j.stats.Steps++
	}
	return err
}

func (j *job) stepsDone(i int) int {
	if i+1 < len(j.turns) {
		return j.turns[i+1].step
	}
	return len(j.steps)
}

// reportTurn reports progress if turn i was the last turn of a step.
func (j *job) reportTurn(i int) {
	if i == len(j.turns) || j.turns[i].heads.to != j.p.KVHeads {
		return
	}
	x := Progress{Step: j.stepsDone(i), Steps: len(j.steps), From: -1}
	if x.Step < x.Steps && j.steps[x.Step].need.n > 0 {
		x.From = (j.rank - x.Step + j.size) % j.size
	}
	j.report(x)
}
