package machine

import (
	"fmt"
	"runtime"
	"strconv"
	"sync"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// DeviceLimits measures the GPU's peak rates: multiply-adds of each type, and copies.
func DeviceLimits(gpu *cuda.Backend, types []flashkit.DType) ([]Limit, error) {
	if gpu == nil {
		return nil, nil
	}
	var list []Limit
	for _, t := range types {
		rate, instructions, err := gpu.Peak(t)
		if err != nil {
			return nil, fmt.Errorf("limit of the device, %s: %w", t, err)
		}
		list = append(list, Limit{Memory: Device, Name: t.String(), GFLOPS: rate / 1e9,
			How: fmt.Sprintf("multiply-adds on the chip, %s, %d multiprocessors", instructions, gpu.Device().SMs)})
	}
	rate, err := gpu.CopyRate()
	if err != nil {
		return nil, fmt.Errorf("limit of the device, copy: %w", err)
	}
	return append(list, Limit{Memory: Device, Name: "copy", BytesPerSecond: rate, How: "bytes read and written by a kernel that copies"}), nil
}

// A Limit is a measured peak rate of the machine. Name is an element type for the rate of
// multiply-adds, or "copy" for the rate of copies.
type Limit struct {
	Memory         string  `json:"memory"` // host or device
	Name           string  `json:"name"`
	GFLOPS         float64 `json:"gflops,omitempty"`
	BytesPerSecond float64 `json:"bytes_per_second,omitempty"`
	How            string  `json:"how"`
}

// Most returns the limits of host or device for a type: GFLOP/s, and bytes copied per second.
// Unmeasured limits are 0.
func Most(limits []Limit, place string, t flashkit.DType) (gflops, bytesPerSecond float64) {
	for _, l := range limits {
		switch {
		case l.Memory != place:
		case l.Name == t.String():
			gflops = l.GFLOPS
		case l.Name == "copy":
			bytesPerSecond = l.BytesPerSecond
		}
	}
	return gflops, bytesPerSecond
}

// copyBytes returns the size of the array to copy: more than most caches hold, but a small part of
// memory.
func copyBytes() int {
	n := 256 << 20
	return max(min(n, int(Free()/8)), 1<<20)
}

// HostLimits measures the host's peak rates: multiply-adds of each type, and copies.
func HostLimits(types []flashkit.DType) []Limit {
	var list []Limit
	for _, t := range types {
		rate, instructions := simd.Peak(t)
		list = append(list, Limit{Memory: Host, Name: t.String(), GFLOPS: rate / 1e9,
			How: "multiply-adds in registers, " + instructions + ", " + threads()})
	}
	n := copyBytes()
	rate := copyRate(n)
	return append(list, Limit{Memory: Host, Name: "copy", BytesPerSecond: rate,
		How: "bytes read and written, " + terminal.Bytes(float64(n)) + " from one array to another, " + threads()})
}

func threads() string {
	if runtime.GOMAXPROCS(0) == 1 {
		return "1 thread"
	}
	return strconv.Itoa(runtime.GOMAXPROCS(0)) + " threads"
}

// copyRate returns the best rate of several copies of n bytes on all cores, in bytes read and
// written per second.
func copyRate(n int) float64 {
	const tries, piece = 5, 1 << 20
	from, to := make([]byte, n), make([]byte, n)
	best := 0.0
	for i := range tries + 1 {
		for j := 0; i == 0 && j < n; j += 512 {
			from[j] = byte(j) | 1 // writes every page: untouched pages share one zero page
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
		if i > 0 { // the first copy faults in the pages of to
			best = max(best, 2*float64(n)/time.Since(start).Seconds())
		}
	}
	return best
}

// Memories of a measurement's tensors.
const (
	Host   = "host"   // Go slices; times of GPU kernels include copies to and from the GPU
	Device = "device" // GPU memory, timed by GPU events
)

// Check returns an error if a field has an impossible value. The error names the field.
func (l *Limit) Check() error {
	switch {
	case l.Memory != Host && l.Memory != Device:
		return fmt.Errorf("memory = %q: must be host or device", l.Memory)
	case l.GFLOPS < 0:
		return fmt.Errorf("gflops = %g: must not be negative", l.GFLOPS)
	case l.BytesPerSecond < 0:
		return fmt.Errorf("bytes_per_second = %g: must not be negative", l.BytesPerSecond)
	}
	return nil
}
