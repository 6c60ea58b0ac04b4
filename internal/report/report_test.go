package report

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"math"
	"math/big"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/machine"
)

// render returns a page or, with a name, one of its plots.
func render(t *testing.T, p *Page, plot string) []byte {
	t.Helper()
	var out bytes.Buffer
	write := p.WriteHTML
	if plot != "" {
		write = func(w io.Writer) error { return p.WriteSVG(w, p.Figure(plot)) }
	}
	require.NoError(t, write(&out))
	return out.Bytes()
}

// made returns a result like bench's, of a kernel with the given GFLOP/s.
func made(p flashkit.Problem, pass flashkit.Pass, kernel, memory string, gflops float64, chosen bool) bench.Result {
	seconds := p.FLOPs(pass)/gflops/1e9 + 2e-6
	r := bench.Result{Problem: p.String(), Pass: pass.String(), Backend: bench.BackendOf(kernel), Kernel: kernel, Memory: memory, Chosen: chosen,
		Seconds: seconds, P10: .9 * seconds, P25: .95 * seconds, P75: 1.1 * seconds, P90: 1.2 * seconds, Calls: 10, Rounds: []float64{seconds}, ExtraBytes: 1 << 16}
	r.GFLOPS, r.BytesPerSecond, r.Intensity = p.FLOPs(pass)/seconds/1e9, p.Bytes(pass)/seconds, p.FLOPs(pass)/p.Bytes(pass)
	if r.Backend == "cuda" {
		r.Device = &bench.DeviceBytes{Tensors: 1 << 20, Workspace: 1 << 12}
	}
	return r
}

func made1(t flashkit.DType, heads, n, m, d int, mask flashkit.Band) flashkit.Problem {
	return flashkit.Problem{Batch: 1, Heads: heads, KVHeads: heads, QLen: n, KVLen: m, Dim: d, VDim: d, DType: t, Band: mask}
}

// wideResults are of a machine that has everything, over a grid of everything.
func wideResults() *bench.Results {
	r := &bench.Results{Format: bench.Format, Started: time.Date(2026, time.November, 2, 0, 0, 0, 0, time.UTC), Interrupted: true,
		Machine:  machine.Info{OS: "linux", Arch: "amd64", CPU: "A Processor With <Quite> a Long Name & More @ 3.50GHz", CPUs: 64, GOMAXPROCS: 64, GPU: "A GPU", Go: "go1.25"},
		Settings: bench.Settings{Kernels: "all", Rounds: 5, TimePerCase: .5},
		Failures: []bench.CaseError{{Problem: "b1-h1-g1-n1-m1-d1-f32", Kernel: "wasm/fwd_scalar", Pass: "forward", Error: "no <luck>"}}}
	for i, t := range []flashkit.DType{flashkit.Float32, flashkit.BFloat16} {
		r.Limits = append(r.Limits, machine.Limit{Memory: machine.Host, Name: t.String(), GFLOPS: 4000, How: "made up"},
			machine.Limit{Memory: machine.Device, Name: t.String(), GFLOPS: 60000 * math.Pow(16, float64(i)), How: "made up"})
		for _, mask := range []flashkit.Band{{}, flashkit.Causal(), flashkit.Window(1024, 0)} {
			for n := 64; n <= 32768; n *= 2 {
				for _, pass := range []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward} {
					p := made1(t, 16, n, n, 128, mask)
					stem := map[flashkit.Pass]string{flashkit.PassForward: "fwd", flashkit.PassBackward: "bwd"}[pass]
					r.Results = append(r.Results, made(p, pass, "simd/"+stem+"_avx512", machine.Host, 900, n < 512), made(p, pass, "simd/"+stem+"_avx512bf16", machine.Host, 1000, false),
						made(p, pass, "wasm/"+stem+"_simd128", machine.Host, 30, false), made(p, pass, "cuda/"+stem+"_sm80", machine.Host, min(4e3*float64(1+n/256), 5e4), n >= 512),
						made(p, pass, "cuda/"+stem+"_sm80", machine.Device, min(3e4*float64(1+n/256), 5.5e4*math.Pow(8, float64(i))), false))
				}
				decode := made1(t, 16, 1, n, 128, mask)
				r.Results = append(r.Results, made(decode, flashkit.PassForward, "simd/decode_avx512", machine.Host, 60, true))
			}
		}
	}
	r.Limits = append(r.Limits, machine.Limit{Memory: machine.Host, Name: "copy", BytesPerSecond: 2e11, How: "made up"}, machine.Limit{Memory: machine.Device, Name: "copy", BytesPerSecond: 4e12, How: "made up"})
	return r
}

