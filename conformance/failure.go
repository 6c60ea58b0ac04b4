package conformance

import (
	"fmt"
	"regexp"
	"runtime/debug"
	"strings"
	"testing"
)

// misses counts the wrong elements of an output and the rows that contain them.
type misses struct {
	elements, rows, last int
	first                []int
}

// shownRows is the maximum number of wrong rows that a failure lists.
const shownRows = 4

// add counts a wrong element of a row. Rows come in increasing order.
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

// of returns a description of the wrong elements of out.
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

// Rerun returns the flashrun command line that runs this case on this kernel alone.
func (r Result) Rerun() string {
	return fmt.Sprintf("flashrun conformance --kernel %s --case %s", r.Kernel, r.Case)
}

// rerun returns the go test command line that runs the failed subtest of r alone.
func (o Options) rerun(t *testing.T, r Result) string {
	names := strings.Split(t.Name(), "/")
	for i, name := range names {
		names[i] = "^" + regexp.QuoteMeta(name) + "$"
	}
	command := fmt.Sprintf("go test -run '%s' %s", strings.Join(names, "/"), packageOfTest())
	if strings.HasPrefix(r.Case, sweepPrefix) { // the seed and the number of problems determine the random problems
		command = fmt.Sprintf("FLASHKIT_SEED=%d FLASHKIT_SWEEP=%d %s", o.Seed, o.Sweep, command)
	}
	return command
}

// packageOfTest returns the import path of the running test's package, or ./... if this path is
// unknown.
func packageOfTest() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		if name, ok := strings.CutSuffix(info.Path, ".test"); ok {
			return name
		}
	}
	return "./..."
}

// caught returns a line that names the mistake that the case catches. It returns "" if Catches is
// empty.
func (r Result) caught() string {
	if r.Catches == "" {
		return ""
	}
	return "this case catches: " + r.Catches + "\n"
}
