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

// Measurements are added to the machine's profile only if the profile's file exists. No command but
// flashrun calibrate creates this file.

// Learn passes the time of a call to dispatch.
func Learn(d *dispatch.Dispatcher, k flashkit.Kernel, p flashkit.Problem, took time.Duration) {
	if took > 0 && !p.Ragged { // predictions do not depend on sequence lengths, so the time of a ragged problem would mislead
		d.Learn(k.Name, p, took) // no error: d has the kernel and the problem is valid
	}
}

// Remember passes the times measured with host tensors to dispatch and saves the profile.
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

// SaveToProfile saves the times that d has learned to an existing, valid profile. It ignores write
// errors.
func SaveToProfile(d *dispatch.Dispatcher) {
	path, err := d.ProfilePath()
	if err != nil || d.ProfileErr() != nil {
		return
	}
	if _, err := os.Stat(path); !errors.Is(err, fs.ErrNotExist) {
		d.SaveProfile(path)
	}
}