// oneResult is the least there can be: nothing to compare, and no limits.
func oneResult() *bench.Results {
	p := made1(flashkit.Float32, 1, 100, 100, 64, flashkit.Band{})
	return &bench.Results{Format: bench.Format, Limits: []machine.Limit{}, Results: []bench.Result{made(p, flashkit.PassForward, "simd/fwd_generic", machine.Host, 5, false)}}
}

// naiveResults have the baseline and two kernels.
func naiveResults() *bench.Results {
	r := oneResult()
	r.Results = nil
	for _, t := range []flashkit.DType{flashkit.Float32, flashkit.BFloat16} {
		for n := 128; n <= 8192; n *= 2 {
			for _, pass := range []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward} {
				p := made1(t, 4, n, n, 64, flashkit.Causal())
				naive := made(p, pass, naiveNames[pass], machine.Host, 4, false)
				naive.ExtraBytes = bench.NewMemoryTable(p, pass).Written().Bytes.Int64()
				r.Results = append(r.Results, naive, made(p, pass, portable[pass], machine.Host, 5, false), made(p, pass, strings.Replace(portable[pass], "generic", "avx2", 1), machine.Host, 100, true))
			}
		}
	}
	return r
}

// manyKinds has more kernels than colors, at nearly the same speed, and lengths
// that are close to each other.
func manyKinds() *bench.Results {
	r := &bench.Results{Format: bench.Format, Machine: machine.Info{Arch: "riscv64"}, Limits: []machine.Limit{{Memory: machine.Host, Name: "f16", GFLOPS: 7}}}
	for n := 1000; n < 1030; n += 3 {
		for k := range 12 {
			r.Results = append(r.Results, made(made1(flashkit.Float16, 2, n, n, 8, flashkit.Band{}), flashkit.PassForward, fmt.Sprintf("mine/fwd_number%d", k), machine.Host, 5+float64(k)/100, k == n%12))
		}
	}
	return r
}

// The page shows the figures that the results have, and the memory that the
// formulas give.
func TestReportPage(t *testing.T) {
	page := string(render(t, New(wideResults()), ""))
	for _, want := range []string{
		"Attention on A GPU", "A Processor With &lt;Quite&gt; a Long Name &amp; More @ 3.50GHz", "The measurement was interrupted", "no &lt;luck&gt;",
		"In all of them: D 128, B 1, H 16.",
		"simd/fwd_avx512, b1-h16-g16-n64-m64-d128-f32: ", "forward, f32, GPU", "cuda sm80 on device",
		// S and P of 1024 rows and keys, one head and 16, and LSE with 64 KiB.
		`<td>1024</td><td>8 MiB</td><td>128 MiB</td><td>8.2 KiB</td><td>132 KiB</td><td>993</td>`,
	} {
		require.Contains(t, page, want)
	}
	for _, never := range []string{"http:", "https:", "<script", "NaN", "Inf", "ZgotmplZ", "%!"} {
		require.NotContains(t, page, never)
	}
	require.Equal(t, page, string(render(t, New(wideResults()), "")), "the same results, the same bytes")
}

