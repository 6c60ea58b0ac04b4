package mine

import (
	"fmt"
	"log"
	"os"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/conformance"
	"github.com/flashkit-go/flashkit/dispatch"
)

// This test checks everything that flashkit requires of a backend.
func TestConformance(t *testing.T) { conformance.Run(t, New()) }

// A new backend works together with flashkit's own.
func Example() {
	d := dispatch.New(New(), simd.New())
	defer d.Close()
	p, err := flashkit.ParseProblem("b1-h8-g2-n128-m512-d64-f32-causal")
	if err != nil {
		log.Fatal(err)
	}
	only, err := d.With("mine/fwd_plain")
	if err != nil {
		log.Fatal(err)
	}
	k, err := only.Pick(p, flashkit.PassForward)
	fmt.Println(k.Name, err)

	p.DType = flashkit.BFloat16
	_, err = only.Pick(p, flashkit.PassForward)
	fmt.Println(err)
	// Output:
	// mine/fwd_plain <nil>
	// mine/fwd_plain: does not support b1-h8-g2-n128-m512-d64-bf16-causal: takes f32 only
}

// The backend declares no features, so it gets no problem with features.
func TestRefusesFeatures(t *testing.T) {
	k := New().Kernels()[0]
	for name, said := range map[string]string{
		"shift1": "shift", "softcap30": "softcap", "alibi": "alibi", "bias": "bias", "mask": "mask", "sink": "sink",
		"dropout0.5": "dropout", "ragged": "ragged", "ragged-page16": "ragged,page", "carry": "carry", "kvbf16": "mixed",
	} {
		p, err := flashkit.ParseProblem("b1-h8-g2-n2-m3-d4-f32-" + name)
		require.NoError(t, err)
		args := flashkit.NewArgs(p, flashkit.PassForward)
		require.EqualError(t, k.Compute(t.Context(), p, args), "mine/fwd_plain: does not support "+p.String()+": does not support "+said)
	}
}

// docs/library.md prints the whole backend.
func TestPage(t *testing.T) {
	guide, err := os.ReadFile("../../docs/library.md")
	require.NoError(t, err)
	code, err := os.ReadFile("mine.go")
	require.NoError(t, err)
	require.Contains(t, string(guide), "```go\n"+string(code)+"```\n")
}
