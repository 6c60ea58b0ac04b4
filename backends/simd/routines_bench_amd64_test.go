//go:build !purego

package simd

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"
)

// BenchmarkRoutines measures the minimum time of routines, per vector of scores. It measures
// routines for features, and at head dims 64 and 128 the routines that every call uses. A
// measurement takes about a microsecond, so other work rarely disturbs it.
func BenchmarkRoutines(b *testing.B) {
	for _, x := range []struct {
		name string
		isa  *laneRoutines
		tier tier
	}{{"avx512", &avx512Lanes, avx512}, {"avx2", &avx2Lanes, avx2}} {
		if x.tier.missing() != "" {
			continue
		}
		w := newRoutineWork(x.isa)
		for _, r := range w.routines() {
			b.Run(fmt.Sprintf("%s/%s", x.name, r.name), func(b *testing.B) {
				least := time.Hour
				for b.Loop() {
					copy(w.s, w.scores)
					start := time.Now()
					r.run()
					least = min(least, time.Since(start))
				}
				b.ReportMetric(0, "ns/op") // of two things together
				b.ReportMetric(float64(least.Nanoseconds())/float64(2*w.rows), "ns/vector")
			})
		}
	}
}

// A routineWork is the operands of routines: a block of keys, and a tile.
type routineWork struct {
	isa                                      *laneRoutines
	rows                                     int
	scores, s, dp, ds, softcapGrad, db, bias []float32
	q, k, o, top, m, l, alpha, lanes, zero   []float32
	masks, kept, numbers                     []uint32
	mask                                     []bool
}

func newRoutineWork(isa *laneRoutines) *routineWork {
	n, rows, r := isa.lanes, 128, rand.New(rand.NewPCG(1, 2))
	numbers := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = r.Float32()
		}
		return x
	}
	w := &routineWork{
		isa: isa, rows: rows, scores: numbers(rows * n), s: numbers(rows * n), dp: numbers(rows * n), ds: numbers(rows * n),
		softcapGrad: numbers(rows * n), db: numbers(rows * n), bias: numbers(rows * n),
		q: numbers(128 * n), k: numbers(rows * 128), o: numbers(128 * n),
		top: numbers(n), m: numbers(n), l: numbers(n), alpha: numbers(n), lanes: numbers(n), zero: make([]float32, rows),
		masks: make([]uint32, rows), kept: make([]uint32, rows), numbers: make([]uint32, n), mask: make([]bool, rows*n),
	}
	for i := range w.masks {
		w.masks[i], w.kept[i] = 1<<n-1, r.Uint32()
	}
	return w
}

type routineRun struct {
	name string
	run  func()
}

func (w *routineWork) routines() []routineRun {
	isa, n, rows, s := w.isa, w.isa.lanes, w.rows, &w.s[0]
	adjust := func(softcapGrad *float32, softcap float32, bias *float32, lanes *float32) func() {
		return func() { isa.scoreMod(s, n, rows, &w.top[0], softcapGrad, .125, softcap, bias, n, lanes, .5, 100) }
	}
	list := []routineRun{
		{"weights", func() { isa.expScores(s, rows, &w.m[0], &w.top[0], &w.l[0], &w.alpha[0], 1) }},
		{"gradients", func() {
			isa.gradients(s, &w.dp[0], &w.ds[0], n, &w.masks[0], rows, &w.zero[0], &w.zero[0], .125)
		}},
		{"adjust/none", adjust(nil, 0, nil, nil)},
		{"adjust/alibi", adjust(nil, 0, nil, &w.lanes[0])},
		{"adjust/bias", adjust(nil, 0, &w.bias[0], nil)},
		{"adjust/softcap", adjust(nil, 5, nil, nil)},
		{"adjust/softcap,uncap", adjust(&w.softcapGrad[0], 5, nil, nil)},
		{"adjust/all", adjust(&w.softcapGrad[0], 5, &w.bias[0], &w.lanes[0])},
		{"toLanes", func() { isa.toLanes(w.s, w.bias, rows, rows) }},
		{"maskBits", func() { isa.maskBits(&w.masks[0], &w.mask[0], n, rows) }},
		{"maskScores", func() { isa.maskScores(s, &w.kept[0], rows, &w.top[0]) }},
		{"dropWeights", func() { isa.dropWeights(s, rows, 0, &w.numbers[0], 1, 2, 3, 1<<30) }},
		{"keepKeys", func() { isa.dropoutMask(&w.kept[0], rows, 0, 0, 1, 2, 3, 1<<30) }},
		{"gradientsOf", w.gradientsOf(nil, nil, nil)},
		{"gradientsOf/kept", w.gradientsOf(&w.kept[0], nil, nil)},
		{"gradientsOf/uncap", w.gradientsOf(nil, &w.softcapGrad[0], nil)},
		{"gradientsOf/db", w.gradientsOf(nil, nil, &w.db[0])},
	}
	for _, dim := range []int{64, 128} {
		list = append(list,
			routineRun{fmt.Sprintf("scores/d%d", dim), func() { isa.scores(s, &w.k[0], 128, &w.q[0], dim, rows, &w.top[0], &w.k[0]) }},
			routineRun{fmt.Sprintf("addValues/d%d", dim), func() { isa.addValues(&w.o[0], &w.k[0], 128, s, rows, dim, &w.alpha[0], nil) }},
			routineRun{fmt.Sprintf("addValuesMasked/d%d", dim), func() { isa.addValues(&w.o[0], &w.k[0], 128, s, rows, dim, &w.alpha[0], &w.kept[0]) }},
			routineRun{fmt.Sprintf("addProductT/d%d", dim), func() { isa.addProductT(&w.o[0], n, &w.k[0], 128, s, n, dim, rows, n) }})
	}
	return list
}

func (w *routineWork) gradientsOf(kept *uint32, softcapGrad, db *float32) func() {
	return func() {
		w.isa.gradientsOf(&w.s[0], &w.dp[0], &w.ds[0], w.isa.lanes, &w.masks[0], w.rows, &w.zero[0], &w.zero[0], .125, 1, kept, 1.25, softcapGrad, db)
	}
}
