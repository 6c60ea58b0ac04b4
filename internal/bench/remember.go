package bench

import (
	"errors"
	"io/fs"
	"os"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/machine"
)

// What flashrun measures is added to the profile of the machine, if flashrun
// calibrate has made one: nobody gets a file that he has not asked for.

// Learn tells dispatch the time of a call.
func Learn(d *dispatch.Dispatcher, k flashkit.Kernel, p flashkit.Problem, took time.Duration) {
	if took > 0 && !p.Ragged { // whose lengths the prediction does not know
		d.Learn(k.Name, p, took) // it knows the kernel and the problem
	}
}

// Remember tells dispatch what was measured with host tensors.
func (b *Run) Remember() {
	for _, r := range b.Results.Results {
		p, err := flashkit.ParseProblem(r.Problem)
		for _, k := range b.kernels {
			if err == nil && k.Name == r.Kernel && r.Memory == machine.Host {
				Learn(b.Dispatch, k, p, time.Duration(r.Seconds*1e9))
			}
		}
	}
	SaveToProfile(b.Dispatch)
}

// SaveToProfile writes what d knows to the profile, if there is one that could be
// read. That it cannot be written is no failure of what was asked for.
func SaveToProfile(d *dispatch.Dispatcher) {
	path, err := d.ProfilePath()
	if err != nil || d.ProfileErr() != nil {
		return
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		d.SaveProfile(path)
	}
}
