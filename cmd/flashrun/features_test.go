package main

import (
	"encoding/binary"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/safetensors"
)

// onAnyCPU names a kernel that supports every feature on every machine.
var onAnyCPU = []string{"--backend", "simd/fwd_generic", "--repeat", "1"}

// Random input has all features of a problem's name, and the result matches the oracle.
func TestRunOfFeatures(t *testing.T) {
	for _, features := range []string{"causal-shift-3", "softcap2.5", "alibi", "bias", "mask", "ranges1", "causal-ranges2", "sink", "dropout0.25", "ragged", "ragged-page4", "carry",
		"softcap30-alibi-bias-mask-sink-dropout0.1-ragged-page16-carry", "window5.2-topleft-shift4-softcap3-alibi-bias-mask-sink-dropout0.5-origin-ragged"} {
		for _, dtype := range []string{"f32", "bf16", "f32-kvf16"} {
			name := "b3-h4-g2-n7-m23-d8-dv6-" + dtype + "-" + features
			p, err := flashkit.ParseProblem(name)
			require.NoError(t, err)
			args := append([]string{"run", "--problem", name, "--check", "--json"}, onAnyCPU...)
			want := []string{"o", "lse"}
			if input.HasBackward(&p) {
				args, want = append(args, "--pass", "fwd,bwd"), append(want, "dq", "dk", "dv")
				if p.Score.Bias {
					want = append(want, "dbias")
				}
				if p.Score.Sink {
					want = append(want, "dsink")
				}
			}
			out := filepath.Join(t.TempDir(), "o.safetensors")
			got := decode(t, ok(t, append(args, "--out", out)...))
			require.Less(t, got["max_abs_error"], map[string]float64{"f32": 1e-5, "bf16": .1, "f32-kvf16": 1e-5}[dtype], name)
			f := readFile(t, out)
			var names []string
			for _, x := range f.Tensors {
				names = append(names, x.Name)
			}
			require.Equal(t, want, names, name)
			require.Equal(t, name, f.Metadata["problem"])
		}
	}
}

// A feature that has no influence would pass a check that forgets it in both places.
func TestFeaturesMatter(t *testing.T) {
	const plain = "b2-h4-g2-n7-m23-d8-f32"
	run := func(flags ...string) []float32 {
		out := filepath.Join(t.TempDir(), "o.safetensors")
		ok(t, append(append([]string{"run", "--out", out}, flags...), onAnyCPU...)...)
		return floats(t, readFile(t, out), "o")
	}
	dense := run("--problem", plain)
	for _, features := range []string{"causal", "causal-shift-3", "softcap0.5", "alibi", "bias", "mask", "sink", "dropout0.25", "ragged", "carry"} {
		require.NotEqual(t, dense, run("--problem", plain+"-"+features), features)
	}
	require.NotEqual(t, run("--problem", plain+"-dropout0.25"), run("--problem", plain+"-dropout0.25", "--dropout-seed", "7"))
	require.Equal(t, run("--problem", plain+"-dropout0.25"), run("--problem", plain+"-dropout0.25", "--dropout-seed", "1"), "that of --seed")
}

// fileFor writes a random problem's input to a file, in a layout, and returns the flags
// that read it as that problem.
func fileFor(t *testing.T, in *input.Input) []string {
	var f safetensors.File
	args := &in.Args
	for _, a := range flashkit.Arguments() {
		x := a.Of(args)
		if x.IsZero() {
			continue
		}
		encode := safetensors.Encode
		if in.Layout.Of(a.Name) == input.BSHD {
			encode = safetensors.EncodeBSHD
		}
		y, err := encode(strings.ToLower(a.Name), *x)
		require.NoError(t, err)
		switch a.Name {
		case "LSE", "DLSE":
			y.Shape = y.Shape[:3]
		case "Slopes":
			y.Shape = y.Shape[:2]
		case "Sink":
			y.Shape = y.Shape[1:2]
		}
		f.Tensors = append(f.Tensors, y)
	}
	if s := args.Seqs; s != nil {
		for _, x := range []struct {
			name string
			list []int32
		}{{"q_lens", s.QLens}, {"kv_lens", s.KVLens}, {"q_starts", s.QStarts}, {"kv_starts", s.KVStarts}, {"pages", s.Pages}} {
			switch {
			case x.name == "pages" && x.list != nil:
				f.Tensors = append(f.Tensors, safetensors.FromInt32s(x.name, []int{in.Problem.Batch, len(x.list) / in.Problem.Batch}, x.list))
			case x.list != nil:
				f.Tensors = append(f.Tensors, safetensors.FromInt32s(x.name, []int{len(x.list)}, x.list))
			}
		}
	}
	p := in.Problem
	flags := []string{"--in", writeFile(t, "in.safetensors", f.Tensors...), "--layout", string(in.Layout), "--dropout-seed", fmt.Sprint(args.Seed), "--shift", fmt.Sprint(p.Band.Shifted())}
	if p.Score.Dropout == 0 {
		flags = append(flags[:4], flags[6:]...)
	} else {
		flags = append(flags, "--dropout", fmt.Sprint(p.Score.Dropout))
	}
	if p.Band.Right() == 0 {
		flags = append(flags, "--causal")
	}
	if p.Score.Softcap != 0 {
		flags = append(flags, "--softcap", fmt.Sprint(p.Score.Softcap))
	}
	if p.Carry {
		flags = append(flags, "--carry")
	}
	return flags
}

