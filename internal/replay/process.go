package replay

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
)

// A process of flashrun may start others: a fresh one for every run of a trace, and
// those that keep cores busy. Each ends when its standard input does, so that none
// outlives the process that has started it, however that ends.

// killDelay is how long a process may take to end by itself.
const killDelay = 10 * time.Second

// Executable finds this program. Tests under an emulator put a script in its place.
var Executable = os.Executable

// self prepares a process of this program. What is written to the pipe is its
// standard input; it is closed when ctx ends.
func self(ctx context.Context, args ...string) (*exec.Cmd, io.WriteCloser, error) {
	path, err := Executable()
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.CommandContext(ctx, path)
	cmd.Args = append([]string{"flashrun"}, args...)
	stdin, err := cmd.StdinPipe()
	cmd.Cancel, cmd.WaitDelay = func() error { return stdin.Close() }, killDelay
	return cmd, stdin, err
}

// withStdin returns a context that ends when the standard input does.
func withStdin(ctx context.Context, stdin io.Reader) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		io.Copy(io.Discard, stdin)
		cancel()
	}()
	return ctx
}

// A crowd is processes that burn a core each.
type crowd struct{ burning []*exec.Cmd }

// set makes the crowd as large as n. Those that it starts are at work when it
// returns.
func (c *crowd) set(ctx context.Context, n int) error {
	for len(c.burning) > n {
		last := len(c.burning) - 1
		end(c.burning[last])
		c.burning = c.burning[:last]
	}
	for len(c.burning) < n {
		cmd, _, err := self(ctx, "burn")
		if err != nil {
			return err
		}
		cmd.Env = append(os.Environ(), "GOMAXPROCS=1")
		out, err := cmd.StdoutPipe()
		if err != nil {
			return err
		}
		if err := cmd.Start(); err != nil {
			return err
		}
		c.burning = append(c.burning, cmd)
		if _, err := io.ReadFull(out, make([]byte, 1)); err != nil {
			return errors.Join(ctx.Err(), fmt.Errorf("a process that burns a core ended: %w", err))
		}
	}
	return nil
}

// close ends the whole crowd.
func (c *crowd) close() { c.set(context.Background(), 0) }

// end kills a process and waits for it. That it was killed is no news.
func end(cmd *exec.Cmd) {
	cmd.Process.Kill()
	cmd.Wait()
}

// Burn keeps a core busy until stdin ends, once it has said a line.
func Burn(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	var ended atomic.Bool
	context.AfterFunc(withStdin(ctx, stdin), func() { ended.Store(true) })
	if _, err := fmt.Fprintln(stdout); err != nil {
		return err
	}
	for x := uint64(1); !ended.Load(); {
		for range 10000 {
			x = x*6364136223846793005 + 1442695040888963407
		}
		if x == 0 {
			return nil // never: so that the loop is not left out
		}
	}
	return nil
}

// A lifeRequest is what a process that replays a trace reads.
type lifeRequest struct {
	Name    string `json:"name"`
	Text    string `json:"text"`
	Backend string `json:"backend"`
	Seed    uint64 `json:"seed"`
}

// Serve replays the trace of the request on stdin, and writes the run.
func Serve(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	in := bufio.NewReader(stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("the request: %w", err)
	}
	var r lifeRequest
	if err := json.Unmarshal(line, &r); err != nil {
		return fmt.Errorf("the request: %w", err)
	}
	t, err := parseTrace(r.Name, r.Text)
	if err != nil {
		return err
	}
	run, err := live(withStdin(ctx, in), t, r.Backend, r.Seed)
	if err != nil {
		return err
	}
	return json.NewEncoder(stdout).Encode(run)
}

// replay runs a trace in a fresh process, with the settings that the trace asks for.
func replay(ctx context.Context, t *Trace, backend string, seed uint64) (*Result, error) {
	cmd, stdin, err := self(ctx, "replay")
	if err != nil {
		return nil, err
	}
	cmd.Env = os.Environ()
	if t.procs > 0 {
		cmd.Env = append(cmd.Env, "GOMAXPROCS="+strconv.Itoa(t.procs))
	}
	if t.godebug != "" {
		cmd.Env = append(cmd.Env, "GODEBUG="+strings.TrimPrefix(os.Getenv("GODEBUG")+","+t.godebug, ","))
	}
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	request := json.NewEncoder(stdin).Encode(lifeRequest{t.name, t.text, backend, seed})
	if err := errors.Join(cmd.Wait(), request); err != nil {
		return nil, replayError(ctx, cmd, err, stderr.String())
	}
	run := new(Result)
	return run, json.Unmarshal(stdout.Bytes(), run)
}

// interruptedCode is the exit code of a process of this program that was interrupted.
const interruptedCode = 130

// replayError says why a process failed, in its own words if it has said any. One
// that was interrupted knows it before we do: a terminal tells both.
func replayError(ctx context.Context, cmd *exec.Cmd, err error, said string) error {
	if cmd.ProcessState.ExitCode() == interruptedCode {
		select {
		case <-ctx.Done():
		case <-time.After(time.Second):
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	lines := strings.Split(strings.TrimSpace(said), "\n")
	if last, ok := strings.CutPrefix(lines[len(lines)-1], "flashrun: "); ok {
		return errors.New(last)
	}
	return fmt.Errorf("its process: %w", err)
}
