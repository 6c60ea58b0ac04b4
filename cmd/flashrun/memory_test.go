package main

import (
	"bytes"
	"context"
	"encoding/csv"
	"encoding/json"
	"math/big"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/bench"
)

// memory runs flashrun memory --json.
func memory(t *testing.T, args ...string) []*bench.MemoryTable {
	t.Helper()
	var tables []*bench.MemoryTable
	require.NoError(t, json.Unmarshal([]byte(ok(t, append([]string{"memory", "--json"}, args...)...)), &tables))
	return tables
}

// lineOf returns the line of that name and type.
func lineOf(test *testing.T, t *bench.MemoryTable, name, dtype string) *bench.MemoryLine {
	test.Helper()
	for _, l := range t.Lines {
		if l.Name == name && l.DType == dtype {
			return l
		}
	}
	test.Fatalf("%s, %s: no line %s %s", t.Problem, t.Pass, name, dtype)
	return nil
}

func requireSize(t *testing.T, want int64, got *big.Int) {
	t.Helper()
	require.NotNil(t, got)
	require.Equal(t, strconv.FormatInt(want, 10), got.String())
}

func TestMemoryByFormula(t *testing.T) {
	tables := memory(t, "--formula", "--backend", "simd/fwd_generic", "b2-h8-g2-n1024-m4096-d64-dv32-bf16-causal")
	require.Len(t, tables, 2)
	forward, backward := tables[0], tables[1]
	require.Equal(t, "forward", forward.Pass)
	require.Equal(t, "backward", backward.Pass)
	requireSize(t, 16, forward.Heads)
	const q, k, v, o = 16 * 1024 * 64 * 2, 4 * 4096 * 64 * 2, 4 * 4096 * 32 * 2, 16 * 1024 * 32 * 2
	requireSize(t, q+k+v+o, forward.Tensors)
	requireSize(t, 2*(q+k+v+o), backward.Tensors)

	const matrix = 1024 * 4096
	for _, c := range []struct {
		table       *bench.MemoryTable
		name, dtype string
		oneHead     int64
		ratio       float64
	}{
		{forward, "one matrix", "bf16", 2 * matrix, 2}, {forward, "S, P", "bf16", 4 * matrix, 1},
		{forward, "one matrix", "f32", 4 * matrix, 1}, {forward, "S, P", "f32", 8 * matrix, .5},
		{backward, "one matrix", "bf16", 2 * matrix, 4}, {backward, "S, P, dS, dP", "bf16", 8 * matrix, 1},
		{backward, "S, P, dS, dP", "f32", 16 * matrix, .5},
		{forward, "LSE", "f32", 4 * 1024, 4096}, {forward, "m, l", "f32", 8 * 1024, 2048}, {backward, "LSE", "f32", 4 * 1024, 8192},
	} {
		l := lineOf(t, c.table, c.name, c.dtype)
		requireSize(t, c.oneHead, l.OneHead)
		requireSize(t, 16*c.oneHead, l.Bytes)
		require.Equal(t, c.ratio, l.Ratio, "%+v", c)
	}

	kernel := lineOf(t, forward, "simd/fwd_generic", "")
	require.Nil(t, kernel.Measured)
	require.Equal(t, kernel.Bytes, new(big.Int).Add(lineOf(t, forward, "LSE", "f32").Bytes, kernel.Formula))
	full, _ := new(big.Float).SetInt(lineOf(t, forward, "S, P", "bf16").Bytes).Float64()
	used, _ := new(big.Float).SetInt(kernel.Bytes).Float64()
	require.InEpsilon(t, full/used, kernel.Ratio, 1e-12)
	lineOf(t, backward, "simd/bwd_generic", "")
}

func TestMemoryMeasured(t *testing.T) {
	for _, backend := range []string{"simd", "wasm"} {
		for _, table := range memory(t, "--backend", backend, "--limit", "10m", "b1-h2-g1-n70-m90-d16-f32") {
			for _, l := range table.Lines {
				if l.Kind != bench.KindKernel || l.Note != "" {
					continue
				}
				require.NotNil(t, l.Measured, "%s: %s", l.Name, l.Unmeasured)
				require.GreaterOrEqual(t, l.Measured.Cmp(l.Formula), 0, "%s: %s measured, %s by formula", l.Name, l.Measured, l.Formula)
				require.Equal(t, l.Bytes, new(big.Int).Add(lineOf(t, table, "LSE", "f32").Bytes, l.Measured))
			}
		}
	}
}

func TestMemoryNotMeasured(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		want string
	}{
		"prediction": {[]string{"--limit", "1ns", "b1-h2-g1-n70-m90-d16-f32"}, "predicted to take longer than 1ns"},
		"tensors":    {[]string{"--limit", "999h", "b1-h1-g1-n1-m1000000000-d64-f32"}, "its tensors take"},
		"wish":       {[]string{"--formula", "b1-h2-g1-n70-m90-d16-f32"}, "by formula only"},
	} {
		l := lineOf(t, memory(t, append(c.args, "--pass", "fwd", "--backend", "simd/fwd_generic")...)[0], "simd/fwd_generic", "")
		require.Nil(t, l.Measured, name)
		require.Contains(t, l.Unmeasured, c.want, name)
		require.NotNil(t, l.Bytes, name)
	}
}

