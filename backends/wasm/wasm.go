// Package wasm computes attention in a sandbox. A short C program is compiled to WebAssembly,
// embedded in the package, and run by wazero without imports. Its kernels cannot touch the host,
// can be audited in one sitting, and give the same bits on every platform.
package wasm

import (
	"context"
	"fmt"
	"math"
	"runtime"
	"strings"
	"sync"
	"time"

	"github.com/flashkit-go/flashkit"
)

// A Backend runs attention in a WebAssembly sandbox. It is safe for concurrent use. New reads
// GOMAXPROCS, which is the maximum number of instances of the module. All instances together have
// at most MemoryLimit bytes of memory. One call uses up to Args.Workers instances. An instance keeps
// its memory until Close, or until a call needs a larger instance.
type Backend struct {
	box  *sandbox
	jobs sync.Pool // *job, with workspace of earlier calls
}

// An Option configures the backend that New returns.
type Option func(*options)

type options struct{ memory uint64 }

// MemoryLimit bounds the total memory of all instances, in bytes. The default is 4 GiB, also the
// maximum of one instance. A kernel refuses a problem if one head needs more memory than the limit.
// A call uses only the instances that fit in the remaining memory. If other calls use all memory, a
// call waits.
func MemoryLimit(bytes uint64) Option { return func(o *options) { o.memory = bytes } }

// New returns the sandboxed backend, with the given options. The first call compiles the module. On
// platforms without a wazero compiler, an interpreter runs the module, and Cost predicts longer
// times. An error of New wraps flashkit.ErrUnavailable.
func New(ctx context.Context, opts ...Option) (*Backend, error) {
	return open(ctx, kernelWasm, compiler, opts...)
}

func open(ctx context.Context, module []byte, e engine, opts ...Option) (*Backend, error) {
	o := options{memory: maxMemory}
	for _, set := range opts {
		set(&o)
	}
	box, err := newSandbox(ctx, module, e, runtime.GOMAXPROCS(0), o.memory)
	if err != nil {
		return nil, fmt.Errorf("wasm: %w: %w", flashkit.ErrUnavailable, err)
	}
	return &Backend{box: box, jobs: sync.Pool{New: func() any { return new(job) }}}, nil
}

// Compile compiles the module now instead of in the first call. The module is compiled once, and
// later calls of Compile return the same error.
func (b *Backend) Compile(ctx context.Context) error { return b.box.compile(ctx) }

// Name returns "wasm".
func (b *Backend) Name() string { return "wasm" }

// Close waits for the calls in progress, then frees the instances and the compiled code. Later calls
// return errors.
func (b *Backend) Close() error { return b.box.close() }

// A variant is a set of kernel.c's functions that computes one pass.
type variant struct {
	stem   string
	pass   flashkit.Pass
	rate   float64 // approximate FLOP/s of one worker, which determine the size of module calls
	timing timing

	takes             flashkit.Feature
	keys, rows, grads string // module functions; grads only for the backward pass
	featureRows       string // module function for rows with features, "" if there is none
}

var variants = [...]variant{
	{"fwd_simd128", flashkit.PassForward, 24e9, timing{3000, .0245, 2.2, 3}, forwardTakes, "fwd_simd128_keys", "fwd_simd128_rows", "", "fwd_simd128_feature_rows"},
	{"bwd_simd128", flashkit.PassBackward, 20e9, timing{5000, .025, 4, 20}, backwardTakes, "bwd_simd128_keys", "bwd_simd128_rows", "bwd_grads", "bwd_simd128_feature_rows"},
	{"fwd_scalar", flashkit.PassForward, 1e9, timing{4000, .55, 30, 8.5}, forwardTakes, "fwd_scalar_keys", "fwd_scalar_rows", "", "fwd_feature_rows"},
	{"bwd_scalar", flashkit.PassBackward, 1e9, timing{5000, .51, 30, 30}, backwardTakes, "bwd_scalar_keys", "bwd_scalar_rows", "bwd_grads", "bwd_feature_rows"},
	{"decode_simd128", flashkit.PassForward, 12e9, timing{2000, .1, 8, .7}, forwardTakes, decodeKeys, "decode_simd128_rows", "", "decode_simd128_rows"},
}

// interpreted is the factor by which wazero's interpreter slows a kernel.
const interpreted = 200

// Kernels returns the backend's kernels, which are the same on every platform.
func (b *Backend) Kernels() []flashkit.Kernel {
	var list []flashkit.Kernel
	for i := range variants {
		v := &variants[i]
		k := flashkit.Kernel{
			Name: "wasm/" + v.stem, Pass: v.pass, Takes: v.takes,
			Refuses: func(c *flashkit.Call) string { return b.refuses(v, c) },
			Cost:    func(c *flashkit.Call) time.Duration { return b.cost(v, c) },
			Needs:   func(c *flashkit.Call) flashkit.Memory { return flashkit.Memory{Host: b.hostMemory(v, c)} },
			Run:     func(ctx context.Context, c *flashkit.Call) error { return b.do(ctx, b.newJob(v, c)) },
		}
		setAbout(&k, v.stem)
		list = append(list, k)
	}
	return list
}

// refuses returns the reason if the kernel does not support the call, else "".
func (b *Backend) refuses(v *variant, c *flashkit.Call) string {
	if c.QLen > maxRow || c.KVLen > maxRow-c.QLen {
		return fmt.Sprintf("supports up to %d query rows and keys together", maxRow)
	}
	if c.Dim > maxDim || c.VDim > maxDim {
		return fmt.Sprintf("supports head dims up to %d, not %d", maxDim, max(c.Dim, c.VDim))
	}
	if v.isDecode() {
		if reason := refusesDecode(c); reason != "" {
			return reason
		}
	}
	x, limit := b.box.plan(v, c), min(b.box.limit, maxMemory)
	if need := x.memory(); need > limit {
		return fmt.Sprintf("one head requires %d bytes; the sandbox has %d", need, limit)
	}
	return ""
}

