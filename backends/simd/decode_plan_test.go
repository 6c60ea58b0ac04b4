//go:build (amd64 || arm64) && !purego

package simd_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// Among the kernels of a tier, a decode kernel must have the lowest cost if there are few rows, and
// not if there are many.
func TestDecodeIsChosenForFewRows(t *testing.T) {
	for name, want := range map[string]string{
		"b1-h32-g8-n1-m32768-d128-bf16":           "decode",
		"b1-h32-g8-n1-m16-d128-f32":               "decode",
		"b1-h8-g8-n11-m11-d64-f32":                "fwd",
		"b1-h8-g8-n8-m1024-d64-f32":               "decode",
		"b1-h32-g1-n1-m4096-d128-f32":             "decode",
		"b1-h8-g8-n32-m1024-d64-f32":              "fwd",
		"b1-h8-g8-n64-m1024-d64-f32":              "fwd",
		"b1-h8-g8-n1024-m1024-d128-f32":           "fwd",
		"b4-h32-g8-n1-m4096-d128-f16-window256.0": "decode",
	} {
		p, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		for _, tier := range []string{"avx512", "avx2", "neon"} {
			decode, fwd := kernel(t, "simd/decode_"+tier), kernel(t, "simd/fwd_"+tier)
			if fwd.Fits(p.Ask(fwd.Pass)) != "" {
				continue
			}
			got := "fwd"
			if decode.Fits(p.Ask(decode.Pass)) == "" && decode.Cost(p.Ask(decode.Pass)) < fwd.Cost(p.Ask(fwd.Pass)) {
				got = "decode"
			}
			require.Equal(t, want, got, "%s of %s", name, tier)
		}
	}
}
