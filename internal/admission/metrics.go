package admission

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

// A Histogram counts durations in buckets. The zero value is empty. A Histogram is safe for
// concurrent use.
type Histogram struct {
	mu    sync.Mutex
	count [len(bounds) + 1]uint64 // the last bucket is unbounded
	sum   time.Duration
}

// Add counts t.
func (h *Histogram) Add(t time.Duration) {
	h.mu.Lock()
	defer h.mu.Unlock()
	i, _ := slices.BinarySearch(bounds[:], t.Seconds())
	h.count[i]++
	h.sum += t
}

// Write writes the histogram in Prometheus's text format, in which a bucket includes the counts of
// all lower buckets.
func (h *Histogram) Write(w io.Writer, name, help string) {
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

// Counts count the requests that ended, by outcome. The zero value is empty. Counts are safe for
// concurrent use.
type Counts struct {
	mu       sync.Mutex
	outcomes map[Outcome]uint64
	answered Histogram // time from a request's header to its answer
}

// Ended counts a request that took the given time.
func (c *Counts) Ended(o Outcome, took time.Duration) {
	c.mu.Lock()
	if c.outcomes == nil {
		c.outcomes = map[Outcome]uint64{}
	}
	c.outcomes[o]++
	c.mu.Unlock()
	if o == OK {
		c.answered.Add(took)
	}
}

// WriteMetrics writes the metrics of a Queue and of its requests in Prometheus's text format. Their
// names begin with Work.Name.
func (q *Queue[J, A]) WriteMetrics(w io.Writer, c *Counts) {
	name := q.work.Name
	fmt.Fprintf(w, "# HELP %s_requests_total Requests that ended, by outcome.\n# TYPE %[1]s_requests_total counter\n", name)
	c.mu.Lock()
	for _, o := range slices.Sorted(maps.Keys(Statuses)) {
		fmt.Fprintf(w, "%s_requests_total{outcome=%q} %d\n", name, o, c.outcomes[o])
	}
	c.mu.Unlock()
	c.answered.Write(w, name+"_answer_seconds", "Time from the header of a request to its answer, of answered requests.")
	q.calls.Write(w, name+"_call_seconds", "Time of calls, each of one or more requests.")
	q.mu.Lock()
	defer q.mu.Unlock()
	now := time.Now()
	gauge := func(suffix, help string, value any) {
		fmt.Fprintf(w, "# HELP %s_%s %s\n# TYPE %[1]s_%[2]s gauge\n%[1]s_%[2]s %[4]v\n", name, suffix, help, value)
	}
	gauge("admitted", "Requests in work.", q.admitted)
	gauge("bytes", "Memory of the requests in work, in bytes.", q.bytes)
	gauge("pace_short", "Time of recent short calls, divided by the predicted time.", q.short.pace.at(now))
	gauge("pace_long", "Time of recent long calls, divided by the predicted time.", q.long.pace.at(now))
	gauge("arrival_seconds_per_byte", "Time of recent bodies until they had arrived, per byte.", q.arrivals.slowness.at(now)/1e9)
}
