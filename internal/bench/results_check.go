package bench

import (
	"fmt"
	"slices"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/machine"
)

// check returns an error if a field has a value that flashrun bench never writes. The error names
// the first such field and its value.
func (r *Results) check() error {
	for i, l := range r.Limits {
		if err := l.Check(); err != nil {
			return fmt.Errorf("limits[%d].%w", i, err)
		}
	}
	if l := r.Load; l != nil && (l.Others < 0 || l.Steal < 0 || l.CPUs < 1) {
		return fmt.Errorf("load = %+v: must not be negative, of at least one processor", *l)
	}
	for i := range r.Results {
		if err := r.Results[i].check(); err != nil {
			return fmt.Errorf("results[%d].%w", i, err)
		}
	}
	return nil
}

func (x *Result) check() error {
	if _, err := flashkit.ParseProblem(x.Problem); err != nil {
		return fmt.Errorf("problem: %w", err)
	}
	backend := BackendOf(x.Kernel)
	switch {
	case x.Pass != flashkit.PassForward.String() && x.Pass != flashkit.PassBackward.String():
		return fmt.Errorf("pass = %.60q: must be forward or backward", x.Pass)
	case backend == "" || backend == x.Kernel:
		return fmt.Errorf("kernel = %.60q: must be a backend, a slash and a name", x.Kernel)
	case x.Backend != backend:
		return fmt.Errorf("backend = %.60q: must match kernel = %.60q", x.Backend, x.Kernel)
	case x.Memory != machine.Host && x.Memory != machine.Device:
		return fmt.Errorf("memory = %.60q: must be host or device", x.Memory)
	case x.Calls < 1:
		return fmt.Errorf("calls = %d: must be at least 1", x.Calls)
	case x.ExtraBytes < 0:
		return fmt.Errorf("extra_bytes = %d: must not be negative", x.ExtraBytes)
	case x.PeakBytes < 0:
		return fmt.Errorf("peak_bytes = %d: must not be negative", x.PeakBytes)
	case x.Device != nil && (x.Device.Tensors < 0 || x.Device.Workspace < 0):
		return fmt.Errorf("device_bytes = %+v: must not be negative", *x.Device)
	}
	for _, n := range []struct {
		name  string
		value float64
	}{{"seconds", x.Seconds}, {"p10_seconds", x.P10}, {"p25_seconds", x.P25}, {"p75_seconds", x.P75}, {"p90_seconds", x.P90}, {"gflops", x.GFLOPS}, {"intensity", x.Intensity}, {"bytes_per_second", x.BytesPerSecond}} {
		if n.value < 0 {
			return fmt.Errorf("%s = %g: must not be negative", n.name, n.value)
		}
	}
	return nil
}

// ReadFiles merges result files of one machine. If several files have the same case, the last of
// them counts.
func ReadFiles(paths []string) (all *Results, err error) {
	for _, path := range paths {
		r, err := ReadFile(path)
		switch {
		case err != nil:
			return nil, err
		case all == nil:
			all = r
			continue
		}
		if was, is := all.Machine.String(), r.Machine.String(); was != is {
			return nil, fmt.Errorf("%s: machine = %.300q: must match %s, %.300q", path, is, paths[0], was)
		}
		all.add(r)
		all.Judge()
	}
	return all, nil
}

func (r *Results) add(more *Results) {
	for _, l := range more.Limits {
		if !slices.ContainsFunc(r.Limits, func(m machine.Limit) bool { return m.Memory == l.Memory && m.Name == l.Name }) {
			r.Limits = append(r.Limits, l)
		}
	}
	for _, x := range more.Results {
		r.Results = append(slices.DeleteFunc(r.Results, func(y Result) bool {
			return y.Problem == x.Problem && y.Pass == x.Pass && y.Kernel == x.Kernel && y.Memory == x.Memory
		}), x)
	}
	if r.Load == nil || more.Load != nil && more.Load.Others > r.Load.Others {
		r.Load = more.Load
	}
	r.Failures = append(r.Failures, more.Failures...)
	r.Skipped = append(r.Skipped, more.Skipped...)
	r.Interrupted = r.Interrupted || more.Interrupted
}
