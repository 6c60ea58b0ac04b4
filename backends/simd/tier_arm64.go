//go:build !purego

package simd

var (
	// neon is present on every arm64 processor that Go supports.
	neon = newTier("NEON", true)

	neonFHM  = newTier("FEAT_FHM", hasFHM())
	neonBF16 = newTier("FEAT_BF16", hasBF16())
)
