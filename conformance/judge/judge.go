// Package judge runs programs in any language on the golden vectors and judges their outputs.
// conformance/vectors/README.md describes the protocol. The script conformance/vectors/judge.py
// does the same without Go.
package judge

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/flashkit-go/flashkit/conformance"
	"github.com/flashkit-go/flashkit/internal/outfile"
	"github.com/flashkit-go/flashkit/safetensors"
)

// Unsupported is the exit status of a program that cannot express a case.
const Unsupported = 77

// Options select the program and the cases.
type Options struct {
	Program []string      // name and arguments; the case's folder becomes the last argument
	Case    string        // pattern of full case names, in the syntax of path.Match; "" for all
	Keep    string        // folder in which the case folders stay; "" for a temporary folder
	Timeout time.Duration // time limit of a case; 0 for none
}

// A Status is the outcome of a case.
type Status string

// The outcomes.
const (
	Passed      Status = "passed"
	Failed      Status = "failed"
	CannotRun   Status = "unsupported" // the program cannot express the case
	outputLimit        = 1 << 16       // largest number of bytes kept of a program's messages
)

// A Result is the outcome of one case.
type Result struct {
	Case    string              `json:"case"`
	Catches string              `json:"catches"` // the mistake that the case catches; "" in the grid
	Status  Status              `json:"status"`
	Judged  []string            `json:"judged,omitempty"` // the compared outputs
	Faults  []conformance.Fault `json:"faults,omitempty"`
	Reason  string              `json:"reason,omitempty"` // why the case cannot run, or how the program failed
}

// Run runs the program on the chosen cases, GOMAXPROCS at a time, and returns the results in the
// order of the manifest. Run returns an error if a folder cannot be written, if no case matches, or
// if ctx is done.
func Run(ctx context.Context, o Options) ([]Result, error) {
	if _, err := path.Match(o.Case, ""); err != nil {
		return nil, fmt.Errorf("pattern %q: %w", o.Case, err)
	}
	if len(o.Program) == 0 {
		return nil, errors.New("the program is missing")
	}
	var cases []conformance.Case
	for _, c := range conformance.Tasks() {
		if ok, _ := path.Match(o.Case, c.FullName()); ok || o.Case == "" {
			cases = append(cases, c)
		}
	}
	if len(cases) == 0 {
		return nil, fmt.Errorf("no case matches %q", o.Case)
	}
	folder := o.Keep
	if folder == "" {
		var err error
		var remove func()
		if folder, remove, err = outfile.TempFolder("flashkit-judge"); err != nil {
			return nil, err
		}
		defer remove()
	}
	results, errs := make([]Result, len(cases)), make([]error, len(cases))
	var running sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for i, c := range cases {
		slots <- struct{}{}
		running.Go(func() {
			if errs[i] = ctx.Err(); errs[i] == nil {
				results[i], errs[i] = o.one(ctx, c, filepath.Join(folder, c.FullName()))
			}
			<-slots
		})
	}
	running.Wait()
	return results, errors.Join(ctx.Err(), cmp.Or(errs...))
}

// one runs the program on one case in its folder. The error is not the program's.
func (o *Options) one(ctx context.Context, c conformance.Case, folder string) (Result, error) {
	r := Result{Case: c.FullName(), Catches: c.Catches, Status: Failed}
	if err := write(c, folder); err != nil {
		return r, err
	}
	if o.Timeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.Timeout)
		defer cancel()
	}
	var messages tail
	cmd := exec.CommandContext(ctx, o.Program[0], append(o.Program[1:len(o.Program):len(o.Program)], folder)...)
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &messages, &messages, time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	switch {
	case errors.As(err, &exit) && exit.ExitCode() == Unsupported:
		if r.Status, r.Reason = CannotRun, messages.last(); r.Reason == "" {
			r.Status, r.Reason = Failed, fmt.Sprintf("exit status %d without a reason", Unsupported)
		}
		return r, nil
	case errors.As(err, &exit) && ctx.Err() != nil:
		r.Reason = fmt.Sprintf("no result after %v", o.Timeout)
		return r, nil
	case errors.As(err, &exit):
		r.Reason = strings.TrimSuffix(fmt.Sprintf("%v: %s", exit, messages.last()), ": ")
		return r, nil
	case err != nil:
		return r, err // the program cannot be started
	}
	outputs, err := os.ReadFile(filepath.Join(folder, conformance.OutputsFile))
	if err != nil {
		r.Reason = conformance.OutputsFile + " is missing"
		return r, nil
	}
	r.judge(c, outputs)
	return r, nil
}

// judge sets the status to the verdict on the outputs.
func (r *Result) judge(c conformance.Case, outputs []byte) {
	f, err := safetensors.Parse(outputs)
	if err == nil {
		r.Judged, r.Faults, err = c.Judge(f)
	}
	switch {
	case err != nil:
		r.Reason = conformance.OutputsFile + ": " + err.Error()
	case len(r.Faults) == 0:
		r.Status = Passed
	}
}

// write makes the folder of a case, with the files that the program reads.
func write(c conformance.Case, folder string) error {
	text, inputs, err := c.Task()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(folder, 0o777); err != nil {
		return err
	}
	var b bytes.Buffer
	if err := inputs.Write(&b); err != nil {
		return err
	}
	if err := outfile.Write(filepath.Join(folder, conformance.TaskFile), taskKind, text); err != nil {
		return err
	}
	if err := outfile.Write(filepath.Join(folder, conformance.InputsFile), besideTask, b.Bytes()); err != nil {
		return err
	}
	return outfile.Remove(filepath.Join(folder, conformance.OutputsFile), besideTask)
}

// The kinds of the files in a case's folder. A folder whose case.json is another file stays untouched.
var (
	taskKind   = outfile.Kind{Name: "a case of the suite", Is: func(begin []byte) bool { return bytes.Contains(begin, []byte(`"catches":`)) }}
	besideTask = outfile.Kind{Name: "a file of a case", Is: func([]byte) bool { return true }}
)

// A tail is a writer that keeps the end of a program's messages.
type tail struct{ text []byte }

// Write keeps the last bytes of p.
func (t *tail) Write(p []byte) (int, error) {
	t.text = append(t.text, p...)
	t.text = t.text[max(0, len(t.text)-outputLimit):]
	return len(p), nil
}

// last returns the last line that is not empty.
func (t *tail) last() string {
	lines := strings.Split(strings.TrimSpace(string(t.text)), "\n")
	return strings.TrimSpace(lines[len(lines)-1])
}
