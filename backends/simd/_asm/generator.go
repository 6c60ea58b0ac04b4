package main

import (
	"strconv"
	"strings"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

const vectors = 2 // vectors in a row of S, Qᵀ and Oᵀ

// A generator writes routines for one instruction set.
type generator struct {
	suffix      string // appended to the names of routines
	avx512      bool   // false means AVX2
	bf16        bool   // products take bf16 pairs, see bf16.go
	quads       bool   // products in 8 bits multiply quads of unsigned by quads of signed integers
	vectorBytes int
	lanes       int   // queries of a tile
	rowBytes    int   // bytes of a row of S, Qᵀ and Oᵀ
	groups      []int // row counts of register tiles: the largest, then smaller ones for the last rows

	given      GPVirtual     // address of the numbers that a routine has as a parameter
	registers  []VecPhysical // all vector registers; the first ones are accumulators
	lanesB     []VecPhysical // the current row of the operand that has its columns in the lanes
	broadcasts []VecPhysical // broadcast elements, used in turn: one loads during the products of another

	tables map[string]Mem // constants in memory, by name

	// The fields below belong to the current routine.
	saved      *Mem        // the stack slot of the caller's MXCSR; nil if the routine does not change MXCSR
	exp        exponential // constants of exp2
	upperHalf  VecPhysical // the mask 0xffff0000 of cut, set by cutConstant
	half       VecPhysical // 0x8000 in every lane, the rounding increment of split
	upperWords VecPhysical // mask of a bfloat16 vector's odd elements, set by storage.constants
}

func newGenerator(name string) *generator {
	g := &generator{suffix: name, tables: map[string]Mem{}}
	g.quads = name == "AVXVNNI" || name == "AVX512VNNI" || name == "AMXINT8"
	switch name {
	case "AVX512", "AVX512BF16", "AVX512VNNI", "AMXBF16", "AMXINT8":
		g.avx512, g.bf16 = true, name == "AVX512BF16"
		g.vectorBytes = 64
		g.groups = []int{8, 4, 2, 1}
		g.registers = []VecPhysical{
			Z0, Z1, Z2, Z3, Z4, Z5, Z6, Z7, Z8, Z9, Z10, Z11, Z12, Z13, Z14, Z15,
			Z16, Z17, Z18, Z19, Z20, Z21, Z22, Z23, Z24, Z25, Z26, Z27, Z28, Z29, Z30, Z31,
		}
		g.lanesB, g.broadcasts = g.registers[16:18], g.registers[18:22]
	case "AVX2", "AVXVNNI":
		g.vectorBytes = 32
		g.groups = []int{6, 4, 2, 1}
		g.registers = []VecPhysical{Y0, Y1, Y2, Y3, Y4, Y5, Y6, Y7, Y8, Y9, Y10, Y11, Y12, Y13, Y14, Y15}
		g.lanesB, g.broadcasts = g.registers[12:14], g.registers[14:16]
	default:
		panic("no such instruction set: " + name)
	}
	g.lanes = vectors * g.vectorBytes / 4
	g.rowBytes = g.lanes * 4
	return g
}

// part returns the address of vector v in the row at m.
func (g *generator) part(m Mem, v int) Mem { return m.Offset(v * g.vectorBytes) }

// routine begins a routine whose pointers do not escape. does holds the documentation of the
// routine. LANES in this text stands for the number of queries of a tile.
func (g *generator) routine(name, signature string, does ...string) {
	TEXT(name+g.suffix, NOSPLIT, signature)
	Pragma("noescape")
	does[0] = name + g.suffix + " " + does[0]
	for i := range does {
		does[i] = strings.ReplaceAll(does[i], "LANES", strconv.Itoa(g.lanes))
	}
	Doc(does...)
}

// arithmetic begins a routine that reads and writes denormal numbers as 0, because denormal numbers
// slow many processors down. This mode is in MXCSR, a register of the thread. The thread later runs
// other goroutines, so done restores MXCSR.
func (g *generator) arithmetic(name, signature string, does ...string) {
	g.routine(name, signature, does...)
	const flushToZero, denormalsAreZero, noExceptions = 1 << 15, 1 << 6, 0x3f << 7
	local := AllocLocal(8)
	mode := local.Offset(4)
	g.saved = &local
	STMXCSR(local)
	MOVL(U32(flushToZero|denormalsAreZero|noExceptions), mode)
	LDMXCSR(mode)
}

// done ends a routine. It restores MXCSR if the routine was begun by arithmetic.
func (g *generator) done() {
	if g.saved != nil {
		LDMXCSR(*g.saved)
		g.saved = nil
	}
	VZEROUPPER()
	RET()
}

func param(name string) GPVirtual { return Load(Param(name), GP64()).(GPVirtual) }

// address returns the memory operand of a parameter.
func address(name string) Mem {
	p, err := Param(name).Resolve()
	if err != nil {
		panic(err)
	}
	return p.Addr
}

func floatParam(name string, z VecPhysical) { VBROADCASTSS(address(name), z) }

// table returns the address of the named constants in memory. The first call with a name calls
// data, which writes the constants.
func (g *generator) table(name string, data func()) Mem {
	m, ok := g.tables[name]
	if !ok {
		m = GLOBL(name, RODATA|NOPTR)
		data()
		g.tables[name] = m
	}
	return m
}

// everyLane returns a table of constants, each repeated in all lanes.
func (g *generator) everyLane(table string, constants []uint32) Mem {
	return g.table(table, func() {
		for i := range len(constants) * g.vectorBytes / 4 {
			DATA(4*i, U32(constants[4*i/g.vectorBytes]))
		}
	})
}

func bytes(elements Register) GPVirtual {
	r := elements.(GPVirtual)
	SHLQ(Imm(2), r)
	return r
}

// transpose emits the transpose of square blocks as wide as a vector.
func (g *generator) transpose() {
	n := g.vectorBytes / 4
	g.arithmetic("transpose", "func(dst *float32, dstStep, dstNext int, src *float32, srcStep, srcNext int, by *float32, blocks int)",
		"transposes square blocks of "+strconv.Itoa(n)+" rows, and scales columns: in each block it sets",
		"dst[c][r] = by[c]·src[r][c] for r, c < "+strconv.Itoa(n)+".",
		"Within a block, rows are dstStep elements apart in dst, and srcStep elements apart in src. Blocks",
		"begin dstNext elements apart in dst, and srcNext elements apart in src. blocks is the number of",
		"blocks. by has "+strconv.Itoa(n)+" factors. blocks > 0.")
	dst, dstStep, dstNext := param("dst"), bytes(param("dstStep")), bytes(param("dstNext"))
	src, srcStep, srcNext := param("src"), bytes(param("srcStep")), bytes(param("srcNext"))
	by, count, factors := param("by"), param("blocks"), g.registers[8]
	Label("block")
	g.transposeBlock(dst, dstStep, src, srcStep, func(c int, r []VecPhysical) {
		g.broadcastQuarter(Mem{Base: by, Disp: c * 4}, factors)
		for _, z := range r {
			VMULPS(z, factors, z)
		}
	}, storeColumn)
	ADDQ(srcNext, src)
	ADDQ(dstNext, dst)
	DECQ(count)
	JNZ(LabelRef("block"))
	g.done()
}

// transposeBlock emits the transpose of one block of 4-byte elements, four columns at a time. Each
// load inserts four elements of a row into one quarter of a vector. Vector i has one quarter for
// each of the rows i, i+4, i+8 and so on. The function four may then change the four vectors of
// columns c to c+3. Then unpack instructions transpose within quarters. No shuffle between quarters
// is needed. Finally the function store gets each transposed column and its address in dst.
func (g *generator) transposeBlock(dst, dstStep, src, srcStep GPVirtual, four func(c int, r []VecPhysical), store func(z VecPhysical, at Mem)) {
	r, t, n := g.registers[:4], g.registers[4:8], g.vectorBytes/4
	srcStep3, at := GP64(), GP64()
	LEAQ(Mem{Base: srcStep, Index: srcStep, Scale: 2}, srcStep3)
	rows := []GPVirtual{src} // addresses of every fourth row
	for len(rows) < n/4 {
		next := GP64()
		LEAQ(Mem{Base: rows[len(rows)-1], Index: srcStep, Scale: 4}, next)
		rows = append(rows, next)
	}
	MOVQ(dst, at)
	for c := 0; c < n; c += 4 {
		for i, z := range r {
			for quarter, base := range rows {
				g.insertQuarter(quarter, rowAt(base, srcStep, srcStep3, i).Offset(c*4), z)
			}
		}
		four(c, r)
		for i := 0; i < 4; i += 2 {
			VUNPCKLPS(r[i+1], r[i], t[i])
			VUNPCKHPS(r[i+1], r[i], t[i+1])
		}
		for i := range 2 {
			VUNPCKLPD(t[i+2], t[i], r[2*i])
			VUNPCKHPD(t[i+2], t[i], r[2*i+1])
		}
		for _, z := range r {
			store(z, Mem{Base: at})
			ADDQ(dstStep, at)
		}
	}
}

// storeColumn is the store of a transpose alone, and asRead the function four.
func storeColumn(z VecPhysical, at Mem) { VMOVUPS(z, at) }

func asRead(int, []VecPhysical) {}

// broadcastQuarter sets every quarter of z (every half in AVX2) to the four elements at m.
func (g *generator) broadcastQuarter(m Mem, z VecPhysical) {
	if g.avx512 {
		VBROADCASTF32X4(m, z)
	} else {
		VBROADCASTF128(m, z)
	}
}

// insertQuarter sets quarter i of z (half i in AVX2) to the four elements at m. With i = 0 it also
// clears the other quarters.
func (g *generator) insertQuarter(i int, m Mem, z VecPhysical) {
	switch {
	case i == 0:
		VMOVUPS(m, z.AsX())
	case g.avx512:
		VINSERTF32X4(Imm(uint64(i)), m, z, z)
	default:
		VINSERTF128(Imm(uint64(i)), m, z, z)
	}
}
