//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// A choiceTiming is an output line: the time of one kernel for a problem.
type choiceTiming struct {
	Problem   string  `json:"problem"`
	Kernel    string  `json:"kernel"`
	Pass      string  `json:"pass"`
	Memory    string  `json:"memory"`
	Chosen    bool    `json:"chosen"`
	MS        float64 `json:"ms"`
	Predicted float64 `json:"predicted_ms"`
	Load      uint8   `json:"load,omitempty"`   // of the traits
	Packed    bool    `json:"packed,omitempty"` // of sequences
}

// BenchmarkChoice measures the regret of the choice for device tensors: the time of the chosen
// kernel over the time of the fastest kernel. FLASHKIT_SEED draws FLASHKIT_PROBLEMS random
// problems, of the pass FLASHKIT_PASS if set. The kernels of a problem take turns, each with a cold
// cache; times are medians of the device's events.
func BenchmarkChoice(b *testing.B) {
	gpu := benchGPU(b)
	all := newArena(b, gpu)
	var last *deviceCall
	eachChoice(b, gpu, "device", 250, func(r *rand.Rand, p flashkit.Problem, pass flashkit.Pass) ([]familyID, familyID, []float64) {
		last = all.call(b, r, p)
		ids, chosen := last.candidates(b, pass)
		return ids, chosen, turns(b, last, all.flush, ids, pass)
	}, func(s *family, p flashkit.Problem) (time.Duration, flashkit.Traits) {
		var call flashkit.Call
		require.NoError(b, call.Set(p, s.pass, &last.args))
		return s.callCost(&gpu.dev, &call), call.Traits
	})
}

// BenchmarkHostChoice is BenchmarkChoice for host tensors, by the host's clock. The choice is this
// backend's kernel that is predicted fastest.
func BenchmarkHostChoice(b *testing.B) {
	gpu := benchGPU(b)
	memory := newHostArena()
	kernels := gpu.Kernels()
	eachChoice(b, gpu, "host", 60, func(_ *rand.Rand, p flashkit.Problem, pass flashkit.Pass) (ids []familyID, chosen familyID, ms []float64) {
		chosen = -1
		for i := range families {
			if k := kernels[i]; k.Pass == pass && k.Fits(p.Ask(k.Pass)) == "" {
				if ids = append(ids, familyID(i)); chosen < 0 || k.Cost(p.Ask(k.Pass)) < kernels[chosen].Cost(p.Ask(pass)) {
					chosen = familyID(i)
				}
			}
		}
		for _, id := range ids {
			ms = append(ms, hostMedian(b, memory.call(p, &kernels[id])))
		}
		return ids, chosen, ms
	}, func(s *family, p flashkit.Problem) (time.Duration, flashkit.Traits) {
		return s.hostCost(&gpu.dev, p, cap(gpu.staging.free)), flashkit.Traits{}
	})
}

// eachChoice times and reports the kernels for each random problem, and the total regret at the
// end.
func eachChoice(b *testing.B, gpu *Backend, memory string, problems int, times func(*rand.Rand, flashkit.Problem, flashkit.Pass) ([]familyID, familyID, []float64),
	cost func(*family, flashkit.Problem) (time.Duration, flashkit.Traits)) {
	seed := rand.Uint64N(1e6)
	if n, err := strconv.ParseUint(os.Getenv("FLASHKIT_SEED"), 10, 64); err == nil {
		seed = n
	}
	if n, err := strconv.Atoi(os.Getenv("FLASHKIT_PROBLEMS")); err == nil {
		problems = n
	}
	random := rand.New(rand.NewPCG(seed, 0))
	fmt.Printf("%+v\n", gpu.dev)
	var logs, worst float64
	var at string
	for range problems {
		p, pass := randomProblem(random)
		for only := os.Getenv("FLASHKIT_PASS"); only != "" && pass.String() != only; {
			p, pass = randomProblem(random)
		}
		if memory == "device" {
			p = withFeatures(random, p, pass)
		}
		for memory == "host" && p.Bytes(pass) > hostArenaBytes/2 {
			p, pass = randomProblem(random)
		}
		ids, chosen, ms := times(random, p, pass)
		least := slices.Min(ms)
		for i, id := range ids {
			s := &families[id]
			predicted, traits := cost(s, p)
			line, err := json.Marshal(choiceTiming{p.String(), "cuda/" + s.name, pass.String(), memory, id == chosen, ms[i], predicted.Seconds() * 1e3, traits.Load, traits.PackedQ})
			require.NoError(b, err)
			os.Stdout.Write(append(line, '\n'))
			if id == chosen {
				if logs += math.Log(ms[i] / least); ms[i]/least > worst {
					worst, at = ms[i]/least, pass.String()+" "+p.String()+" by "+s.name
				}
			}
		}
	}
	mean := math.Exp(logs / float64(problems))
	fmt.Printf("%s, %s tensors, seed %d, %d problems: regret %.4f (geometric mean), worst %.3f: %s\n",
		gpu.dev.Name, memory, seed, problems, mean, worst, at)
	b.ReportMetric(mean, "regret")
	b.ReportMetric(worst, "worst")
}

