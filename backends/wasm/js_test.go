package wasm

import (
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// jsPackage returns a folder with the files of the npm package, as a user installs them.
func jsPackage(t *testing.T) string {
	var manifest struct {
		Files   []string
		Type    string
		Exports map[string]any
	}
	text, err := os.ReadFile("js/package.json")
	require.NoError(t, err)
	require.NoError(t, json.Unmarshal(text, &manifest))
	require.Equal(t, "module", manifest.Type)
	folder := t.TempDir()
	for _, name := range append(manifest.Files, "package.json", "README.md") {
		from := filepath.Join("js", name)
		if name == "kernel.wasm" {
			from = "kernel/kernel.wasm"
		}
		file, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(folder, name), file, 0o666))
	}
	return folder
}

// node runs a script of js/test and returns its output.
func node(t *testing.T, script string, args ...string) []byte {
	slow.UnderRace(t)
	path, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node on this machine")
	}
	cmd := exec.CommandContext(t.Context(), path, append([]string{filepath.Join("js/test", script)}, args...)...)
	var said strings.Builder
	cmd.Stderr = &said
	out, err := cmd.Output()
	require.NoError(t, err, "%s", said.String())
	return out
}

// flashkit.js accepts the module that Go embeds, and no other.
func TestJSHash(t *testing.T) {
	text, err := os.ReadFile("js/flashkit.js")
	require.NoError(t, err)
	sum := sha256.Sum256(kernelWasm)
	require.Contains(t, string(text), `export const SHA256 = "`+hex.EncodeToString(sum[:])+`"`)
}

// In Node, flashkit.js computes all golden vectors and random problems within their bounds, and refuses wrong
// arguments.
func TestJS(t *testing.T) {
	testdata, err := filepath.Abs("../../conformance/testdata")
	require.NoError(t, err)
	files, err := filepath.Glob(testdata + "/*.safetensors.gz")
	require.NoError(t, err)
	all, lacking := len(files), regexp.MustCompile(`^(ranges|int8|rowmax|keymass)_`)
	files = slices.DeleteFunc(files, func(file string) bool { return lacking.MatchString(filepath.Base(file)) })
	require.Less(t, len(files), all)
	seed := rand.Uint32()
	t.Log("seed", seed)
	var got struct{ Cases, Runs, Random, Wrong int }
	require.NoError(t, json.Unmarshal(node(t, "test.mjs", jsPackage(t), testdata, fmt.Sprint(seed)), &got))
	require.Equal(t, len(files)+18, got.Cases, "each file of the grid has two cases, and forms that flashkit.js lacks have none")
	require.Greater(t, got.Runs, 4000)
	require.Equal(t, 40, got.Random)
	require.Greater(t, got.Wrong, 130)
}

// A jsCalls is a list of calls for js/test/bits.mjs, with the hashes of their outputs in Go.
type jsCalls struct {
	calls []map[string]any
	data  []byte
	want  []map[string]string
	about []string
}

// array adds an array to the data and returns its description.
func (x *jsCalls) array(kind string, values any) []any {
	for len(x.data)%8 != 0 {
		x.data = append(x.data, 0)
	}
	from := len(x.data)
	var err error
	if x.data, err = binary.Append(x.data, binary.LittleEndian, values); err != nil {
		panic(err)
	}
	return []any{kind, from, binary.Size(values) / map[string]int{"Float32Array": 4, "Int32Array": 4, "Uint16Array": 2, "Uint8Array": 1}[kind]}
}

// tensor adds a dense tensor and returns its description.
func (x *jsCalls) tensor(t flashkit.Tensor) map[string]any {
	d := map[string]any{"shape": t.Shape()}
	switch t.DType() {
	case flashkit.Float32:
		d["data"] = x.array("Float32Array", t.Float32s())
	case flashkit.Bool:
		d["data"] = x.array("Uint8Array", t.Bools())
	default:
		d["data"], d["dtype"] = x.array("Uint16Array", t.Uint16s()), t.DType().String()
	}
	return d
}