const everything = "b3-h4-g2-n7-m24-d8-dv6-f32-causal-shift2-softcap3-alibi-bias-mask-sink-dropout0.25-ragged"

// A file with the tensors of a problem, and flags, are that problem.
func TestFilesOfFeatures(t *testing.T) {
	for _, name := range []string{everything, everything + "-page4", everything + "-page8-carry", "b2-h2-g1-n3-m5-d4-f32-kvbf16-bias-mask", "b2-h2-g1-n3-m5-d4-f16-bias-mask", "b2-h2-g1-n3-m5-d4-f16-carry"} {
		p, err := flashkit.ParseProblem(name)
		require.NoError(t, err)
		var want *safetensors.File
		for _, l := range []input.Layout{input.BHSD, input.BSHD} {
			in := input.Random(p, 5, l, input.HasBackward(&p))
			flags := append(append([]string{"run", "--check"}, fileFor(t, in)...), onAnyCPU...)
			byName := append([]string{"run", "--problem", name, "--seed", "5", "--layout", string(l)}, onAnyCPU...)
			if input.HasBackward(&p) {
				flags, byName = append(flags, "--pass", "fwd,bwd"), append(byName, "--pass", "fwd,bwd")
			}
			dir := t.TempDir()
			ok(t, append(flags, "--out", filepath.Join(dir, "file"))...)
			ok(t, append(byName, "--out", filepath.Join(dir, "name"))...)
			got := readFile(t, filepath.Join(dir, "file"))
			require.Equal(t, name, got.Metadata["problem"])
			require.Equal(t, readFile(t, filepath.Join(dir, "name")), got, "%s %s", name, l)
			if l == input.BHSD {
				want = got
			}
		}
		require.NotEmpty(t, want.Tensors)
	}
}

// packed returns the same sequences in packed form, surrounded by rows of NaN.
func packed(in *input.Input) *input.Input {
	p, args, s := in.Problem, in.Args, new(flashkit.Sequences)
	lens := func(lens []int32) (starts []int32, total int) {
		starts = []int32{2}
		for _, n := range lens {
			starts = append(starts, starts[len(starts)-1]+n)
		}
		return starts, int(starts[len(starts)-1]) + 1
	}
	var rows, keysInAll int
	s.QStarts, rows = lens(in.Args.Seqs.QLens)
	s.KVStarts, keysInAll = lens(in.Args.Seqs.KVLens)
	args.Seqs = s
	for _, a := range flashkit.Arguments() {
		x := a.Of(&in.Args)
		side := input.SideOf(a.Name)
		if x.IsZero() || side != input.Queries && side != input.Keys {
			continue
		}
		shape, starts, lens := x.Shape(), s.QStarts, in.Args.Seqs.QLens
		shape[0], shape[2] = 1, rows
		if side == input.Keys {
			shape[2], starts, lens = keysInAll, s.KVStarts, in.Args.Seqs.KVLens
		}
		y := input.NewTensor(x.DType(), shape, in.Layout)
		for i := range y.Len() {
			input.SetValue(&y, i, float32(math.NaN()))
		}
		for b, n := range lens {
			for h := range shape[1] {
				for r := range int(n) {
					for c := range shape[3] {
						input.SetValue(&y, y.Offset(0, h, int(starts[b])+r)+c, input.Value(x, x.Offset(b, h, r)+c))
					}
				}
			}
		}
		*a.Of(&args) = y
	}
	return &input.Input{Problem: p, Layout: in.Layout, Args: args}
}

