package dispatch

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// Probe measures side by side the kernels that may be fastest for a problem, if one of them is
// unmeasured on this kind of problem. It runs once per kernel and kind of problem.
// Forward and Backward do the same once calls of the kind have taken a hundred times as long. Call
// Probe to measure earlier, or before Pick. Problems under 50 microseconds are not probed. The
// error is a *flashkit.ProblemError if p or s is invalid.
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

// Learn records the time of a kernel for a problem: the median of calls made outside Forward and
// Backward, interleaved with other kernels' calls. The kernel must come from Kernels or Pick, and
// the machine must be otherwise idle. The error is a *flashkit.ProblemError for an unknown kernel,
// an invalid or unsupported problem, or a time that is not positive. Learn has no effect on a
// frozen Dispatcher.
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

// Frozen returns a Dispatcher with d's current knowledge that learns nothing more. A problem then
// always runs on the same kernel. This also holds across programs that have loaded only the same
// profile.
func (d *Dispatcher) Frozen() *Dispatcher {
	c := *d
	c.frozen = true
	c.setMemory(d.memory.clone(d.backends))
	return &c
}

// Blank returns a Dispatcher with only the kernels' own predictions, without the profile. It learns
// if d does.
func (d *Dispatcher) Blank() *Dispatcher {
	c := *d
	c.setMemory(newMemory(d.backends))
	return &c
}

func (d *Dispatcher) loadDefault() error {
	path, err := d.ProfilePath()
	if err != nil {
		return nil // no cache folder, or profiles are off
	}
	if err := d.LoadProfile(path); !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// ProfileErr returns the reason why All or Default ignored a profile, nil if they did not or there
// is none. Dispatch works without a profile.
func (d *Dispatcher) ProfileErr() error { return d.profileErr }
