package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// A shaper holds the operands of a routine that computes dot products and then modifies them as
// scoreMod does. A panel is 32 rows of S. During the tile products of a panel, the routine modifies
// the previous panel, two rows at a time. The two kinds of work overlap, because tile products use
// no vector port.
type shaper struct {
	adjuster

	odd           [2][]VecPhysical // of odd rows: the maxima, and the positions relative to the lanes
	lowest, upper VecPhysical      // -Inf; the mask of the second element of a bf16 pair
	masks         GPVirtual        // forward: the masks; backward: the current row of softcapGrad
	frame         Mem

	asks []asked          // the features other than softcap: each set of features has its own loop over rows
	caps func()           // emits the loads of the constants of softcap
	row  func(i, has int) // emits the modification of row i, 0 or 1, of the current two rows
	next func(has int)    // emits the advance to the next two rows
}

// An asked is a feature that a call of the routine uses if the pointer parameter param is not nil.
type asked struct {
	param string
	bit   int
}

// Bits of the features of a loop over rows of S. Each set of features has its own loop.
const (
	shapedCap = 1 << iota
	shapedLanes
	shapedBias
	shapedMask                // in forward passes
	shapedHalves = shapedMask // in backward passes: a bias in bf16
)

// Offsets in the stack frame of the variables of the loop over panels.
const (
	frameA       = 8 * iota // the panel's first row of A
	frameKeys               // number of rows of this panel and all later panels
	frameRows               // number of row pairs of the previous panel that are not yet modified
	frameMost               // number of row pairs to modify during each step of tile products
	frameFeature            // bits of the call's features
	frameBias               // bytes between rows of a bias
	frameBytes
)

func (g *generator) newShaper() *shaper {
	r := g.registers
	return &shaper{
		adjuster: adjuster{
			generator: g,
			work:      [vectors]adjustment{{r[0], r[1], r[2], r[3]}, {r[4], r[5], r[6], r[7]}},
			rowMax:    r[8:10], away: r[10:12], scale: r[12], cap: r[13], low: r[14], slope: r[15], one: r[22], abs: r[31],
		},
		odd: [2][]VecPhysical{r[16:18], r[18:20]}, lowest: r[20], upper: r[21],
		frame: AllocLocal(frameBytes),
	}
}

func (a *shaper) panels() {
	a.takeTiles()
	Load(Param("step"), stepA)
	SHLQ(Imm(1), stepA)
	a.beginRows()
	Load(Param("s"), tileC[0])
	down(tileC[0], stepC, tileC[1])
	a.s = param("s")
	Label("panel")
	MOVQ(a.frame.Offset(frameA), tileA[0])
	down(tileA[0], stepA, tileA[1])
	Load(Param("q"), tileB)
	for t := range 4 {
		TILEZERO(t)
	}
	n := param("words")
	SHRQ(Imm(4), n)
	Label("step")
	productStep(2)
	DECQ(n)
	Label("rows")
	a.takeRows(n)
	Label("taken")
	TESTQ(n, n)
	JNZ(LabelRef("step"))
	CMPQ(a.frame.Offset(frameKeys), Imm(0))
	JLE(LabelRef("finish"))
	storeTiles(2)
	a.endPanel()
	JG(LabelRef("panel"))
	JMP(LabelRef("rows"))
	Label("finish")
	TILERELEASE()
}

func (a *shaper) beginRows() {
	t := GP64()
	for _, x := range []struct {
		param string
		to    int
	}{{"k", frameA}, {"keys", frameKeys}} {
		MOVQ(address(x.param), t)
		MOVQ(t, a.frame.Offset(x.to))
	}
	XORQ(t, t)
	MOVQ(t, a.frame.Offset(frameRows))
	Load(Param("words"), RCX)
	SHRQ(Imm(4), RCX)
	LEAQ(Mem{Base: RCX, Disp: tileRows - 1}, RAX)
	XORQ(RDX, RDX)
	DIVQ(RCX)
	MOVQ(RAX, a.frame.Offset(frameMost))
	floatParam("scale", a.scale)
	a.constant(2, a.one.(VecPhysical)) // a loop handles two rows, so positions advance by 2
	a.word(0x7fffffff, a.abs.(VecPhysical))
	a.features()
}

