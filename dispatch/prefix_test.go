package dispatch_test

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/conformance/oracle"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/allocs"
)

// A cascade is a random problem with a shared prefix. Its arrays are dense and padded.
type cascade struct {
	p             flashkit.Problem // over each sequence's own keys
	keys          int              // of the prefix
	q, k, v       []float32
	pk, pv        []float32 // keys and values of the prefix
	sink, o, lse  []float32 // o and lse: results of earlier keys
	qLens, kvLens []int32
}

func (c *cascade) String() string { return fmt.Sprintf("%v after %d keys", c.p, c.keys) }

func normals(r *rand.Rand, t flashkit.DType, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return flashkit.ToF32(tensorOf(t, x, 1, 1, 1, n))
}

func tensorOf(t flashkit.DType, x []float32, b, h, n, d int) flashkit.Tensor {
	switch t {
	case flashkit.Float16:
		return flashkit.F16(flashkit.ToF16(x), b, h, n, d)
	case flashkit.BFloat16:
		return flashkit.BF16(flashkit.ToBF16(x), b, h, n, d)
	}
	return flashkit.F32(append([]float32(nil), x...), b, h, n, d)
}

func product(s [4]int) int { return s[0] * s[1] * s[2] * s[3] }

// newCascade draws a problem. Own keys are at least as many as rows under a causal band.
func newCascade(r *rand.Rand) *cascade {
	odd := func(n int) bool { return r.IntN(n) == 0 }
	g := 1 + r.IntN(3)
	c := &cascade{p: flashkit.Problem{Batch: 1 + r.IntN(5), Heads: g * (1 + r.IntN(4)), KVHeads: g, QLen: 1 + r.IntN(3), KVLen: r.IntN(40),
		Dim: 8 * (1 + r.IntN(9)), VDim: 8 * (1 + r.IntN(9)), DType: flashkit.DType(r.IntN(3)), Carry: odd(4), Ragged: true}, keys: r.IntN(200)}
	p := &c.p
	if p.DType == flashkit.Float32 && odd(2) {
		p.KVDType = flashkit.DType(r.IntN(3))
	}
	if odd(8) {
		p.QLen = r.IntN(80)
	}
	if odd(10) {
		c.keys = 0
	}
	if p.Score.Sink = odd(4); p.Score.Sink {
		c.sink = normals(r, flashkit.Float32, p.Heads)
	}
	if odd(4) {
		p.Score.Softcap = 2
	}
	if odd(3) {
		p.Band = flashkit.Causal()
		if shift := r.IntN(3); shift > 0 {
			p.Band = p.Band.Shift(shift - 2)
		}
	}
	for range p.Batch {
		n, m := r.IntN(p.QLen+1), r.IntN(p.KVLen+1)
		if p.Band != (flashkit.Band{}) {
			n = min(n, max(0, m+1+p.Band.Shifted()))
		}
		c.qLens, c.kvLens = append(c.qLens, int32(n)), append(c.kvLens, int32(m))
	}
	c.q, c.k, c.v = normals(r, p.DType, product(p.QShape())), normals(r, p.KVType(), product(p.KShape())), normals(r, p.KVType(), product(p.VShape()))
	c.pk, c.pv = normals(r, p.KVType(), p.KVHeads*c.keys*p.Dim), normals(r, p.KVType(), p.KVHeads*c.keys*p.VDim)
	c.o, c.lse = normals(r, p.DType, product(p.OShape())), normals(r, flashkit.Float32, product(p.LSEShape()))
	return c
}

// joined returns, for each sequence, the rows of the prefix and then the sequence's own rows.
func (c *cascade) joined(prefix, own []float32, dim int) (x []float64) {
	for b := range c.p.Batch {
		for g := range c.p.KVHeads {
			rows := append(append([]float32(nil), prefix[g*c.keys*dim:][:c.keys*dim]...), own[(b*c.p.KVHeads+g)*c.p.KVLen*dim:][:c.p.KVLen*dim]...)
			x = append(x, widened(rows)...)
		}
	}
	return x
}

func widened(x []float32) []float64 {
	y := make([]float64, len(x))
	for i := range x {
		y[i] = float64(x[i])
	}
	return y
}

