package mutants

import (
	"cmp"
	"math"

	"github.com/flashkit-go/flashkit"
)

type (
	problem = flashkit.Problem
	tensor  = flashkit.Tensor
)

// faults are the places where the kernels can go wrong. A mutant changes one.
type faults struct {
	// Before the work.
	refuse func(p problem, q tensor) error // an error instead of a result
	idle   func(p problem) bool            // nothing to do: return and write nothing

	// Where things are.
	offset func(t tensor, b, h, r int) int            // of row r of head h of batch b
	kvHead func(p problem, h int) int                 // that query head h reads
	values func(v [][]float32) [][]float32            // V of one head, as read
	keys   func(p problem, i int) (lo, hi int)        // that row i sees: from lo up to hi
	first  func(p problem, i, lo int) int             // a key of the first tile that row i visits
	keyEnd func(m int) int                            // where the loop over m keys stops
	rowEnd func(n int) int                            // where the loop over n query rows stops
	dim    func(d int) int                            // the elements of a row of Q and K that enter a score
	vdim   func(p problem) int                        // the columns of O that are computed
	hidden func(s float32, j, lo int) (float32, bool) // the score of a masked key j in a visited tile, and whether it counts
	unused func(n int) []float32                      // the scores of the last n keys of a tile, which do not exist

	// Softmax.
	scale    func(p problem) float32
	sum      func(t flashkit.DType, x float32) float32 // how Q·K is kept
	guard    func(m float32) float32                   // what is taken off the scores for a maximum of m
	exp      func(x float32) float32
	begin    func(r *row, lo, hi int)     // what a row that sees [lo, hi) starts from
	raise    func(m, top float32) float32 // the new maximum, after a tile whose largest score is top
	rescaleO func(alpha float32) float32  // the factor of the sums so far when the maximum grows
	rescaleL func(alpha float32) float32
	divisor  func(l float64) float64 // of O
	lse      func(m float32, l float64) float32

	// How a sum is kept after each of its terms.
	sumKeys func(sum float64) float64 // over keys: l, O and dQ
	sumRows func(sum float64) float64 // over query rows: dK and dV
	sumMore func(sum float64) float64 // over what repeats: dBias and dSink

	// The backward pass.
	past    func(lse float32) float32 // what P takes off the scores
	delta   func(c *call, doDotO, dlse float32) float32
	dkScale func(scale float32) float32 // the factor of dS·Q
	share   func(sum [][]float64)       // dK or dV of a key head, before another query head adds to it

	featureFaults
}

// featureFaults are the places where the kernels can go wrong with a feature.
type featureFaults struct {
	// Sequences.
	sequence func(c *flashkit.Call, b int) flashkit.Seq
	aligned  func(c *call) problem                           // whose lengths place the band
	page     func(c *flashkit.Call, b, j int) (page, at int) // where key j of sequence b is
	pads     func(c *call, name string, packed bool) bool    // whether the rows beyond a sequence are filled

	// K and V of another type.
	kv     func(t tensor, at int) float32       // an element of K or V
	query  func(c *call, q []float32) []float32 // a row of Q, as scores take it
	weight func(c *call, w float32) float32     // a weight, as O takes it

	// Scores.
	score    func(c *call, x float32, at pair) (s, slope float32) // of a scaled dot product, and the slope of the softcap
	cap      func(x, limit float32) (s, slope float32)
	index    func(c *call, t tensor, at pair) int          // of a pair in bias and mask
	bias     func(c *call, t tensor, at int) float32       // the number there
	steep    func(c *call, at pair) float32                // the slope of ALiBi
	distance func(c *call, at pair) int                    // from the diagonal
	shown    func(c *call, at pair) bool                   // whether the mask lets a pair take part
	masked   func(c *call, s float32) (x float32, ok bool) // the score of a pair that it hides, and whether it counts

	// Sink and earlier keys.
	sink   func(c *call, r *row, at pair)
	carry  func(c *call, r *row, at pair)
	end    func(c *call, r *row, at pair) // after the last key
	settle func(c *call, r *row, at pair) // before LSE, after O

	// Dropout.
	counter        func(c *call, at pair) (key [2]uint32, x [4]uint32)
	half           func(words [4]uint32, j int) uint32 // the number of key j
	kept           func(number uint32, p float64) bool
	makeUp         func(p float64) float32                   // the factor of what is kept
	keep           func(c *call, at pair) float32            // what a weight in O is multiplied by
	counted        func(c *call, w float32, at pair) float32 // what a weight adds to the sum
	keepDV, keepDP func(c *call, at pair) float32            // what P in dV and dP in dS are multiplied by

	// Gradients.
	dbias  func(c *call, at pair, ds, slope float32) float32 // what a pair adds
	row    func(t tensor, at int)                            // a row of DBias, before its elements are written
	writes func(c *call, at pair, x float64) bool            // whether an element of DBias is written
	dsink  func(c *call, at pair, w, doDotO, dlse float32) float32
}

