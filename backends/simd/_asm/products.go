package main

import (
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

func (g *generator) declareProduct(transposed, masked bool) {
	name, element, shape := "addProduct", "a[r][i]", "[rows][n]"
	if transposed {
		name, element, shape = "addProductT", "a[i][r]", "[n][rows]"
	}
	signature, does := "c *float32, cStep int, a *float32, aStep int, b *float32, bStep, rows, n int", ""
	if g.bf16 {
		signature, does = "c *float32, cStep int, a *uint32, aStep int, b *uint32, bStep, rows, n int", "Here, · is the dot product of two bf16 pairs. "
		if !transposed {
			signature, does = strings.Replace(signature, "a *uint32", "a *uint16", 1), does+"aStep counts bf16, not pairs. "
		}
	}
	if masked {
		g.arithmetic(name+"Masked", "func("+signature+", columns uint32)",
			"is "+name+g.suffix+" for each x < LANES with bit x of columns set.",
			"It neither reads nor writes other columns of b and c.")
	} else {
		columns, more := "LANES", ""
		if !g.bf16 {
			signature, columns, more = signature+", columns int", "columns", " columns is a multiple of LANES."
		}
		g.arithmetic(name, "func("+signature+")",
			"adds Σ over i < n of "+element+"·b[i][x] to c[r][x] for r < rows and x < "+columns+". a is "+shape+".",
			"Rows of c, a and b are cStep, aStep and bStep elements apart."+more+" "+does+"n > 0.")
	}
}

type matrixProduct struct {
	*generator
	masked                          bool
	transposed                      bool
	once                            bool // loops of fewer than 8 rows do one step per iteration
	c, cStep, a, aStep, b, bStep, n GPVirtual
	aStep3, bStep3                  GPVirtual // three times the strides
}

// product emits C += A B, or C += Aᵀ B, with columns of B and C in the lanes. masked selects the
// variant for rows with fewer than LANES columns: masks then select the columns. Whole rows use no
// masks, because masked loads compete with multiply-adds for ports. In float32, the products are
// summed from zero, and the sum is then added to C: a sum of few products is smaller than C and has
// smaller rounding errors. In bf16, the sum starts from C, because bf16 results need fewer digits.
func (g *generator) product(transposed, masked bool) {
	g.declareProduct(transposed, masked)
	if masked {
		g.columnMasks()
	}
	toBytesA := bytes
	if g.bf16 && !transposed {
		toBytesA = bytes16
	}
	x := &matrixProduct{generator: g, transposed: transposed, masked: masked, once: masked}
	x.c, x.cStep, x.a, x.aStep = param("c"), bytes(param("cStep")), param("a"), toBytesA(param("aStep"))
	rows := param("rows")
	x.b, x.bStep, x.n, x.aStep3, x.bStep3 = param("b"), bytes(param("bStep")), param("n"), GP64(), GP64()
	LEAQ(Mem{Base: x.aStep, Index: x.aStep, Scale: 2}, x.aStep3)
	LEAQ(Mem{Base: x.bStep, Index: x.bStep, Scale: 2}, x.bStep3)
	groups := g.groups
	if masked {
		if !g.bf16 {
			x.narrow(rows)
		}
		if !g.avx512 {
			groups = []int{4, 2, 1} // the masks need registers
		}
	}
	if masked || g.bf16 {
		x.groups("rows", rows, groups)
	} else {
		x.panels(rows, groups)
	}
	Label("end")
	g.done()
}

// panels emits the product for every panel of LANES columns. The arguments c, b and columns are counters.
func (g *matrixProduct) panels(rows GPVirtual, groups []int) {
	Label("panel")
	g.groups("rows", rows, groups)
	SUBQ(U32(uint32(g.lanes)), address("columns"))
	JZ(LabelRef("end"))
	for _, x := range []struct {
		name     string
		register GPVirtual
		step     int
	}{{"c", g.c, g.rowBytes}, {"b", g.b, g.rowBytes}, {"a", g.a, 0}, {"rows", rows, 0}} {
		if x.step > 0 {
			ADDQ(U32(uint32(x.step)), address(x.name))
		}
		MOVQ(address(x.name), x.register)
	}
	JMP(LabelRef("panel"))
}

// narrow emits the product for rows whose columns need only one vector: in AVX2, only for rows that
// fill this vector. Such rows then skip the product with two vectors.
func (g *matrixProduct) narrow(rows GPVirtual) {
	x, columns, one := *g, Load(Param("columns"), GP32()).(GPVirtual), *g.generator
	one.lanesB, one.rowBytes = g.lanesB[:1], g.vectorBytes
	x.generator, x.masked = &one, g.avx512
	if g.avx512 {
		SHRL(Imm(16), columns)
	} else {
		CMPL(columns, Imm(0xff))
	}
	JNE(LabelRef("rows"))
	x.groups("narrow", rows, []int{8, 4, 2, 1})
	JMP(LabelRef("end"))
	Label("rows")
}

func (g *matrixProduct) groups(name string, rows GPVirtual, sizes []int) {
	inGroups(name, rows, sizes, func(rows int, label string) {
		acc := g.accumulators(rows)
		g.sum(acc, label)
		g.store(acc)
	})
}

func (g *matrixProduct) sum(acc [][]VecPhysical, label string) {
	at, a0, a4, rowB, k := GP64(), GP64(), GP64(), GP64(), GP64()
	MOVQ(g.c, at)
	if g.bf16 {
		for _, row := range acc {
			for v, z := range row {
				g.loadColumns(Mem{Base: at}, v, z, g.masked)
			}
			ADDQ(g.cStep, at)
		}
	} else {
		clearSums(acc)
	}
	for range acc { // prefetches the next rows of C, which another core's cache may hold
		for line := 0; line < g.rowBytes; line += 64 {
			PREFETCHT0(Mem{Base: at, Disp: line})
		}
		ADDQ(g.cStep, at)
	}
	MOVQ(g.a, a0)
	if !g.transposed {
		LEAQ(Mem{Base: g.a, Index: g.aStep, Scale: 4}, a4)
	}
	MOVQ(g.b, rowB)
	MOVQ(g.n, k)
	loop := unrolled
	if g.once && len(acc) < 8 {
		loop = stepwise
	}
	loop(label+"i", k, func(i int) {
		for v, z := range g.lanesB {
			g.loadColumns(rowAt(rowB, g.bStep, g.bStep3, i), v, z, g.masked)
		}
		g.multiply(acc, func(r int) Mem {
			if g.transposed {
				return rowAt(a0, g.aStep, g.aStep3, i).Offset(r * 4)
			}
			return rowAt([]GPVirtual{a0, a4}[r/4], g.aStep, g.aStep3, r%4).Offset(i * 4)
		})
	}, func(steps int) {
		advance(rowB, g.bStep, steps)
		if g.transposed {
			advance(a0, g.aStep, steps)
			return
		}
		ADDQ(U32(uint32(steps*4)), a0)
		ADDQ(U32(uint32(steps*4)), a4)
	})
}

func (g *matrixProduct) store(acc [][]VecPhysical) {
	for _, row := range acc {
		for v, z := range row {
			if !g.bf16 {
				g.addColumns(Mem{Base: g.c}, v, z, g.masked)
			}
			g.storeColumns(z, v, Mem{Base: g.c}, g.masked)
		}
		ADDQ(g.cStep, g.c)
	}
	if g.transposed {
		ADDQ(U32(uint32(len(acc)*4)), g.a)
		return
	}
	for range acc {
		ADDQ(g.aStep, g.a)
	}
}

// advance adds steps·step to the pointer p. steps is 1, 2, 4 or 8.
func advance(p, step GPVirtual, steps int) {
	if steps == 1 {
		ADDQ(step, p)
	} else {
		LEAQ(Mem{Base: p, Index: step, Scale: uint8(steps)}, p)
	}
}

// columnMasks sets the masks of a row's two vectors from the routine's parameter columns: opmasks, or
// vectors in AVX2.
func (g *generator) columnMasks() {
	columns := Load(Param("columns"), GP32()).(GPVirtual)
	if !g.avx512 {
		for v, z := range g.masks() {
			VMOVD(columns, z.AsX())
			VPBROADCASTD(z.AsX(), z)
			g.maskLanes(v, z)
		}
		return
	}
	KMOVW(columns, K1)
	SHRL(Imm(16), columns)
	KMOVW(columns, K2)
}

func (g *generator) masks() []VecPhysical { return g.registers[8:10] }

func (g *generator) loadColumns(m Mem, v int, z VecPhysical, masked bool) {
	switch {
	case !masked:
		VMOVUPS(g.part(m, v), z)
	case g.avx512:
		VMOVUPS_Z(g.part(m, v), []OpmaskPhysical{K1, K2}[v], z)
	default:
		VMASKMOVPS(g.part(m, v), g.masks()[v], z)
	}
}

func (g *generator) addColumns(m Mem, v int, z VecPhysical, masked bool) {
	switch {
	case !masked:
		VADDPS(g.part(m, v), z, z)
	case g.avx512:
		VADDPS(g.part(m, v), z, []OpmaskPhysical{K1, K2}[v], z)
	default:
		g.loadColumns(m, v, g.lanesB[v], true)
		VADDPS(g.lanesB[v], z, z)
	}
}

func (g *generator) storeColumns(z VecPhysical, v int, m Mem, masked bool) {
	switch {
	case !masked:
		VMOVUPS(z, g.part(m, v))
	case g.avx512:
		VMOVUPS(z, []OpmaskPhysical{K1, K2}[v], g.part(m, v))
	default:
		VMASKMOVPS(z, g.masks()[v], g.part(m, v))
	}
}