func (c *cascade) want() (o, lse []float64) {
	p := c.p
	p.KVLen += c.keys
	in := oracle.Inputs{Q: widened(c.q), K: c.joined(c.pk, c.k, p.Dim), V: c.joined(c.pv, c.v, p.VDim), Sink: widened(c.sink), O: widened(c.o), LSE: widened(c.lse)}
	for b := range p.Batch {
		in.QLens, in.KVLens = append(in.QLens, int(c.qLens[b])), append(in.KVLens, int(c.kvLens[b])+c.keys)
	}
	return oracle.Forward(p, in)
}

// paged copies each sequence's rows, [len(lens), G, n, dim], to random pages of a pool of NaN.
func paged(t flashkit.DType, x []float32, lens []int32, g, n, dim, page, width int, order []int) (pool flashkit.Tensor, table []int32) {
	data := make([]float32, len(order)*g*page*dim)
	for i := range data {
		data[i] = float32(math.NaN())
	}
	table = make([]int32, len(lens)*width)
	for i := range table {
		table[i] = int32(order[i])
	}
	for b, l := range lens {
		for h := range g {
			for i := range int(l) {
				at := ((int(table[b*width+i/page])*g+h)*page + i%page) * dim
				copy(data[at:][:dim], x[((b*g+h)*n+i)*dim:])
			}
		}
	}
	return tensorOf(t, data, len(order), g, page, dim), table
}

// layout returns the call's tensors in a random layout. place returns the batch and the row of row i
// of sequence b in Q, O and LSE.
func (c *cascade) layout(r *rand.Rand) (p flashkit.Problem, prefix *dispatch.Prefix, args *flashkit.Args, place func(b, i int) (int, int)) {
	p = c.p
	seqs := &flashkit.Sequences{QLens: c.qLens, KVLens: c.kvLens}
	batch, rows := p.Batch, p.QLen
	place = func(b, i int) (int, int) { return b, i }
	if r.IntN(2) == 0 { // packed queries, between rows of no sequence
		seqs.QLens, seqs.QStarts, batch, rows = nil, []int32{1}, 1, 2
		for b, n := range c.qLens {
			seqs.QStarts = append(seqs.QStarts, seqs.QStarts[b]+n)
			rows += int(n)
		}
		place = func(b, i int) (int, int) { return 0, int(seqs.QStarts[b]) + i }
	}
	made := func(t flashkit.DType, x []float32, dim int, keep bool) flashkit.Tensor {
		y := make([]float32, batch*p.Heads*rows*dim)
		for i := range y {
			y[i] = float32(math.NaN())
		}
		z := flashkit.F32(y, batch, p.Heads, rows, dim)
		if r.IntN(2) == 0 {
			z = z.AsBSHD()
		}
		for b, n := range c.qLens {
			for h := range p.Heads {
				for i := range int(n) {
					if at, row := place(b, i); keep {
						copy(y[z.Offset(at, h, row):][:dim], x[((b*p.Heads+h)*p.QLen+i)*dim:])
					}
				}
			}
		}
		s := z.Strides()
		return tensorOf(t, y, batch, p.Heads, rows, dim).WithStrides(s[0], s[1], s[2])
	}
	args = &flashkit.Args{Q: made(p.DType, c.q, p.Dim, true), O: made(p.DType, c.o, p.VDim, p.Carry), Workers: 1 + r.IntN(2), Seqs: seqs}
	if p.Carry || r.IntN(2) == 0 {
		args.LSE = made(flashkit.Float32, c.lse, 1, p.Carry)
	}
	if p.Score.Sink {
		args.Sink = flashkit.F32(c.sink, 1, p.Heads, 1, 1)
	}
	kv, g := p.KVType(), p.KVHeads
	args.K, args.V = tensorOf(kv, c.k, p.Batch, g, p.KVLen, p.Dim), tensorOf(kv, c.v, p.Batch, g, p.KVLen, p.VDim)
	if page := 1 + r.IntN(17); r.IntN(2) == 0 {
		width := max(1, (p.KVLen+page-1)/page)
		order := r.Perm(p.Batch*width + 3)
		args.K, seqs.Pages = paged(kv, c.k, c.kvLens, g, p.KVLen, p.Dim, page, width, order)
		args.V, _ = paged(kv, c.v, c.kvLens, g, p.KVLen, p.VDim, page, width, order)
		p.Page = page
	}
	prefix = &dispatch.Prefix{K: tensorOf(kv, c.pk, 1, g, c.keys, p.Dim), V: tensorOf(kv, c.pv, 1, g, c.keys, p.VDim)}
	if page := 1 + r.IntN(17); r.IntN(2) == 0 {
		width := max(1, (c.keys+page-1)/page)
		order, all := r.Perm(width+3), []int32{int32(c.keys)}
		prefix.K, prefix.Pages = paged(kv, c.pk, all, g, c.keys, p.Dim, page, width, order)
		prefix.V, _ = paged(kv, c.pv, all, g, c.keys, p.VDim, page, width, order)
		prefix.Len = c.keys
	}
	return p, prefix, args, place
}

