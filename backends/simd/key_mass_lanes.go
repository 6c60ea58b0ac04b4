//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"

	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/backends/simd/internal/scalar"
	"github.com/flashkit-go/flashkit/internal/philox"
)

// The weights of a tile are relative to the running maxima of its rows, and their final factors are
// known only after all keys. So a tile of a call with KeyMass keeps its weights, [keys][lanes], and the
// running maxima of each part of the keys. After all keys, each weight is multiplied by its row's
// factor and added to the sum of the item's tiles, lane by lane. After all tiles, the lanes are added. An item
// always has itemRows rows, because sums of other items have other bits. More rows keep more weights,
// which leave the caches. Fewer rows add lanes more often.

// tileMass holds the weights of a tile, and the parts of keys that it has seen.
type tileMass struct {
	p     []float32 // [keys][lanes]
	tops  []float32 // [parts][lanes], the row maxima to which the part's weights are relative
	ends  []uint32  // [parts][2], first key of a part and the key after its last
	parts int
}

// itemMass is the workspace of the tiles of an item.
type itemMass struct {
	on     bool
	first  int       // first key of the item
	last   int       // key after its last
	s      []float32 // the ordinary buffer of scores
	copied []float32 // the place of the current part's weights, if dropout changes the buffer of scores
	sum    []float32 // [keys][lanes], sum over the tiles so far
	by     []float32 // [lanes], factors of the current part
}

// massParts returns the largest number of parts of a tile. A part ends at a block's end, at an edge of
// the band, or where a group of the mask ends.
func massParts(keys int) int { return keys/8 + 16 }

func (pl *plan) massFloatsOfTile(lanes int) int {
	if !pl.p.KeyMass {
		return 0
	}
	return count(float64(pl.p.KVLen)*float64(lanes) + float64(massParts(pl.p.KVLen))*float64(lanes+2))
}

func (pl *plan) massFloatsOfItem(lanes int) int {
	if !pl.p.KeyMass {
		return 0
	}
	return count(float64(pl.p.KVLen)*float64(lanes+2)+2) + lanes
}

// beginMass prepares x for an item with keys [first, last).
func (x *laneScratch) beginMass(j *job, ws *pool.Arena, lanes, first, last int) {
	if !j.p.KeyMass {
		return
	}
	m := &x.mass
	*m = itemMass{on: true, first: first, last: last, s: x.s, sum: ws.Take(max(0, last-first) * lanes), by: ws.Take(lanes)}
	clear(m.sum)
}

func (t *laneTile) beginMass(ws *pool.Arena, lanes, keys int) {
	parts := massParts(keys)
	t.mass = tileMass{p: ws.Take(keys * lanes), tops: ws.Take(parts * lanes), ends: takeWords(ws, 2*parts)}
}

// beginPart makes the routines store the weights of keys [from, until) in the memory of the tile.
func (x *laneScratch) beginPart(t *laneTile, lanes, from, until int) {
	m, y := &x.mass, &t.mass
	place := y.p[(from-m.first)*lanes : (until-m.first)*lanes]
	if x.drops {
		m.copied = place
	} else {
		x.s = place
	}
	y.ends[2*y.parts], y.ends[2*y.parts+1] = uint32(from), uint32(until)
}

func (x *laneScratch) endPart(t *laneTile, lanes int) {
	x.s = x.mass.s
	copy(t.mass.tops[t.mass.parts*lanes:][:lanes], t.m)
	t.mass.parts++
}

// keepPart copies the weights of keys [from, from+keys) to the memory of the tile, in a kernel that then
// rounds the weights.
func (x *laneScratch) keepPart(t *laneTile, lanes, from, keys int) {
	m, y := &x.mass, &t.mass
	if !m.on {
		return
	}
	until, skip := from+keys, max(m.first-from, 0) // a part of pairs may begin one key before the item
	from += skip
	copy(y.p[(from-m.first)*lanes:(until-m.first)*lanes], x.s[skip*lanes:])
	y.ends[2*y.parts], y.ends[2*y.parts+1] = uint32(from), uint32(until)
	copy(y.tops[y.parts*lanes:][:lanes], t.m)
	y.parts++
}

// addMass adds the tile's weights to the sum of the item's tiles. x.factors has
// the factors of O.
func (isa *laneRoutines) addMass(j *job, t *laneTile, x *laneScratch) {
	m, y, lanes := &x.mass, &t.mass, isa.lanes
	bad := uint32(0) // rows whose weights are NaN
	keep := float64(1)
	if p := j.p.Score.Dropout; p != 0 {
		keep = float64(philox.Keep(p)) // a factor of O, but not of the weights
	}
	var factors [32]float64
	for i, l := range t.l[:t.n] {
		switch f := float64(x.factors[i]) / keep; {
		case l != l || f != f:
			bad |= 1 << i
		case l != 0:
			factors[i] = f
		}
	}
	for part := range y.parts {
		from, until := int(y.ends[2*part]), int(y.ends[2*part+1])
		for i, top := range y.tops[part*lanes:][:lanes] {
			m.by[i] = float32(factors[i])
			if factors[i] != 0 && top != t.m[i] {
				m.by[i] = float32(factors[i] * float64(scalar.Exp(j.unit*(float64(top)-float64(t.m[i])))))
			}
		}
		isa.addScaled(&m.sum[(from-m.first)*lanes], &y.p[(from-m.first)*lanes], until-from, &m.by[0])
	}
	for i := range t.n {
		for key := m.first; bad>>i&1 != 0 && key < m.last; key++ {
			if j.sees(&t.seq, t.seq.h, t.from+i, key) {
				m.sum[(key-m.first)*lanes+i] = float32(math.NaN())
			}
		}
	}
}

// endMass adds the lanes of the item's sums, and the results to the sums of the head's keys.
func (isa *laneRoutines) endMass(j *job, ws *pool.Arena, x *laneScratch, t *seqTile) {
	m, grid := &x.mass, massGrid(t.N)
	if m.last <= m.first {
		return
	}
	keys := m.last - m.first
	terms := doubles(ws.Take(2*keys + 2))[:keys]
	for c := range terms {
		sum := float32(0)
		for i := 0; i < isa.lanes; i += 16 {
			x := (*[16]float32)(m.sum[c*isa.lanes+i:])
			a, b := (x[0]+x[1])+(x[2]+x[3]), (x[4]+x[5])+(x[6]+x[7])
			d, e := (x[8]+x[9])+(x[10]+x[11]), (x[12]+x[13])+(x[14]+x[15])
			sum += (a + b) + (d + e)
		}
		terms[c] = (float64(sum) + grid) - grid
	}
	j.addMass(t.b, t.h, m.first, terms)
}
