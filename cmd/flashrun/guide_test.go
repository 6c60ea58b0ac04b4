package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/safetensors"
)

const guidePath = "../../docs/user-guide.md"

// The blocks of the user guide that begin with a prompt are the script: this test
// runs each command in turn, in one folder, and compares what it prints with what
// the guide shows. Figures that a machine measures need only be of the same form,
// and rows of kernels that this machine lacks need not be there.
func TestUserGuide(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs every command of the guide")
	}
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("the guide's commands are for a shell: ", err)
	}
	commands := guideCommands(t)
	var script strings.Builder
	for i, c := range commands {
		if reason, ok := notRun[c.text]; ok {
			fmt.Fprintf(&script, "# line %d is not run: %s\n", c.line, reason)
			continue
		}
		script.WriteString(c.script(i))
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "guide.txtar"), []byte(script.String()), 0o644))
	testscript.Run(t, testscript.Params{Dir: dir, Setup: guideFolder, RequireExplicitExec: true, ContinueOnError: true, Cmds: map[string]func(*testscript.TestScript, bool, []string){
		"sleep": scriptCommands["sleep"],
		"like": func(ts *testscript.TestScript, _ bool, args []string) {
			var i int
			_, err := fmt.Sscan(args[0], &i)
			ts.Check(err)
			if diff := commands[i].compare(ts.ReadFile("stdout") + ts.ReadFile("stderr")); diff != "" {
				ts.Fatalf("%s:%d: $ %s\n%s", guidePath, commands[i].line, commands[i].text, diff)
			}
		},
	}})
}

// notRun are the guide's commands that no test can run, and why.
var notRun = map[string]string{
	"go get github.com/flashkit-go/flashkit":                     "it fetches what is published",
	"man -l docs/man/flashrun.1":                                 "it needs man and a terminal; TestDocs holds the page",
	"sudo install -m 644 docs/man/*.1 /usr/local/share/man/man1": "it writes to the system",
}

// A guideCommand is a command of the guide and the output below it.
type guideCommand struct {
	section string
	line    int // of the guide
	text    string
	want    []string
}

// guideCommands returns the commands of the guide in order. What looks like one
// must have a prompt, so that none escapes.
func guideCommands(t *testing.T) (list []*guideCommand) {
	text, err := os.ReadFile(guidePath)
	require.NoError(t, err)
	bare := regexp.MustCompile(`^    (flashrun|make|go|man|sudo|source) `)
	var section string
	var last *guideCommand
	fenced := false
	for i, line := range strings.Split(string(text), "\n") {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		switch body, code := strings.CutPrefix(line, "    "); {
		case fenced:
			last = nil
		case strings.HasPrefix(line, "#"):
			section, last = strings.TrimLeft(line, "# "), nil
		case bare.MatchString(line):
			t.Errorf("%s:%d: write the command with a prompt: %s", guidePath, i+1, line)
		case strings.HasPrefix(body, "$ ") && code:
			command, _, _ := strings.Cut(body[2:], "  #")
			last = &guideCommand{section: section, line: i + 1, text: strings.TrimSpace(command)}
			list = append(list, last)
		case last != nil && (code || line == ""):
			last.want = append(last.want, body)
		default:
			last = nil
		}
	}
	for text := range notRun {
		require.True(t, slices.ContainsFunc(list, func(c *guideCommand) bool { return c.text == text }), "the guide has no command %q", text)
	}
	require.Greater(t, len(list), 30)
	return list
}

// script returns the lines of a script that run the command and compare.
func (c *guideCommand) script(i int) string {
	where := map[string]string{"Build": "$REPOSITORY", "Manual pages": "$REPOSITORY", "Your own backend": "$WORK/mine"}
	not := ""
	if slices.ContainsFunc(c.want, func(line string) bool { return strings.HasPrefix(line, "flashrun: ") || line == "FAIL" }) && !strings.Contains(c.text, "|") {
		not = "! "
	}
	line := fmt.Sprintf("%sexec bash -c '%s'", not, strings.ReplaceAll(c.text, "'", "''"))
	if len(c.want) > 0 && c.want[0] == "^C" {
		line = "env FLASHRUN_HURRY=\n" + strings.ReplaceAll(line, "bash -c '", "bash -c 'exec ") + " &guide&\nsleep 1600ms\nkill -INT guide\nwait guide\nenv FLASHRUN_HURRY=1"
	}
	return fmt.Sprintf("cd %s\n# line %d\n%s\nlike %d\n", cmp.Or(where[c.section], "$WORK"), c.line, line, i)
}

// hurried makes a command that measures short, where the guide's test asks for it:
// its figures are not compared.
func hurried(args []string) []string {
	if os.Getenv("FLASHRUN_HURRY") == "" || len(args) < 2 {
		return args
	}
	kind := args[1]
	if slices.Contains(args, "--regret") {
		kind = "regret"
	}
	if slices.Contains(args, "--trace") || slices.Contains(args, "--regret=live") {
		kind = "live"
	}
	few := []string{"--time-per-case", "5ms", "--problem", "b1-h4-g2-n1-m300-d64-bf16", "--problem", "b1-h4-g2-n100-m100-d32-f32"}
	add := map[string][]string{"run": {"--repeat", "1"}, "bench": {"--time-per-case", "50ms"}, "memory": {"--limit", "30ms"}, "calibrate": few, "regret": few, "live": {"--runs", "1"}}
	return append(args, add[kind]...)
}

