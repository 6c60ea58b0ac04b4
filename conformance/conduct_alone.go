package conformance

import (
	"context"
	"fmt"
	"sync"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
)

// A BatchInvariant is a backend that may promise batch invariance: a call on one sequence gives the
// same bits as a call on any padded or packed batch with this sequence. In the forward pass, a call
// on one KV head and its query heads also gives the same bits as a call on all heads. The suite
// tests the promise on all kernels of the backend.
type BatchInvariant interface {
	BatchInvariant() bool // reports whether the backend promises batch invariance
}

// promised returns the checks of the promises that the kernel's backend makes, such as batch
// invariance.
func (o Options) promised(k flashkit.Kernel) []kernelCheck {
	if x, ok := o.backend(k).(BatchInvariant); ok && x.BatchInvariant() {
		return []kernelCheck{{name: "alone_as_in_batch", catches: "bits of a sequence that depend on the rest of the batch", run: batchInvariant, slow: true}}
	}
	return nil
}

// A batch is a problem of several sequences and heads in a layout, with its inputs. want holds the
// O and LSE that a backward pass reads.
type batch struct {
	in   *Inputs
	want result
	l    layout
}

// batches are problems that kernels split among workers. A kernel may split a sequence differently
// if the batch holds no other sequence. The problems with few rows are for decode kernels.
var batches = sync.OnceValue(func() (list []batch) {
	for _, text := range []string{
		"b4-h4-g2-n70-m282-d40-f32", "b3-h4-g2-n5-m282-d40-f32", "b3-h2-g2-n2-m2700-d8-f32",
		"b4-h4-g2-n70-m282-d40-f32-ragged", "b3-h4-g2-n5-m282-d40-f32-ragged",
	} {
		p, err := flashkit.ParseProblem(text)
		if err != nil {
			panic(err) // a typing error above
		}
		in := Case{Name: "batch", Problem: p}.Inputs()
		x := batch{in: in}
		if p.Ragged {
			for b := range p.Batch {
				in.qLens[b], in.kvLens[b] = int32(p.QLen/(b+1)), int32(p.KVLen-70*b)
			}
		}
		x.want.o, x.want.lse = oracle.Forward(p, in.oracle())
		layouts := []layout{bhsd}
		if p.Ragged {
			layouts = []layout{padded, packed}
		}
		for _, x.l = range layouts {
			list = append(list, x)
		}
	}
	return list
})

// batchInvariant checks that calls on one sequence or head give the same bits as a call on the
// whole batch.
func batchInvariant(ctx context.Context, k flashkit.Kernel) error {
	compared := 0
	for i, x := range batches() {
		for n := range dtypes { // one type per batch: the first that the kernel supports
			whole := *x.in
			whole.p.DType = dtypes[(i+n)%len(dtypes)]
			if laidOut(whole.p, x.l).Features()&^k.Takes != 0 || unsupported(k, &whole, x.l) != nil {
				continue
			}
			compared++
			if err := x.compare(ctx, k, &whole); err != nil {
				return fmt.Errorf("%s: %w", whole.p, err)
			}
			break
		}
	}
	if compared == 0 {
		return notHeld("it takes none of the batches")
	}
	return nil
}

// compare runs the kernel on the whole batch and on the batch's last sequence. In the forward pass
// it also runs the kernel on the last KV head of this sequence. It compares the bits of the partial
// calls' outputs with the bits of the whole call's outputs.
func (x *batch) compare(ctx context.Context, k flashkit.Kernel, whole *Inputs) error {
	a := newArguments(whole, x.l, k.Pass, x.want)
	if err := a.run(ctx, k); err != nil {
		return err
	}
	b, heads := whole.p.Batch-1, whole.p.KVHeads
	parts := [][2]int{{0, heads}, {heads - 1, heads}}
	if k.Pass == flashkit.PassBackward {
		parts = parts[:1]
	}
	for _, g := range parts {
		in, want := whole.part(b, g[0], g[1], x.want)
		one := newArguments(in, bhsd, k.Pass, want)
		if err := one.run(ctx, k); err != nil {
			return fmt.Errorf("alone, as %s: %w", in.p, err)
		}
		for i, out := range one.outputs {
			if err := out.sameAsPart(a.outputs[i], b, g[0]); err != nil {
				return fmt.Errorf("alone, as %s: %w", in.p, err)
			}
		}
	}
	return nil
}

// part returns the inputs of sequence b, reduced to KV heads [g0, g1) and their query heads. It
// also returns O and LSE of want for the same sequence and heads.
func (in *Inputs) part(b, g0, g1 int, want result) (*Inputs, result) {
	p := in.seq(b)
	group := p.Heads / p.KVHeads
	p.Batch, p.KVHeads, p.Heads, p.Ragged = 1, g1-g0, (g1-g0)*group, false
	one, q0 := &Inputs{p: p}, g0*group
	one.q = rowsOf(in.q, in.p.QShape(), b, q0, p.Heads, p.QLen)
	one.do = rowsOf(in.do, in.p.OShape(), b, q0, p.Heads, p.QLen)
	one.k = rowsOf(in.k, in.p.KShape(), b, g0, p.KVHeads, p.KVLen)
	one.v = rowsOf(in.v, in.p.VShape(), b, g0, p.KVHeads, p.KVLen)
	return one, result{
		o:   rowsOf(want.o, in.p.OShape(), b, q0, p.Heads, p.QLen),
		lse: rowsOf(want.lse, in.p.LSEShape(), b, q0, p.Heads, p.QLen),
	}
}

// rowsOf returns rows [0, n) of heads [head, head+heads) of batch b from a dense array.
func rowsOf[T any](x []T, shape [4]int, b, head, heads, n int) (part []T) {
	for h := head; h < head+heads; h++ {
		at := (b*shape[1] + h) * shape[2] * shape[3]
		part = append(part, x[at:at+n*shape[3]]...)
	}
	return part
}

// sameAsPart compares the bits of x, an output for one sequence, with the same elements in the
// output of a whole batch. x holds sequence b of the batch. The first head of x belongs to KV head
// g.
func (x *placed) sameAsPart(whole *placed, b, g int) error {
	got, want := x.bits(), whole.bits()
	n, of := x.dense, whole.dense
	first := g * n[1] // index in the batch of x's first head: x has all heads, or the query heads of KV head g
	for i, at := range x.index {
		h, r, c := i/n[3]/n[2], i/n[3]%n[2], i%n[3]
		j := whole.index[((b*of[1]+first+h)*of[2]+r)*of[3]+c]
		if got[at] != want[j] {
			return fmt.Errorf("%s[0,%d,%d,%d] = %g, but %g in the batch, of sequence %d and head %d", x.name, h, r, c, x.value(at), whole.value(j), b, first+h)
		}
	}
	return nil
}
