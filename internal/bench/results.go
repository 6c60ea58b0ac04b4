package bench

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
)

// Format is the version of the JSON. It increases if a field changes its meaning or disappears.
const Format = 1

// Results are the output of flashrun bench. The JSON names are stable.
type Results struct {
	Format      int             `json:"format"`
	Started     time.Time       `json:"started"`
	Interrupted bool            `json:"interrupted"` // cases are missing, or have fewer calls
	Machine     machine.Info    `json:"machine"`
	Settings    Settings        `json:"settings"`
	Load        *machine.Load   `json:"load,omitempty"` // load by other programs during the measurement
	Busy        string          `json:"busy,omitempty"` // a sentence if the machine seemed busy
	Limits      []machine.Limit `json:"limits"`
	Results     []Result        `json:"results"`
	Failures    []CaseError     `json:"failures,omitempty"`
	Skipped     []CaseError     `json:"skipped,omitempty"`
	Comparison  *comparison     `json:"comparison,omitempty"`
}

// Settings are the parameters of the measurement.
type Settings struct {
	Kernels     string  `json:"kernels"` // chosen or all
	Rounds      int     `json:"rounds"`
	TimePerCase float64 `json:"seconds_per_case"`
	Seed        uint64  `json:"seed"` // of random inputs and of the order of cases
}

// A Result is the measurement of a kernel on one pass of a problem.
type Result struct {
	Problem        string       `json:"problem"`
	Pass           string       `json:"pass"`
	Backend        string       `json:"backend"`
	Kernel         string       `json:"kernel"`
	Memory         string       `json:"memory"`
	Chosen         bool         `json:"chosen"`            // dispatch's choice
	Predicted      float64      `json:"predicted_seconds"` // by the kernel itself, for host tensors
	Seconds        float64      `json:"seconds"`           // median
	P10            float64      `json:"p10_seconds"`
	P25            float64      `json:"p25_seconds"`
	P75            float64      `json:"p75_seconds"`
	P90            float64      `json:"p90_seconds"`
	Doubt          string       `json:"doubt,omitempty"` // reason if the median is in doubt
	Calls          int          `json:"calls"`
	Rounds         []float64    `json:"round_seconds"` // median of each round
	GFLOPS         float64      `json:"gflops"`
	Intensity      float64      `json:"intensity"` // operations per byte, if each tensor is read or written once
	BytesPerSecond float64      `json:"bytes_per_second"`
	ExtraBytes     int64        `json:"extra_bytes"` // on the host, without inputs and outputs
	PeakBytes      int64        `json:"peak_bytes"`  // maximum during a call: inputs, outputs and workspace, including a device's
	Device         *DeviceBytes `json:"device_bytes,omitempty"`
}

// A CaseError is a case without a result and the reason.
type CaseError struct {
	Problem string `json:"problem"`
	Pass    string `json:"pass"`
	Kernel  string `json:"kernel,omitempty"`
	Error   string `json:"error"`
}

// newResult summarizes the timed calls of each round. flops is the number of operations per call.
// ok is false if there are no calls.
func newResult(p flashkit.Problem, k flashkit.Kernel, flops float64, rounds [][]time.Duration) (r Result, ok bool) {
	var all []float64
	r = Result{Problem: p.String(), Pass: k.Pass.String(), Backend: BackendOf(k.Name), Kernel: k.Name, Predicted: k.Cost(p.Ask(k.Pass)).Seconds(), Memory: machine.Host}
	for _, round := range rounds {
		var times []float64
		for _, t := range round {
			times = append(times, t.Seconds())
		}
		if len(times) > 0 {
			slices.Sort(times)
			r.Rounds = append(r.Rounds, Quantile(times, .5))
			all = append(all, times...)
		}
	}
	if len(all) == 0 {
		return r, false
	}
	slices.Sort(all)
	r.Calls = len(all)
	r.Seconds, r.P10, r.P90 = Quantile(all, .5), Quantile(all, .1), Quantile(all, .9)
	r.P25, r.P75 = Quantile(all, .25), Quantile(all, .75)
	bytes := p.Bytes(k.Pass)
	if r.Seconds > 0 {
		r.GFLOPS, r.BytesPerSecond = flops/r.Seconds/1e9, bytes/r.Seconds
	}
	if bytes > 0 {
		r.Intensity = flops / bytes
	}
	return r, true
}

// WriteJSON writes the results as one JSON object.
func (r *Results) WriteJSON(w io.Writer) error { return json.NewEncoder(w).Encode(r) }

// ReadFile reads a file written by WriteJSON.
func ReadFile(path string) (*Results, error) {
	text, err := input.ReadWhole(path)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	r, err := Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return r, nil
}

// Parse parses the output of WriteJSON.
func Parse(text []byte) (*Results, error) {
	var r Results
	if err := json.Unmarshal(text, &r); err != nil {
		return nil, fmt.Errorf("not the JSON of flashrun bench: %w", err)
	}
	if r.Format != Format {
		return nil, fmt.Errorf("format = %d: must be %d, the JSON of flashrun bench", r.Format, Format)
	}
	if len(r.Results) == 0 {
		return nil, errors.New("no results")
	}
	if err := r.check(); err != nil {
		return nil, err
	}
	r.Judge()
	return &r, nil
}

// A DeviceBytes is a call's device memory in bytes.
type DeviceBytes struct {
	Tensors   int64 `json:"tensors"`
	Workspace int64 `json:"workspace"`
}

// DeviceBytesOf returns the device memory of a call of k, or nil for host kernels.
func DeviceBytesOf(p flashkit.Problem, k flashkit.Kernel) *DeviceBytes {
	if k.Needs == nil {
		return nil
	}
	m := k.Needs(p.Ask(k.Pass))
	if m.Tensors == 0 && m.Device == 0 {
		return nil
	}
	return &DeviceBytes{int64(m.Tensors), int64(m.Device)}
}
