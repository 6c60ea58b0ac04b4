package ring

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flashkit-go/flashkit"
)

// A Span is the half-open range [From, To) of rows or keys of sequence Seq.
type Span struct {
	Seq      int // number of the sequence, 0 in a problem that is not Ragged
	From, To int // first row or key, and the end
}

func (s Span) len() int { return s.To - s.From }

// A Cut assigns rows and keys to ranks. It depends only on the problem, the sequences and the
// number of ranks, so every rank computes the same Cut. It is safe for concurrent use.
//
// A sequence whose band has one limit, such as a causal band, is cut into two pieces per rank. Rank
// r holds piece r from the front and piece r from the back (zig-zag), which balances each step.
// Other sequences are cut into one piece per rank. In a packed problem, each short sequence is
// assigned whole to one rank, and needs no keys of other ranks. The assignment balances the ranks'
// work.
type Cut struct {
	p       flashkit.Problem
	size    int
	ordered bool

	seqs             []flashkit.Seq // a single entry for a dense problem
	packedQ, packedK bool
	rows, keys       [][]Span // spans of each rank, in the order of its tensors
}

// The pieces of a sequence begin at multiples of these numbers of rows or keys.
const (
	align        = 128 // ordered cut: each warp gets the same rows as in an uncut call, and most tiles begin at the same rows
	leftAlign    = 384 // ordered cut with a left limit: a tile's first key depends on its rows, and tiles have 128 or 192 rows
	dropoutAlign = 8   // with dropout: keys that share a random counter
)

// mostRanks limits the memory of a Cut.
const mostRanks = 1 << 16

// NewCut returns the cut of p for size ranks, at most 65536. seqs are the whole problem's sequences, nil if p is
// not Ragged. ordered makes the cut for an ordered Ring. The error is a *flashkit.ProblemError, or
// a *flashkit.UnsupportedError for a feature of unknown Scope.
func NewCut(p flashkit.Problem, seqs *flashkit.Sequences, size int, ordered bool) (*Cut, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if size < 1 || size > mostRanks {
		return nil, &flashkit.ProblemError{Field: "size", Value: strconv.Itoa(size), Reason: fmt.Sprintf("must be from 1 to %d ranks", mostRanks)}
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

// checkSeqs returns an error for sequences that no call of p could have.
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
	// Check examines the sequences before it requires tensors.
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

// isZigZag reports whether the work per row grows or falls along the sequence, so that the cut is
// zig-zag.
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

// part returns the first row of piece i if n rows are cut into the given number of pieces.
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
	// n*i might overflow.
	return n/pieces*i + n%pieces*i/pieces
}

// appendSpan appends s to the list, unless s is empty. If s continues the last span, appendSpan
// extends that span instead.
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

// slack is the maximum work of the busiest rank in a packed cut, relative to the mean.
const slack = 1.02

// assign returns, for each sequence, the rank that holds all of it, or -1 if the sequence is cut.
// It cuts the sequences with the most work, and assigns the other sequences, in order of decreasing
// work, to the least busy rank. It cuts more sequences until the busiest rank has at most slack
// times the mean work.
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

// Rows returns a rank's query rows in the order of the rank's tensors. A problem that is not Ragged
// has one list for all batches. rank must be from 0 to Size()-1, as in Keys, QLen and KVLen.
func (c *Cut) Rows(rank int) []Span { return slices.Clone(c.rows[rank]) }

// Keys returns a rank's keys in the order of the rank's tensors, as Rows does.
func (c *Cut) Keys(rank int) []Span { return slices.Clone(c.keys[rank]) }

// QLen returns the number of query rows in a rank's tensors. If the sequences are packed, this is
// the rank's total of rows. Otherwise it is the largest number of rows that the rank has of one
// sequence.
func (c *Cut) QLen(rank int) int { return extent(c.rows[rank], c.packedQ) }

// KVLen returns the number of keys in a rank's tensors. If the sequences are packed, this is the
// rank's total of keys. Otherwise it is the largest number of keys that the rank has of one
// sequence.
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

// A share is a rank's part of one sequence: the spans, and the batch entry and row of the rank's
// tensors at which the spans begin.
type share struct {
	seq       int
	spans     []Span
	batch, at int
}

// shares groups a list of spans by sequence, in order.
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
