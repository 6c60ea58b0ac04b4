package dispatch

import (
	"cmp"
	"context"
	"fmt"
	"os"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/backends/wasm"
)

// Default returns a Dispatcher over every backend that this machine can run,
// restricted to what the environment variable FLASHKIT_BACKEND names, if it is
// set: auto, a backend, or a kernel, as With takes it. An explicit choice that
// is unavailable is an error, that of a GPU by FLASHKIT_DEVICE too. Close the Dispatcher when done.
func Default(ctx context.Context) (*Dispatcher, error) {
	d := All(ctx)
	name := cmp.Or(os.Getenv("FLASHKIT_BACKEND"), "auto")
	chosen, err := d.With(name)
	if err == nil && name == "auto" {
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
// whatever FLASHKIT_BACKEND says, with the GPU that cuda.Open opens. It loads the profile of this machine, if
// flashrun calibrate has written one, or the one that FLASHKIT_PROFILE names, or
// none if that is "off". A profile that cannot be used is ignored; ProfileErr
// says why.
func All(ctx context.Context) *Dispatcher {
	var open []flashkit.Backend
	var missing []Missing
	if b, err := cuda.Open(); err == nil {
		open = append(open, b)
	} else {
		missing = append(missing, Missing{"cuda", err})
	}
	open = append(open, simd.New())
	if b, err := wasm.New(ctx); err == nil {
		open = append(open, b)
	} else {
		missing = append(missing, Missing{"wasm", err})
	}
	d := New(open...)
	d.missing = missing
	d.profileErr = d.loadDefault()
	return d
}
