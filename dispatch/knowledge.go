package dispatch

import (
	"context"
	"errors"
	"io/fs"
	"math"
	"time"

	"github.com/flashkit-go/flashkit"
)

// Probe times, in turn, the kernels that may be fastest for a problem. It does so only if one of
// these kernels has no measurement on this kind of problem and was in no earlier probe of this
// kind.
//
// Forward and Backward run the same probe once the calls of a kind have taken a hundred times the
// probe's duration. Call Probe to measure earlier, or before Pick. A problem is not probed if its
// predicted time is below 50 microseconds. The error is a *flashkit.ProblemError if p or s is
// invalid.
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

// Learn records the time of a kernel for a problem. took should be the median time of several calls
// of Kernel.Compute on an otherwise idle machine. Calls of all compared kernels should be
// interleaved. kernel is the name of a kernel from Kernels or Pick. The error is a
// *flashkit.ProblemError for an unknown kernel, an invalid or unsupported problem, or a time that
// is not positive. Learn has no effect on a frozen Dispatcher.
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

// Frozen returns a Dispatcher that has the current measurements of d and records no further
// measurements. It therefore runs a problem on the same kernel in every call. Another process makes
// the same choices if both processes loaded the same profile and measured nothing else.
func (d *Dispatcher) Frozen() *Dispatcher {
	c := *d
	c.frozen = true
	c.setMemory(d.memory.clone(d.backends))
	return &c
}

// Blank returns a Dispatcher with only the kernels' own predictions, without the measurements of d
// or of the profile. It records new measurements, unless d is frozen.
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

// ProfileErr returns the reason why All, Open or Default ignored a profile. It is nil if the
// profile was loaded, does not exist or is off. Dispatch works without a profile.
func (d *Dispatcher) ProfileErr() error { return d.profileErr }
