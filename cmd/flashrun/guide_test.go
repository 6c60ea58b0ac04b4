package main

import (
	"cmp"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
	"github.com/stretchr/testify/require"
)

const guideFolderPath = "../../docs/"

// contributing is the guide in the repository's root.
const contributing = "CONTRIBUTING"

// guides are the pages whose commands TestGuides runs.
var guides = []string{
	"quickstart", "flashrun", "library", "limits", "profiling",
	"design", contributing,
}

// Lines of a guide that begin with a prompt are a script. This test runs each command in turn, a
// page in one folder, and compares its output with the page. Measured figures need only have the
// same form. Rows of kernels that this machine lacks may be absent.
//
// With -write-docs it runs the commands at full length and writes their output into the pages, so
// that a page shows one machine.
func TestGuides(t *testing.T) {
	if testing.Short() {
		t.Skip("it runs every command of the guides")
	}
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("the guides' commands are for a shell: ", err)
	}
	known := map[string]bool{}
	for _, name := range guides {
		page := readGuide(t, name)
		for _, c := range page.commands {
			known[c.text] = true
		}
		t.Run(name, page.run)
	}
	for text := range notRun {
		require.True(t, known[text], "no guide has the command %q", text)
	}
	for text := range instead {
		require.True(t, known[text], "no guide has the command %q", text)
	}
}

// A guide is a page, its lines and its commands.
type guide struct {
	path     string
	lines    []string
	commands []*guideCommand
}

// A guideCommand is a command of a guide and the output below it.
type guideCommand struct {
	dir  string
	line int // of the page
	text string
	want []string
	got  []string // output of a recording run
}

// bareCommand matches a command without a prompt. Pages must not have any, as they would not be
// tested.
var bareCommand = regexp.MustCompile(`^    (flashrun|make|go|man|sudo|source|perf|ncu|nsys|node|FLASHKIT_\w+=\S+|GODEBUG=\S+) `)

// readGuide returns a page with its commands in order.
func readGuide(t *testing.T, name string) *guide {
	g := &guide{path: guideFolderPath + name + ".md"}
	if name == contributing {
		g.path = "../../" + name + ".md"
	}
	text, err := os.ReadFile(g.path)
	require.NoError(t, err)
	g.lines = strings.Split(string(text), "\n")
	dir := cmp.Or(where[name], "$WORK")
	var last *guideCommand
	fenced := false
	for i, line := range g.lines {
		if strings.HasPrefix(line, "```") {
			fenced = !fenced
		}
		switch body, code := strings.CutPrefix(line, "    "); {
		case fenced:
			last = nil
		case strings.HasPrefix(line, "#"):
			section := strings.TrimLeft(line, "# ")
			dir, last = cmp.Or(where[name+"#"+section], where[name], "$WORK"), nil
		case bareCommand.MatchString(line):
			t.Errorf("%s:%d: write the command with a prompt: %s", g.path, i+1, line)
		case strings.HasPrefix(body, "$ ") && code:
			command, _, _ := strings.Cut(body[2:], "  #")
			last = &guideCommand{dir: dir, line: i + 1, text: strings.TrimSpace(command)}
			g.commands = append(g.commands, last)
		case last != nil && (code || line == ""):
			last.want = append(last.want, body)
		default:
			last = nil
		}
	}
	return g
}

// run runs the commands of the page, and compares or records.
func (g *guide) run(t *testing.T) {
	var script strings.Builder
	for i, c := range g.commands {
		if reason := c.cannotRun(); reason != "" {
			fmt.Fprintf(&script, "# line %d is not run: %s\n", c.line, reason)
			continue
		}
		script.WriteString(c.script(i))
	}
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "guide.txtar"), []byte(script.String()), 0o644))
	t.Cleanup(func() { // when the script, which runs in parallel, has ended
		if *writeDocs && !t.Failed() {
			require.NoError(t, os.WriteFile(g.path, []byte(g.recorded()), 0o644))
		}
	})
	testscript.Run(t, testscript.Params{Dir: dir, Setup: guideFolder, RequireExplicitExec: true, ContinueOnError: true, Cmds: map[string]func(*testscript.TestScript, bool, []string){
		"sleep": scriptCommands["sleep"],
		"like": func(ts *testscript.TestScript, _ bool, args []string) {
			var i int
			_, err := fmt.Sscan(args[0], &i)
			ts.Check(err)
			out := ts.ReadFile("stdout") + ts.ReadFile("stderr")
			g.like(ts, g.commands[i], strings.ReplaceAll(out, ts.Getenv("REPOSITORY"), "flashkit"))
		},
	}})
}

// like compares the output of a command with the page's, or keeps it.
func (g *guide) like(ts *testscript.TestScript, c *guideCommand, out string) {
	if *writeDocs {
		for line := range strings.Lines(out) {
			c.got = append(c.got, strings.TrimRight(line, " \n"))
		}
		return
	}
	if diff := c.compare(out); diff != "" {
		ts.Fatalf("%s:%d: $ %s\n%s", g.path, c.line, c.text, diff)
	}
}

// recorded returns the page with the outputs that the commands have printed now.
func (g *guide) recorded() string {
	var list []string
	from := 0
	for _, c := range g.commands {
		if c.cannotRun() != "" {
			continue
		}
		list = append(list, g.lines[from:c.line]...)
		if c.interrupted() {
			list = append(list, "    ^C")
		}
		for _, line := range c.got {
			list = append(list, strings.TrimRight("    "+line, " "))
		}
		from = c.line + len(c.want)
		for from > c.line && g.lines[from-1] == "" {
			from-- // blank lines below the output stay
		}
	}
	return strings.Join(append(list, g.lines[from:]...), "\n")
}

// cannotRun returns the reason not to run the command here, or "".
func (c *guideCommand) cannotRun() string {
	if reason := notRun[c.text]; reason != "" {
		return reason
	}
	for _, n := range needs {
		if strings.Contains(c.text, n.part) {
			if reason := n.missing(); reason != "" {
				return reason
			}
		}
	}
	return ""
}

// interrupted reports whether the page ends the command with Ctrl-C.
func (c *guideCommand) interrupted() bool { return len(c.want) > 0 && c.want[0] == "^C" }

// fails reports whether the page shows a failure or an interruption of the command.
func (c *guideCommand) fails() bool {
	return c.interrupted() || !strings.Contains(c.text, "|") && slices.ContainsFunc(c.want, func(line string) bool {
		return strings.HasPrefix(line, "flashrun: ") && !strings.HasPrefix(line, "flashrun: warning") || line == "FAIL"
	})
}

// script returns the lines of a script that run the command and compare.
func (c *guideCommand) script(i int) string {
	prefix, text := "", cmp.Or(instead[c.text], c.text)
	switch {
	case *writeDocs && !c.interrupted():
		text += "; true" // whether it fails is for the next comparison
	case c.fails():
		prefix = "! "
	}
	line := fmt.Sprintf("%sexec bash -c '%s'", prefix, strings.ReplaceAll(text, "'", "''"))
	if c.interrupted() {
		line = "env FLASHRUN_HURRY=\n" + strings.ReplaceAll(line, "bash -c '", "bash -c 'exec ") + " &guide&\nsleep 1600ms\nkill -INT guide\nwait guide\nenv FLASHRUN_HURRY=$HURRY"
	}
	return fmt.Sprintf("cd %s\n# line %d\n%s\nlike %d\n", c.dir, c.line, line, i)
}
