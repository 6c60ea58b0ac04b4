package main

import (
	"bytes"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/slow"
	"github.com/flashkit-go/flashkit/safetensors"
)

// flashrun runs a command line and returns its exit code and output.
func flashrun(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, err bytes.Buffer
	code = execute(t.Context(), args, &out, &err)
	return code, out.String(), err.String()
}

// ok runs a command line that must succeed without output on stderr.
func ok(t *testing.T, args ...string) string {
	t.Helper()
	code, stdout, stderr := flashrun(t, args...)
	require.Equal(t, exitOK, code, "%v: %s", args, stderr)
	require.Empty(t, stderr, "%v", args)
	return stdout
}

// values returns n small numbers that are exact in every type.
func values(n int, shift float32) []float32 {
	x := make([]float32, n)
	for i := range x {
		x[i] = float32((i*7+3)%32)/16 - 1 + shift
	}
	return x
}

// writeFile writes a safetensors file and returns its path.
func writeFile(t *testing.T, name string, tensors ...safetensors.Tensor) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, (&safetensors.File{Tensors: tensors}).Write(&b))
	path := filepath.Join(t.TempDir(), name)
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o644))
	return path
}

func readFile(t *testing.T, path string) *safetensors.File {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	f, err := safetensors.Parse(b)
	require.NoError(t, err)
	return f
}

func floats(t *testing.T, f *safetensors.File, name string) []float32 {
	t.Helper()
	tensor, ok := f.Tensor(name)
	require.True(t, ok, name)
	x, err := tensor.Float32s()
	require.NoError(t, err)
	return x
}

// f32 makes a float32 tensor of the given shape.
func f32(name string, shift float32, shape ...int) safetensors.Tensor {
	n := 1
	for _, d := range shape {
		n *= d
	}
	return safetensors.FromFloat32s(name, shape, values(n, shift))
}

func decode(t *testing.T, stdout string) map[string]any {
	t.Helper()
	var got map[string]any
	require.NoError(t, json.Unmarshal([]byte(stdout), &got))
	return got
}

func TestRunOnTheSample(t *testing.T) {
	out := ok(t, "run", "--repeat", "1")
	require.Contains(t, out, "all-MiniLM-L6-v2")
	require.Contains(t, out, "maximum difference")

	got := decode(t, ok(t, "run", "--repeat", "1", "--json", "--check"))
	require.Equal(t, "b1-h12-g12-n121-m121-d32-f32", got["problem"])
	require.Equal(t, "forward", got["pass"])
	require.Less(t, got["stored_max_diff"], 1e-5)
	require.Less(t, got["max_abs_error"], 1e-5)
	for _, key := range []string{"backend", "kernel", "seconds", "gflops", "extra_bytes"} {
		require.Contains(t, got, key)
	}
	require.NotContains(t, ok(t, "run", "--repeat", "1", "--causal"), "stored", "the stored output is for the sample as it is")
}

func TestRunBackward(t *testing.T) {
	got := decode(t, ok(t, "run", "--problem", "b2-h4-g2-n30-m50-d16-f32-causal", "--pass", "fwd,bwd", "--check", "--repeat", "1", "--json", "--backend", "simd/fwd_generic"))
	require.Equal(t, "backward", got["pass"])
	require.Equal(t, "simd/bwd_generic", got["kernel"])
	require.Equal(t, "simd/fwd_generic", got["forward_kernel"])
	require.Less(t, got["max_abs_error"], 1e-4)
}

// The kernels of a training step are chosen before the first of them is timed. So a slow call of the
// forward kernel, which is timed only once here, does not change the backward kernel.
func TestRunChoosesBeforeItTimes(t *testing.T) {
	d := dispatch.All(t.Context())
	defer d.Close()
	for _, problem := range []string{"b2-h4-g2-n5-m7-d8-dv6-f32-window3.1-scale0.5", "b1-h2-g2-n9-m9-d40-f32", "b1-h2-g2-n64-m64-d64-f32-causal"} {
		p, err := flashkit.ParseProblem(problem)
		require.NoError(t, err)
		forward, err := d.Paired().Pick(p, flashkit.PassForward)
		require.NoError(t, err)
		backward, err := d.Pick(p, flashkit.PassBackward)
		require.NoError(t, err)
		for range 5 {
			got := decode(t, ok(t, "run", "--problem", problem, "--pass", "fwd,bwd", "--repeat", "1", "--json"))
			require.Equal(t, forward.Name, got["forward_kernel"], problem)
			require.Equal(t, backward.Name, got["kernel"], problem)
		}
	}
}

