//go:build !purego

package simd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/half"
)

// A shaping is the arguments of shapedScores.
type shaping struct {
	words, keys, step int
	k                 []uint16
	q, masks, bias    []uint32
	top, lanes        []float32
	scale, softcap    float32
	slope, at         float32
}

func newShaping(r *rand.Rand) *shaping {
	x := &shaping{words: 16 * (1 + r.IntN(5)), keys: 1 + r.IntN(tileBlock), top: make([]float32, pairLanes), scale: r.Float32()}
	if r.IntN(4) == 0 {
		x.keys = 1 + r.IntN(40)
	}
	x.step = 2*x.words + 2*r.IntN(8)
	x.k, x.q = make([]uint16, upToTiles(x.keys)*x.step), make([]uint32, x.words*pairLanes)
	for _, halves := range [][]uint16{x.k, halves(x.q)} {
		for i := range halves {
			halves[i] = half.ToBF16(float32(r.NormFloat64()))
		}
	}
	if r.IntN(3) == 0 {
		x.k[r.IntN(x.keys*x.step)] = []uint16{0x7fc0, 0x7f80, 0xff80, 0x7f00}[r.IntN(4)] // NaN, infinities, a large one
	}
	for i := range x.top {
		x.top[i] = []float32{float32(math.Inf(-1)), float32(r.NormFloat64())}[r.IntN(2)]
	}
	if r.IntN(2) == 0 {
		x.softcap = 1 + 10*r.Float32()
	}
	if r.IntN(2) == 0 {
		x.bias = make([]uint32, upToTiles(x.keys)/2*pairLanes)
		for i := range halves(x.bias) {
			halves(x.bias)[i] = half.ToBF16(float32(r.NormFloat64()))
		}
	}
	if r.IntN(2) == 0 {
		x.slope, x.at, x.lanes = r.Float32(), float32(r.IntN(600)-300), laneNumbers[:]
	}
	if x.keys%2 == 1 || r.IntN(2) == 0 {
		x.masks = make([]uint32, x.keys+1)
		for i := range x.keys {
			x.masks[i] = []uint32{0, ^uint32(0), r.Uint32()}[r.IntN(3)]
		}
	}
	return x
}

// want returns the scores and maxima that the separate routines compute, one after the other.
func (x *shaping) want() (s, top []float32) {
	s, top = make([]float32, upToTiles(x.keys)*pairLanes), append([]float32{}, x.top...)
	unseen := make([]float32, pairLanes)
	scoresAMXBF16(&s[0], &x.k[0], x.step, &x.q[0], x.words, x.keys, &unseen[0])
	if x.bias != nil || x.lanes != nil || x.softcap != 0 {
		var bias []float32
		for i := range len(x.bias) / pairLanes * 2 * pairLanes {
			pair, lane := i/pairLanes/2, i%pairLanes
			bias = append(bias, half.FromBF16(halves(x.bias)[2*(pair*pairLanes+lane)+i/pairLanes%2]))
		}
		scoreModAVX512(&s[0], pairLanes, x.keys, &unseen[0], nil, x.scale, x.softcap, first(bias), pairLanes, first(x.lanes), x.slope, x.at)
	}
	for i, y := range s[:x.keys*pairLanes] {
		lane := i % pairLanes
		if x.masks != nil && x.masks[i/pairLanes]>>lane&1 == 0 {
			y = float32(math.Inf(-1))
			s[i] = y
		}
		if y > top[lane] {
			top[lane] = y
		}
	}
	return s, top
}

// shapedScores gives the same bits as the separate routines for products, score features and masks.
func TestShapedScores(t *testing.T) {
	if reason := amxbf16().missing(); reason != "" {
		t.Skip(reason)
	}
	r := rand.New(rand.NewPCG(rand.Uint64(), 1))
	for range 500 {
		x := newShaping(r)
		s, top := x.want()
		n := x.keys * pairLanes
		got := newFenced(len(s))
		var masks, bias *uint32
		if x.masks != nil {
			masks = &x.masks[0]
		}
		if x.bias != nil {
			bias = &x.bias[0]
		}
		shapedScoresAMXBF16(&got.x[0], &x.k[0], x.step, &x.q[0], x.words, x.keys, &x.top[0], masks, x.scale, x.softcap, bias, first(x.lanes), x.slope, x.at)
		name := fmt.Sprintf("%d words, %d keys, scale %g, softcap %g, slope %g, bias %v, masks %v", x.words, x.keys, x.scale, x.softcap, x.slope, bias != nil, masks != nil)
		require.Equal(t, bitsOf(s[:n]), bitsOf(got.x[:n]), name)
		require.Equal(t, bitsOf(top), bitsOf(x.top), name)
		got.requireFence(t, 1, 1)
	}
}

// bitsOf returns the bits of numbers, with one pattern for all NaN.
func bitsOf(x []float32) []uint32 {
	bits := make([]uint32, len(x))
	for i, y := range x {
		if bits[i] = math.Float32bits(y); y != y {
			bits[i] = math.Float32bits(float32(math.NaN()))
		}
	}
	return bits
}

func TestDropPairs(t *testing.T) {
	if reason := avx512.missing(); reason != "" {
		t.Skip(reason)
	}
	r := rand.New(rand.NewPCG(rand.Uint64(), 1))
	rows := make([]uint32, pairLanes)
	for range 500 {
		x, keys, key := newDropping(r), 1+r.IntN(40), 8*r.IntN(1<<r.IntN(30))
		for i := range rows {
			rows[i] = r.Uint32()
		}
		got := newFenced((keys + 7) / 8 * 4 * pairLanes)
		p := halves(words(got.x))
		for i := range p {
			p[i] = uint16(r.Uint32())
		}
		want := append([]uint16{}, p...)
		for i := range want {
			pair, lane := i/2/pairLanes, i/2%pairLanes
			if x.drops(rows[lane], key+2*pair+i%2) {
				want[i] = 0
			}
		}
		dropPairsAMXBF16(&words(got.x)[0], keys, key, &rows[0], x.head, x.batch, x.seed, x.below)
		require.Equal(t, want, p, "%d keys from %d on, %+v", keys, key, x)
		got.requireFence(t, 1, 1)
	}
}
