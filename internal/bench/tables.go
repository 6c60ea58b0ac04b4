package bench

import (
	"bufio"
	"encoding/csv"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// WriteTable prints results as text.
func (r *Results) WriteTable(w io.Writer) error {
	out := bufio.NewWriter(terminal.Writer(w))
	fmt.Fprintf(out, "machine: %s\n", r.Machine)
	for _, l := range r.Limits {
		value := fmt.Sprintf("%.1f GFLOP/s", l.GFLOPS)
		if l.GFLOPS == 0 {
			value = fmt.Sprintf("%.1f GB/s", l.BytesPerSecond/1e9)
		}
		fmt.Fprintf(out, "limit of the %s, %s: %s (%s)\n", l.Memory, l.Name, value, l.How)
	}
	fmt.Fprintln(out)
	rows := [][]string{{"pass", "problem", "kernel", "memory", "median", "p10", "p90", "calls", "GFLOP/s", "of limit", "FLOP/B", "GB/s", "extra", "peak"}}
	besideNaive := slices.ContainsFunc(r.Results, func(x Result) bool { return x.Backend == Naive })
	for _, x := range r.Results {
		peak := "" // of interest only next to the baseline, which holds matrices
		if besideNaive {
			peak = terminal.Bytes(float64(x.PeakBytes))
		}
		kernel := x.Kernel
		if x.Chosen {
			kernel += " *"
		}
		median := terminal.Seconds(x.Seconds)
		if x.Doubt != "" {
			median = "? " + median
		}
		rows = append(rows, []string{x.Pass, x.Problem, kernel, notHost(x.Memory), median, terminal.Seconds(x.P10), terminal.Seconds(x.P90),
			strconv.Itoa(x.Calls), fmt.Sprintf("%.1f", x.GFLOPS), x.OfLimit(r.Limits), fmt.Sprintf("%.1f", x.Intensity),
			fmt.Sprintf("%.2f", x.BytesPerSecond/1e9), terminal.Bytes(x.Extra()), peak})
	}
	terminal.WriteTable(out, rows, 4)
	if n := r.Doubtful(); n > 0 {
		fmt.Fprintf(out, "? %d of %d medians are in doubt: fewer than %d calls, or quartiles more than %.0f%% of the median apart\n", n, len(r.Results), MinCalls, 100*MaxSpread)
	}
	if r.Busy != "" {
		fmt.Fprintln(out, r.Busy)
	}
	for _, x := range r.Skipped {
		fmt.Fprintf(out, "no kernel: %s, %s pass\n", x.Problem, x.Pass)
	}
	for _, x := range r.Failures {
		fmt.Fprintf(out, "failed: %s on %s: %s\n", x.Kernel, x.Problem, x.Error)
	}
	if r.Interrupted {
		fmt.Fprintln(out, "interrupted: there is more to measure")
	}
	if r.Comparison != nil {
		r.Comparison.writeTable(out, r.Machine)
	}
	return out.Flush()
}

// notHost returns memory, or "" for the host: tables drop a column whose cells are all empty.
func notHost(memory string) string { return strings.TrimPrefix(memory, machine.Host) }

// Extra returns the bytes allocated in host and device memory, without inputs and outputs.
func (x *Result) Extra() float64 {
	if x.Device == nil {
		return float64(x.ExtraBytes)
	}
	return float64(x.ExtraBytes + x.Device.Workspace)
}

// PeakOf returns the maximum bytes during a call: the call's tensors, their device copies, and
// Extra.
func (x *Result) PeakOf(p flashkit.Problem, s flashkit.Pass) float64 {
	bytes := p.Bytes(s) + x.Extra()
	if x.Device != nil && x.Memory == machine.Host {
		bytes += float64(x.Device.Tensors)
	}
	return bytes
}

// Place returns machine.Device for a kernel that runs on a GPU, even if the tensors are in host
// memory. For all other kernels it returns x.Memory.
func (x *Result) Place() string {
	if x.Device != nil {
		return machine.Device
	}
	return x.Memory
}

// OfLimit returns the rate as a percentage of the processor's limit. It returns "" if the limit was
// not measured, and "-" if the rate is in doubt.
func (x *Result) OfLimit(limits []machine.Limit) string {
	p, err := flashkit.ParseProblem(x.Problem)
	limit, _ := machine.Most(limits, x.Place(), p.DType)
	if err != nil || limit == 0 {
		return ""
	}
	if x.Doubt != "" {
		return "-"
	}
	return fmt.Sprintf("%.0f%%", 100*x.GFLOPS/limit)
}

func (c *comparison) writeTable(w io.Writer, now machine.Info) {
	fmt.Fprintf(w, "\ntime over that in %s; ~ where the ranges from p10 to p90 overlap, - where a median is in doubt\n", c.File)
	if then := c.Machine; then.CPU != now.CPU || then.GPU != now.GPU || then.GOMAXPROCS != now.GOMAXPROCS || then.Arch != now.Arch {
		fmt.Fprintf(w, "another machine: %s\n", terminal.Printable(then.String()))
	}
	rows := [][]string{{"pass", "problem", "kernel", "memory", "before", "now", "ratio"}}
	for _, p := range c.Pairs {
		ratio := fmt.Sprintf("%.3f", p.Ratio)
		switch {
		case p.Doubt != "":
			ratio = "-"
		case !p.Apart:
			ratio = "~ " + ratio
		}
		rows = append(rows, []string{p.Pass, p.Problem, p.Kernel, notHost(p.Memory), terminal.Seconds(p.Old), terminal.Seconds(p.New), ratio})
	}
	if len(c.Pairs) == 0 {
		fmt.Fprintln(w, "no case is in both")
		return
	}
	terminal.WriteTable(w, rows, 4)
	if c.Mean == nil {
		fmt.Fprintln(w, "no geometric mean: a median of every case is in doubt")
	} else {
		fmt.Fprintf(w, "geometric mean of %d: %.3f\n", c.Mean.Cases, c.Mean.Ratio)
	}
	if c.OnlyOld+c.OnlyNew > 0 {
		fmt.Fprintf(w, "not in both: %d before, %d now\n", c.OnlyOld, c.OnlyNew)
	}
}

var csvHeader = []string{"problem", "pass", "kernel", "backend", "memory", "chosen", "batch", "heads", "kv_heads", "q_len", "kv_len", "head_dim", "v_dim", "dtype",
	"calls", "seconds", "p10_seconds", "p90_seconds", "predicted_seconds", "gflops", "intensity", "bytes_per_second", "extra_bytes", "peak_bytes", "p25_seconds", "p75_seconds", "doubt"}

// WriteCSV prints a header and a line for each result.
func (r *Results) WriteCSV(w io.Writer) error {
	out := csv.NewWriter(w)
	out.Write(csvHeader) // Error returns the first write error
	number := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	for _, x := range r.Results {
		p, err := flashkit.ParseProblem(x.Problem)
		if err != nil {
			return err
		}
		row := []string{x.Problem, x.Pass, x.Kernel, x.Backend, x.Memory, strconv.FormatBool(x.Chosen)}
		for _, n := range []int{p.Batch, p.Heads, p.KVHeads, p.QLen, p.KVLen, p.Dim, p.VDim} {
			row = append(row, strconv.Itoa(n))
		}
		out.Write(append(row, input.TypesName(&p), strconv.Itoa(x.Calls), number(x.Seconds), number(x.P10), number(x.P90), number(x.Predicted),
			number(x.GFLOPS), number(x.Intensity), number(x.BytesPerSecond), strconv.FormatInt(x.ExtraBytes, 10), strconv.FormatInt(x.PeakBytes, 10), number(x.P25), number(x.P75), x.Doubt))
	}
	out.Flush()
	return out.Error()
}

// WriteBenchstat prints each round as a line of a Go benchmark. benchstat reads rounds as repeated
// runs.
func (r *Results) WriteBenchstat(w io.Writer) error {
	out := bufio.NewWriter(w)
	fmt.Fprintf(out, "goos: %s\ngoarch: %s\npkg: github.com/flashkit-go/flashkit/cmd/flashrun\n", r.Machine.OS, r.Machine.Arch)
	if r.Machine.CPU != "" {
		fmt.Fprintf(out, "cpu: %s\n", r.Machine.CPU)
	}
	if r.Interrupted {
		fmt.Fprintln(out, "interrupted: true")
	}
	for _, x := range r.Results {
		_, kernel, _ := strings.Cut(x.Kernel, "/")
		for _, seconds := range x.Rounds {
			fmt.Fprintf(out, "BenchmarkAttention/pass=%s/problem=%s/backend=%s/kernel=%s/memory=%s-%d\t%d\t%.1f ns/op\t%.2f GFLOP/s\n",
				x.Pass, x.Problem, x.Backend, kernel, x.Memory, r.Machine.GOMAXPROCS, max(1, x.Calls/len(x.Rounds)), seconds*1e9, x.GFLOPS*x.Seconds/seconds)
		}
	}
	return out.Flush()
}
