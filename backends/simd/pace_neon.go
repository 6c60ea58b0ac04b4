//go:build arm64 && !purego

package simd

import "runtime"

// The paces of the NEON kernels are predicted, not measured. They are computed from the
// instructions of each loop, and by llvm-mca for Neoverse V2; see tools/arm64. A core is assumed to
// have four vector pipes, as Neoverse V1 and V2 and Apple's performance cores have. Clocks are
// assumed, too. Package dispatch corrects the paces by its measurements.
const (
	neoverseClock = 2.7 // GHz
	appleClock    = 3.5
)

// Paces of the kernels, in cycles instead of nanoseconds.
var (
	fwdCycles       = pace{start: 4000, flop: .033, pair: 1.4, element: .6, widen: .6, pack: .4, feature: 1.5}
	bwdCycles       = pace{start: 9000, tile: 760, flop: .034, pair: 2.4, element: 2, widen: .6, pack: .4}
	bwdDecodeCycles = pace{start: 2000, flop: .06, pair: 8, element: .75, pack: .75}
	decodeCycles    = pace{start: 200, flop: .05, pair: 6, element: .5, widen: .3, pack: .8}

	fwdQuadCycles = pace{start: 4000, flop: .009, pair: 1.7, element: .6, pack: .4, feature: 1.5}

	decodeHalvesCycles = pace{start: 200, flop: .037, pair: 6, widen: .25, pack: .8}
)

// neonPace converts cycles to nanoseconds at the typical clock of the operating system's machines.
// The factor of features has no unit and stays.
func neonPace(cycles pace) pace {
	clock := neoverseClock
	if runtime.GOOS == "darwin" {
		clock = appleClock
	}
	return pace{
		start: cycles.start / clock, tile: cycles.tile / clock, flop: cycles.flop / clock, pair: cycles.pair / clock, element: cycles.element / clock,
		pack: cycles.pack / clock, widen: cycles.widen / clock, feature: cycles.feature,
	}
}
