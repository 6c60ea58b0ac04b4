package dispatch

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// Probe measures side by side the kernels that may be the fastest for a problem, if
// nothing is known of one of them on its type. It takes a millisecond or some, once for
// each kernel and kind of problem. Forward and Backward do the same once calls of the
// kind have taken a hundred times as long, so a program need not call it: to know
// earlier, or before Pick, it may. Problems of less than 50 microseconds are not worth
// it. The error is a *flashkit.ProblemError if p or s is invalid.
func (d *Dispatcher) Probe(ctx context.Context, p flashkit.Problem, s flashkit.Pass) error {
	if err := valid(p, s); err != nil {
		return err
	}
	if x := d.planFor(p, s, false); !d.frozen && !d.isSettled(x) {
		if best := d.best(x); best != nil && best.own >= float64(shortCall) {
			d.probe(ctx, x, best, true)
		}
	}
	return nil
}

// Learn takes into account what a kernel takes for a problem: the median of calls
// that were made by other means than Forward and Backward, side by side with those
// of other kernels, on a kernel that Kernels or Pick returned. The calls must have
// had the machine to themselves. The error is a *flashkit.ProblemError if there is
// no such kernel, the problem is invalid or does not fit, or no time passed. On a
// frozen Dispatcher nothing happens.
func (d *Dispatcher) Learn(kernel string, p flashkit.Problem, took time.Duration) error {
	if err := p.Validate(); err != nil {
		return err
	}
	c := d.memory.candidate(kernel, p)
	switch {
	case c == nil:
		return &flashkit.ProblemError{Field: "kernel", Value: kernel, Reason: "is not a kernel that supports " + p.String()}
	case took <= 0:
		return &flashkit.ProblemError{Field: "took", Value: took.String(), Reason: "must be positive"}
	case !d.frozen && c.own > 0:
		c.last.Store(int64(took))
		log := math.Log(float64(took) / c.own)
		c.rates[c.at].add(log)
		c.standing.add(log)
		d.memory.version.Add(1)
	}
	return nil
}

// Frozen returns a Dispatcher that knows what d knows now and learns nothing
// more: the same problem then runs on the same kernel, call after call and, if
// both have loaded the same profile and nothing else, program after program.
func (d *Dispatcher) Frozen() *Dispatcher {
	c := *d
	c.frozen = true
	c.setMemory(d.memory.clone(d.backends))
	return &c
}

// Blank returns a Dispatcher that knows nothing but what kernels predict of
// themselves, not even from a profile. It learns, if d does.
func (d *Dispatcher) Blank() *Dispatcher {
	c := *d
	c.setMemory(newMemory(d.backends))
	return &c
}

// loadDefault loads the profile from where it ought to be, if it is there.
func (d *Dispatcher) loadDefault() error {
	path, err := d.ProfilePath()
	if err != nil {
		return nil // nowhere: there is no cache folder, or it is not wanted
	}
	if err := d.LoadProfile(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ProfileErr returns why the profile that All or Default found was ignored, nil
// if it was not or there is none. Everything works without one.
func (d *Dispatcher) ProfileErr() error { return d.profileErr }
