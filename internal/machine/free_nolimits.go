//go:build !linux

package machine

import "math"

// processFree is for systems whose limits of a process are not known.
func processFree() float64 { return math.Inf(1) }
