package dispatch

import (
	"context"
	"fmt"
	"math"
	"strconv"
	"strings"
	"sync"

	"github.com/flashkit-go/flashkit"
)

// A Prefix is the first keys and values of all sequences of a call, such as a system prompt.
type Prefix struct {
	K flashkit.Tensor // keys [1, G, P, D]; with Pages, a pool [pages, G, Page, D]
	V flashkit.Tensor // values [1, G, P, DV]; with Pages, a pool [pages, G, Page, DV]

	Pages []int32 // numbers of the pages that hold the keys; nil without pages
	Len   int     // number of keys P in Pages; 0 without pages
}

// prefixTakes are the features of problems with a shared prefix.
const prefixTakes = flashkit.FeatureShift | flashkit.FeatureSoftcap | flashkit.FeatureSink | flashkit.FeatureRagged |
	flashkit.FeaturePage | flashkit.FeatureCarry | flashkit.FeatureMixed

// ForwardPrefix is Forward for sequences that begin with the same keys: p and args describe the
// other keys. The result is the result of one call over all keys, up to rounding. The prefix is read
// once for all sequences and for all query heads of a KV head.
//
// Every row sees the whole prefix. So ForwardPrefix refuses a Band that hides a part of it: a limit
// on the left, a causal band aligned top-left, and sequences whose own keys are fewer than their
// rows under a causal band. The Band applies to a sequence's own keys. ForwardPrefix supports
// softcap, sink, sequence lengths, pages, carry and mixed types. It returns an
// *flashkit.UnsupportedError for other features. In 16 bits, O is rounded once more than by Forward.
//
// Calls of one size allocate only the first time. On the host they copy Q, O and LSE. On a device they
// copy nothing. Such a call must have LSE. All sequences must have QLen rows, and the rows of a head in Q,
// O and LSE must have one stride across sequences, as with QLen 1 or in memory order [B, N, H, D].
//
// Source: Juravsky et al., Hydragen: high-throughput LLM inference with shared prefixes, 2024.
func (d *Dispatcher) ForwardPrefix(ctx context.Context, p flashkit.Problem, prefix *Prefix, args *flashkit.Args) error {
	unpaired := *d
	unpaired.pairing = pairedNever
	return RunPrefix(p, prefix, args, func(p flashkit.Problem, args *flashkit.Args) error {
		return unpaired.do(ctx, p, flashkit.PassForward, args)
	})
}

// RunPrefix is ForwardPrefix with a function that runs forward passes, such as one that enqueues them
// in a stream of a GPU. RunPrefix calls run for the prefix, and then for the sequences' own keys with
// args.Seqs. On a device, RunPrefix does not wait between the two.
func RunPrefix(p flashkit.Problem, prefix *Prefix, args *flashkit.Args, run func(flashkit.Problem, *flashkit.Args) error) error {
	w := prefixWorks.Get().(*prefixWork)
	defer w.release()
	if err := w.call.Set(p, flashkit.PassForward, args); err != nil {
		return err
	}
	if prefix == nil {
		return &flashkit.ProblemError{Field: "Prefix", Value: "nil", Reason: "must be given"}
	}
	if reason := w.refuses(); reason != "" {
		return &flashkit.UnsupportedError{Kernel: "ForwardPrefix", Problem: p, Reason: reason}
	}
	if w.call.Traits.Device {
		w.stack()
	} else {
		w.take()
		w.move(true)
	}
	first := w.problem(prefix)
	if n := prefix.Len; n < 0 || n > min(len(prefix.Pages)*first.Page, math.MaxInt32) {
		return &flashkit.ProblemError{Field: "Prefix.Len", Value: strconv.Itoa(n), Reason: fmt.Sprintf("must be from 0 to the %d keys of Pages", len(prefix.Pages)*first.Page)}
	}
	if err := run(first, &w.shared); err != nil {
		if e, ok := err.(*flashkit.ProblemError); ok {
			return &flashkit.ProblemError{Field: "Prefix." + strings.TrimPrefix(e.Field, "Seqs."), Value: e.Value, Reason: e.Reason}
		}
		return err
	}
	if w.rows == 0 || first.KVLen == 0 {
		return run(p, args)
	}
	if !w.call.Traits.Device {
		w.move(false)
	}
	p.Carry = true
	return run(p, &w.own)
}

// A prefixWork is the workspace of a ForwardPrefix.
type prefixWork struct {
	call        flashkit.Call // the caller's call
	shared, own flashkit.Args // of the calls over the prefix and over each sequence's own keys
	seqs        flashkit.Sequences
	lens        [1]int32
	rows        int // of all sequences, for each query head
	floats      []float32
	halves      []uint16
}

var prefixWorks = sync.Pool{New: func() any { return new(prefixWork) }}

func (w *prefixWork) release() {
	*w = prefixWork{floats: w.floats, halves: w.halves}
	prefixWorks.Put(w)
}

// refuses returns why the caller's call cannot have a prefix, or "". It sets w.rows.
func (w *prefixWork) refuses() string {
	c := &w.call
	if missing := c.Features() &^ prefixTakes; missing != 0 {
		return "a shared prefix does not support " + missing.String()
	}
	if a := c.Args; c.Traits.Device && (c.Args.LSE.IsZero() || c.Traits.PackedQ || a.Seqs != nil && a.Seqs.QLens != nil || !stackable(&a.Q) || !stackable(&a.O) || !stackable(&a.LSE)) {
		return "a shared prefix on a device needs LSE, and rows of all sequences with one stride"
	}
	right := c.Band.Right() != flashkit.Unlimited
	if c.Band.Left() != flashkit.Unlimited || right && c.Band.IsTopLeft() {
		return "the band hides a part of the prefix"
	}
	for b := range c.Batch {
		s := c.Seq(b)
		if right && s.N > 0 && s.M-s.N+c.Band.Shifted()+c.Band.Right() < -1 {
			return "the band hides a part of the prefix: a sequence has fewer keys of its own than rows"
		}
		w.rows += s.N
	}
	return ""
}

