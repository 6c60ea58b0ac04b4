package cuda_test

import (
	"errors"
	"fmt"
	"testing"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/conformance"
)

func TestConformance(t *testing.T) {
	b, err := cuda.Open()
	if err != nil {
		conformance.Unavailable(t, "cuda", err)
	}
	conformance.Run(t, b)
}

func ExampleOpen() {
	b, err := cuda.Open()
	if errors.Is(err, flashkit.ErrUnavailable) {
		return // use another backend, and say so
	}
	fmt.Println(b.Name(), err)
}
