package flashkit_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/flashkit-go/flashkit"
	"github.com/stretchr/testify/require"
)

// numbers returns n small numbers, usually rising, or nil.
func (d *decoder) numbers(n int, rising bool) []int32 {
	if d.next(8) == 7 {
		return nil
	}
	x, last := make([]int32, max(0, n+d.next(8)/6-d.next(8)/7)), 0
	for i := range x {
		step := d.next(16)
		switch {
		case step == 15:
			x[i] = math.MinInt32 >> d.next(32)
			continue
		case step == 14:
			x[i] = math.MaxInt32 >> d.next(32)
			continue
		case rising:
			last += step % 4
		default:
			last = step % 6
		}
		x[i] = int32(last)
	}
	return x
}

// FuzzSequences checks that no lengths, starts and page tables make the check panic, and
// that the rows and keys of accepted sequences are inside the tensors.
func FuzzSequences(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{1, 2, 0, 1, 1, 2, 2, 3, 0, 1, 1, 1, 1, 1, 1, 1})
	f.Fuzz(func(t *testing.T, data []byte) { checkSequences(t, data) })
}

// TestSequencesRandom is the fuzz target on random bytes.
func TestSequencesRandom(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	passed := 0
	for range 20000 {
		data := make([]byte, 12+r.IntN(30))
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		if checkSequences(t, data) {
			passed++
		}
	}
	t.Logf("%d passed the check", passed)
	require.Greater(t, passed, 500, "hardly anything passes the check, so hardly anything was tested")
}

// checkSequences reports whether the sequences passed the check.
func checkSequences(t *testing.T, data []byte) bool {
	d := decoder(data)
	p := flashkit.Problem{Batch: d.next(4), Heads: 2, KVHeads: 1, QLen: d.next(6), KVLen: d.next(6), Dim: 2, VDim: 3, Ragged: true}
	pass := flashkit.Pass(d.next(2))
	if d.next(3) == 0 {
		p.Page = 1 + d.next(3)
	}
	a := flashkit.NewArgs(p, pass)
	s := &flashkit.Sequences{}
	kv := a.K.Shape()
	switch d.next(3) {
	case 0:
		s.QLens = d.numbers(p.Batch, false)
	case 1:
		rows := d.next(12)
		s.QStarts = d.numbers(p.Batch+1, true)
		for _, x := range []*flashkit.Tensor{&a.Q, &a.O, &a.LSE, &a.DO, &a.DLSE, &a.DQ} {
			*x = resized(*x, 0, 1, 2, rows)
		}
	}
	switch {
	case p.Page > 0:
		s.KVLens, s.Pages = d.numbers(p.Batch, false), d.numbers(p.Batch*d.next(4), false)
		pool := d.next(8)
		if d.next(8) == 7 { // larger than any memory: then the pool has none
			p.Page = math.MaxInt>>d.next(4) - d.next(4)
			pool, kv[2] = 0, p.Page
		}
		a.K, a.V = resized(a.K, 0, pool, 2, kv[2]), resized(a.V, 0, pool, 2, kv[2])
	case d.next(2) == 0:
		s.KVLens = d.numbers(p.Batch, false)
	default:
		keys := d.next(12)
		s.KVStarts = d.numbers(p.Batch+1, true)
		for _, x := range []*flashkit.Tensor{&a.K, &a.V, &a.DK, &a.DV} {
			*x = resized(*x, 0, 1, 2, keys)
		}
	}
	a.Seqs = s
	var c flashkit.Call
	if c.Set(p, pass, a) != nil {
		return false
	}
	for b := range p.Batch {
		touch(t, &c, b)
	}
	return p.Batch > 0
}

// resized returns a dense tensor of zeros whose dimensions d and e are n and m.
func resized(x flashkit.Tensor, d, n, e, m int) flashkit.Tensor {
	if x.IsZero() {
		return x
	}
	s := x.Shape()
	s[d], s[e] = n, m
	return tensor(x.DType(), s)
}

// touch reads every row and key of a sequence.
func touch(t *testing.T, c *flashkit.Call, b int) {
	s := c.Seq(b)
	if s.N < 0 || s.N > c.QLen || s.M < 0 || s.M > c.KVLen {
		t.Fatalf("sequence %d has %d rows and %d keys: %v %+v", b, s.N, s.M, c.Problem, c.Args.Seqs)
	}
	for i := range s.N {
		at := c.Args.Q.Offset(s.QBatch, 1, s.Q0+i)
		_ = c.Args.Q.Float32s()[at : at+2]
	}
	for j := 0; j < s.M; {
		at, keys := c.KeyRun(&c.Args.V, b, 0, j)
		if keys < 1 || j+keys > s.M {
			t.Fatalf("key %d of sequence %d begins %d keys: %v %+v", j, b, keys, c.Problem, c.Args.Seqs)
		}
		_ = c.Args.V.Float32s()[at : at+3*keys]
		j += keys
	}
}
