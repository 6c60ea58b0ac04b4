package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"text/tabwriter"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
)

// sampleBound is how far the output on the embedded sample may be from the
// stored one.
const sampleBound = 1e-5

// An outcome is what flashrun run has to say. The JSON names are stable.
type outcome struct {
	Problem        string    `json:"problem"`
	Pass           string    `json:"pass"`
	Backend        string    `json:"backend"`
	Kernel         string    `json:"kernel"`
	Reason         string    `json:"reason"`
	Seconds        float64   `json:"seconds"` // median
	Calls          int       `json:"calls"`   // how many were timed
	GFLOPS         float64   `json:"gflops"`
	ExtraBytes     int64     `json:"extra_bytes"`
	Device         *device   `json:"device_bytes,omitempty"`
	ForwardKernel  string    `json:"forward_kernel,omitempty"`
	ForwardSeconds float64   `json:"forward_seconds,omitempty"`
	MaxAbsError    *distance `json:"max_abs_error,omitempty"`   // against the oracle
	StoredMaxDiff  *distance `json:"stored_max_diff,omitempty"` // of o against the sample's stored output
	Source         string    `json:"source"`

	checked []checkedOutput
}

// A device is the bytes of a device's memory that a call takes.
type device struct {
	Tensors   int64 `json:"tensors"`
	Workspace int64 `json:"workspace"`
}

// deviceOf returns what a call of k takes there, nil for the kernels of the host.
func deviceOf(p flashkit.Problem, k flashkit.Kernel) *device {
	if k.Needs == nil {
		return nil
	}
	m := k.Needs(p.Ask(k.Pass))
	if m.Tensors == 0 && m.Device == 0 {
		return nil
	}
	return &device{int64(m.Tensors), int64(m.Device)}
}

type checkedOutput struct {
	name  string
	error distance
	wrong string // where it is NaN or infinite, or should be; "" for nowhere
}

// A distance is the largest difference between two arrays: NaN, in JSON null,
// if one of them holds a NaN or an infinity without its twin.
type distance float64

// MarshalJSON implements json.Marshaler.
func (d distance) MarshalJSON() ([]byte, error) {
	if math.IsNaN(float64(d)) {
		return []byte("null"), nil
	}
	return json.Marshal(float64(d))
}

// set fills in the measurement of one pass.
func (r *outcome) set(p flashkit.Problem, m measurement) {
	pass := m.kernel.Pass
	r.Pass, r.Kernel, r.Reason = pass.String(), m.kernel.Name, m.reason
	r.Backend = backendOf(m.kernel.Name)
	r.Seconds, r.Calls, r.ExtraBytes = m.median.Seconds(), m.calls, max(r.ExtraBytes, m.bytes)
	r.Device = deviceOf(p, m.kernel)
	if r.Seconds > 0 {
		r.GFLOPS = p.FLOPs(pass) / r.Seconds / 1e9
	}
}

// oracleLimit is the most memory that --check may take for its matrices.
const oracleLimit = 4 << 30

func checkable(p flashkit.Problem, backward bool) error {
	matrices := 2.0
	if backward {
		matrices = 6
	}
	bytes := matrices * 8 * float64(p.QLen) * float64(p.KVLen)
	if bytes > oracleLimit {
		return fmt.Errorf("--check: the oracle writes out whole matrices, %s for %s; at most %s is allowed", formatBytes(bytes), p, formatBytes(oracleLimit))
	}
	const copies = 4 // of every element: as float64, by head, transposed, and what appending leaves behind
	bytes += copies * 8 * tensorBytes(p, backward) / float64(p.DType.Size())
	if err := affordable("the oracle's arrays for "+p.String(), bytes); err != nil {
		return fmt.Errorf("--check: %w", err)
	}
	return nil
}

func (r *outcome) checkAgainstOracle(in *input, out *outputs) {
	o := oracle.Inputs{Q: in.q.dense(in.layout), K: in.k.dense(in.layout), V: in.v.dense(in.layout)}
	want := map[string][]float64{}
	want["o"], want["lse"] = oracle.Forward(in.problem, o)
	if out.dq != nil {
		o.DO = in.do.dense(in.layout)
		g := oracle.Backward(in.problem, o)
		want["dq"], want["dk"], want["dv"] = g.DQ, g.DK, g.DV
	}
	worst := distance(0)
	out.named(func(name string, a *array) {
		c := compareArrays(name, a, in.layout, want[name])
		r.checked = append(r.checked, c)
		worst = max(worst, c.error) // NaN wins
	})
	r.MaxAbsError = &worst
}

