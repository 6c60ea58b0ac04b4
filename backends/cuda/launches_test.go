//go:build amd64

package cuda

import (
	"bufio"
	"context"
	"crypto/sha256"
	"fmt"
	"hash"
	"hash/fnv"
	"io"
	"math/rand/v2"
	"os"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/fastest"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// Hashes of the records of TestLaunchesOfRandomCalls. Bits of results depend on the launches, which
// refitted costs do not change. The choices may change then.
const (
	launchesHash = "77e38cf773eeece6153ddb7d4a6113df"
	choicesHash  = "0890c6b9a7ad96b009313a40bc3af2ab"
)

// launchDevices are the GPUs of TestLaunchesOfRandomCalls: the lowest minor version of each image,
// versions without their own image, versions that run PTX, and a driver without clusters.
var launchDevices = []struct {
	Device
	clusters bool
}{
	{Device{Major: 9, SMs: 132, ClockMHz: 1980, Bandwidth: 3350e9}, true},
	{Device{Major: 9, SMs: 78, ClockMHz: 1755, Bandwidth: 2000e9}, true},
	{Device{Major: 9, SMs: 132, ClockMHz: 1980, Bandwidth: 4800e9}, false},
	{Device{Major: 7, Minor: 5, SMs: 40, ClockMHz: 1590, Bandwidth: 320e9}, false},
	{Device{Major: 8, SMs: 108, ClockMHz: 1410, Bandwidth: 2039e9}, false},
	{Device{Major: 8, Minor: 6, SMs: 84, ClockMHz: 1740, Bandwidth: 768e9}, false},
	{Device{Major: 8, Minor: 7, SMs: 16, ClockMHz: 1300, Bandwidth: 205e9}, false},
	{Device{Major: 8, Minor: 9, SMs: 128, ClockMHz: 2520, Bandwidth: 1008e9}, false},
	{Device{Major: 10, SMs: 148, ClockMHz: 1965, Bandwidth: 8000e9}, false},
	{Device{Major: 12, SMs: 170, ClockMHz: 2407, Bandwidth: 1792e9}, false},
}

// TestLaunchesOfRandomCalls compares, for random calls on every GPU, each kernel's launches with
// their arguments, or its refusal, and the chosen kernel. It runs on amd64: other architectures
// round the costs of partitions differently. FLASHKIT_LAUNCHES names a file for all lines:
//
//	FLASHKIT_LAUNCHES=/tmp/after go test ./backends/cuda -run 'TestLaunchesOfRandomCalls$' && diff /tmp/before /tmp/after
func TestLaunchesOfRandomCalls(t *testing.T) {
	slow.UnderRace(t)
	all := io.Discard
	if name := os.Getenv("FLASHKIT_LAUNCHES"); name != "" {
		file, err := os.Create(name)
		require.NoError(t, err)
		defer file.Close()
		w := bufio.NewWriter(file)
		defer w.Flush()
		all = w
	}
	launches, choices := recordCalls(t, 10000, all)
	require.Equal(t, launchesHash, launches, "launches")
	require.Equal(t, choicesHash, choices, "choices")
}

// Costs choose a kernel, but do not partition its calls: no number of costs.json changes a launch.
func TestFittingKeepsLaunches(t *testing.T) {
	slow.UnderRace(t)
	launches, choices := recordCalls(t, 1000, io.Discard)
	r := rand.New(rand.NewPCG(9, 9))
	scaledNumbers := map[*float64]bool{}
	scale := func(table any) {
		numbers := reflect.ValueOf(table).Elem()
		was := reflect.New(numbers.Type()).Elem()
		was.Set(numbers)
		t.Cleanup(func() { numbers.Set(was) })
		for i := range numbers.NumField() {
			if x := numbers.Field(i); x.Kind() == reflect.Float64 && x.Float() != 0 {
				at := (*float64)(x.Addr().UnsafePointer())
				*at *= .5 + r.Float64()
				scaledNumbers[at] = true
			}
		}
	}
	for i := range families {
		for _, c := range []*costs{families[i].costs, families[i].costsOf(flashkit.Float32)} {
			scale(c)
			for j := range c.tiles {
				scale(&c.tiles[j])
			}
		}
	}
	for i := range featureTimes {
		scale(&featureTimes[i])
	}
	text, err := os.ReadFile("costs.json")
	require.NoError(t, err)
	require.Len(t, scaledNumbers, len(regexp.MustCompile(`":[\d.]`).FindAll(text, -1)))
	scaled, others := recordCalls(t, 1000, io.Discard)
	require.Equal(t, launches, scaled)
	require.NotEqual(t, choices, others)
}

// recordCalls returns the hashes of the records of random calls.
func recordCalls(t *testing.T, calls int, all io.Writer) (launches, choices string) {
	both := [...]hash.Hash{sha256.New(), sha256.New()}
	for i := len(recorders); i < len(launchDevices); i++ {
		recorders = append(recorders, newRecorder(t, i))
	}
	for _, x := range recorders {
		x.b.choices = fastest.Cache[familyID]{}
	}
	for i := range calls {
		r := rand.New(rand.NewPCG(51, uint64(i)))
		x := recorders[max(0, r.IntN(14)-4)]
		x.launches, x.choices, x.details = io.MultiWriter(both[0], all), io.MultiWriter(both[1], all), all
		x.record(r)
	}
	return fmt.Sprintf("%x", both[0].Sum(nil)[:16]), fmt.Sprintf("%x", both[1].Sum(nil)[:16])
}

// recorders has a recorder for each of launchDevices. They stay open, because loading the images
// takes longest.
var recorders []*recorder

// A recorder is a backend whose driver records the launches.
type recorder struct {
	b                 *Backend
	s                 *Stream // of the latest call
	captures          bool
	launches, choices io.Writer
	details           io.Writer // the hashed arguments
}

// workspaceAt is the address of every workspace of a recorder.
const workspaceAt = 1 << 46

func newRecorder(t *testing.T, device int) *recorder {
	x, f := &recorder{}, newFake()
	d := &f.Driver
	d.ModuleLoadData = func(image []byte) (Module, error) { return loadRecorded(f, image) }
	d.MemAllocAsync = func(n int, _ StreamHandle) (Pointer, error) {
		fmt.Fprintf(x.launches, "    alloc %d\n", n)
		return workspaceAt, nil
	}
	d.MemFreeAsync = func(Pointer, StreamHandle) error { return nil }
	d.MemcpyHtoDAsync = func(to Pointer, from unsafe.Pointer, n int, _ StreamHandle) error {
		fmt.Fprintf(x.launches, "    copy %#x %d %x\n", to, n, hashOf(unsafe.Slice((*byte)(from), n)))
		return nil
	}
	d.MemsetD32Async = func(to Pointer, value uint32, words int, _ StreamHandle) error {
		fmt.Fprintf(x.launches, "    set %#x %d %d\n", to, value, words)
		return nil
	}
	d.TensorMapEncodeTiled = func(m *TensorMap, bf16 bool, at Pointer, dims *[4]uint64, strides *[3]uint64, box *[4]uint32) error {
		copy(m[:], fmt.Sprintf("%x", hashOf(fmt.Append(nil, bf16, at, *dims, *strides, *box))))
		return nil
	}
	d.StreamIsCapturing = func(StreamHandle) (bool, error) { return x.captures, nil }
	launch := func(kind string) func(Function, int, int, int, int, StreamHandle, unsafe.Pointer) error {
		return func(fn Function, blocks, threads, shared, cluster int, _ StreamHandle, a unsafe.Pointer) error {
			x.launched(kind, f.functions[fn], a, fmt.Sprint(blocks, threads, shared, cluster))
			return nil
		}
	}
	single := func(kind string) func(Function, int, int, int, StreamHandle, unsafe.Pointer) error {
		do := launch(kind)
		return func(fn Function, blocks, threads, shared int, s StreamHandle, a unsafe.Pointer) error {
			return do(fn, blocks, threads, shared, 1, s, a)
		}
	}
	d.LaunchKernel, d.LaunchDependent = single("launch"), single("dependent")
	d.LaunchCluster, d.LaunchDependentCluster = launch("cluster"), launch("dependent cluster")
	y := &launchDevices[device]
	if !y.clusters {
		d.LaunchCluster, d.LaunchDependentCluster = nil, nil
	}
	b, err := OpenWith(d, 0)
	require.NoError(t, err)
	b.dev, b.images.arch = y.Device, y.Major*10+y.Minor
	x.b = b
	return x
}

// loadRecorded loads an image, also PTX.
func loadRecorded(f *fakeDriver, image []byte) (Module, error) {
	parsed, err := parseImage(image)
	if err != nil {
		parsed = parsePTX(string(image))
	}
	f.made++
	f.images[Module(f.made)] = parsed
	return Module(f.made), nil
}

// parsePTX reads the kernels and the plans of PTX, which omits zeros at the end of a plan.
func parsePTX(text string) *fakeImage {
	parsed := &fakeImage{map[string]bool{}, map[string][]byte{}, map[string]Pointer{}}
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, ".visible .entry "); ok {
			name, _, _ := strings.Cut(rest, "(")
			parsed.functions[name] = true
		}
		if rest, ok := strings.CutPrefix(line, ".global .align 4 .b8 "); ok {
			name, numbers, _ := strings.Cut(rest, "[16] = {")
			plan := make([]byte, 16)
			for i, number := range strings.Split(strings.TrimSuffix(numbers, "};\n"), ",") {
				n, _ := strconv.Atoi(strings.TrimSpace(number))
				plan[i] = byte(n)
			}
			parsed.plans[name] = plan
		}
	}
	return parsed
}

