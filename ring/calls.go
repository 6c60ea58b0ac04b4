package ring

import (
	"github.com/flashkit-go/flashkit"
)

// A call is one kernel call of a step: a problem, and the parts of the tensors that the kernel
// reads and writes.
type call struct {
	p    flashkit.Problem
	seqs *flashkit.Sequences

	q, k part // part of the rank's rows, and part of the step's keys
	pair pair // range of Bias, Mask and DBias

	origin flashkit.Origin // position in the whole problem, for dropout
}

// A part of a tensor consists of nb batch entries beginning with b, and n rows beginning with r.
type part struct{ b, nb, r, n int }

func (x part) of(t flashkit.Tensor) flashkit.Tensor { return sub(t, x.b, x.nb, x.r, x.n) }

// A pair is a range of Bias, Mask or DBias: nb batch entries beginning with b, n rows beginning
// with r, and m keys beginning with key k of the sequence.
type pair struct{ b, nb, r, n, k, m int }

func (x pair) of(t flashkit.Tensor) flashkit.Tensor {
	if t.IsZero() {
		return t
	}
	s := t.Shape()
	n := [4]int{min(x.nb, s[0]), s[1], min(x.n, s[2]), x.m}
	return window(t, min(t.Repeated(x.b, 0, x.r)+x.k, t.Len()), n)
}

// A step is a rank's work with the keys of one rank: in step 0 its own keys, in later steps the
// keys of another rank.
type step struct {
	calls []call

	// Keys of rank r-t that the calls of rank r in step t read; r is this rank. need.n is 0 if
	// there are none.
	need part

	// Keys of this rank that rank r+t reads in step t; r is this rank.
	give part

	// one is true if a single call computes all gradients of the keys in need. giveOne is true if a
	// single call of rank r+t computes all gradients of the keys in give. Such gradients travel in
	// the problem's type. Other gradients travel as float32 sums.
	one, giveOne bool
}

// steps returns a rank's steps. In step t, rank r works with the keys of rank r-t.
func (c *Cut) steps(rank int) []step {
	list := make([]step, c.size)
	for t := range list {
		list[t].calls = c.calls(rank, (rank-t+c.size)%c.size)
		list[t].need = c.need(list[t].calls)
		behind := c.calls((rank+t)%c.size, rank)
		list[t].give = c.need(behind)
		list[t].one, list[t].giveOne = isOne(list[t].calls, list[t].need), isOne(behind, list[t].give)
	}
	return list
}

func isOne(calls []call, need part) bool { return len(calls) == 1 && calls[0].k == need }

// need returns the smallest range that contains all keys that the given calls read.
func (c *Cut) need(calls []call) part {
	x := part{nb: c.p.Batch}
	if c.packedK {
		x.nb = 1
	}
	for i := range calls {
		k := calls[i].k
		if x.n == 0 {
			x.r, x.n = k.r, k.n
			continue
		}
		end := max(x.r+x.n, k.r+k.n)
		x.r = min(x.r, k.r)
		x.n = end - x.r
	}
	return x
}

// placed is a tile with two shares of the tile's sequence: q of the rank with the rows, k of the
// rank with the keys.
type placed struct {
	tile
	q, k  share
	layer int // index among the sequence's tiles
}

// calls returns a rank's kernel calls with the keys of the rank `other`.
func (c *Cut) calls(rank, other int) (list []call) {
	keys := map[int]share{}
	for _, s := range shares(c.keys[other], c.packedK) {
		keys[s.seq] = s
	}
	var all []placed
	for _, q := range shares(c.rows[rank], c.packedQ) {
		k, ok := keys[q.seq]
		if !ok {
			continue
		}
		for i, t := range c.tiles(q.seq, q.spans, k.spans) {
			all = append(all, placed{t, q, k, i})
		}
	}
	if !c.packedQ || !c.packedK || c.p.Features()&(featureScopes.position|featureScopes.pair) != 0 {
		for i := range all {
			list = append(list, c.tileCall(&all[i]))
		}
		return list
	}
	return c.mergeTiles(all)
}

func (c *Cut) tileCall(t *placed) call {
	n, m, nb, first := t.q1-t.q0, t.k1-t.k0, 1, t.seq
	if !c.p.Ragged {
		nb, first = c.p.Batch, 0
	}
	p := c.p
	p.Batch, p.QLen, p.KVLen, p.Ragged = nb, n, m, false
	p.Score.Origin = p.Score.Dropout != 0
	p.Band = unshifted(t.band, n, m)
	return call{
		p:    p,
		q:    part{t.q.batch, nb, t.q.at + t.q0, n},
		k:    part{t.k.batch, nb, t.k.at + t.k0, m},
		pair: pair{t.seq, nb, t.q0, n, t.key, m},

		origin: flashkit.Origin{Batch: first, Row: t.row, Key: t.key},
	}
}

