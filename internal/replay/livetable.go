package replay

import (
	"bufio"
	"cmp"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/flashkit-go/flashkit/internal/terminal"
)

// WriteTable prints a line for each trace.
func (r *Report) WriteTable(w io.Writer) error {
	out := bufio.NewWriter(terminal.Writer(w))
	fmt.Fprintf(out, "machine: %s\n\n", r.Machine)
	rows := [][]string{{"trace", "kernels that ran", "calls", "runs", "live regret", "worst run", "raw", "worst call", "steady"}}
	for _, x := range r.Traces {
		rows = append(rows, []string{x.Trace, mostCalled(x.Kernels), strconv.Itoa(x.Calls), strconv.Itoa(len(x.Runs)),
			ratio(x.Regret), ratio(x.Worst), ratio(x.Raw), x.WorstCall.ratio(), x.WorstSteady.ratio()})
	}
	terminal.WriteTable(out, rows, 2)
	r.writeEnd(out)
	if len(r.Traces) > 0 {
		fmt.Fprintf(out, "\nthe geometric mean of live regret is %.3f, the worst trace is %s with %.3f, the worst run one of %s with %.3f\n",
			r.Mean, r.WorstTrace, r.Worst, r.WorstRun.Trace, r.WorstRun.Regret)
	}
	if c := r.WorstSteady; c != nil {
		fmt.Fprintf(out, "the worst steady choice takes %.3f times what %s takes: %s in %s, %s pass of %s, %d calls\n", c.Ratio, c.Best, c.Kernel, c.Trace, c.Pass, c.Problem, c.Calls)
	}
	return out.Flush()
}

// WriteGroups prints the groups of each trace.
func (r *Report) WriteGroups(w io.Writer) error {
	out := bufio.NewWriter(terminal.Writer(w))
	fmt.Fprintf(out, "machine: %s\n", r.Machine)
	for _, x := range r.Traces {
		for i, run := range x.Runs {
			fmt.Fprintf(out, "\ntrace %s, %d calls", x.Trace, x.Calls)
			if len(x.Runs) > 1 {
				fmt.Fprintf(out, ", run %d of %d", i+1, len(x.Runs))
			}
			fmt.Fprintln(out)
			run.writeGroups(out)
		}
	}
	r.writeEnd(out)
	return out.Flush()
}

func (r *Result) writeGroups(out io.Writer) {
	rows := [][]string{{"pass", "problem", "kernels that ran", "best", "calls", "time", "first call", "ratio"}}
	for _, g := range r.Groups {
		calls := map[string]int{}
		for _, k := range g.Kernels {
			if k.Calls > 0 {
				calls[k.Kernel] = k.Calls
			}
		}
		rows = append(rows, []string{g.Pass, g.Problem, mostCalled(calls), g.Best, strconv.Itoa(g.Calls),
			terminal.Seconds(g.Seconds), terminal.Seconds(g.First), ratio(g.Ratio)})
	}
	terminal.WriteTable(out, rows, 4)
	fmt.Fprintf(out, "live regret %.3f: %s on the kernels that ran and %s in dispatch, %s on the best ones; raw %.3f\n",
		r.Regret, terminal.Seconds(r.Chosen), terminal.Seconds(r.Overhead), terminal.Seconds(r.Best), r.Raw)
	fmt.Fprintf(out, "after the first %d calls: worst call %s, worst steady choice %s\n", firstCalls, r.WorstCall.ratio(), r.WorstSteady.ratio())
}

func (r *Report) writeEnd(out io.Writer) {
	for _, x := range r.Failures {
		fmt.Fprintf(out, "failed: %s: %s\n", x.Trace, x.Error)
	}
	if r.Interrupted {
		fmt.Fprintln(out, "interrupted: there is more to measure")
	}
}

func ratio(x float64) string { return strconv.FormatFloat(x, 'f', 3, 64) }

// ratio returns the ratio as text, or "none" for nil.
func (c *lastingChoice) ratio() string {
	if c == nil {
		return "none"
	}
	return ratio(c.Ratio)
}

// mostCalled lists kernels with their numbers of calls. The kernel with the most calls comes first.
func mostCalled(calls map[string]int) string {
	var list []string
	for _, name := range slices.SortedFunc(maps.Keys(calls), func(a, b string) int { return cmp.Or(cmp.Compare(calls[b], calls[a]), cmp.Compare(a, b)) }) {
		list = append(list, fmt.Sprintf("%s %d", name, calls[name]))
	}
	return strings.Join(list, ", ")
}
