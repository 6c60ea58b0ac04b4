package main

// #include "abi.h"
import "C"

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"sync"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/dispatch"
)

// A session is the object behind an fk_dispatcher: the dispatcher, and the GPUs whose memory holds
// tensors of calls. The first call with tensors on a GPU opens this GPU.
type session struct {
	*dispatch.Dispatcher
	paired   bool // FK_OPEN_PAIRED, for calls with GPU tensors; Dispatcher has its own setting for other calls
	unpaired bool
	anyOrder bool // dQ of GPU tensors may be summed in any order

	mu      sync.Mutex
	devices map[C.int32_t]*device
}

// A device is a GPU whose memory holds tensors of calls.
type device struct {
	number  C.int32_t // FK_CUDA + n
	backend *cuda.Backend
	memory  *cuda.Buffer // a buffer over all device memory, because the C program owns the tensors' memory
}

// wrap sets *b to a buffer of the given size and address. If *b already is this buffer, wrap keeps
// it and does not allocate.
func (d *device) wrap(b **cuda.Buffer, at uintptr, bytes int) {
	if x := *b; x == nil || x.Backend() != d.backend || x.Address() != cuda.Pointer(at) || x.Bytes() != bytes {
		*b = d.backend.Wrap(cuda.Pointer(at), bytes)
	}
}

func open(backend *C.char, flags C.uint32_t) (*session, error) {
	if flags&^(C.FK_OPEN_FROZEN|C.FK_OPEN_PAIRED|C.FK_OPEN_BLANK|C.FK_OPEN_ANY_ORDER|C.FK_OPEN_UNPAIRED) != 0 {
		return nil, wrong(C.FK_ERR_VALUE, "flags", uint32(flags), "has bits that this library does not know")
	}
	const both = C.FK_OPEN_PAIRED | C.FK_OPEN_UNPAIRED
	if flags&both == both {
		return nil, wrong(C.FK_ERR_VALUE, "flags", uint32(flags), "has FK_OPEN_PAIRED and FK_OPEN_UNPAIRED, of which one excludes the other")
	}
	d, err := choose(backend)
	if err != nil {
		return nil, err
	}
	if flags&C.FK_OPEN_BLANK != 0 {
		d = d.Blank()
	}
	if flags&C.FK_OPEN_PAIRED != 0 {
		d = d.Paired()
	}
	if flags&C.FK_OPEN_UNPAIRED != 0 {
		d = d.Unpaired()
	}
	if flags&C.FK_OPEN_FROZEN != 0 {
		d = d.Frozen()
	}
	return &session{Dispatcher: d, paired: flags&C.FK_OPEN_PAIRED != 0, unpaired: flags&C.FK_OPEN_UNPAIRED != 0, anyOrder: flags&C.FK_OPEN_ANY_ORDER != 0}, nil
}

// choose opens the backends for a value of FLASHKIT_BACKEND. It returns a dispatcher that uses only
// the backend or kernel that the value names.
func choose(backend *C.char) (*dispatch.Dispatcher, error) {
	name := C.GoString(backend)
	opened, err := dispatch.Open(context.Background(), name)
	if err != nil {
		return nil, err
	}
	chosen, err := opened.With(name)
	if err != nil {
		return nil, errors.Join(err, opened.Close())
	}
	return chosen, nil
}

func (s *session) close() error {
	err := s.Close()
	for _, d := range s.devices {
		err = errors.Join(err, d.backend.Close())
	}
	return err
}

// gpu returns the device with the given number. The first use of a device opens the device.
func (s *session) gpu(number C.int32_t) (*device, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if d := s.devices[number]; d != nil {
		return d, nil
	}
	if !s.has("cuda/") {
		for _, m := range s.Missing() {
			if m.Backend == "cuda" {
				return nil, m.Err
			}
		}
		return nil, &failure{C.FK_ERR_UNSUPPORTED, "q.device", "flashkit: q.device: the dispatcher was restricted to other backends than cuda"}
	}
	b, err := cuda.OpenDevice(int(number - C.FK_CUDA))
	if err != nil {
		return nil, err
	}
	if s.devices == nil {
		s.devices = make(map[C.int32_t]*device)
	}
	d := &device{number, b, b.Wrap(0, math.MaxInt)}
	s.devices[number] = d
	return d, nil
}

func (s *session) has(prefix string) bool {
	for _, k := range s.Kernels() {
		if strings.HasPrefix(k.Name, prefix) {
			return true
		}
	}
	return false
}

// kernel returns the name of the dispatcher's cuda kernel for a pass, or "" if the number of such
// kernels is not 1.
func (s *session) kernel(pass flashkit.Pass) (name string) {
	n := 0
	for _, k := range s.Kernels() {
		if k.Pass == pass && strings.HasPrefix(k.Name, "cuda/") {
			name, n = k.Name, n+1
		}
	}
	if n != 1 {
		return ""
	}
	return name
}

// options returns the options of a pass on GPU tensors.
func (s *session) options(pass flashkit.Pass) cuda.Options {
	return cuda.Options{Kernel: s.kernel(pass), Paired: s.paired, Unpaired: s.unpaired, Nondeterministic: s.anyOrder}
}

func (d *device) launch(ctx context.Context, p flashkit.Problem, pass flashkit.Pass, args *flashkit.Args, o cuda.Options, stream uintptr) error {
	return d.backend.Launch(ctx, d.backend.WrapStream(cuda.StreamHandle(stream)), p, pass, args, o)
}

// A ticket is the object behind an fk_cancel: a context, and the function that cancels it.
type ticket struct {
	ctx context.Context
	now context.CancelFunc
}

var (
	sessions = table[*session]{kind: kindDispatcher}
	tickets  = table[ticket]{kind: kindCancel}
	caches   = table[*cache]{kind: kindCache}
)

// limits returns a context that ends when the call is canceled or its timeout is over. held is the
// entry of the cancellation handle. If held is not nil, the caller must release it. If stop is not
// nil, the caller must call it.
func limits(a *C.fk_args) (ctx context.Context, held *entry[ticket], stop context.CancelFunc, err error) {
	ctx = context.Background()
	if a.timeout_ns < 0 {
		return nil, nil, nil, wrong(C.FK_ERR_VALUE, "timeout_ns", a.timeout_ns, "must not be negative; 0 is no limit")
	}
	if number := word(&a.cancel); number != 0 {
		if held = tickets.hold(number); held == nil {
			return nil, nil, nil, stale("cancel", number)
		}
		ctx = held.value.ctx
	}
	if a.timeout_ns > 0 {
		ctx, stop = context.WithTimeout(ctx, duration(a.timeout_ns))
	}
	return ctx, held, stop, nil
}

// stale returns the error for a handle that is NULL, is not open or has the wrong type.
func stale(field string, handle uintptr) error {
	want, text := "fk_cancel", "is closed, or was never open"
	switch field {
	case "d":
		want = "fk_dispatcher"
	case "cache":
		want = "fk_cache"
	}
	switch {
	case handle == 0:
		return &failure{C.FK_ERR_NULL, field, fmt.Sprintf("flashkit: %s: is NULL", field)}
	case kindOf(handle) == kindDispatcher && sessions.holds(handle):
		text = "is an fk_dispatcher, and must be an " + want
	case kindOf(handle) == kindCancel && tickets.holds(handle):
		text = "is an fk_cancel, and must be an " + want
	case kindOf(handle) == kindCache && caches.holds(handle):
		text = "is an fk_cache, and must be an " + want
	}
	return &failure{C.FK_ERR_HANDLE, field, fmt.Sprintf("flashkit: %s: %s", field, text)}
}