// compare compares all results with float64. Rows of no sequence are not written, and padding rows
// are 0 and -Inf.
func (c *cascade) compare(t *testing.T, p *flashkit.Problem, args *flashkit.Args, place func(b, i int) (int, int)) {
	o, lse := c.want()
	unit := map[flashkit.DType]float64{flashkit.Float32: 0, flashkit.Float16: 0x1p-11, flashkit.BFloat16: 0x1p-8}[p.DType]
	got, gotLSE, written := flashkit.ToF32(args.O), flashkit.ToF32(args.LSE), 0
	for b, n := range c.qLens {
		rows := p.QLen
		if args.Seqs.QStarts != nil {
			rows = int(n)
		}
		for h := range p.Heads {
			for i := range rows {
				batch, row := place(b, i)
				at := (b*p.Heads+h)*p.QLen + i
				for j, x := range got[args.O.Offset(batch, h, row):][:p.VDim] {
					w := o[at*p.VDim+j]
					written++
					if d := math.Abs(float64(x) - w); !(d <= 1e-5+2*unit*max(1, math.Abs(w))) {
						t.Fatalf("%v: O[%d,%d,%d,%d] = %v, want %v", c, b, h, i, j, x, w)
					}
				}
				if len(gotLSE) > 0 {
					if x := float64(gotLSE[args.LSE.Offset(batch, h, row)]); x != lse[at] && !(math.Abs(x-lse[at]) <= 1e-5*max(1, math.Abs(lse[at]))) {
						t.Fatalf("%v: LSE[%d,%d,%d] = %v, want %v", c, b, h, i, x, lse[at])
					}
				}
			}
		}
	}
	for _, x := range got {
		if x != x {
			written++
		}
	}
	require.Len(t, got, written, "%v: a row of no sequence is written", c)
}

// A call with a shared prefix gives the results of a call over all keys.
func TestForwardPrefix(t *testing.T) {
	d := dispatch.New(simd.New()).Frozen()
	defer d.Close()
	generic, err := d.With("simd/fwd_generic")
	require.NoError(t, err)
	seed, problems := rand.Uint64(), 1000
	if t.Logf("seed %d", seed); testing.Short() {
		problems = 100
	}
	r := rand.New(rand.NewPCG(seed, 0))
	for i := range problems {
		c := newCascade(r)
		p, prefix, args, place := c.layout(r)
		q, k, pk := flashkit.ToF32(args.Q), flashkit.ToF32(args.K), flashkit.ToF32(prefix.K)
		use := d
		if i%4 == 0 {
			use = generic
		}
		require.NoError(t, use.ForwardPrefix(t.Context(), p, prefix, args), "%v", c)
		c.compare(t, &p, args, place)
		for j, pair := range [][2][]float32{{q, flashkit.ToF32(args.Q)}, {k, flashkit.ToF32(args.K)}, {pk, flashkit.ToF32(prefix.K)}} {
			for n, x := range pair[0] {
				if math.Float32bits(x) != math.Float32bits(pair[1][n]) {
					t.Fatalf("%v: input %d has changed", c, j)
				}
			}
		}
	}
}

