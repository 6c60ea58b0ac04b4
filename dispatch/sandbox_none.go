//go:build nowasm

package dispatch

import (
	"context"
	"fmt"

	"github.com/flashkit-go/flashkit"
)

func openSandbox(context.Context, bool) (flashkit.Backend, error) {
	return nil, fmt.Errorf("%w: this program was built with the tag nowasm", flashkit.ErrUnavailable)
}