// hostArenaBytes bounds the random problems on host tensors.
const hostArenaBytes = 1 << 29

// An arena is device memory with random numbers for the inputs of all problems, and memory for
// their outputs.
type arena struct {
	gpu    *Backend
	s      *Stream
	inputs [len(dtypes)]*Buffer
	output *Buffer
	flush  func() error
}

func newArena(b *testing.B, gpu *Backend) *arena {
	x := &arena{gpu: gpu}
	var err error
	x.s, err = gpu.NewStream()
	require.NoError(b, err)
	for _, t := range dtypes {
		x.inputs[t], err = gpu.Alloc(choiceBytes + 16*granule)
		require.NoError(b, err)
		require.NoError(b, fillRandom(x.s, x.inputs[t], t, choiceBytes/t.Size()))
	}
	x.output, err = gpu.Alloc(choiceBytes + 16*granule)
	require.NoError(b, err)
	x.flush = newFlush(b, &deviceCall{b: gpu, s: x.s})
	for start := time.Now(); time.Since(start) < time.Second; { // until the clocks are up
		require.NoError(b, x.flush())
		require.NoError(b, x.s.Sync())
	}
	b.Cleanup(func() {
		for _, m := range append(x.inputs[:], x.output) {
			require.NoError(b, m.Free())
		}
		require.NoError(b, x.s.Close())
	})
	return x
}

// call lays a problem's tensors out, dense, one after the other. Sequences are drawn. What is carried on begins
// with zeros: what another problem has left need not be finite, and kernels take tiles that are not twice.
func (x *arena) call(b *testing.B, r *rand.Rand, p flashkit.Problem) *deviceCall {
	c := &deviceCall{b: x.gpu, p: p, s: x.s}
	c.args.Seqs = sequences(r, &p)
	at := map[*Buffer]int{}
	tensor := func(m *Buffer, t flashkit.DType, s [4]int) flashkit.Tensor {
		from := at[m]
		at[m] += ceilDiv(s[0]*s[1]*s[2]*s[3]*t.Size(), granule) * granule
		return m.Tensor(t, from/t.Size(), s[0], s[1], s[2], s[3])
	}
	for _, a := range allArguments {
		forward, backward := a.Role(&p, flashkit.PassForward), a.Role(&p, flashkit.PassBackward)
		t, shape := a.DType(&p), laidOut(a.Name, a.Shape(&p), &p, c.args.Seqs)
		switch {
		case a.Name == "DLSE" || a.Name == "DBias" || a.Name == "DSink" || forward|backward == 0:
		case forward&flashkit.Output != 0, backward&flashkit.Output != 0:
			*a.Of(&c.args) = tensor(x.output, t, shape)
		case t == flashkit.Bool: // most bytes of numbers are true
			*a.Of(&c.args) = tensor(x.inputs[flashkit.BFloat16], t, shape)
		default:
			*a.Of(&c.args) = tensor(x.inputs[t], t, shape)
		}
	}
	if p.Carry {
		require.NoError(b, x.gpu.do(func() error { return x.gpu.drv.MemsetD32Async(x.output.address, 0, at[x.output]/4, x.s.handle) }))
	}
	return c
}

