package main

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
	"github.com/flashkit-go/flashkit/safetensors"
)

// Powers of two beyond all memory, smaller for 32-bit ints.
const (
	e33 = math.MaxInt>>30 + 1
	e50 = math.MaxInt>>13 + 1
	e55 = math.MaxInt>>8 + 1
	e60 = math.MaxInt>>3 + 1
)

// hostileProblems returns problems with zeros in some dimensions and one or two huge others. Such
// shapes cost nothing in a file or a name.
func hostileProblems() (list []flashkit.Problem) {
	dims := func(p *flashkit.Problem) []*int {
		return []*int{&p.Batch, &p.Heads, &p.QLen, &p.KVLen, &p.Dim, &p.VDim}
	}
	const batch, qLen, kvLen = 0, 2, 3
	seen := map[flashkit.Problem]bool{}
	for _, zeros := range [][]int{{}, {batch}, {qLen}, {kvLen}, {qLen, kvLen}, {batch, qLen, kvLen}} {
		for i := range 6 {
			for j := range i + 1 {
				for _, size := range []int{e33, e50, e55 + 1} {
					p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 1, Dim: 1, VDim: 1}
					*dims(&p)[i], *dims(&p)[j] = size, size
					for _, z := range zeros {
						*dims(&p)[z] = 0
					}
					if p.Validate() == nil && !seen[p] {
						seen[p] = true
						list = append(list, p)
						if p = hostileFeatures(p, len(list), size); p.Validate() == nil {
							list = append(list, p)
						}
					}
				}
			}
		}
	}
	return list
}

// hostileFeatures adds features to a problem, selected by n.
func hostileFeatures(p flashkit.Problem, n, size int) flashkit.Problem {
	switch n % 5 {
	case 0:
		p.Band = p.Band.Shift(size)
	case 1:
		p.Score.Softcap, p.Score.Sink, p.Score.Dropout = 5, true, .5
	case 2:
		p.Score.ALiBi, p.Score.Bias, p.Score.Mask = true, true, true
	case 3:
		p.Ragged, p.Carry = true, true
	case 4:
		p.Ragged, p.Page = true, size
	}
	return p
}

// fileOf returns a file with the tensors of p, "" if one of them is large.
func fileOf(t *testing.T, p flashkit.Problem) string {
	var tensors []safetensors.Tensor
	for name, shape := range map[string][4]int{"q": p.QShape(), "k": p.KShape(), "v": p.VShape(), "do": p.OShape()} {
		elements := 1.0
		for _, d := range shape {
			elements *= float64(d)
		}
		switch {
		case elements <= 1<<10:
			tensors = append(tensors, safetensors.FromFloat32s(name, shape[:], make([]float32, int(elements))))
		case name != "do":
			return ""
		}
	}
	return writeFile(t, "in.safetensors", tensors...)
}

// requireClear makes sure that a command ended well, or with a clear error.
func requireClear(t *testing.T, code int, stdout, stderr string) {
	t.Helper()
	if code == exitOK {
		if stderr != "" {
			require.Regexp(t, `^flashrun: warning: the input has NaN: .*\n$`, stderr)
		}
		return
	}
	require.Contains(t, []int{exitFailed, exitUsage}, code, stderr)
	require.True(t, strings.HasPrefix(stderr, "flashrun: "), "%q", stderr)
	require.Equal(t, 1, strings.Count(stderr, "\n"), "one line: %q", stderr)
	require.LessOrEqual(t, len([]rune(stderr)), longest+len("flashrun: \n"), "%q", stderr)
	require.NotContains(t, stderr, "panic")
	require.NotContains(t, stderr, "internal error")
}

func TestHostileProblems(t *testing.T) {
	slow.UnderRace(t)
	list := hostileProblems()
	require.Greater(t, len(list), 60)
	files := 0
	for i, p := range list {
		inputs := [][]string{{"--problem", p.String()}}
		if path := fileOf(t, p); path != "" {
			files++
			inputs = append(inputs, []string{"--in", path})
		}
		for j, in := range inputs {
			for k, flags := range [][]string{{}, {"--pass", "fwd,bwd"}, {"--check", "--pass", "fwd,bwd"}, {"--backend", "simd/fwd_generic"}} {
				if testing.Short() && (i+j+k)%2 == 1 {
					continue
				}
				out := filepath.Join(t.TempDir(), "o.safetensors")
				args := append(append([]string{"run", "--repeat", "1", "--out", out}, in...), flags...)
				code, stdout, stderr := flashrun(t, args...)
				requireClear(t, code, stdout, stderr)
				left, err := os.ReadDir(filepath.Dir(out))
				require.NoError(t, err)
				if code != exitOK {
					require.Empty(t, stdout, "%v", args)
					require.Empty(t, left, "%v", args)
				}
			}
		}
	}
	require.Greater(t, files, 30)
}