// Sizes beyond 64 bits are exact.
func TestMemoryOfHugeProblems(t *testing.T) {
	out := ok(t, "memory", "--formula", "--csv", "--backend", "simd", "--pass", "bwd", "b1-h1-g1-n1073741824-m1073741824-d1-f32")
	records, err := csv.NewReader(strings.NewReader(out)).ReadAll()
	require.NoError(t, err)
	require.Equal(t, []string{"problem", "pass", "name", "kind", "dtype", "one_head_bytes", "bytes"}, records[0][:7])
	require.Equal(t, []string{"S, P, dS, dP", "matrices", "f32", "18446744073709551616", "18446744073709551616"}, records[2][2:7])

	text := ok(t, "memory", "--formula", "--backend", "simd", "b1-h1-g1-n1073741824-m1073741824-d1-f32")
	require.Contains(t, text, "16.0 EiB")
	for _, table := range memory(t, "--formula", "b1-h1-g1-n1000000000000000-m1000-d1-bf16") {
		for _, l := range table.Lines {
			if l.Bytes != nil {
				require.Positive(t, l.Bytes.Sign(), l.Name)
				require.Positive(t, l.Ratio, l.Name)
			}
		}
	}
}

func TestMemoryOfEmptyProblems(t *testing.T) {
	for _, name := range []string{"b0-h1-g1-n5-m5-d8-f32", "b1-h1-g1-n0-m5-d8-f32", "b1-h1-g1-n5-m0-d8-bf16"} {
		ok(t, "memory", "--backend", "simd", name)
		require.Len(t, memory(t, "--backend", "simd", name), 2)
	}
}

func TestMemoryText(t *testing.T) {
	out := ok(t, "memory", "--formula", "--backend", "simd/fwd_generic", "--pass", "fwd", "b1-h8-g8-n1024-m1024-d64-f32", "b1-h8-g8-n1024-m1024-d64-f16")
	spaces := regexp.MustCompile(` +`)
	require.True(t, strings.HasPrefix(spaces.ReplaceAllString(out, " "), `b1-h8-g8-n1024-m1024-d64-f32, forward: 8.0 MiB of tensors, and besides them
 one head in all ratio how
one matrix in f32 4.0 MiB 32.0 MiB 2 1024 x 1024 x 4 bytes
S, P in f32 8.0 MiB 64.0 MiB 1 2 x 1024 x 1024 x 4 bytes
m, l in f32 8.0 KiB 64.0 KiB 1024 2 x 1024 x 4 bytes
LSE in f32 4.0 KiB 32.0 KiB 2048 1024 x 4 bytes
simd/fwd_generic `), out)
	require.NotContains(t, out, " \n")
	require.Contains(t, out, "\n\nb1-h8-g8-n1024-m1024-d64-f16, forward: 4.0 MiB")
	require.Contains(t, ok(t, "memory", "--formula", "--pass", "fwd", "b1-h1-g1-n1-m1-d8-f32"), "simd/fwd_generic")
}

func TestMemoryBadInput(t *testing.T) {
	const p = "b1-h1-g1-n5-m5-d8-f32"
	for name, test := range map[string]struct {
		args []string
		want []string
	}{
		"no problem":      {nil, []string{"PROBLEM", "missing"}},
		"second problem":  {[]string{p, "b1-h8"}, []string{"b1-h8"}},
		"overflow":        {[]string{"b1-h1-g1-n4611686018427387904-m5-d8-f32"}, []string{"b1-h1-g1-n4611686018427387904", "Q"}},
		"unknown pass":    {[]string{p, "--pass", "forward"}, []string{"--pass", "forward", "fwd"}},
		"negative limit":  {[]string{p, "--limit", "-1s"}, []string{"--limit -1s"}},
		"limit of what":   {[]string{p, "--limit", "5"}, []string{"--limit", "5"}},
		"both formats":    {[]string{p, "--json", "--csv"}, []string{"--json", "--csv"}},
		"unknown backend": {[]string{p, "--backend", "tpu"}, []string{"tpu"}},
	} {
		t.Run(name, func(t *testing.T) {
			code, stdout, stderr := flashrun(t, append([]string{"memory"}, test.args...)...)
			require.Equal(t, exitUsage, code, stderr)
			require.Empty(t, stdout)
			require.Equal(t, 1, strings.Count(stderr, "\n"), stderr)
			for _, want := range test.want {
				require.Contains(t, stderr, want)
			}
		})
	}
}

func TestMemoryInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var stdout, stderr bytes.Buffer
	require.Equal(t, exitInterrupted, execute(ctx, []string{"memory", "--backend", "simd", "b1-h1-g1-n64-m64-d8-f32"}, &stdout, &stderr))
	require.Empty(t, stdout.String())
}

