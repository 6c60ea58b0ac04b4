package main

import "github.com/flashkit-go/flashkit"

// calibrateForward and calibrateBoth are the problems of flashrun calibrate, each
// in every type: short ones first, so that what they tell saves long calls of
// slow kernels. No problem is one of bench --regret's.
var (
	calibrateForward = []string{
		"b1-h8-g8-n1-m128-d64-f32", "b1-h8-g2-n1-m128-d128-f32",
		"b1-h8-g8-n1-m1024-d128-f32", "b4-h8-g2-n1-m1024-d64-f32",
		"b1-h8-g8-n1-m8192-d64-f32", "b1-h8-g2-n1-m8192-d128-f32",
		"b8-h8-g2-n1-m8192-d128-f32",
	}
	calibrateBoth = []string{
		"b1-h1-g1-n4-m4-d32-f32", "b1-h8-g8-n16-m16-d64-f32", "b1-h8-g8-n16-m16-d128-f32-causal",
		"b32-h8-g8-n16-m16-d64-f32", "b1-h8-g8-n8-m256-d64-f32", "b2-h8-g8-n24-m400-d64-f32", "b1-h8-g2-n8-m2048-d128-f32-causal",
		"b1-h8-g8-n64-m64-d64-f32", "b1-h8-g2-n64-m64-d128-f32-causal", "b32-h8-g8-n64-m64-d64-f32",
		"b1-h4-g4-n256-m256-d64-f32", "b1-h4-g4-n256-m256-d128-f32-causal", "b2-h4-g2-n256-m256-d64-f32-causal",
		"b1-h4-g4-n512-m512-d128-f32", "b1-h4-g4-n512-m512-d192-f32-causal",
		"b1-h4-g2-n1024-m1024-d64-f32-causal", "b1-h4-g4-n1024-m1024-d64-f32", "b1-h1-g1-n2048-m2048-d128-f32",
		"b1-h4-g4-n4096-m4096-d64-f32-causal",
	}
)

func calibrateGrid() []heat {
	return append(heats(calibrateForward, flashkit.PassForward), heats(calibrateBoth, flashkit.PassForward, flashkit.PassBackward)...)
}

// A calibration is what flashrun calibrate prints. The JSON names are stable.
type calibration struct {
	Profile string             `json:"profile"`
	Seconds float64            `json:"seconds"` // that it took
	Machine machine            `json:"machine"`
	Kernels []calibratedKernel `json:"kernels"`
}

// A calibratedKernel says how far off a kernel's own predictions are, over the
// problems that were measured and that it fits.
type calibratedKernel struct {
	Kernel   string  `json:"kernel"`
	Problems int     `json:"problems"`
	Least    float64 `json:"least"` // time over prediction
	Median   float64 `json:"median"`
	Most     float64 `json:"most"`
}