// Packed sequences give the same rows of outputs and gradients as padded ones. All other rows are
// 0: nothing was written there.
func TestPackedFiles(t *testing.T) {
	p, err := flashkit.ParseProblem(everything)
	require.NoError(t, err)
	for _, l := range []input.Layout{input.BHSD, input.BSHD} {
		in := input.Random(p, 5, l, true)
		in.Args.Seqs.QLens, in.Args.Seqs.KVLens = []int32{7, 0, 3}, []int32{5, 24, 11} // the longest of each has the maximum length
		dir := t.TempDir()
		run := func(in *input.Input, name string) *safetensors.File {
			flags := append(append([]string{"run", "--check", "--pass", "fwd,bwd", "--out", filepath.Join(dir, name)}, fileFor(t, in)...), onAnyCPU...)
			ok(t, flags...)
			return readFile(t, filepath.Join(dir, name))
		}
		padded, packedIn := run(in, "padded"), packed(in)
		got := run(packedIn, "packed")
		require.Equal(t, padded.Metadata, got.Metadata)
		seqs := packedIn.Args.Seqs
		for _, name := range []string{"o", "dq", "dk", "dv"} {
			want, x := view(t, padded, name, l), view(t, got, name, l)
			starts := seqs.QStarts
			if name == "dk" || name == "dv" {
				starts = seqs.KVStarts
			}
			inside := 0
			for b := range len(starts) - 1 {
				for h := range x.Shape()[1] {
					for r := range int(starts[b+1] - starts[b]) {
						for c := range x.Shape()[3] {
							require.Equal(t, input.Value(&want, want.Offset(b, h, r)+c), input.Value(&x, x.Offset(0, h, int(starts[b])+r)+c), "%s of sequence %d", name, b)
							inside++
						}
					}
				}
			}
			written := 0
			for i := range x.Len() {
				if input.Value(&x, i) != 0 {
					written++
				}
			}
			require.LessOrEqual(t, written, inside, name)
			require.Greater(t, written, inside/3, name)
		}
		for _, name := range []string{"dbias", "dsink"} {
			require.Equal(t, floats(t, padded, name), floats(t, got, name))
		}
	}
}

func view(t *testing.T, f *safetensors.File, name string, l input.Layout) (x flashkit.Tensor) {
	file, found := f.Tensor(name)
	require.True(t, found, name)
	var err error
	if x, err = file.Decode(); l == input.BSHD {
		x, err = file.DecodeBSHD()
	}
	require.NoError(t, err)
	return x
}

// The second half of the keys, continued from the first, gives the result over all keys.
func TestCarryOfFiles(t *testing.T) {
	q, out := f32("q", 0, 1, 2, 3, 4), filepath.Join(t.TempDir(), "whole")
	k, v := values(2*6*4, .5), values(2*6*4, .25)
	half := func(name string, x []float32, from int) safetensors.Tensor {
		return safetensors.FromFloat32s(name, []int{1, 2, 3, 4}, append(append([]float32(nil), x[from*12:][:12]...), x[24+from*12:][:12]...))
	}
	ok(t, append([]string{"run", "--in", writeFile(t, "whole", q, safetensors.FromFloat32s("k", []int{1, 2, 6, 4}, k), safetensors.FromFloat32s("v", []int{1, 2, 6, 4}, v)), "--out", out}, onAnyCPU...)...)
	whole := readFile(t, out)
	ok(t, append([]string{"run", "--in", writeFile(t, "first", q, half("k", k, 0), half("v", v, 0)), "--out", out}, onAnyCPU...)...)
	first := readFile(t, out)
	ok(t, append([]string{"run", "--check", "--carry", "--in", writeFile(t, "second", append(first.Tensors, q, half("k", k, 1), half("v", v, 1))...), "--out", out}, onAnyCPU[:2]...)...)
	both := readFile(t, out)
	for _, name := range []string{"o", "lse"} {
		require.InDeltaSlice(t, floats(t, whole, name), floats(t, both, name), 1e-6)
		require.NotEqual(t, floats(t, first, name), floats(t, both, name))
	}
}