func TestMemoryHelpAndCompletion(t *testing.T) {
	help := ok(t, "memory", "--help")
	require.Contains(t, help, "Examples:")
	_, completions, _ := flashrun(t, "__complete", "memory", "--pass", "")
	require.Contains(t, completions, "fwd\nbwd\nfwd,bwd")
	_, completions, _ = flashrun(t, "__complete", "memory", "")
	for _, line := range strings.Split(strings.TrimSpace(completions), "\n") {
		if name, _, found := strings.Cut(line, "\t"); found {
			_, err := flashkit.ParseProblem(name)
			require.NoError(t, err)
		}
	}
}

// The table of docs/design.md is the command's output.
func TestMemoryTableOfTheDocs(t *testing.T) {
	text, err := os.ReadFile("../../docs/design.md")
	require.NoError(t, err)
	_, section, found := strings.Cut(string(text), "## Memory")
	require.True(t, found)
	rows := 0
	for _, line := range strings.Split(section, "\n") {
		cells := strings.FieldsFunc(line, func(r rune) bool { return r == '|' })
		if len(cells) != 7 {
			continue
		}
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if _, err := strconv.Atoi(cells[0]); err != nil {
			continue
		}
		rows++
		table := memory(t, "--formula", "--pass", "fwd", "b1-h8-g8-n"+cells[0]+"-m"+cells[0]+"-d64-f32")[0]
		one, both, lse := lineOf(t, table, "one matrix", "f32"), lineOf(t, table, "S, P", "f32"), lineOf(t, table, "LSE", "f32")
		for i, n := range []*big.Int{one.OneHead, both.OneHead, lse.OneHead, one.Bytes, both.Bytes, lse.Bytes} {
			require.Equal(t, cells[i+1], strings.Replace(bench.FormatSize(n), ".0 ", " ", 1), "%s, column %d", cells[0], i+1)
		}
	}
	require.Equal(t, 4, rows)
}

// Published figures and their meaning. A table that is often copied claims "one head, float32, N x
// N x 4 bytes, m and l N x 2 x 4 bytes", but its figures are 4 times its formulas: sums of four
// heads.
func TestMemoryOfPublishedTables(t *testing.T) {
	const one, all = true, false
	for _, c := range []struct {
		problem     string
		name, dtype string
		oneHead     bool
		bytes       int64
	}{
		{"b1-h4-g4-n128-m128-d64-f32", "one matrix", "f32", all, 256 << 10}, {"b1-h4-g4-n128-m128-d64-f32", "m, l", "f32", all, 4 << 10},
		{"b1-h4-g4-n512-m512-d64-f32", "one matrix", "f32", all, 4 << 20}, {"b1-h4-g4-n512-m512-d64-f32", "m, l", "f32", all, 16 << 10},
		{"b1-h4-g4-n1024-m1024-d64-f32", "one matrix", "f32", all, 16 << 20}, {"b1-h4-g4-n1024-m1024-d64-f32", "m, l", "f32", all, 32 << 10},
		{"b1-h4-g4-n4096-m4096-d64-f32", "one matrix", "f32", all, 256 << 20}, {"b1-h4-g4-n4096-m4096-d64-f32", "m, l", "f32", all, 128 << 10},
		{"b1-h4-g4-n4096-m4096-d64-f32", "one matrix", "f32", one, 64 << 20}, {"b1-h4-g4-n4096-m4096-d64-f32", "m, l", "f32", one, 32 << 10},

		// Another table, which is right: one matrix, and m and l, of one head in float32.
		{"b1-h1-g1-n1024-m1024-d64-f32", "one matrix", "f32", one, 4 << 20}, {"b1-h1-g1-n1024-m1024-d64-f32", "m, l", "f32", one, 8 << 10},
		{"b1-h1-g1-n4096-m4096-d64-f32", "one matrix", "f32", one, 64 << 20}, {"b1-h1-g1-n4096-m4096-d64-f32", "m, l", "f32", one, 32 << 10},
		{"b1-h1-g1-n16384-m16384-d64-f32", "one matrix", "f32", one, 1 << 30}, {"b1-h1-g1-n16384-m16384-d64-f32", "m, l", "f32", one, 128 << 10},

		// "32 heads, about 2 GB for S and P" at 4096: right in 16 bits; float32 takes twice that.
		{"b1-h32-g32-n4096-m4096-d64-f16", "S, P", "f16", all, 2 << 30}, {"b1-h32-g32-n4096-m4096-d64-f16", "S, P", "f32", all, 4 << 30},

		// One matrix of one head in bf16, against the 99 KB of a multiprocessor.
		{"b1-h1-g1-n128-m128-d64-bf16", "one matrix", "bf16", one, 32 << 10}, {"b1-h1-g1-n256-m256-d64-bf16", "one matrix", "bf16", one, 128 << 10},
	} {
		l := lineOf(t, memory(t, "--formula", "--pass", "fwd", "--backend", "simd/fwd_generic", c.problem)[0], c.name, c.dtype)
		got := l.Bytes
		if c.oneHead {
			got = l.OneHead
		}
		requireSize(t, c.bytes, got)
	}
}