// A BSHD file must give the same numbers as the BHSD file, each in its layout.
func TestFilesInBothLayouts(t *testing.T) {
	const b, h, g, n, m, d, dv = 2, 4, 2, 5, 7, 8, 6
	bhsdFile := writeFile(t, "in.safetensors", f32("q", 0, b, h, n, d), f32("k", .5, b, g, m, d), f32("v", .25, b, g, m, dv), f32("do", 0, b, h, n, dv))
	swap := func(x safetensors.Tensor) safetensors.Tensor {
		s := x.Shape
		from, err := x.Float32s()
		require.NoError(t, err)
		to := make([]float32, len(from))
		for i := range from {
			c, r, hd, bt := i%s[3], i/s[3]%s[2], i/s[3]/s[2]%s[1], i/s[3]/s[2]/s[1]
			to[((bt*s[2]+r)*s[1]+hd)*s[3]+c] = from[i]
		}
		return safetensors.FromFloat32s(x.Name, []int{s[0], s[2], s[1], s[3]}, to)
	}
	var swapped []safetensors.Tensor
	for _, x := range readFile(t, bhsdFile).Tensors {
		swapped = append(swapped, swap(x))
	}
	bshdFile := writeFile(t, "in.safetensors", swapped...)

	outA, outB := filepath.Join(t.TempDir(), "o.safetensors"), filepath.Join(t.TempDir(), "o.safetensors")
	flags := []string{"run", "--pass", "fwd,bwd", "--window", "3,1", "--scale", "0.5", "--check", "--repeat", "1"}
	ok(t, append(flags, "--in", bhsdFile, "--out", outA)...)
	ok(t, append(flags, "--in", bshdFile, "--out", outB, "--layout", "bshd")...)
	a, bb := readFile(t, outA), readFile(t, outB)
	require.Equal(t, "b2-h4-g2-n5-m7-d8-dv6-f32-window3.1-scale0.5", a.Metadata["problem"])
	for i, name := range []string{"o", "lse", "dq", "dk", "dv"} {
		require.Equal(t, name, a.Tensors[i].Name)
		want := a.Tensors[i]
		if name == "lse" {
			require.Equal(t, []int{b, h, n}, want.Shape)
			want.Shape = append(want.Shape, 1)
			want = swap(want)
			want.Shape = want.Shape[:3]
		} else {
			want = swap(want)
		}
		require.Equal(t, want, bb.Tensors[i], name)
	}
}

func TestTypes(t *testing.T) {
	in := writeFile(t, "in.safetensors", f32("q", 0, 1, 2, 5, 8), f32("k", 0, 1, 2, 5, 8), f32("v", 0, 1, 2, 5, 8))
	for dtype, file := range map[string]string{"f32": "F32", "f16": "F16", "bf16": "BF16", "f32-kvf16": "F32"} {
		out := filepath.Join(t.TempDir(), "o.safetensors")
		ok(t, "run", "--in", in, "--dtype", dtype, "--out", out, "--repeat", "1")
		f := readFile(t, out)
		require.Equal(t, file, f.Tensors[0].DType)
		require.Equal(t, "F32", f.Tensors[1].DType, "lse is always float32")
		// The output is valid input.
		again := writeFile(t, "again.safetensors", rename(f.Tensors[0], "q"), rename(f.Tensors[0], "k"), rename(f.Tensors[0], "v"))
		require.Contains(t, ok(t, "run", "--in", again, "--dtype", dtype, "--repeat", "1"), "-"+dtype+"\n")
	}
}

func rename(t safetensors.Tensor, name string) safetensors.Tensor {
	t.Name = name
	return t
}

func TestNpyInput(t *testing.T) {
	dir := t.TempDir()
	npyFile := func(path string, shape string, x []float32) string {
		header := fmt.Sprintf("{'descr': '<f4', 'fortran_order': False, 'shape': %s, }", shape)
		header += strings.Repeat(" ", 63-(len(header)+10)%64) + "\n"
		b := append([]byte("\x93NUMPY\x01\x00"), byte(len(header)), byte(len(header)>>8))
		b = append(b, header...)
		for _, v := range x {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(v))
		}
		path = filepath.Join(dir, path)
		require.NoError(t, os.WriteFile(path, b, 0o644))
		return path
	}
	q := npyFile("q.npy", "(1, 2, 3, 4)", values(24, 0))
	k := npyFile("k.npy", "(1, 1, 5, 4)", values(20, .5))
	v := npyFile("values.npy", "(1, 1, 5, 4)", values(20, .25))
	out := filepath.Join(dir, "o.safetensors")
	ok(t, "run", "--in", q, "--in", k, "--in", "v="+v, "--out", out, "--check", "--repeat", "1")
	fromNpy := floats(t, readFile(t, out), "o")

	same := writeFile(t, "in.safetensors", f32("q", 0, 1, 2, 3, 4), f32("k", .5, 1, 1, 5, 4), f32("v", .25, 1, 1, 5, 4))
	ok(t, "run", "--in", same, "--out", out, "--repeat", "1")
	require.Equal(t, floats(t, readFile(t, out), "o"), fromNpy)
}