// Questions of other commands about such problems cost nothing either.
func TestHostileProblemsElsewhere(t *testing.T) {
	slow.UnderRace(t)
	for _, p := range hostileProblems() {
		for _, args := range [][]string{{"explain"}, {"explain", "--pass", "bwd"}, {"memory", "--formula"}} {
			code, stdout, stderr := flashrun(t, append(args, p.String())...)
			requireClear(t, code, stdout, stderr)
			require.Zero(t, code, "%v %s: %s", args, p, stderr)
		}
	}
	for i, p := range hostileProblems() {
		for _, args := range [][]string{{"bench", "--limits=false"}, {"calibrate", "--out", filepath.Join(t.TempDir(), "profile")}} {
			if i%5 == 0 {
				code, stdout, stderr := flashrun(t, append(args, "--time-per-case", "1us", "--backend", "simd", "--problem", p.String())...)
				requireClear(t, code, stdout, stderr)
			}
		}
	}
	code, _, stderr := flashrun(t, "bench", "--problem", fmt.Sprintf("b1-h1-g1-n%d-m1-d1-f32", e55))
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "free")
}

// The same in processes with little memory, which crash if they allocate too much.
func TestHostileProcesses(t *testing.T) {
	slow.UnderRace(t)
	if runtime.GOOS != "linux" {
		t.Skip("it sets a limit of memory with the shell")
	}
	if os.Getenv("FLASHKIT_EMULATOR") != "" {
		t.Skip("the emulator's own memory would count")
	}
	file := func(q, k, v, do [4]int) string {
		var tensors []safetensors.Tensor
		for i, s := range [][4]int{q, k, v, do} {
			tensors = append(tensors, safetensors.FromFloat32s([]string{"q", "k", "v", "do"}[i], s[:], make([]float32, s[0]*s[1]*s[2]*s[3])))
		}
		return writeFile(t, "in.safetensors", tensors...)
	}
	for _, in := range [][]string{
		{"--problem", "b1-h1-g1-n36028797018963968-m1-d1-f32"}, {"--problem", "b1-h1-g1-n1099511627776-m1-d1-f32"},
		{"--problem", "b1-h8-g8-n300000-m300000-d128-f32"}, // more than the limit, not more than machines have
		{"--in", file([4]int{1, 1, 1, 1}, [4]int{1, 1, 0, 1}, [4]int{1, 1, 0, e50}, [4]int{1, 1, 0, 1})},
		{"--in", file([4]int{1, 1, 0, e33}, [4]int{1, 1, 0, e33}, [4]int{1, 1, 0, 1}, [4]int{1, 1, 0, 1})},
		{"--in", file([4]int{1, 1, 0, e50}, [4]int{1, 1, 0, e50}, [4]int{1, 1, 0, e50}, [4]int{1, 1, 0, e50})},
		{"--in", file([4]int{e50, 1, 0, 1}, [4]int{e50, 1, 0, 1}, [4]int{e50, 1, 0, 1}, [4]int{e50, 1, 0, 1})},
		{"--in", file([4]int{1, e50, 0, 1}, [4]int{1, 1, 1, 1}, [4]int{1, 1, 1, 1}, [4]int{1, e50, 0, 1})},
		{"--in", file([4]int{1, 1, 1, 1}, [4]int{1, 1, 0, 1}, [4]int{1, 1, 0, 1}, [4]int{1, 1, 1, 1})},
	} {
		for _, flags := range [][]string{{}, {"--pass", "fwd,bwd"}, {"--pass", "fwd,bwd", "--check"}, {"--backend", "wasm"}, {"--backend", "simd/fwd_generic", "--pass", "fwd,bwd"}} {
			args := append(append([]string{"-c", `ulimit -v 4000000; exec flashrun run --repeat 1 "$@"`, "sh"}, in...), flags...)
			cmd := exec.CommandContext(t.Context(), "sh", args...)
			var stdout, stderr bytes.Buffer
			cmd.Stdout, cmd.Stderr = &stdout, &stderr
			cmd.Run()
			requireClear(t, cmd.ProcessState.ExitCode(), stdout.String(), stderr.String())
			bound, own := peakMemory(cmd.ProcessState)
			require.LessOrEqual(t, bound, max(200<<20, own), "%v", args)
		}
	}
}