func hashOf(x []byte) uint64 {
	h := fnv.New64a()
	h.Write(x)
	return h.Sum64()
}

// launched records a launch with the part of the arguments that the kernel reads.
func (x *recorder) launched(kind string, fn *fakeFunction, a unsafe.Pointer, grid string) {
	hasMaps := fn.hasMaps()
	whole := (*struct {
		mapped
		features
	})(a)
	var read []byte
	var p *params
	switch {
	case fn.name == sumName(sumCarry): // reads neither tiles nor maps
		own := *whole
		own.maps, own.rows, own.splits, own.skew, own.pageBox, own.rowSlots = [4]TensorMap{}, rowTiles{}, 1, 0, 0, 0
		p, read = &own.params, unsafe.Slice((*byte)(unsafe.Pointer(&own)), unsafe.Sizeof(own))
	case isFeatured(fn.name):
		p, read = &whole.params, unsafe.Slice((*byte)(a), unsafe.Sizeof(*whole))
	case hasMaps:
		p, read = &whole.params, unsafe.Slice((*byte)(a), unsafe.Sizeof(whole.mapped))
	default:
		p, read = (*params)(a), unsafe.Slice((*byte)(a), unsafe.Sizeof(params{}))
	}
	fmt.Fprintf(x.launches, "    %s %s %s %x\n", kind, fn.name, grid, hashOf(read))
	if x.details == io.Discard {
		return
	}
	fmt.Fprintf(x.details, "      %+v", *p)
	if hasMaps {
		fmt.Fprintf(x.details, " %+v", whole.rows)
	}
	if isFeatured(fn.name) {
		fmt.Fprintf(x.details, " %+v", whole.features)
	}
	fmt.Fprintln(x.details)
}

