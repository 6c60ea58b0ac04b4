package main

import "fmt"

// Forward products of bfloat16 use the instruction BFMMLA. Each operand of BFMMLA is a vector of
// two rows of four elements, called a quad here. BFMMLA adds to four sums, for r and c of 0 and 1:
// sum[r][c] gets the dot product of row r of the first operand and row c of the second. In a tile,
// r stands for a key or a column of V, and c for a query. The tile is 24 vectors of sums, V0 to
// V23, for three pairs of keys or columns and eight pairs of queries. A vector holds the sums in
// the order [0][0], [0][1], [1][0], [1][1].
//
//	scores      two adjacent rows of K become quads; Q is packed, [dim/8][2][8][8]
//	addValues   V is packed in quads of four keys and two columns, [keys/4][columns/2][8]; P is
//	            packed, [keys/4][8][8]
const (
	queryPairs = lanes / 2
	quadBytes  = 16 * queryPairs // bytes of the quads of all queries
	quadRows   = 24              // the first vector of rows of K or quads of V
	quadQuery  = 28              // the first vector of queries, which come in pairs
)

func quadSum(pair, q int) int { return pair*queryPairs + q }

func (g *generator) bf16ForwardRoutines() {
	g.tier = "NEONBF16"
	g.quadScores()
	g.quadValues()
	g.packQueries()
	g.packKeys()
	g.packWeights()
}

// quadScores writes the routine that computes S = K Qᵀ and updates the running maxima as it stores
// S.
func (g *generator) quadScores() {
	g.routine("scores", "s *float32, k *uint16, step int, q *uint16, dim, keys int, rowMax *float32",
		"sets s[j][i] to the dot product of row j of k and query i of q. It then raises",
		"rowMax[i] to the largest s[j][i], ignoring NaN. k is [keys][dim] bfloat16, with rows step",
		"elements apart. q has the layout that packQueriesNEONBF16 writes. s is [keys][16]. dim is a",
		"multiple of 8. dim > 0.")
	s, k, step, q := g.param("s"), g.param("k"), g.param("step"), g.param("q")
	dim, keys, rowMax := g.param("dim"), g.param("keys"), g.param("rowMax")
	rows, index, at, n := g.temps(tileRows[0]), g.temp(), g.temp(), g.temp()
	g.op("LSL $1, %v", step)
	g.inGroups("keys", keys, tileRows, func(size int, label string) {
		pairs := (size + 1) / 2
		g.setRows(rows[:size], k, step)
		g.op("MOVD $0, %v", index)
		g.op("MOVD %v, %v", q, at)
		g.op("LSR $3, %v, %v", dim, n)
		for v := range quadSum(pairs, 0) {
			g.clear(v)
		}
		g.label(label + "dim")
		low, high, queries := g.loadPairs(rows[:size], index)
		g.op("ADD $16, %v", index)
		for half, quads := range [][]int{low, high} {
			for p := 0; p < queryPairs; p += 2 {
				g.v("ldp q%d, q%d, [x%d, #%d]", queries[0], queries[1], at, half*quadBytes+16*p)
				for i := range pairs {
					g.v("bfmmla v%d.4s, v%d.8h, v%d.8h", quadSum(i, p), quads[i], queries[0])
					g.v("bfmmla v%d.4s, v%d.8h, v%d.8h", quadSum(i, p+1), quads[i], queries[1])
				}
			}
		}
		g.op("ADD $%d, %v", 2*quadBytes, at)
		g.count(n, label+"dim")
		g.storeQuadScores(s, rowMax, size)
		g.op("ADD %v, %v, %v", step, rows[size-1], k)
	})
	g.done()
}

// loadPairs loads eight elements of each row and makes quads of pairs of rows. low lists the quads
// of the first four elements, high the quads of the last four. If the number of rows is odd, the
// last row is paired with itself. free lists two unused vectors.
func (g *generator) loadPairs(rows []reg, index reg) (low, high, free []int) {
	spare := quadRows + 6
	for i := 0; i < len(rows); i += 2 {
		a, b := quadRows+i, quadRows+i+1
		g.v("ldr q%d, [x%d, x%d]", a, rows[i], index)
		g.v("ldr q%d, [x%d, x%d]", b, rows[min(i+1, len(rows)-1)], index)
		g.v("trn1 v%d.2d, v%d.2d, v%d.2d", spare, a, b)
		g.v("trn2 v%d.2d, v%d.2d, v%d.2d", b, a, b)
		low, high = append(low, spare), append(high, b)
		spare = a
	}
	return low, high, []int{spare, quadRows + 7}
}

