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

// faults are the steps of the kernels that a mutant can replace. A mutant replaces one step, or a
// few related steps.
type faults struct {
	// Before the computation.
	refuse func(p problem, q tensor) error // error returned instead of a result
	idle   func(p problem) bool            // whether to return without writing the outputs

	// Addresses and ranges.
	offset func(t tensor, b, h, r int) int            // offset of row r of head h of batch b
	kvHead func(p problem, h int) int                 // KV head of query head h
	values func(v [][]float32) [][]float32            // V of one head, as the kernel uses it
	keys   func(p problem, i int) (lo, hi int)        // range of keys that row i sees
	first  func(p problem, i, lo int) int             // a key in the first tile of row i
	keyEnd func(m int) int                            // end of the loop over m keys
	rowEnd func(n int) int                            // end of the loop over n query rows
	dim    func(d int) int                            // number of elements of Q and K rows that enter a score
	vdim   func(p problem) int                        // number of computed columns of O
	hidden func(s float32, j, lo int) (float32, bool) // score of key j outside the band in a computed tile, and whether it counts
	unused func(n int) []float32                      // scores of the n keys that a short last tile lacks

	// Softmax.
	scale    func(p problem) float32
	sum      func(t flashkit.DType, x float32) float32 // stored value of Q·K
	guard    func(m float32) float32                   // value subtracted from the scores if m is the maximum
	exp      func(x float32) float32
	begin    func(r *row, lo, hi int)     // sets the initial state of a row that sees [lo, hi)
	raise    func(m, top float32) float32 // new maximum after a tile whose largest score is top
	rescaleO func(alpha float32) float32  // factor of o when the maximum grows; rescaleL is the factor of l
	rescaleL func(alpha float32) float32
	divisor  func(l float64) float64 // divisor of O
	lse      func(m float32, l float64) float32

	// Rounding of a sum, applied after each added term.
	sumKeys func(sum float64) float64 // over keys: l, O and dQ
	sumRows func(sum float64) float64 // over query rows: dK and dV
	sumMore func(sum float64) float64 // over broadcast dimensions: dBias and dSink

	// The backward pass.
	past    func(lse float32) float32 // value subtracted from the scores to compute P
	delta   func(c *call, doDotO, dlse float32) float32
	dkScale func(scale float32) float32 // factor of dS·Q in dK
	share   func(sum [][]float64)       // changes dK or dV of a KV head before another query head adds to it

	featureFaults
}

// featureFaults are the steps of features that a mutant can replace.
type featureFaults struct {
	// Sequences.
	sequence func(c *flashkit.Call, b int) flashkit.Seq
	aligned  func(c *call) problem                           // problem whose lengths align the band
	page     func(c *flashkit.Call, b, j int) (page, at int) // page of key j of sequence b, and its index in the page
	pads     func(c *call, name string, packed bool) bool    // whether the rows beyond the end of a sequence are filled

	// K and V of another type.
	kv     func(t tensor, at int) float32       // an element of K or V
	query  func(c *call, q []float32) []float32 // row of Q that enters the scores
	weight func(c *call, w float32) float32     // weight that multiplies V

	// Int8 keys and values.
	code       func(x int8) float32
	scalePlace func(of scaleOf) scaleOf // place of the element whose scale counts
	scaleAt    func(t tensor, at int) float32
	scaled     func(s float32, of scaleOf) float32

	// Scores.
	score    func(c *call, x float32, at pair) (s, slope float32) // score of a scaled dot product x, and the derivative of the softcap
	cap      func(x, limit float32) (s, slope float32)
	index    func(c *call, t tensor, at pair) int          // index of a pair in bias or mask
	bias     func(c *call, t tensor, at int) float32       // element of the bias
	steep    func(c *call, at pair) float32                // slope of ALiBi
	distance func(c *call, at pair) int                    // distance of a pair from the diagonal
	shown    func(c *call, at pair) bool                   // whether the mask shows a pair
	ranges   func(c *call, at pair) []int32                // ranges of the row of a pair
	within   func(c *call, ranges []int32, at pair) bool   // whether a range of the row has the key
	masked   func(c *call, s float32) (x float32, ok bool) // new score of a pair that the mask hides, and whether it counts

	// Sink and earlier keys.
	sink   func(c *call, r *row, at pair)
	carry  func(c *call, r *row, at pair)
	end    func(c *call, r *row, at pair) // called after the row's last key
	settle func(c *call, r *row, at pair) // called after O is written, before LSE

	// Row maximum.
	higher func(r *row, top float32) float32      // the row's largest score after a tile whose largest score is top
	peak   func(c *call, r *row, at pair) float32 // the row maximum that is written

	// Sums of keys.
	mass     func(c *call, r *row, s float32, at pair) float64 // returns the addend of score s to the sum of a key
	massOf   func(c *call, h, j int) (to, key int)             // query head and key to whose element a sum is written
	massEnds func(c *call) int                                 // number of keys whose elements are written

	// Dropout.
	counter        func(c *call, at pair) (key [2]uint32, x [4]uint32)
	half           func(words [4]uint32, j int) uint32 // random number of key j from the counter's words
	kept           func(number uint32, p float64) bool
	makeUp         func(p float64) float32                   // factor of kept weights
	keep           func(c *call, at pair) float32            // dropout factor of a weight in O
	counted        func(c *call, w float32, at pair) float32 // contribution of a weight to the sum
	keepDV, keepDP func(c *call, at pair) float32            // dropout factors: of P in dV, of dP in dS

	// Gradients.
	dbias  func(c *call, at pair, ds, slope float32) float32 // contribution of a pair to DBias
	row    func(t tensor, at int)                            // called with a row of DBias before its elements are written
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

		code:       func(x int8) float32 { return float32(x) },
		scalePlace: itself[scaleOf],
		scaleAt:    value,
		scaled:     func(s float32, _ scaleOf) float32 { return s },

		score:    capBiasALiBi,
		cap:      softcap,
		index:    indexOf,
		bias:     func(_ *call, t tensor, at int) float32 { return value(t, at) },
		steep:    finiteSlope,
		distance: func(c *call, at pair) int { return abs(fromDiagonal(c.p, at)) },
		shown:    maskAt,
		ranges:   rangesAt,
		within:   func(_ *call, ranges []int32, at pair) bool { return holds(ranges, at.j) },
		masked:   func(*call, float32) (float32, bool) { return 0, false },

		sink:   takeSink,
		carry:  takeEarlier,
		end:    func(*call, *row, pair) {},
		settle: func(*call, *row, pair) {},

		higher: func(r *row, top float32) float32 { return max(r.top, top) },
		peak:   withEarlierMax,

		mass:     weightOf,
		massOf:   func(_ *call, h, j int) (int, int) { return h, j },
		massEnds: func(c *call) int { return c.c.KVLen },

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

// correct returns the steps of a correct kernel.
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
		guard:    func(m float32) float32 { return max(m, -math.MaxFloat32) }, // if m is -Inf, exp must return 0, not exp(-Inf + Inf)
		exp:      func(x float32) float32 { return float32(math.Exp(float64(x))) },
		begin:    func(r *row, _, _ int) { r.reset(negInf) },
		raise:    func(m, top float32) float32 { return max(m, top) },
		rescaleO: itself[float32],
		rescaleL: itself[float32],
		divisor:  func(l float64) float64 { return cmp.Or(l, 1) }, // O of a row that sees no key is already 0
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
