//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd/internal/pool"
	"github.com/flashkit-go/flashkit/internal/philox"
)

// gradScore computes P and dS of panels under score features and dropout:
//
//	S = dot products, scaled and capped, plus bias and ALiBi
//	P = exp(S - LSE); g = P (z dP - delta)
//	dBias += g; dS = scale g c; P = P z
//
// z is the factor of dropout, and c is the derivative of the softcap. Keys are in the lanes, as in
// the routine without features.
type gradScore struct {
	isa     *laneRoutines
	on      bool // some feature changes scores or weights
	adjusts bool // some feature changes scores

	scale   float32 // softmax scale
	unit    float32 // softmax scale, or 1 if score features have applied it
	by      float32 // factor of dS
	softcap float32
	slope   float32
	below   uint32 // a random number below this one drops a weight
	keep    float32

	h, from, n int // head, first row and number of rows of the tile

	bias        []float32 // of the tile and the block, biasStep between rows
	halves      []uint16  // replaces bias: bf16, read in place
	asHalves    bool      // the kernel's dot products accept halves
	biasStep    int
	widened     []float32 // copy of the bias, [rows][keys]
	softcapGrad []float32 // [rows][lanes], nil without a cap
	kept        []uint32  // [rows], nil without dropout
	top         []float32 // [lanes], scratch for row maxima
	db          biasGrad

	fetch     [2]rowFetch // rows of the next tile's bias and dBias
	fetchEach int         // rows per fetchSome
	parts     int         // number of parts of a panel's dot products, with a fetchSome after each
}

// newGradScore returns a gradScore. by is the factor of dS.
func (isa *laneRoutines) newGradScore(j *job, ws *pool.Arena, by float64) gradScore {
	s := &j.p.Score
	g := gradScore{isa: isa, on: j.featured(), adjusts: adjusts(j.call), scale: float32(j.scale), unit: float32(j.unit), by: float32(by), parts: 1}
	if !g.on {
		return g
	}
	g.top = ws.Take(isa.lanes)
	if s.Softcap != 0 {
		g.softcapGrad = ws.Take(j.rows * isa.lanes)
		// Omit a cap far above every score: its reciprocal times scale would be denormal.
		if g.softcap = s.Softcap; math.Abs(j.scale/float64(s.Softcap)) < 0x1p-126 {
			g.softcap, g.softcapGrad = 0, nil
		}
	}
	if s.Bias {
		g.widened = ws.Take(j.rows * j.keys)
		g.db = newBiasGrad(j, ws, isa.lanes)
	}
	if s.Dropout > 0 {
		g.kept = takeWords(ws, j.rows)
		g.below, g.keep = philox.Below(s.Dropout), philox.Keep(s.Dropout)
	}
	return g
}

// setTile prepares g for the panels of a tile: query rows [from, from+n) of head h.
func (g *gradScore) setTile(j *job, x *keyRange, h, from, n int) {
	if !g.on {
		return
	}
	g.h, g.from, g.n = h, from, n
	if j.p.Score.ALiBi {
		g.slope = slopeOf(j.args, x.b, h)
	}
	if j.p.Score.Bias {
		g.setBias(x, &j.args.Bias, j.keys)
		g.setFetch(j, x, h, from/j.rows)
		g.db.begin()
	}
}

// setBias sets the biases of the tile. It uses them in place if the kernel accepts their type and
// no whole vector of lanes extends beyond the tensor. Otherwise it copies the biases to g.widened.
func (g *gradScore) setBias(x *keyRange, t *flashkit.Tensor, size int) {
	rows, step := g.n, rowStep(t)
	at := t.Repeated(x.b, g.h, g.from) + x.from
	keys := x.to - x.from
	if step == 0 {
		rows = 1
	}
	end := at + (rows-1)*step + ceilDiv(keys, g.isa.lanes)*g.isa.lanes
	g.halves = nil
	switch {
	case end > t.Len():
	case t.DType() == flashkit.Float32:
		g.bias, g.biasStep = t.Float32s()[at:end], step
		return
	case t.DType() == flashkit.BFloat16 && g.asHalves && g.n%2 == 0: // products process rows in pairs
		g.bias, g.halves, g.biasStep = nil, t.Uint16s()[at:end], step
		return
	}
	g.bias, g.biasStep = g.widened, size
	if step == 0 {
		g.biasStep = 0
	}
	for r := range rows {
		g.isa.load(g.widened[r*size:][:keys], t, at+r*step)
	}
}