// guideFolder makes what the guide's commands take for granted: tensors in files,
// and the module of somebody's backend.
func guideFolder(env *testscript.Env) error {
	repository, err := filepath.Abs("../..")
	if err != nil {
		return err
	}
	env.Setenv("REPOSITORY", repository)
	env.Setenv("FLASHRUN_HURRY", "1")
	env.Setenv("CUDA_VISIBLE_DEVICES", "-1") // the guide is of a machine without a GPU
	for _, name := range []string{"GOCACHE", "GOMODCACHE", "GOPATH", "GOPROXY", "GOFLAGS", "GOTOOLCHAIN"} {
		value, err := exec.Command("go", "env", name).Output()
		if err != nil {
			return err
		}
		env.Setenv(name, strings.TrimSpace(string(value)))
	}
	if err := guideTensors(env.WorkDir); err != nil {
		return err
	}
	return guideBackend(filepath.Join(env.WorkDir, "mine"), repository)
}

// guideTensors writes q, k and v in every format, and a file cut short.
func guideTensors(dir string) error {
	random := rand.New(rand.NewPCG(1, 1))
	var file safetensors.File
	for _, x := range []struct {
		name  string
		heads int
	}{{"q", 8}, {"k", 2}, {"v", 2}} {
		values := make([]float32, x.heads*256*64)
		for i := range values {
			values[i] = float32(random.NormFloat64())
		}
		file.Tensors = append(file.Tensors, safetensors.FromFloat32s(x.name, []int{1, x.heads, 256, 64}, values))
		header := fmt.Sprintf("{'descr': '<f4', 'fortran_order': False, 'shape': (1, %d, 256, 64), }", x.heads)
		npy := fmt.Appendf(nil, "\x93NUMPY\x01\x00%c%c%-117s\n", 118, 0, header)
		for _, v := range values {
			npy = binary.LittleEndian.AppendUint32(npy, math.Float32bits(v))
		}
		if err := os.WriteFile(filepath.Join(dir, x.name+".npy"), npy, 0o644); err != nil {
			return err
		}
	}
	var b bytes.Buffer
	if err := file.Write(&b); err != nil {
		return err
	}
	header := 8 + int(binary.LittleEndian.Uint64(b.Bytes()))
	if err := os.WriteFile(filepath.Join(dir, "cut.safetensors"), b.Bytes()[:header+748], 0o644); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "qkv.safetensors"), b.Bytes(), 0o644)
}

// guideBackend writes the guide's backend, with the mistake that the guide makes
// in it, as a module beside ours.
func guideBackend(dir, repository string) error {
	read := func(name string) string {
		text, err := os.ReadFile(filepath.Join(repository, name))
		if err != nil {
			panic(err)
		}
		return string(text)
	}
	_, requires, _ := strings.Cut(read("go.mod"), "\n")
	mistaken := strings.Replace(read("examples/backend/mine.go"), "if lo < hi {", "{", 1)
	for name, text := range map[string]string{
		"go.mod":       "module example.com/ex/mine\n" + requires + "\nrequire github.com/flashkit-go/flashkit v0.0.0\nreplace github.com/flashkit-go/flashkit => " + repository + "\n",
		"go.sum":       read("go.sum"),
		"mine.go":      mistaken,
		"mine_test.go": "package mine_test\n\nimport (\n\t\"testing\"\n\n\t\"example.com/ex/mine\"\n\t\"github.com/flashkit-go/flashkit/conformance\"\n)\n\nfunc TestConformance(t *testing.T) { conformance.Run(t, mine.New()) }\n",
	} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	return nil
}

