//go:build !purego

package simd

var (
	// neon is what every arm64 processor has that Go runs on.
	neon = newTier("NEON", true)

	neonFHM  = newTier("FEAT_FHM", hasFHM())
	neonBF16 = newTier("FEAT_BF16", hasBF16())
)