func TestListAndExplain(t *testing.T) {
	require.Contains(t, ok(t, "list"), "simd/fwd_generic")
	require.Contains(t, ok(t, "list"), "cuda ")
	var lines []map[string]any
	require.NoError(t, json.Unmarshal([]byte(ok(t, "list", "--json")), &lines))
	about := "Go: online softmax over key tiles, one row at a time; bound by scalar arithmetic"
	require.Contains(t, lines, map[string]any{"name": "simd/fwd_generic", "pass": "forward", "available": true,
		"dtypes": []any{"f32", "f16", "bf16"}, "about": about})
	require.Contains(t, ok(t, "list"), about)
	require.NotContains(t, string(printed([]listed{{Name: "x/y", Available: true, About: about}}, false)), about)

	simd := ok(t, "list", "--backend", "simd")
	require.Contains(t, simd, "simd/fwd_generic")
	require.NotContains(t, simd, "wasm")
	require.Equal(t, 2, strings.Count(ok(t, "list", "--backend", "simd/fwd_generic"), "\n"), "the machine and the kernel")

	explain := []string{"explain", "--backend", "simd/fwd_generic", "b1-h8-g2-n128-m512-d64-f32-causal"}
	require.Contains(t, ok(t, explain...), "* simd/fwd_generic")
	require.Regexp(t, `^(. \w+/\w+ +about [^\n]+\n)+(. [\w/]+  +[b-z][^\n]+\n)+$`, ok(t, "explain", "b1-h8-g2-n128-m512-d64-f32-causal"), "what fits comes first")
	require.NoError(t, json.Unmarshal([]byte(ok(t, append(explain, "--pass", "bwd", "--json")...)), &lines))
	for _, l := range lines {
		require.Equal(t, l["name"] == "simd/bwd_generic", l["chosen"], "%v", l)
	}
}

func TestConformanceCommand(t *testing.T) {
	slow.UnderRace(t)
	out := ok(t, "conformance", "--kernel", "simd/fwd_gen*", "--case", "gqa_*", "--json")
	var tallies []tally
	require.NoError(t, json.Unmarshal([]byte(out), &tallies))
	require.Len(t, tallies, 1)
	require.Equal(t, "simd/fwd_generic", tallies[0].Kernel)
	require.Greater(t, tallies[0].Passed, 15, "five traps in three types, and in the layouts of ragged problems")
	require.Zero(t, tallies[0].Failed+tallies[0].Unsupported)

	require.Contains(t, ok(t, "conformance", "--kernel", "simd/bwd_generic", "--case", "dlse"), "\n1 passed, 0 failed, 0 skipped\n")
	require.Contains(t, ok(t, "conformance", "--kernel", "simd/fwd_generic", "--case", "sweep-00000000000000ff"), "1 passed")
	swept := []string{"conformance", "--kernel", "simd/fwd_generic", "--case", "sweep*"}
	out = ok(t, append(swept, "--budget", "20ms", "--seed", "9")...)
	require.Regexp(t, `\n[1-9]\d* of them are random problems, drawn from seed 9\n`, out)
	require.Contains(t, ok(t, append(swept, "--sweep", "2")...), "\n8 of them are random problems, drawn from seed 1\n8 passed")
	require.NoError(t, json.Unmarshal([]byte(ok(t, append(swept, "--sweep", "2", "--json")...)), &tallies))
	require.Equal(t, tally{Kernel: "simd/fwd_generic", Passed: 8, Random: 8, Seed: 1}, tallies[0])
	require.Contains(t, ok(t, "conformance", "--kernel", "simd/fwd_generic", "--case", "gqa_2", "--quick"), "\nno random problems: --quick\n")
	require.Contains(t, ok(t, "conformance", "--list"), "rising_max")
	if !testing.Short() { // the mutants also die in conformance's own tests
		require.Contains(t, ok(t, "conformance", "--mutants"), ", 0 failed\n")
	}
}

func TestRequiredKernel(t *testing.T) {
	t.Setenv("FLASHKIT_REQUIRE", "simd/fwd_generic,simd/fwd_nonsense")
	f := conformanceFlags{}
	err := f.verdict([]*tally{{Kernel: "simd/fwd_generic", Passed: 1}})
	require.ErrorContains(t, err, "simd/fwd_nonsense")
	require.NotContains(t, err.Error(), "fwd_generic,")
	require.Error(t, f.verdict([]*tally{{Kernel: "simd/fwd_generic", Failed: 1}}))
	f.options.Kernel = "simd/fwd_n*"
	require.ErrorContains(t, f.verdict(nil), "simd/fwd_nonsense")
	f.options.Kernel = "simd/fwd_g*"
	require.NoError(t, f.verdict([]*tally{{Kernel: "simd/fwd_generic", Passed: 1}}), "what was not asked for")
}

func TestVersionAndCompletion(t *testing.T) {
	require.Equal(t, "flashrun version "+machine.Version()+" ("+build()+")\n", ok(t, "--version"))
	require.Equal(t, ok(t, "--version"), ok(t, "version"))
	require.Contains(t, ok(t, "completion", "bash"), "flashrun")
	_, completions, _ := flashrun(t, "__complete", "run", "--backend", "")
	require.Contains(t, completions, "simd/fwd_generic")
	require.Contains(t, ok(t, "run", "--help"), "flashrun run --in qkv.safetensors")
}
