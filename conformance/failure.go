package conformance

import (
	"fmt"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
)

// misses count the elements of an output that are wrong, and the rows that they are in.
type misses struct {
	elements, rows, last int
	first                []int
}

// shownRows is how many wrong rows a failure lists.
const shownRows = 4

// add counts a wrong element of a row. Rows come in order.
func (m *misses) add(row int) {
	m.elements++
	if m.rows > 0 && row == m.last {
		return
	}
	m.rows, m.last = m.rows+1, row
	if len(m.first) < shownRows {
		m.first = append(m.first, row)
	}
}

// of says which elements of an output are wrong.
func (m *misses) of(out *placed) string {
	shape := out.dense
	var text strings.Builder
	fmt.Fprintf(&text, "%d of %d elements are wrong, in %d of %d rows:", m.elements, size(shape), m.rows, shape[0]*shape[1]*shape[2])
	for _, r := range m.first {
		fmt.Fprintf(&text, " [%d,%d,%d]", r/shape[2]/shape[1], r/shape[2]%shape[1], r%shape[2])
	}
	if m.rows > len(m.first) {
		text.WriteString(" ...")
	}
	return text.String()
}

// Rerun returns the command line that runs this case alone, of a kernel in flashrun.
func (r Result) Rerun() string {
	return fmt.Sprintf("flashrun conformance --kernel %s --case %s", r.Kernel, r.Case)
}

// rerun returns the command line that runs the test alone, in the caller's module.
func (o Options) rerun(t *testing.T, r Result) string {
	names := strings.Split(t.Name(), "/")
	for i, name := range names {
		names[i] = "^" + regexp.QuoteMeta(name) + "$"
	}
	command := fmt.Sprintf("go test -run '%s' %s", strings.Join(names, "/"), packageOfTest())
	if strings.HasPrefix(r.Case, sweepPrefix) { // which problems are drawn depends on both
		command = fmt.Sprintf("FLASHKIT_SEED=%d FLASHKIT_SWEEP=%d %s", o.Seed, o.Sweep, command)
	}
	return command
}

// packageOfTest returns the import path of the package whose test this program is, or all packages.
func packageOfTest() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		if name, ok := strings.CutSuffix(info.Path, ".test"); ok {
			return name
		}
	}
	return "./..."
}

// caught returns the line of a failure that says what the case is about, if it is about one mistake.
func (r Result) caught() string {
	if r.Catches == "" {
		return ""
	}
	return "this case catches: " + r.Catches + "\n"
}
