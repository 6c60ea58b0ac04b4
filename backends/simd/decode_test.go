package simd_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// forDecode calls f with every decode kernel that supports p on this machine.
func forDecode(p flashkit.Problem, f func(k flashkit.Kernel)) {
	for _, k := range simd.New().Kernels() {
		if strings.HasPrefix(k.Name, "simd/decode_") && k.Fits(p.Ask(k.Pass)) == "" {
			f(k)
		}
	}
}

// decodeHeads lists numbers of sequences, query heads, KV heads and query rows. A KV head has 1 to
// 64 rows, in whole register tiles or not.
var decodeHeads = []string{
	"b1-h1-g1-n1", "b1-h2-g2-n1", "b2-h6-g2-n1", "b1-h4-g1-n1", "b1-h32-g1-n2", "b1-h64-g1-n1",
	"b1-h5-g1-n3", "b1-h2-g1-n9", "b2-h1-g1-n16", "b1-h1-g1-n63",
}

var decodeMasks = []string{"", "-causal", "-causal-topleft", "-window100.0", "-window2.3", "-window130.1-topleft"}

var decodeDims = []string{"d8", "d16-dv64", "d33-dv7", "d64-dv31", "d1", "d40"}

// decodeKeys lists numbers of keys. A block has 128 keys, or 64 if a head has at most 128. A
// register tile has 4 keys.
var decodeKeys = []int{1, 3, 4, 63, 65, 127, 128, 129, 191, 257, 385, 1030}

// A decode kernel must agree with the portable kernel for any number of keys.
func TestDecode(t *testing.T) {
	slow.UnderRace(t)
	n := 0
	check := func(name string, l layout) {
		n++
		for _, dtype := range someTypes(n) {
			p := problem(t, name, dtype)
			forDecode(p, func(k flashkit.Kernel) {
				a := newOperands(p, heap, l)
				a.run(t, kernel(t, "simd/fwd_generic"))
				want := a.outputs(k)
				a.run(t, k)
				for output, got := range a.outputs(k) {
					near(t, p.DType, got, want[output], rowLen(p, output), "%s %s %s %s", k.Name, p, l.name, output)
				}
			})
		}
	}
	half := rand.IntN(2)
	for i, heads := range decodeHeads {
		for j, mask := range decodeMasks {
			for x, keys := range decodeKeys {
				if testing.Short() && (i+j+x)%2 == half {
					continue
				}
				dims := decodeDims[(i+j+x)%len(decodeDims)]
				check(fmt.Sprintf("%s-m%d-%s-f32%s", heads, keys, dims, mask), []layout{bhsd, bshd, gaps}[(i+x)%3])
			}
		}
	}
	check("b1-h2-g1-n1-m600000-d1-f32", bhsd)                   // hundreds of chunks per head
	check("b1-h2-g1-n2-m20000-d8-f32-causal", gaps)             // cut at the end
	check("b16-h16-g16-n1-m9000-d2-dv3-f32", bshd)              // several chunks of an item
	check("b130-h1-g1-n1-m700-d64-f32-window600.0", bshd)       // all chunks of a head
	check("b1-h32-g16-n2-m2100-d64-f32-causal", bhsd)           // chunks of the fewest keys
	check("b1-h6-g2-n3-m3000-d64-dv128-f32-window1500.7", gaps) // cut where rows change
	check("b2-h64-g1-n1-m3000-d64-dv24-f32-window2500.7", gaps) // longer chunks, because there are many rows
	check("b1-h4-g1-n16-m2000-d8-f32-window9.4", gaps)          // no key that all rows see
}

// near fails if got differs from want by more than rounding errors.
func near(t *testing.T, dtype flashkit.DType, got, want []float32, rowLen int, about string, args ...any) {
	t.Helper()
	relative := map[flashkit.DType]float64{flashkit.Float32: 2e-6, flashkit.Float16: 1e-3, flashkit.BFloat16: 8e-3}[dtype]
	for i, w := range want {
		row := want[i/rowLen*rowLen:][:rowLen]
		bound := relative * max(1, largest(row))
		if g := got[i]; kind(float64(g)) != kind(float64(w)) || kind(float64(w)) == "finite" && max(g-w, w-g) > float32(bound) {
			t.Fatalf("%s: row %d, element %d is %g, want %g", fmt.Sprintf(about, args...), i/rowLen, i%rowLen, g, w)
		}
	}
}

// The bits depend on the problem alone, and a second call allocates nothing.
func TestDecodeBitsAndAllocations(t *testing.T) {
	for _, name := range []string{
		"b1-h8-g2-n1-m3000-d64-f32", "b1-h1-g1-n1-m9000-d8-f32", "b2-h6-g2-n5-m700-d24-dv40-f32-window300.2", "b8-h16-g16-n1-m1200-d8-f32",
		"b13-h12-g6-n2-m3-d40-f32-causal", "b5-h9-g9-n1-m30-d72-bf16", "b1-h20-g2-n1-m3000-d64-bf16", "b2-h6-g2-n5-m700-d24-dv40-bf16-window300.2",
	} {
		c := newCall(t, name)
		forDecode(c.p, func(k flashkit.Kernel) {
			run := func() { require.NoError(t, c.run(t.Context(), k)) }
			run()
			want := c.bits(k)
			for _, procs := range []int{1, 2, 7} {
				withProcs(t, procs)
				run()
				require.Equal(t, want, c.bits(k), "%s %s with %d workers", k.Name, name, procs)
			}
			require.Zero(t, allocs.PerRun(20, run), "%s %s", k.Name, name)
		})
	}
}
