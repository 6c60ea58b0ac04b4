//go:build unix

package main

import (
	"bytes"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/slow"
)

// The first SIGTERM ends the program in any stage, and leaves nothing behind. Each of
// these would go on for far longer than the test.
func TestSignalEndsEveryStage(t *testing.T) {
	dir := t.TempDir()
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	out := filepath.Join(dir, "o.safetensors")
	for name, test := range map[string]struct {
		args  []string
		ready func() bool // whether the stage is reached
	}{
		"opening a pipe":         {[]string{"run", "--in", pipe}, nil},
		"the standard input":     {[]string{"run", "--in", "-"}, nil},
		"results from a pipe":    {[]string{"report", pipe}, nil},
		"the oracle":             {[]string{"run", "--problem", "b1-h8-g8-n6000-m6000-d64-f32", "--check", "--repeat", "1", "--out", out}, func() bool { return present(dir, ".o.*") }},
		"calls":                  {[]string{"run", "--problem", "b1-h8-g8-n256-m256-d64-f32", "--repeat", "1000000000", "--out", out}, func() bool { return present(dir, ".o.*") }},
		"random tensors":         {[]string{"run", "--problem", "b1-h8-g8-n1-m400000-d64-bf16", "--repeat", "1000000"}, nil},
		"the conformance sweep":  {[]string{"conformance", "--kernel", "simd/fwd_generic", "--budget", "1h"}, nil},
		"the conformance runner": {[]string{"conformance", "--sweep", "100000"}, nil},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.Command("flashrun", test.args...)
			var stderr bytes.Buffer
			cmd.Stderr = &stderr
			stdin, err := cmd.StdinPipe()
			require.NoError(t, err)
			defer stdin.Close()
			require.NoError(t, cmd.Start())
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			time.Sleep(starting())
			for test.ready != nil && !test.ready() {
				select {
				case err := <-ended:
					t.Fatalf("it ended before: %v: %s", err, &stderr)
				case <-time.After(10 * time.Millisecond):
				}
			}
			require.NoError(t, cmd.Process.Signal(syscall.SIGTERM))
			select {
			case <-ended:
			case <-time.After(time.Minute):
				cmd.Process.Kill()
				t.Fatal("it goes on")
			}
			require.Equal(t, exitInterrupted, cmd.ProcessState.ExitCode(), "%v: %s", cmd.ProcessState, &stderr)
			require.Equal(t, 1, bytes.Count(stderr.Bytes(), []byte("\n")), "%s", &stderr)
			left, err := os.ReadDir(dir)
			require.NoError(t, err)
			require.Len(t, left, 1, "the pipe")
		})
	}
}

// An ended session and a second signal leave nothing behind either, and nohup keeps the command.
func TestHangUp(t *testing.T) {
	dir := t.TempDir()
	out := filepath.Join(dir, "o.safetensors")
	start := func(name string, args ...string) *exec.Cmd {
		cmd := exec.Command(name, append(args, "run", "--problem", "b1-h8-g8-n256-m256-d64-f32", "--repeat", "1000000000", "--out", out)...)
		cmd.Stdin, cmd.Dir = nil, dir
		require.NoError(t, cmd.Start())
		t.Cleanup(func() { cmd.Process.Kill() })
		require.Eventually(t, func() bool { return present(dir, ".o.*") }, time.Minute, 10*time.Millisecond)
		return cmd
	}
	end := func(cmd *exec.Cmd, signals ...syscall.Signal) {
		for _, s := range signals {
			require.NoError(t, cmd.Process.Signal(s))
		}
		cmd.Wait()
		require.Equal(t, exitInterrupted, cmd.ProcessState.ExitCode(), "%v: %v", signals, cmd.ProcessState)
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left)
	}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		end(start("flashrun"), syscall.SIGHUP)
	}
	end(start("flashrun"), syscall.SIGTERM, syscall.SIGINT)
	kept := start("sh", "-c", `trap "" HUP; exec "$@"`, "sh", "flashrun")
	require.NoError(t, kept.Process.Signal(syscall.SIGHUP))
	time.Sleep(2 * patience)
	require.True(t, present(dir, ".o.*"), "it goes on")
	end(kept, syscall.SIGTERM)
}

// starting is the time for a process to start.
func starting() time.Duration {
	if slow.Race || os.Getenv("FLASHKIT_EMULATOR") != "" {
		return 3 * time.Second
	}
	return time.Second // on a machine that is busy with other tests
}

// present reports whether a file of that pattern is there.
func present(dir, pattern string) bool {
	found, _ := filepath.Glob(filepath.Join(dir, pattern))
	return len(found) > 0
}