// laidOut returns the shape of an argument that is paged or packed.
func laidOut(name string, shape [4]int, p *flashkit.Problem, s *flashkit.Sequences) [4]int {
	keys := strings.HasSuffix(name, "K") || strings.HasSuffix(name, "V")
	switch {
	case name == "Bias" || name == "Mask" || name == "Slopes" || strings.HasSuffix(name, "Sink"):
	case p.Page > 0 && keys:
		shape[0], shape[2] = p.Batch*ceilDiv(p.KVLen, p.Page), p.Page
	case s != nil && s.QStarts != nil && keys:
		shape[0], shape[2] = 1, int(s.KVStarts[p.Batch])
	case s != nil && s.QStarts != nil:
		shape[0], shape[2] = 1, int(s.QStarts[p.Batch])
	}
	return shape
}

// sequences draws the kind of lengths, packing, and pages.
func sequences(r *rand.Rand, p *flashkit.Problem) *flashkit.Sequences {
	if !p.Ragged {
		return nil
	}
	s, kind, square := new(flashkit.Sequences), r.IntN(4), p.QLen == p.KVLen
	for i := range p.Batch {
		q, kv := drawLength(r, kind, i, p.QLen), drawLength(r, kind, i, p.KVLen)
		if square { // as a model has them
			kv = q
		}
		s.QLens, s.KVLens = append(s.QLens, q), append(s.KVLens, kv)
	}
	switch {
	case p.Page > 0:
		for _, n := range r.Perm(p.Batch * ceilDiv(p.KVLen, p.Page)) {
			s.Pages = append(s.Pages, int32(n))
		}
	case r.IntN(2) == 0:
		s.QStarts, s.KVStarts = starts(s.QLens), starts(s.KVLens)
		s.QLens, s.KVLens = nil, nil
	}
	return s
}

// drawLength draws the i-th length of up to most: uniform, log-uniform, one long one among short
// ones, or nearly equal ones.
func drawLength(r *rand.Rand, kind, i, most int) int32 {
	switch {
	case i == 0: // makes most the longest
		return int32(most)
	case kind == 0:
		return int32(1 + r.IntN(most))
	case kind == 1:
		return int32(math.Pow(float64(most), r.Float64()))
	case kind == 2:
		return int32(1 + r.IntN(max(1, most/16)))
	}
	return int32(most - r.IntN(max(1, most/16)))
}

func starts(lens []int32) []int32 {
	at := make([]int32, 1, len(lens)+1)
	for i, n := range lens {
		at = append(at, at[i]+n)
	}
	return at
}

// withFeatures draws features for most problems if FLASHKIT_FEATURES is set.
func withFeatures(r *rand.Rand, p flashkit.Problem, pass flashkit.Pass) flashkit.Problem {
	if os.Getenv("FLASHKIT_FEATURES") == "" || r.IntN(5) == 0 {
		return p
	}
	some := func(n int) bool { return r.IntN(n) == 0 }
	if some(6) {
		p.Score.Softcap = 30
	}
	pairs := p.Batch * p.Heads * p.QLen * p.KVLen
	p.Score.ALiBi, p.Score.Sink, p.Ragged = some(6), some(4), some(2)
	p.Score.Bias, p.Score.Mask = some(8) && pairs < 1<<27, some(8) && pairs < 1<<27
	if some(12) {
		p.Score.Dropout = 0.1
	}
	if pass == flashkit.PassForward {
		p.Carry = some(8)
		if p.Ragged && some(2) {
			p.Page = 1 << (r.IntN(9))
		}
	}
	return p
}

// candidates returns the families that support the tensors, and the choice among them.
func (c *deviceCall) candidates(b *testing.B, pass flashkit.Pass) (ids []familyID, chosen familyID) {
	var call flashkit.Call
	require.NoError(b, call.Set(c.p, pass, &c.args))
	for i := range families {
		if s := &families[i]; s.pass == pass && s.refuses(&c.b.dev, &call) == none {
			ids = append(ids, familyID(i))
		}
	}
	chosen, err := c.b.choose("", &call, false)
	require.NoError(b, err)
	return ids, chosen
}

