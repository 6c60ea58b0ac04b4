package cuda

import (
	"errors"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/fastest"
)

// choose returns the family of the given name. For "" it returns the family that is predicted
// fastest. paired means that a backward pass follows. choose then excludes decode kernels, unless
// the name is theirs, because they sum scores in another order than backward kernels do.
func (b *Backend) choose(name string, c *flashkit.Call, paired bool) (familyID, error) {
	x := fastest.Subject{Problem: c.Problem, Pass: c.Pass, Traits: c.Traits, Paired: paired && c.Features()&flashkit.ForwardFeatures == 0}
	if name == "" {
		if id, ok := b.choices.Find(&x); ok {
			return id, nil
		}
	}
	id := b.fastest(name, c, name == "" && x.Paired)
	if id < 0 {
		return id, b.refusals(name, c)
	}
	if name == "" {
		b.choices.Keep(&x, id)
	}
	return id, nil
}

// fastest returns the family that is predicted fastest for a call, or -1 if no family supports the
// call. A name restricts the choice to that family; withoutDecode excludes decode kernels.
func (b *Backend) fastest(name string, c *flashkit.Call, withoutDecode bool) familyID {
	return familyID(fastest.Least(numKernels, func(i int) (time.Duration, bool) {
		s := &families[i]
		if withoutDecode && s.rows > 0 || !s.named(name, c.Pass) || s.refuses(&b.dev, c) != none {
			return 0, false
		}
		return s.callCost(&b.dev, c), true
	}))
}

func (s *family) named(name string, pass flashkit.Pass) bool {
	return s.pass == pass && (name == "" || name == "cuda/"+s.name)
}

// refusals returns why the family of the given name cannot run the call. For "" it returns the
// reasons of all families.
func (b *Backend) refusals(name string, c *flashkit.Call) error {
	var reasons []error
	for i := range numKernels {
		if s := &families[i]; s.named(name, c.Pass) {
			reasons = append(reasons, &flashkit.UnsupportedError{Kernel: "cuda/" + s.name, Problem: c.Problem, Reason: s.reason(&b.dev, c)})
		}
	}
	if reasons == nil {
		return &flashkit.ProblemError{Field: "Kernel", Value: name, Reason: "is not a " + c.Pass.String() + " kernel of cuda"}
	}
	return errors.Join(reasons...)
}
