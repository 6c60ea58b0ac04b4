//go:build !noasm && !purego

package simd

import (
	"fmt"
	"sync"

	"golang.org/x/sys/cpu"

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

// The flags are conjunctions: turning one off in GODEBUG leaves the others on.
var (
	avx512 = newTier("AVX-512 F, BW, DQ and VL",
		cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL)
	avx512bf16 = newTier("AVX-512 F, BW, DQ, VL and BF16", avx512.has && cpu.X86.HasAVX512BF16)

	avx2 = newTier("AVX2, FMA and F16C", cpu.X86.HasAVX2 && cpu.X86.HasFMA && hasF16C())
)

// amxbf16 returns the tier of AMX. It asks for leave on the first call, as that
// changes the process.
var amxbf16 = sync.OnceValue(func() tier {
	return newTier("AMX-BF16, enabled by the OS",
		avx512bf16.has && cpu.X86.HasAMXTile && cpu.X86.HasAMXBF16 && allowTiles())
})

// refuses returns what every kernel of the tier has against a problem.
func (t tier) refuses(p flashkit.Problem) string {
	if dim := max(p.Dim, p.VDim); t.has && dim > widest {
		return fmt.Sprintf("supports head dims up to %d, not %d", widest, dim)
	}
	return t.missing()
}

// missing returns "" if the machine has the tier, else the reason for Fits.
func (t tier) missing() string {
	if t.has {
		return ""
	}
	return t.lack
}
