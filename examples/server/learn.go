package main

import (
	"math"
	"time"
)

// An estimate follows samples, and goes back to what is normal while there are none:
// who is refused for it gives no sample, so nothing else would ever correct it.
type estimate struct {
	normal, most float64 // most is of a sample, so that one stall does not refuse everybody
	value        float64
	since        time.Time // of the value
}

func (e *estimate) at(now time.Time) float64 {
	const half = time.Second
	return e.normal + (e.value-e.normal)*math.Exp2(-float64(now.Sub(e.since))/float64(half))
}

// learn takes a sample. Bad news are believed sooner than good ones, as an answer that
// comes late was computed for nothing.
func (e *estimate) learn(sample float64, now time.Time) {
	value, weight := e.at(now), 0.125
	if sample = min(sample, e.most); sample > value {
		weight = 0.5
	}
	e.value, e.since = value+weight*(sample-value), now
}

// arrivals know how fast tensors arrive. Reading 8 MB takes longer than to decode over
// them. Small bodies say nothing about it and are left out.
type arrivals struct {
	unread   int64    // bytes of those admitted that are still to come
	slowness estimate // nanoseconds for one byte, of all that arrives together
	since    time.Time
	came     int64 // since then
}

// expect returns when a body that is asked for now is predicted to have come, behind
// all others.
func (a *arrivals) expect(body int64, now time.Time) time.Time {
	if body < 4*chunk {
		return now
	}
	return now.Add(scaled(time.Duration(a.unread+body), a.slowness.at(now)))
}

// add expects a body, and returns what there is to count of it.
func (a *arrivals) add(body int64, now time.Time) int64 {
	if body < 4*chunk {
		return 0
	}
	if a.unread == 0 {
		a.since, a.came = now, 0
	}
	a.unread += body
	return body
}

// arrived counts n bytes that have come.
func (a *arrivals) arrived(n int64, now time.Time) {
	const enough = 4 << 20 // bytes, to tell a speed
	a.unread -= n
	if a.came += n; a.came >= enough {
		a.slowness.learn(float64(now.Sub(a.since))/float64(a.came), now)
		a.since, a.came = now, 0
	}
}