// A result in doubt is marked, and is no headline and in no ratio.
func TestDoubtIsNoHeadline(t *testing.T) {
	once := func(kernels ...string) *Page {
		r := naiveResults()
		for i := range r.Results {
			if x := &r.Results[i]; slices.Contains(kernels, x.Backend) || slices.Contains(kernels, x.Kernel) {
				x.Calls = 4
			}
		}
		r.Judge()
		return New(r)
	}
	top := once().Story[0]
	require.NotZero(t, top.Portable)
	require.NotNil(t, top.Naive)
	page := string(render(t, once(), ""))
	require.Contains(t, page, ": 10 calls, four of five between ")
	require.NotContains(t, page, "in doubt")
	require.Zero(t, once("simd/fwd_generic").Story[0].Portable)
	require.Nil(t, once(bench.Naive).Story[0].Naive)
	require.NotEqual(t, top.Kernel, once(top.Kernel).Story[0].Kernel)
	require.Equal(t, "", newStudy(once(bench.Naive).Results).pairTables()[0].Rows[0].Faster())
	require.Contains(t, newStudy(once(top.Kernel).Results).choices().Gist, "The best kernel for 14 of 14 problems", "of the other pass")
	page = string(render(t, once(bench.Naive), ""))
	require.Contains(t, page, "28 of 84 medians are in doubt and marked with ?")
	require.Contains(t, page, `<td title="4 calls">? `)
	require.Contains(t, page, "in doubt: 4 calls")

	all := once("simd", bench.Naive)
	require.Empty(t, all.Story)
	require.NotContains(t, string(render(t, all, "")), "times</b>")
}

// On a busy machine a single sample of a slow kernel must not make a headline.
func TestBusyMachine(t *testing.T) {
	r := naiveResults()
	for i := range r.Results {
		if x := &r.Results[i]; x.Kernel == portable[flashkit.PassForward] {
			x.Seconds, x.GFLOPS, x.P25, x.P75 = 40*x.Seconds, x.GFLOPS/40, 20*x.Seconds, 60*x.Seconds
		}
	}
	require.Greater(t, New(r).Story[0].Portable, 700.)
	r.Machine.GOMAXPROCS, r.Load = 2, &machine.Load{Others: 1.9, Steal: .3, CPUs: 2}
	r.Judge()
	p := New(r)
	require.Zero(t, p.Story[0].Portable)
	page := string(render(t, p, ""))
	require.Equal(t, 1, strings.Count(page, "The machine was busy: other programs used 1.9 of its 2 processors; its hypervisor gave 30% of its time to others."), page[:2000])
	require.NotContains(t, page, "<b>731")
}

// The page has a line for the fastest peer, if there is one.
func TestPeer(t *testing.T) {
	r := naiveResults()
	require.NotContains(t, string(render(t, New(r), "")), "pytorch")
	for _, n := range []int{128, 1024} {
		p := made1(flashkit.Float32, 4, n, n, 64, flashkit.Causal())
		r.Results = append(r.Results, made(p, flashkit.PassForward, "peer/slow", machine.Host, 2, false), made(p, flashkit.PassForward, "peer/pytorch", machine.Host, 50, false))
	}
	p := New(r)
	require.Equal(t, "simd/fwd_avx2", p.Story[0].Kernel)
	require.Equal(t, "2.0", p.Story[0].Peer.Faster())
	require.Contains(t, string(render(t, p, "")), "Beside pytorch, at 1024 keys: <b>2.0 times</b> as fast (100 and 50 GFLOP/s, simd/fwd_avx2).")
	require.Contains(t, newStudy(r).choices().Gist, "The best kernel for 28 of 28 problems", "dispatch cannot choose a peer")
	r.Results[len(r.Results)-1].Calls = 1
	r.Judge()
	require.Equal(t, "slow", New(r).Story[0].Peer.Other().Kind().Name)
}

