//go:build (amd64 || arm64) && !purego

package simd

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/half"
)

// normals returns n random numbers.
func normals(r *rand.Rand, n int) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32(r.NormFloat64())
	}
	return x
}

// requireSum fails unless got is from plus the sum of n products, within the rounding errors of n
// additions.
func requireSum(t *testing.T, got float32, from float64, n int, pair func(i int) (a, b float32), what string, at ...any) {
	t.Helper()
	sum, size := from, math.Abs(from)
	for i := range n {
		a, b := pair(i)
		sum, size = sum+float64(a)*float64(b), size+math.Abs(float64(a)*float64(b))
	}
	requireThat(t, math.Abs(sum-float64(got)) <= size*float64(n+4)*0x1p-24, what+": %g, want %g", append(at, got, sum)...)
}

// Every score must equal the dot product. Each maximum must be the largest of all scores and the
// previous maximum. scoresNarrow must compute half of the lanes, and leave the others as they are.
func TestScores(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		n := isa.lanes
		for trial := range trials(600) {
			keys, dim, scores, lanes := 1+r.IntN(40), 1+r.IntN(70), isa.scores, n
			if trial%2 == 1 && isa.scoresNarrow != nil {
				scores, lanes = isa.scoresNarrow, n/2
			}
			step := dim + r.IntN(2)*r.IntN(9)
			k, q, top := normals(r, (keys-1)*step+dim), normals(r, dim*n), normals(r, n)
			s, before := newFenced(keys*n), append([]float32(nil), top...)
			scores(&s.x[0], &k[0], step, &q[0], dim, keys, &top[0], &k[0])
			for i := range lanes {
				for j := range keys {
					requireSum(t, s.x[j*n+i], 0, dim, func(c int) (float32, float32) { return k[j*step+c], q[c*n+i] },
						"dim %d, key %d of %d, lane %d", dim, j, keys, i)
					before[i] = max(before[i], s.x[j*n+i])
				}
			}
			require.Equal(t, before, top)
			s.requireFence(t, lanes, n)
		}
	})
}

func TestProducts(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		lanes := isa.lanes
		for trial := range trials(600) {
			rows, n, columns := 1+r.IntN(30), 1+r.IntN(40), lanes
			if trial%4 > 1 && isa.addProductMasked != nil {
				columns = []int{1 + r.IntN(lanes-1), lanes / 2}[r.IntN(2)]
			}
			cStep, bStep, transposed := columns+r.IntN(9), columns+r.IntN(9), trial%2 == 1
			aRows, aStep := rows, n+r.IntN(5)
			if transposed {
				aRows, aStep = n, rows+r.IntN(5)
			}
			a, b, c := normals(r, (aRows-1)*aStep+max(n, rows)), normals(r, (n-1)*bStep+columns), newFenced((rows-1)*cStep+columns)
			if !transposed {
				a = a[:(rows-1)*aStep+n]
			} else {
				a = a[:(n-1)*aStep+rows]
			}
			before := normals(r, rows*columns)
			for i := range rows {
				copy(c.x[i*cStep:][:columns], before[i*columns:])
			}
			if transposed {
				isa.add(isa.addProductT, isa.addProductTMasked, c.x, cStep, a, aStep, b, bStep, rows, n, columns)
			} else {
				isa.add(isa.addProduct, isa.addProductMasked, c.x, cStep, a, aStep, b, bStep, rows, n, columns)
			}
			for i := range rows {
				for x := range columns {
					requireSum(t, c.x[i*cStep+x], float64(before[i*columns+x]), n, func(k int) (float32, float32) {
						if transposed {
							return a[k*aStep+i], b[k*bStep+x]
						}
						return a[i*aStep+k], b[k*bStep+x]
					}, "transposed %t, row %d of %d, column %d of %d, n %d", transposed, i, rows, x, columns, n)
				}
			}
			c.requireFence(t, columns, cStep)
		}
	})
}

func TestAddValues(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		n := isa.lanes
		for trial := range trials(600) {
			keys, vdim := 1+r.IntN(40), 1+r.IntN(40)
			step := vdim + r.IntN(2)*r.IntN(9)
			v, p, alpha, before := normals(r, (keys-1)*step+vdim), normals(r, keys*n), normals(r, n), normals(r, vdim*n)
			o := newFenced(vdim * n)
			by := &alpha[0]
			if trial%2 == 0 {
				by = nil
				clear(before)
			} else {
				copy(o.x, before)
			}
			isa.addValues(&o.x[0], &v[0], step, &p[0], keys, vdim, by, nil)
			for c := range vdim {
				for i := range n {
					requireSum(t, o.x[c*n+i], float64(before[c*n+i])*float64(alpha[i]), keys, func(j int) (float32, float32) { return v[j*step+c], p[j*n+i] },
						"column %d of %d, lane %d, %d keys", c, vdim, i, keys)
				}
			}
			o.requireFence(t, n, n)
		}
	})
}

