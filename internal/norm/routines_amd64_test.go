//go:build amd64 && !noasm && !purego

package norm

import "golang.org/x/sys/cpu"

type routine = func(dst, x, weight, bias *float32, cols, rows int, eps float32)

// routines are those that this machine can run.
func routines() map[string]routine {
	list := map[string]routine{}
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL {
		list["avx512"] = rowsAVX512
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		list["avx2"] = rowsAVX2
	}
	return list
}