// features emits the code that stores the bits of the call's features and loads the features'
// operands.
func (a *shaper) features() {
	has := GP64()
	XORQ(has, has)
	for _, x := range a.asks {
		CMPQ(address(x.param), Imm(0))
		JE(LabelRef("no" + x.param))
		ORQ(Imm(uint64(x.bit)), has)
		Label("no" + x.param)
	}
	softcap := GP32()
	MOVL(address("softcap"), softcap)
	SHLL(Imm(1), softcap) // shifts the sign out: -0 is 0
	JZ(LabelRef("nosoftcap"))
	ORQ(Imm(shapedCap), has)
	a.caps()
	Label("nosoftcap")
	MOVQ(has, a.frame.Offset(frameFeature))
	lanes := param("lanes")
	TESTQ(lanes, lanes)
	JZ(LabelRef("level"))
	a.lanesConstants(lanes)
	for v, z := range a.odd[1] {
		VADDPS(a.everyLane("shapedOne", floatBits(1)), a.away[v], z)
	}
	Label("level")
}

// endPanel emits the advance to the next panel. Afterwards the processor's flags hold the
// comparison of the number of rows left with 0.
func (a *shaper) endPanel() {
	t, rows := GP64(), GP64()
	down(tileC[1], stepC, tileC[0])
	down(tileC[0], stepC, tileC[1])
	MOVQ(a.frame.Offset(frameA), t)
	down(t, stepA, t)
	down(t, stepA, t)
	MOVQ(t, a.frame.Offset(frameA))
	MOVQ(a.frame.Offset(frameKeys), t)
	MOVQ(U32(2*tileRows), rows)
	CMPQ(t, rows)
	CMOVQLT(t, rows)
	INCQ(rows)
	SHRQ(Imm(1), rows)
	MOVQ(rows, a.frame.Offset(frameRows))
	SUBQ(Imm(2*tileRows), t)
	MOVQ(t, a.frame.Offset(frameKeys))
	TESTQ(t, t)
}

// takeRows emits the code that modifies rows of the previous panel during a step of tile products.
// n is the number of steps left. After the last step the code modifies all remaining rows.
func (a *shaper) takeRows(n GPVirtual) {
	left, rows := GP64(), GP64()
	MOVQ(a.frame.Offset(frameRows), left)
	MOVQ(left, rows)
	TESTQ(n, n)
	JZ(LabelRef("some"))
	CMPQ(rows, a.frame.Offset(frameMost))
	JLE(LabelRef("some"))
	MOVQ(a.frame.Offset(frameMost), rows)
	Label("some")
	SUBQ(rows, left)
	MOVQ(left, a.frame.Offset(frameRows))
	TESTQ(rows, rows)
	JZ(LabelRef("taken"))
	kind := left
	MOVQ(a.frame.Offset(frameFeature), kind)
	a.split(kind, rows, shapedCap, 0)
}

// split emits one loop for each set of features, and branches that test the bits of kind to select
// a loop. bit is the lowest bit that these branches test. has holds the lower bits that are set.
func (a *shaper) split(kind, rows GPVirtual, bit, has int) {
	if bit > a.asks[len(a.asks)-1].bit {
		a.rowsOf(rows, has)
		return
	}
	if bit == shapedHalves && has&shapedBias != 0 && a.asks[len(a.asks)-1].param == "halves" { // a float32 bias excludes a bf16 bias
		a.split(kind, rows, 2*bit, has)
		return
	}
	label := fmt.Sprintf("has%dof%d", has, bit)
	TESTQ(U32(uint32(bit)), kind)
	JNZ(LabelRef(label))
	a.split(kind, rows, 2*bit, has)
	Label(label)
	a.split(kind, rows, 2*bit, has|bit)
}

func (a *shaper) rowsOf(rows GPVirtual, has int) {
	label := fmt.Sprintf("rows%d", has)
	Label(label)
	for i := range 2 {
		a.row(i, has)
	}
	ADDQ(U32(uint32(2*a.rowBytes)), a.s)
	a.next(has)
	DECQ(rows)
	JNZ(LabelRef(label))
	JMP(LabelRef("taken"))
}

// distance subtracts slope·|away| from the scores in w.z, where away is the row's position minus
// the lanes' positions. It then adds 2 to away, for the next two rows.
func (a *shaper) distance(w adjustment, away VecPhysical) {
	VANDPS(a.abs, away, w.u)
	VFNMADD231PS(a.slope, w.u, w.z)
	VADDPS(a.one, away, away)
}

// score returns the address of vector v of row i of the current two rows.
func (a *shaper) score(i, v int) Mem {
	return Mem{Base: a.s, Disp: i*a.rowBytes + v*a.vectorBytes}
}