// hostMemory returns the host memory of a call in bytes: instances, sums of dQ and dBias, and
// counters.
func (b *Backend) hostMemory(v *variant, c *flashkit.Call) float64 {
	x := b.box.plan(v, c)
	if x.items() == 0 {
		return 0
	}
	bytes := float64(x.memory())
	bytes *= max(1, min(float64(x.workers(b.box)), float64(x.items()), math.Floor(float64(b.box.limit)/bytes)))
	if x.gathers() {
		rows := c.Batch * c.QLen
		if c.Args != nil {
			rows = c.Args.DQ.Shape()[0] * c.Args.DQ.Shape()[2]
		}
		bytes += 4 * float64(rows*c.Heads) * float64(c.Dim)
	}
	if x.gathersBias() {
		bytes += 4 * float64(elements(&c.Args.DBias))
	}
	if x.needsFloat64Bias() {
		bytes += 8 * float64(elements(&c.Args.DBias))
	}
	return bytes + 8*float64(x.heads()) + 8*float64(x.owners())*float64(x.chunks())
}

// A timing holds one worker's times for the parts of a kernel's work, in nanoseconds. The times were
// measured on one server; package dispatch corrects the predicted time for the actual machine.
type timing struct {
	item    float64 // per item, to begin and end it, or per part of a decode item; in the backward pass also per tile of rows and chunk of keys
	flop    float64 // per floating-point operation
	pair    float64 // per row and key: the exponential and the other work on a score
	element float64 // per element of a row, to copy and pack it
}

// callTime is the time of a call before its first item. helpTime is the time to start and stop an
// additional goroutine. Both are in nanoseconds.
const (
	callTime = 1000
	helpTime = 2500
)

// featureTimes are the times of features per row and key, in nanoseconds. forward and backward are
// for the vector kernels, plain is for the scalar kernels. alike replaces forward and backward if
// all rows share one row of the bias or mask.
var featureTimes = [...]struct {
	feature           flashkit.Feature
	forward, backward float64
	alike             float64
	plain             float64
}{
	{flashkit.FeatureSoftcap, 1, 1.5, 0, 50},
	{flashkit.FeatureALiBi, .2, .8, 0, 5},
	{flashkit.FeatureBias, 1, 3, .5, 5},
	{flashkit.FeatureMask, 1, 1.5, .1, 5},
	{flashkit.FeatureRanges, 1, 1.5, 0, 5},
	{flashkit.FeatureDropout, 1, .9, 0, 8},
}

// featurePair returns the time of the call's features per row and key, in nanoseconds.
func (x *plan) featurePair() (sum float64) {
	asked := x.c.Features()
	for i := range featureTimes {
		f := &featureTimes[i]
		alike := x.repeats&featureMask != 0 && f.feature == flashkit.FeatureMask || x.repeats&featureBias != 0 && f.feature == flashkit.FeatureBias
		switch {
		case asked&f.feature == 0:
		case !x.v.inVectors():
			sum += f.plain
		case alike:
			sum += f.alike
		case x.v.pass == flashkit.PassBackward:
			sum += f.backward
		default:
			sum += f.forward
		}
	}
	return sum
}

// inVectors reports whether v is a vector kernel.
func (v *variant) inVectors() bool { return strings.HasSuffix(v.stem, "simd128") }

// crowding is the relative slowdown on machines with sixteen or more processors. There, most
// processors share a core with another processor.
const crowding = .5

func (b *Backend) cost(v *variant, c *flashkit.Call) time.Duration {
	const rows = 8 // rows that are processed together; at an edge of the band, the kernel also computes hidden pairs
	x, timing := b.box.plan(v, c), &v.timing
	n := x.amount()
	seen := float64(c.Heads) * (float64(c.Area()) + n.rows*rows/2)
	elements := (float64(c.Heads)*n.rows + float64(c.KVHeads)*n.keys) * float64(c.Dim+c.VDim)
	visits := x.items()
	switch {
	case x.batch > 0:
		visits = c.Batch * c.Heads
	case v.isDecode():
		visits = x.heads() * x.parts(c.QLen)
	}
	if v.pass == flashkit.PassBackward {
		visits += n.visits * c.Heads
	}
	perPair := timing.pair + x.featurePair()
	sum := float64(visits)*timing.item + c.FLOPs()*timing.flop + seen*perPair + elements/2*timing.element
	if b.box.engine == interpreter {
		sum *= interpreted
	}
	workers := float64(max(1, min(x.workers(b.box), x.items())))
	sum = callTime + sum/workers + helpTime*(workers-1)
	sum *= 1 + crowding*min(1, float64(cap(b.box.slots)-1)/15)
	return time.Duration(min(sum, math.MaxInt64/2))
}

// An amount is the total work over the sequences of a call.
type amount struct {
	rows, keys float64
	visits     int // tiles of rows times chunks of keys
}

func (x *plan) amount() (n amount) {
	c := x.c
	if equalRows(c) && (c.Args == nil || c.Args.Seqs == nil || c.Args.Seqs.KVLens == nil && c.Args.Seqs.KVStarts == nil) {
		return amount{float64(c.Batch) * float64(c.QLen), float64(c.Batch) * float64(c.KVLen), c.Batch * x.tiles(c.QLen) * x.chunks()}
	}
	for b := range c.Batch {
		s := c.Seq(b)
		n.rows += float64(s.N)
		n.keys += float64(s.M)
		n.visits += x.tiles(s.N) * ceil(s.M, max(1, x.chunk))
	}
	return n
}