// Biases and masks may leave out dimensions; slopes, sinks and biases may have other types.
func TestShapesAndTypesOfFeatures(t *testing.T) {
	const b, h, n, m = 2, 4, 3, 5
	q, k, v := f32("q", 0, b, h, n, 8), f32("k", .5, b, h, m, 8), f32("v", .25, b, h, m, 8)
	run := func(tensors []safetensors.Tensor, flags ...string) *safetensors.File {
		out := filepath.Join(t.TempDir(), "o")
		ok(t, append(append(append([]string{"run", "--check", "--out", out}, onAnyCPU...), "--in", writeFile(t, "in", append([]safetensors.Tensor{q, k, v}, tensors...)...)), flags...)...)
		return readFile(t, out)
	}
	bias := values(m, 0)
	var want []float32
	for _, shape := range [][]int{{m}, {1, m}, {1, 1, m}, {1, 1, 1, m}} {
		got := floats(t, run([]safetensors.Tensor{safetensors.FromFloat32s("bias", shape, bias)}), "o")
		if want == nil {
			want = got
		}
		require.Equal(t, want, got)
	}
	// The same numbers in bf16, with float32 data and with f16 data.
	bf16 := safetensors.FromUint16s("bias", "BF16", []int{m}, flashkit.ToBF16(bias))
	require.Equal(t, want, floats(t, run([]safetensors.Tensor{bf16}), "o"))
	require.Contains(t, run([]safetensors.Tensor{bf16}, "--dtype", "f16").Metadata["problem"], "f16-bias")

	mask := safetensors.Tensor{Name: "mask", DType: "BOOL", Shape: []int{n, m}, Data: []byte{1, 0, 1, 1, 0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1}}
	same := mask
	same.DType = "U8"
	o := floats(t, run([]safetensors.Tensor{mask}), "o")
	require.Equal(t, o, floats(t, run([]safetensors.Tensor{same}), "o"))
	require.Equal(t, make([]float32, 8), o[8:16], "a row that sees nothing")

	// --alibi is the slopes that a file may also have.
	slopes := safetensors.FromFloat32s("slopes", []int{h}, []float32{.25, .0625, .015625, .00390625})
	require.Equal(t, floats(t, run(nil, "--alibi"), "o"), floats(t, run([]safetensors.Tensor{slopes}), "o"))
	other := safetensors.FromFloat32s("slopes", []int{b, h}, values(b*h, 0))
	require.NotEqual(t, floats(t, run(nil, "--alibi"), "o"), floats(t, run([]safetensors.Tensor{other}, "--alibi"), "o"))
	sink := safetensors.FromUint16s("sink", "F16", []int{h}, flashkit.ToF16([]float32{0, 1, 2, -1}))
	require.Contains(t, run([]safetensors.Tensor{sink}).Metadata["problem"], "-sink")
	lens := safetensors.Tensor{Name: "kv_lens", DType: "I64", Shape: []int{b}, Data: binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 2), 5)}
	require.Contains(t, run([]safetensors.Tensor{lens}).Metadata["problem"], "-ragged")
}

// Lengths and masks of .npy files.
func TestNpyOfFeatures(t *testing.T) {
	dir := t.TempDir()
	file := func(name, descr, shape string, data []byte) string {
		header := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape)
		header += strings.Repeat(" ", 63-(len(header)+10)%64) + "\n"
		text := append([]byte("\x93NUMPY\x01\x00"), byte(len(header)), byte(len(header)>>8))
		path := filepath.Join(dir, name+".npy")
		require.NoError(t, os.WriteFile(path, append(append(text, header...), data...), 0o644))
		return path
	}
	floats := func(n int) (b []byte) {
		for _, x := range values(n, 0) {
			b = binary.LittleEndian.AppendUint32(b, math.Float32bits(x))
		}
		return b
	}
	args := append([]string{"run", "--check", "--json"}, onAnyCPU...)
	for _, path := range []string{file("q", "<f4", "(2, 1, 2, 4)", floats(16)), file("k", "<f4", "(2, 1, 3, 4)", floats(24)), file("v", "<f4", "(2, 1, 3, 4)", floats(24)),
		file("mask", "|b1", "(2, 3)", []byte{1, 1, 0, 1, 1, 1}), file("kv_lens", "<i8", "(2,)", append(binary.LittleEndian.AppendUint64(nil, 3), 1, 0, 0, 0, 0, 0, 0, 0)),
		file("q_lens", "<i4", "(2,)", []byte{2, 0, 0, 0, 1, 0, 0, 0})} {
		args = append(args, "--in", path)
	}
	got := decode(t, ok(t, args...))
	require.Equal(t, "b2-h1-g1-n2-m3-d4-f32-mask-ragged", got["problem"])
	require.Less(t, got["max_abs_error"], 1e-5)
}

