// Package amx asks for leave to use the tiles of AMX.
package amx

import (
	"sync"

	"golang.org/x/sys/cpu"
)

// Has reports whether the processor has AMX and its products of bf16.
func Has() bool { return cpu.X86.HasAMXTile && cpu.X86.HasAMXBF16 }

// Allowed reports whether the process may use them. It asks on the first call, as that
// changes the process, and not where there is nothing to ask for.
var Allowed = sync.OnceValue(func() bool { return Has() && ask() })
