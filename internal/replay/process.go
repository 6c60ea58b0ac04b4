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

// flashrun starts further processes of itself: for every run of a trace, and to keep cores busy.
// Each process ends when its standard input ends, so that no process outlives its parent.

// killDelay is the time that a process has to end by itself before it is killed.
const killDelay = 10 * time.Second

// Executable returns this program's path. Tests under an emulator replace it by a script.
var Executable = os.Executable

// self prepares a process of this program. The returned pipe is the standard input of the new
// process. The pipe closes when ctx ends.
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

// withStdin returns a context that ends at the end of stdin.
func withStdin(ctx context.Context, stdin io.Reader) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		io.Copy(io.Discard, stdin)
		cancel()
	}()
	return ctx
}

// A crowd is a set of processes. Each process keeps a core busy.
type crowd struct{ burning []*exec.Cmd }

// set resizes the crowd to n processes. New processes are busy when set returns.
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

func (c *crowd) close() { c.set(context.Background(), 0) }

// end kills a process and waits for it, ignoring the expected error.
func end(cmd *exec.Cmd) {
	cmd.Process.Kill()
	cmd.Wait()
}

// Burn writes a line to stdout, then keeps a core busy until stdin ends.
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
			return nil // practically never, but the compiler must keep the loop
		}
	}
	return nil
}

// A replayRequest is the input of a process that replays a trace.
type replayRequest struct {
	Name    string `json:"name"`
	Text    string `json:"text"`
	Backend string `json:"backend"`
	Seed    uint64 `json:"seed"`
}

// Serve replays the trace of the request on stdin and writes the Result to stdout.
func Serve(ctx context.Context, stdin io.Reader, stdout io.Writer) error {
	in := bufio.NewReader(stdin)
	line, err := in.ReadBytes('\n')
	if err != nil {
		return fmt.Errorf("the request: %w", err)
	}
	var r replayRequest
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

// replay runs a trace in a fresh process with the trace's GOMAXPROCS and GODEBUG.
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
	request := json.NewEncoder(stdin).Encode(replayRequest{t.name, t.text, backend, seed})
	if err := errors.Join(cmd.Wait(), request); err != nil {
		return nil, replayError(ctx, cmd, err, stderr.String())
	}
	run := new(Result)
	return run, json.Unmarshal(stdout.Bytes(), run)
}

// interruptedCode is the exit code of an interrupted process of this program.
const interruptedCode = 130

// replayError returns the error of a failed process, with the process's own message if there is
// one. An interrupt in a terminal reaches parent and child, and the child may end before ctx does.
// replayError therefore waits up to a second for the end of ctx.
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
