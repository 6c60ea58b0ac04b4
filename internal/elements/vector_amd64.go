//go:build amd64 && !purego

package elements

import "golang.org/x/sys/cpu"

// chosen is the best instruction set of this machine. If it is nil, portable Go does the work.
var chosen = choose()

func choose() *isa {
	for _, name := range []string{"avx512", "avx2"} {
		if u := available()[name]; u != nil {
			return u
		}
	}
	return nil
}

// available returns the instruction sets of this machine by name.
func available() map[string]*isa {
	list := map[string]*isa{}
	if cpu.X86.HasAVX512F && cpu.X86.HasAVX512BW && cpu.X86.HasAVX512DQ && cpu.X86.HasAVX512VL {
		list["avx512"] = &isa{rowsAVX512, gradientsAVX512, addAVX512, adamWAVX512, widenBF16AVX512, narrowBF16AVX512, 1}
	}
	if cpu.X86.HasAVX2 && cpu.X86.HasFMA {
		list["avx2"] = &isa{rowsAVX2, gradientsAVX2, addAVX2, adamWAVX2, widenBF16AVX2, narrowBF16AVX2, 8}
	}
	return list
}
