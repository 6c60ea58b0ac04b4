package replay

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"runtime"
	"slices"
	"time"

	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/input"
)

// Live regret is a ratio of two times for a program's calls. The first is the time on the kernels
// that dispatch chose while it learned the machine, the second is the time on the best kernels.
//
// A run has two phases in one fresh process. First the trace is replayed with a dispatcher that
// starts without measurements, as in a program. Then the chosen kernels, and other kernels that may
// be the best, take turns under the same conditions. The medians of the second phase give the
// regret. The first phase may call a kernel only once, and other programs may disturb a single
// call.

// A liveRun is a run of a trace.
type liveRun struct {
	trace  *Trace
	groups []*callGroup
	parts  [][]stepPart // for each index of trace.order: the stretches of that step, with their groups
	player *player
	order  *rand.Rand
	last   []string // for each index of trace.order: the kernel of that step's last call
	frozen *dispatch.Dispatcher
	forced map[string][]*caller // callers restricted to one kernel
}

type stepPart struct {
	stretch
	group *callGroup
}

// live runs a trace in this process, which must not have run kernels before.
func live(ctx context.Context, t *Trace, backend string, seed uint64) (*Result, error) {
	l := &liveRun{trace: t, groups: t.groups(), parts: make([][]stepPart, len(t.order)), order: rand.New(rand.NewPCG(seed, 2)), forced: map[string][]*caller{}}
	for _, g := range l.groups {
		for _, s := range g.spans {
			l.parts[s.at] = append(l.parts[s.at], stepPart{s, g})
		}
	}
	if err := l.prepare(ctx, backend, seed); err != nil {
		return nil, err
	}
	defer l.player.crowd.close()
	opened, d, err := bench.Open(ctx, backend)
	if err != nil {
		return nil, err
	}
	defer opened.Close()
	if err := l.replay(ctx, d); err != nil {
		return nil, err
	}
	for _, g := range l.groups {
		g.try(d)
	}
	l.frozen = d.Frozen()
	if err := l.compare(ctx); err != nil {
		return nil, err
	}
	return l.result(), nil
}

// prepare makes the tensors and selects kernels with short predicted times. It uses a dispatcher of
// its own, because the dispatcher under test must start without measurements, as in a program.
func (l *liveRun) prepare(ctx context.Context, backend string, seed uint64) error {
	opened, d, err := bench.Open(ctx, backend)
	if err != nil {
		return err
	}
	defer opened.Close()
	d = d.Frozen()
	for _, g := range l.groups {
		if _, err := d.Pick(g.problem, g.step.pass); err != nil {
			return fmt.Errorf("line %d: %w", g.step.line, err)
		}
		g.try(d)
	}
	l.player, err = newPlayer(ctx, l.trace, input.NewMaker(opened, seed))
	runtime.GC() // collect the garbage of setup before timed calls
	return err
}

// callers returns the maximum number of callers.
func (t *Trace) callers() (n int) {
	for i := range t.steps {
		n = max(n, t.steps[i].callers)
	}
	return n
}

// replay is the first phase. It makes the calls of the trace with d and counts the calls of each
// kernel.
func (l *liveRun) replay(ctx context.Context, d *dispatch.Dispatcher) error {
	callers, done := newCallers(d, l.trace.callers()), 0
	for at, i := range l.trace.order {
		s := &l.trace.steps[i]
		list, total, err := l.player.play(ctx, s, 0, s.calls, callers)
		if err != nil {
			return fmt.Errorf("line %d: %w", s.line, err)
		}
		l.last = append(l.last, list[len(list)-1].kernel)
		l.note(at, list, total, done)
		done += len(list)
	}
	return nil
}

// note records the calls of step l.trace.order[at], a line of the trace. done is the number of
// calls before these calls.
func (l *liveRun) note(at int, list []timedCall, total time.Duration, done int) {
	walls := time.Duration(0)
	for _, r := range list {
		walls += r.wall
	}
	for _, x := range l.parts[at] {
		g := x.group
		for i, r := range list[x.from : x.from+x.n] {
			if g.first == 0 {
				g.first = max(1, r.took)
			}
			k := g.kernel(r.kernel)
			k.ran++
			if done+x.from+i >= firstCalls {
				k.late++
				g.inARow(k)
			}
			g.spent += r.wall - r.took
			g.seconds += total.Seconds() * float64(r.wall) / float64(max(1, walls))
		}
	}
}

// inARow counts a call of k in the group's current sequence of consecutive calls of one kernel. It
// updates the length of k's longest sequence.
func (g *callGroup) inARow(k *timedKernel) {
	if g.steady != k {
		g.steady, g.row = k, 0
	}
	g.row++
	k.row = max(k.row, g.row)
}

// A visit is a few consecutive calls of a group, all from one line of the trace. In the second
// phase, each kernel of the group makes these calls.
type visit struct {
	stretch
	group *callGroup
	round int
}

// Parameters of the second phase.
const (
	compareTime    = 3 * time.Second // for all groups; minimum calls may take longer
	leastCalls     = 5               // per kernel in a group
	mostCalls      = 40
	outRatio       = 3    // a kernel is out if its fastest call takes longer than this times the best median
	outTries       = 3    // calls before a kernel may be out
	remeasureRatio = 1.10 // a larger ratio is measured again
)

