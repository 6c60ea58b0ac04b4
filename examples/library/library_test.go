//lint:file-ignore SA4006 the samples of a list leave out what is done with an error

// Package library holds the code samples of docs/library.md and docs/layers.md, so that they compile
// and run.
package library

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/backends/wasm"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/nn/encoder"
)

// Every Go sample of the pages stands in this file, or is a whole file of its own.
func TestPages(t *testing.T) {
	here, err := os.ReadFile("library_test.go")
	require.NoError(t, err)
	mine, err := os.ReadFile("../backend/mine.go")
	require.NoError(t, err)
	layers, err := os.ReadFile("layers_test.go")
	require.NoError(t, err)
	code := plain(string(here)) + plain(string(layers)) + plain(string(mine))
	fence := regexp.MustCompile("(?ms)^```go\n(.*?)^```$")
	for _, page := range []string{"library.md", "layers.md"} {
		text, err := os.ReadFile("../../docs/" + page)
		require.NoError(t, err)
		samples := fence.FindAllStringSubmatch(string(text), -1)
		require.NotEmpty(t, samples, page)
		for _, s := range samples {
			require.True(t, strings.Contains(code, plain(s[1])), "no file has this sample of %s:\n%s", page, s[1])
		}
	}
}

// plain returns code without indentation.
func plain(code string) string {
	lines := strings.Split(code, "\n")
	for i := range lines {
		lines[i] = strings.TrimSpace(lines[i])
	}
	return strings.Join(lines, "\n")
}

var ctx = context.Background()

func nearest(folder string, texts []string) error {
	e, err := encoder.Open(ctx, folder)
	if err != nil {
		return err
	}
	defer e.Close()
	vectors, err := e.Embed(ctx, texts)
	if err != nil {
		return err
	}
	for _, m := range encoder.Nearest(vectors[0], vectors[1:], 3) {
		fmt.Println(m.Cosine, texts[1+m.Index])
	}
	return nil
}

func rerank(folder, query string, texts []string) error {
	e, err := encoder.Open(ctx, folder) // of a reranker
	if err != nil {
		return err
	}
	defer e.Close()
	scores, err := e.Score(ctx, query, texts)
	if err != nil {
		return err
	}
	for i, score := range scores {
		fmt.Println(score, texts[i]) // a greater score is a better answer
	}
	return nil
}

func onGPU(folder string) error {
	gpu, err := cuda.Open()
	if err != nil {
		return err
	}
	defer gpu.Close()
	e, err := encoder.OpenWith(ctx, folder, encoder.Options{GPU: gpu})
	if err != nil {
		return err
	}
	defer e.Close()
	fmt.Println(e.Explain())
	return nil
}

// A published model's tiny sibling stands for a folder. It has no head that scores.
func TestTexts(t *testing.T) {
	require.NoError(t, nearest("../../nn/encoder/testdata/tiny", []string{"1 2", "3", "1 2"}))
	require.Error(t, nearest(t.TempDir(), nil))
	require.ErrorContains(t, rerank("../../nn/encoder/testdata/tiny", "1", []string{"1 2"}), "the model is no reranker")
	if err := onGPU("../../nn/encoder/testdata/tiny"); !errors.Is(err, flashkit.ErrUnavailable) {
		require.NoError(t, err)
	}
}

func open() *dispatch.Dispatcher { return dispatch.New(simd.New()) }

func Example_problem() {
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 2, QLen: 128, KVLen: 512, Dim: 64, VDim: 64, Band: flashkit.Causal()}
	fmt.Println(p) // b1-h8-g2-n128-m512-d64-f32-causal
	q, err := flashkit.ParseProblem("b1-h8-g2-n128-m512-d64-bf16-window128.0")

	fmt.Println(q.DType, q.Band.Left(), err)
	// Output:
	// b1-h8-g2-n128-m512-d64-f32-causal
	// bf16 128 <nil>
}