// rowsOfPair separates the two rows of S or O in the sums of a pair. Four vectors get the first
// row. The parameter to is the number of the first of these vectors. The second row replaces half
// of the sums. rowsOfPair returns the numbers of the four vectors of the second row.
func (g *generator) rowsOfPair(pair, to int) (second []int) {
	for j := range vectors {
		a, b := quadSum(pair, 2*j), quadSum(pair, 2*j+1)
		g.v("trn1 v%d.2d, v%d.2d, v%d.2d", to+j, a, b)
		g.v("trn2 v%d.2d, v%d.2d, v%d.2d", b, a, b)
		second = append(second, b)
	}
	return second
}

func (g *generator) storeQuadScores(s, rowMax reg, size int) {
	const most = quadQuery
	g.loadRow(rowMax, 0, most)
	for r := 0; r < size; r += 2 {
		second := g.rowsOfPair(r/2, quadRows)
		first := []int{quadRows, quadRows + 1, quadRows + 2, quadRows + 3}
		for i, row := range [][]int{first, second}[:min(2, size-r)] {
			for j := 0; j < vectors; j += 2 {
				g.v("stp q%d, q%d, [x%d, #%d]", row[j], row[j+1], s, (r+i)*rowBytes+16*j)
			}
			each(func(j int) { g.v("fmaxnm v%d.4s, v%d.4s, v%d.4s", most+j, most+j, row[j]) })
		}
	}
	g.storeRow(most, rowMax, 0)
	g.op("ADD $%d, %v", size*rowBytes, s)
}

func (g *generator) quadValues() {
	g.routine("addValues", "o *float32, v *uint16, step int, p *uint16, quads, vdim int, alpha *float32",
		"sets o[c][i] = alpha[i]·o[c][i] + Σ over j < 4·quads of p[j][i]·v[j][c] for",
		"c < vdim and i < 16. If alpha is nil, the routine does not read o: it stores the sums alone. v",
		"has the layout that packKeysNEONBF16 writes: each row holds four keys, and rows are step elements",
		"apart. p has the layout that packWeightsNEONBF16 writes. o is [vdim][16]. vdim is even.",
		"quads > 0, vdim > 0.")
	x := &valueSum{generator: g}
	x.o, x.value, x.step, x.p = g.param("o"), g.param("v"), g.param("step"), g.param("p")
	x.keys, x.vdim, x.alpha = g.param("quads"), g.param("vdim"), g.param("alpha")
	x.from, x.at, x.left = g.temp(), g.temp(), g.temp()
	g.op("LSL $1, %v", x.step)
	x.inGroups("dims", x.vdim, tileRows[:3], func(size int, label string) {
		pairs := size / 2
		x.op("MOVD %v, %v", x.value, x.from)
		x.op("MOVD %v, %v", x.p, x.at)
		x.op("MOVD %v, %v", x.keys, x.left)
		for v := range quadSum(pairs, 0) {
			x.clear(v)
		}
		x.unrolled(label+"keys", x.left, 2, func(n int) {
			for range n {
				x.quadStep(pairs)
			}
		})
		x.storeQuads(size, label)
		x.op("ADD $%d, %v", 16*pairs, x.value)
	})
	g.done()
}

func (x *valueSum) quadStep(pairs int) {
	for i := range pairs {
		x.v("ldr q%d, [x%d, #%d]", quadRows+i, x.from, 16*i)
	}
	x.op("ADD %v, %v", x.step, x.from)
	for p := 0; p < queryPairs; p += 2 {
		queries := quadQuery + p%4
		x.v2("ldp", queries, x.at, 16*p)
		for i := range pairs {
			x.v("bfmmla v%d.4s, v%d.8h, v%d.8h", quadSum(i, p), quadRows+i, queries)
			x.v("bfmmla v%d.4s, v%d.8h, v%d.8h", quadSum(i, p+1), quadRows+i, queries+1)
		}
	}
	x.op("ADD $%d, %v", quadBytes, x.at)
}

// storeQuads adds alpha·O to the sums in quads, unless alpha is nil, and stores the rows of the
// result in O.
func (x *valueSum) storeQuads(size int, label string) {
	const alpha, row = quadQuery, quadRows
	x.op("CBZ %v, %salpha", x.alpha, label)
	x.loadRow(x.alpha, 0, alpha)
	x.label(label + "alpha")
	for r := 0; r < size; r += 2 {
		second := x.rowsOfPair(r/2, row)
		for i, v := range [][]int{{row, row + 1, row + 2, row + 3}, second} {
			set, at := fmt.Sprintf("%sset%d", label, r+i), (r+i)*rowBytes
			x.op("CBZ %v, %s", x.alpha, set)
			for j := range vectors {
				old := quadSum(r/2, 0) // unused, because rowsOfPair has copied its sums
				x.v("ldr q%d, [x%d, #%d]", old, x.o, at+16*j)
				x.v("fmla v%d.4s, v%d.4s, v%d.4s", v[j], old, alpha+j)
			}
			x.label(set)
			for j := 0; j < vectors; j += 2 {
				x.v("stp q%d, q%d, [x%d, #%d]", v[j], v[j+1], x.o, at+16*j)
			}
		}
	}
	x.op("ADD $%d, %v", size*rowBytes, x.o)
}