// The page begins with a sentence for each pass and type: the best kernel, its speedup over the
// portable one, its share of the limit, and the cost of stored matrices.
func TestReportStory(t *testing.T) {
	p := New(wideResults())
	require.Len(t, p.Story, 8)
	require.Equal(t, "simd/fwd_avx512bf16", p.Story[0].Kernel)
	require.Equal(t, "25%", p.Story[0].OfLimit, "999 of 4000")
	require.Zero(t, p.Story[0].Portable, "it was not measured")

	r := naiveResults()
	r.Limits = wideResults().Limits
	p = New(r)
	require.Len(t, p.Story, 4)
	top := p.Story[0]
	require.Equal(t, "b1-h4-g4-n8192-m8192-d64-f32-causal", top.Problem)
	require.InDelta(t, 20, top.Portable, .1)
	require.Equal(t, "25", top.Naive.Faster())
	require.Equal(t, "65", top.Naive.Smaller(), "8 MiB of tensors, 64 KiB besides, and 512 MiB of S and P")
	text := string(render(t, p, ""))
	require.Less(t, strings.Index(text, `id="story"`), strings.Index(text, `id="hero"`))
	require.Less(t, strings.Index(text, `id="hero"`), strings.Index(text, "<details"))
	for _, want := range []string{"<b>20 times</b> the portable kernel, <b>2 %</b> of the limit.", "Beside naive, at 8192 keys: <b>25 times</b> as fast, <b>65 times</b> less memory.", `<details id="naive">`, `<details id="peak">`} {
		require.Contains(t, text, want)
	}
	require.NotContains(t, text, "<details open", "the rest is folded")
	fig := newStudy(r).choices()
	require.Contains(t, fig.Gist, "The best kernel for 28 of 28 problems", "nobody chooses the baseline")
}

// A kernel has the same style in every report, and all styles in a report differ.
func TestReportStyles(t *testing.T) {
	seen := map[string]style{}
	for _, r := range []*bench.Results{wideResults(), oneResult(), manyKinds(), naiveResults()} {
		in := map[style]string{}
		for _, k := range newStudy(r).kinds {
			require.Empty(t, in[k.style], k.Name)
			in[k.style] = k.Name
			if was, ok := seen[k.Name]; ok {
				require.Equal(t, was, k.style, k.Name)
			}
			seen[k.Name] = k.style
		}
	}
	in := map[style]string{}
	for _, name := range []string{"simd avx512", "simd avx512bf16", "simd amxbf16", "simd amxf32", "simd avx2", "simd neon", "simd neonfhm", "simd neonbf16", "simd generic", "wasm simd128", "wasm scalar",
		"simd avx512 decode", "simd avx2 decode", "simd amxbf16 decode", "simd avx512 fewkeys", "simd avx2 fewkeys", "cuda sm80", "cuda sm90", "cuda f32", "cuda sm80 decode", "cuda sm80 on device", "cuda sm90 on device",
		"cuda f32 on device", "cuda sm80 decode on device", "naive"} {
		s, known := styleOf(name)
		require.True(t, known, name)
		require.Empty(t, in[s], name)
		in[s] = name
	}
	d := dispatch.All(t.Context())
	defer d.Close()
	for _, k := range d.Kernels() {
		_, known := styleOf(kindName(k.Name, machine.Host))
		require.True(t, known, "%s has no style of its own", k.Name)
	}
}

// Colors are told apart with every kind of color blindness, and read on the page,
// light and dark. Vision is simulated as Machado, Oliveira and Fernandes do, 2009.
func TestReportColors(t *testing.T) {
	visions := [][9]float64{{1, 0, 0, 0, 1, 0, 0, 0, 1},
		{.152286, 1.052583, -.204868, .114503, .786281, .099216, -.003882, -.048116, 1.051998},
		{.367322, .860646, -.227968, .280085, .672501, .047413, -.011820, .042940, .968881},
		{1.255528, -.076749, -.178779, -.078411, .930809, .147602, .004733, .691367, .303900}}
	schemes := strings.Split(plotStyle, "@media")
	require.Len(t, schemes, 2)
	for _, css := range schemes {
		page := linear(regexp.MustCompile(`--bg:#(\w+)`).FindStringSubmatch(css)[1])
		colors := regexp.MustCompile(`--c\d:#(\w{6})`).FindAllStringSubmatch(css, -1)
		require.Len(t, colors, numColors)
		for i, c := range colors {
			a, b := luminance(linear(c[1])), luminance(page)
			require.GreaterOrEqual(t, (max(a, b)+.05)/(min(a, b)+.05), 4.5, c[1])
			for _, d := range colors[:i] {
				for _, m := range visions {
					require.Greater(t, colorDistance(seenAs(m, linear(c[1])), seenAs(m, linear(d[1]))), 14., "%s and %s", c[1], d[1])
				}
			}
		}
	}
}