// Bad features give one line with the field and the value.
func TestBadFeatures(t *testing.T) {
	q, k, v := f32("q", 0, 2, 4, 5, 8), f32("k", 0, 2, 2, 7, 8), f32("v", 0, 2, 2, 7, 8)
	pool := []safetensors.Tensor{f32("q", 0, 2, 4, 5, 8), f32("k", 0, 3, 2, 4, 8), f32("v", 0, 3, 2, 4, 8)}
	lens := func(name string, x ...int32) safetensors.Tensor {
		return safetensors.FromInt32s(name, []int{len(x)}, x)
	}
	pages := func(w int, x ...int32) safetensors.Tensor {
		return safetensors.FromInt32s("pages", []int{len(x) / w, w}, x)
	}
	good := []safetensors.Tensor{q, k, v}
	wide := safetensors.Tensor{Name: "kv_lens", DType: "I64", Shape: []int{2}, Data: binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, 2), 1<<32+5)}
	for name, test := range map[string]struct {
		tensors []safetensors.Tensor
		flags   string
		want    string
	}{
		"bias of another shape":   {append(good, f32("bias", 0, 2, 4, 5, 6)), "", "Bias.shape = [2 4 5 6]|[2 4 5 7]"},
		"bias that does not":      {append(good, f32("bias", 0, 2, 3, 5, 7)), "", "Bias.shape = [2 3 5 7]"},
		"bias of rank 5":          {append(good, f32("bias", 0, 1, 1, 1, 1, 7)), "", "tensor bias|rank 5"},
		"bias of rank 0":          {append(good, safetensors.FromFloat32s("bias", []int{}, []float32{1})), "", "tensor bias|rank 0"},
		"bias of bools":           {append(good, safetensors.Tensor{Name: "bias", DType: "BOOL", Shape: []int{7}, Data: make([]byte, 7)}), "", "tensor bias|BOOL"},
		"mask of floats":          {append(good, f32("mask", 0, 7)), "", "tensor mask|F32|BOOL or U8"},
		"mask of another shape":   {append(good, safetensors.Tensor{Name: "mask", DType: "U8", Shape: []int{6}, Data: make([]byte, 6)}), "", "Mask.shape = [1 1 1 6]"},
		"slopes of other heads":   {append(good, f32("slopes", 0, 3)), "", "Slopes.shape = [1 3 1 1]"},
		"slopes of rank 3":        {append(good, f32("slopes", 0, 2, 4, 1)), "", "tensor slopes|rank 3"},
		"slopes of rank 4":        {append(good, f32("slopes", 0, 2, 4, 1, 1)), "", "tensor slopes|rank 4"},
		"sink of other heads":     {append(good, f32("sink", 0, 5)), "", "Sink.shape = [1 5 1 1]"},
		"sink of rank 2":          {append(good, f32("sink", 0, 1, 4)), "", "tensor sink|rank 2"},
		"softcap of NaN":          {good, "--softcap NaN", "--softcap|NaN"},
		"softcap of 0":            {good, "--softcap 0", "--softcap|\"0\""},
		"softcap negative":        {good, "--softcap -3", "--softcap|-3"},
		"softcap infinite":        {good, "--softcap inf", "--softcap|inf"},
		"softcap too small":       {good, "--softcap 1e-40", "Score.Softcap = 1e-40"},
		"dropout of 1":            {good, "--dropout 1", "--dropout|\"1\""},
		"dropout nearly 1":        {good, "--dropout 0.99999999", "--dropout|0.99999999"},
		"dropout negative":        {good, "--dropout -0.1", "--dropout|-0.1"},
		"dropout of NaN":          {good, "--dropout NaN", "--dropout|NaN"},
		"seed without dropout":    {good, "--dropout-seed 3", "--dropout-seed"},
		"shift beyond":            {good, "--shift 9223372036854775807", "Band.shift = 9223372036854775807"},
		"shift of a word":         {good, "--shift far", "--shift|far"},
		"length too long":         {append(good, lens("kv_lens", 7, 8)), "", "tensor kv_lens[1] = 8|7"},
		"length negative":         {append(good, lens("q_lens", -1, 2)), "", "tensor q_lens[0] = -1"},
		"lengths too few":         {append(good, lens("q_lens", 2)), "", "tensor q_lens has 1|q has 2"},
		"lengths too many":        {append(good, lens("kv_lens", 2, 3, 4)), "", "tensor kv_lens has 3|k has 2"},
		"length beyond 32 bits":   {append(good, wide), "", "kv_lens|element 1 = 4294967301"},
		"lengths of floats":       {append(good, f32("kv_lens", 0, 2)), "", "tensor kv_lens|F32|I32 or I64"},
		"lengths of rank 2":       {append(good, safetensors.FromInt32s("kv_lens", []int{1, 2}, []int32{1, 2})), "", "tensor kv_lens|rank 2"},
		"starts of nothing":       {append(good, lens("q_starts")), "", "tensor q_starts|empty"},
		"starts that fall":        {[]safetensors.Tensor{f32("q", 0, 1, 4, 5, 8), k, v, lens("q_starts", 0, 4, 3)}, "", "tensor q_starts[2] = 3"},
		"starts beyond":           {[]safetensors.Tensor{f32("q", 0, 1, 4, 5, 8), k, v, lens("q_starts", 0, 4, 6)}, "", "tensor q_starts[2] = 6|5"},
		"starts in two batches":   {append(good, lens("q_starts", 0, 2, 5)), "", "Q.shape"},
		"starts and lengths":      {append(good, lens("q_starts", 0, 2, 5), lens("q_lens", 2, 3)), "", "tensor q_starts"},
		"pages without lengths":   {append(pool, pages(2, 0, 1, 2, 0)), "", "pages|kv_lens"},
		"page beyond the pool":    {append(pool, pages(2, 0, 1, 3, 0), lens("kv_lens", 8, 1)), "", "tensor pages[2] = 3"},
		"page negative":           {append(pool, pages(2, 0, -1, 2, 0), lens("kv_lens", 8, 1)), "", "tensor pages[1] = -1"},
		"pages too few":           {append(pool, pages(2, 0, 1, 2, 0), lens("kv_lens", 8, 9)), "", "tensor kv_lens[1] = 9"},
		"pages of another batch":  {append(pool, pages(2, 0, 1), lens("kv_lens", 8, 1)), "", "pages|kv_lens"},
		"pages of rank 1":         {append(pool, lens("pages", 0, 1), lens("kv_lens", 8, 1)), "", "tensor pages|rank 1"},
		"pages backward":          {append(pool, f32("do", 0, 2, 4, 5, 8), pages(2, 0, 1, 2, 0), lens("kv_lens", 8, 1)), "--pass fwd,bwd", "--pass|pages"},
		"carry of nothing":        {good, "--carry", "tensor o is missing|--carry"},
		"carry without lse":       {append(good, f32("o", 0, 2, 4, 5, 8)), "--carry", "tensor lse is missing"},
		"carry of another shape":  {append(good, f32("o", 0, 2, 4, 5, 7), f32("lse", 0, 2, 4, 5)), "--carry", "O.shape = [2 4 5 7]"},
		"carry of rank 4":         {append(good, f32("o", 0, 2, 4, 5, 8), f32("lse", 0, 2, 4, 5, 1)), "--carry", "tensor lse|rank 4"},
		"carry backward":          {append(good, f32("o", 0, 2, 4, 5, 8), f32("lse", 0, 2, 4, 5), f32("do", 0, 2, 4, 5, 8)), "--carry --pass fwd,bwd", "--pass"},
		"dlse of another shape":   {append(good, f32("do", 0, 2, 4, 5, 8), f32("dlse", 0, 2, 4, 4)), "--pass fwd,bwd", "DLSE.shape = [2 4 4 1]"},
		"heads without rows":      {[]safetensors.Tensor{f32("q", 0, 1, e50, 0, 1), f32("k", 0, 1, 1, 1, 1), f32("v", 0, 1, 1, 1, 1)}, "--alibi", fmt.Sprint("--alibi|", e50)},
		"pages without end":       {[]safetensors.Tensor{f32("q", 0, 1, 1, 1, 1), f32("k", 0, 0, 1, e60, 1), f32("v", 0, 0, 1, e60, 1), pages(9, make([]int32, 9)...), lens("kv_lens", 0)}, "", fmt.Sprint("pages|", e60)},
		"flags beside a problem":  {nil, "--problem b1-h1-g1-n1-m1-d1-f32 --alibi", "--alibi"},
		"softcap and a problem":   {nil, "--problem b1-h1-g1-n1-m1-d1-f32 --softcap 3", "--softcap"},
		"carry and a problem":     {nil, "--problem b1-h1-g1-n1-m1-d1-f32 --carry", "--carry"},
		"pages of a problem":      {nil, "--problem b1-h1-g1-n1-m1-d1-f32-ragged-page4 --pass fwd,bwd", "--pass"},
		"a problem of huge pages": {nil, "--problem b1-h1-g1-n1-m1-d1-f32-ragged-page1152921504606846976", "free"},
		"a problem of sequences":  {nil, "--problem b1125899906842624-h1-g1-n0-m0-d1-f32-ragged", "free"},
		"carry of the sample":     {nil, "--carry", "--carry"},
	} {
		args := append([]string{"run"}, onAnyCPU...)
		if test.tensors != nil {
			args = append(args, "--in", writeFile(t, "in.safetensors", test.tensors...))
		}
		dir := t.TempDir()
		args = append(args, "--out", filepath.Join(dir, "o.safetensors"))
		code, stdout, stderr := flashrun(t, append(args, strings.Fields(test.flags)...)...)
		require.Equal(t, exitUsage, code, "%s: %s%s", name, stdout, stderr)
		requireClear(t, code, stdout, stderr)
		require.Empty(t, stdout, name)
		for _, want := range strings.Split(test.want, "|") {
			require.Contains(t, stderr, want, name)
		}
		left, err := os.ReadDir(dir)
		require.NoError(t, err)
		require.Empty(t, left, name)
	}
}

