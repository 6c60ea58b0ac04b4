package simd_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
)

// The workspace that a plan computes has room for all of an item's rows, also where one buffer of a row
// is as long as many of the others.
func TestWorkspaceOfWideHeads(t *testing.T) {
	b := simd.New()
	defer b.Close()
	for _, shape := range []string{
		"b1-h4-g1-n2-m129-d512", "b1-h1-g1-n1-m1-d512", "b1-h2-g1-n1-m300-d1000", "b1-h1-g1-n3-m2-d4096", "b1-h2-g2-n1-m1-d16-dv4096", "b1-h2-g2-n1-m3-d4096-dv16",
	} {
		for _, dtype := range []string{"-f32", "-f16", "-bf16"} {
			p, err := flashkit.ParseProblem(shape + dtype)
			require.NoError(t, err)
			for _, k := range b.Kernels() {
				if k.Fits(p.Ask(k.Pass)) == "" {
					require.NoError(t, k.Compute(t.Context(), p, flashkit.NewArgs(p, k.Pass)), "%s %s", k.Name, p)
				}
			}
		}
	}
}