type scoreShaper struct{ shaper }

func (g *generator) shapedScores() {
	g.arithmetic("shapedScores", "func(s *float32, k *uint16, step int, q *uint32, words, keys int, rowMax *float32, masks *uint32, scale, softcap float32, bias *uint32, lanes *float32, slope, at float32)",
		"computes the modified scores of a forward pass, for j < keys and i < LANES:",
		"",
		"  - x is the dot product of row j of k and column i of q, as in scoresAMXBF16.",
		"  - Softcap, bias and ALiBi change x as in scoreModAVX512. Without softcap, bias and ALiBi, x is",
		"    not multiplied by scale.",
		"  - If masks is not nil and bit i of masks[j] is clear, x becomes -Inf.",
		"  - s[j][i] = x",
		"",
		"The routine then raises rowMax[i] to the largest s[j][i], ignoring NaN. bias is nil or",
		"[keys/2][LANES] pairs of bf16: bias[j][i] holds the biases of keys 2j and 2j+1. The routine",
		"rounds keys up to an even number.")
	a := &scoreShaper{*g.newShaper()}
	a.asks = []asked{{"lanes", shapedLanes}, {"bias", shapedBias}, {"masks", shapedMask}}
	a.caps, a.row, a.next = a.capConstants, a.scoreRow, a.nextScores
	g.constant(float32(math.Inf(-1)), a.lowest)
	g.word(0xffff0000, a.upper)
	rowMax := param("rowMax")
	for v, z := range a.rowMax {
		VMOVUPS(g.part(Mem{Base: rowMax}, v), z)
		VMOVAPS(z, a.odd[0][v])
	}
	a.masks, a.bias = param("masks"), param("bias")
	a.panels()
	rowMax = param("rowMax")
	for v, z := range a.rowMax {
		VMAXPS(a.odd[0][v], z, z)
		VMOVUPS(z, g.part(Mem{Base: rowMax}, v))
	}
	g.done()
}

func (a *scoreShaper) capConstants() {
	constants := a.everyLane("shapedConstants", floatBits(append(append([]float32{}, tanhQ...), tanhLimit)...))
	for i := range a.qs {
		a.qs[i] = constants.Offset(i * a.vectorBytes)
	}
	a.softcapConstants()
}

func (a *scoreShaper) scoreRow(i, has int) {
	rowMax, away := a.rowMax, a.away
	if i == 1 {
		rowMax, away = a.odd[0], a.odd[1]
	}
	if has&shapedCap != 0 {
		a.tanhOf(func(v int) Mem { return a.score(i, v) })
	}
	for v, w := range a.work {
		a.biased(i, v, w, has)
		if has&shapedLanes != 0 {
			a.distance(w, away[v])
		}
		if has&shapedMask != 0 {
			k := []Op{K1, K2}[v]
			KMOVW(Mem{Base: a.masks, Disp: 4*i + 2*v}, k)
			VBLENDMPS(w.z, a.lowest, k, w.z)
		}
		VMOVUPS(w.z, a.score(i, v))
		VMAXPS(rowMax[v], w.z, rowMax[v]) // a NaN score leaves the maximum as it is
	}
}

// biased adds the bias, if there is one, to a vector of scores. With softcap, the vector is already
// loaded and scaled. Otherwise biased loads the vector, and scales the vector if there is a bias or
// a slope.
func (a *scoreShaper) biased(i, v int, w adjustment, has int) {
	score, capped := a.score(i, v), has&shapedCap != 0
	switch {
	case has&shapedBias != 0:
		if pairs := a.part(Mem{Base: a.bias}, v); i == 0 {
			VPSLLD(Imm(16), pairs, w.u)
		} else {
			VPANDD(pairs, a.upper, w.u)
		}
		if capped {
			VADDPS(w.u, w.z, w.z)
			return
		}
		VMOVAPS(w.u, w.z)
		VFMADD231PS(score, a.scale, w.z)
	case capped:
	case has&shapedLanes != 0:
		VMULPS(score, a.scale, w.z)
	default:
		VMOVUPS(score, w.z)
	}
}

// nextScores advances the addresses of the bias and of the masks by two rows of S.
func (a *scoreShaper) nextScores(has int) {
	if has&shapedBias != 0 {
		ADDQ(U32(uint32(a.rowBytes)), a.bias)
	}
	if has&shapedMask != 0 {
		ADDQ(Imm(8), a.masks)
	}
}
