package ring

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A Machine is what one rank computes with, for predictions.
type Machine struct {
	FLOPs    float64       // floating point operations a second of the pass, on long rows
	Overhead time.Duration // of each call of a kernel
}

// A Link is how ranks are connected, for predictions.
type Link struct {
	Rate    float64       // bytes a second that a rank sends and, at the same time, receives
	Latency time.Duration // of a message
	Slows   float64       // part by which a message slows a kernel that runs beside it, as .08
}

// Links returns the names that LinkOf knows.
func Links() []string {
	return []string{"nvlink4", "infiniband", "ethernet100", "ethernet10", "shared"}
}

// LinkOf returns a link that is met often, at the rate that is left of the nominal one: nvlink4
// is that of an H100 by its copy engines, infiniband has 400 Gb/s a rank, ethernet100 and
// ethernet10 are named after their Gb/s, shared is MPI's memory between processes.
func LinkOf(name string) (Link, error) {
	switch name {
	case "nvlink4":
		return Link{Rate: 350e9, Latency: 15 * time.Microsecond, Slows: .08}, nil
	case "infiniband":
		return Link{Rate: 45e9, Latency: 10 * time.Microsecond, Slows: .08}, nil
	case "ethernet100":
		return Link{Rate: 11e9, Latency: 30 * time.Microsecond}, nil
	case "ethernet10":
		return Link{Rate: 1.1e9, Latency: 50 * time.Microsecond}, nil
	case "shared":
		return Link{Rate: 3.5e9, Latency: 100 * time.Microsecond}, nil
	}
	return Link{}, &flashkit.ProblemError{Field: "link", Value: name, Reason: "must be one of " + strings.Join(Links(), ", ")}
}

// A Plan is the prediction of a pass, of the rank that takes longest.
type Plan struct {
	Ranks      int
	Steps      []PlannedStep
	Total      time.Duration // of the pass
	One        time.Duration // of the pass on one rank
	Efficiency float64       // One / (Ranks * Total)
	Hidden     float64       // part of the time of messages that kernels hide, 1 without messages
	Sent       int64         // bytes, by the rank
	Memory     int64         // bytes of buffers, beside the rank's tensors
}

// A PlannedStep is what is done at one time.
type PlannedStep struct {
	Compute time.Duration // in kernels
	Travel  time.Duration // of the messages beside them
	Took    time.Duration // the longer one, and what they cost each other
}

// planned is the most ranks whose steps are looked at: of more, some are taken.
const maxPlannedRanks = 8

// Predict returns the plan of a pass of p over so many ranks. The sequences are those of the
// whole, nil if p is not Ragged. It takes time in proportion to the rows of p. The error is a
// *flashkit.ProblemError.
//
// The model: a step takes as long as its kernels or the messages beside them, whichever is
// longer; messages slow kernels by the link's part of the time for which both run; a pass is
// the sum of its steps.
func Predict(p flashkit.Problem, seqs *flashkit.Sequences, size int, pass flashkit.Pass, m Machine, l Link) (Plan, error) {
	if !(m.FLOPs > 0) || !(l.Rate > 0) || !(l.Slows >= 0) {
		return Plan{}, &flashkit.ProblemError{Field: "Machine.FLOPs, Link.Rate, Link.Slows", Value: strconv.FormatFloat(min(m.FLOPs, l.Rate, l.Slows), 'g', -1, 64), Reason: "must be positive"}
	}
	if err := pass.Validate(); err != nil {
		return Plan{}, err
	}
	c, err := NewCut(p, seqs, size, false)
	if err != nil {
		return Plan{}, err
	}
	whole := p.Ask(pass)
	whole.Args = &flashkit.Args{Seqs: seqs}
	one := seconds(whole.FLOPs()/m.FLOPs) + m.Overhead
	var worst Plan
	for i := range min(size, maxPlannedRanks) {
		rank := i
		if size > maxPlannedRanks {
			rank = i * (size - 1) / (maxPlannedRanks - 1)
		}
		if x := c.predict(rank, pass, m, l); x.Total >= worst.Total {
			worst = x
		}
	}
	worst.Ranks, worst.One = size, one
	worst.Efficiency = float64(one) / (float64(size) * float64(max(worst.Total, 1)))
	return worst, nil
}

// predict returns the plan of one rank.
func (c *Cut) predict(rank int, pass flashkit.Pass, m Machine, l Link) (x Plan) {
	steps, parts := c.steps(rank), 1
	if pass == flashkit.PassBackward {
		parts = gradientParts
	}
	turns := turnsOf(len(steps), c.p.KVHeads, parts)
	message := func(k part, heads headRun, size int) int64 {
		return int64(k.nb) * int64(k.n) * int64(c.p.Dim+c.p.VDim) * int64(heads.len()) * int64(size)
	}
	size := c.p.KVType().Size()
	var travel, hidden time.Duration
	var most, back int64
	for i := 0; i <= len(turns); i++ {
		var s PlannedStep
		var out, in int64 // beside turn i: keys for the next, gradients of the one before
		messages := 0
		if i < len(turns) {
			s.Compute = c.turnTime(&steps[turns[i].step], turns[i].heads, pass, m)
		}
		if i+1 < len(turns) {
			next := &turns[i+1]
			out, in = message(steps[next.step].give, next.heads, size), message(steps[next.step].need, next.heads, size)
			most, messages = max(most, in), 1
		}
		if pass == flashkit.PassBackward && i >= 2 {
			last := &turns[i-1]
			st := &steps[last.step]
			theirs, ours := message(st.need, last.heads, c.gradientSize(st.one)), message(st.give, last.heads, c.gradientSize(st.giveOne))
			out, in = out+theirs, in+ours
			back, messages = max(back, theirs, ours), messages+1
		}
		x.Sent += out
		if n := max(out, in); n > 0 {
			s.Travel = time.Duration(messages)*l.Latency + seconds(float64(n)/l.Rate)
		}
		both := min(s.Compute, s.Travel)
		s.Took = max(s.Compute+time.Duration(float64(both)*l.Slows), s.Travel)
		x.Total += s.Took
		travel, hidden = travel+s.Travel, hidden+both
		if s != (PlannedStep{}) {
			x.Steps = append(x.Steps, s)
		}
	}
	if x.Hidden = 1; travel > 0 {
		x.Hidden = float64(hidden) / float64(travel)
	}
	if x.Memory = 2 * most; len(turns) == 2 {
		x.Memory = most
	}
	x.Memory += 3 * back
	return x
}

// turnTakes predicts the time of kernels for some heads of a step.
func (c *Cut) turnTime(s *step, heads headRun, pass flashkit.Pass, m Machine) (t time.Duration) {
	part := float64(heads.len()) / float64(max(1, c.p.KVHeads))
	for i := range s.calls {
		t += m.Overhead + seconds(part*flops(&s.calls[i], pass)/m.FLOPs)
	}
	return t
}

// gradientSize returns the bytes of an element of the gradients of a step's keys that travel.
func (c *Cut) gradientSize(one bool) int {
	if one {
		return c.p.DType.Size()
	}
	return flashkit.Float32.Size()
}

// flops returns those of a call.
func flops(x *call, pass flashkit.Pass) float64 {
	c := x.p.Ask(pass)
	c.Args = &flashkit.Args{Seqs: x.seqs}
	return c.FLOPs()
}

func seconds(s float64) time.Duration {
	return time.Duration(min(s*1e9, math.MaxInt64/4))
}
