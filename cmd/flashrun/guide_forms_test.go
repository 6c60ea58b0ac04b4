package main

import (
	"context"
	"fmt"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/flashkit-go/flashkit/dispatch"
)

// compare returns the difference between the guide's output and the command's, or "".
func (c *guideCommand) compare(out string) string {
	want, got := c.forms(c.want), c.forms(strings.Split(out, "\n"))
	if slices.Equal(want, got) {
		return ""
	}
	for i := range min(len(want), len(got)) {
		if want[i] != got[i] {
			return fmt.Sprintf("guide:   %s\ncommand: %s\nin all:\n%s", want[i], got[i], out)
		}
	}
	return fmt.Sprintf("the guide has %d lines, the command %d:\n%s", len(want), len(got), out)
}

// forms returns the forms of the lines that are to be the same.
func (c *guideCommand) forms(lines []string) (list []string) {
	for _, line := range lines {
		if line == "" || line == "^C" || c.lacks(line) {
			continue
		}
		form := c.form(line)
		if form == "" {
			continue
		}
		if c.interrupted() && len(list) > 0 && strings.HasPrefix(form, "backward ") {
			form = "backward"
			if list[len(list)-1] == form {
				continue // how many are done is a matter of speed
			}
		}
		list = append(list, form)
	}
	return list
}

var kernelRow = regexp.MustCompile(`^(?:[* ]*|(?:forward|backward) +\S+ +)((?:simd|wasm|cuda)/[a-z]+_[a-z0-9]+)`)

// lacks reports whether a line is about a kernel that this machine or the guides' machine does not
// have. A bench of chosen kernels has another kernel in its place.
func (c *guideCommand) lacks(line string) bool {
	row := kernelRow.FindStringSubmatch(line)
	if row == nil || slices.Contains([]string{"bench chosen", "bench live", "explain chosen"}, c.kind()) {
		return false
	}
	shown := func(lacking string) bool {
		return slices.ContainsFunc(c.want, func(w string) bool {
			there := kernelRow.FindStringSubmatch(w)
			return there != nil && there[1] == row[1] && strings.Contains(w, lacking)
		})
	}
	const recordedOn = "amd64" // another architecture has other kernels
	missed := shown("requires AVX") || shown("requires AMX") || shown("requires arm64")
	here, needsMore := ofThisMachine()
	return !here[row[1]] || missed || (runtime.GOARCH != recordedOn || needsMore[row[1]]) && !shown("")
}

// kind returns the kind of the command: run, bench chosen, bench all, bench live, go test.
func (c *guideCommand) kind() string {
	words := strings.Fields(c.text)
	for strings.Contains(words[0], "=") { // a variable
		words = words[1:]
	}
	switch {
	case len(words) == 1:
		return words[0]
	case words[0] != "flashrun":
		return strings.Join(words[:2], " ")
	case words[1] == "bench" && slices.Contains(words, "--trace"):
		return "bench live"
	case words[1] == "bench" && strings.Contains(c.text, "--kernels all"):
		return "bench all"
	case words[1] == "bench":
		return "bench chosen"
	case words[1] == "explain" && strings.Contains(c.text, "grep '^"):
		return "explain chosen"
	}
	return words[1]
}

// ofThisMachine returns the names of the kernels available here, and of those with special
// requirements.
var ofThisMachine = sync.OnceValues(func() (here, needsMore map[string]bool) {
	here, needsMore = map[string]bool{}, map[string]bool{}
	d := dispatch.All(context.Background())
	defer d.Close()
	for _, k := range d.Kernels() {
		here[k.Name], needsMore[k.Name] = k.Missing == nil || k.Missing() == "", k.Missing != nil
	}
	return here, needsMore
})

// form returns a line without the parts that depend on the machine or the moment.
func (c *guideCommand) form(line string) string {
	for _, r := range forms {
		if slices.ContainsFunc(strings.Split(r.commands, "|"), func(s string) bool { return strings.HasPrefix(c.kind(), s) }) {
			line = r.pattern.ReplaceAllString(line, r.to)
		}
	}
	return strings.Join(strings.Fields(line), " ")
}

