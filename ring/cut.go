package ring

import (
	"cmp"
	"errors"
	"slices"
	"strconv"
	"strings"

	"github.com/flashkit-go/flashkit"
)

// A Span is a run of rows or keys of one sequence, from From up to but not including To.
type Span struct{ Seq, From, To int }

func (s Span) len() int { return s.To - s.From }

// A Cut says which rows and keys each rank holds. It depends on the problem, the sequences
// and the number of ranks alone, so that every rank computes the same one. It is safe for
// concurrent use.
//
// A sequence whose band has one limit, as a causal one, is cut in twice as many pieces as
// there are ranks; rank r holds piece r from the front and piece r from the back (zig-zag),
// so that all have equal work in each step. Other sequences are cut in one piece a rank.
// In a packed problem short sequences lie on one rank each, by work, after the shares of
// those that are cut: they need no keys of others.
type Cut struct {
	p       flashkit.Problem
	size    int
	ordered bool

	seqs             []flashkit.Seq // one for all of a dense problem
	packedQ, packedK bool
	rows, keys       [][]Span // of each rank, in the order in which they lie
}

// Of how many rows or keys pieces are multiples.
const (
	align        = 128 // of an ordered cut: what rows share a warp, and where most tiles begin
	leftAlign    = 384 // where the band has a left limit: which keys come first depends on the tile, of 128 or 192 rows
	dropoutAlign = 8   // with dropout: so many keys share a counter of random numbers
)

// NewCut returns the cut of p for so many ranks. The sequences are those of the whole, nil
// if p is not Ragged. An ordered cut is that of an ordered Ring. The error is a
// *flashkit.ProblemError, or a *flashkit.UnsupportedError for a feature of unknown Scope.
func NewCut(p flashkit.Problem, seqs *flashkit.Sequences, size int, ordered bool) (*Cut, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if size < 1 {
		return nil, &flashkit.ProblemError{Field: "size", Value: strconv.Itoa(size), Reason: "must be at least 1 rank"}
	}
	if err := featureScopes.check(&p); err != nil {
		return nil, err
	}
	if err := checkSeqs(p, seqs); err != nil {
		return nil, err
	}
	c := &Cut{p: p, size: size, ordered: ordered, rows: make([][]Span, size), keys: make([][]Span, size)}
	call := p.Ask(flashkit.PassForward)
	call.Args = &flashkit.Args{Seqs: seqs}
	n := min(p.Batch, 1)
	if p.Ragged {
		n, c.packedQ, c.packedK = p.Batch, seqs.QStarts != nil, seqs.KVStarts != nil
	}
	for b := range n {
		c.seqs = append(c.seqs, call.Seq(b))
	}
	whole := c.assign()
	for b := range c.seqs {
		if whole[b] < 0 {
			c.divide(b)
		}
	}
	for b, r := range whole {
		if s := &c.seqs[b]; r >= 0 {
			c.rows[r] = appendSpan(c.rows[r], Span{b, 0, s.N})
			c.keys[r] = appendSpan(c.keys[r], Span{b, 0, s.M})
		}
	}
	return c, nil
}

// checkSeqs refuses sequences that no call of p could have.
func checkSeqs(p flashkit.Problem, s *flashkit.Sequences) error {
	if p.Page != 0 {
		return &flashkit.ProblemError{Field: "Page", Value: strconv.Itoa(p.Page), Reason: "paged keys cannot be cut for ranks"}
	}
	if p.Ragged != (s != nil) {
		return &flashkit.ProblemError{Field: "Seqs", Value: strconv.FormatBool(s != nil), Reason: "must be given in a Ragged problem, and in no other"}
	}
	if s == nil {
		return nil
	}
	stub := func(starts []int32) flashkit.Tensor {
		if len(starts) == 0 {
			return flashkit.F32[float32](nil, p.Batch, 1, 0, 1)
		}
		return flashkit.F32[float32](nil, 1, 1, int(starts[len(starts)-1]), 1)
	}
	// The check of arguments looks at the sequences before it asks for tensors.
	err := p.Check(flashkit.PassForward, &flashkit.Args{
		Seqs: s,
		Q:    stub(s.QStarts),
		K:    stub(s.KVStarts),
	})
	if e := (*flashkit.ProblemError)(nil); errors.As(err, &e) && strings.HasPrefix(e.Field, "Seqs") {
		return err
	}
	return nil
}

// isZigZag reports whether work grows along the sequence.
func (c *Cut) isZigZag() bool {
	b := c.p.Band
	return (b.Left() == flashkit.Unlimited) != (b.Right() == flashkit.Unlimited)
}

