//go:build (!amd64 && !arm64) || noasm || purego

package simd

import "github.com/flashkit-go/flashkit"

func peakLoops(flashkit.DType) []peakLoop { return []peakLoop{portableLoop} }
