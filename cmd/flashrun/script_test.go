package main

import (
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// Scripts run flashrun as a process of its own: this test binary under that name.
// withoutProfile keeps tests within this process off the user's profile.
type withoutProfile struct{ *testing.M }

func (m withoutProfile) Run() int {
	os.Setenv("FLASHKIT_PROFILE", "off")
	return m.M.Run()
}

func TestMain(m *testing.M) {
	testscript.Main(withoutProfile{m}, map[string]func(){"flashrun": func() {
		os.Args = hurried(os.Args)
		main()
	}})
}

// scriptCommands are what our scripts need beside testscript's own.
var scriptCommands = map[string]func(*testscript.TestScript, bool, []string){
	"sleep": func(ts *testscript.TestScript, _ bool, args []string) {
		d, err := time.ParseDuration(args[0])
		ts.Check(err)
		time.Sleep(d)
	},
	"cut": func(ts *testscript.TestScript, _ bool, args []string) { // from bytes to
		n, err := strconv.Atoi(args[1])
		ts.Check(err)
		ts.Check(os.WriteFile(ts.MkAbs(args[2]), []byte(ts.ReadFile(args[0]))[:n], 0o644))
	},
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{Dir: "testdata/script", Cmds: scriptCommands, RequireExplicitExec: true})
}
