package conformance

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
)

// A Case is one problem with its inputs. A trap is a small case named after
// the one mistake that it catches; a grid case is named after its problem.
type Case struct {
	Name    string
	Catches string           // the mistake, in words; "" in the grid
	Problem flashkit.Problem // with Float32; InDType gives the other two

	fill   func(in *Inputs) // changes the noise; nil for plain noise
	layout layout
	dlse   bool // the backward pass gets a DLSE
	grid   bool // one of Grid, whose vector holds several; see whole

	truth func() result // of a case without a vector
}

// InDType returns the case with its tensors stored as t. Every input is exactly
// representable in all three types, so the expected values stay the same.
func (c Case) InDType(t flashkit.DType) Case {
	if c.Problem.DType == t {
		return c
	}
	c.Problem.DType = t
	return c
}

// FullName returns the name of the case together with its type, if that is not
// Float32, and its layout, if that makes sequences of it, with dashes between.
func (c Case) FullName() string {
	name := c.Name
	if c.Problem.DType != flashkit.Float32 {
		name += "-" + c.Problem.DType.String()
	}
	if c.layout > numLayouts {
		name += "-" + layoutNames[c.layout]
	}
	return name
}

// raggeds returns the case in every layout that makes sequences of its batches, if it
// is about no other layout. Float16 and BFloat16 are told apart by no layout: one does.
func (c Case) raggeds() (cases []Case) {
	for l := padded; l < endLayouts && c.layout == bhsd && hasBackward(c.Problem); l++ {
		if c.Problem.DType == flashkit.Float32 || l == packed {
			c := c
			c.layout = l
			cases = append(cases, c)
		}
	}
	return cases
}

// Grid returns the 108 cases of batch {4,8} x sequence {5,11,31} x heads
// {4,5,8} x head dim {8,32,64} x causal {no,yes}, all plain noise. The six that
// differ in batch and heads alone share a vector; see patterns.
func Grid() []Case {
	var cases []Case
	for _, batch := range []int{4, 8} {
		for _, seq := range []int{5, 11, 31} {
			for _, heads := range []int{4, 5, 8} {
				for _, dim := range []int{8, 32, 64} {
					for _, mask := range []flashkit.Band{{}, flashkit.Causal()} {
						p := flashkit.Problem{Batch: batch, Heads: heads, KVHeads: heads,
							QLen: seq, KVLen: seq, Dim: dim, VDim: dim, Band: mask}
						cases = append(cases, Case{Name: p.String(), Problem: p, grid: true})
					}
				}
			}
		}
	}
	return cases
}

// Traps returns the named traps, in the order of the table in traps.go.
func Traps() []Case {
	cases := make([]Case, len(traps))
	for i, t := range traps {
		p, err := flashkit.ParseProblem(t.problem)
		if err != nil {
			panic(fmt.Sprintf("trap %s: %v", t.name, err)) // a typing mistake in the table
		}
		cases[i] = Case{Name: t.name, Catches: t.catches, Problem: p, fill: t.fill, layout: t.layout, dlse: t.dlse}
	}
	return cases
}