// record draws a call, and records the backend's launches or its refusal.
func (x *recorder) record(r *rand.Rand) {
	p, pass := drawCall(r)
	b := x.b
	b.eager, x.captures = r.IntN(16) == 0, r.IntN(8) == 0
	args := x.drawTensors(&p, pass, r)
	o := Options{Nondeterministic: r.IntN(8) == 0, Beside: r.IntN(8) == 0}
	if r.IntN(8) == 0 {
		o.Spare = r.IntN(b.dev.SMs / 2)
	}
	if r.IntN(8) == 0 {
		w := p
		w.Batch, w.KVHeads, w.Heads = p.Batch*(1+r.IntN(2)), p.KVHeads*(1+r.IntN(3)), 0
		w.Heads = p.Heads / p.KVHeads * w.KVHeads
		w.QLen, w.KVLen = p.QLen+128*r.IntN(5), p.KVLen+128*r.IntN(5)
		o.PartOf = &w
	}
	for _, traits := range [...]flashkit.Traits{{}, {Device: true}, {Device: true, Loose: true}} {
		c := p.Ask(pass)
		c.Traits = traits
		for _, paired := range [...]bool{false, true} {
			if id, err := b.choose("", c, paired); err == nil {
				fmt.Fprintf(x.choices, "  %+v %v: %s\n", traits, paired, families[id].name)
			} else {
				fmt.Fprintf(x.launches, "  %+v %v: %v\n", traits, paired, err)
			}
		}
	}
	if k, err := b.Pick(p, pass); err == nil {
		fmt.Fprintf(x.choices, "  pick %s\n", k.Name)
	} else {
		fmt.Fprintf(x.launches, "  pick %v\n", err)
	}
	n, err := b.Workspace(p, pass, "")
	fmt.Fprintf(x.choices, "  workspace %d %v\n", n, err)
	fmt.Fprintf(x.launches, "%v %v on %d.%d with %d, eager %v, captures %v, %v, part of %v\n", pass, p, b.dev.Major, b.dev.Minor, b.dev.SMs, b.eager, x.captures, o, o.PartOf)
	for _, k := range b.Kernels() {
		if k.Pass == pass {
			x.run(&k, p, args, o)
		}
	}
}

// run records a kernel's launches for a call.
func (x *recorder) run(k *flashkit.Kernel, p flashkit.Problem, args *flashkit.Args, o Options) {
	b, host := x.b, p.Ask(k.Pass)
	device := p.Ask(k.Pass)
	device.Traits.Device = true
	fmt.Fprintf(x.launches, "  %s: missing %q, host %q, device %q\n", k.Name, k.Missing(), k.Fits(host), k.Fits(device))
	if k.Fits(device) == "" {
		fmt.Fprintf(x.choices, "  cost %d\n", k.Cost(device))
		n, err := b.Workspace(p, k.Pass, k.Name)
		fmt.Fprintf(x.launches, "    workspace %d %v\n", n, err)
	}
	b.args = sync.Pool{New: func() any { return new(arguments) }} // without state of earlier calls
	x.s = &Stream{b: b, handle: 1}
	o.Kernel = k.Name
	if err := b.Launch(context.Background(), x.s, p, k.Pass, args, o); err != nil {
		fmt.Fprintf(x.launches, "    error %v\n", err)
	}
}