// burst returns the number of calls per visit of the group, and the number of visits. budget is the
// time for all visits of the group. A minimum number of visits may take longer.
func (g *callGroup) burst(budget time.Duration) (calls, turns int) {
	each := time.Duration(g.seconds / float64(g.calls) * 1e9)
	enough := leastCalls
	switch {
	case g.step.callers > 1:
		calls = max(2*g.step.callers, 8)
	case each > 20*time.Millisecond:
		calls = 2
	case each > 5*time.Millisecond:
		calls = 3
	default:
		calls = leastCalls
	}
	calls = min(calls, slices.MaxFunc(g.spans, func(a, b stretch) int { return cmp.Compare(a.n, b.n) }).n)
	if g.step.callers == 1 {
		enough = (leastCalls + calls - 1) / calls
	}
	turn := time.Duration(len(g.kernels)*calls) * (each*3/2 + g.step.pause + time.Duration(g.step.touch/8))
	return calls, max(enough, min(int(budget/max(1, turn)), max(mostCalls/calls, leastCalls)))
}

// visits returns the visits of all groups. The visits of a group are spread over the trace. A round
// has at most one visit of each group, so that changes on the machine affect all groups alike.
func visits(groups []*callGroup) (list []visit) {
	for _, g := range groups {
		calls, turns := g.burst(compareTime / time.Duration(len(groups)))
		for j := range turns {
			i := (2*j + 1) * g.calls / (2 * turns)
			for _, s := range g.spans {
				if i < s.n {
					n := min(calls, s.n)
					list = append(list, visit{stretch{s.at, s.from + min(i, s.n-n), n}, g, j})
					break
				}
				i -= s.n
			}
		}
	}
	slices.SortStableFunc(list, func(a, b visit) int { return cmp.Or(cmp.Compare(a.round, b.round), cmp.Compare(a.at, b.at)) })
	return list
}

// compare is the second phase. It times the kernels of every group. It then times again, up to
// bench.Looks times, the groups in which worst exceeds remeasureRatio.
func (l *liveRun) compare(ctx context.Context) error {
	doubted := l.groups
	for look := 0; len(doubted) > 0 && look <= bench.Looks; look++ {
		for _, v := range visits(doubted) {
			if err := l.visit(ctx, v); err != nil {
				return fmt.Errorf("line %d: %w", v.group.step.line, err)
			}
		}
		doubted = nil
		for _, g := range l.groups {
			if g.worst() > remeasureRatio {
				doubted = append(doubted, g)
			}
		}
	}
	return nil
}

// visit makes the calls of v on each kernel of the group, in random order. A kernel that did not
// run in the first phase gets no more calls once it is much slower than the fastest kernel.
func (l *liveRun) visit(ctx context.Context, v visit) error {
	for _, i := range l.order.Perm(len(v.group.kernels)) {
		if k := v.group.kernels[i]; !k.out {
			if err := l.turn(ctx, v, k); err != nil {
				return err
			}
		}
	}
	best := v.group.best().seconds()
	for _, k := range v.group.kernels {
		k.out = k.out || k.ran == 0 && len(k.times) >= outTries && slices.Min(k.times).Seconds() > outRatio*best
	}
	return nil
}

// turn makes the calls of v on kernel k and adds their times to k.times. If k has no times yet,
// turn first makes one untimed call, which compiles and loads code. If the first call of v is the
// first call of a step, turn then repeats the preceding call of the trace.
func (l *liveRun) turn(ctx context.Context, v visit, k *timedKernel) error {
	callers, err := l.callers(k.name)
	if err != nil {
		return err
	}
	s := &l.trace.steps[l.trace.order[v.at]]
	if len(k.times) == 0 {
		if _, _, err := l.player.play(ctx, s, v.from, 1, callers); err != nil {
			return err
		}
	}
	if v.from == 0 && v.at > 0 {
		if err := l.before(ctx, v); err != nil {
			return err
		}
	}
	list, total, err := l.player.play(ctx, s, v.from, v.n, callers)
	if err != nil {
		return err
	}
	for _, r := range list {
		if r.kernel != k.name {
			return fmt.Errorf("%s ran instead of %s", r.kernel, k.name)
		}
		v.group.idle = append(v.group.idle, r.wall-r.took)
		if s.callers == 1 {
			k.times = append(k.times, r.took)
		}
	}
	if s.callers > 1 {
		k.times = append(k.times, total/time.Duration(len(list)))
	}
	return nil
}

// before repeats the call that precedes v in the trace, on the kernel that ran this call in the
// first phase. before does nothing if this call belongs to v's group, or if the call's step and v's
// step have different numbers of busy processes.
func (l *liveRun) before(ctx context.Context, v visit) error {
	s := &l.trace.steps[l.trace.order[v.at-1]]
	parts := l.parts[v.at-1]
	if parts[len(parts)-1].group == v.group || s.busy != v.group.step.busy {
		return nil
	}
	callers, err := l.callers(l.last[v.at-1])
	if err != nil {
		return err
	}
	_, _, err = l.player.play(ctx, s, s.calls-1, 1, callers)
	return err
}

func (l *liveRun) callers(kernel string) ([]*caller, error) {
	list := l.forced[kernel]
	if list == nil {
		d, err := l.frozen.With(kernel)
		if err != nil {
			return nil, err
		}
		list = newCallers(d, l.trace.callers())
		l.forced[kernel] = list
	}
	return list, nil
}
