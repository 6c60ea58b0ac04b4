package main

import (
	"math"
	"time"
)

// An estimate follows samples and decays to normal without them. A rejected request yields no
// sample, so a high value would otherwise never fall.
type estimate struct {
	normal, most float64 // most bounds a sample: one stall must not reject all requests
	value        float64
	since        time.Time // time of the last sample
}

func (e *estimate) at(now time.Time) float64 {
	const half = time.Second
	return e.normal + (e.value-e.normal)*math.Exp2(-float64(now.Sub(e.since))/float64(half))
}

// learn adds a sample. High samples have more weight than low ones, as late answers are wasted
// work.
func (e *estimate) learn(sample float64, now time.Time) {
	value, weight := e.at(now), 0.125
	if sample = min(sample, e.most); sample > value {
		weight = 0.5
	}
	e.value, e.since = value+weight*(sample-value), now
}

// arrivals estimates the speed at which tensors arrive: reading 8 MB takes longer than a decode
// step over them. Small bodies are not measured.
type arrivals struct {
	unread   int64    // outstanding bytes of admitted requests
	slowness estimate // nanoseconds per byte of all bodies together
	since    time.Time
	came     int64 // bytes since then
}

// expect returns the predicted arrival of a new body, behind all others.
func (a *arrivals) expect(body int64, now time.Time) time.Time {
	if body < 4*chunk {
		return now
	}
	return now.Add(scaled(time.Duration(a.unread+body), a.slowness.at(now)))
}

// add adds an expected body and returns its measured bytes.
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

// arrived counts n bytes of a body.
func (a *arrivals) arrived(n int64, now time.Time) {
	const enough = 4 << 20 // bytes for a sample
	a.unread -= n
	if a.came += n; a.came >= enough {
		a.slowness.learn(float64(now.Sub(a.since))/float64(a.came), now)
		a.since, a.came = now, 0
	}
}
