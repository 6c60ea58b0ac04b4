//go:build !purego

package simd

import (
	"sync"

	"golang.org/x/sys/cpu"

	"github.com/flashkit-go/flashkit/internal/amx"
)

// Each tier tests all its flags, because GODEBUG can turn off one flag and leave the others on.
var (
	avx512 = newTier("AVX-512 F, BW, DQ and VL",
		cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL)
	avx512bf16 = newTier("AVX-512 F, BW, DQ, VL and BF16", avx512.has && cpu.X86.HasAVX512BF16)

	avx2 = newTier("AVX2, FMA and F16C", cpu.X86.HasAVX2 && cpu.X86.HasFMA && hasF16C())
)

// amxbf16 returns the tier of AMX. The first call of amxbf16 requests permission from Linux. This
// request changes the process.
var amxbf16 = sync.OnceValue(func() tier {
	return newTier("AMX-BF16, enabled by the OS",
		avx512bf16.has && amx.Allowed())
})
