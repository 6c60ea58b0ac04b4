package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
)

func Example() {
	if err := run(context.Background(), os.Stdout, "b1-h4-g2-n9-m12-d16-f32-causal"); err != nil {
		fmt.Println(err)
	}
	// Output:
	// b1-h4-g2-n9-m12-d16-f32-causal
	// dq: 24 elements agree with the slope of the loss
	// dk: 24 elements agree with the slope of the loss
	// dv: 24 elements agree with the slope of the loss
}

func TestProblems(t *testing.T) {
	for _, name := range []string{
		"b2-h2-g1-n5-m7-d8-dv4-f32",
		"b1-h2-g2-n12-m5-d8-f32-causal", // rows that see no key
		"b1-h2-g1-n20-m20-d16-f32-window3.1-scale0.5",
	} {
		require.NoError(t, run(t.Context(), io.Discard, name), name)
	}
	require.ErrorContains(t, run(t.Context(), io.Discard, "b1-h2-g1-n5-m7-d8-bf16"), "use f32")
	require.Error(t, run(t.Context(), io.Discard, "b1"))
}

// A wrong is an attention with a wrong gradient of K.
type wrong struct{ *dispatch.Dispatcher }

func (w wrong) Backward(ctx context.Context, p flashkit.Problem, b *flashkit.Args) error {
	err := w.Dispatcher.Backward(ctx, p, b)
	for i := range b.DK.Float32s() {
		b.DK.Float32s()[i] *= 1.2
	}
	return err
}

func TestWrongGradient(t *testing.T) {
	p, err := flashkit.ParseProblem("b1-h2-g1-n5-m7-d8-f32")
	require.NoError(t, err)
	d := dispatch.New(simd.New())
	defer d.Close()
	var out strings.Builder
	require.ErrorContains(t, check(t.Context(), &out, wrong{d}, p), "dk is off")
	require.Contains(t, out.String(), "dq: ")
}
