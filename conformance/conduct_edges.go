package conformance

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
	"github.com/flashkit-go/flashkit/internal/guarded"
)

// A tensor may begin at the first byte of a memory mapping or end at its last byte, as in a
// memory-mapped file. The adjacent page is unreadable, so a vector load or store beyond the tensor
// faults.

var edgeProblems = []string{
	"b1-h2-g1-n33-m31-d17-f32-causal",
	"b1-h4-g2-n3-m127-d40-dv65-f32",
	"b2-h2-g1-n1-m1-d3-dv16-f32",
	"b1-h1-g1-n65-m129-d1-f32-window33.5",
}

const edgeBytes = 1 << 18 // bytes of memory per tensor

// edgesOfMemory checks that a kernel touches no memory outside the tensors, and that the results do
// not depend on the tensors' addresses. Calls have one worker, because most kernels then compute on
// the caller's goroutine, where a fault becomes a panic. A fault on another goroutine ends the
// process.
func edgesOfMemory(ctx context.Context, k flashkit.Kernel, features flashkit.Feature) error {
	if k.Device {
		return notHeld("its tensors are copied to a device")
	}
	if k.Pass == flashkit.PassBackward {
		features &^= flashkit.ForwardFeatures
	}
	memory, free, err := guarded.Memory(len(flashkit.Arguments()), edgeBytes)
	if err != nil {
		return notHeld(err.Error())
	}
	defer free()
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	asked := 0
	layouts := [...]layout{bhsd, gaps, bshd} // in these layouts no unused element follows the last one
	for i, text := range edgeProblems {
		p, err := flashkit.ParseProblem(text)
		if err != nil {
			panic(err) // a typing error in the table
		}
		setParameters(&p, features)
		for j, t := range k.DTypes {
			p := p
			if p.DType = t; t == flashkit.Float32 && features&flashkit.FeatureMixed != 0 {
				p.KVDType, p.Int8Group = flashkit.BFloat16, 0
			}
			if k.Fits(p.Ask(k.Pass)) != "" {
				continue
			}
			in := Case{Name: "edges", Problem: p, dlse: k.Pass == flashkit.PassBackward}.Inputs()
			var want result
			if k.Pass == flashkit.PassBackward { // the backward pass reads O and LSE
				want.o, want.lse = oracle.Forward(p, in.oracle())
			}
			l := layouts[(i+j)%len(layouts)]
			asked++
			if err := edgesOf(ctx, k, func() *arguments { return newArguments(in, l, k.Pass, want) }, memory); err != nil {
				return fmt.Errorf("%s: %w", newSides(in, l).p, err)
			}
		}
	}
	if asked == 0 {
		return notHeld("it takes none of the problems")
	}
	return nil
}

// edgesOf runs the kernel on tensors on the heap, then at the end and at the start of memory
// mappings. It compares the bits of the outputs.
func edgesOf(ctx context.Context, k flashkit.Kernel, newArgs func() *arguments, memory [][]byte) error {
	free := newArgs()
	if err := free.run(ctx, k); err != nil {
		return err
	}
	for _, side := range [...]string{"end", "start"} {
		a := newArgs()
		a.args.Workers = 1
		for i, arg := range flashkit.Arguments() {
			if t := arg.Of(&a.args); !t.IsZero() {
				*t = copied(t, memory[i], side == "end")
			}
		}
		if err := a.run(ctx, k); err != nil {
			return fmt.Errorf("where tensors lie at the %s of memory: %w", side, err)
		}
		for _, out := range free.outputs {
			if x, y := elementsOf(out.of(&free.args)), elementsOf(out.of(&a.args)); !slices.Equal(x, y) {
				return fmt.Errorf("%s differs where tensors lie at the %s of memory", out.name, side)
			}
		}
	}
	return nil
}

// copied returns a copy of a tensor, with the gaps between the tensor's rows. The copy is at the
// end or the start of the given memory.
func copied(t *flashkit.Tensor, memory []byte, atEnd bool) flashkit.Tensor {
	n, from := t.Len()*t.DType().Size(), 0
	if atEnd {
		from = len(memory) - n
	}
	x, s := over(t, memory[from:][:n]), t.Strides()
	copy(x.Float32s(), t.Float32s())
	copy(x.Uint16s(), t.Uint16s())
	copy(x.Bools(), t.Bools())
	copy(x.Int32s(), t.Int32s())
	copy(x.Int8s(), t.Int8s())
	return x.WithStrides(s[0], s[1], s[2])
}
