package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// A shaper is the operands of a routine of dot products and of what features make of them.
// The products of a panel, 32 rows of S, go on while the rows of the panel before it are
// made scores, two at a time: a product of tiles takes no port of vectors.
type shaper struct {
	adjuster

	odd           [2][]VecPhysical // the maxima and distances of odd rows
	lowest, upper VecPhysical      // -Inf; selects the second one of a pair
	masks         GPVirtual        // forward; where slopes of caps go backward
	frame         Mem

	asks []asked          // what tells the loops of rows apart, beside a cap
	caps func()           // loads what a cap takes
	row  func(i, has int) // emits row i of two
	next func(has int)    // and the way to the next ones
}

// An asked is a feature that a call has if a pointer is given.
type asked struct {
	param string
	bit   int
}

// The features of a loop of rows.
const (
	shapedCap = 1 << iota
	shapedLanes
	shapedBias
	shapedMask                // forward
	shapedHalves = shapedMask // backward: a bias, in bf16
)

// Where the numbers of the loop lie.
const (
	frameA       = 8 * iota // the panel's first row of A
	frameKeys               // rows of this panel and of those to come
	frameRows               // two rows each, that are left of the panel before
	frameMost               // that are taken for a step of products
	frameFeature            // shaped*
	frameBias               // bytes from row to row of a bias
	frameBytes
)

func (g *generator) newShaper() *shaper {
	r := g.registers
	return &shaper{
		adjuster: adjuster{
			generator: g,
			work:      [vectors]adjustment{{r[0], r[1], r[2], r[3]}, {r[4], r[5], r[6], r[7]}},
			top:       r[8:10], away: r[10:12], scale: r[12], cap: r[13], low: r[14], slope: r[15], one: r[22], abs: r[31],
		},
		odd: [2][]VecPhysical{r[16:18], r[18:20]}, lowest: r[20], upper: r[21],
		frame: AllocLocal(frameBytes),
	}
}

// panels emits the panels.
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

// beginRows sets what is counted, and what rows take.
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
	a.constant(2, a.one.(VecPhysical)) // as rows come in twos
	a.word(0x7fffffff, a.abs.(VecPhysical))
	a.features()
}

// features emits what tells the loops of rows apart, and what they take.
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
	SHLL(Imm(1), softcap) // without the sign
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

// endPanel emits the way to the next panel. Flags say whether there is one.
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

// takeRows emits the rows that go with a step of products: all that are left where it is
// the last one. n is how many steps are to come.
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

// split emits the choice among the loops, from the given bit on.
func (a *shaper) split(kind, rows GPVirtual, bit, has int) {
	if bit > a.asks[len(a.asks)-1].bit {
		a.rowsOf(rows, has)
		return
	}
	if bit == shapedHalves && has&shapedBias != 0 && a.asks[len(a.asks)-1].param == "halves" { // the bias is the other one
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

// rowsOf emits the loop of a set of features.
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

// distance subtracts the slope times how far a row is from the lanes.
func (a *shaper) distance(w adjustment, away VecPhysical) {
	VANDPS(a.abs, away, w.u)
	VFNMADD231PS(a.slope, w.u, w.z)
	VADDPS(a.one, away, away)
}

// score returns where vector v of row i of two lies.
func (a *shaper) score(i, v int) Mem {
	return Mem{Base: a.s, Disp: i*a.rowBytes + v*a.vectorBytes}
}

// A scoreShaper is a shaper of forward passes.
type scoreShaper struct{ shaper }

// shapedScores emits S = K Qᵀ with the features of a score.
func (g *generator) shapedScores() {
	g.arithmetic("shapedScores", "func(s *float32, k *uint16, step int, q *uint32, words, keys int, top *float32, masks *uint32, scale, softcap float32, bias *uint32, lanes *float32, slope, at float32)",
		"sets s[j][i] as scores and adjust do one after the other, for keys rows of K, and what fills them to an even number. bias is in",
		"pairs, [keys/2][LANES]. If there are masks, it sets s[j][i] to -Inf where bit i of masks[j] is clear. Without all of softcap, bias and",
		"lanes scores are not scaled. It raises top[i] to the largest of the scores, leaving out NaN.")
	a := &scoreShaper{*g.newShaper()}
	a.asks = []asked{{"lanes", shapedLanes}, {"bias", shapedBias}, {"masks", shapedMask}}
	a.caps, a.row, a.next = a.capConstants, a.scoreRow, a.nextScores
	g.constant(float32(math.Inf(-1)), a.lowest)
	g.word(0xffff0000, a.upper)
	top := param("top")
	for v, z := range a.top {
		VMOVUPS(g.part(Mem{Base: top}, v), z)
		VMOVAPS(z, a.odd[0][v])
	}
	a.masks, a.bias = param("masks"), param("bias")
	a.panels()
	top = param("top")
	for v, z := range a.top {
		VMAXPS(a.odd[0][v], z, z)
		VMOVUPS(z, g.part(Mem{Base: top}, v))
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

// scoreRow emits a row.
func (a *scoreShaper) scoreRow(i, has int) {
	top, away := a.top, a.away
	if i == 1 {
		top, away = a.odd[0], a.odd[1]
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
		VMAXPS(top[v], w.z, top[v]) // a NaN score leaves the maximum as it is
	}
}

// biased emits a vector with its bias. Without a cap it loads and scales it too.
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

// nextScores moves on what goes along with the scores.
func (a *scoreShaper) nextScores(has int) {
	if has&shapedBias != 0 {
		ADDQ(U32(uint32(a.rowBytes)), a.bias)
	}
	if has&shapedMask != 0 {
		ADDQ(Imm(8), a.masks)
	}
}