func (r *outcome) checkAgainstStored(in *input, out *outputs) {
	c := compareArrays("o", out.o, in.layout, in.expected.dense(in.layout))
	r.StoredMaxDiff = &c.error
}

// compareArrays returns the distance of an output from what it should be, in the order
// [batch, heads, rows, elements]. A NaN, or an infinity of the same sign, is equal to its
// twin, and an infinity to what the output's type has no other number for.
func compareArrays(name string, a *array, l layout, want []float64) checkedOutput {
	c := checkedOutput{name: name}
	worst, one := 0.0, newArray(a.dtype, [4]int{1, 1, 1, 1})
	special := func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) }
	for i, got := range a.dense(l) {
		one.set(0, float32(want[i]))
		switch rounded := float64(one.at(0)); {
		case got == want[i] || math.IsNaN(got) && math.IsNaN(rounded) || math.IsInf(got, 0) && got == rounded:
		case !special(got) && !special(rounded):
			worst = max(worst, math.Abs(got-want[i]))
		case c.wrong == "":
			h, n, d := a.shape[1], a.shape[2], a.shape[3]
			c.wrong = fmt.Sprintf("%s%v is %.6g where the oracle has %.6g", name, [4]int{i / d / n / h, i / d / n % h, i / d % n, i % d}, got, want[i])
		}
	}
	if c.error = distance(worst); c.wrong != "" {
		c.error = distance(math.NaN())
	}
	return c
}

// verdict returns an error if what was computed is wrong beyond doubt.
func (r *outcome) verdict() error {
	for _, c := range r.checked {
		if c.wrong != "" {
			return errors.New(c.wrong)
		}
	}
	if r.StoredMaxDiff != nil && !(*r.StoredMaxDiff <= sampleBound) {
		return fmt.Errorf("o differs by %g from the stored output; at most %g is allowed", *r.StoredMaxDiff, sampleBound)
	}
	return nil
}

func (r *outcome) writeJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

func (r *outcome) writeText(w io.Writer, out string) error {
	t := tabwriter.NewWriter(text(w), 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "problem\t%s\n", r.Problem)
	fmt.Fprintf(t, "input\t%s\n", r.Source)
	if r.ForwardKernel != "" {
		fmt.Fprintf(t, "forward\t%s, %s\n", r.ForwardKernel, formatSeconds(r.ForwardSeconds))
	}
	fmt.Fprintf(t, "kernel\t%s: %s\n", r.Kernel, r.Reason)
	fmt.Fprintf(t, "time\t%s, median of %d, %.2f GFLOP/s\n", formatSeconds(r.Seconds), r.Calls, r.GFLOPS)
	fmt.Fprintf(t, "memory\t%s besides input and output\n", formatBytes(float64(r.ExtraBytes)))
	if r.Device != nil {
		fmt.Fprintf(t, "device\t%s of tensors, %s besides them\n", formatBytes(float64(r.Device.Tensors)), formatBytes(float64(r.Device.Workspace)))
	}
	for _, c := range r.checked {
		fmt.Fprintf(t, "%s\tmaximum error %.3g against the float64 oracle\n", c.name, c.error)
	}
	if r.StoredMaxDiff != nil {
		fmt.Fprintf(t, "check\tmaximum difference %.3g from the stored independent output (at most %g)\n", *r.StoredMaxDiff, sampleBound)
	}
	if out != "" {
		fmt.Fprintf(t, "output\t%s\n", out)
	}
	return t.Flush()
}

func formatSeconds(s float64) string {
	d := time.Duration(s * 1e9)
	switch {
	case d >= time.Second:
		return d.Round(time.Millisecond).String()
	case d >= time.Millisecond:
		return d.Round(time.Microsecond).String()
	}
	return d.Round(10 * time.Nanosecond).String()
}

func formatBytes(b float64) string {
	for _, unit := range []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"} {
		if b < 1024 {
			if unit == "B" {
				return fmt.Sprintf("%.0f B", b)
			}
			return fmt.Sprintf("%.1f %s", b, unit)
		}
		b /= 1024
	}
	return fmt.Sprintf("%.1f EiB", b)
}