// A pipe is read like a file, and a device is not read at all.
func TestInputFromPipes(t *testing.T) {
	dir := t.TempDir()
	file := writeFile(t, "in.safetensors", f32("q", 0, 1, 1, 2, 4), f32("k", 0, 1, 1, 2, 4), f32("v", 0, 1, 1, 2, 4))
	text, err := os.ReadFile(file)
	require.NoError(t, err)
	pipe := filepath.Join(dir, "pipe")
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	go os.WriteFile(pipe, text, 0)
	require.Contains(t, ok(t, "run", "--in", pipe, "--repeat", "1"), "b1-h1-g1-n2-m2-d4-f32")

	cmd := exec.Command("flashrun", "run", "--in", "-", "--repeat", "1")
	cmd.Stdin = bytes.NewReader(text)
	stdout, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", stdout)
	require.Contains(t, string(stdout), "b1-h1-g1-n2-m2-d4-f32")

	cmd = exec.Command("flashrun", "run", "--in", "-")
	if cmd.Stdin, err = os.Open("/dev/zero"); err != nil {
		t.Skip(err)
	}
	stdout, _ = cmd.CombinedOutput()
	require.Equal(t, exitUsage, cmd.ProcessState.ExitCode())
	require.Contains(t, string(stdout), "regular file or a pipe")
	for _, args := range [][]string{{"run", "--in", "/dev/zero"}, {"report", "/dev/zero"}, {"bench", "--compare", "/dev/zero"}, {"bench", "--trace", "/dev/zero"}} {
		code, _, stderr := flashrun(t, args...)
		require.Equal(t, exitUsage, code)
		require.Contains(t, stderr, "/dev/zero")
		require.Contains(t, stderr, "regular file or a pipe")
	}
}

// Links are followed. The target of a dangling link is not created.
func TestOutputThroughLinks(t *testing.T) {
	dir := t.TempDir()
	target, link := filepath.Join(dir, "target"), filepath.Join(dir, "link")
	require.NoError(t, os.Symlink(target, link))
	code, stdout, stderr := flashrun(t, "run", "--out", link)
	require.Equal(t, exitUsage, code)
	require.Empty(t, stdout)
	require.Contains(t, stderr, "a link to a file that does not exist")

	require.NoError(t, os.WriteFile(target, nil, 0o600))
	ok(t, "run", "--out", link, "--repeat", "1")
	require.Equal(t, "o", readFile(t, target).Tensors[0].Name)
	info, err := os.Lstat(link)
	require.NoError(t, err)
	require.Equal(t, os.ModeSymlink, info.Mode().Type())
	info, err = os.Stat(link)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm(), "it stays private")
	in := writeFile(t, "in.safetensors", f32("q", 0, 1, 1, 2, 4), f32("k", 0, 1, 1, 2, 4), f32("v", 0, 1, 1, 2, 4))
	require.NoError(t, os.Remove(link))
	require.NoError(t, os.Symlink(in, link))
	code, _, stderr = flashrun(t, "run", "--in", in, "--out", link)
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "overwrite")
}

// A profile replaces a profile, and nothing else.
func TestCalibrateOverwritesProfilesOnly(t *testing.T) {
	dir := t.TempDir()
	args := []string{"calibrate", "--problem", "b1-h1-g1-n8-m8-d8-f32", "--time-per-case", "1ms", "--backend", "simd/fwd_generic", "--out"}
	notes, pipe, profile := filepath.Join(dir, "notes"), filepath.Join(dir, "pipe"), filepath.Join(dir, "profile")
	require.NoError(t, os.WriteFile(notes, []byte("not to be lost\n"), 0o600))
	require.NoError(t, syscall.Mkfifo(pipe, 0o600))
	for _, path := range []string{notes, pipe, dir, os.DevNull, filepath.Join(dir, "none", "profile"), "-"} {
		code, stdout, stderr := flashrun(t, append(args, path)...)
		require.Equal(t, exitUsage, code, stderr)
		require.Empty(t, stdout)
		require.Contains(t, stderr, path)
	}
	text, err := os.ReadFile(notes)
	require.NoError(t, err)
	require.Equal(t, "not to be lost\n", string(text))
	t.Setenv("FLASHKIT_PROFILE", pipe)
	code, _, stderr := flashrun(t, args[:len(args)-1]...)
	require.Equal(t, exitUsage, code)
	require.Contains(t, stderr, "FLASHKIT_PROFILE: "+pipe+": not a regular file")
	t.Setenv("FLASHKIT_PROFILE", "off")

	ok(t, append(args, profile)...)
	ok(t, append(args, profile)...) // and again
	left, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, left, 3)
}
