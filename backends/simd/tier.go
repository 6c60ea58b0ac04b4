//go:build (amd64 || arm64) && !purego

package simd

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
)

// tier is a set of instructions that a kernel needs.
type tier struct {
	has  bool   // the CPU has them, and the OS saves their registers
	lack string // the reason to refuse a call if the CPU or the OS lacks them
}

// newTier returns the tier of the instructions called name.
func newTier(name string, has bool) tier {
	return tier{has, "requires " + name}
}

// refuses returns the reason why no kernel of the tier supports p, or "".
func (t tier) refuses(p flashkit.Problem) string {
	if dim := max(p.Dim, p.VDim); t.has && dim > widest {
		return fmt.Sprintf("supports head dims up to %d, not %d", widest, dim)
	}
	return t.missing()
}

// refusesAllBut returns reason if it is not empty. Otherwise it returns a reason to refuse p if
// p.DType != only.
func refusesAllBut(only flashkit.DType, p flashkit.Problem, reason string) string {
	if reason == "" && p.DType != only {
		return fmt.Sprintf("supports %v only", only)
	}
	return reason
}

// missing returns the reason why the machine lacks the tier, or "".
func (t tier) missing() string {
	if t.has {
		return ""
	}
	return t.lack
}