// stackable reports whether the rows of a head have one stride across sequences.
func stackable(t *flashkit.Tensor) bool {
	n, s := t.Shape(), t.Strides()
	return n[0] <= 1 || n[2] == 1 || s[0] == n[2]*s[2]
}

// stack sets the tensors of the call over the prefix to views of the caller's tensors on a device,
// with the rows of all sequences as the rows of one.
func (w *prefixWork) stack() {
	a := w.call.Args
	w.own = *a
	for _, x := range [...]struct{ to, from *flashkit.Tensor }{{&w.shared.Q, &a.Q}, {&w.shared.O, &a.O}, {&w.shared.LSE, &a.LSE}} {
		n, s := x.from.Shape(), x.from.Strides()
		row := s[2]
		if n[2] == 1 {
			row = s[0]
		}
		*x.to = flashkit.OnDevice(x.from.Owner(), x.from.DType(), x.from.Address(), x.from.Len(), 1, n[1], n[0]*n[2], n[3]).WithStrides(0, s[1], row)
	}
}

// problem returns the problem of all rows over the prefix, and sets its arguments. On the host, the
// rows of all sequences and of the query heads of a KV head are the rows of one head.
func (w *prefixWork) problem(prefix *Prefix) flashkit.Problem {
	c := &w.call
	p := flashkit.Problem{Batch: 1, Heads: w.shared.Q.Shape()[1], KVHeads: c.KVHeads, QLen: w.shared.Q.Shape()[2], KVLen: prefix.K.Shape()[2], Dim: c.Dim,
		VDim: c.VDim, DType: c.DType, KVDType: c.KVDType, Scale: c.Scale, Carry: c.Carry}
	p.Score.Softcap = c.Score.Softcap
	w.shared.K, w.shared.V, w.shared.Workers = prefix.K, prefix.V, c.Args.Workers
	if prefix.Pages != nil || prefix.Len != 0 {
		p.Ragged, p.Page, p.KVLen = true, p.KVLen, prefix.Len
		w.lens[0] = int32(prefix.Len)
		w.seqs = flashkit.Sequences{KVLens: w.lens[:], Pages: prefix.Pages}
		w.shared.Seqs = &w.seqs
	}
	return p
}

// take sets tensors in the workspace: Q, O and LSE of the call over the prefix, and the caller's LSE
// if it is missing.
func (w *prefixWork) take() {
	p := &w.call.Problem
	g, n, o := p.KVHeads, w.rows*(p.Heads/p.KVHeads), w.call.Args.O.Shape()
	w.own = *w.call.Args
	lse := 0
	if w.own.LSE.IsZero() {
		lse = o[0] * o[1] * o[2]
	}
	q, out := g*n*p.Dim, g*n*p.VDim
	if p.DType == flashkit.Float32 {
		w.floats = resized(w.floats, lse+g*n+q+out)
		w.shared.Q = flashkit.F32(w.floats[lse+g*n:][:q], 1, g, n, p.Dim)
		w.shared.O = flashkit.F32(w.floats[lse+g*n+q:], 1, g, n, p.VDim)
	} else {
		w.floats, w.halves = resized(w.floats, lse+g*n), resized(w.halves, q+out)
		of := flashkit.F16[uint16]
		if p.DType == flashkit.BFloat16 {
			of = flashkit.BF16[uint16]
		}
		w.shared.Q, w.shared.O = of(w.halves[:q], 1, g, n, p.Dim), of(w.halves[q:], 1, g, n, p.VDim)
	}
	w.shared.LSE = flashkit.F32(w.floats[lse:][:g*n], 1, g, n, 1)
	if lse > 0 {
		w.own.LSE = flashkit.F32(w.floats[:lse], o[0], o[1], o[2], 1)
	}
}

func resized[T any](x []T, n int) []T {
	if n > cap(x) {
		return make([]T, n)
	}
	return x[:n]
}

// move copies all rows of the caller's tensors to the workspace, or the results of the workspace
// to the caller's tensors.
func (w *prefixWork) move(in bool) {
	c, row, group := &w.call, 0, w.call.Heads/w.call.KVHeads
	for b := range c.Batch {
		s := c.Seq(b)
		for i := range s.N {
			for h := range c.Heads {
				at := w.shared.Q.Shape()[2]*(h/group) + row*group + h%group
				if in {
					copyRow(&w.shared.Q, at, &c.Args.Q, c.Args.Q.Offset(s.QBatch, h, s.Q0+i), true)
				}
				if !in || c.Carry {
					copyRow(&w.shared.O, at, &w.own.O, w.own.O.Offset(s.QBatch, h, s.Q0+i), in)
					copyRow(&w.shared.LSE, at, &w.own.LSE, w.own.LSE.Offset(s.QBatch, h, s.Q0+i), in)
				}
			}
			row++
		}
	}
}

// copyRow copies the elements of x from an offset on to row r of the workspace, or back.
func copyRow(work *flashkit.Tensor, r int, x *flashkit.Tensor, offset int, in bool) {
	n := work.Shape()[3]
	if x.DType() == flashkit.Float32 {
		copyElements(work.Float32s()[r*n:][:n], x.Float32s()[offset:][:n], in)
	} else {
		copyElements(work.Uint16s()[r*n:][:n], x.Uint16s()[offset:][:n], in)
	}
}

func copyElements[T any](work, x []T, in bool) {
	if in {
		copy(work, x)
	} else {
		copy(x, work)
	}
}