// A weight is 2 to the power of scale times (score - maximum), and l is the sum of weights. alpha
// is 2 to the power of scale times (previous maximum - maximum).
func TestWeights(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		n := isa.lanes
		for range trials(1000) {
			keys, scale := 1+r.IntN(40), float32(r.Float64()*3)
			s, m, l, alpha := normals(r, keys*n), normals(r, n), normals(r, n), make([]float32, n)
			top := append([]float32(nil), m...)
			for i := range s {
				s[i] *= 30
				if r.IntN(30) == 0 {
					s[i] = float32(math.Inf(-1))
				}
				top[i%n] = max(top[i%n], s[i])
			}
			m[0], top[1] = float32(math.Inf(-1)), float32(math.Inf(1))
			for j := range keys {
				s[j*n+1] = float32(math.NaN())
			}
			before, scores, ls := append([]float32(nil), m...), append([]float32(nil), s...), append([]float32(nil), l...)
			isa.expScores(&s[0], keys, &m[0], &top[0], &l[0], &alpha[0], scale)
			require.Equal(t, top, m)
			require.True(t, s[1] != s[1] && l[1] != l[1], "NaN")
			for i := 2; i < n; i++ {
				power := func(x float32) float64 { return math.Exp2(float64(scale) * float64(x-top[i])) }
				want := power(before[i])
				requireThat(t, near(want, alpha[i], want*4e-6+1e-37), "alpha: %g, want %g", alpha[i], want)
				sum := want * float64(ls[i])
				for j := range keys {
					want := power(scores[j*n+i])
					requireThat(t, near(want, s[j*n+i], want*4e-6+1e-37), "weight of %g below %g: %g, want %g", scores[j*n+i], top[i], s[j*n+i], want)
					sum += want
				}
				requireThat(t, near(sum, l[i], (math.Abs(float64(ls[i]))+float64(keys))*4e-6), "l: %g, want %g", l[i], sum)
			}
		}
	})
}

func TestMaskScores(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		n := isa.lanes
		for range trials(500) {
			keys := 1 + r.IntN(20)
			s, masks, top := newFenced(keys*n), make([]uint32, keys), normals(r, n)
			copy(s.x, normals(r, keys*n))
			want, most := append([]float32(nil), s.x...), append([]float32(nil), top...)
			for i := range want {
				masks[i/n] |= r.Uint32() & (1 << (i % n))
				if masks[i/n]>>(i%n)&1 == 0 {
					want[i], s.x[i] = float32(math.Inf(-1)), float32(math.NaN())
				}
				most[i%n] = max(most[i%n], want[i])
			}
			isa.maskScores(&s.x[0], &masks[0], keys, &top[0])
			require.Equal(t, want, s.x)
			require.Equal(t, most, top)
			s.requireFence(t, n, n)
		}
	})
}

func TestTransposeAndPanels(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		n := isa.lanes
		for range trials(300) {
			padded := 16 * (1 + r.IntN(5))
			step := max(padded, n) + r.IntN(9) // of a panel too
			rows, dst := normals(r, n*step), newFenced(n*padded)
			isa.toLanes(dst.x, rows, step, padded)
			by, back := normals(r, n), newFenced((n-1)*step+padded)
			isa.fromLanes(back.x, step, dst.x, padded, by)
			for i := range n {
				for c := range padded {
					require.Equal(t, rows[i*step+c], dst.x[c*n+i])
					require.Equal(t, rows[i*step+c]*by[i], back.x[i*step+c])
				}
			}
			dst.requireFence(t, n, n)
			back.requireFence(t, padded, step)

			count := 1 + r.IntN(9)
			panel, to := normals(r, count*n), newFenced((count-1)*step+n)
			isa.copyPanel(to.x, step, panel, count)
			isa.addRowsOf(to.x, step, panel, count)
			sum := normals(r, count*n)
			was := append([]float32(nil), sum...)
			isa.addSum(&sum[0], &panel[0], count, &by[0])
			for i, x := range panel {
				require.Equal(t, x+x, to.x[i/n*step+i%n])
				requireThat(t, near(float64(was[i])*float64(by[i%n])+float64(x), sum[i], 1e-5), "sum")
			}
			to.requireFence(t, n, step)

			by[0] = 0
			was = append(was[:0], sum...)
			panel[0] = float32(math.NaN())
			isa.addScaled(&sum[0], &panel[0], count, &by[0])
			for i, x := range panel {
				if i%n == 0 {
					x = 0
				}
				requireThat(t, near(float64(by[i%n])*float64(x)+float64(was[i]), sum[i], 1e-5), "scaled sum")
			}

			was = append([]float32(nil), to.x...)
			isa.scaleRows(&to.x[0], step, n, count, &by[0])
			for i := range count * n {
				require.Equal(t, was[i/n*step+i%n]*by[i/n], to.x[i/n*step+i%n])
			}
			to.requireFence(t, n, step)
		}
	})
}

