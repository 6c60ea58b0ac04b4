package machine

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// A Load is the processor time that others used during a measurement: other programs, and other
// guests of the hypervisor.
type Load struct {
	Others float64 `json:"other_processors"` // processors busy with other programs, on average
	Steal  float64 `json:"steal"`            // share of processor time that the hypervisor gave to other guests
	CPUs   int     `json:"cpus"`             // processors of the system, maybe more than this program may use
}

// A LoadMeter measures the load since the meter was created.
type LoadMeter struct {
	started time.Time
	was     ticks
}

// NewLoadMeter starts a meter.
func NewLoadMeter() *LoadMeter { return &LoadMeter{time.Now(), readTicks()} }

// leastMetered is the shortest useful interval: the counters have a resolution of 10 ms.
const leastMetered = 500 * time.Millisecond

// Load returns the load since the meter was created, or nil if the system has no counters.
func (m *LoadMeter) Load() *Load { return loadBetween(m.was, readTicks(), time.Since(m.started)) }

func loadBetween(was, is ticks, elapsed time.Duration) *Load {
	const perSecond = 100 // Linux's USER_HZ on all of Go's architectures
	all := elapsed.Seconds() * perSecond
	if was.cpus == 0 || is.cpus != was.cpus || elapsed < leastMetered {
		return nil
	}
	others := (is.busy - was.busy - (is.own - was.own)) / all
	return &Load{max(0, others), max(0, (is.steal-was.steal)/all/float64(is.cpus)), is.cpus}
}

type ticks struct {
	busy, steal float64 // all processors
	own         float64 // this process
	cpus        int     // 0 without counters
}

func readTicks() ticks {
	all, err := os.ReadFile("/proc/stat")
	if err != nil {
		return ticks{}
	}
	own, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		return ticks{}
	}
	return parseTicks(string(all), string(own))
}

// parseTicks parses /proc/stat and /proc/self/stat, see proc(5).
func parseTicks(all, own string) (t ticks) {
	for line := range strings.Lines(all) {
		fields := strings.Fields(line)
		switch {
		case len(fields) < 9 || !strings.HasPrefix(fields[0], "cpu"):
		case fields[0] == "cpu": // user nice system idle iowait irq softirq steal
			t.busy, t.steal = sumOf(fields[1:4])+sumOf(fields[6:8]), sumOf(fields[8:9])
		default:
			t.cpus++
		}
	}
	_, rest, _ := strings.Cut(own[strings.LastIndexByte(own, ')')+1:], " ") // the process name may contain spaces
	if fields := strings.Fields(rest); len(fields) > 13 {
		t.own = sumOf(fields[11:13]) // user and system
	}
	if t.busy == 0 {
		t.cpus = 0 // a sandbox may show counters that are always 0
	}
	return t
}

func sumOf(fields []string) (sum float64) {
	for _, f := range fields {
		x, err := strconv.ParseFloat(f, 64)
		if err == nil {
			sum += x
		}
	}
	return sum
}