// divide cuts sequence b among all ranks.
func (c *Cut) divide(b int) {
	s := &c.seqs[b]
	pieces := c.size
	if c.isZigZag() {
		pieces *= 2
	}
	for r := range c.size {
		for _, i := range [2]int{r, 2*c.size - 1 - r} {
			if i < pieces {
				c.rows[r] = appendSpan(c.rows[r], Span{b, c.part(s.N, i, pieces), c.part(s.N, i+1, pieces)})
				c.keys[r] = appendSpan(c.keys[r], Span{b, c.part(s.M, i, pieces), c.part(s.M, i+1, pieces)})
			}
		}
	}
}

// part returns where piece i of so many of n rows begins.
func (c *Cut) part(n, i, pieces int) int {
	unit := 1
	switch {
	case c.ordered && c.p.Band.Left() != flashkit.Unlimited:
		unit = leftAlign
	case c.ordered:
		unit = align
	case c.p.Score.Dropout != 0:
		unit = dropoutAlign
	}
	if unit > 1 && i < pieces {
		return min(n, (n+unit-1)/unit*i/pieces*unit)
	}
	// Without n*i, which might overflow.
	return n/pieces*i + n%pieces*i/pieces
}

// appendSpan appends a span, if it has rows, and joins it with the one that it follows.
func appendSpan(list []Span, s Span) []Span {
	if s.len() == 0 {
		return list
	}
	if n := len(list); n > 0 && list[n-1].Seq == s.Seq && list[n-1].To == s.From {
		list[n-1].To = s.To
		return list
	}
	return append(list, s)
}

// slack is by how much the busiest rank may exceed the mean in a packed cut.
const slack = 1.02

// assign returns for each sequence the rank that holds all of it, -1 for one that is cut.
// Cut are the fewest of the longest after which the others, the longest first to the rank
// with the least work, make no rank much busier than the mean.
func (c *Cut) assign() []int {
	whole := make([]int, len(c.seqs))
	for b := range whole {
		whole[b] = -1
	}
	if !c.packedQ || !c.packedK || c.size == 1 {
		return whole
	}
	work, sum := make([]float64, len(c.seqs)), 0.0
	order := make([]int, len(c.seqs))
	for b := range c.seqs {
		s := &c.seqs[b]
		work[b], order[b] = float64(s.Area())+float64(s.N)+float64(s.M), b
		sum += work[b]
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(work[b], work[a]) })
	load := make([]float64, c.size)
	for cut := 0; ; cut = max(cut+1, cut*5/4) {
		cut = min(cut, len(order))
		shared := 0.0
		for _, b := range order[:cut] {
			whole[b] = -1
			shared += work[b] / float64(c.size)
		}
		for r := range load {
			load[r] = shared
		}
		for _, b := range order[cut:] {
			least := 0
			for r := range load {
				if load[r] < load[least] {
					least = r
				}
			}
			whole[b] = least
			load[least] += work[b]
		}
		if cut == len(order) || slices.Max(load) <= slack*sum/float64(c.size) {
			return whole
		}
	}
}

// Size returns the number of ranks.
func (c *Cut) Size() int { return c.size }

// Rows returns the query rows of a rank, in the order in which they lie in its tensors, one
// list for all batches of a problem that is not Ragged.
func (c *Cut) Rows(rank int) []Span { return slices.Clone(c.rows[rank]) }

// Keys returns the keys of a rank, likewise.
func (c *Cut) Keys(rank int) []Span { return slices.Clone(c.keys[rank]) }

// QLen returns how many rows the tensors of a rank have: of a packed problem all of them,
// else the most of a sequence.
func (c *Cut) QLen(rank int) int { return extent(c.rows[rank], c.packedQ) }

// KVLen returns how many keys they have.
func (c *Cut) KVLen(rank int) int { return extent(c.keys[rank], c.packedK) }

func extent(spans []Span, packed bool) (n int) {
	of := 0
	for i, s := range spans {
		if !packed && i > 0 && spans[i-1].Seq != s.Seq {
			of = 0
		}
		of += s.len()
		n = max(n, of)
	}
	return n
}

// A share is what a rank has of one sequence: the spans, and where they begin in its tensors.
type share struct {
	seq       int
	spans     []Span
	batch, at int
}

// shares returns the shares that a list of spans is, in its order.
func shares(spans []Span, packed bool) (list []share) {
	at := 0
	for i, s := range spans {
		if i > 0 && spans[i-1].Seq == s.Seq {
			last := &list[len(list)-1]
			last.spans = append(last.spans, s)
		} else if packed {
			list = append(list, share{s.Seq, spans[i : i+1 : i+1], 0, at})
		} else {
			list = append(list, share{s.Seq, spans[i : i+1 : i+1], s.Seq, 0})
		}
		at += s.len()
	}
	return list
}