// ForwardPrefix refuses features that it does not support by name.
func TestForwardPrefixRefuses(t *testing.T) {
	d := dispatch.New(simd.New()).Frozen()
	defer d.Close()
	type call struct {
		p      flashkit.Problem
		prefix *dispatch.Prefix
		args   *flashkit.Args
	}
	for want, change := range map[string]func(c *call){
		"Prefix = nil":                func(c *call) { c.prefix = nil },
		"Args = nil":                  func(c *call) { c.args = nil },
		"Q = none":                    func(c *call) { c.args.Q = flashkit.Tensor{} },
		"Prefix.K = none":             func(c *call) { c.prefix.K = flashkit.Tensor{} },
		"Prefix.V.shape":              func(c *call) { c.prefix.V = flashkit.Zeros(flashkit.Float32, 1, 2, 3, 4) },
		"Prefix.K.shape":              func(c *call) { c.prefix.K = flashkit.Zeros(flashkit.Float32, 1, 1, 5, 4) },
		"Prefix.K.dtype":              func(c *call) { c.prefix.K = flashkit.Zeros(flashkit.Float16, 1, 2, 5, 4) },
		"Prefix.Len = 5":              func(c *call) { c.prefix.Len = 5 },
		"Prefix.Len = 6":              func(c *call) { c.prefix.Len, c.prefix.Pages = 6, []int32{0} },
		"Prefix.Len = -1":             func(c *call) { c.prefix.Len, c.prefix.Pages = -1, []int32{0} },
		"Prefix.Len = 9223372":        func(c *call) { c.prefix.Len, c.prefix.Pages = math.MaxInt, []int32{0} },
		"Prefix.Pages[0] = 1":         func(c *call) { c.prefix.Len, c.prefix.Pages = 5, []int32{1} },
		"hides a part of the prefix":  func(c *call) { c.p.Band = flashkit.Window(9, 9) },
		"the band hides a part of":    func(c *call) { c.p.Band = flashkit.Causal().TopLeft() },
		"fewer keys of its own":       func(c *call) { c.p.Band = flashkit.Causal().Shift(-7) },
		"does not support alibi":      func(c *call) { c.p.Score.ALiBi, c.args.Slopes = true, flashkit.Zeros(flashkit.Float32, 1, 4, 1, 1) },
		"does not support bias":       func(c *call) { c.p.Score.Bias, c.args.Bias = true, flashkit.Zeros(flashkit.Float32, 1, 1, 1, 7) },
		"does not support mask":       func(c *call) { c.p.Score.Mask, c.args.Mask = true, flashkit.Zeros(flashkit.Bool, 1, 1, 1, 7) },
		"does not support dropout":    func(c *call) { c.p.Score.Dropout = 0.5 },
		"not support dropout,origin":  func(c *call) { c.p.Score.Dropout, c.p.Score.Origin = 0.5, true },
		"does not support ranges":     func(c *call) { c.p.Score.Ranges, c.args.Ranges = 1, flashkit.PrefixRanges(1, 2, 7) },
		"Workers = -1":                func(c *call) { c.args.Workers = -1 },
		"O = output: shares memory":   func(c *call) { c.args.O = c.args.Q },
		"Heads = 3: must divide":      func(c *call) { c.p.Heads, c.p.KVHeads = 4, 3 },
		"context canceled":            nil,
		"Seqs = false: must be given": func(c *call) { c.p.Ragged = true },
	} {
		p := flashkit.Problem{Batch: 3, Heads: 4, KVHeads: 2, QLen: 2, KVLen: 7, Dim: 4, VDim: 4}
		c := call{p, &dispatch.Prefix{K: flashkit.Zeros(flashkit.Float32, 1, 2, 5, 4), V: flashkit.Zeros(flashkit.Float32, 1, 2, 5, 4)}, flashkit.NewArgs(p, flashkit.PassForward)}
		ctx, cancel := context.WithCancel(t.Context())
		if change == nil {
			cancel()
		} else {
			change(&c)
		}
		err := d.ForwardPrefix(ctx, c.p, c.prefix, c.args)
		cancel()
		require.ErrorContains(t, err, want, want)
	}
}

// A warm call allocates nothing.
func TestForwardPrefixAllocates(t *testing.T) {
	d := dispatch.New(simd.New()).Frozen()
	defer d.Close()
	for _, dtype := range []flashkit.DType{flashkit.Float32, flashkit.BFloat16} {
		p := flashkit.Problem{Batch: 4, Heads: 4, KVHeads: 2, QLen: 1, KVLen: 16, Dim: 16, VDim: 16, Ragged: true, Page: 8, DType: dtype}
		args := flashkit.NewArgs(p, flashkit.PassForward)
		args.LSE = flashkit.Tensor{}
		args.Workers = 1
		prefix := &dispatch.Prefix{K: flashkit.Zeros(dtype, 4, 2, 8, 16), V: flashkit.Zeros(dtype, 4, 2, 8, 16), Pages: []int32{3, 1, 0}, Len: 24}
		ctx := t.Context()
		require.Zero(t, allocs.PerRun(20, func() {
			if err := d.ForwardPrefix(ctx, p, prefix, args); err != nil {
				t.Fatal(err)
			}
		}), dtype)
	}
}
