//go:build !purego

package simd

import (
	"fmt"
	"testing"
	"time"
	"unsafe"
)

// BenchmarkTileRoutines measures the minimum time of each forward routine that uses AMX tiles. The
// time is per vector of scores, for a tile of query rows and a block of keys.
func BenchmarkTileRoutines(b *testing.B) {
	if why := amxbf16().missing(); why != "" {
		b.Skip(why)
	}
	for _, dim := range []int{64, 128} {
		w := newTileWork(dim)
		for _, r := range w.routines() {
			b.Run(fmt.Sprintf("d%d/%s", dim, r.name), func(b *testing.B) {
				least := time.Hour
				for b.Loop() {
					copy(w.s, w.scores)
					start := time.Now()
					r.run()
					least = min(least, time.Since(start))
				}
				b.ReportMetric(0, "ns/op") // of two things together
				b.ReportMetric(float64(least.Nanoseconds())/(2*tileBlock), "ns/vector")
			})
		}
	}
}

// A tileWork is the operands of routines, and K and V of a block.
type tileWork struct {
	routineWork
	dim     int
	halves  []uint16
	q, p, v []uint32
	rows    []float32 // of a bias
}

func newTileWork(dim int) *tileWork {
	w := &tileWork{routineWork: *newRoutineWork(&avx512Lanes), dim: dim}
	w.routineWork.rows = tileBlock
	for _, x := range []*[]float32{&w.scores, &w.s, &w.bias} {
		*x = make([]float32, tileBlock*pairLanes)
		for i := range *x {
			(*x)[i] = float32(i%97) / 97
		}
	}
	w.masks, w.kept = make([]uint32, tileBlock), make([]uint32, tileBlock)
	for i := range w.kept {
		w.kept[i] = uint32(i+3) * 2654435761
	}
	w.halves = make([]uint16, tileBlock*dim)
	for i := range w.halves {
		w.halves[i] = 0x3f00 + uint16(i%61)
	}
	w.q, w.p, w.v = make([]uint32, pairLanes*dim/2), make([]uint32, tileBlock/2*pairLanes), make([]uint32, dim*tileBlock/2)
	w.rows = make([]float32, pairLanes*(tileBlock+16))
	return w
}

func (w *tileWork) routines() []routineRun {
	isa, n, s := w.isa, w.isa.lanes, &w.s[0]
	adjust := func(softcap float32, bias *float32, lanes *float32) func() {
		return func() { isa.scoreMod(s, n, tileBlock, &w.top[0], nil, .125, softcap, bias, n, lanes, .5, 100) }
	}
	shaped := func(masks *uint32, softcap float32, bias *uint32, lanes *float32) func() {
		return func() {
			shapedScoresAMXBF16(s, &w.halves[0], w.dim, &w.q[0], w.dim/2, tileBlock, &w.top[0], masks, .125, softcap, bias, lanes, .5, 100)
		}
	}
	return []routineRun{
		{"shaped/none", shaped(nil, 0, nil, nil)},
		{"shaped/mask", shaped(&w.kept[0], 0, nil, nil)},
		{"shaped/alibi", shaped(nil, 0, nil, &w.lanes[0])},
		{"shaped/bias", shaped(nil, 0, &w.p[0], nil)},
		{"shaped/softcap", shaped(nil, 5, nil, nil)},
		{"dropPairs", func() { dropPairsAMXBF16(&w.p[0], tileBlock, 0, &w.numbers[0], 1, 2, 3, 1<<30) }},
		{"scores", func() { scoresAMXBF16(s, &w.halves[0], w.dim, &w.q[0], w.dim/2, tileBlock, &w.top[0]) }},
		{"scores64", func() {
			for i := 0; i < tileBlock; i += 64 {
				scoresAMXBF16(&w.s[i*n], &w.halves[i*w.dim], w.dim, &w.q[0], w.dim/2, 64, &w.top[0])
			}
		}},
		{"weights", func() {
			expScoresAMXBF16(&w.p[0], s, tileBlock/2, &w.m[0], &w.top[0], &w.l[0], &w.alpha[0], 1)
		}},
		{"weightsAVX512", func() { isa.expScores(s, tileBlock, &w.m[0], &w.top[0], &w.l[0], &w.alpha[0], 1) }},
		{"narrow", func() { narrowPairsAVX512BF16(&w.p[0], s, pairLanes, tileBlock/2) }},
		{"values", func() {
			addValuesAMXBF16(&w.o[0], &w.v[0], tileBlock/2, &w.p[0], tileBlock/2, w.dim, &w.alpha[0], s)
		}},
		{"adjust/none", adjust(0, nil, nil)},
		{"adjust/alibi", adjust(0, nil, &w.lanes[0])},
		{"adjust/bias", adjust(0, &w.bias[0], nil)},
		{"adjust/softcap", adjust(5, nil, nil)},
		{"adjust/softcap,uncap", func() { isa.scoreMod(s, n, tileBlock, &w.top[0], &w.bias[0], .125, 5, nil, n, nil, .5, 100) }},
		{"maskScores", func() { isa.maskScores(s, &w.kept[0], tileBlock, &w.top[0]) }},
		{"dropWeights", func() { isa.dropWeights(s, tileBlock, 0, &w.numbers[0], 1, 2, 3, 1<<30) }},
		{"bias/load", func() {
			for r := range pairLanes {
				isa.widenBF16(&w.rows[r*(tileBlock+16)], &w.halves[0], tileBlock)
			}
		}},
		{"bias/toLanes", func() {
			for i := 0; i < tileBlock; i += biasKeys {
				isa.toLanes(w.bias, w.rows[i:], tileBlock+16, biasKeys)
			}
		}},
		{"bias/fetch", func() { isa.fetch((*byte)(unsafe.Pointer(&w.rows[0])), 4*(tileBlock+16), 4*tileBlock, pairLanes) }},
		{"bias/pairs", func() { transposeColumns(w.p, pairLanes, w.halves, w.dim, w.dim/2, pairLanes) }},
	}
}
