package wasm

import (
	"context"
	"maps"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// expected is the required content of an output: numbers at places of its memory, unchanged memory
// elsewhere.
type expected struct {
	name string
	t    *flashkit.Tensor
	was  []uint32
	want map[int]float64
	tol  float64
}

func (e *expected) check(t *testing.T, label string) {
	rounding := map[flashkit.DType]float64{flashkit.Float32: 0, flashkit.Float16: 1.0 / (1 << 11), flashkit.BFloat16: 1.0 / (1 << 8)}[e.t.DType()]
	for i, was := range bits(*e.t) {
		want, written := e.want[i]
		if !written {
			require.Equal(t, e.was[i], was, "%s: %s[%d] is outside", label, e.name, i)
			continue
		}
		got := num(e.t, i)
		if got == want {
			continue
		}
		require.LessOrEqual(t, math.Abs(got-want), e.tol*(1+math.Abs(want))+rounding*math.Abs(want), "%s: %s[%d] = %g, want %g", label, e.name, i, got, want)
	}
}

// fillWith sets the expected value of every element of the output to v, unless the output is
// packed.
func (e *expected) fillWith(v float64, packed bool) {
	s := e.t.Shape()
	if packed {
		return
	}
	for b := range s[0] {
		for h := range s[1] {
			for i := range s[2] {
				for c := range s[3] {
					e.want[e.t.Offset(b, h, i)+c] = v
				}
			}
		}
	}
}

func expect(name string, t *flashkit.Tensor, tol float64) *expected {
	return &expected{name, t, bits(*t), map[int]float64{}, tol}
}

// prepareForward fills in O and LSE and returns the required outputs of a forward call.
func (r *trial) prepareForward() []*expected {
	p, a := &r.p, &r.a
	inf := math.Inf(-1)
	o, lse := expect("O", &a.O, 1e-5), expect("LSE", &a.LSE, 1e-5)
	packed := a.Seqs != nil && a.Seqs.QStarts != nil
	o.fillWith(0, packed)
	lse.fillWith(inf, packed)
	r.eachRow(func(b, h, i int) {
		o0, lse0 := make([]float64, p.VDim), inf
		at, atLSE := row(a, &a.O, b, h, i), row(a, &a.LSE, b, h, i)
		if p.Carry {
			setNum(&a.LSE, atLSE, inf)
			if r.IntN(4) > 0 {
				r.noise(&a.O, at, p.VDim)
				r.noise(&a.LSE, atLSE, 1)
				lse0 = num(&a.LSE, atLSE)
				for c := range o0 {
					o0[c] = num(&a.O, at+c)
				}
			}
		}
		want, wantLSE := referenceRow(p, a, b, h, i, o0, lse0)
		for c, v := range want {
			o.want[at+c] = v
		}
		lse.want[atLSE] = wantLSE
	})
	o.was, lse.was = bits(a.O), bits(a.LSE)
	return []*expected{o, lse}
}

// prepareBackward fills in O, LSE, DO and DLSE and returns the required gradients.
func (r *trial) prepareBackward() []*expected {
	p, a := &r.p, &r.a
	r.eachRow(func(b, h, i int) {
		o, lse := referenceRow(p, a, b, h, i, nil, math.Inf(-1))
		for c, v := range o {
			setNum(&a.O, row(a, &a.O, b, h, i)+c, v)
		}
		setNum(&a.LSE, row(a, &a.LSE, b, h, i), lse)
		r.noise(&a.DO, row(a, &a.DO, b, h, i), p.VDim)
		if !a.DLSE.IsZero() {
			r.noise(&a.DLSE, row(a, &a.DLSE, b, h, i), 1)
		}
	})
	packedQ, packedKV := a.Seqs != nil && a.Seqs.QStarts != nil, a.Seqs != nil && a.Seqs.KVStarts != nil
	g := referenceGradients(p, a)
	const tol = 3e-5
	dq, dk, dv := expect("DQ", &a.DQ, tol), expect("DK", &a.DK, tol), expect("DV", &a.DV, tol)
	dbias, dsink := expect("DBias", &a.DBias, tol), expect("DSink", &a.DSink, tol)
	dq.fillWith(0, packedQ)
	dk.fillWith(0, packedKV)
	dv.fillWith(0, packedKV)
	dbias.fillWith(0, false)
	r.eachRow(func(b, h, i int) {
		for c := range p.Dim {
			dq.want[row(a, &a.DQ, b, h, i)+c] = 0
		}
	})
	r.eachKey(func(b, kv, j int) {
		for c := range p.Dim {
			dk.want[key(p, a, &a.DK, b, kv, j)+c] = 0
		}
		for c := range p.VDim {
			dv.want[key(p, a, &a.DV, b, kv, j)+c] = 0
		}
	})
	for e, rows := range map[*expected]map[int][]float64{dq: g.dq, dk: g.dk, dv: g.dv} {
		for at, row := range rows {
			for c, v := range row {
				e.want[at+c] = v
			}
		}
	}
	maps.Copy(dbias.want, g.dbias)
	for h := 0; !a.DSink.IsZero() && h < p.Heads; h++ {
		dsink.want[a.DSink.Offset(0, h, 0)] = g.dsink[h]
	}
	return []*expected{dq, dk, dv, dbias, dsink}
}

// prepare prepares a call of a pass.
func (r *trial) prepare(pass flashkit.Pass) []*expected {
	if pass == flashkit.PassBackward {
		return r.prepareBackward()
	}
	return r.prepareForward()
}

// sameBits requires that all runs of a call give the same bits. Before each run, it restores the
// original contents of the output tensors.
func (r *trial) sameBits(t *testing.T, runs int, run func(n int), label func(n int) string) {
	tensors := []flashkit.Tensor{r.a.O, r.a.LSE, r.a.DQ, r.a.DK, r.a.DV, r.a.DBias, r.a.DSink}
	var was, want [][]uint32
	for _, x := range tensors {
		was = append(was, bits(x))
	}
	for n := range runs {
		for i, x := range tensors {
			setBits(x, was[i])
		}
		run(n)
		var got [][]uint32
		for _, x := range tensors {
			got = append(got, bits(x))
		}
		if n == 0 {
			want = got
		}
		require.Equal(t, want, got, label(n))
	}
}

// run checks one kernel on a random call of its pass.
func (r *trial) run(t *testing.T, k *flashkit.Kernel, label string) {
	all := r.prepare(k.Pass)
	require.Empty(t, k.Fits(r.p.Ask(k.Pass)))
	require.NoError(t, k.Compute(context.Background(), r.p, &r.a), label)
	for _, e := range all {
		if !e.t.IsZero() {
			e.check(t, label)
		}
	}
}
