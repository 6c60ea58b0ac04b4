package dispatch

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flashkit-go/flashkit"
)

// A choice restricts dispatch. "" admits all kernels. The name of a backend admits the backend's
// kernels. The full name of a kernel admits this kernel and the kernel of the same variant in the
// other pass.
type choice string

// auto is the name of the choice that admits all kernels.
const auto = "auto"

func (c choice) isAuto() bool { return c == "" }

func (c choice) String() string {
	if c.isAuto() {
		return auto
	}
	return string(c)
}

// admits reports whether the choice allows k. The choice simd/fwd_avx2 admits simd/fwd_avx2 and
// simd/bwd_avx2.
func (c choice) admits(k *flashkit.Kernel) bool {
	backend, kernel, named := strings.Cut(string(c), "/")
	owner, stem, _ := strings.Cut(k.Name, "/")
	switch {
	case c.isAuto():
		return true
	case !named || backend != owner || kernel == stem:
		return backend == owner
	}
	// The variant selects kernels of the other pass only: decode_avx2 admits bwd_avx2 and
	// bwd_decode_avx2, but not fwd_avx2. bwd_fewkeys_avx2 sums scores as fwd_avx2 does, and admits it.
	if "bwd_"+kernel == stem || "bwd_"+stem == kernel {
		return true
	}
	pass, variant, _ := strings.Cut(strings.Replace(kernel, "bwd_fewkeys_", "bwd_", 1), "_")
	otherPass, otherVariant, _ := strings.Cut(stem, "_")
	return variant == otherVariant && (pass == "bwd") != (otherPass == "bwd") && (otherPass == "fwd" || otherPass == "bwd")
}

// With returns a Dispatcher restricted to name. name is "auto" for every kernel, a backend such as
// "simd", or a kernel such as "simd/fwd_generic". A kernel's name also admits the kernel of the
// same variant in the other pass, such as simd/bwd_generic for simd/fwd_generic. The error is a
// *flashkit.ProblemError for an unknown name or an unopened backend. The error wraps
// flashkit.ErrUnavailable if this machine cannot run the backend or kernel.
func (d *Dispatcher) With(name string) (*Dispatcher, error) {
	if name == auto {
		name = ""
	}
	backend, _, _ := strings.Cut(name, "/")
	for _, m := range d.missing {
		if backend == m.Backend {
			return nil, fmt.Errorf("backend %s requested: %w", name, m.Err)
		}
	}
	if slices.Contains(d.unopened, backend) {
		return nil, &flashkit.ProblemError{Field: "backend", Value: name, Reason: "was not opened: the Dispatcher was opened for " + d.opened}
	}
	if name != "" && !d.hasName(name) {
		return nil, noSuchName(name, d.names())
	}
	for _, k := range d.memory.kernels {
		if reason := missingReason(k); name == k.Name && reason != "" {
			return nil, fmt.Errorf("kernel %s requested: %w: %s", name, flashkit.ErrUnavailable, reason)
		}
	}
	c := *d
	c.choice = choice(name)
	c.setMemory(d.memory)
	return &c, nil
}

func noSuchName(name string, backends []string) error {
	return &flashkit.ProblemError{Field: "backend", Value: name, Reason: "must be auto, one of " + strings.Join(backends, ", ") + ", or a kernel of them, such as simd/fwd_generic"}
}

// missingReason returns the reason why this machine cannot run k. It returns "" if the machine can
// run k.
func missingReason(k flashkit.Kernel) string {
	if k.Missing == nil {
		return ""
	}
	return k.Missing()
}

func (d *Dispatcher) hasName(name string) bool {
	for _, b := range d.backends {
		if name == b.Name() {
			return true
		}
	}
	for _, k := range d.memory.kernels {
		if name == k.Name {
			return true
		}
	}
	return false
}

// names returns the names of all backends, including missing and unopened ones.
func (d *Dispatcher) names() (list []string) {
	for _, b := range d.backends {
		list = append(list, b.Name())
	}
	for _, m := range d.missing {
		list = append(list, m.Backend)
	}
	return append(list, d.unopened...)
}

// Choices returns every name that With accepts, and the names of missing backends, for which With
// returns an error.
func (d *Dispatcher) Choices() []string {
	names := []string{auto}
	for _, b := range d.backends {
		names = append(names, b.Name())
		for _, k := range b.Kernels() {
			names = append(names, k.Name)
		}
	}
	for _, m := range d.missing {
		names = append(names, m.Backend)
	}
	return names
}
