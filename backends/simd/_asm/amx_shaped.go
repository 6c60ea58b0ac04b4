package main

import (
	"fmt"
	"math"

	. "github.com/mmcloughlin/avo/build"
	. "github.com/mmcloughlin/avo/operand"
	. "github.com/mmcloughlin/avo/reg"
)

// A shaper is the operands of shapedScores: the products of a panel of keys go on while
// the scores of the panel before it are made of their dot products, two rows at a time.
type shaper struct {
	adjuster

	odd    [2][]VecPhysical // the maxima and distances of odd rows
	lowest VecPhysical      // -Inf
	upper  VecPhysical      // selects the second one of a pair
	masks  GPVirtual
	frame  Mem
}

// Where the numbers of the loop lie.
const (
	frameA       = 8 * iota // the panel's first row of K
	frameKeys               // keys of this panel and of those to come
	frameRows               // two rows each, that are left of the panel before
	frameMost               // that are taken for a step of products
	frameFeature            // shaped*
	frameBytes
)

const (
	shapedCap = 1 << iota
	shapedLanes
	shapedBias
	shapedMask
)

// shapedScores emits S = K Qᵀ with the features of a score.
func (g *generator) shapedScores() {
	g.arithmetic("shapedScores", "func(s *float32, k *uint16, step int, q *uint32, words, keys int, top *float32, masks *uint32, scale, softcap float32, bias *uint32, lanes *float32, slope, at float32)",
		"sets s[j][i] as scores and adjust do one after the other, for keys rows of K, which are even; bias is in pairs,",
		"[keys/2][LANES]. If there are masks, it sets s[j][i] to -Inf where bit i of masks[j] is clear. Without all of softcap, bias and",
		"lanes scores are not scaled. It raises top[i] to the largest of the scores, leaving out NaN.")
	a := g.newShaper()
	a.begin()
	Label("panel")
	a.beginPanel()
	n := GP64()
	MOVQ(address("words"), n)
	SHRQ(Imm(4), n)
	Label("step")
	for c := range 2 {
		loadTileB(c)
	}
	for r := range tileA {
		loadTileA(r)
		for c := range 2 {
			multiplyTiles(r, c)
		}
	}
	for _, x := range tileA {
		ADDQ(Imm(tileBytes), x)
	}
	down(tileB, stepB, tileB)
	DECQ(n)
	Label("rows")
	a.takeRows(n)
	Label("end") // of rows
	TESTQ(n, n)
	JNZ(LabelRef("step"))
	CMPQ(a.frame.Offset(frameKeys), Imm(0))
	JLE(LabelRef("finish"))
	storeTiles(2)
	a.endPanel()
	JG(LabelRef("panel"))
	JMP(LabelRef("rows"))
	Label("finish")
	top := param("top")
	for v, z := range a.top {
		VMAXPS(a.odd[0][v], z, z)
		VMOVUPS(z, a.part(Mem{Base: top}, v))
	}
	TILERELEASE()
	g.done()
}

func (g *generator) newShaper() *shaper {
	r := g.registers
	return &shaper{
		adjuster: adjuster{
			generator: g,
			work:      [vectors]adjustment{{r[0], r[1], r[2], r[3]}, {r[4], r[5], r[6], r[7]}},
			top:       r[8:10], away: r[10:12], scale: r[12], cap: r[13], low: r[14], slope: r[15],
		},
		odd: [2][]VecPhysical{r[16:18], r[18:20]}, lowest: r[20], upper: r[21],
		frame: AllocLocal(frameBytes),
	}
}

// begin emits what comes before the panels.
func (a *shaper) begin() {
	g, r := a.generator, a.registers
	g.takeTiles()
	Load(Param("step"), stepA)
	SHLQ(Imm(1), stepA)
	t, by := GP64(), RAX
	MOVQ(address("k"), t)
	MOVQ(t, a.frame.Offset(frameA))
	MOVQ(address("keys"), t)
	MOVQ(t, a.frame.Offset(frameKeys))
	MOVQ(U32(0), t)
	MOVQ(t, a.frame.Offset(frameRows))
	MOVQ(address("words"), RCX)
	SHRQ(Imm(4), RCX)
	LEAQ(Mem{Base: RCX, Disp: tileRows - 1}, by)
	XORQ(RDX, RDX)
	DIVQ(RCX)
	MOVQ(by, a.frame.Offset(frameMost))
	top := param("top")
	for v, z := range a.top {
		VMOVUPS(g.part(Mem{Base: top}, v), z)
		VMOVAPS(z, a.odd[0][v])
	}
	floatParam("scale", a.scale)
	g.constant(float32(math.Inf(-1)), a.lowest)
	g.word(0xffff0000, a.upper)
	a.one, a.abs = r[30], r[31]
	g.constant(2, r[30])
	g.word(0x7fffffff, r[31])
	a.features(t)
	Load(Param("s"), tileC[0])
	down(tileC[0], stepC, tileC[1])
	a.s, a.masks, a.bias = param("s"), param("masks"), param("bias")
}

