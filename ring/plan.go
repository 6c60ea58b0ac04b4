package ring

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A Machine describes one rank's compute, for predictions.
type Machine struct {
	FLOPs    float64       // floating-point operations per second of the pass, on long rows
	Overhead time.Duration // time that each kernel call adds
}

// A Link describes the connection of ranks, for predictions.
type Link struct {
	Rate    float64       // bytes per second in each direction, both at the same time
	Latency time.Duration // time that each message adds
	Slows   float64       // fraction by which a message slows a concurrent kernel, such as .08
}

// Links returns the names that LinkOf accepts.
func Links() []string {
	return []string{"nvlink4", "infiniband", "ethernet100", "ethernet10", "shared"}
}

// LinkOf returns a common link. Its rate is achievable, and lower than the nominal rate. nvlink4 is
// an H100's NVLink with copy engines, and infiniband has 400 Gb/s per rank. ethernet100 and
// ethernet10 are named after their Gb/s. shared is the memory that MPI shares between processes.
// For an unknown name the error is a *flashkit.ProblemError.
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

// A Plan predicts a pass on the slowest rank.
type Plan struct {
	Ranks      int           // number of ranks
	Steps      []PlannedStep // in order of execution
	Total      time.Duration // predicted time of the pass
	One        time.Duration // predicted time of the pass on one rank
	Efficiency float64       // One / (Ranks * Total)
	Hidden     float64       // fraction of message time hidden by kernels, 1 without messages
	Sent       int64         // bytes that the rank sends
	Memory     int64         // bytes of buffers, in addition to the rank's tensors
}

// A PlannedStep is the compute of one step, with concurrent messages. In the backward pass, a
// PlannedStep may cover only some of the KV heads.
type PlannedStep struct {
	Compute time.Duration // time in kernels
	Travel  time.Duration // time in concurrent messages
	Took    time.Duration // the longer of both times, plus the slowdown of kernels by messages
}

// maxPlannedRanks is the maximum number of ranks that Predict examines. If there are more ranks,
// Predict examines a sample of them.
const maxPlannedRanks = 8

// Predict returns the plan of a pass of p over size ranks. seqs are the whole problem's sequences,
// nil if p is not Ragged. Predict itself takes time in proportion to the rows of p. The error is a
// *flashkit.ProblemError, or an error of NewCut.
//
// The model: a step takes as long as its kernels or its messages, whichever is longer. While
// messages and kernels run together, the kernels are slower: their time grows by the fraction
// Link.Slows of the common time. A pass is the sum of its steps.
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
		var out, in int64 // bytes during turn i: keys of the next turn, gradients of the previous turn
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

// turnTime predicts the kernel time of some heads of a step.
func (c *Cut) turnTime(s *step, heads headRun, pass flashkit.Pass, m Machine) (t time.Duration) {
	part := float64(heads.len()) / float64(max(1, c.p.KVHeads))
	for i := range s.calls {
		t += m.Overhead + seconds(part*flops(&s.calls[i], pass)/m.FLOPs)
	}
	return t
}

// gradientSize returns the bytes per element of a step's traveling gradients.
func (c *Cut) gradientSize(one bool) int {
	if one {
		return c.p.DType.Size()
	}
	return flashkit.Float32.Size()
}

func flops(x *call, pass flashkit.Pass) float64 {
	c := x.p.Ask(pass)
	c.Args = &flashkit.Args{Seqs: x.seqs}
	return c.FLOPs()
}

func seconds(s float64) time.Duration {
	return time.Duration(min(s*1e9, math.MaxInt64/4))
}
