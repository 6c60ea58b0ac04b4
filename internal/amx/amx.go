// Package amx requests permission to use AMX tiles.
package amx

import (
	"sync"

	"golang.org/x/sys/cpu"
)

// Has reports whether the processor has AMX tiles and their bf16 products.
func Has() bool { return cpu.X86.HasAMXTile && cpu.X86.HasAMXBF16 }

// Allowed reports whether the process may use AMX. If the processor has AMX, the first call
// requests permission from the system. The request changes the process: see ask.
var Allowed = sync.OnceValue(func() bool { return Has() && ask() })
