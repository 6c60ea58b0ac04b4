package dispatch

import (
	"bufio"
	"os"
	"runtime"
	"strings"

	"github.com/flashkit-go/flashkit"
)

// A machine is what the speed of kernels depends on.
type machine struct {
	OS      string            `json:"os"`
	Arch    string            `json:"arch"`
	CPU     string            `json:"cpu"` // "" where the system does not say
	Cores   int               `json:"cores"`
	Devices map[string]device `json:"devices,omitempty"` // by backend
}

// A device is what a backend runs on, if that is not the processor.
type device struct {
	Name   string `json:"name"`
	Driver string `json:"driver"`
}

// A located backend says which hardware it runs on, where that is not the
// processor: what is known of its kernels then counts on the same device only,
// and a profile with the same driver only.
type located interface {
	Hardware() (device, driver string)
}

func thisMachine(backends []flashkit.Backend) machine {
	m := machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPU: cpuName("/proc/cpuinfo"), Cores: runtime.GOMAXPROCS(0), Devices: map[string]device{}}
	for _, b := range backends {
		if l, ok := b.(located); ok {
			name, driver := l.Hardware()
			m.Devices[b.Name()] = device{name, driver}
		}
	}
	return m
}

// is reports whether a profile of the other machine counts on this one. That the
// other one has more backends does no harm.
func (m machine) matches(other machine) bool {
	for name, d := range m.Devices {
		if other.Devices[name] != d {
			return false
		}
	}
	return m.OS == other.OS && m.Arch == other.Arch && m.CPU == other.CPU && m.Cores == other.Cores
}

// cpuName returns what Linux says of the processor: its name, which many
// processors share in virtual machines, and its numbers.
func cpuName(path string) string {
	f, err := os.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	fields := map[string]string{}
	for lines := bufio.NewScanner(f); lines.Scan(); {
		key, value, ok := strings.Cut(lines.Text(), ":")
		if !ok && len(fields) > 0 {
			break // the first processor says it all; a hundred of them take long to read
		}
		fields[strings.TrimSpace(key)] = strings.TrimSpace(value)
	}
	var parts []string
	for _, key := range []string{"model name", "cpu family", "model", "stepping", "CPU implementer", "CPU part"} {
		if fields[key] != "" {
			parts = append(parts, fields[key])
		}
	}
	return strings.Join(parts, " ")
}
