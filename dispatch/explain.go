package dispatch

import (
	"math"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A Source is the origin of the factor by which dispatch multiplies a kernel's own prediction.
type Source string

// Sources of a factor, best first.
const (
	FromProfile Source = "profile" // the profile or Learn: measured on problems of about this size
	FromProbe   Source = "probe"   // measured in turn with other kernels on a problem of this kind, but of another size
	FromCost    Source = "cost"    // not measured: the factor of the best measured kernel, or 1 if no kernel is measured
)

// A Verdict is dispatch's judgment of a kernel, or of a missing or unopened backend.
type Verdict struct {
	Name   string        // the kernel, or the missing or unopened backend
	Chosen bool          // whether Pick would return this kernel
	Reason string        // why the kernel was chosen or rejected
	Cost   time.Duration // predicted time, Own * Factor; 0 if the kernel does not fit
	Last   time.Duration // duration of the kernel's latest call on this problem, or on a problem with up to a sixteenth more or fewer keys; 0 if none is recorded

	Own    time.Duration // the kernel's own prediction
	Factor float64       // ratio of measured to predicted time
	From   Source        // origin of Factor
}

// Explain returns a verdict for every kernel of the pass, and for every missing or unopened
// backend. It runs no kernel. As in Pick, it assumes dense tensors on the host and no Args.LSE. The
// error is a *flashkit.ProblemError if p or s is invalid.
func (d *Dispatcher) Explain(p flashkit.Problem, s flashkit.Pass) ([]Verdict, error) {
	if err := valid(p, s); err != nil {
		return nil, err
	}
	call := p.Ask(s)
	x := d.planFor(p, s, false)
	chosen, a, scores := d.fastest(x, nil), x.anchor(), d.scores(x, nil)
	var verdicts []Verdict
	for i := range d.memory.kernels {
		k := &d.memory.kernels[i]
		if k.Pass != s {
			continue
		}
		v, yields := Verdict{Name: k.Name, Reason: k.Fits(call)}, false
		for j := range x.candidates {
			if c := &x.candidates[j]; c.kernel == i {
				v.Chosen, yields = c == chosen, c.yields && d.choice.isAuto()
				v.Own = d.memory.cost(i, call)
				v.explain(c, &a)
			}
		}
		switch {
		case v.Chosen:
			v.Reason = d.whyChosen(len(x.candidates))
		case v.Reason == "" && !d.admitted[i]:
			v.Reason = "fits, but " + d.choice.String() + " was requested"
		case v.Reason == "" && yields:
			v.Reason = "fits, but so does a vector kernel outside the sandbox"
		case v.Reason == "" && scores != "" && k.Scores != scores:
			v.Reason = "fits, but sums scores in another order than the backward pass"
		case v.Reason == "":
			v.Reason = "fits, but predicts a longer time"
		}
		verdicts = append(verdicts, v)
	}
	for _, m := range d.missing {
		verdicts = append(verdicts, Verdict{Name: m.Backend, Reason: strings.TrimPrefix(m.Err.Error(), m.Backend+": ")})
	}
	for _, name := range d.unopened {
		verdicts = append(verdicts, Verdict{Name: name, Reason: "not opened, as " + d.opened + " was requested"})
	}
	return verdicts, nil
}

// explain sets v.Cost, v.Last, v.Factor and v.From for the candidate c. v.Own must be set.
func (v *Verdict) explain(c *candidate, a *anchor) {
	log := c.expectedFactor(a)
	v.Cost, v.Last, v.Factor, v.From = scaled(v.Own, log), time.Duration(c.last.Load()), math.Exp(log), FromCost
	if _, n := c.standing.log(); n > 0 {
		v.From = FromProbe
	}
	if _, ok := c.near(); ok {
		v.From = FromProfile
	}
}

func (d *Dispatcher) whyChosen(fits int) string {
	switch {
	case !d.choice.isAuto():
		return d.choice.String() + " was requested"
	case fits == 1:
		return "the only kernel that fits"
	}
	return "predicts the shortest time"
}
