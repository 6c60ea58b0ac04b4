package dispatch

import (
	"bufio"
	"os"
	"runtime"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/workers"
)

// A machine is the hardware and operating system that determine the speed of kernels.
type machine struct {
	OS      string            `json:"os"`
	Arch    string            `json:"arch"`
	CPU     string            `json:"cpu"` // "" if the system does not report it
	Cores   int               `json:"cores"`
	Devices map[string]device `json:"devices,omitempty"` // by backend
}

// A device is the hardware of a backend that does not compute on the CPU.
type device struct {
	Name   string `json:"name"`
	Driver string `json:"driver"`
}

// A located backend computes on its own hardware, such as a GPU. Its kernels' measurements apply to
// the same device and driver only.
type located interface {
	Hardware() (device, driver string)
}

func thisMachine(backends []flashkit.Backend) machine {
	m := machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPU: cpuName("/proc/cpuinfo"), Cores: workers.Procs(), Devices: map[string]device{}}
	for _, b := range backends {
		if l, ok := b.(located); ok {
			name, driver := l.Hardware()
			m.Devices[b.Name()] = device{name, driver}
		}
	}
	return m
}

// matches reports whether a profile recorded on the machine other applies to m. other may have more
// devices than m, but every device of m must be in other, with the same driver.
func (m machine) matches(other machine) bool {
	for name, d := range m.Devices {
		if other.Devices[name] != d {
			return false
		}
	}
	return m.OS == other.OS && m.Arch == other.Arch && m.CPU == other.CPU && m.Cores == other.Cores
}

// cpuName returns the processor's name and model numbers from Linux's cpuinfo. The name alone is
// not enough: virtual machines on different processors report the same name.
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
			break // one processor suffices; reading hundreds is slow
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
