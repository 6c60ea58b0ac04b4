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

// DeviceLimits measures the GPU: multiply-adds of each type, and copying.
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

// A Limit is what the machine does at most, beside which results are read. Its
// name is that of a type, for multiply-adds of it, or "copy".
type Limit struct {
	Memory         string  `json:"memory"` // host or device
	Name           string  `json:"name"`
	GFLOPS         float64 `json:"gflops,omitempty"`
	BytesPerSecond float64 `json:"bytes_per_second,omitempty"`
	How            string  `json:"how"`
}

// Most returns the limits of a place, host or device, for a type: GFLOP/s, and bytes copied per second;
// 0 where that was not measured.
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

// copyBytes returns the size of the array that is copied: more than most caches
// hold, unless that is much of the machine's memory.
func copyBytes() int {
	n := 256 << 20
	return max(min(n, int(Free()/8)), 1<<20)
}

// HostLimits measures the host: multiply-adds of each type, and copying.
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

// Where the tensors of a measurement lie.
const (
	Host   = "host"   // slices; a GPU's copies in and out are part of the time
	Device = "device" // the GPU's memory, timed by its events
)

// Check returns an error that names a field which no measurement writes.
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