// mergeTiles returns the calls for tiles of packed sequences. Tiles that have the same index in
// their sequences and the same band share one call.
func (c *Cut) mergeTiles(all []placed) (list []call) {
	type kind struct {
		layer int
		band  flashkit.Band
	}
	var kinds []kind
	groups := map[kind][]*placed{}
	for i := range all {
		t := &all[i]
		k := kind{t.layer, unshifted(t.band, t.q1-t.q0, t.k1-t.k0)}
		if groups[k] == nil {
			kinds = append(kinds, k)
		}
		groups[k] = append(groups[k], t)
	}
	for _, k := range kinds {
		if g := groups[k]; len(g) == 1 {
			list = append(list, c.tileCall(g[0]))
		} else {
			list = append(list, c.packedCall(g, k.band))
		}
	}
	return list
}

// packedCall returns one call for tiles of several sequences. The tiles are in the order of their
// rows in the tensors. Gaps between tiles become sequences without keys or without rows.
func (c *Cut) packedCall(tiles []*placed, band flashkit.Band) call {
	last := tiles[len(tiles)-1]
	q := part{0, 1, tiles[0].q.at + tiles[0].q0, 0}
	k := part{0, 1, tiles[0].k.at + tiles[0].k0, 0}
	q.n, k.n = last.q.at+last.q1-q.r, last.k.at+last.k1-k.r
	s := &flashkit.Sequences{QStarts: []int32{0}, KVStarts: []int32{0}}
	p := c.p
	p.Batch, p.QLen, p.KVLen, p.Band = 0, 0, 0, band
	to := func(row, key int) { // ends a sequence at this row and key
		p.QLen = max(p.QLen, row-int(s.QStarts[p.Batch]))
		p.KVLen = max(p.KVLen, key-int(s.KVStarts[p.Batch]))
		s.QStarts, s.KVStarts = append(s.QStarts, int32(row)), append(s.KVStarts, int32(key))
		p.Batch++
	}
	for _, t := range tiles {
		row, key := t.q.at+t.q0-q.r, t.k.at+t.k0-k.r
		if row > int(s.QStarts[p.Batch]) {
			to(row, int(s.KVStarts[p.Batch]))
		}
		if key > int(s.KVStarts[p.Batch]) {
			to(row, key)
		}
		to(row+t.q1-t.q0, key+t.k1-t.k0)
	}
	return call{p: p, seqs: s, q: q, k: k}
}

// args returns the call's arguments: parts of the rank's arguments a, and parts of the step's keys
// k and values v. The parameter from is the index of the first key in k and v.
func (x *call) args(a *flashkit.Args, k, v flashkit.Tensor, from int) flashkit.Args {
	at := x.k
	at.r -= from
	sub := *a
	sub.Q, sub.O, sub.LSE, sub.DO, sub.DLSE, sub.DQ = x.q.of(a.Q), x.q.of(a.O), x.q.of(a.LSE), x.q.of(a.DO), x.q.of(a.DLSE), x.q.of(a.DQ)
	sub.K, sub.V = at.of(k), at.of(v)
	sub.Bias, sub.DBias, sub.Mask = x.pair.of(a.Bias), x.pair.of(a.DBias), x.pair.of(a.Mask)
	if s := a.Slopes; !s.IsZero() && s.Shape()[0] > 1 && x.p.Batch < s.Shape()[0] {
		sub.Slopes = sub0(s, x.pair.b)
	}
	sub.Sink, sub.DSink, sub.Seqs = flashkit.Tensor{}, flashkit.Tensor{}, x.seqs
	sub.Origin = within(&x.p, a.Origin, x.origin)
	return sub
}

// within returns the origin of a part of a problem. whole is the problem's origin. part is the
// position of the part in the problem. If p, the problem of the part, has no origin, the result is
// zero.
func within(p *flashkit.Problem, whole, part flashkit.Origin) flashkit.Origin {
	if !p.Score.Origin {
		return flashkit.Origin{}
	}
	return flashkit.Origin{Batch: whole.Batch + part.Batch, Head: whole.Head + part.Head, Row: whole.Row + part.Row, Key: whole.Key + part.Key}
}

func sub0(t flashkit.Tensor, b int) flashkit.Tensor { return sub(t, b, 1, 0, 1) }
