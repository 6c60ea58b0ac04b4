package main

import (
	"fmt"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const int8Block = 16 // elements that extent and quantize process at a time

// int8Routines emits the routines of products in 8 bits: for AVX2, and for AVX-VNNI and AVX512-VNNI, which
// use AVX2's extent.
func (g *generator) int8Routines() {
	if !g.quads {
		g.extent(false)
		g.extent(true)
	}
	g.quantize()
	g.dotPanel()
}

// extent emits the search for the largest magnitude of a row, with 256-bit vectors. If scaled is true,
// the routine first multiplies the row by factors. It does not treat denormal numbers as 0, because
// the integers must not depend on the instruction set.
func (g *generator) extent(scaled bool) {
	if scaled {
		g.routine("scale", "func(dst, x, by *float32, n int) uint32",
			"sets dst[i] to x[i]·by[i] for i < n. It returns the bits of the largest magnitude of dst[i].",
			"n is a multiple of 16. n > 0.")
	} else {
		g.routine("extent", "func(x *float32, n int) uint32",
			"returns the bits of the largest magnitude of x[i] for i < n. n is a multiple of 16. n > 0.")
	}
	x, n := param("x"), param("n")
	most, other, z, t, magnitude := Y0, Y1, Y2, Y3, Y4
	VPXOR(most, most, most)
	VPXOR(other, other, other)
	VPCMPEQD(magnitude, magnitude, magnitude)
	VPSRLD(Imm(1), magnitude, magnitude)
	var dst, by GPVirtual
	if scaled {
		dst, by = param("dst"), param("by")
	}
	Label("step")
	for i, z := range []VecPhysical{z, t} {
		if !scaled {
			VPAND(Mem{Base: x, Disp: 32 * i}, magnitude, z)
			continue
		}
		VMOVUPS(Mem{Base: x, Disp: 32 * i}, z)
		VMULPS(Mem{Base: by, Disp: 32 * i}, z, z)
		VMOVUPS(z, Mem{Base: dst, Disp: 32 * i})
		VPAND(z, magnitude, z)
	}
	VPMAXUD(z, most, most)
	VPMAXUD(t, other, other)
	for _, p := range []GPVirtual{x, dst, by} {
		if p != nil {
			ADDQ(Imm(64), p)
		}
	}
	SUBQ(Imm(int8Block), n)
	JNZ(LabelRef("step"))
	VPMAXUD(other, most, most)
	VEXTRACTI128(Imm(1), most, X1)
	VPMAXUD(X1, X0, X0)
	VPSHUFD(Imm(0x4e), X0, X1)
	VPMAXUD(X1, X0, X0)
	VPSHUFD(Imm(0xb1), X0, X1)
	VPMAXUD(X1, X0, X0)
	bits := GP32()
	VMOVD(X0, bits)
	Store(bits, ReturnIndex(0))
	g.done()
}

// quantize emits the conversion of a row to integers: of 16 bits with AVX2, of 8 unsigned bits with
// VNNI. It does not treat denormal numbers as 0, unlike most routines, because the integers must
// not depend on the instruction set.
func (g *generator) quantize() {
	does := "dst[i] to x[i]·by, rounded to a 16-bit integer, ties to even, for i < n."
	if g.quads {
		does = "byte i of dst to x[i]·by + 128, rounded to an 8-bit integer, ties to even, for i < n."
	}
	g.routine("quantize", "func(dst *uint32, x *float32, n int, by float32)", "sets "+does, "n is a multiple of 16. n > 0.")
	dst, x, n := param("dst"), param("x"), param("n")
	z, high, by, offset := g.registers[0], g.registers[1], g.registers[2], g.registers[3]
	floatParam("by", by)
	if g.quads {
		VPBROADCASTD(g.everyLane("offset", []uint32{128}).Offset(0), offset)
	}
	Label("step")
	VMULPS(Mem{Base: x}, by, z)
	VCVTPS2DQ(z, z)
	if g.avx512 {
		VPADDD(offset, z, z)
		VPMOVDB(z, Mem{Base: dst})
		ADDQ(Imm(16), dst)
	} else {
		VMULPS(Mem{Base: x, Disp: 32}, by, high)
		VCVTPS2DQ(high, high)
		if g.quads {
			VPADDD(offset, z, z)
			VPADDD(offset, high, high)
		}
		VPACKSSDW(high, z, z)
		VPERMQ(Imm(0xd8), z, z)
		if g.quads {
			VEXTRACTI128(Imm(1), z, high.AsX())
			VPACKUSWB(high.AsX(), z.AsX(), z.AsX())
			VMOVDQU(z.AsX(), Mem{Base: dst})
			ADDQ(Imm(16), dst)
		} else {
			VMOVDQU(z, Mem{Base: dst})
			ADDQ(Imm(32), dst)
		}
	}
	ADDQ(Imm(64), x)
	SUBQ(Imm(int8Block), n)
	JNZ(LabelRef("step"))
	g.done()
}

// An int8Panel holds the operands of the product of A's rows and a panel of B, in 8 bits.
type int8Panel struct {
	*generator
	most, vectors int // rows and vectors of a tile
	step          int // bytes of B in a step over k
	b, a, aRow    GPVirtual
	a0, a4, at, n GPVirtual
	aRow3         GPVirtual
	ahead, stride GPVirtual // with AVX-512, the next prefetch, and bytes between the prefetches of steps
	acc           [][]VecPhysical
	lanesB        []VecPhysical
	x, product    VecPhysical
}

// dotPanel emits the product of A's rows and a panel of B. The sums of a tile are integers in
// registers. After the last step they go to memory, and a loop over rows scales them.
func (g *generator) dotPanel() {
	p := &int8Panel{generator: g, most: 6, vectors: 2, step: 32}
	form := pairDots
	if g.quads {
		p.step, form = 64, quadDots
	}
	if g.avx512 {
		p.most, p.vectors, p.step = 8, 3, 192
	}
	p.begin(form)
	p.b, p.a, p.aRow = param("b"), param("a"), bytes(param("aRow"))
	p.a0, p.a4, p.at, p.n, p.aRow3 = GP64(), GP64(), GP64(), GP64(), GP64()
	LEAQ(Mem{Base: p.aRow, Index: p.aRow, Scale: 2}, p.aRow3)
	for r := range p.most {
		p.acc = append(p.acc, g.registers[r*p.vectors:][:p.vectors])
	}
	if g.avx512 {
		p.beginFetch()
	}
	rest := g.registers[p.most*p.vectors:]
	p.lanesB, p.x, p.product = rest[:p.vectors], rest[p.vectors], rest[p.vectors+1]
	Label("tile")
	MOVQ(p.a, p.a0)
	LEAQ(Mem{Base: p.a, Index: p.aRow, Scale: 4}, p.a4)
	LEAQ(Mem{Base: p.b, Disp: 2 * p.vectors * g.vectorBytes}, p.at)
	MOVQ(address("k"), p.n)
	for _, acc := range p.acc {
		for v, z := range acc {
			switch {
			case g.avx512:
				VMOVDQU32(g.part(Mem{Base: p.b}, v), z)
			case g.quads:
				VMOVDQU(g.part(Mem{Base: p.b}, v), z)
			default:
				VPXOR(z, z, z)
			}
		}
	}
	for rows := p.most; rows > 0; rows-- {
		p.sumRows(rows)
	}
	p.finish()
	g.done()
}

const (
	pairDots = "sums of pairs. a holds pairs of 16-bit integers, b pairs of 8-bit integers"
	quadDots = "sums of quads. a holds quads of unsigned 8-bit integers, b quads of 8-bit integers"
)

// begin begins the routine. form is the documentation of the dots.
func (p *int8Panel) begin(form string) {
	width := p.vectors * p.vectorBytes / 4
	p.arithmetic("dots", "func(c *float32, cStep int, a *uint32, aRow int, scales *float32, b *uint32, k, rows, add int, bias *float32, sums *int32)",
		fmt.Sprintf("computes y[r][x] = s·scales[r]·b[1][x] for r < rows and x < %d, where s is", width),
		"b[0][x] + Σ over i < k of dot(a[r*aRow+i], b[i+2][x]). b[0] holds integers and b[1] float32 numbers.",
		"The dots are "+form+".",
		"",
		"The routine stores y in c. Before the store, it adds these terms to y[r][x]:",
		"",
		"  - bias[x] if bias is not nil",
		"  - the old c[r][x] if add != 0",
		"",
		fmt.Sprintf("Rows of c are cStep elements apart. sums is workspace, [%d][%d]. k, rows > 0.", p.most, width))
}

// sumRows emits the loop over k of a tile with the given number of rows.
func (p *int8Panel) sumRows(rows int) {
	name := fmt.Sprintf("rows%d", rows)
	if rows > 1 {
		CMPQ(address("rows"), Imm(uint64(rows)))
		JL(LabelRef(name + "fewer"))
	}
	Label(name)
	for v, z := range p.lanesB {
		switch {
		case p.avx512:
			VMOVDQU32(p.part(Mem{Base: p.at}, v), z)
		case p.quads:
			VMOVDQU(p.part(Mem{Base: p.at}, v), z)
		default:
			VPMOVSXBW(Mem{Base: p.at, Disp: 16 * v}, z)
		}
	}
	p.fetch(rows)
	for r, acc := range p.acc[:rows] {
		VPBROADCASTD(rowAt([]GPVirtual{p.a0, p.a4}[r/4], p.aRow, p.aRow3, r%4), p.x)
		for v, z := range acc {
			p.multiplyAdd(v, z)
		}
	}
	ADDQ(Imm(4), p.a0)
	if rows > 4 {
		ADDQ(Imm(4), p.a4)
	}
	ADDQ(U32(uint32(p.step)), p.at)
	DECQ(p.n)
	JNZ(LabelRef(name))
	if rows > 1 {
		JMP(LabelRef("sums"))
		Label(name + "fewer")
	}
}

const int8Ahead = 1024 // bytes between a load of B and its prefetch

// beginFetch prepares prefetches of the memory after the panel, where the next panel usually is. Each
// tile prefetches an equal part of as many bytes as the panel has.
func (p *int8Panel) beginFetch() {
	p.ahead, p.stride = GP64(), GP64()
	tiles, width := param("rows"), U32(uint32(p.step))
	ADDQ(Imm(uint64(p.most-1)), tiles)
	SHRQ(Imm(3), tiles)
	MOVQ(width, RAX)
	XORQ(RDX, RDX)
	DIVQ(tiles)
	MOVQ(RAX, p.stride)
	MOVQ(address("k"), p.ahead)
	IMUL3Q(width, p.ahead, p.ahead)
	LEAQ(Mem{Base: p.ahead, Index: p.b, Scale: 1, Disp: 2 * p.step}, p.ahead)
}

// fetch emits the prefetches of a step over k. One row reads B as fast as memory delivers it, so further
// requests would delay the panel itself.
func (p *int8Panel) fetch(rows int) {
	if !p.avx512 || rows == 1 {
		PREFETCHT0(Mem{Base: p.at, Disp: int8Ahead})
		return
	}
	PREFETCHT1(Mem{Base: p.ahead})
	PREFETCHT1(Mem{Base: p.ahead, Disp: 64})
	ADDQ(p.stride, p.ahead)
}

// multiplyAdd adds the products of the broadcast elements and vector v of B.
func (p *int8Panel) multiplyAdd(v int, sum VecPhysical) {
	if p.avx512 {
		VPDPBUSD(p.lanesB[v], p.x, sum)
		return
	}
	if p.quads {
		vexVPDPBUSD(p.lanesB[v], p.x, sum)
		return
	}
	product := p.product
	if v == p.vectors-1 {
		product = p.x
	}
	VPMADDWD(p.lanesB[v], p.x, product)
	VPADDD(product, sum, sum)
}

// finish emits the end of a tile, and the jump to the next tile.
func (p *int8Panel) finish() {
	Label("sums")
	sums := param("sums")
	for r, acc := range p.acc {
		for v, z := range acc {
			VMOVUPS(z, p.part(Mem{Base: sums}, r*p.vectors+v))
		}
	}
	p.scaleRows(sums, false)
	for r := p.most; r > 0; r -= 2 {
		LEAQ(Mem{Base: p.a, Index: p.aRow, Scale: 2}, p.a)
	}
	p.nextTile()
}

// scaleRows emits the loop over a tile's rows that scales sums. If first is true, it also adds the first
// terms in b[0] to the sums.
func (p *int8Panel) scaleRows(sums GPVirtual, first bool) {
	width := p.vectors * p.vectorBytes
	n, scales := GP64(), param("scales")
	MOVQ(U32(uint32(p.most)), n)
	CMPQ(address("rows"), n)
	CMOVQLT(address("rows"), n)
	c, step, bias, add := param("c"), bytes(param("cStep")), param("bias"), param("add")
	z, scale := p.registers[:p.vectors], p.registers[p.vectors]
	each := func(f func(v int, z VecPhysical)) {
		for v, z := range z {
			f(v, z)
		}
	}
	Label("row")
	VBROADCASTSS(Mem{Base: scales}, scale)
	each(func(v int, z VecPhysical) {
		if at := p.part(Mem{Base: sums}, v); first {
			VMOVDQU32(at, z)
			VPADDD(p.part(Mem{Base: p.b}, v), z, z)
			VCVTDQ2PS(z, z)
		} else {
			VCVTDQ2PS(at, z)
		}
		VMULPS(scale, z, z)
		VMULPS(p.part(Mem{Base: p.b, Disp: width}, v), z, z)
	})
	TESTQ(bias, bias)
	JZ(LabelRef("plain"))
	each(func(v int, z VecPhysical) { VADDPS(p.part(Mem{Base: bias}, v), z, z) })
	Label("plain")
	TESTQ(add, add)
	JZ(LabelRef("store"))
	each(func(v int, z VecPhysical) { VADDPS(p.part(Mem{Base: c}, v), z, z) })
	Label("store")
	each(func(v int, z VecPhysical) { VMOVUPS(z, p.part(Mem{Base: c}, v)) })
	ADDQ(Imm(4), scales)
	ADDQ(U32(uint32(width)), sums)
	ADDQ(step, c)
	DECQ(n)
	JNZ(LabelRef("row"))
	MOVQ(c, address("c"))
	MOVQ(scales, address("scales"))
}

// nextTile emits the jump to the next tile, if rows are left.
func (p *int8Panel) nextTile() {
	rows := param("rows")
	SUBQ(Imm(uint64(p.most)), rows)
	MOVQ(rows, address("rows"))
	TESTQ(rows, rows)
	JG(LabelRef("tile"))
}
