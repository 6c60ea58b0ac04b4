// Package mutants proves that the conformance suite can fail. It has a small, slow attention kernel
// for each pass. It also has one common mistake for each trap, with the trap's name. A mutant is a
// kernel with one mistake. The trap with the mistake's name must catch the mutant. The kernel
// without a mistake must pass every case.
//
// Read kernel.go, then faults.go, then mistakes.go. Features have their own files.
package mutants

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/flashkit-go/flashkit"
)

// mistakes has one mistake for each trap and long case, in the order of the traps.
var mistakes = slices.Concat(denseMistakes, featureMistakes, dropoutMistakes, sequenceMistakes, carryMistakes, rangesMistakes, int8Mistakes, statsMistakes, edgeMistakes, rangeMistakes, longMistakes)

// A mistake is a named change of one step of the kernels.
type mistake struct {
	name string
	make func(s *faults)
}

// Names returns the names that New accepts, in the order of the traps.
func Names() []string {
	names := make([]string, len(mistakes))
	for i, m := range mistakes {
		names[i] = m.name
	}
	return names
}

// New returns a backend whose kernels make the named mistake. For "" the kernels are correct.
func New(mistake string) (flashkit.Backend, error) {
	if mistake == "" {
		return &backend{"correct", correct()}, nil
	}
	for _, m := range mistakes {
		if m.name == mistake {
			s := correct()
			m.make(&s)
			return &backend{m.name, s}, nil
		}
	}
	return nil, fmt.Errorf("mutants: there is no mistake %q", mistake)
}

type backend struct {
	variant string
	faults  faults
}

func (b *backend) Name() string { return "mutant" }

func (b *backend) Close() error { return nil }

func (b *backend) Kernels() []flashkit.Kernel {
	kernel := func(name string, pass flashkit.Pass, takes flashkit.Feature, run func(*call, context.Context) error) flashkit.Kernel {
		return flashkit.Kernel{
			Name: "mutant/" + name + "_" + b.variant, About: "a plain kernel with one mistake", Pass: pass, Takes: takes,
			DTypes: []flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16},
			Cost:   func(c *flashkit.Call) time.Duration { return time.Duration(c.FLOPs()) },
			Run: func(ctx context.Context, c *flashkit.Call) error {
				return run(newCall(b.faults, c), ctx)
			},
		}
	}
	return []flashkit.Kernel{
		kernel("fwd", flashkit.PassForward, flashkit.AllFeatures, (*call).forward),
		kernel("bwd", flashkit.PassBackward, flashkit.AllFeatures&^flashkit.ForwardFeatures, (*call).backward),
	}
}
