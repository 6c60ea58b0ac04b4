package dispatch

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"math"
	"strings"
	"sync"
	"time"

	"github.com/flashkit-go/flashkit"
)

// The table holds profiles of common machines, without their calls: what
// flashrun calibrate --print prints on each.
//
//go:embed table.json
var tableJSON []byte

var table = sync.OnceValue(func() (list []profile) {
	if err := json.Unmarshal(tableJSON, &list); err != nil {
		return nil // a test says so
	}
	return list
})

// WriteTable writes what is known of kernels as an element of the table that is
// built into this package, in JSON: for each type and number of rows the mean
// factor of a kernel. The rest is for profiles.
func (d *Dispatcher) WriteTable(w io.Writer) error {
	p := d.memory.profile(d.machine)
	p.Calls = nil
	for i, k := range d.memory.kernels {
		if f, ok := p.Kernels[k.Name]; ok {
			f.Rates = d.memory.rates[i].summary()
			p.Kernels[k.Name] = f
		}
	}
	return json.NewEncoder(w).Encode(p)
}

// summary returns the mean factor of each type and number of rows, under the name
// of the middle one of its regimes.
func (r *rates) summary() map[string][2]float64 {
	const enough = 8 // calls, so that the mean counts for more than a probe would
	groups := map[[2]int8][]regime{}
	for i := range r {
		if _, calls := r[i].load(); calls > 0 {
			c := coordinates[i]
			group := [2]int8{c[axisType], c[axisRows]}
			groups[group] = append(groups[group], regime(i))
		}
	}
	list := map[string][2]float64{}
	for _, members := range groups {
		sum := 0.0
		for _, at := range members {
			log, _ := r[at].load()
			sum += log
		}
		list[members[len(members)/2].String()] = [2]float64{rounded(math.Exp(sum / float64(len(members)))), enough}
	}
	return list
}

// adopt takes from the table what is known of hardware like this machine's.
func (m *memory) adopt(of machine) {
	for _, p := range table() {
		for i := range m.kernels {
			backend, _, _ := strings.Cut(m.kernels[i].Name, "/")
			if here := of.place(backend); here != "" && here == p.Machine.place(backend) {
				m.rates[i].take(p.Kernels[m.kernels[i].Name].Rates)
			}
		}
	}
}

// Probe measures the kernels that may be the fastest for a problem and of which
// nothing is known on this machine, if the problem takes long enough to be worth
// it. It takes some milliseconds, once for each kernel and type. Forward and
// Backward do the same on the first call for a problem; who wants it to happen
// earlier, or uses Pick, calls Probe. The error is a *flashkit.ProblemError if p
// is invalid.
func (d *Dispatcher) Probe(ctx context.Context, p flashkit.Problem, s flashkit.Pass) error {
	if err := p.Validate(); err != nil {
		return err
	}
	if d.memory.find(p, s) == nil {
		d.planned(ctx, p, s)
	}
	return nil
}

// Learn takes into account what a call took that was made by other means than
// Forward and Backward, on a kernel that Kernels or Pick returned. The call must
// have had the machine to itself and must not have been the first one. The error
// is a *flashkit.ProblemError if there is no such kernel, the problem is invalid
// or does not fit, or no time passed. On a frozen Dispatcher nothing happens.
func (d *Dispatcher) Learn(kernel string, p flashkit.Problem, took time.Duration) error {
	if err := p.Validate(); err != nil {
		return err
	}
	c := d.memory.candidate(kernel, p)
	switch {
	case c == nil:
		return &flashkit.ProblemError{Field: "kernel", Value: kernel, Reason: "is none that takes " + p.String()}
	case took <= 0:
		return &flashkit.ProblemError{Field: "took", Value: took.String(), Reason: "must be positive"}
	case !d.frozen:
		c.last.Store(int64(took))
		c.took(took, true)
	}
	return nil
}

// Frozen returns a Dispatcher that knows what d knows now and learns nothing
// more: the same problem then runs on the same kernel, call after call and, if
// both have loaded the same profile and nothing else, program after program.
func (d *Dispatcher) Frozen() *Dispatcher {
	c := *d
	c.frozen = true
	c.remember(newMemory(d.backends))
	for i := range d.memory.rates {
		for r := range d.memory.rates[i] {
			c.memory.rates[i][r].bits.Store(d.memory.rates[i][r].bits.Load())
		}
	}
	return &c
}

// Blank returns a Dispatcher that knows nothing but what kernels predict of
// themselves, neither from the table nor from a profile. It learns, if d does.
func (d *Dispatcher) Blank() *Dispatcher {
	c := *d
	c.remember(newMemory(d.backends))
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
