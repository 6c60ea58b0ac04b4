package main

import (
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/flashkit-go/flashkit/internal/replay"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// Scripts run flashrun as a process: this test binary under that name. withoutProfile keeps
// in-process tests off the user's profile.
type withoutProfile struct{ *testing.M }

func (m withoutProfile) Run() int {
	os.Setenv("FLASHKIT_PROFILE", "off")
	if emulator := os.Getenv("FLASHKIT_EMULATOR"); emulator != "" {
		if err := emulate(emulator, "flashrun"); err != nil {
			panic(err)
		}
	}
	return m.M.Run()
}

// emulate puts a script in the place of a program of another processor that the path finds.
func emulate(emulator, name string) error {
	path, err := exec.LookPath(name)
	if err != nil {
		return err
	}
	if err := os.Rename(path, path+".program"); err != nil {
		return err
	}
	return os.WriteFile(path, fmt.Appendf(nil, "#!/bin/sh\nexport FLASHKIT_EMULATOR=%q\nexec %s -0 %s %q \"$@\"\n", emulator, emulator, name, path+".program"), 0o755)
}

func TestMain(m *testing.M) {
	if os.Getenv("FLASHKIT_EMULATOR") != "" {
		replay.Executable = func() (string, error) { return exec.LookPath("flashrun") }
	}
	testscript.Main(withoutProfile{m}, map[string]func(){"flashrun": func() {
		os.Args = hurried(os.Args)
		main()
	}})
}

// scriptCommands are additional commands of testscript.
var scriptCommands = map[string]func(*testscript.TestScript, bool, []string){
	"sleep": func(ts *testscript.TestScript, _ bool, args []string) {
		d, err := time.ParseDuration(args[0])
		ts.Check(err)
		if slow.Race || os.Getenv("FLASHKIT_EMULATOR") != "" {
			d *= 5 // the awaited process is as slow
		}
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