func hashOf(t flashkit.Tensor) string {
	h := sha256.New()
	var values any = t.Float32s()
	if t.DType() != flashkit.Float32 {
		values = t.Uint16s()
	}
	if err := binary.Write(h, binary.LittleEndian, values); err != nil {
		panic(err)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// randomJSProblem returns a random problem. Lengths are near the multiples of the module's tiles.
func randomJSProblem(r *rand.Rand) flashkit.Problem {
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	g := pick(1, 2, 3)
	p := flashkit.Problem{
		Batch: pick(1, 2), Heads: g * pick(1, 2, 4), KVHeads: g, QLen: pick(1, 2, 7, 16, 65, 128, 150, 260), KVLen: pick(1, 9, 127, 128, 129, 300, 700, 1100),
		Dim: pick(1, 8, 17, 40, 64), DType: []flashkit.DType{flashkit.Float32, flashkit.Float16, flashkit.BFloat16}[r.IntN(3)],
	}
	p.VDim = pick(p.Dim, 5, 24)
	p.Band = []flashkit.Band{{}, flashkit.Causal(), flashkit.Window(90, 7), flashkit.Window(flashkit.Unlimited, 3).TopLeft().Shift(-2), flashkit.Window(5, flashkit.Unlimited).Shift(11)}[r.IntN(5)]
	maybe := func() bool { return r.IntN(4) == 0 }
	s := &p.Score
	s.ALiBi, s.Bias, s.Mask, s.Sink, p.Ragged = maybe(), maybe(), maybe(), maybe(), maybe()
	if maybe() {
		s.Softcap = 1 + r.Float32()*5
	}
	if maybe() {
		s.Dropout, s.Origin = r.Float32()*.5, maybe()
	}
	if maybe() {
		p.Scale = .05 + r.Float32()/4
	}
	return p
}

// fillJS returns a tensor of random numbers in [-1, 1), or of bytes of a mask.
func fillJS(r *rand.Rand, t flashkit.DType, s [4]int) flashkit.Tensor {
	x := flashkit.Zeros(t, s[0], s[1], s[2], s[3])
	for i := range x.Float32s() {
		x.Float32s()[i] = r.Float32()*2 - 1
	}
	for i := range x.Uint16s() {
		if x.Uint16s()[i] = uint16(r.IntN(0x3c00)) | uint16(r.IntN(2))<<15; t == flashkit.BFloat16 {
			x.Uint16s()[i] = uint16(0x3c00+r.IntN(0x380)) | uint16(r.IntN(2))<<15
		}
	}
	for i := range x.Bools() {
		x.Bools()[i] = r.IntN(4) > 0
	}
	return x
}

// randomJSArgs returns the arguments of both passes of p. Bias and mask broadcast random dimensions.
func randomJSArgs(r *rand.Rand, p flashkit.Problem) (fwd, bwd *flashkit.Args) {
	fwd, bwd = flashkit.NewArgs(p, flashkit.PassForward), flashkit.NewArgs(p, flashkit.PassBackward)
	pairs := func() [4]int {
		s := [4]int{p.Batch, p.Heads, p.QLen, p.KVLen}
		for d := range 3 {
			if r.IntN(2) == 0 {
				s[d] = 1
			}
		}
		return s
	}
	a := fwd
	a.Q, a.K, a.V = fillJS(r, p.DType, p.QShape()), fillJS(r, p.DType, p.KShape()), fillJS(r, p.DType, p.VShape())
	if p.Score.Bias {
		a.Bias = fillJS(r, []flashkit.DType{flashkit.Float32, p.DType}[r.IntN(2)], pairs())
		s := a.Bias.Shape()
		bwd.DBias = flashkit.Zeros(a.Bias.DType(), s[0], s[1], s[2], s[3])
	}
	if p.Score.Mask {
		a.Mask = fillJS(r, flashkit.Bool, pairs())
	}
	if p.Score.ALiBi {
		a.Slopes = fillJS(r, flashkit.Float32, [4]int{1 + (p.Batch-1)*r.IntN(2), p.Heads, 1, 1})
	}
	if p.Score.Sink {
		a.Sink = fillJS(r, flashkit.Float32, [4]int{1, p.Heads, 1, 1})
	}
	a.Seed = r.Uint64()
	if p.Score.Origin {
		a.Origin = flashkit.Origin{Batch: 3, Head: 5, Row: r.IntN(1000), Key: 8 * r.IntN(100)}
	}
	if p.Ragged {
		for range p.Batch {
			a.Seqs.QLens, a.Seqs.KVLens = append(a.Seqs.QLens, int32(r.IntN(p.QLen+1))), append(a.Seqs.KVLens, int32(r.IntN(p.KVLen+1)))
		}
	}
	b := bwd
	b.Q, b.K, b.V, b.Bias, b.Mask, b.Slopes, b.Sink, b.Seed, b.Origin, b.Seqs = a.Q, a.K, a.V, a.Bias, a.Mask, a.Slopes, a.Sink, a.Seed, a.Origin, a.Seqs
	b.O, b.LSE, b.DO, b.DLSE, b.DSink = a.O, a.LSE, fillJS(r, p.DType, p.OShape()), fillJS(r, flashkit.Float32, p.LSEShape()), flashkit.Tensor{}
	return fwd, bwd
}

// describe returns the arguments that both passes have in JavaScript.
func (x *jsCalls) describe(p flashkit.Problem, a *flashkit.Args) map[string]any {
	d := map[string]any{"q": x.tensor(a.Q), "k": x.tensor(a.K), "v": x.tensor(a.V), "topLeft": p.Band.IsTopLeft(), "shift": p.Band.Shifted()}
	side := func(n int) any {
		if n == flashkit.Unlimited {
			return int64(1) << 40 // JSON has no Infinity
		}
		return n
	}
	d["window"] = []any{side(p.Band.Left()), side(p.Band.Right())}
	s := p.Score
	for name, v := range map[string]float32{"scale": p.Scale, "softcap": s.Softcap, "dropout": s.Dropout} {
		if v != 0 {
			d[name] = float64(v)
		}
	}
	if s.Bias {
		d["bias"] = x.tensor(a.Bias)
	}
	if s.Mask {
		d["mask"] = x.tensor(a.Mask)
	}
	if s.ALiBi {
		d["slopes"] = x.array("Float32Array", a.Slopes.Float32s())
	}
	if s.Sink {
		d["sink"] = x.array("Float32Array", a.Sink.Float32s())
	}
	d["seed"] = fmt.Sprint(a.Seed)
	if s.Origin {
		d["origin"] = map[string]int{"batch": a.Origin.Batch, "head": a.Origin.Head, "row": a.Origin.Row, "key": a.Origin.Key}
	}
	if p.Ragged {
		d["qLens"], d["kvLens"] = a.Seqs.QLens, a.Seqs.KVLens
	}
	return d
}

// add runs a problem on all kernels in Go, and adds the calls with the hashes of their outputs.
func (x *jsCalls) add(t *testing.T, b *Backend, p flashkit.Problem, fwd, bwd *flashkit.Args) {
	forward := x.describe(p, fwd)
	back := maps.Clone(forward)
	for _, stem := range []string{"decode_simd128", "fwd_scalar", "fwd_simd128", "bwd_scalar", "bwd_simd128"} {
		for _, k := range b.Kernels() {
			args, pass, in := fwd, "forward", forward
			if k.Pass == flashkit.PassBackward {
				args, pass, in = bwd, "backward", back
			}
			if k.Name != "wasm/"+stem || within(&k, p) != p {
				continue
			}
			require.NoError(t, k.Compute(t.Context(), p, args), "%s %v", stem, p)
			in = maps.Clone(in)
			in["kernel"] = stem
			want := map[string]string{"o": hashOf(fwd.O), "lse": hashOf(fwd.LSE)}
			if pass == "forward" {
				in["lse"] = true
			} else {
				want = map[string]string{"dQ": hashOf(bwd.DQ), "dK": hashOf(bwd.DK), "dV": hashOf(bwd.DV)}
				if in["dBias"] = p.Score.Bias; p.Score.Bias {
					want["dBias"] = hashOf(bwd.DBias)
				}
			}
			x.calls, x.want = append(x.calls, map[string]any{"pass": pass, "args": in}), append(x.want, want)
			x.about = append(x.about, fmt.Sprintf("%s %v", stem, p))
			back["o"], back["lse"] = x.tensor(fwd.O), x.array("Float32Array", fwd.LSE.Float32s())
			back["dO"], back["dLSE"] = x.tensor(bwd.DO), x.array("Float32Array", bwd.DLSE.Float32s())
		}
	}
}

// flashkit.js gives the bits of the Go backend, in both passes, on random problems.
func TestJSBits(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	t.Log("seed", seed)
	r, x, b := rand.New(rand.NewPCG(seed, 0)), new(jsCalls), newBackend(t, compiler)
	for range 25 {
		p := randomJSProblem(r)
		fwd, bwd := randomJSArgs(r, p)
		x.add(t, b, p, fwd, bwd)
	}
	// The sums of a bias that more than 512 heads and sequences share, and a chunk of keys of a wide head.
	for _, name := range []string{"b9-h64-g2-n3-m40-d8-f32-bias", "b1-h1-g1-n70-m600-d600-f32", "b1-h2-g1-n130-m1100-d16-bf16-bias"} {
		p := problem(t, name)
		fwd, bwd := randomJSArgs(r, p)
		if p.Score.Bias {
			fwd.Bias = fillJS(r, p.DType, [4]int{1, 1, 1, p.KVLen})
			bwd.Bias, bwd.DBias = fwd.Bias, flashkit.Zeros(p.DType, 1, 1, 1, p.KVLen)
		}
		x.add(t, b, p, fwd, bwd)
	}
	folder := t.TempDir()
	text, err := json.Marshal(x.calls)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(folder, "calls.json"), text, 0o666))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "data.bin"), x.data, 0o666))
	lines := strings.Split(strings.TrimSpace(string(node(t, "bits.mjs", jsPackage(t), folder))), "\n")
	require.Len(t, lines, len(x.want))
	require.Greater(t, len(lines), 100)
	for i, line := range lines {
		var got map[string]string
		require.NoError(t, json.Unmarshal([]byte(line), &got))
		require.Equal(t, x.want[i], got, x.about[i])
	}
	require.Less(t, len(x.data), math.MaxInt32)
}

// The first results of docs/bindings.md and of the package's README run as printed, in a folder with the package.
func TestJSGuides(t *testing.T) {
	slow.UnderRace(t)
	path, err := exec.LookPath("node")
	if err != nil {
		t.Skip("no node on this machine")
	}
	folder := jsPackage(t)
	for _, guide := range []struct{ file, prints string }{{"../../docs/bindings.md", "0 1 2 3\n"}, {"js/README.md", ""}} {
		text, err := os.ReadFile(guide.file)
		require.NoError(t, err)
		_, code, found := strings.Cut(string(text), "\n```js\n")
		require.True(t, found, guide.file)
		code, _, _ = strings.Cut(code, "```")
		script := filepath.Join(folder, "guide.mjs")
		require.NoError(t, os.WriteFile(script, []byte(code), 0o666))
		out, err := exec.CommandContext(t.Context(), path, script).CombinedOutput()
		require.NoError(t, err, "%s: %s", guide.file, out)
		require.Equal(t, guide.prints, string(out))
	}
}