func Example_fromPyTorch() {
	d := open()
	defer d.Close()
	const B, H, G, N, M, D = 1, 8, 2, 3, 5, 16
	q, k, v, o := make([]float32, B*H*N*D), make([]float32, B*G*M*D), make([]float32, B*G*M*D), make([]float32, B*H*N*D)
	for i := range v {
		v[i] = float32(i/D + 1) // the row's number
	}

	// o = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
	args := &flashkit.Args{
		Q: flashkit.F32(q, B, H, N, D), K: flashkit.F32(k, B, G, M, D),
		V: flashkit.F32(v, B, G, M, D), O: flashkit.F32(o, B, H, N, D),
	}
	err := d.Forward(ctx, flashkit.ProblemOf(args, flashkit.Causal().TopLeft()), args)

	fmt.Println(o[0], o[D], o[2*D], err) // the means of rows 1, 1 and 2, and 1 to 3
	// Output: 1 1.5 2 <nil>
}

func Example_packed() {
	const B, H, G, N, D = 2, 8, 2, 128, 64
	const row = (H + 2*G) * D
	qkv := make([]uint16, B*N*row) // bfloat16 bits
	view := func(x []uint16, heads int) flashkit.Tensor {
		return flashkit.BF16(x, B, heads, N, D).WithStrides(N*row, D, row)
	}
	q, k, v := view(qkv, H), view(qkv[H*D:], G), view(qkv[(H+G)*D:], G)
	o := flashkit.BF16(make([]uint16, B*N*H*D), B, H, N, D).AsBSHD()
	lse := flashkit.F32(make([]float32, B*H*N), B, H, N, 1)

	do := flashkit.BF16(make([]uint16, B*N*H*D), B, H, N, D).AsBSHD()
	grad := func(heads int) flashkit.Tensor {
		return flashkit.BF16(make([]uint16, B*N*heads*D), B, heads, N, D).AsBSHD()
	}
	dq, dk, dv := grad(H), grad(G), grad(G)
	fmt.Println(train(q, k, v, o, lse, do, dq, dk, dv))
	// Output: <nil>
}

func train(q, k, v, o, lse, do, dq, dk, dv flashkit.Tensor) error {
	d, err := dispatch.Default(ctx)
	if err != nil {
		return err
	}
	defer d.Close()

	p, err := flashkit.ParseProblem("b2-h8-g2-n128-m128-d64-bf16-causal")
	if err != nil {
		return err
	}
	err = d.Forward(ctx, p, &flashkit.Args{Q: q, K: k, V: v, O: o, LSE: lse})
	if err != nil {
		return err
	}
	return d.Backward(ctx, p, &flashkit.Args{Q: q, K: k, V: v, O: o, LSE: lse, DO: do, DQ: dq, DK: dk, DV: dv})
}

func Example_decode() {
	d := open()
	defer d.Close()
	const B, H, G, D, Cap = 1, 32, 8, 128, 64
	const tokens = 5
	k, v := make([]float32, B*G*Cap*D), make([]float32, B*G*Cap*D) // [B, G, Cap, D]
	q, o := make([]float32, B*H*D), make([]float32, B*H*D)

	for m := 1; m <= tokens; m++ {
		// Write the new key and value to row m-1 of each head, and q. Then:
		p := flashkit.Problem{Batch: B, Heads: H, KVHeads: G, QLen: 1, KVLen: m, Dim: D, VDim: D}
		err := d.Forward(ctx, p, &flashkit.Args{
			Q: flashkit.F32(q, B, H, 1, D),
			K: flashkit.F32(k, B, G, m, D).WithStrides(G*Cap*D, Cap*D, D),
			V: flashkit.F32(v, B, G, m, D).WithStrides(G*Cap*D, Cap*D, D),
			O: flashkit.F32(o, B, H, 1, D),
		})
		if err != nil {
			log.Fatal(err)
		}
	}
	fmt.Println(o[0])
	// Output: 0
}

