package wasm

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"flag"
	"fmt"
	"math"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// The module gives the same bits wherever it runs: on wazero's compiler and
// interpreter, on any platform, for any number of workers, and in V8.

var update = flag.Bool("update", false, "write testdata/golden.txt anew")

const goldenFile = "testdata/golden.txt"

var goldenProblems = []string{
	"b1-h1-g1-n70-m70-d64-f32-causal",
	"b1-h1-g1-n33-m150-d40-dv24-f32-window70.9",
	"b1-h1-g1-n150-m300-d8-f32",
	"b1-h1-g1-n20-m9-d17-dv3-f32-window4.1-topleft",
	"b1-h1-g1-n70-m150-d24-dv40-f32-causal-softcap3-alibi-bias-mask-sink-dropout0.25",
	"b1-h1-g1-n40-m300-d16-f32-window200.9-shift-7-alibi",
	"b1-h1-g1-n3-m300-d20-dv36-f32-causal-softcap3-alibi-bias-mask-sink-dropout0.25",
}

// outputHashes runs a problem on the vector kernels, on the scalar kernels and, if the problem has
// few rows, on decode. It returns a line of hashes for each of these runs.
func outputHashes(t *testing.T, b *Backend, p flashkit.Problem) (lines []string) {
	for _, variant := range goldenVariants(p) {
		c := newCall(p)
		for _, k := range b.Kernels() {
			if slices.Contains(variant, k.Name) {
				require.NoError(t, c.run(t.Context(), k))
			}
		}
		var line []string
		outputs := []flashkit.Tensor{c.fwd.O, c.fwd.LSE, c.bwd.DQ, c.bwd.DK, c.bwd.DV, c.bwd.DBias}
		if len(variant) == 1 { // decode has no backward pass
			outputs = outputs[:2]
		}
		for _, x := range outputs {
			if x.IsZero() {
				continue
			}
			h := sha256.New()
			for _, f := range x.Float32s() {
				var word [4]byte
				put(word[:], 0, f)
				h.Write(word[:])
			}
			line = append(line, hex.EncodeToString(h.Sum(nil)))
		}
		lines = append(lines, strings.Join(line, " "))
	}
	return lines
}

func goldenVariants(p flashkit.Problem) [][]string {
	all := [][]string{{"wasm/fwd_simd128", "wasm/bwd_simd128"}, {"wasm/fwd_scalar", "wasm/bwd_scalar"}}
	if p.QLen <= fewRows {
		all = append(all, []string{"wasm/decode_simd128"})
	}
	return all
}

func newBackend(t testing.TB, e engine) *Backend {
	b, err := open(context.Background(), kernelWasm, e)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return b
}

// golden returns the stored lines of a problem.
func golden(t *testing.T, name string) []string {
	text, err := os.ReadFile(goldenFile)
	require.NoError(t, err)
	_, rest, found := strings.Cut(string(text), name+"\n")
	require.True(t, found, "%s is not in %s; run go test -run Golden -update", name, goldenFile)
	n := len(goldenVariants(problem(t, name)))
	return strings.SplitN(rest, "\n", n+1)[:n]
}

func TestGolden(t *testing.T) {
	slow.UnderRace(t)
	if *update {
		var text strings.Builder
		for _, name := range goldenProblems {
			fmt.Fprintln(&text, name)
			for _, line := range outputHashes(t, newBackend(t, compiler), problem(t, name)) {
				fmt.Fprintln(&text, line)
			}
		}
		require.NoError(t, os.WriteFile(goldenFile, []byte(text.String()), 0o666))
	}
	for name, e := range map[string]engine{"compiler": compiler, "interpreter": interpreter} {
		t.Run(name, func(t *testing.T) {
			b := newBackend(t, e)
			for _, name := range goldenProblems {
				require.Equal(t, golden(t, name), outputHashes(t, b, problem(t, name)), name)
			}
		})
	}
}

