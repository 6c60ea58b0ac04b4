//go:build (!amd64 && !arm64) || purego

package simd

import "github.com/flashkit-go/flashkit"

func peakLoops(flashkit.DType) []peakLoop { return []peakLoop{portableLoop} }
