package conformance

import (
	"fmt"
	"slices"

	"github.com/flashkit-go/flashkit"
)

// A Case is one problem with its inputs. A trap is a small case named after the single mistake that
// it catches; a grid case is named after its problem.
type Case struct {
	Name    string           // without type and layout; FullName adds them
	Catches string           // the mistake, in words; "" in the grid
	Problem flashkit.Problem // with Float32; InDType gives the other types

	fill   func(in *Inputs) // changes the noise; nil leaves it
	layout layout
	within string           // name of the layout, if it is not the trap's own
	dlse   bool             // the backward pass gets a DLSE
	grid   bool             // a case of Grid, whose vector serves several; see whole
	mixed  bool             // a case of mixes
	brief  bool             // a long case that a brief run asks of every kernel, in float32
	only   []flashkit.DType // the types that hold the inputs exactly; nil for all

	// For a case without a vector:
	truth  func() result
	bounds map[flashkit.DType]func() bounds // largest error from truth, by type
}

// InDType returns the case with its tensors stored as t: Float32, Float16 or BFloat16. The inputs
// are exact in the types that the suite runs, so the expected values stay the same.
func (c Case) InDType(t flashkit.DType) Case {
	if c.Problem.DType == t {
		return c
	}
	c.Problem.DType = t
	return c
}

// types returns the element types to run. Long cases with features, or longer than 65,536 keys,
// skip Float16. Problems with a KVDType and the cases of long_sums.go run in Float32 only.
func (c Case) types() []flashkit.DType {
	switch {
	case c.only != nil:
		return c.only
	case c.Problem.KVDType != 0 || c.brief:
		return dtypes[:1]
	case c.truth != nil && (c.features() != 0 || c.Problem.KVLen > 1<<16):
		return []flashkit.DType{flashkit.Float32, flashkit.BFloat16}
	}
	return dtypes[:]
}

// mixes returns the case in Float32 with K and V stored in each of the other types. It returns none
// if the problem sets KVDType itself.
func (c Case) mixes() (cases []Case) {
	for _, t := range dtypes[1:] {
		if m := c.InDType(flashkit.Float32); c.Problem.KVDType == 0 {
			m.Problem.KVDType, m.mixed = t, true
			cases = append(cases, m)
		}
	}
	return cases
}

// storages returns the case in all its types, then in mixes.
func (c Case) storages() (cases []Case) {
	for _, t := range c.types() {
		cases = append(cases, c.InDType(t))
	}
	return append(cases, c.mixes()...)
}

// FullName returns the case's name, its type unless Float32, and its layout, joined by dashes.
func (c Case) FullName() string {
	name := c.Name
	if c.Problem.DType != flashkit.Float32 {
		name += "-" + c.Problem.DType.String()
	}
	if c.mixed {
		name += "-kv" + c.Problem.KVDType.String()
	}
	if c.within != "" {
		name += "-" + c.within
	}
	return name
}

// raggeds returns the case in every layout of sequences, unless it has a layout of its own. Layouts
// are independent of types: Float16 and BFloat16 run packed only, and so do paged BFloat16 keys
// among the mixed cases.
func (c Case) raggeds() (cases []Case) {
	for l := padded; l < endLayouts && c.layout == bhsd; l++ {
		if c.Problem.Page != 0 && l != padded && l != packedQ {
			continue // the problem fixes the layout of its keys
		}
		switch {
		case c.mixed && (c.Problem.KVDType == flashkit.Float16 || l != paged && c.Problem.Page == 0):
		case c.Problem.DType == flashkit.Float32 || l == packed:
			c := c
			c.layout, c.within = l, layoutNames[l]
			cases = append(cases, c)
		}
	}
	return cases
}

// features returns the features that a kernel needs for the case in its layout.
func (c Case) features() flashkit.Feature { return laidOut(c.Problem, c.layout).Features() }

// Grid returns the 108 cases of batch {4,8} x sequence {5,11,31} x heads {4,5,8} x head dim
// {8,32,64} x causal {no,yes}, all plain noise. Six cases that differ only in batch and heads share
// a vector; see patterns.
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

// Traps returns the traps in the order of traps.go, traps_features.go, traps_edges.go and
// traps_range.go.
func Traps() []Case {
	all := slices.Concat(traps, featureTraps, edgeTraps, rangeTraps)
	cases := make([]Case, len(all))
	for i, t := range all {
		p, err := flashkit.ParseProblem(t.problem)
		if err != nil {
			panic(fmt.Sprintf("trap %s: %v", t.name, err)) // a typing error in the table
		}
		cases[i] = Case{Name: t.name, Catches: t.catches, Problem: p, fill: t.fill, layout: t.layout, dlse: t.dlse, only: t.types}
	}
	return cases
}
