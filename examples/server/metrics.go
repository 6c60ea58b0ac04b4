package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"sync"
	"time"
)

// bounds are the upper bounds of a histogram's buckets, in seconds.
var bounds = [...]float64{0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30}

// A histogram counts durations in buckets. The zero value is empty.
type histogram struct {
	mu    sync.Mutex
	count [len(bounds) + 1]uint64 // the last bucket is unbounded
	sum   time.Duration
}

func (h *histogram) add(t time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, _ := slices.BinarySearch(bounds[:], t.Seconds())
	h.count[i]++
	h.sum += t
}

// write writes the histogram in Prometheus's text format, in which a bucket includes the counts of
// all lower buckets.
func (h *histogram) write(w io.Writer, name, help string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	fmt.Fprintf(w, "# HELP %s %s\n# TYPE %[1]s histogram\n", name, help)
	total := uint64(0)
	for i, n := range h.count {
		total += n
		end := "+Inf"
		if i < len(bounds) {
			end = fmt.Sprint(bounds[i])
		}
		fmt.Fprintf(w, "%s_bucket{le=%q} %d\n", name, end, total)
	}
	fmt.Fprintf(w, "%s_sum %g\n%[1]s_count %[3]d\n", name, h.sum.Seconds(), total)
}

type metrics struct {
	mu       sync.Mutex
	outcomes map[Outcome]uint64
	answered histogram // time from a request's header to its answer
}

func (m *metrics) ended(o Outcome, took time.Duration) {
	m.mu.Lock()
	m.outcomes[o]++
	m.mu.Unlock()
	if o == OK {
		m.answered.add(took)
	}
}

func (m *metrics) write(w io.Writer, s *Server) {
	fmt.Fprintf(w, "# HELP attention_requests_total Requests that ended, by outcome.\n# TYPE attention_requests_total counter\n")
	m.mu.Lock()
	for _, o := range slices.Sorted(maps.Keys(statuses)) {
		fmt.Fprintf(w, "attention_requests_total{outcome=%q} %d\n", o, m.outcomes[o])
	}
	m.mu.Unlock()
	m.answered.write(w, "attention_answer_seconds", "From the header of a request to its answer, of those answered.")
	s.calls.write(w, "attention_call_seconds", "Time of calls, each of one or more requests.")
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	gauge := func(name, help string, value any) {
		fmt.Fprintf(w, "# HELP %s %s\n# TYPE %[1]s gauge\n%[1]s %[3]v\n", name, help, value)
	}
	gauge("attention_admitted", "Requests in work.", s.admitted)
	gauge("attention_bytes", "Bytes that they take.", s.bytes)
	gauge("attention_pace_short", "What short calls took lately, over what was predicted.", s.short.pace.at(now))
	gauge("attention_pace_long", "What long calls took lately, over what was predicted.", s.long.pace.at(now))
	gauge("attention_arrival_seconds_per_byte", "How slowly tensors arrived lately.", s.arrivals.slowness.at(now)/1e9)
}
