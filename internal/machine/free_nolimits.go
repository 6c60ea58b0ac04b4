//go:build !linux

package machine

import "math"

// processFree returns +Inf, because the package reads no limits of a process on this system.
func processFree() float64 { return math.Inf(1) }
