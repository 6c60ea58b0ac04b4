//go:build !nowasm

package dispatch

import (
	"context"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/wasm"
)

func openSandbox(ctx context.Context, _ bool) (flashkit.Backend, error) {
	b, err := wasm.New(ctx)
	if err != nil {
		return nil, err
	}
	return b, nil
}
