// Package wasm computes attention in a sandbox: one short C program compiled to
// WebAssembly, embedded, and run by wazero without any import. A kernel cannot
// touch the host, can be audited in one sitting, and gives the same bits on
// every platform.
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

// A Backend runs attention in a WebAssembly sandbox. It is safe for concurrent
// use. All its calls together use up to GOMAXPROCS instances of the module, as
// it was when the backend was made, one call up to Args.Workers, and up to MemoryLimit
// bytes; an instance keeps its memory until Close, or until a call needs an instance
// with more.
type Backend struct {
	box  *sandbox
	jobs sync.Pool // *job, with the workspace of earlier calls
}

// An Option changes what New returns.
type Option func(*options)

type options struct{ memory uint64 }

// MemoryLimit bounds the memory of all instances together, in bytes. The default is
// 4 GiB, which is also the most that one instance can have. A kernel does not fit a
// problem of which one head needs more. Otherwise a call takes as many instances as
// there is memory for, and waits if others have all of it.
func MemoryLimit(bytes uint64) Option { return func(o *options) { o.memory = bytes } }

// New returns the sandboxed backend. The module is compiled when a kernel first
// runs. Where wazero has no compiler for the platform it interprets, and Cost
// says how slow that is. The error wraps flashkit.ErrUnavailable.
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

// Compile compiles the module now, so that the first call need not.
func (b *Backend) Compile(ctx context.Context) error { return b.box.compile(ctx) }

// Name returns "wasm".
func (b *Backend) Name() string { return "wasm" }

// Close waits for the calls in progress, then frees the instances and the compiled
// code. Later calls are errors.
func (b *Backend) Close() error { return b.box.close() }

// A variant is one way of kernel.c to compute one pass.
type variant struct {
	stem string
	pass flashkit.Pass
	rate float64 // FLOP/s of one worker, roughly; it sizes calls
	pace pace

	takes             flashkit.Feature
	keys, rows, grads string // its functions; grads only in the backward pass
	featureRows       string // rows of a call with features of the module, "" if it takes none
}

var variants = [...]variant{
	{"fwd_simd128", flashkit.PassForward, 24e9, pace{6000, .0245, 2.2, 9.2}, forwardTakes, "fwd_simd128_keys", "fwd_simd128_rows", "", "fwd_simd128_feature_rows"},
	{"bwd_simd128", flashkit.PassBackward, 20e9, pace{5000, .025, 4, 20}, backwardTakes, "bwd_simd128_keys", "bwd_simd128_rows", "bwd_grads", "bwd_simd128_feature_rows"},
	{"fwd_scalar", flashkit.PassForward, 1e9, pace{4000, .55, 30, 8.5}, forwardTakes, "fwd_scalar_keys", "fwd_scalar_rows", "", "fwd_feature_rows"},
	{"bwd_scalar", flashkit.PassBackward, 1e9, pace{5000, .51, 30, 30}, backwardTakes, "bwd_scalar_keys", "bwd_scalar_rows", "bwd_grads", "bwd_feature_rows"},
	{"decode_simd128", flashkit.PassForward, 12e9, pace{3000, .12, 8, .7}, forwardTakes, decodeKeys, "decode_simd128_rows", "", "decode_simd128_rows"},
}

// interpreted is how many times slower a kernel is where wazero interprets it.
const interpreted = 200

// Kernels returns the backend's kernels.
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

// refuses says what the memory of an instance cannot hold.
func (b *Backend) refuses(v *variant, c *flashkit.Call) string {
	if c.QLen > maxRow || c.KVLen > maxRow-c.QLen {
		return fmt.Sprintf("supports up to %d query rows and keys together", maxRow)
	}
	if c.Dim > maxDim || c.VDim > maxDim {
		return fmt.Sprintf("supports head dims up to %d, not %d", maxDim, max(c.Dim, c.VDim))
	}
	if v.few() {
		if reason := refusesFew(c); reason != "" {
			return reason
		}
	}
	x, limit := b.box.plan(v, c), min(b.box.limit, maxMemory)
	if need := x.memory(); need > limit {
		return fmt.Sprintf("one head requires %d bytes; the sandbox has %d", need, limit)
	}
	return ""
}

// hostMemory returns the bytes of the instances that a call takes, of the sums of
// dQ and of dBias where it gathers them, and of the counters.
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
	if x.widensBias() {
		bytes += 8 * float64(elements(&c.Args.DBias))
	}
	return bytes + 8*float64(x.heads()) + 8*float64(x.owners())*float64(x.chunks())
}

// A pace is what the parts of a kernel's work take one worker, in nanoseconds.
// The figures are those of one server; package dispatch corrects the sum by what
// it knows of the machine.
type pace struct {
	item    float64 // to begin and end one, and for the backward pass to visit a tile of rows
	flop    float64
	pair    float64 // a row and a key: the exponential, and what goes with it
	element float64 // of a row that is copied and packed
}

// callTime is what a call takes before any item, and helpTime what each goroutine
// beside its own takes to come and to leave, in nanoseconds.
const (
	callTime = 1000
	helpTime = 2500
)

// featureTimes are what features add to a row and a key, in nanoseconds: to the kernels in
// vectors, by pass, and to the plain loops. alike is for a bias or mask that all rows share.
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
	{flashkit.FeatureDropout, 1, .9, 0, 8},
}

// featurePair is what the features of a call add to a row and a key, in nanoseconds.
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

// inVectors reports whether v is not one of the plain loops.
func (v *variant) inVectors() bool { return strings.HasSuffix(v.stem, "simd128") }

// crowding is how much longer everything takes where sixteen processors or more work:
// two of them share a core, mostly.
const crowding = .5

func (b *Backend) cost(v *variant, c *flashkit.Call) time.Duration {
	const rows = 8 // that meet an edge of the band together
	x, pace := b.box.plan(v, c), &v.pace
	n := x.amount()
	seen := float64(c.Heads) * (float64(c.Area()) + n.rows*rows/2)
	elements := (float64(c.Heads)*n.rows + float64(c.KVHeads)*n.keys) * float64(c.Dim+c.VDim)
	visits := x.items()
	if x.batch > 0 {
		visits = c.Batch * c.Heads
	}
	if v.pass == flashkit.PassBackward {
		visits += n.visits * c.Heads
	}
	perPair := pace.pair + x.featurePair()
	sum := float64(visits)*pace.item + c.FLOPs()*pace.flop + seen*perPair + elements/2*pace.element
	if b.box.engine == interpreter {
		sum *= interpreted
	}
	workers := float64(max(1, min(x.workers(b.box), x.items())))
	sum = callTime + sum/workers + helpTime*(workers-1)
	sum *= 1 + crowding*min(1, float64(cap(b.box.slots)-1)/15)
	return time.Duration(min(sum, math.MaxInt64/2))
}

// An amount is what the sequences of a call add up to.
type amount struct {
	rows, keys float64
	visits     int // of tiles of rows by chunks of keys
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
