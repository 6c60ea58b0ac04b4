//go:build (amd64 || arm64) && !purego

package simd

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
)

// A tier is a set of instructions that kernels need all of.
type tier struct {
	has  bool   // this machine has them, and the operating system saves their registers
	lack string // the reason for Fits where it has not
}

// newTier returns a tier, named as people say it.
func newTier(name string, has bool) tier {
	return tier{has, "requires " + name}
}

// refuses returns what every kernel of the tier has against a problem.
func (t tier) refuses(p flashkit.Problem) string {
	if dim := max(p.Dim, p.VDim); t.has && dim > widest {
		return fmt.Sprintf("supports head dims up to %d, not %d", widest, dim)
	}
	return t.missing()
}

// refusesAllBut adds to what is against a problem already that a kernel takes one type.
func refusesAllBut(only flashkit.DType, p flashkit.Problem, reason string) string {
	if reason == "" && p.DType != only {
		return fmt.Sprintf("supports %v only", only)
	}
	return reason
}

// missing returns "" if the machine has the tier, else the reason for Fits.
func (t tier) missing() string {
	if t.has {
		return ""
	}
	return t.lack
}
