package bench

import (
	"bufio"
	"cmp"
	"context"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// regretForward and regretBoth name the problems of RegretGrid, from decode to long sequences.
// RegretGrid has these problems in every type.
var (
	regretForward = []string{
		"b1-h8-g8-n1-m100-d64-f32",
		"b1-h32-g8-n1-m3000-d128-f32",
		"b8-h16-g2-n1-m777-d64-f32",
		"b1-h8-g2-n1-m20000-d128-f32",
		"b1-h8-g2-n5-m1500-d96-f32-causal",
		"b1-h16-g16-n4-m350-d80-f32-causal",
		"b1-h1-g1-n3-m5-d16-f32",
	}
	regretBoth = []string{
		"b4-h8-g8-n24-m600-d64-f32-causal",
		"b64-h12-g12-n20-m20-d32-f32",
		"b16-h8-g8-n50-m50-d64-f32-causal",
		"b1-h12-g12-n121-m121-d32-f32",
		"b2-h6-g6-n200-m200-d80-f32-causal",
		"b1-h3-g3-n300-m300-d256-f32",
		"b1-h8-g2-n700-m700-d64-f32-causal",
		"b1-h4-g4-n1000-m1000-d128-f32",
		"b1-h2-g1-n1536-m1536-d64-f32-window200.0",
		"b1-h1-g1-n2500-m2500-d64-f32-causal",
		"b1-h2-g2-n6000-m6000-d64-f32-causal",
	}
)

// RegretGrid returns the problems on which regret is measured. Regret is the time of dispatch's
// choices divided by the time of the fastest kernels.
func RegretGrid() []Heat {
	return append(heats(regretForward, flashkit.PassForward), heats(regretBoth, flashkit.PassForward, flashkit.PassBackward)...)
}

// A RegretReport is the regret on a list of problems. It prints as JSON and as a table.
type RegretReport struct {
	Format      int            `json:"format"`
	Interrupted bool           `json:"interrupted"`
	Machine     machine.Info   `json:"machine"`
	Busy        string         `json:"busy,omitempty"`
	Sum         float64        `json:"sum_ratio"`      // total time of the choices over total time of the fastest kernels
	Mean        float64        `json:"geometric_mean"` // geometric mean of the ratios
	Worst       float64        `json:"worst_ratio"`
	Problems    []regretResult `json:"problems"`
	Failures    []CaseError    `json:"failures,omitempty"`
}

// A regretResult is the regret on one pass of a problem.
type regretResult struct {
	Problem string        `json:"problem"`
	Pass    string        `json:"pass"`
	Chosen  string        `json:"chosen"`
	Best    string        `json:"best"`
	Ratio   float64       `json:"ratio,omitempty"` // time of the choice over the time of the best kernel; 0 if a median is in doubt
	Doubt   string        `json:"doubt,omitempty"` // the reason for the doubt
	Kernels []regretTimes `json:"kernels"`         // in order of predicted time
}

type regretTimes struct {
	Kernel    string  `json:"kernel"`
	Predicted float64 `json:"predicted_seconds"`
	Seconds   float64 `json:"seconds,omitempty"` // median
	Calls     int     `json:"calls"`
	Doubt     string  `json:"doubt,omitempty"` // reason if the median is in doubt
	Note      string  `json:"note,omitempty"`
}

// RegretTime is the default time per kernel. If the regret on a problem is above doubtful, the
// problem's kernels are measured up to Looks times more. The medians then cover all calls.
const (
	RegretTime = 60 * time.Millisecond
	doubtful   = 1.15
	Looks      = 3
)

// Regret races the kernels on each problem, each kernel for about the time per. Dispatch's choice
// depends on predictions only: times of this race do not change the choice.
func (b *Run) Regret(ctx context.Context, list []Heat, per time.Duration, show *terminal.Progress) (*RegretReport, error) {
	report := &RegretReport{Format: Format, Machine: machine.Describe(b.Dispatch, b.gpu)}
	r := &race{dispatch: b.Dispatch.Frozen(), kernels: b.kernels, slice: per / raceRounds, rounds: raceRounds, order: b.order}
	load := machine.NewLoadMeter()
	ended := r.each(ctx, list, show, func(data *input.Tensors, s flashkit.Pass, racers []*racer) error {
		for _, k := range racers {
			if k.err != nil {
				report.Failures = append(report.Failures, CaseError{data.Problem.String(), s.String(), k.kernel.Name, k.err.Error()})
			}
		}
		x := newRegret(data.Problem, s, racers)
		for look := 0; x.Ratio > doubtful && look < Looks; look++ {
			if err := r.turns(ctx, data, racers, 2*r.rounds); err != nil {
				return err
			}
			x = newRegret(data.Problem, s, racers)
		}
		x, err := r.settle(ctx, data, s, racers)
		if err != nil {
			return err
		}
		if x.Ratio > 0 || x.Doubt != "" {
			report.Problems = append(report.Problems, x)
		}
		return nil
	})
	report.sum(load.Load())
	if report.Interrupted = ended != nil; report.Interrupted {
		return report, &Unfinished{fmt.Sprintf("%d passes of problems", len(report.Problems)), ended}
	}
	if n := len(report.Failures); n > 0 {
		return report, fmt.Errorf("%d calls failed, the first one was %s on %s: %s", n, report.Failures[0].Kernel, report.Failures[0].Problem, report.Failures[0].Error)
	}
	return report, nil
}

// settle calls the kernel that dispatch chose, and the fastest kernel, until each of them has
// MinCalls calls. It returns the result. The result has no ratio if a median is still in doubt.
func (r *race) settle(ctx context.Context, data *input.Tensors, s flashkit.Pass, racers []*racer) (regretResult, error) {
	for {
		x, more := newRegret(data.Problem, s, racers), false
		for _, k := range racers {
			if (k.kernel.Name == x.Chosen || k.kernel.Name == x.Best) && k.err == nil && len(k.times) < MinCalls {
				more = true
				if _, err := k.call(ctx, data); err != nil {
					return x, err
				}
			}
		}
		if !more {
			if x.Doubt != "" {
				x.Ratio = 0
			}
			return x, nil
		}
	}
}

// newRegret summarizes a race. racers[0] has the shortest prediction and is dispatch's choice. If
// this kernel failed, the result has no ratio.
func newRegret(p flashkit.Problem, s flashkit.Pass, racers []*racer) regretResult {
	x := regretResult{Problem: p.String(), Pass: s.String()}
	best, took := 0.0, 0.0
	for i, r := range racers {
		t := r.seconds()
		x.Kernels = append(x.Kernels, regretTimes{r.kernel.Name, r.predicted.Seconds(), t, len(r.times), r.doubt(), r.note})
		if t > 0 && (best == 0 || t < best) {
			best, x.Best = t, r.kernel.Name
		}
		if i == 0 {
			x.Chosen, took = r.kernel.Name, t
		}
	}
	if best > 0 {
		x.Ratio = took / best
	}
	for _, k := range x.Kernels {
		if x.Ratio > 0 && k.Doubt != "" && (k.Kernel == x.Chosen || k.Kernel == x.Best) {
			x.Doubt = k.Kernel + ": " + k.Doubt
		}
	}
	return x
}

// doubt returns the reason that the racer's median is in doubt, or "".
func (x *racer) doubt() string {
	if len(x.times) == 0 {
		return ""
	}
	var sorted []float64
	for _, t := range x.times {
		sorted = append(sorted, t.Seconds())
	}
	slices.Sort(sorted)
	return doubtOf(len(sorted), Quantile(sorted, .5), Quantile(sorted, .25), Quantile(sorted, .75))
}

// Times returns the times of the choice and of the best kernel.
func (x *regretResult) Times() (chosen, best float64) {
	for _, k := range x.Kernels {
		if k.Kernel == x.Chosen {
			chosen = k.Seconds
		}
		if k.Kernel == x.Best {
			best = k.Seconds
		}
	}
	return chosen, best
}

// sum computes the totals over the problems that have a ratio. It also sets Busy.
func (r *RegretReport) sum(load *machine.Load) {
	var chosen, best float64
	var ratios []float64
	for _, x := range r.Problems {
		if x.Doubt != "" {
			continue
		}
		c, b := x.Times()
		chosen, best, ratios, r.Worst = chosen+c, best+b, append(ratios, x.Ratio), max(r.Worst, x.Ratio)
	}
	if best > 0 {
		r.Sum, r.Mean = chosen/best, GeometricMean(ratios)
	}
	r.Busy = busySentence(append(loadSigns(load, r.Machine.GOMAXPROCS), spreadSigns(len(r.Problems)-len(ratios), len(r.Problems))...))
}

// Doubtful returns the number of problems without a ratio.
func (r *RegretReport) Doubtful() (n int) {
	for _, x := range r.Problems {
		if x.Doubt != "" {
			n++
		}
	}
	return n
}

// WriteTable prints every problem in order of ratio, and then the totals. The largest ratios are
// thus printed next to the totals.
func (r *RegretReport) WriteTable(w io.Writer) error {
	out := bufio.NewWriter(terminal.Writer(w))
	fmt.Fprintf(out, "machine: %s\n\n", r.Machine)
	rows := [][]string{{"pass", "problem", "dispatch", "best", "", "", "ratio"}}
	list := slices.Clone(r.Problems)
	slices.SortStableFunc(list, func(a, b regretResult) int { return cmp.Compare(a.Ratio, b.Ratio) })
	for _, x := range list {
		chosen, best := x.Times()
		ratio := fmt.Sprintf("%.3f", x.Ratio)
		if x.Doubt != "" {
			ratio = "? " + x.Doubt
		}
		rows = append(rows, []string{x.Pass, x.Problem, x.Chosen, x.Best, terminal.Seconds(chosen), terminal.Seconds(best), ratio})
	}
	terminal.WriteTable(out, rows, 4)
	if r.Interrupted {
		fmt.Fprintln(out, "interrupted: there is more to measure")
	}
	fmt.Fprintln(out)
	n := r.Doubtful()
	if n > 0 {
		fmt.Fprintf(out, "? %d of %d problems have no ratio: a median is in doubt\n", n, len(r.Problems))
	}
	if r.Busy != "" {
		fmt.Fprintln(out, r.Busy)
	}
	if n < len(r.Problems) {
		fmt.Fprintf(out, "%d problems: dispatch's choices take %.4f times what the best kernels take, the geometric mean %.4f, the worst single one %.3f times\n", len(r.Problems)-n, r.Sum, r.Mean, r.Worst)
	}
	return out.Flush()
}
