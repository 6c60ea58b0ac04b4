package main

import (
	"fmt"
	"slices"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// scores emits the routine that computes S = K Qᵀ and updates the running maxima as it stores S.
// Even and odd columns have separate sums: smaller sums have smaller rounding errors. These errors
// matter most when the backward pass computes dP with this routine. The difference dP - delta is
// often much smaller than dP, but has the same absolute error.
func (g *generator) scores() {
	const signature = "func(s, k *float32, step int, q *float32, dim, keys int, rowMax, ahead *float32)"
	g.arithmetic("scores", signature,
		"sets s[j][i] to the dot product of row j of k and column i of q. It then raises",
		"rowMax[i] to the largest s[j][i], ignoring NaN. k is [keys][dim], with rows step elements apart.",
		"q is [dim][LANES], s is [keys][LANES]. dim > 0.",
		"",
		"Products of even and of odd columns of k have separate sums, because smaller sums have smaller",
		"rounding errors. The routine also prefetches memory into L2: at most 3·dim bytes for each row of",
		"k, from address ahead on.")
	g.scoreRows(g, g.groupsOf(2), 2*unroll)
	g.done()
	g.arithmetic("scoresNarrow", signature,
		fmt.Sprintf("does the work of scores%s for the columns i < %d of q, and leaves other columns of s unset.", g.suffix, g.lanes/vectors))
	one := *g
	one.lanesB = g.lanesB[:1]
	g.scoreRows(&one, []int{4, 2, 1}, unroll)
	g.done()
}

// scoreRows emits the body of scores. products emits the products of each group of rows, with the given
// number of columns per iteration.
func (g *generator) scoreRows(products *generator, sizes []int, columns int) {
	x := scoreRows{generator: products, s: param("s"), k: param("k"), step: bytes(param("step")), q: param("q"), keys: param("keys"), rowMax: param("rowMax"), ahead: param("ahead"), unroll: columns}
	x.groups("keys", sizes)
}

type scoreRows struct {
	*generator
	s, k, step, q, keys, rowMax, ahead GPVirtual
	unroll, rest                       int // columns of K per iteration; rest is of groups of fewer rows than the largest, or 0
}

// groups emits the scores of all keys. The routine's parameter dim is the number of columns of K.
func (g *scoreRows) groups(name string, sizes []int) {
	step3 := GP64()
	LEAQ(Mem{Base: g.step, Index: g.step, Scale: 2}, step3)
	inGroups(name, g.keys, sizes, func(rows int, label string) {
		sums, unroll := g.accumulators(2*rows), g.unroll
		if g.rest > 0 && rows < sizes[0] {
			unroll = g.rest
		}
		x := scoreTile{generator: g.generator, label: label, unroll: unroll, even: sums[:rows], odd: sums[rows:], k: GP64(), q: GP64(), step: g.step, step3: step3, ahead: g.ahead}
		clearSums(sums)
		MOVQ(g.k, x.k)
		MOVQ(g.q, x.q)
		x.columns(param("dim"), rows == sizes[0])
		addOdd(x.even, x.odd)
		g.storeScores(g.s, g.rowMax, x.even)
		ADDQ(U32(uint32(rows*g.rowBytes)), g.s)
		if rows == 3 {
			ADDQ(step3, g.k)
		} else {
			advance(g.k, g.step, rows)
		}
	})
}

type scoreTile struct {
	*generator
	label       string
	unroll      int
	even, odd   [][]VecPhysical
	k, q        GPVirtual // at the current column
	step, step3 GPVirtual // row stride of K, and three times it
	ahead       GPVirtual
}

// columns emits the products of n columns of K and Q. It destroys n.
func (x *scoreTile) columns(n GPVirtual, fetch bool) {
	inPairs(x.label, n, x.unroll, func(i int) {
		sums := [2][][]VecPhysical{x.even, x.odd}[i%2]
		x.generator.step(sums, Mem{Base: x.q, Disp: i * x.rowBytes}, func(r int) Mem {
			return rowAt(x.k, x.step, x.step3, r).Offset(i * 4)
		})
	}, func(columns int) {
		if fetch && columns > 2 {
			PREFETCHT1(Mem{Base: x.ahead})
			ADDQ(Imm(64), x.ahead)
		}
		ADDQ(U32(uint32(columns*4)), x.k)
		ADDQ(U32(uint32(columns*x.rowBytes)), x.q)
	})
}

// inPairs emits loops that together run n steps. The parameter most is the number of steps in an
// iteration of the first loop. The later loops have iterations of two steps and of one step. An
// iteration emits step(0), step(1) and so on, and then advance. The loops destroy n.
func inPairs(label string, n GPVirtual, most int, step func(i int), advance func(steps int)) {
	for _, steps := range slices.Compact([]int{most, 2, 1}) {
		label := fmt.Sprintf("%sby%d", label, steps)
		SUBQ(U32(uint32(steps)), n)
		JL(LabelRef(label + "end"))
		Label(label)
		for i := range steps {
			step(i)
		}
		advance(steps)
		SUBQ(U32(uint32(steps)), n)
		JGE(LabelRef(label))
		Label(label + "end")
		ADDQ(U32(uint32(steps)), n)
	}
}

func addOdd(even, odd [][]VecPhysical) {
	for r, row := range even {
		for v, z := range row {
			VADDPS(odd[r][v], z, z)
		}
	}
}

func (g *generator) storeScores(s, rowMax GPVirtual, rows [][]VecPhysical) {
	max := g.lanesB
	for v, z := range max {
		VMOVUPS(g.part(Mem{Base: rowMax}, v), z)
	}
	for r, row := range rows {
		for v, z := range row {
			VMOVUPS(z, g.part(Mem{Base: s, Disp: r * g.rowBytes}, v))
			VMAXPS(max[v], z, max[v]) // a NaN score leaves the maximum as it is
		}
	}
	for v, z := range max {
		VMOVUPS(z, g.part(Mem{Base: rowMax}, v))
	}
}
