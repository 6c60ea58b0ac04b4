//go:build !linux

package machine

import "math"

// processFree has no limits on this system.
func processFree() float64 { return math.Inf(1) }