func Example_features() {
	d := open()
	defer d.Close()
	const H, G, D = 8, 2, 16
	q, k, v, o := make([]float32, H*5*D), make([]float32, G*5*D), make([]float32, G*5*D), make([]float32, H*5*D)
	for i := range v {
		v[i] = float32(i/D%5 + 1) // the token's number
	}

	starts := []int32{0, 3, 5} // as cu_seqlens
	args := &flashkit.Args{
		Q: flashkit.F32(q, 1, H, 5, D), K: flashkit.F32(k, 1, G, 5, D),
		V: flashkit.F32(v, 1, G, 5, D), O: flashkit.F32(o, 1, H, 5, D),
		Seqs: &flashkit.Sequences{QStarts: starts, KVStarts: starts},
	}
	err := d.Forward(ctx, flashkit.ProblemOf(args, flashkit.Causal()), args)

	fmt.Println(o[0], o[D], o[2*D], o[3*D], o[4*D], err)
	// Output: 1 1.5 2 4 4.5 <nil>
}

func Example_ranges() {
	d := open()
	defer d.Close()
	const H, N, D = 2, 5, 16
	q, k, v, o := make([]float32, H*N*D), make([]float32, H*N*D), make([]float32, H*N*D), make([]float32, H*N*D)
	for i := range v {
		v[i] = float32(i/D%N + 1) // the token's number
	}

	args := &flashkit.Args{Q: flashkit.F32(q, 1, H, N, D), K: flashkit.F32(k, 1, H, N, D), V: flashkit.F32(v, 1, H, N, D), O: flashkit.F32(o, 1, H, N, D)}
	args.Ranges = flashkit.DocumentRanges(3, 2) // N = M = 5, the same for all sequences and heads
	p := flashkit.ProblemOf(args, flashkit.Causal())
	err := d.Forward(ctx, p, args)

	fmt.Println(p, o[0], o[D], o[2*D], o[3*D], o[4*D], err)
	// Output: b1-h2-g2-n5-m5-d16-f32-causal-ranges1 1 1.5 2 4 4.5 <nil>
}

func Example_pages() {
	d := open()
	defer d.Close()
	const H, G, D = 8, 2, 16
	q, pool, o := make([]float32, 2*H*D), make([]float32, 8*G*16*D), make([]float32, 2*H*D)
	for i := range pool {
		pool[i] = float32(i / D / 16 / G) // the page's number
	}

	args := &flashkit.Args{
		Q: flashkit.F32(q, 2, H, 1, D), K: flashkit.F32(pool, 8, G, 16, D), V: flashkit.F32(pool, 8, G, 16, D), O: flashkit.F32(o, 2, H, 1, D),
		Seqs: &flashkit.Sequences{KVLens: []int32{20, 3}, Pages: []int32{5, 0, 2, 7, 1, 3}}, // pages of sequence 0, then of 1
	}
	p := flashkit.ProblemOf(args, flashkit.Band{}) // b2-h8-g2-n1-m48-d16-f32-ragged-page16
	err := d.Forward(ctx, p, args)
	args.Seqs.KVLens[1]++ // one more token

	fmt.Println(p, o[0], o[H*D], err) // 16 keys of page 5 and 4 of page 0; 3 of page 7
	// Output: b2-h8-g2-n1-m48-d16-f32-ragged-page16 4 7 <nil>
}

func Example_sharedPrefix() {
	d := open()
	defer d.Close()
	const H, G, D = 8, 2, 16
	q, pool, o := make([]float32, 2*H*D), make([]float32, 8*G*16*D), make([]float32, 2*H*D)
	for i := range pool {
		pool[i] = float32(i / D / 16 / G) // the page's number
	}
	k := flashkit.F32(pool, 8, G, 16, D)
	v := k
	args := &flashkit.Args{Q: flashkit.F32(q, 2, H, 1, D), K: k, V: v, O: flashkit.F32(o, 2, H, 1, D),
		Seqs: &flashkit.Sequences{KVLens: []int32{16, 32}, Pages: []int32{5, 0, 7, 3}}}

	prefix := &dispatch.Prefix{K: k, V: v, Pages: []int32{0, 1}, Len: 32} // or K and V [1, G, P, D]
	err := d.ForwardPrefix(ctx, flashkit.ProblemOf(args, flashkit.Band{}), prefix, args)

	fmt.Println(o[0], o[H*D], err) // means of pages 0, 1 and 5; of 0, 1, 7 and 3
	// Output: 2 2.75 <nil>
}