func correctFeatures() featureFaults {
	return featureFaults{
		sequence: (*flashkit.Call).Seq,
		aligned:  func(c *call) problem { return c.p },
		page:     pageOf,
		pads:     func(_ *call, _ string, packed bool) bool { return !packed },

		kv:     value,
		query:  func(_ *call, q []float32) []float32 { return q },
		weight: func(_ *call, w float32) float32 { return w },

		score:    capBiasALiBi,
		cap:      softcap,
		index:    indexOf,
		bias:     func(_ *call, t tensor, at int) float32 { return value(t, at) },
		steep:    finiteSlope,
		distance: func(c *call, at pair) int { return abs(fromDiagonal(c.p, at)) },
		shown:    maskAt,
		masked:   func(*call, float32) (float32, bool) { return 0, false },

		sink:   takeSink,
		carry:  takeEarlier,
		end:    func(*call, *row, pair) {},
		settle: func(*call, *row, pair) {},

		counter: counterOf,
		half:    halfOf,
		kept:    atLeast,
		makeUp:  makeUp,
		keep:    dropout,
		counted: func(_ *call, w float32, _ pair) float32 { return w },
		keepDV:  dropout,
		keepDP:  dropout,

		dbias:  func(_ *call, _ pair, ds, _ float32) float32 { return ds },
		row:    func(tensor, int) {},
		writes: func(*call, pair, float64) bool { return true },
		dsink:  func(_ *call, _ pair, w, doDotO, dlse float32) float32 { return w * (dlse - doDotO) },
	}
}

// correct returns the faults of nobody.
func correct() faults {
	return faults{
		refuse: func(problem, tensor) error { return nil },
		idle:   func(problem) bool { return false },

		offset: tensor.Offset,
		kvHead: func(p problem, h int) int { return h / (p.Heads / p.KVHeads) },
		values: func(v [][]float32) [][]float32 { return v },
		keys:   problem.Keys,
		first:  func(_ problem, _, lo int) int { return lo },
		keyEnd: itself[int],
		rowEnd: itself[int],
		dim:    itself[int],
		vdim:   func(p problem) int { return p.VDim },
		hidden: func(float32, int, int) (float32, bool) { return 0, false },
		unused: func(int) []float32 { return nil },

		scale:    func(p problem) float32 { return float32(p.SoftmaxScale()) },
		sum:      func(_ flashkit.DType, x float32) float32 { return x },
		guard:    func(m float32) float32 { return max(m, -math.MaxFloat32) }, // with no score yet exp must give 0, not exp(-Inf + Inf)
		exp:      func(x float32) float32 { return float32(math.Exp(float64(x))) },
		begin:    func(r *row, _, _ int) { r.reset(negInf) },
		raise:    func(m, top float32) float32 { return max(m, top) },
		rescaleO: itself[float32],
		rescaleL: itself[float32],
		divisor:  func(l float64) float64 { return cmp.Or(l, 1) }, // the O of a row that sees no key is 0 already
		lse:      func(m float32, l float64) float32 { return float32(float64(m) + math.Log(l)) },

		sumKeys: itself[float64],
		sumRows: itself[float64],
		sumMore: itself[float64],

		past:    itself[float32],
		delta:   func(_ *call, doDotO, dlse float32) float32 { return doDotO - dlse },
		dkScale: itself[float32],
		share:   func([][]float64) {},

		featureFaults: correctFeatures(),
	}
}

func itself[T any](x T) T { return x }
