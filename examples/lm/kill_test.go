package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/outfile"

	"github.com/flashkit-go/flashkit/safetensors"
)

// argsVariable holds the program's arguments if the test binary runs as the program.
const argsVariable = "FLASHKIT_LM_ARGS"

func TestMain(m *testing.M) {
	if args, ok := os.LookupEnv(argsVariable); ok {
		os.Args = append(os.Args[:1], strings.Fields(args)...)
		main()
		return
	}
	os.Exit(m.Run())
}

// A program killed at any moment, also while writing a checkpoint, resumes to the same bits as an
// uninterrupted one and leaves no other file.
func TestKilled(t *testing.T) {
	dir, kills := t.TempDir(), 5
	if !testing.Short() {
		kills = 40
	}
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 1))
	t.Logf("seed %d", seed)
	checkpoint, last := filepath.Join(dir, "killed"), 0
	for n := range kills {
		lines := r.IntN(4) // lines to wait for; each step writes a line, then a checkpoint
		after := time.Duration(r.IntN(6000)) * time.Microsecond
		if n == 0 {
			lines = 1 // so that there is something to go on from
		}
		kill(t, lines, after, small("--steps=1000000", "--every=1", "--save=1", "--checkpoint="+checkpoint)...)
		step := stepOf(t, checkpoint)
		require.GreaterOrEqual(t, step, last, "kill %d, %v after line %d", n, after, lines)
		last = step
	}
	steps := fmt.Sprintf("--steps=%d", last+2)
	_, err := lm(t, t.Context(), small(steps, "--checkpoint="+checkpoint)...)
	require.NoError(t, err)
	whole := filepath.Join(dir, "whole")
	_, err = lm(t, t.Context(), small(steps, "--checkpoint="+whole)...)
	require.NoError(t, err)
	want, err := os.ReadFile(whole)
	require.NoError(t, err)
	got, err := os.ReadFile(checkpoint)
	require.NoError(t, err)
	require.Equal(t, want, got)
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 2, "a file is left behind: %v", left)
}

// kill runs the program, and kills it a while after a number of progress lines.
func kill(t *testing.T, lines int, after time.Duration, args ...string) {
	c := exec.CommandContext(t.Context(), os.Args[0])
	c.Env = append(os.Environ(), argsVariable+"="+strings.Join(args, " "))
	c.Stderr = os.Stderr
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, c.Start())
	for text := bufio.NewScanner(out); lines > 0 && text.Scan(); {
		if strings.HasPrefix(text.Text(), "step ") {
			lines--
		}
	}
	time.Sleep(after)
	require.NoError(t, c.Process.Kill(), "it has ended by itself")
	var killed *exec.ExitError
	require.ErrorAs(t, c.Wait(), &killed)
	require.False(t, killed.Exited() && killed.ExitCode() == 0)
	require.Zero(t, lines, "it ended before it was killed")
}

// Each termination signal makes the program save a checkpoint.
func TestSignalsSave(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("no signals between processes")
	}
	for _, s := range outfile.Signals() {
		dir := t.TempDir()
		checkpoint := filepath.Join(dir, "checkpoint")
		c := exec.CommandContext(t.Context(), os.Args[0])
		c.Env = append(os.Environ(), argsVariable+"="+strings.Join(small("--steps=1000000", "--save=1000000", "--every=1", "--checkpoint="+checkpoint), " "))
		out, err := c.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, c.Start())
		text := bufio.NewScanner(out)
		for text.Scan() && !strings.HasPrefix(text.Text(), "step ") {
		}
		require.NoError(t, c.Process.Signal(s))
		for text.Scan() {
		}
		var ended *exec.ExitError
		require.ErrorAs(t, c.Wait(), &ended)
		require.Equal(t, 1, ended.ExitCode(), "%v", s)
		require.Positive(t, stepOf(t, checkpoint), "%v", s)
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Len(t, left, 1)
	}
}

// stepOf returns the step of a checkpoint, 0 without one.
func stepOf(t *testing.T, file string) int {
	b, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return 0
	}
	require.NoError(t, err)
	f, err := safetensors.Parse(b)
	require.NoError(t, err)
	n, err := strconv.Atoi(f.Metadata["step"])
	require.NoError(t, err)
	return n
}