func Example_statistics() {
	d := open()
	defer d.Close()
	const B, H, N, M, D = 1, 1, 2, 2, 1
	k := flashkit.F32([]float32{0, 2}, B, H, M, D)
	args := &flashkit.Args{Q: flashkit.F32([]float32{1, 1}, B, H, N, D), K: k, V: k, O: flashkit.Zeros(flashkit.Float32, B, H, N, D)}

	args.RowMax, args.KeyMass = flashkit.Zeros(flashkit.Float32, B, H, N, 1), flashkit.Zeros(flashkit.Float32, B, H, 1, M)
	p := flashkit.ProblemOf(args, flashkit.Causal())
	err := d.Forward(ctx, p, args)

	fmt.Printf("%.4f %.4f %v", args.RowMax.Float32s(), args.KeyMass.Float32s(), err)
	// Output: [0.0000 2.0000] [1.1192 0.8808] <nil>
}

func Example_choose() {
	d := open()
	defer d.Close()
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 8, QLen: 128, KVLen: 128, Dim: 64, VDim: 64}

	only, err := d.With("simd/fwd_generic")             // or "simd", or "auto"
	verdicts, err := d.Explain(p, flashkit.PassForward) // every kernel: chosen, or why not
	k, err := d.Pick(p, flashkit.PassForward)           // the kernel itself
	d = d.WithFailover(func(f dispatch.Failover) {      // off by default
		log.Printf("%s failed on %s: %v; running %s", f.Failed, f.Problem, f.Err, f.Next)
	})

	fmt.Println(only != nil, len(verdicts) > 0, k.Name != "", err)
	// Output: true true true <nil>
}

func Example_learned() {
	folder, err := os.MkdirTemp("", "flashkit")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(folder)
	os.Setenv("FLASHKIT_PROFILE", filepath.Join(folder, "profile"))
	defer os.Setenv("FLASHKIT_PROFILE", "off")
	d := open()
	defer d.Close()
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 8, QLen: 128, KVLen: 128, Dim: 64, VDim: 64}

	d = d.Frozen()                                                           // from now on the same choices
	d = d.Blank()                                                            // forget the profile and all probes
	err = d.ProfileErr()                                                     // why the profile was ignored, or nil
	err = d.Probe(ctx, p, flashkit.PassForward)                              // probe now, not during a later call
	d = d.WithObserver(func(r dispatch.Ran) { log.Print(r.Kernel, r.Took) }) // every call
	path, err := d.ProfilePath()                                             // where All and Default look
	err = d.SaveProfile(path)                                                // nothing else writes to disk
	err = d.LoadProfile(path)

	fmt.Println(err)
	// Output: <nil>
}

func Example_errors() {
	d := open()
	defer d.Close()
	x := flashkit.F32(make([]float32, 64), 1, 1, 1, 64)
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 3, QLen: 1, KVLen: 1, Dim: 64, VDim: 64}

	err := d.Forward(ctx, p, &flashkit.Args{Q: x, K: x, V: x, O: x})
	var wrong *flashkit.ProblemError
	switch {
	case errors.As(err, &wrong): // fix the call
		fmt.Println(wrong.Field, wrong.Value, wrong.Reason)
	case errors.Is(err, errors.ErrUnsupported): // no kernel takes this problem
	case errors.Is(err, context.Canceled): // the outputs are undefined
	}
	// Output: KVHeads 3 must divide Heads = 8
}

func Example_sandbox() {
	w, err := wasm.New(ctx, wasm.MemoryLimit(256<<20))
	if err != nil {
		log.Fatal(err)
	}
	d := dispatch.New(w, simd.New())
	defer d.Close()
	fmt.Println(len(d.Kernels()) > 4)
	// Output: true
}

