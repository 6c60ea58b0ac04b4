//go:build amd64 && !noasm && !purego

package norm

import "golang.org/x/sys/cpu"

// vectorRows is the best of this machine, nil if there is none.
var vectorRows = choose()

func choose() func(dst, x, weight, bias *float32, cols, rows int, eps float32) {
	switch {
	case cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL:
		return rowsAVX512
	case cpu.X86.HasAVX2 && cpu.X86.HasFMA:
		return rowsAVX2
	}
	return nil
}