// linear returns the light of a color.
func linear(hex string) (rgb [3]float64) {
	if len(hex) == 3 {
		hex = string([]byte{hex[0], hex[0], hex[1], hex[1], hex[2], hex[2]})
	}
	for i := range rgb {
		n, _ := strconv.ParseUint(hex[2*i:2*i+2], 16, 8)
		v := float64(n) / 255
		if rgb[i] = v / 12.92; v > .04045 {
			rgb[i] = math.Pow((v+.055)/1.055, 2.4)
		}
	}
	return rgb
}

func luminance(c [3]float64) float64 { return .2126*c[0] + .7152*c[1] + .0722*c[2] }

func seenAs(m [9]float64, c [3]float64) (out [3]float64) {
	for i := range out {
		out[i] = min(max(m[3*i]*c[0]+m[3*i+1]*c[1]+m[3*i+2]*c[2], 0), 1)
	}
	return out
}

// colorDistance returns how far apart two colors are, in CIELAB.
func colorDistance(a, b [3]float64) float64 {
	lab := func(c [3]float64) [3]float64 {
		f := func(t float64) float64 {
			if t > .008856 {
				return math.Cbrt(t)
			}
			return 7.787*t + 16./116
		}
		x, y, z := f((.4124*c[0]+.3576*c[1]+.1805*c[2])/.9505), f(luminance(c)), f((.0193*c[0]+.1192*c[1]+.9505*c[2])/1.089)
		return [3]float64{116*y - 16, 500 * (x - y), 200 * (y - z)}
	}
	p, q := lab(a), lab(b)
	return math.Sqrt((p[0]-q[0])*(p[0]-q[0]) + (p[1]-q[1])*(p[1]-q[1]) + (p[2]-q[2])*(p[2]-q[2]))
}

// An image is valid XML, and every plot can be one.
func TestReportImages(t *testing.T) {
	for _, plot := range PlotNames {
		d := xml.NewDecoder(bytes.NewReader(render(t, New(wideResults()), plot)))
		for {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			require.NoError(t, err, plot)
		}
	}
}

// Dispatch's loss is reported for each problem and in total.
func TestReportChoices(t *testing.T) {
	p := func(n int) flashkit.Problem { return made1(flashkit.Float32, 1, n, n, 64, flashkit.Band{}) }
	r := oneResult()
	r.Results = []bench.Result{
		made(p(128), flashkit.PassForward, "simd/fwd_avx2", machine.Host, 10, true), made(p(128), flashkit.PassForward, "wasm/fwd_simd128", machine.Host, 5, false),
		made(p(256), flashkit.PassForward, "simd/fwd_avx2", machine.Host, 10, true), made(p(256), flashkit.PassForward, "wasm/fwd_simd128", machine.Host, 20, false),
		made(p(512), flashkit.PassForward, "wasm/fwd_simd128", machine.Host, 20, false), made(p(512), flashkit.PassForward, "cuda/fwd_sm80", machine.Device, 9e3, false),
	}
	for i, seconds := range []float64{1, 2, 3, 2, 5, 1} {
		r.Results[i].Seconds = seconds
	}
	fig := newStudy(r).choices()
	require.Contains(t, fig.Gist, "The best kernel for 1 of 2 problems; its choices together take 1.333 times")
	cells := fig.panels()[0].Cells
	require.Len(t, cells, 3)
	require.Equal(t, []string{"", "1.50", ""}, []string{cells[0].Text, cells[1].Text, cells[2].Text})
	require.Contains(t, cells[1].Title, "wasm/fwd_simd128 takes 2s")
	require.Nil(t, cells[2].Kind, "it was not measured")

	back := newStudy(r).backends()
	require.Contains(t, back.panels()[0].Text, "wasm takes 2.15 times as long as the fastest backend, from 1 to 5")
	require.Contains(t, back.panels()[0].Text, "cuda on device takes 1 times")
}