// The page shows the workspace of one worker of the portable kernels.
func TestWorkspace(t *testing.T) {
	page, err := os.ReadFile("../../docs/library.md")
	require.NoError(t, err)
	const D, DV, span = 96, 40, 64
	forward, backward := 64*(D+2*DV+2)+64*(D+DV+2), 64*(D+DV+2)+DV+192*(D+DV)+8192
	require.Contains(t, string(page), "64 (D+2DV+2) + 64 (D+DV+2)\n")
	require.Contains(t, string(page), "64 (D+DV+2) + DV + 192 (D+DV) + 8192\n")
	for _, k := range simd.New().Kernels() {
		p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 64, KVLen: 64, Dim: D, VDim: DV}
		switch k.Name {
		case "simd/fwd_generic": // one item
			require.EqualValues(t, 4*forward+span, k.Needs(p.Ask(k.Pass)).Host)
		case "simd/bwd_generic": // an item of keys and one of query rows
			require.EqualValues(t, 4*backward*min(2, runtime.GOMAXPROCS(0))+2*span, k.Needs(p.Ask(k.Pass)).Host)
		}
	}
}

// mistakes are calls that docs/limits.md lists with their error.
func mistakes(d *dispatch.Dispatcher) []error {
	const B, H, N, D = 1, 8, 4, 16
	p := flashkit.Problem{Batch: B, Heads: H, KVHeads: H, QLen: N, KVLen: N, Dim: D, VDim: D}
	x := func() []float32 { return make([]float32, B*H*N*D) }
	view := func(x []float32) flashkit.Tensor { return flashkit.F32(x, B, H, N, D) }
	q, k, v := view(x()), view(x()), view(x())
	forward := func(change func(p *flashkit.Problem, f *flashkit.Args)) error {
		p, f := p, flashkit.Args{Q: q, K: k, V: v, O: view(x())}
		change(&p, &f)
		return d.Forward(ctx, p, &f)
	}
	return []error{
		forward(func(_ *flashkit.Problem, f *flashkit.Args) { f.Q = flashkit.F32(x(), B, N, H, D) }),
		forward(func(_ *flashkit.Problem, f *flashkit.Args) { f.Q = flashkit.F32(x()[1:], B, H, N, D) }),
		forward(func(_ *flashkit.Problem, f *flashkit.Args) { f.O = f.Q }),
		forward(func(p *flashkit.Problem, _ *flashkit.Args) { p.DType = flashkit.BFloat16 }),
		forward(func(p *flashkit.Problem, _ *flashkit.Args) { p.KVHeads = 0 }),
		forward(func(p *flashkit.Problem, _ *flashkit.Args) { p.VDim = 0 }),
		forward(func(p *flashkit.Problem, _ *flashkit.Args) { p.Scale = -1 }),
		forward(func(_ *flashkit.Problem, f *flashkit.Args) { f.LSE = flashkit.F32(x(), 1, B, H, N) }),
		d.Backward(ctx, p, &flashkit.Args{Q: q, K: k, V: v, O: view(x()), DO: view(x())}),
	}
}

func TestMistakes(t *testing.T) {
	page, err := os.ReadFile("../../docs/limits.md")
	require.NoError(t, err)
	d := open()
	defer d.Close()
	for _, err := range mistakes(d) {
		var wrong *flashkit.ProblemError
		require.ErrorAs(t, err, &wrong)
		require.True(t, strings.Contains(string(page), "| `"+err.Error()+"` |"), "no row of the page begins with `%s`", err)
	}
}

// device is the sample of docs/library.md for device memory. It is only compiled, as it needs a GPU.
func device(p flashkit.Problem, host []uint16, bytes, batch, heads, rows, dim int) error {
	b, err := cuda.Open()            // or OpenDevice(n)
	s, err := b.NewStream()          // or WrapStream, for a stream of another library
	m, err := b.Alloc(bytes)         // or Wrap, for memory of another library
	err = cuda.Upload(s, m, 0, host) // or UploadTensor
	q := m.Tensor(flashkit.BFloat16, 0, batch, heads, rows, dim)

	var k, v, o, lse, do, dq, dk, dv flashkit.Tensor // made in the same way

	err = b.Forward(ctx, s, p, &flashkit.Args{Q: q, K: k, V: v, O: o, LSE: lse})
	err = b.Backward(ctx, s, p, &flashkit.Args{Q: q, K: k, V: v, O: o, LSE: lse, DO: do, DQ: dq, DK: dk, DV: dv})
	err = s.Sync()
	return err
}

var _ = device
