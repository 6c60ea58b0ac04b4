package dispatch

import (
	"context"
	"os"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/backends/wasm"
)

// Default returns a Dispatcher over every backend that this machine can run,
// restricted to what the environment variable FLASHKIT_BACKEND names, if it is
// set: auto, a backend, or a kernel, as With takes it. An explicit choice that
// is unavailable is an error. Close the Dispatcher when done.
func Default(ctx context.Context) (*Dispatcher, error) {
	d := All(ctx)
	name, set := os.LookupEnv("FLASHKIT_BACKEND")
	if !set || name == "" {
		return d, nil
	}
	chosen, err := d.With(name)
	if err != nil {
		d.Close()
		return nil, err
	}
	return chosen, nil
}

// All returns a Dispatcher over every backend that this machine can run,
// whatever FLASHKIT_BACKEND says. It loads the profile of this machine, if
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