// A GPU's kernel is compared with the GPU's limits, for host tensors, too.
func TestReportRoofs(t *testing.T) {
	limits := wideResults().Limits
	require.Equal(t, roof{rate: 4000, bandwidth: 200}, roofOf(limits, machine.Host, flashkit.Float32))
	require.Equal(t, roof{rate: 960000, bandwidth: 4000}, roofOf(limits, machine.Device, flashkit.BFloat16))
	r := roof{rate: 4000, bandwidth: 200}
	require.Equal(t, []float64{200, 4000, 4000}, []float64{r.at(1), r.at(20), r.at(1000)})
	study := newStudy(wideResults())
	groups := study.groups()
	require.Len(t, groups, 8, "two passes, two types, two places")
	for _, m := range groups[len(groups)-1].points {
		require.Equal(t, "cuda", m.Backend)
	}
}

func TestAxes(t *testing.T) {
	texts := func(lo, hi float64) (list []string) {
		for _, tick := range roundTicks(scale{span{lo, hi}, 200, 0}, plainNumber, func(string) px { return 16 }) {
			list = append(list, tick.text)
		}
		return list
	}
	require.Equal(t, []string{"1", "10", "100", "1000"}, texts(.9, 2000))
	require.Equal(t, []string{"20", "50", "100", "200"}, texts(15, 300))
	require.NotEmpty(t, texts(5.001, 5.002))
	require.Len(t, texts(1e-9, 1e9), 10, "every second power of ten has room")
	for v, want := range map[float64]string{1e-6: "1 µs", 2.5e-3: "2.5 ms", 10: "10 s", 5e-8: "50 ns"} {
		require.Equal(t, want, axisSeconds(v))
	}
	for n, want := range map[int64]string{512: "512 B", 1536: "1.5 KiB", 2 << 20: "2 MiB", 130 << 10: "130 KiB"} {
		require.Equal(t, want, shortSize(big.NewInt(n)))
	}
	keys := []key{{Y: 50}, {Y: 51}, {Y: 52}, {Y: 195}, {Y: 199}}
	spread(keys, 10, 200)
	for i := 1; i < len(keys); i++ {
		require.GreaterOrEqual(t, float64(keys[i].Y-keys[i-1].Y), float64(lineHeight))
	}
	require.LessOrEqual(t, float64(keys[4].Y), 200.0)
}

// Results of problems without rows, keys or time have nothing to plot, and break
// nothing.
func TestReportOfNothing(t *testing.T) {
	r := oneResult()
	for _, p := range []flashkit.Problem{made1(flashkit.Float32, 1, 0, 5, 8, flashkit.Band{}), made1(flashkit.Float32, 1, 5, 0, 8, flashkit.Band{}), made1(flashkit.Float32, 1, 0, 0, 8, flashkit.Band{})} {
		x := made(p, flashkit.PassForward, "simd/fwd_generic", machine.Host, 1, true)
		x.Seconds, x.GFLOPS, x.Intensity = 0, 0, 0
		r.Results = append(r.Results, x)
	}
	page := string(render(t, New(r), ""))
	require.NotContains(t, page, "NaN")
	r.Results = r.Results[1:]
	page = string(render(t, New(r), ""))
	require.NotContains(t, page, "NaN")
	require.NotContains(t, page, "Inf")
}

// Whatever passes the check can be shown.
func FuzzReport(f *testing.F) {
	two := oneResult()
	two.Limits = wideResults().Limits
	two.Results = append(two.Results, made(made1(flashkit.Float32, 1, 1, 300, 64, flashkit.Causal()), flashkit.PassBackward, "cuda/bwd_sm80", machine.Device, 50, true))
	for _, r := range []*bench.Results{oneResult(), two} {
		var b bytes.Buffer
		if err := r.WriteJSON(&b); err != nil {
			f.Fatal(err)
		}
		f.Add(b.Bytes())
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		r, err := bench.Parse(text)
		if err != nil || len(r.Results) > 100 {
			return
		}
		p := New(r)
		require.NotRegexp(t, `(x|y|d|points)="[^"]*(NaN|Inf)`, string(render(t, p, "")))
		for _, plot := range PlotNames {
			render(t, p, plot)
		}
	})
}
