package conformance

import (
	"fmt"
	"slices"

	"github.com/flashkit-go/flashkit"
)

// A Case is one problem with its inputs. A trap is a small case that catches a single mistake. The
// trap's name describes this mistake. A case of Grid is named after its problem.
type Case struct {
	Name    string           // without the type and the layout, which FullName adds
	Catches string           // the mistake that the case catches, in words; "" in the grid
	Problem flashkit.Problem // in Float32; InDType changes the type

	fill   func(in *Inputs) // changes the noise inputs; nil leaves them
	layout layout
	within string           // name of the layout, if method raggeds chose the layout; else ""
	dlse   bool             // the backward pass gets a DLSE
	grid   bool             // a case of Grid; several of these share a golden vector, see patterns
	mixed  bool             // mixes returned the case
	brief  bool             // a case of longSums; every kernel runs it even if Options.Brief is set, in Float32 only
	only   []flashkit.DType // the types that represent the inputs exactly; nil for all

	// Results and bounds of a case without a golden vector:
	truth  func() result
	bounds map[flashkit.DType]func() bounds // largest allowed difference from truth, by type
}

// InDType returns the case with its tensors stored as t: Float32, Float16 or BFloat16. The suite
// only uses types that represent the inputs exactly, so the expected results stay the same.
func (c Case) InDType(t flashkit.DType) Case {
	if c.Problem.DType == t {
		return c
	}
	c.Problem.DType = t
	return c
}

// types returns the element types in which the suite runs the case. Long cases with features, or
// with more than 65,536 keys, skip Float16. Problems with a KVDType and the cases of long_sums.go
// run in Float32 only.
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

// mixes returns two copies of the case. Q is Float32 in both copies. K and V are Float16 in one
// copy, and BFloat16 in the other. If the problem sets KVDType itself, mixes returns no copies.
func (c Case) mixes() (cases []Case) {
	for _, t := range dtypes[1:] {
		if m := c.InDType(flashkit.Float32); c.Problem.KVDType == 0 && c.Problem.Int8Group == 0 {
			m.Problem.KVDType, m.mixed = t, true
			cases = append(cases, m)
		}
	}
	return cases
}

// storages returns the case in all its types, followed by the cases that mixes returns.
func (c Case) storages() (cases []Case) {
	for _, t := range c.types() {
		cases = append(cases, c.InDType(t))
	}
	return append(cases, c.mixes()...)
}

// FullName returns the case's name, its types unless they are Float32, and its layout, joined by
// dashes.
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

// raggeds returns the case in layouts of ragged sequences, or no cases if the case sets a layout
// itself. A mistake in a layout does not depend on the type. So cases in Float32 run in all these
// layouts, and cases in Float16 and BFloat16 only in layout packed. Of the cases of mixes, only
// cases with BFloat16 keys run, and only with paged keys.
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

// features returns the features that the case needs from a kernel, including features that the
// layout adds.
func (c Case) features() flashkit.Feature { return laidOut(c.Problem, c.layout).Features() }

// Grid returns the 108 cases of batch {4,8} x sequence {5,11,31} x heads {4,5,8} x head dim
// {8,32,64} x causal {no,yes}. All inputs are noise. Six cases that differ only in batch and heads
// share a golden vector; see patterns.
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

// Traps returns the traps in the order of traps.go, traps_features.go, traps_ranges.go, traps_edges.go and
// traps_range.go, with traps_int8.go and traps_stats.go before traps_edges.go.
func Traps() []Case {
	all := slices.Concat(traps, featureTraps, rangesTraps, int8Traps, statsTraps, edgeTraps, rangeTraps)
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