// Other commands accept problems with features, and name the kernels without them.
func TestFeaturesElsewhere(t *testing.T) {
	out := ok(t, "explain", "b1-h8-g2-n4-m512-d64-f32-softcap50-ragged-page16")
	require.Regexp(t, `\* (simd|wasm)/(decode|fwd)_`, out) // wasm on a CPU without vectors
	out = ok(t, "memory", "--backend", "simd/fwd_generic", "b1-h2-g2-n8-m16-d8-f32-bias-mask", "b1-h2-g2-n8-m16-d8-f32-ragged-page4")
	require.Contains(t, out, "simd/fwd_generic")
	for _, huge := range []string{"b1-h1-g1-n1-m1-d1-f32-ragged-page1152921504606846976", "b1125899906842624-h1-g1-n0-m0-d1-f32-ragged", "b1-h4194304-g1-n4194304-m4-d1-f32-alibi-bias-mask-sink"} {
		ok(t, "memory", "--backend", "simd/fwd_generic", huge)
		ok(t, "explain", huge)
	}
	got := decode(t, ok(t, "bench", "--seq", "32", "--features", "softcap30-alibi-ragged-page4", "--backend", "simd/fwd_generic", "--time-per-case", "1ms", "--limits=false", "--json"))
	results := got["results"].([]any)
	require.Len(t, results, 1, "there is no backward pass for pages")
	require.Equal(t, "b1-h8-g8-n32-m32-d64-f32-softcap30-alibi-ragged-page4", results[0].(map[string]any)["problem"])
	for flags, want := range map[string]string{"--features nonsense": "--features|nonsense", "--features alibi --problem b1-h1-g1-n1-m1-d1-f32": "--features", "--features page4": "Page = 4"} {
		code, _, stderr := flashrun(t, append([]string{"bench"}, strings.Fields(flags)...)...)
		require.Equal(t, exitUsage, code)
		for _, part := range strings.Split(want, "|") {
			require.Contains(t, stderr, part)
		}
	}
}