// compare returns what of the guide's output and the command's is not alike, "" if
// all is.
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
		if c.want[0] == "^C" && len(list) > 0 && strings.HasPrefix(form, "backward ") {
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

// lacks reports whether a line is about a kernel that this machine does not have, or
// the guide's had not. A bench of the chosen kernels has another one in its place.
func (c *guideCommand) lacks(line string) bool {
	row := kernelRow.FindStringSubmatch(line)
	if row == nil || slices.Contains([]string{"bench chosen", "bench regret", "bench live"}, c.kind()) {
		return false
	}
	return !ofThisMachine[row[1]] || slices.ContainsFunc(c.want, func(w string) bool {
		there := kernelRow.FindStringSubmatch(w)
		return there != nil && there[1] == row[1] && strings.Contains(w, "requires ")
	})
}

// kind returns what is run: run, bench chosen, bench all, bench regret, bench live, go test.
func (c *guideCommand) kind() string {
	words := slices.DeleteFunc(strings.Fields(c.text), func(w string) bool { return strings.HasPrefix(w, "FLASHKIT_") })
	switch {
	case words[0] != "flashrun":
		return strings.Join(words[:2], " ")
	case words[1] == "bench" && (slices.Contains(words, "--trace") || slices.Contains(words, "--regret=live")):
		return "bench live"
	case words[1] == "bench" && strings.Contains(c.text, "--regret"):
		return "bench regret"
	case words[1] == "bench" && strings.Contains(c.text, "--kernels all"):
		return "bench all"
	case words[1] == "bench":
		return "bench chosen"
	}
	return words[1]
}

// ofThisMachine are the names of the kernels that can run here.
var ofThisMachine = func() map[string]bool {
	names := map[string]bool{}
	d := dispatch.All(context.Background())
	defer d.Close()
	for _, k := range d.Kernels() {
		names[k.Name] = k.Missing == nil || k.Missing() == ""
	}
	return names
}()

// form returns a line without what depends on the machine or the moment.
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
	commands string // only in the output of kinds that begin with one of these
	pattern  *regexp.Regexp
	to       string
}{
	{"", regexp.MustCompile(`unavailable on this machine: .*`), "unavailable on this machine: REASON"},
	{"", regexp.MustCompile(`must be auto, one of .*, or`), "must be auto, one of BACKENDS, or"},
	{"run", regexp.MustCompile(`has \S+ \S+ free`), "has SIZE free"},
	{"run", regexp.MustCompile(`^(kernel|forward) .*`), "$1"},
	{"run", regexp.MustCompile(`^memory .* besides`), "memory SIZE besides"},
	{"run", regexp.MustCompile(`"(backend|kernel|reason|forward_kernel)":"[^"]*"`), `"$1":"TEXT"`},
	{"run", regexp.MustCompile(`(maximum \w+) [\d.e+-]+`), "$1 #"},
	{"run", regexp.MustCompile(`":[\d.e+-]+`), `":#`},
	{"explain", regexp.MustCompile(`(predicts the shortest time|fits, but predicts a longer time)`), "RANKED"},
	{"explain", regexp.MustCompile(`^\* `), ""},
	{"explain", regexp.MustCompile(`\blast \S+`), ""}, // of kernels that have been called
	{"explain", regexp.MustCompile(`\S+ x [\d.]+ \(\w+\)( \+ \S+)?`), "PREDICTION"},
	{"calibrate", regexp.MustCompile(`^machine: .*`), "machine"},
	{"calibrate", regexp.MustCompile(`\s+[\d.]+(\s|$)`), " #$1"},
	{"calibrate", regexp.MustCompile(`\s+[\d.]+(\s|$)`), " #$1"}, // the next column shares the space
	{"bench regret", regexp.MustCompile(`^(forward|backward) .*`), "ROW"},
	{"bench regret", regexp.MustCompile(`\b[\d.]+ (problems|times)`), "# $1"},
	{"bench regret", regexp.MustCompile(`geometric mean [\d.]+`), "geometric mean #"},
	{"bench live", regexp.MustCompile(`^((?:forward|backward) +\S+(?: to m\d+)?(?: \w+=\d+)*) .*`), "$1"},
	{"bench live", regexp.MustCompile(`^(live regret|after the first \d+ calls:|the geometric mean of live regret|the worst steady choice) .*`), "$1"},
	{"bench live", regexp.MustCompile(`^(layers|busy|server-8) .*`), "$1"},
	{"memory", regexp.MustCompile(`^(\w+/\w+) .*(LSE|supports).*`), "$1 $2"},
	{"bench", regexp.MustCompile(`^(machine|cpu): .*`), "$1"},
	{"bench", regexp.MustCompile(`^(limit of the host, \w+): .*`), "$1"},
	{"bench chosen", regexp.MustCompile(`\b(simd|wasm)/(fwd|bwd|decode)_\w+( \*)?`), "$1"},
	{"bench all", regexp.MustCompile(`(/\w+) \*`), "$1"},
	{"bench", regexp.MustCompile(`kernel=\w+/memory=host-\d+\s+\d+`), "KERNEL"},
	{"bench", regexp.MustCompile(` ~ `), " "},
	{"bench", regexp.MustCompile(`after \d of`), "after # of"},
	{"list", regexp.MustCompile(`^machine .*`), "machine"},
	{"run|explain|calibrate|bench", regexp.MustCompile(`\b([\d.]+(ns|µs|ms|s|m|h))+\b`), "TIME"},
	{"run|bench", regexp.MustCompile(`\b[\d.]+ (GFLOP/s|GB/s|ns/op)`), "# $1"},
	{"run", regexp.MustCompile(`median of \d+`), "median of #"},
	{"bench", regexp.MustCompile(`\s[\d.]+ (B|[KMG]iB)\b`), " SIZE"},
	{"bench", regexp.MustCompile(`(\s)[\d.]+%?(\s|$)`), "$1#$2"},
	{"bench", regexp.MustCompile(`(\s)[\d.]+%?(\s|$)`), "$1#$2"}, // the next column shares the space
	{"report", regexp.MustCompile(`^half.html: \d+`), "half.html: #"},
	{"go test", regexp.MustCompile(`\d+\.\d+s`), "TIME"},
	{"go test", regexp.MustCompile(`(run.go:\d+|seed \d+)`), "NUMBER"},
}
