package main

import (
	"encoding/json"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/slow"
)

var writeGolden = flag.Bool("write-golden", false, "write testdata/json.golden instead of comparing")

// jsonCommands are short runs of every command that prints JSON.
var jsonCommands = []string{
	"run --problem b1-h2-g1-n5-m9-d8-f32-causal --check --repeat 1 --backend simd/fwd_generic",
	"run --problem b1-h2-g1-n5-m9-d8-f32 --pass fwd,bwd --repeat 1 --backend simd/fwd_generic",
	"list",
	"explain b1-h2-g1-n5-m9-d8-f32 --backend simd/fwd_generic",
	"memory b1-h2-g1-n5-m9-d8-f16 --backend simd/fwd_generic",
	"bench --problem b1-h2-g1-n5-m9-d8-f32 --backend simd/fwd_generic --time-per-case 1ms --limits=false",
	"bench --trace testdata/short.trace --backend simd/fwd_generic",
	"calibrate --problem b1-h2-g1-n5-m9-d8-f32 --time-per-case 1ms --backend simd/fwd_generic --out NEW",
	"conformance --kernel simd/fwd_generic --case dlse --quick",
	"conformance --kernel simd/fwd_generic --case sweep* --sweep 1",
	"ring --problem b1-h2-g1-n8-m8-d8-f32 --ranks 2 --runs 1 --pass fwd,bwd --check",
}

// Scripts read the JSON of the commands: no field changes its name or its type.
func TestJSONShapes(t *testing.T) {
	slow.UnderRace(t)
	var b strings.Builder
	for _, line := range jsonCommands {
		fmt.Fprintf(&b, "flashrun %s --json\n", line)
		args := append(strings.Fields(line), "--json")
		if i := slices.Index(args, "NEW"); i >= 0 {
			args[i] = filepath.Join(t.TempDir(), "new.profile")
		}
		code, stdout, stderr := flashrun(t, args...)
		require.Equal(t, exitOK, code, "%s: %s", line, stderr)
		var x any
		require.NoError(t, json.Unmarshal([]byte(stdout), &x), line)
		fields := map[string]bool{}
		shapeOf("", x, fields)
		for _, field := range slices.Sorted(maps.Keys(fields)) {
			fmt.Fprintf(&b, "    %s\n", field)
		}
	}
	const golden = "testdata/json.golden"
	if *writeGolden {
		require.NoError(t, os.WriteFile(golden, []byte(b.String()), 0o644))
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	require.Equal(t, strings.ReplaceAll(string(want), "\r\n", "\n"), b.String())
}

// machineFields depend on the machine or its load.
var machineFields = []string{"cpu", "gpu", "missing", "device", "requires", "reason", "note", "load", "busy", "doubt"}

// shapeOf adds the path and type of every field of x.
func shapeOf(path string, x any, to map[string]bool) {
	switch x := x.(type) {
	case map[string]any:
		for name, field := range x {
			if strings.Contains(name, "/") {
				name = "KERNEL"
			}
			if !slices.Contains(machineFields, name) {
				shapeOf(path+"."+name, field, to)
			}
		}
	case []any:
		for _, element := range x {
			shapeOf(path+"[]", element, to)
		}
	default:
		to[fmt.Sprintf("%s %T", path, x)] = true
	}
}

// Scripts read exit codes: 0 success, 1 failure while running, 2 invalid request.
func TestExitCodes(t *testing.T) {
	dir := t.TempDir()
	results := filepath.Join(dir, "r.json")
	for _, x := range []struct {
		code int
		line string
	}{
		{exitOK, "run --repeat 1"},
		{exitUsage, "run --repeat x"},
		{exitOK, "list"},
		{exitUsage, "list x"},
		{exitOK, "explain b1-h1-g1-n1-m1-d1-f32"},
		{exitUsage, "explain b1"},
		{exitOK, "memory --formula b1-h1-g1-n1-m1-d1-f32"},
		{exitUsage, "memory"},
		{exitOK, "bench --problem b1-h1-g1-n1-m1-d1-f32 --time-per-case 1ms --limits=false --backend simd --out " + results},
		{exitFailed, "bench --problem b1-h1-g1-n1-m1-d1-f32-ragged-page16 --pass bwd --limits=false"},
		{exitUsage, "bench --pass sideways"},
		{exitUsage, "bench --trace " + filepath.Join(dir, "none")},
		{exitOK, "report " + results + " -o " + filepath.Join(dir, "r.html")},
		{exitUsage, "report " + filepath.Join(dir, "none")},
		{exitUsage, "calibrate --problem x"},
		{exitOK, "conformance --quick --kernel simd/fwd_generic --case dlse"},
		{exitUsage, "conformance --case ["},
		{exitUsage, "ring"},
		{exitOK, "--version"},
		{exitOK, "version"},
		{exitUsage, "version x"},
		{exitOK, "list --backend simd"},
		{exitUsage, "list --backend tpu"},
		{exitOK, "completion bash"},
		{exitUsage, "fly"},
	} {
		code, _, stderr := flashrun(t, strings.Fields(x.line)...)
		require.Equal(t, x.code, code, "%s: %s", x.line, stderr)
		if code == exitOK {
			require.Empty(t, stderr, x.line)
		} else {
			require.Regexp(t, `^flashrun: [^\n]+\n$`, stderr, x.line)
		}
	}
}
