//go:build !purego

package simd

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// A halfTile is the operands of an attend routine with 16-bit K and V.
type halfTile struct {
	dim, rows, keys int
	wide, narrow    []float32 // Q in float32, [rows][step], and in 16 bits
	k, v            []uint16  // [keys][dim]
	p               []float32 // [rows][decodeStep]
	at              []int     // offsets of the rows of K and V
}

const halfTileStep, halfTileAhead = 96, 4 // distance between rows of Q and O; prefetch distance in rows

func newHalfTile(r *rand.Rand, narrow func(float32) uint16, wide func(uint16) float32, dim, rows, keys int) *halfTile {
	x := &halfTile{dim: dim, rows: rows, keys: keys, wide: make([]float32, rows*halfTileStep), narrow: make([]float32, rows*halfTileStep),
		k: make([]uint16, keys*dim), v: make([]uint16, keys*dim), p: make([]float32, rows*decodeStep)}
	for i := range x.k {
		x.k[i], x.v[i] = narrow(float32(r.NormFloat64())), narrow(float32(r.NormFloat64()))
	}
	for row := range rows {
		bits := unsafe.Slice((*uint16)(unsafe.Pointer(&x.narrow[row*halfTileStep])), dim)
		for i := range bits {
			bits[i] = narrow(float32(r.NormFloat64()))
			x.wide[row*halfTileStep+i] = wide(bits[i])
		}
		for i := range keys {
			x.p[row*decodeStep+i] = wide(narrow(float32(math.Exp2(-20 * r.Float64()))))
		}
	}
	for i := range keys + halfTileAhead + 3 {
		x.at = append(x.at, min(i, keys-1)*dim*2)
	}
	return x
}

// attend returns S and O, [rows][decodeStep] and [rows][halfTileStep]. ahead is the prefetch
// distance in bytes. If it is 0, the offsets in x.at determine the prefetches.
func (x *halfTile) attend(with attendFunc, q []float32, ahead int) (s, o []float32) {
	s, o = make([]float32, x.rows*decodeStep), make([]float32, x.rows*halfTileStep)
	k, v := (*byte)(unsafe.Pointer(&x.k[0])), (*byte)(unsafe.Pointer(&x.v[0]))
	with(&s[0], k, &x.at[0], ahead, &q[0], halfTileStep, x.dim, x.rows, x.keys,
		&o[0], halfTileStep, nil, &x.p[0], v, &x.at[0], ahead, x.dim, x.rows, x.keys, halfTileAhead)
	return s, o
}

// Products of binary16 elements are exact in float32. So if 16 bits can hold the weights, the
// routine that multiplies them directly gives the same bits as the routine that widens, times
// weightUnit.
func TestHalvesAreAddedAsWidenedOnes(t *testing.T) {
	if !neonFHM.has {
		t.Skip(neonFHM.lack)
	}
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for _, dim := range []int{1, 7, 8, 16, 31, 32, 40, 63, 64, 73} {
		for _, rows := range []int{1, 2, 3} {
			for _, keys := range []int{1, 3, 4, 7, 8, 9, 12, 21} {
				about := fmt.Sprintf("dim %d, %d rows, %d keys", dim, rows, keys)
				x := newHalfTile(r, half.ToF16, half.FromF16, dim, rows, keys)
				s, o := x.attend(attendF16NEON, x.wide, aheadBytes)
				for i := range o {
					o[i] *= weightUnit
				}
				gotS, gotO := x.attend(attendF16NEONFHM, x.narrow, aheadBytes)
				require.Equal(t, s, gotS, about)
				require.Equal(t, o, gotO, about)
				gotS, gotO = x.attend(attendF16NEONFHM, x.narrow, 0)
				require.Equal(t, s, gotS, "%s, in pages", about)
				require.Equal(t, o, gotO, "%s, in pages", about)
			}
		}
	}
}

// The same test for bfloat16. Scores may differ by rounding errors, because the order of sums
// differs. O has its even elements first.
func TestBF16IsAddedAsWidened(t *testing.T) {
	if !neonBF16.has {
		t.Skip(neonBF16.lack)
	}
	r := rand.New(rand.NewPCG(rand.Uint64(), 0))
	for _, dim := range []int{1, 7, 8, 16, 31, 32, 40, 63, 64, 73} {
		for _, rows := range []int{1, 2, 3} {
			for _, keys := range []int{1, 3, 4, 7, 8, 9, 12, 21} {
				about := fmt.Sprintf("dim %d, %d rows, %d keys", dim, rows, keys)
				x := newHalfTile(r, half.ToBF16, half.FromBF16, dim, rows, keys)
				s, o := x.attend(attendBF16NEON, x.wide, aheadBytes)
				for row := range rows {
					splitGroups(o[row*halfTileStep:][:dim/neonSplit*neonSplit])
				}
				for i := range o {
					o[i] *= weightUnit
				}
				gotS, gotO := x.attend(attendBF16NEONBF16, x.narrow, aheadBytes)
				require.InDeltaSlice(t, s, gotS, 1e-4, about)
				require.Equal(t, o, gotO, about)
				againS, againO := x.attend(attendBF16NEONBF16, x.narrow, 0)
				require.Equal(t, gotS, againS, "%s, in pages", about)
				require.Equal(t, gotO, againO, "%s, in pages", about)
			}
		}
	}
}

// If the processor has FEAT_FHM or FEAT_BF16, kernels that use these instructions are chosen.
func TestHalvesAreChosen(t *testing.T) {
	for name, want := range map[string]string{
		"b1-h32-g8-n1-m4096-d128-f16":  "simd/decode_neonfhm",
		"b1-h8-g8-n1-m512-d64-f16":     "simd/decode_neonfhm",
		"b1-h32-g8-n1-m4096-d128-f32":  "simd/decode_neon",
		"b1-h32-g8-n1-m4096-d128-bf16": "simd/decode_neonbf16",

		"b1-h8-g8-n1024-m1024-d64-bf16":       "simd/fwd_neonbf16",
		"b1-h8-g8-n256-m256-d128-bf16-causal": "simd/fwd_neonbf16",
	} {
		p, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		best := ""
		var least flashkit.Kernel
		for _, k := range New().Kernels() {
			if p := p.Ask(k.Pass); k.Pass == flashkit.PassForward && k.Fits(p) == "" && (best == "" || k.Cost(p) < least.Cost(p)) {
				best, least = k.Name, k
			}
		}
		if !neonFHM.has && p.DType == flashkit.Float16 || !neonBF16.has && p.DType == flashkit.BFloat16 {
			want = "simd/decode_neon"
			if p.QLen > 1 {
				want = "simd/fwd_neon"
			}
		}
		require.Equal(t, want, best, name)
	}
}

// splitGroups reverses joinGroups.
func splitGroups(row []float32) {
	for ; len(row) > 0; row = row[neonSplit:] {
		group := [neonSplit]float32(row)
		for i := range neonSplit / 2 {
			row[i], row[neonSplit/2+i] = group[2*i], group[2*i+1]
		}
	}
}