// forms are replaced in this order.
var forms = []struct {
	commands string // prefixes of the kinds that it applies to
	pattern  *regexp.Regexp
	to       string
}{
	{"", regexp.MustCompile(`unavailable on this machine: .*`), "unavailable on this machine: REASON"},
	{"", regexp.MustCompile(`must be auto, one of .*, or`), "must be auto, one of BACKENDS, or"},
	{"run|bench", regexp.MustCompile(`and \S+ \S+ are free`), "and SIZE are free"},
	{"run", regexp.MustCompile(`^(kernel|forward) .*`), "$1"},
	{"run", regexp.MustCompile(`^memory .* besides`), "memory SIZE besides"},
	{"run", regexp.MustCompile(`"(backend|kernel|reason|forward_kernel)":"[^"]*"`), `"$1":"TEXT"`},
	{"run", regexp.MustCompile(`(maximum \w+) [\d.e+-]+`), "$1 #"},
	{"run", regexp.MustCompile(`":[\d.e+-]+`), `":#`},
	{"explain", regexp.MustCompile(`(predicts the shortest time|fits, but predicts a longer time|fits, but so does a vector kernel outside the sandbox)`), "RANKED"},
	{"explain chosen", regexp.MustCompile(`^\* \S+`), "KERNEL"},
	{"explain", regexp.MustCompile(`^\* `), ""},
	{"explain", regexp.MustCompile(`\blast \S+`), ""}, // of kernels that have been called
	{"explain", regexp.MustCompile(`\S+ x [\d.]+ \(\w+\)( \+ \S+)?`), "PREDICTION"},
	{"calibrate", regexp.MustCompile(`^machine: .*`), "machine"},
	{"calibrate", regexp.MustCompile(`\s+[\d.]+(\s|$)`), " #$1"},
	{"calibrate", regexp.MustCompile(`\s+[\d.]+(\s|$)`), " #$1"}, // the next column shares the space
	{"bench live", regexp.MustCompile(`^((?:forward|backward) +\S+(?: to m\d+)?(?: \w+=\d+)*) .*`), "$1"},
	{"bench live", regexp.MustCompile(`^(live regret|after the first \d+ calls:) .*`), "$1"},
	{"memory", regexp.MustCompile(`^(\w+/\w+) .*(LSE|it takes).*`), "$1 $2"},
	{"bench", regexp.MustCompile(`^(machine|cpu): .*`), "$1"},
	{"bench", regexp.MustCompile(`^(limit of the host, \w+): .*`), "$1"},
	{"bench chosen", regexp.MustCompile(`\b(simd|wasm)/(fwd|bwd|decode)_\w+( \*)?`), "$1"},
	{"bench all", regexp.MustCompile(`(/\w+) \*`), "$1"},
	{"bench", regexp.MustCompile(`kernel=\w+/memory=host-\d+\s+\d+`), "KERNEL"},
	{"bench", regexp.MustCompile(`^(The machine was busy: |\? \d+ of \d+ medians).*`), ""},
	{"bench", regexp.MustCompile(`^(geometric mean of \d+|no geometric mean):.*`), "geometric mean"},
	{"bench", regexp.MustCompile(` [~?] `), " "},
	{"bench", regexp.MustCompile(` -( |$)`), " #$1"}, // a ratio in doubt
	{"bench", regexp.MustCompile(`after \d of`), "after # of"},
	{"list", regexp.MustCompile(`^machine .*`), "machine"},
	{"ring", regexp.MustCompile(`(efficiency|difference from one rank) [\d.e+-]+`), "$1 #"},
	{"run|ring|explain|calibrate|bench", regexp.MustCompile(`\b([\d.]+(ns|µs|ms|s|m|h))+\b`), "TIME"},
	{"run|bench", regexp.MustCompile(`\b[\d.]+ (GFLOP/s|GB/s|ns/op)`), "# $1"},
	{"run", regexp.MustCompile(`median of \d+`), "median of #"},
	{"bench", regexp.MustCompile(`\s[\d.]+ (B|[KMG]iB)\b`), " SIZE"},
	{"bench", regexp.MustCompile(`(\s)[\d.]+%?(\s|$)`), "$1#$2"},
	{"bench", regexp.MustCompile(`(\s)[\d.]+%?(\s|$)`), "$1#$2"}, // the next column shares the space
	{"report", regexp.MustCompile(`^half.html: \d+`), "half.html: #"},
	{"go test", regexp.MustCompile(`\d+\.\d+s`), "TIME"},
	{"go test", regexp.MustCompile(`(run.go:\d+|\d+ cases|seed \d+)`), "NUMBER"},
	{"go test|perf", regexp.MustCompile(`^(goos|goarch|cpu): .*`), ""},
	{"go test|perf", regexp.MustCompile(`(-\d+)?\s+\d+\s.*ns/op.*`), " RATES"}, // -2 is the number of threads
	{"go test", regexp.MustCompile(`^(ok \s*\S+)\s.*`), "$1"},
	{"go tool", regexp.MustCompile(`^(File|Build ID|Time|Duration|Showing|Dropped|Total)\b.*`), ""},
	{"go tool", regexp.MustCompile(`^ *([\d.]+(m?s|kB|MB)|0|\.) .*`), ""}, // how many rows there are depends on the samples
	{"perf", regexp.MustCompile(`^ +[\d.]+(%| :) .*`), "SYMBOL"},
	{"perf", regexp.MustCompile(`^ *(?:<not \w+>|[\d,.]+) +([a-z].*?)( +#.*)?$`), "$1"}, // a counter
	{"perf", regexp.MustCompile(` for \S+ \(.*`), ""},                                   // the event, and how many samples
}
