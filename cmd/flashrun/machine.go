package main

import (
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
)

// A machine is where a benchmark ran.
type machine struct {
	OS         string   `json:"os"`
	Arch       string   `json:"arch"`
	CPU        string   `json:"cpu,omitempty"`
	CPUs       int      `json:"cpus"`
	GOMAXPROCS int      `json:"gomaxprocs"`
	GPU        string   `json:"gpu,omitempty"`
	Go         string   `json:"go"`
	Flashrun   string   `json:"flashrun"`
	Missing    []absent `json:"missing,omitempty"` // backends that this machine cannot run
}

type absent struct {
	Backend string `json:"backend"`
	Reason  string `json:"reason"`
}

func describeMachine(d *dispatch.Dispatcher, gpu *cuda.Backend) machine {
	m := machine{OS: runtime.GOOS, Arch: runtime.GOARCH, CPU: cpuName(), CPUs: runtime.NumCPU(), GOMAXPROCS: runtime.GOMAXPROCS(0),
		Go: runtime.Version(), Flashrun: version()}
	if gpu != nil {
		m.GPU = gpu.Device().Name
	}
	for _, x := range d.Missing() {
		m.Missing = append(m.Missing, absent{x.Backend, strings.TrimPrefix(x.Err.Error(), x.Backend+": ")})
	}
	return m
}

// String returns the machine in a line.
func (m machine) String() string {
	parts := []string{m.OS + "/" + m.Arch, strconv.Itoa(m.CPUs) + " CPUs", "GOMAXPROCS " + strconv.Itoa(m.GOMAXPROCS), m.Go}
	if m.CPU != "" {
		parts = append([]string{m.CPU}, parts...)
	}
	if m.GPU != "" {
		parts = append(parts, m.GPU)
	}
	return strings.Join(parts, ", ")
}

// cpuName returns what Linux calls the processor, "" where nothing says it.
func cpuName() string { return procField("/proc/cpuinfo", "model name") }

// procField returns the first value of that name in a file of "name: value" lines.
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

// A limit is what the machine does at most, beside which results are read. Its
// name is that of a type, for multiply-adds of it, or "copy".
type limit struct {
	Memory         string  `json:"memory"` // host or device
	Name           string  `json:"name"`
	GFLOPS         float64 `json:"gflops,omitempty"`
	BytesPerSecond float64 `json:"bytes_per_second,omitempty"`
	How            string  `json:"how"`
}

// copyBytes returns the size of the array that is copied: more than most caches
// hold, unless that is much of the machine's memory.
func copyBytes() int {
	n := 256 << 20
	return max(min(n, int(freeMemory()/8)), 1<<20)
}

// hostLimits measures the host: multiply-adds of each type, and copying.
func hostLimits(types []flashkit.DType) []limit {
	var list []limit
	for _, t := range types {
		rate, instructions := simd.Peak(t)
		list = append(list, limit{Memory: hostMemory, Name: t.String(), GFLOPS: rate / 1e9,
			How: "multiply-adds in registers, " + instructions + ", " + threads()})
	}
	n := copyBytes()
	rate := copyRate(n)
	return append(list, limit{Memory: hostMemory, Name: "copy", BytesPerSecond: rate,
		How: "bytes read and written, " + formatBytes(float64(n)) + " from one array to another, " + threads()})
}

func threads() string {
	if runtime.GOMAXPROCS(0) == 1 {
		return "1 thread"
	}
	return strconv.Itoa(runtime.GOMAXPROCS(0)) + " threads"
}

// copyRate returns the best of a few copies of n bytes on all cores, in bytes
// read and written per second.
func copyRate(n int) float64 {
	const tries, piece = 5, 1 << 20
	from, to := make([]byte, n), make([]byte, n)
	best := 0.0
	for i := range tries + 1 {
		for j := 0; i == 0 && j < n; j += 512 {
			from[j] = byte(j) | 1 // so that every page exists: untouched ones are all the same
		}
		start := time.Now()
		var wait sync.WaitGroup
		next := make(chan int, n/piece+1)
		for at := 0; at < n; at += piece {
			next <- at
		}
		close(next)
		for range runtime.GOMAXPROCS(0) {
			wait.Go(func() {
				for at := range next {
					copy(to[at:min(n, at+piece)], from[at:])
				}
			})
		}
		wait.Wait()
		if i > 0 { // the first one fetches the pages of to
			best = max(best, 2*float64(n)/time.Since(start).Seconds())
		}
	}
	return best
}