// js/flashkit.js reads the options of golden.json. Tensors are noise, in the order of newCall.
func goldenJSON(t *testing.T) string {
	var text strings.Builder
	text.WriteString("[\n")
	for i, name := range goldenProblems {
		p := problem(t, name)
		options := map[string]any{"topLeft": p.Band.IsTopLeft(), "shift": p.Band.Shifted(), "seed": fmt.Sprint(goldenSeed)}
		if p.Score.Softcap != 0 {
			options["softcap"] = p.Score.Softcap
		}
		if p.Score.Dropout != 0 {
			options["dropout"] = p.Score.Dropout
		}
		side := func(n int) any {
			if n == flashkit.Unlimited {
				return nil
			}
			return n
		}
		call, err := json.Marshal(map[string]any{
			"name": name, "N": p.QLen, "M": p.KVLen, "D": p.Dim, "DV": p.VDim, "options": options, "window": [2]any{side(p.Band.Left()), side(p.Band.Right())},
			"alibi": p.Score.ALiBi, "bias": p.Score.Bias, "mask": p.Score.Mask, "sink": p.Score.Sink,
		})
		require.NoError(t, err)
		end := ",\n"
		if i == len(goldenProblems)-1 {
			end = "\n]\n"
		}
		text.Write(call)
		text.WriteString(end)
	}
	return text.String()
}

// The command of docs/design.md gives the same bits without Go.
func TestGoldenInNode(t *testing.T) {
	const problems = "testdata/golden.json"
	if *update {
		require.NoError(t, os.WriteFile(problems, []byte(goldenJSON(t)), 0o666))
	}
	text, err := os.ReadFile(problems)
	require.NoError(t, err)
	require.Equal(t, goldenJSON(t), string(text), "run go test -run Golden -update")
	guide, err := os.ReadFile("../../docs/design.md")
	require.NoError(t, err)
	const command = "node backends/wasm/peers/golden.mjs"
	require.Contains(t, string(guide), "`"+command+" /tmp/mine.wasm`")
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node on this machine")
	}
	want, err := os.ReadFile(goldenFile)
	require.NoError(t, err)
	for _, module := range []string{"backends/wasm/kernel/kernel.wasm", ""} {
		args := strings.Fields(command + " " + module)
		cmd := exec.CommandContext(t.Context(), node, args[1:]...)
		cmd.Dir = "../.."
		out, err := cmd.CombinedOutput()
		require.NoError(t, err, "%s", out)
		require.Equal(t, string(want), string(out))
	}
}

func problem(t testing.TB, name string) flashkit.Problem {
	p, err := flashkit.ParseProblem(name)
	require.NoError(t, err)
	return p
}

// Bits do not depend on how many workers there are.
func TestSameBitsForAnyNumberOfWorkers(t *testing.T) {
	slow.UnderRace(t)
	for _, name := range []string{"b1-h1-g1-n300-m600-d32-f32-causal", "b2-h6-g2-n130-m300-d24-dv40-bf16-window50.7"} {
		var want [][]uint32
		for _, workers := range []int{1, 2, 7} {
			box, err := newSandbox(t.Context(), kernelWasm, compiler, workers, maxMemory)
			require.NoError(t, err)
			b := &Backend{box: box}
			b.jobs.New = func() any { return new(job) }
			c := newCall(problem(t, name))
			var got [][]uint32
			for _, k := range b.Kernels() {
				if c.p.QLen > fewRows && k.Name == "wasm/decode_simd128" {
					continue // decode does not support the call; TestFeaturesSameBits tests decode
				}
				require.NoError(t, c.run(t.Context(), k))
				got = append(got, bits(c.fwd.O), bits(c.fwd.LSE), bits(c.bwd.DQ), bits(c.bwd.DK), bits(c.bwd.DV))
			}
			require.NoError(t, b.Close())
			if want == nil {
				want = got
			}
			require.Equal(t, want, got, "%s with %d workers", name, workers)
		}
	}
}

func bits(t flashkit.Tensor) (all []uint32) {
	for _, f := range t.Float32s() {
		all = append(all, math.Float32bits(f))
	}
	for _, u := range t.Uint16s() {
		all = append(all, uint32(u))
	}
	return all
}

// setBits writes the result of bits to the memory of t.
func setBits(t flashkit.Tensor, all []uint32) {
	for i := range t.Float32s() {
		t.Float32s()[i] = math.Float32frombits(all[i])
	}
	for i := range t.Uint16s() {
		t.Uint16s()[i] = uint16(all[i])
	}
}