// gradients computes P and dS of n rows, from row lo of the tile on, for the panel that begins at
// key k. s holds Q Kᵀ, which P replaces. dp holds dO Vᵀ. dS is stored in ds, which may be dp.
func (g *gradScore) gradients(j *job, x *keyRange, k, lo, n int, s, dp, ds []float32, dsStep int, masks []uint32, lse, delta []float32) {
	if g.adjusts {
		softcapGrad, bias, lanes := g.operands(j, x, k, lo)
		g.isa.scoreMod(&s[0], g.isa.lanes, n, &g.top[0], softcapGrad, g.scale, g.softcap, bias, g.biasStep, lanes, g.slope, g.distance(x, k, lo))
	}
	g.gradientsOf(j, x, k, lo, n, 0, s, dp, ds, dsStep, masks, lse, delta)
}

// operands returns the addresses of the softcap's derivatives, of float32 biases, and of lane
// numbers. An address is nil if the score has no such feature.
func (g *gradScore) operands(j *job, x *keyRange, k, lo int) (softcapGrad, bias, lanes *float32) {
	if g.softcapGrad != nil {
		softcapGrad = &g.softcapGrad[0]
	}
	if j.p.Score.Bias && g.halves == nil {
		bias = &g.bias[lo*g.biasStep+k-x.from]
	}
	if j.p.Score.ALiBi {
		lanes = &laneNumbers[0]
	}
	return softcapGrad, bias, lanes
}

func (g *gradScore) distance(x *keyRange, k, lo int) float32 {
	return float32(g.from + lo + x.Diagonal - k)
}

// keeps returns the address of one word per row, with a bit for each pair that dropout keeps. It
// returns nil without dropout.
func (g *gradScore) keeps(j *job, x *keyRange, k, lo, n int) *uint32 {
	if g.kept == nil {
		return nil
	}
	o := &j.args.Origin
	g.isa.dropoutMask(&g.kept[0], n, o.Row+g.from+lo, o.Key+k, uint32(o.Head+g.h), uint32(o.Batch+x.b), j.args.Seed, g.below)
	return &g.kept[0]
}

// gradientsOf does the work of gradients if s already holds scores. g.softcapGrad holds the
// derivatives of the softcap for these rows, from its row with index capped on.
func (g *gradScore) gradientsOf(j *job, x *keyRange, k, lo, n, capped int, s, dp, ds []float32, dsStep int, masks []uint32, lse, delta []float32) {
	var db *float32
	if j.p.Score.Bias {
		db = g.db.panel(k-x.from, lo, n)
	}
	var softcapGrad *float32
	if g.softcapGrad != nil {
		softcapGrad = &g.softcapGrad[capped*g.isa.lanes]
	}
	kept := g.keeps(j, x, k, lo, n)
	g.isa.gradientsOf(&s[0], &dp[0], &ds[0], dsStep, &masks[0], n, &lse[0], &delta[0], g.unit, g.by, kept, g.keep, softcapGrad, db)
	if db != nil {
		g.db.storePanel(j, g, x, k, lo, n)
	}
}

// recompute repeats the work of gradients, and stores dS in dp. It does not add to dBias again.
func (g *gradScore) recompute(j *job, x *keyRange, k, lo, n int, s, dp []float32, masks []uint32, lse, delta []float32) {
	kind := g.db.kind
	g.db.kind = noBias // dBias already includes these pairs
	g.gradients(j, x, k, lo, n, s, dp, dp, g.isa.lanes, masks, lse, delta)
	g.db.kind = kind
}

var laneNumbers = func() (x [32]float32) {
	for i := range x {
		x[i] = float32(i)
	}
	return x
}()