func (g *generator) packQueries() {
	g.routine("packQueries", "dst, src *uint16, step, dim int",
		"packs 16 rows of src for scoresNEONBF16. Rows of src are step elements apart.",
		"dst is [dim/8][2][8][2][4], and dst[b][h][p][i][e] = src[2p+i][8b+4h+e]. dim is a multiple of 8.",
		"dim > 0.")
	dst, src, step, dim := g.param("dst"), g.param("src"), g.param("step"), g.param("dim")
	at := g.temp()
	g.op("LSL $1, %v", step)
	g.label("dims")
	g.op("MOVD %v, %v", src, at)
	for p := range queryPairs {
		for i := range 2 {
			g.v("ldr q%d, [x%d]", i, at)
			g.op("ADD %v, %v", step, at)
		}
		g.v("trn1 v2.2d, v0.2d, v1.2d")
		g.v("trn2 v3.2d, v0.2d, v1.2d")
		g.v("str q2, [x%d, #%d]", dst, 16*p)
		g.v("str q3, [x%d, #%d]", dst, quadBytes+16*p)
	}
	g.op("ADD $16, %v", src)
	g.op("ADD $%d, %v", 2*quadBytes, dst)
	g.op("SUBS $8, %v", dim)
	g.op("BNE dims")
	g.done()
}

// zipQuads replaces the vectors v to v+3, four rows of eight elements, by quads of two columns
// each. The vectors z to z+3 are scratch.
func (g *generator) zipQuads(v, z int) {
	for i := range 2 {
		g.v("zip1 v%d.8h, v%d.8h, v%d.8h", z+2*i, v+2*i, v+2*i+1)
		g.v("zip2 v%d.8h, v%d.8h, v%d.8h", z+2*i+1, v+2*i, v+2*i+1)
	}
	for i := range 2 {
		g.v("zip1 v%d.4s, v%d.4s, v%d.4s", v+2*i, z+i, z+2+i)
		g.v("zip2 v%d.4s, v%d.4s, v%d.4s", v+2*i+1, z+i, z+2+i)
	}
}

func (g *generator) packKeys() {
	g.routine("packKeys", "dst, src *uint16, step, vdim, quads int",
		"packs 4·quads rows of src for addValuesNEONBF16. Rows of src are step elements",
		"apart. dst is [quads][vdim/2][2][4], and dst[b][p][i][e] = src[4b+e][2p+i]. vdim is a multiple of",
		"8. vdim, quads > 0.")
	dst, src, step, vdim, quads := g.param("dst"), g.param("src"), g.param("step"), g.param("vdim"), g.param("quads")
	rows, index := g.temps(4), g.temp()
	g.op("LSL $1, %v", step)
	g.op("LSL $1, %v", vdim)
	g.label("quad")
	g.setRows(rows, src, step)
	g.op("MOVD $0, %v", index)
	g.label("columns")
	for i, r := range rows {
		g.v("ldr q%d, [x%d, x%d]", i, r, index)
	}
	g.zipQuads(0, 4)
	g.v2("stp", 0, dst, 0)
	g.v2("stp", 2, dst, 32)
	g.op("ADD $64, %v", dst)
	g.op("ADD $16, %v", index)
	g.op("CMP %v, %v", vdim, index)
	g.op("BNE columns")
	g.op("ADD %v, %v, %v", step, rows[3], src)
	g.count(quads, "quad")
	g.done()
}

func (g *generator) packWeights() {
	g.routine("packWeights", "dst *uint16, s *float32, quads int",
		"rounds s to bfloat16 and packs it for addValuesNEONBF16. s is [4·quads][16].",
		"dst is [quads][8][2][4], and dst[b][p][i][e] = s[4b+e][2p+i]. quads > 0.")
	dst, s, quads := g.param("dst"), g.param("s"), g.param("quads")
	g.label("quad")
	for half := range 2 { // eight queries
		for r := range 4 {
			g.v("ldp q4, q5, [x%d, #%d]", s, r*rowBytes+half*rowBytes/2)
			g.v("bfcvtn v%d.4h, v4.4s", r)
			g.v("bfcvtn2 v%d.8h, v5.4s", r)
		}
		g.zipQuads(0, 4)
		g.v2("stp", 0, dst, half*quadBytes/2)
		g.v2("stp", 2, dst, half*quadBytes/2+32)
	}
	g.op("ADD $%d, %v", 4*rowBytes, s)
	g.op("ADD $%d, %v", quadBytes, dst)
	g.count(quads, "quad")
	g.done()
}
