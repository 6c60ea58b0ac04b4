// Package machine describes the program's machine: processor, GPU, free memory and peak rates.
package machine

import (
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"

	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/dispatch"
)

// Info describes the machine of a benchmark.
type Info struct {
	OS         string   `json:"os"`
	Arch       string   `json:"arch"`
	CPU        string   `json:"cpu,omitempty"`
	CPUs       int      `json:"cpus"`
	GOMAXPROCS int      `json:"gomaxprocs"`
	GPU        string   `json:"gpu,omitempty"`
	Go         string   `json:"go"`
	Flashrun   string   `json:"flashrun"`
	Missing    []absent `json:"missing,omitempty"` // backends unavailable on this machine
}

type absent struct {
	Backend string `json:"backend"`
	Reason  string `json:"reason"`
}

// Describe describes this machine, and also gpu unless gpu is nil.
func Describe(d *dispatch.Dispatcher, gpu *cuda.Backend) Info {
	m := Info{OS: runtime.GOOS, Arch: runtime.GOARCH, CPU: cpuName(), CPUs: runtime.NumCPU(), GOMAXPROCS: runtime.GOMAXPROCS(0),
		Go: runtime.Version(), Flashrun: Version()}
	if gpu != nil {
		m.GPU = gpu.Device().Name
	}
	for _, x := range d.Missing() {
		m.Missing = append(m.Missing, absent{x.Backend, Reason(x)})
	}
	return m
}

// String returns the machine in a line.
func (m Info) String() string {
	parts := []string{m.OS + "/" + m.Arch, strconv.Itoa(m.CPUs) + " CPUs", "GOMAXPROCS " + strconv.Itoa(m.GOMAXPROCS), m.Go}
	if m.CPU != "" {
		parts = append([]string{m.CPU}, parts...)
	}
	if m.GPU != "" {
		parts = append(parts, m.GPU)
	}
	return strings.Join(parts, ", ")
}

// cpuName returns Linux's model name of the processor, or "" if the name is unknown.
func cpuName() string { return procField("/proc/cpuinfo", "model name") }

// procField returns the first value of a name in a file of "name: value" lines.
func procField(path, name string) string {
	text, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == name {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// Reason returns the reason that a backend is missing, without the backend's name.
func Reason(m dispatch.Missing) string { return strings.TrimPrefix(m.Err.Error(), m.Backend+": ") }

// Version returns the module's version as the Go tool recorded it.
func Version() string {
	info, ok := debug.ReadBuildInfo()
	if !ok || info.Main.Version == "" {
		return "(unknown)"
	}
	return info.Main.Version
}
