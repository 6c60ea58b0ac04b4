package replay

import (
	"embed"
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// builtin holds the built-in traces by name.
//
//go:embed traces/*.trace
var builtin embed.FS

// Builtin is the value of --trace for all built-in traces.
const Builtin = "builtin"

// BuiltinNames returns the names of the built-in traces in order.
func BuiltinNames() (list []string) {
	files, _ := builtin.ReadDir("traces") // embedded: no error
	for _, f := range files {
		list = append(list, strings.TrimSuffix(f.Name(), ".trace"))
	}
	return list
}

func readTrace(name string) (*Trace, error) {
	if text, err := builtin.ReadFile(path.Join("traces", name+".trace")); err == nil {
		return parseTrace(name, string(text))
	}
	text, err := input.ReadWhole(name)
	if err != nil {
		return nil, err
	}
	return parseTrace(name, string(text))
}

// Read returns the named traces, or all built-in traces if names is empty.
func Read(names []string) (list []*Trace, err error) {
	if len(names) == 0 {
		names = []string{Builtin}
	}
	if i := slices.Index(names, Builtin); i >= 0 {
		names = slices.Concat(names[:i], BuiltinNames(), names[i+1:])
	}
	for _, name := range names {
		t, err := readTrace(name)
		if err != nil {
			return nil, fmt.Errorf("--trace %s: %w", name, err)
		}
		if free := machine.Free(); t.Bytes() > free/2 {
			return nil, fmt.Errorf("--trace %s: its tensors take %s, and %s are free", name, terminal.Bytes(t.Bytes()), terminal.Bytes(free))
		}
		list = append(list, t)
	}
	return list, nil
}
