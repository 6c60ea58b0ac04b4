package bench

import (
	"context"

	"github.com/flashkit-go/flashkit/dispatch"
)

// Open opens the backends that a choice needs, and no other. It returns a dispatcher over
// all their kernels, which the caller closes, and one that is restricted to the choice.
func Open(ctx context.Context, name string) (opened, chosen *dispatch.Dispatcher, err error) {
	if opened, err = dispatch.Open(ctx, name); err != nil {
		return nil, nil, err
	}
	if chosen, err = opened.With(name); err != nil {
		opened.Close()
		return nil, nil, err
	}
	return opened, chosen, nil
}
