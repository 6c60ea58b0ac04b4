package bench

import (
	"fmt"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/machine"
)

// The rule for medians in tables, comparisons, regret and reports.
//
// A median counts if at least MinCalls calls were timed and the quartiles of their times differ by
// at most MaxSpread times the median. Any other median is in doubt. A median in doubt is printed
// with a mark, but is used in no headline and no ratio. Signs of a busy machine are reported once,
// in a sentence.
const (
	MinCalls  = 5
	MaxSpread = .2
)

// doubtOf returns the reason that a median is in doubt, or "".
func doubtOf(calls int, median, p25, p75 float64) string {
	switch spread := (p75 - p25) / median; {
	case calls == 1:
		return "1 call"
	case calls < MinCalls:
		return fmt.Sprintf("%d calls", calls)
	case !(spread > MaxSpread): // NaN if all times are 0, below the clock's resolution
		return ""
	case spread > 10:
		return "quartiles over 1000% apart"
	default:
		return fmt.Sprintf("quartiles %.0f%% apart", 100*spread)
	}
}

// wide reports whether the median is in doubt because the calls differ, not because there are too
// few calls.
func (x *Result) wide() bool { return x.Doubt != "" && x.Calls >= MinCalls }

// Judge sets the field Doubt of each result, and the field Busy of r.
func (r *Results) Judge() {
	for i := range r.Results {
		r.Results[i].judge()
	}
	r.Busy = r.busyText()
}

func (x *Result) judge() {
	p25, p75 := x.P25, x.P75
	if p25 == 0 && p75 == 0 { // older files lack quartiles: quartiles of a normal distribution span half of p10 to p90
		p25, p75 = x.Seconds-(x.P90-x.P10)/4, x.Seconds+(x.P90-x.P10)/4
	}
	x.Doubt = doubtOf(x.Calls, x.Seconds, p25, p75)
}

// Doubtful returns the number of results in doubt.
func (r *Results) Doubtful() (n int) {
	for _, x := range r.Results {
		if x.Doubt != "" {
			n++
		}
	}
	return n
}

// Thresholds for the signs of a busy machine.
const (
	freeShare = .9  // less than this share of usable processors is free of other programs
	mostSteal = .02 // more than this share of time is stolen by the hypervisor
	wideShare = .25 // more than this share of the cases with enough calls has a wide spread
)

// loadSigns returns signs of a busy machine, given the load. Kernels may use procs processors.
func loadSigns(l *machine.Load, procs int) (signs []string) {
	if l == nil {
		return nil
	}
	if float64(l.CPUs)-l.Others < freeShare*float64(min(procs, l.CPUs)) {
		signs = append(signs, fmt.Sprintf("other programs used %.1f of its %d processors", min(l.Others, float64(l.CPUs)), l.CPUs))
	}
	if l.Steal > mostSteal {
		signs = append(signs, fmt.Sprintf("its hypervisor gave %.0f%% of its time to others", 100*min(l.Steal, 1)))
	}
	return signs
}

// spreadSigns returns a sign of a busy machine if more than wideShare of the judged cases are wide:
// their calls differ widely.
func spreadSigns(wide, judged int) (signs []string) {
	if float64(wide) > wideShare*float64(judged) {
		signs = []string{fmt.Sprintf("calls of %d of %d cases differ widely", wide, judged)}
	}
	return signs
}

// busySentence joins the signs of a busy machine into a sentence. It returns "" if there are no
// signs.
func busySentence(signs []string) string {
	if len(signs) == 0 {
		return ""
	}
	return "The machine was busy: " + strings.Join(signs, "; ") + "."
}

// busyText returns a sentence with the signs of a busy machine, or "".
func (r *Results) busyText() string {
	signs := loadSigns(r.Load, r.Machine.GOMAXPROCS)
	wide, judged, beyond := 0, 0, 0
	for i := range r.Results {
		x := &r.Results[i]
		if x.Calls >= MinCalls {
			judged++
		}
		if x.wide() {
			wide++
		}
		if x.beyond(r.Limits) {
			beyond++
		}
	}
	signs = append(signs, spreadSigns(wide, judged)...)
	if beyond > 0 {
		signs = append(signs, fmt.Sprintf("rates of %d of %d cases exceed the limits", beyond, len(r.Results)))
	}
	return busySentence(signs)
}

// beyond reports whether the kernel's rate exceeds the machine's measured limit.
func (x *Result) beyond(limits []machine.Limit) bool {
	p, err := flashkit.ParseProblem(x.Problem)
	most, _ := machine.Most(limits, x.Place(), p.DType)
	return err == nil && x.Doubt == "" && most > 0 && x.GFLOPS > most
}
