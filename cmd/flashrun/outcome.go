package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

const sampleBound = 1e-5

// An outcome is the result of flashrun run. The JSON names must not change, because programs read
// them.
type outcome struct {
	Problem        string             `json:"problem"`
	Pass           string             `json:"pass"`
	Backend        string             `json:"backend"`
	Kernel         string             `json:"kernel"`
	Reason         string             `json:"reason"`
	Memory         string             `json:"memory,omitempty"` // "device" if the tensors were in a GPU's memory
	Seconds        float64            `json:"seconds"`          // median time of a call
	Calls          int                `json:"calls"`            // number of timed calls
	GFLOPS         float64            `json:"gflops"`
	ExtraBytes     int64              `json:"extra_bytes"`
	Device         *bench.DeviceBytes `json:"device_bytes,omitempty"`
	ForwardKernel  string             `json:"forward_kernel,omitempty"`
	ForwardSeconds float64            `json:"forward_seconds,omitempty"`
	MaxAbsError    *input.Distance    `json:"max_abs_error,omitempty"`   // largest distance from the oracle's results
	StoredMaxDiff  *input.Distance    `json:"stored_max_diff,omitempty"` // largest distance of o from the sample's stored output
	Source         string             `json:"source"`

	checked []input.CheckedOutput
	nans    string // description of NaN in the input
}

func (r *outcome) set(c *flashkit.Call, m bench.Measurement) {
	pass := m.Kernel.Pass
	r.Pass, r.Kernel, r.Reason = pass.String(), m.Kernel.Name, m.Reason
	r.Backend = bench.BackendOf(m.Kernel.Name)
	r.Seconds, r.Calls, r.ExtraBytes = m.Median.Seconds(), m.Calls, max(r.ExtraBytes, m.Bytes)
	r.Device = bench.DeviceBytesOf(c.Problem, m.Kernel)
	if r.Seconds > 0 {
		r.GFLOPS = c.FLOPs() / r.Seconds / 1e9
	}
}

// setChecked stores the differences between the outputs and the oracle, the float64 reference.
func (r *outcome) setChecked(list []input.CheckedOutput) {
	r.checked, r.MaxAbsError = list, new(input.Distance)
	for _, c := range list {
		*r.MaxAbsError = max(*r.MaxAbsError, c.Error) // max propagates NaN
	}
}

// verdict returns an error if an output and the oracle differ in the positions of NaN or
// infinities. It also returns an error if o differs from the stored output by more than
// sampleBound.
func (r *outcome) verdict() error {
	for _, c := range r.checked {
		if c.Wrong != "" {
			return errors.New(c.Wrong)
		}
	}
	if r.StoredMaxDiff != nil && !(*r.StoredMaxDiff <= sampleBound) {
		return fmt.Errorf("o differs by %g from the stored output; at most %g is allowed", *r.StoredMaxDiff, sampleBound)
	}
	return nil
}

func (r *outcome) writeJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

func (r *outcome) writeText(w io.Writer, out string) error {
	t := tabwriter.NewWriter(terminal.Writer(w), 0, 8, 2, ' ', 0)
	fmt.Fprintf(t, "problem\t%s\n", r.Problem)
	fmt.Fprintf(t, "input\t%s\n", r.Source)
	if r.ForwardKernel != "" {
		fmt.Fprintf(t, "forward\t%s, %s\n", r.ForwardKernel, terminal.Seconds(r.ForwardSeconds))
	}
	fmt.Fprintf(t, "kernel\t%s: %s\n", r.Kernel, r.Reason)
	fmt.Fprintf(t, "time\t%s, median of %d, %.2f GFLOP/s\n", terminal.Seconds(r.Seconds), r.Calls, r.GFLOPS)
	fmt.Fprintf(t, "memory\t%s besides input and output\n", terminal.Bytes(float64(r.ExtraBytes)))
	if r.Device != nil {
		fmt.Fprintf(t, "device\t%s of tensors, %s besides them\n", terminal.Bytes(float64(r.Device.Tensors)), terminal.Bytes(float64(r.Device.Workspace)))
	}
	for _, c := range r.checked {
		fmt.Fprintf(t, "%s\tmaximum error %.3g against the float64 oracle\n", c.Name, c.Error)
	}
	if r.StoredMaxDiff != nil {
		fmt.Fprintf(t, "check\tmaximum difference %.3g from the stored independent output (at most %g)\n", *r.StoredMaxDiff, sampleBound)
	}
	if out != "" {
		fmt.Fprintf(t, "output\t%s\n", out)
	}
	return t.Flush()
}