// turns returns the median milliseconds of each family. Slow ones that are far behind after some
// turns stop; fast ones may only have been disturbed.
func turns(b *testing.B, c *deviceCall, flush func() error, ids []familyID, pass flashkit.Pass) []float64 {
	from, err := c.b.NewEvent()
	require.NoError(b, err)
	defer from.Close()
	to, err := c.b.NewEvent()
	require.NoError(b, err)
	defer to.Close()
	call := c.forward
	if pass == flashkit.PassBackward {
		require.NoError(b, c.forward())
		call = c.backward
	}
	times := make([][]float64, len(ids))
	least, total := math.Inf(1), 0.0
	for turn := 0; turn < 9 || turn < 33 && total < 60; turn++ {
		for i, id := range ids {
			if turn > 3 && slices.Min(times[i]) > max(1, 4*least) {
				continue
			}
			c.use("cuda/"+families[id].name, pass)
			t := c.timed(b, flush, from, to, call)
			if turn > 0 { // the first loads the kernel
				ms := t.Seconds() * 1e3
				times[i] = append(times[i], ms)
				least, total = min(least, ms), total+ms
			}
		}
	}
	ms := make([]float64, len(ids))
	for i, t := range times {
		slices.Sort(t)
		ms[i] = t[len(t)/2]
	}
	return ms
}

// A hostArena is host memory with random numbers, and memory for outputs.
type hostArena struct {
	wide, wideOut     []float32
	narrow, narrowOut []uint16
}

func newHostArena() *hostArena {
	x := &hostArena{make([]float32, hostArenaBytes/4), make([]float32, hostArenaBytes/4), make([]uint16, hostArenaBytes/2), make([]uint16, hostArenaBytes/2)}
	for i := range x.wide {
		if x.wide[i] = float32(rand.NormFloat64()); i >= 1<<20 {
			x.wide[i] = x.wide[i-1<<20]
		}
		x.wideOut[i] = 0
	}
	for i := range x.narrow {
		x.narrow[i] = half.ToBF16(x.wide[i%len(x.wide)]) // as f16 about 1
		x.narrowOut[i] = 0
	}
	return x
}

// call returns a call of a kernel on host tensors.
func (x *hostArena) call(p flashkit.Problem, k *flashkit.Kernel) func() error {
	var in, out int // bytes
	tensor := func(at *int, wide []float32, narrow []uint16, t flashkit.DType, s [4]int) flashkit.Tensor {
		from, n := *at, s[0]*s[1]*s[2]*s[3]
		*at += ceilDiv(n*t.Size(), granule) * granule
		switch t {
		case flashkit.Float16:
			return flashkit.F16(narrow[from/2:][:n], s[0], s[1], s[2], s[3])
		case flashkit.BFloat16:
			return flashkit.BF16(narrow[from/2:][:n], s[0], s[1], s[2], s[3])
		}
		return flashkit.F32(wide[from/4:][:n], s[0], s[1], s[2], s[3])
	}
	input := func(s [4]int) flashkit.Tensor { return tensor(&in, x.wide, x.narrow, p.DType, s) }
	result := func(s [4]int) flashkit.Tensor { return tensor(&out, x.wideOut, x.narrowOut, p.DType, s) }
	f := &flashkit.Args{Q: input(p.QShape()), K: input(p.KShape()), V: input(p.VShape()), O: result(p.OShape())}
	if k.Pass == flashkit.PassForward {
		return func() error { return k.Compute(context.Background(), p, f) }
	}
	lse := p.LSEShape()
	g := &flashkit.Args{Q: f.Q, K: f.K, V: f.V, O: input(p.OShape()), LSE: flashkit.F32(x.wide[:lse[0]*lse[1]*lse[2]], lse[0], lse[1], lse[2], 1),
		DO: input(p.OShape()), DQ: result(p.QShape()), DK: result(p.KShape()), DV: result(p.VShape())}
	return func() error { return k.Compute(context.Background(), p, g) }
}

// hostMedian returns the median milliseconds of a call by the host's clock. The first calls
// allocate the memory of all buffers.
func hostMedian(b *testing.B, call func() error) float64 {
	var times []float64
	start := time.Now()
	for n := 0; n < 12 && time.Since(start) < 2*time.Second; n++ {
		require.NoError(b, call())
	}
	for total := 0.0; len(times) < 5 || len(times) < 40 && total < 60; {
		start := time.Now()
		require.NoError(b, call())
		ms := time.Since(start).Seconds() * 1e3
		times = append(times, ms)
		total += ms
	}
	slices.Sort(times)
	return times[len(times)/2]
}