// features emits what tells the loops of rows apart, and what they take.
func (a *shaper) features(kind GPVirtual) {
	constants := a.everyLane("shapedConstants", floatBits(append(append([]float32{}, tanhQ...), tanhLimit)...))
	for i := range a.qs {
		a.qs[i] = constants.Offset(i * a.vectorBytes)
	}
	MOVQ(U32(0), kind)
	for _, x := range []struct {
		name string
		bit  uint32
	}{{"lanes", shapedLanes}, {"bias", shapedBias}, {"masks", shapedMask}} {
		CMPQ(address(x.name), Imm(0))
		JE(LabelRef("no" + x.name))
		ORQ(U32(x.bit), kind)
		Label("no" + x.name)
	}
	softcap := GP32()
	MOVL(address("softcap"), softcap)
	SHLL(Imm(1), softcap) // without the sign
	JZ(LabelRef("nosoftcap"))
	ORQ(Imm(shapedCap), kind)
	a.softcapConstants()
	Label("nosoftcap")
	MOVQ(kind, a.frame.Offset(frameFeature))
	lanes := param("lanes")
	TESTQ(lanes, lanes)
	JZ(LabelRef("level"))
	a.lanesConstants(lanes)
	for v, z := range a.odd[1] {
		VMOVAPS(a.away[v], z)
		VADDPS(a.everyLane("shapedOne", floatBits(1)), z, z)
	}
	Label("level")
}

// beginPanel emits C = 0, and where A and B begin.
func (a *shaper) beginPanel() {
	MOVQ(a.frame.Offset(frameA), tileA[0])
	down(tileA[0], stepA, tileA[1])
	Load(Param("q"), tileB)
	for t := range 4 {
		TILEZERO(t)
	}
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
	JZ(LabelRef("end"))
	kind := left
	MOVQ(a.frame.Offset(frameFeature), kind)
	a.split(kind, rows, 1, 0)
}

// split emits the choice among the loops, from the given bit on.
func (a *shaper) split(kind, rows GPVirtual, bit, has int) {
	if bit > shapedMask {
		a.rowsOf(rows, has)
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
	if has&shapedBias != 0 {
		ADDQ(U32(uint32(a.rowBytes)), a.bias)
	}
	if has&shapedMask != 0 {
		ADDQ(Imm(8), a.masks)
	}
	DECQ(rows)
	JNZ(LabelRef(label))
	JMP(LabelRef("end"))
}

// row emits one of two rows.
func (a *shaper) row(i, has int) {
	top, away, s := a.top, a.away, a.s
	if i == 1 {
		top, away = a.odd[0], a.odd[1]
	}
	score := func(v int) Mem { return Mem{Base: s, Disp: i*a.rowBytes + v*a.vectorBytes} }
	if has&shapedCap != 0 {
		a.tanhOf(score)
	}
	for v, w := range a.work {
		a.shape(v, i, w, score(v), away[v], has)
		if has&shapedMask != 0 {
			k := []Op{K1, K2}[v]
			KMOVW(Mem{Base: a.masks, Disp: 4*i + 2*v}, k)
			VBLENDMPS(w.z, a.lowest, k, w.z)
		}
		VMOVUPS(w.z, score(v))
		VMAXPS(top[v], w.z, top[v]) // a NaN score leaves the maximum as it is
	}
}

// shape emits what is added to a vector. Without a cap it loads and scales it too.
func (a *shaper) shape(v, i int, w adjustment, score Mem, away VecPhysical, has int) {
	biased := has&shapedBias != 0
	if biased {
		if pairs := a.part(Mem{Base: a.bias}, v); i == 0 {
			VPSLLD(Imm(16), pairs, w.u)
		} else {
			VPANDD(pairs, a.upper, w.u)
		}
	}
	switch {
	case has&shapedCap != 0 && biased:
		VADDPS(w.u, w.z, w.z)
	case has&shapedCap != 0:
	case biased:
		VMOVAPS(w.u, w.z)
		VFMADD231PS(score, a.scale, w.z)
	case has&shapedLanes != 0:
		VMULPS(score, a.scale, w.z)
	default:
		VMOVUPS(score, w.z)
	}
	if has&shapedLanes != 0 {
		VANDPS(a.abs, away, w.u)
		VFNMADD231PS(a.slope, w.u, w.z)
		VADDPS(a.one, away, away)
	}
}
