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
)

// driverLimit bounds the wait for the GPU's driver, unless the caller requested the GPU by name.
const driverLimit = 5 * time.Second

type opener struct {
	backend string
	open    func(ctx context.Context, asked bool) (flashkit.Backend, error)
}

// openers lists the backends in the order in which a Dispatcher holds them.
var openers = []opener{
	{"cuda", openCUDA},
	{"simd", func(context.Context, bool) (flashkit.Backend, error) { return simd.New(), nil }},
	{"wasm", openSandbox},
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

// Default returns a Dispatcher over every backend that this machine can run. FLASHKIT_BACKEND may
// name a backend or a kernel, as in With. Default then opens no other backend. Default returns an
// error if the named backend or kernel is unavailable, or if the GPU that FLASHKIT_DEVICE requests
// is unavailable. Close the Dispatcher when done.
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

// noDevice returns an error if FLASHKIT_DEVICE requests a GPU that this machine cannot use.
// Otherwise it returns nil.
func (d *Dispatcher) noDevice() error {
	device := os.Getenv(cuda.DeviceVariable)
	for _, m := range d.missing {
		if device != "" && m.Backend == "cuda" {
			return fmt.Errorf("%s=%s: %w", cuda.DeviceVariable, device, m.Err)
		}
	}
	return nil
}

// All returns a Dispatcher over every backend that this machine can run, with the same GPU as
// cuda.Open. All ignores FLASHKIT_BACKEND. The GPU is missing if its driver does not answer within
// five seconds, or before ctx ends.
//
// All loads this machine's profile, which flashrun calibrate writes. FLASHKIT_PROFILE names another
// file, or no file if it is "off". All ignores an unusable profile; ProfileErr returns the reason.
func All(ctx context.Context) *Dispatcher { return open(ctx, []string{auto}) }

// Open is like All, but its Dispatcher has the named backends only. The name auto opens every
// backend. The name of a kernel such as simd/fwd_generic opens the kernel's backend; it does not
// restrict the kernels, as With does. The driver of a GPU requested by name may take a minute to
// answer. The error is a *flashkit.ProblemError if a name has an unknown backend. Missing returns
// the backends that this machine cannot run.
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
