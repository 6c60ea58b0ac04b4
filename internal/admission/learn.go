package admission

import (
	"math"
	"time"
)

// An estimate is a moving average of samples. Without new samples, the average decays to the field
// normal. Without this decay, a high estimate would never fall: the server would reject all
// requests, and rejected requests yield no samples.
type estimate struct {
	normal, most float64 // larger samples count as most, so that one stall does not cause all requests to be rejected
	value        float64
	since        time.Time // time of the last sample
}

func (e *estimate) at(now time.Time) float64 {
	const half = time.Second
	return e.normal + (e.value-e.normal)*math.Exp2(-float64(now.Sub(e.since))/float64(half))
}

// learn adds a sample. Samples above the estimate have more weight than samples below it, because
// late answers are wasted work.
func (e *estimate) learn(sample float64, now time.Time) {
	value, weight := e.at(now), 0.125
	if sample = min(sample, e.most); sample > value {
		weight = 0.5
	}
	e.value, e.since = value+weight*(sample-value), now
}

// small is the number of bytes from which a body's arrival is measured.
const small = 64 << 10

// arrivals estimates the speed at which bodies arrive. This speed matters, because receiving 8 MB
// takes longer than a decode step that reads these bytes. Small bodies are not measured.
type arrivals struct {
	unread   int64    // bytes of admitted requests that have not arrived yet
	slowness estimate // nanoseconds per byte, over all bodies together
	since    time.Time
	came     int64 // bytes that arrived after since
}

// expect returns the predicted time at which a new body has arrived. It assumes that this body
// arrives after all bodies in progress.
func (a *arrivals) expect(body int64, now time.Time) time.Time {
	if body < small {
		return now
	}
	return now.Add(scaled(time.Duration(a.unread+body), a.slowness.at(now)))
}

// add adds a body that will arrive. It returns the number of bytes that the caller must later pass
// to arrived. This number is 0 for a small body.
func (a *arrivals) add(body int64, now time.Time) int64 {
	if body < small {
		return 0
	}
	if a.unread == 0 {
		a.since, a.came = now, 0
	}
	a.unread += body
	return body
}

// arrived counts n bytes that have arrived.
func (a *arrivals) arrived(n int64, now time.Time) {
	const enough = 4 << 20 // bytes per sample
	a.unread -= n
	if a.came += n; a.came >= enough {
		a.slowness.learn(float64(now.Sub(a.since))/float64(a.came), now)
		a.since, a.came = now, 0
	}
}
