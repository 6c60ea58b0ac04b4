package dispatch

import (
	"cmp"
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/backends/wasm"
)

// driverLimit is how long the GPU's driver may take to answer if no one asked for the GPU by name.
const driverLimit = 5 * time.Second

// An opener opens a backend.
type opener struct {
	backend string
	open    func(ctx context.Context, asked bool) (flashkit.Backend, error)
}

// openers are the backends in the order of a Dispatcher.
var openers = []opener{
	{"cuda", openCUDA},
	{"simd", func(context.Context, bool) (flashkit.Backend, error) { return simd.New(), nil }},
	{"wasm", func(ctx context.Context, _ bool) (flashkit.Backend, error) {
		b, err := wasm.New(ctx)
		if err != nil {
			return nil, err
		}
		return b, nil
	}},
}

func openCUDA(ctx context.Context, asked bool) (flashkit.Backend, error) {
	if !asked {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, driverLimit)
		defer cancel()
	}
	b, err := cuda.OpenContext(ctx)
	if err != nil {
		return nil, err
	}
	return b, nil
}

// Default returns a Dispatcher over every backend that this machine can run, or over the one
// that the environment variable FLASHKIT_BACKEND names, if it is set: auto, a backend, or a
// kernel, as With takes it. No other backend is opened. An explicit choice that
// is unavailable is an error, also of a GPU by FLASHKIT_DEVICE. Close the Dispatcher when done.
func Default(ctx context.Context) (*Dispatcher, error) {
	name := cmp.Or(os.Getenv("FLASHKIT_BACKEND"), auto)
	d, err := Open(ctx, name)
	if err != nil {
		return nil, err
	}
	chosen, err := d.With(name)
	if err == nil && name == auto {
		err = d.noDevice()
	}
	if err != nil {
		d.Close()
		return nil, err
	}
	return chosen, nil
}

// noDevice returns why there is no GPU where FLASHKIT_DEVICE asks for one.
func (d *Dispatcher) noDevice() error {
	device := os.Getenv(cuda.DeviceVariable)
	for _, m := range d.missing {
		if device != "" && m.Backend == "cuda" {
			return fmt.Errorf("%s=%s: %w", cuda.DeviceVariable, device, m.Err)
		}
	}
	return nil
}

// All returns a Dispatcher over every backend that this machine can run,
// whatever FLASHKIT_BACKEND says, with the GPU that cuda.Open opens. A driver that does not
// answer within five seconds, or before the context ends, is left out. All loads the profile of this machine, if
// flashrun calibrate has written one, or the one that FLASHKIT_PROFILE names, or
// none if that is "off". A profile that cannot be used is ignored; ProfileErr
// says why.
func All(ctx context.Context) *Dispatcher { return open(ctx, []string{auto}) }

// Open is All over the backends that the names need, and opens no other: auto stands for
// every backend, a kernel such as simd/fwd_generic for its backend. Which kernels run is
// what With says. The driver of a GPU that is named may take a minute to answer. The error
// is a *flashkit.ProblemError if there is no such backend; one that this machine cannot run is
// among those that are Missing.
func Open(ctx context.Context, names ...string) (*Dispatcher, error) {
	for _, name := range names {
		backend, _, _ := strings.Cut(name, "/")
		if name != auto && !slices.ContainsFunc(openers, func(o opener) bool { return o.backend == backend }) {
			return nil, noSuchName(name, []string{"simd", "wasm", "cuda"})
		}
	}
	return open(ctx, names), nil
}

func open(ctx context.Context, names []string) *Dispatcher {
	var opened []flashkit.Backend
	var missing []Missing
	var unopened []string
	for _, o := range openers {
		asked := slices.ContainsFunc(names, func(name string) bool { return name == o.backend || strings.HasPrefix(name, o.backend+"/") })
		if !asked && !slices.Contains(names, auto) {
			unopened = append(unopened, o.backend)
			continue
		}
		if b, err := o.open(ctx, asked); err == nil {
			opened = append(opened, b)
		} else {
			missing = append(missing, Missing{o.backend, err})
		}
	}
	d := New(opened...)
	d.missing, d.unopened, d.opened = missing, unopened, strings.Join(names, ", ")
	d.profileErr = d.loadDefault()
	return d
}
