package main

import (
	"bytes"
	"cmp"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/backends/wasm"
	"github.com/flashkit-go/flashkit/internal/bench"
)

// docs/kernels.md and the matrix of README.md match the kernels, and are the same on every machine.
// make docs writes them.
func TestDocsOfKernels(t *testing.T) {
	kernels := everyKernel(t)
	readme := docText(t, "../../README.md")
	for name, want := range map[string]string{
		"../../docs/kernels.md": kernelsPage(kernels),
		"../../README.md":       replaceMarked(t, readme, kernelMatrix(kernels)),
	} {
		if *writeDocs {
			require.NoError(t, os.WriteFile(name, []byte(want), 0o644))
		}
		require.Equal(t, want, docText(t, name), "%s is not what the kernels say: make docs", name)
	}
}

// everyKernel returns the kernels of all backends, including unavailable ones.
func everyKernel(t *testing.T) (list []flashkit.Kernel) {
	sandbox, err := wasm.New(t.Context())
	require.NoError(t, err)
	t.Cleanup(func() { sandbox.Close() })
	cpu := simd.New()
	t.Cleanup(func() { cpu.Close() })
	for _, b := range []flashkit.Backend{cpu, new(cuda.Backend), sandbox} {
		require.NotEmpty(t, b.Kernels(), b.Name())
		for _, k := range b.Kernels() {
			require.NotEmpty(t, k.About, k.Name)
			require.NotEmpty(t, k.DTypes, k.Name)
			list = append(list, k)
		}
	}
	return list
}

const kernelsIntro = `<!-- Made by make docs from the kernels themselves. -->
# Kernels

All kernels of all backends, including kernels that your machine lacks. ` + "`flashrun list`" + ` shows the kernels of your machine.
` + "`flashrun explain PROBLEM`" + ` shows the chosen kernel and why the others were not chosen. A dispatcher runs the fastest prediction.

- *Forward* kernels write O and LSE, *backward* kernels dQ, dK and dV. *Decode* kernels are forward kernels for few query rows.
- *Head dims* is the largest Dim and VDim. *Rows* is the most query rows for each KV head: Heads / KVHeads * QLen.
- *Features* extend dense attention in a band: softcap, alibi, bias, mask, ranges, sink, dropout, ragged (padded and packed
  sequences), page, carry, mixed (K and V in f16 or bf16 with an f32 Q), int8group (K and V in int8 with scales), rowmax, keymass.
  A kernel refuses features that it does not list. Kernels for bf16 alone have no mixed types, as their Q is bf16. Paged K and V,
  carry, mixed types, int8, rowmax and keymass have no backward pass.
- All kernels support every band, GQA ratio and stride, with one exception: ` + "`fwd_sm90`, `fwd_sm90_short`, `fwd_sm90_wide` and `bwd_sm90`" + ` need
  16-byte aligned rows of device tensors.
- CUDA kernels need a driver of CUDA 13.0 or later, on Linux or on Windows with amd64. The stated bound is for device tensors;
  the bus bounds calls on host tensors.
- [Limits](limits.md) lists sizes, platforms, and the error of each refused call.
`

// kernelsPage returns docs/kernels.md.
func kernelsPage(kernels []flashkit.Kernel) string {
	var b strings.Builder
	b.WriteString(kernelsIntro)
	backend := ""
	for _, k := range kernels {
		if name := bench.BackendOf(k.Name); name != backend {
			backend = name
			fmt.Fprintf(&b, "\n## %s\n\n| kernel | pass | dtypes | method; limit of its speed | features | head dims | rows | requires |\n|---|---|---|---|---|---|---|---|\n", backend)
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s | %s | %s | %s | %s |\n", k.Name, k.Pass, strings.Join(typeNames(k), " "),
			k.About, featuresCell(k), limitCell(k.MaxDim), limitCell(k.MaxRows), platformOf(k))
	}
	return b.String()
}

// featuresCell lists a kernel's features beyond bands, which all kernels support.
func featuresCell(k flashkit.Kernel) string {
	const all = flashkit.AllFeatures &^ flashkit.FeatureShift
	switch takes := k.Takes &^ flashkit.FeatureShift; takes {
	case all:
		return "all"
	case all &^ flashkit.ForwardFeatures:
		return "all that have a backward pass"
	default:
		return strings.ReplaceAll(takes.String(), ",", " ")
	}
}

func limitCell(n int) string {
	if n == 0 {
		return "any"
	}
	return fmt.Sprint(n)
}

func platformOf(k flashkit.Kernel) string { return cmp.Or(k.Requires, "any platform") }

// kernelMatrix returns the element types of each backend, by pass and machine.
func kernelMatrix(kernels []flashkit.Kernel) string {
	type row struct {
		backend, platform string
		types             [3][]string // forward, decode, backward
	}
	var rows []row
	for _, k := range kernels {
		at := slices.IndexFunc(rows, func(r row) bool { return r.backend == bench.BackendOf(k.Name) && r.platform == platformOf(k) })
		if at < 0 {
			at = len(rows)
			rows = append(rows, row{backend: bench.BackendOf(k.Name), platform: platformOf(k)})
		}
		column := 0
		switch {
		case k.Pass == flashkit.PassBackward:
			column = 2
		case k.MaxRows > 0:
			column = 1
		}
		rows[at].types[column] = append(rows[at].types[column], typeNames(k)...)
	}
	var b strings.Builder
	b.WriteString("| backend | runs on | forward | decode | backward |\n|---|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| `%s` | %s |", r.backend, r.platform)
		for _, have := range r.types {
			var names []string
			for _, t := range []flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16} {
				if slices.Contains(have, t.String()) {
					names = append(names, t.String())
				}
			}
			fmt.Fprintf(&b, " %s |", strings.Join(names, " "))
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// replaceMarked replaces the text between the two marks.
func replaceMarked(t *testing.T, text, middle string) string {
	const from, to = "<!-- made by make docs -->\n", "<!-- end -->\n"
	before, rest, found := strings.Cut(text, from)
	require.True(t, found, from)
	_, after, found := strings.Cut(rest, to)
	require.True(t, found, to)
	return before + from + middle + to + after
}

// docText returns a text, with the ends of lines that it has in the repository.
func docText(t *testing.T, name string) string {
	text, err := os.ReadFile(name)
	require.NoError(t, err, "make docs writes what it makes")
	return string(bytes.ReplaceAll(text, []byte("\r\n"), []byte("\n")))
}
