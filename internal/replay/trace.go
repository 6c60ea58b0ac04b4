// Package replay repeats a program's calls in fresh processes and compares dispatch's choices with
// the best kernels.
package replay

import (
	"fmt"
	"math/bits"
	"regexp"
	"strconv"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// A Trace is the calls of a program, and the conditions under which the program makes them. Its
// text has a step per line, as docs/flashrun.md describes.
type Trace struct {
	name    string
	text    string
	procs   int    // GOMAXPROCS, 0 for unchanged
	godebug string // processor features to turn off
	steps   []step
	order   []int // indices of steps in the order in which they run, with loops unrolled
	calls   int   // number of calls of all steps in order
}

// A step is a line of a trace: one or more calls of a pass on a problem. The number of keys may
// grow from call to call.
type step struct {
	line    int
	pass    flashkit.Pass
	problem flashkit.Problem // of the first call
	calls   int
	grow    int           // additional keys of each call
	callers int           // goroutines that share the calls
	busy    int           // processes that keep a core busy
	touch   int           // bytes written before each call
	pause   time.Duration // after each call
}

// Limits of a trace, so that no file exhausts the machine's memory or time.
const (
	traceText    = 1 << 20 // bytes of text
	traceSteps   = 10000   // with loops unrolled
	traceCalls   = 100000
	traceCallers = 256
	traceBusy    = 64
	traceTouch   = 1 << 30
	tracePause   = time.Second
	tracePauses  = time.Minute // total of all pauses
	traceGrow    = 1 << 20
	traceProcs   = 1024
)

func (s *step) at(i int) flashkit.Problem {
	p := s.problem
	p.KVLen += i * s.grow
	return p
}

// largest returns the problem of the last call, which has the most keys.
func (s *step) largest() flashkit.Problem { return s.at(s.calls - 1) }

// Bytes returns the size of a trace's tensors and touched memory.
func (t *Trace) Bytes() float64 {
	sum, touch := 0.0, 0
	for p, n := range t.sets() {
		sum += float64(n) * input.Bytes(p, t.backward(p))
	}
	for i := range t.steps {
		touch = max(touch, t.steps[i].touch)
	}
	return sum + float64(touch)
}

func (t *Trace) sets() map[flashkit.Problem]int {
	sets := map[flashkit.Problem]int{}
	for i := range t.steps {
		p := t.steps[i].largest()
		sets[p] = max(sets[p], t.steps[i].callers)
	}
	return sets
}

// backward reports whether any step runs the backward pass on the problem's tensors.
func (t *Trace) backward(p flashkit.Problem) bool {
	for i := range t.steps {
		if s := &t.steps[i]; s.pass == flashkit.PassBackward && s.largest() == p {
			return true
		}
	}
	return false
}

type traceParser struct {
	trace  *Trace
	line   int
	loops  []loop // open loops
	pauses time.Duration
}

type loop struct{ line, times, from int }

// parseTrace parses the text of a trace. Its errors name the line, the field and the value.
func parseTrace(name, text string) (*Trace, error) {
	if len(text) > traceText {
		return nil, fmt.Errorf("%d bytes: a trace has at most %d", len(text), traceText)
	}
	p := &traceParser{trace: &Trace{name: name, text: text}}
	for line := range strings.Lines(text) {
		p.line++
		line, _, _ = strings.Cut(line, "#")
		if words := strings.Fields(line); len(words) > 0 {
			if err := p.parse(words); err != nil {
				return nil, fmt.Errorf("line %d: %w", p.line, err)
			}
		}
	}
	if n := len(p.loops); n > 0 {
		return nil, fmt.Errorf("line %d: loop has no end", p.loops[n-1].line)
	}
	if len(p.trace.order) == 0 {
		return nil, fmt.Errorf("line %d: there is no step: a step is fwd or bwd and a problem", p.line)
	}
	if need := p.trace.Bytes(); need > bench.TensorLimit {
		return nil, fmt.Errorf("line %d: the tensors of all steps take %s: at most %s are allowed", p.line, terminal.Bytes(need), terminal.Bytes(bench.TensorLimit))
	}
	return p.trace, nil
}

func (p *traceParser) parse(words []string) error {
	key, args := words[0], words[1:]
	switch key {
	case "fwd", "bwd":
		return p.step(key, args)
	case "end":
		if len(args) > 0 {
			return fmt.Errorf("end = %.60q: takes no arguments", strings.Join(args, " "))
		}
		return p.end()
	case "loop", "procs", "godebug":
		if len(args) != 1 {
			return fmt.Errorf("%s = %.60q: must be one word", key, strings.Join(args, " "))
		}
	default:
		return fmt.Errorf("step = %.60q: must begin with fwd, bwd, loop, end, procs or godebug", key)
	}
	if key == "loop" {
		times, err := within("loop", args[0], 1, traceSteps)
		p.loops = append(p.loops, loop{p.line, times, len(p.trace.order)})
		return err
	}
	return p.header(key, args[0])
}

// features matches the allowed godebug values: other settings would change the program.
var features = regexp.MustCompile(`^cpu\.[a-z0-9]+=off(,cpu\.[a-z0-9]+=off)*$`)

func (p *traceParser) header(key, value string) (err error) {
	t := p.trace
	switch {
	case len(t.steps) > 0 || len(p.loops) > 0:
		return fmt.Errorf("%s = %.60q: must stand before the first step", key, value)
	case key == "procs" && t.procs > 0 || key == "godebug" && t.godebug != "":
		return fmt.Errorf("%s = %.60q: is given twice", key, value)
	case key == "procs":
		t.procs, err = within(key, value, 1, traceProcs)
	case !features.MatchString(value):
		err = fmt.Errorf("%s = %.60q: must be a list such as cpu.avx512f=off,cpu.avx2=off", key, value)
	default:
		t.godebug = value
	}
	return err
}

// end closes a loop and unrolls its steps.
func (p *traceParser) end() error {
	n := len(p.loops) - 1
	if n < 0 {
		return fmt.Errorf("end: there is no loop to end")
	}
	l := p.loops[n]
	p.loops = p.loops[:n]
	body := p.trace.order[l.from:]
	if len(body) == 0 {
		return fmt.Errorf("loop = %d: has no step", l.times)
	}
	if more := len(body) * (l.times - 1); len(p.trace.order)+more > traceSteps {
		return fmt.Errorf("loop = %d: makes more than %d steps", l.times, traceSteps)
	}
	for range l.times - 1 {
		for _, i := range body {
			if err := p.add(i); err != nil {
				return err
			}
		}
	}
	return nil
}

func (p *traceParser) add(i int) error {
	s, t := &p.trace.steps[i], p.trace
	if len(t.order) >= traceSteps {
		return fmt.Errorf("there are more than %d steps", traceSteps)
	}
	t.order = append(t.order, i)
	if t.calls += s.calls; t.calls > traceCalls {
		return fmt.Errorf("calls = %d: all steps together make more than %d calls", s.calls, traceCalls)
	}
	if p.pauses += time.Duration(s.calls) * s.pause; p.pauses > tracePauses {
		return fmt.Errorf("pause = %v: all pauses together take more than %v", s.pause, tracePauses)
	}
	return nil
}

func (p *traceParser) step(pass string, args []string) (err error) {
	if len(args) == 0 {
		return fmt.Errorf("%s: a problem is missing, such as b1-h8-g2-n128-m512-d64-f32", pass)
	}
	s := step{line: p.line, calls: 1, callers: 1}
	if pass == "bwd" {
		s.pass = flashkit.PassBackward
	}
	if s.problem, err = flashkit.ParseProblem(args[0]); err != nil {
		return err
	}
	given := map[string]bool{}
	for _, arg := range args[1:] {
		key, value, _ := strings.Cut(arg, "=")
		if given[key] {
			return fmt.Errorf("%s = %.60q: is given twice", key, value)
		}
		given[key] = true
		if err := s.set(key, value); err != nil {
			return err
		}
	}
	if err := s.check(); err != nil {
		return err
	}
	p.trace.steps = append(p.trace.steps, s)
	return p.add(len(p.trace.steps) - 1)
}

func (s *step) set(key, value string) (err error) {
	switch key {
	case "calls":
		s.calls, err = within(key, value, 1, traceCalls)
	case "grow":
		s.grow, err = within(key, value, 1, traceGrow)
	case "callers":
		s.callers, err = within(key, value, 1, traceCallers)
	case "busy":
		s.busy, err = within(key, value, 1, traceBusy)
	case "touch":
		s.touch, err = parseTouch(value)
	case "pause":
		if s.pause, err = time.ParseDuration(value); err != nil || s.pause <= 0 || s.pause > tracePause {
			err = fmt.Errorf("pause = %.60q: must be a time up to %v, such as 500us or 2ms", value, tracePause)
		}
	default:
		err = fmt.Errorf("setting = %.60q: must be calls, grow, callers, busy, touch or pause, each with = and a value", key)
	}
	return err
}

// check returns an error if parts of the step conflict.
func (s *step) check() error {
	last := s.largest()
	if err := last.Validate(); err != nil {
		return fmt.Errorf("grow = %d: %w", s.grow, err)
	}
	if s.callers > 1 && (s.touch > 0 || s.pause > 0) {
		return fmt.Errorf("callers = %d: goes without touch and pause: callers do not wait for each other", s.callers)
	}
	if s.grow > 0 && s.problem.Features()&(flashkit.FeatureBias|flashkit.FeatureMask|flashkit.FeatureRagged) != 0 {
		return fmt.Errorf("grow = %d: goes without bias, mask and ragged, whose tensors or lengths would grow too", s.grow)
	}
	if s.pass == flashkit.PassBackward && !input.HasBackward(&s.problem) {
		return fmt.Errorf("problem = %q: has no backward pass", s.problem)
	}
	if !(s.problem.FLOPs(s.pass) > 0) {
		return fmt.Errorf("problem = %q: there is nothing to compute", s.problem)
	}
	return nil
}

func within(key, value string, from, to int) (int, error) {
	n, err := strconv.Atoi(value)
	if err != nil || n < from || n > to || value[0] == '+' {
		return 0, fmt.Errorf("%s = %.60q: must be a number from %d to %d", key, value, from, to)
	}
	return n, nil
}

// parseTouch parses sizes such as 64KiB, 64MiB and 1GiB.
func parseTouch(value string) (int, error) {
	for i, unit := range []string{"KiB", "MiB", "GiB"} {
		if number, ok := strings.CutSuffix(value, unit); ok {
			if n, err := within("touch", number, 1, traceTouch>>(10*(i+1))); err == nil {
				return n << (10 * (i + 1)), nil
			}
		}
	}
	return 0, fmt.Errorf("touch = %.60q: must be a size up to %s, such as 64KiB or 16MiB", value, terminal.Bytes(traceTouch))
}

// bucket returns the bit length of call i's number of keys if keys grow in the step, and otherwise
// 0.
func (s *step) bucket(i int) int {
	if s.grow == 0 {
		return 0
	}
	return bits.Len(uint(s.at(i).KVLen))
}