// The vector conversions give the same bits as package half, except for the payload of a NaN.
func TestConversions(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		for range trials(2000) {
			n := isa.convert + r.IntN(40)
			bits, wide := make([]uint16, n), newFenced(n)
			for i := range bits {
				bits[i] = uint16(r.Uint32())
			}
			for _, x := range []struct {
				widen  func(*float32, *uint16, int)
				narrow func(*uint16, *float32, int)
				from   func(uint16) float32
				to     func(float32) uint16
			}{{isa.widenF16, isa.narrowF16, half.FromF16, half.ToF16}, {isa.widenBF16, isa.narrowBF16, half.FromBF16, half.ToBF16}} {
				x.widen(&wide.x[0], &bits[0], n)
				wide.requireFence(t, n, n)
				for i := range n {
					want := x.from(bits[i])
					requireThat(t, math.Float32bits(want) == math.Float32bits(wide.x[i]) || want != want && wide.x[i] != wide.x[i], "%#x widened: %g, want %g", bits[i], wide.x[i], want)
				}
				src, narrow := make([]float32, n), make([]uint16, n+1)
				for i := range src {
					src[i] = math.Float32frombits(r.Uint32())
					if i%2 == 0 {
						src[i] = wide.x[i] * (1 + float32(r.IntN(3)-1)*0x1p-11)
					}
				}
				narrow[n] = 77
				x.narrow(&narrow[0], &src[0], n)
				require.Equal(t, uint16(77), narrow[n])
				for i := range n {
					want := x.to(src[i])
					if src[i] != src[i] {
						want, narrow[i] = want&^0x3f, narrow[i]&^0x3f
					}
					requireThat(t, want == narrow[i], "%g narrowed: %#x, want %#x", src[i], narrow[i], want)
				}
			}
		}
	})
}

// In a row that sees one key, dP has the same bits as delta, so that the row's gradients are 0.
func TestDotsAreScores(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		n := isa.lanes
		for range trials(300) {
			dim := 1 + r.IntN(100)
			key, q := normals(r, dim), normals(r, dim*n)
			same, sums, s, top := make([]float32, dim*n), make([]float32, n), make([]float32, n), make([]float32, n)
			for i := range same {
				same[i] = key[i/n]
			}
			isa.dots(&sums[0], &q[0], &same[0], dim)
			isa.scores(&s[0], &key[0], dim, &q[0], dim, 1, &top[0], &key[0])
			require.Equal(t, s, sums, "dim %d", dim)
		}
	})
}

func TestGradients(t *testing.T) {
	eachLaneISA(t, func(t *testing.T, isa *laneRoutines, r *rand.Rand) {
		n := isa.lanes
		for range trials(500) {
			rows, step, scale := 1+r.IntN(20), n+r.IntN(9), float32(r.Float64())
			s, dp, ds := newFenced(rows*n), normals(r, rows*n), newFenced((rows-1)*step+n)
			copy(s.x, normals(r, rows*n))
			scores := append([]float32(nil), s.x...)
			masks, lse, delta := make([]uint32, rows), normals(r, rows), normals(r, rows)
			for i := range masks {
				masks[i] = r.Uint32() & uint32(1<<n-1)
			}
			isa.gradients(&s.x[0], &dp[0], &ds.x[0], step, &masks[0], rows, &lse[0], &delta[0], scale)
			for at, score := range scores {
				i, j := at/n, at%n
				w := math.Exp(float64(scale)*float64(score) - float64(lse[i]))
				g := float64(scale) * w * (float64(dp[at]) - float64(delta[i]))
				if masks[i]>>j&1 == 0 {
					w, g = 0, 0
				}
				requireThat(t, near(w, s.x[at], w*2e-6), "weight: %g, want %g", s.x[at], w)
				requireThat(t, near(g, ds.x[i*step+j], math.Abs(g)*2e-6+w*1e-6), "gradient: %g, want %g", ds.x[i*step+j], g)
			}
			s.requireFence(t, n, n)
			ds.requireFence(t, n, step)
		}
	})
}
