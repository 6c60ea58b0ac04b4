package bench

import (
	"runtime"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// A Measurement holds the times of a kernel on a problem.
type Measurement struct {
	Kernel flashkit.Kernel
	Reason string        // reason for choosing this kernel
	Median time.Duration // of the timed calls
	Calls  int           // timed calls
	Bytes  int64         // host allocation of the first call: workspace, without inputs and outputs
}

// Without --repeat, Run stops after this time or number of calls.
const (
	enoughTime  = time.Second
	enoughCalls = 100
)

// Affordable returns an error if the kernel's workspace exceeds free memory.
func (m *Measurement) Affordable(p flashkit.Problem) error {
	if k := m.Kernel; k.Needs != nil {
		return machine.Affordable("the arrays of "+k.Name+" for "+p.String(), k.Needs(p.Ask(k.Pass)).Host)
	}
	return nil
}

// Run calls the kernel once to warm up, then repeat times. If repeat is 0, Run makes timed calls
// until enoughTime or enoughCalls is reached. A first call that takes longer than enoughTime is
// then the only timed call.
func (m *Measurement) Run(p flashkit.Problem, repeat int, show *terminal.Progress, call func(flashkit.Kernel) error) (err error) {
	show.Start(m.Kernel.Name, m.Kernel.Cost(p.Ask(m.Kernel.Pass)))
	var first time.Duration
	m.Bytes, err = allocated(func() (err error) {
		first, err = timed(func() error { return call(m.Kernel) })
		return err
	})
	if err != nil {
		return err
	}
	var times []time.Duration
	if repeat == 0 && first > enoughTime {
		times = append(times, first)
	}
	for total := time.Duration(0); len(times) < repeat || repeat == 0 && first <= enoughTime && total < enoughTime && len(times) < enoughCalls; {
		t, err := timed(func() error { return call(m.Kernel) })
		if err != nil {
			return err
		}
		times = append(times, t)
		total += t
		show.CountCalls(len(times), repeat)
	}
	m.Median, m.Calls = Median(times), len(times)
	return nil
}

// allocated returns the bytes that f allocates in host memory.
func allocated(f func() error) (int64, error) {
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	err := f()
	runtime.ReadMemStats(&after)
	return int64(after.TotalAlloc - before.TotalAlloc), err
}

func timed(f func() error) (time.Duration, error) {
	start := time.Now()
	err := f()
	return time.Since(start), err
}

// ReasonFor returns the reason for dispatch's choice.
func ReasonFor(d *dispatch.Dispatcher, p flashkit.Problem, s flashkit.Pass) string {
	verdicts, err := d.Explain(p, s)
	if err != nil {
		return ""
	}
	for _, v := range verdicts {
		if v.Chosen {
			return v.Reason
		}
	}
	return ""
}
