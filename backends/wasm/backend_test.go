package wasm_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/wasm"
	"github.com/flashkit-go/flashkit/conformance"
)

func TestConformance(t *testing.T) {
	b, err := wasm.New(context.Background())
	if err != nil {
		conformance.Unavailable(t, "wasm", err)
	}
	conformance.Run(t, b)
}

func ExampleNew() {
	b, err := wasm.New(context.Background())
	if errors.Is(err, flashkit.ErrUnavailable) {
		return // use another backend, and say so
	}
	fmt.Println(b.Name(), err)
}
