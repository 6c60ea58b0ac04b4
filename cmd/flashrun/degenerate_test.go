package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/slow"
	"github.com/flashkit-go/flashkit/safetensors"
)

// degenerate returns a random problem with sizes of 0 and 1, and any features.
func degenerate(r *rand.Rand) flashkit.Problem {
	of := func(list ...int) int { return list[r.IntN(len(list))] }
	maybe := func() bool { return r.IntN(3) == 0 }
	for {
		p := flashkit.Problem{Batch: of(0, 1, 2), KVHeads: of(1, 2), QLen: of(0, 1, 2, 5), KVLen: of(0, 1, 2, 5), Dim: of(1, 2, 7), VDim: of(1, 2, 7),
			DType: []flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16}[r.IntN(3)]}
		p.Heads = p.KVHeads * of(1, 1, 3)
		p.Band = []flashkit.Band{{}, {}, flashkit.Causal(), flashkit.Window(0, 0), flashkit.Window(1, 0).Shift(-3), flashkit.Causal().TopLeft().Shift(4)}[r.IntN(6)]
		p.Score.Sink, p.Score.ALiBi, p.Score.Bias, p.Score.Mask = maybe(), maybe(), maybe(), maybe()
		p.Ragged, p.Carry = maybe(), maybe()
		if maybe() {
			p.Score.Softcap = 5
		}
		if maybe() {
			p.Score.Dropout = .5
		}
		if p.Ragged && maybe() {
			p.Page = of(1, 2, 16)
		}
		if p.DType == flashkit.Float32 && maybe() {
			p.KVDType = flashkit.BFloat16
		}
		if p.Validate() == nil {
			return p
		}
	}
}

// inputFile writes a random input of the problem, with packed or padded sequences and biases of
// fewer dimensions, and returns the flags that are not in the file.
func inputFile(t *testing.T, p flashkit.Problem, r *rand.Rand) []string {
	in := input.Random(p, r.Uint64(), input.BHSD, true)
	var list []safetensors.Tensor
	for _, a := range flashkit.Arguments() {
		x := a.Of(&in.Args)
		if x.IsZero() {
			continue
		}
		y, err := safetensors.Encode(strings.ToLower(a.Name), *x)
		require.NoError(t, err)
		switch a.Name {
		case "LSE", "DLSE":
			y.Shape = y.Shape[:3]
		case "Slopes":
			y.Shape = y.Shape[:2]
		case "Sink":
			y.Shape = y.Shape[1:2]
		}
		list = append(list, y)
	}
	numbers := func(name string, x []int32, shape ...int) {
		if x != nil {
			data, err := binary.Append(nil, binary.LittleEndian, x)
			require.NoError(t, err)
			list = append(list, safetensors.Tensor{Name: name, DType: "I32", Shape: shape, Data: data})
		}
	}
	if s := in.Args.Seqs; s != nil {
		numbers("q_lens", s.QLens, len(s.QLens))
		numbers("kv_lens", s.KVLens, len(s.KVLens))
		numbers("q_starts", s.QStarts, len(s.QStarts))
		numbers("kv_starts", s.KVStarts, len(s.KVStarts))
		numbers("pages", s.Pages, p.Batch, len(s.Pages)/max(1, p.Batch))
	}
	flags := []string{"--in", writeFile(t, "in.safetensors", list...)}
	if p.Carry {
		flags = append(flags, "--carry")
	}
	if p.Score.Dropout != 0 {
		flags = append(flags, "--dropout", "0.5")
	}
	return flags
}

// Sizes of 0 and 1 with any features give a result or a clear error, whatever the command.
func TestDegenerateProblems(t *testing.T) {
	slow.UnderRace(t)
	seed, count, every := uint64(1), 16, 8
	if !testing.Short() {
		seed, count, every = rand.Uint64(), 40, 4
	}
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 1))
	dir, ran := t.TempDir(), 0
	for i := range count {
		p := degenerate(r)
		if i == 0 {
			var err error
			p, err = flashkit.ParseProblem("b0-h1-g1-n1-m1-d1-f32-sink-ragged")
			require.NoError(t, err)
		}
		name, file := p.String(), inputFile(t, p, r)
		trace := filepath.Join(dir, "calls.trace")
		require.NoError(t, os.WriteFile(trace, fmt.Appendf(nil, "fwd %s calls=2\nbwd %[1]s calls=2\n", name), 0o644))
		run := []string{"run", "--repeat", "1", "--check"}
		lines := [][]string{
			append(run, "--problem", name), append(run, "--problem", name, "--pass", "fwd,bwd", "--json"), append(run, "--problem", name, "--layout", "bshd"),
			append(run, file...), append(append(run, file...), "--pass", "fwd,bwd"),
			{"explain", name}, {"explain", "--pass", "bwd", "--json", name}, {"memory", "--formula", name},
		}
		if i%every == 0 {
			lines = append(lines, [][]string{
				{"memory", name}, {"memory", "--json", name},
				{"bench", "--problem", name, "--limits=false", "--time-per-case", "1us", "--kernels", "all"},
				{"bench", "--problem", name, "--limits=false", "--time-per-case", "1us", "--baseline", "naive", "--csv"},
				{"bench", "--trace", trace, "--runs", "1"},
				{"calibrate", "--problem", name, "--time-per-case", "1us", "--out", filepath.Join(dir, "profile")},
				{"ring", "--problem", name, "--check", "--runs", "1", "--quiet"},
				{"ring", "--problem", name, "--check", "--runs", "1", "--quiet", "--pass", "fwd,bwd", "--ordered", "--ranks", "3"},
				{"ring", "--problem", name, "--lengths", "0,1,3", "--check", "--runs", "1", "--quiet"},
			}...)
		}
		for _, args := range lines {
			code, _, stderr := flashrun(t, args...)
			require.Contains(t, []int{exitOK, exitFailed, exitUsage}, code, "%v: %s", args, stderr)
			require.NotContains(t, stderr, "internal error", "%v", args)
			if code == exitOK {
				ran++
			} else {
				require.Equal(t, 1, strings.Count(stderr, "\n"), "%v: %s", args, stderr)
			}
		}
	}
	require.Greater(t, ran, 5*count)
}
