// Package report draws results of bench: a page of plots, and plots as images.
package report

import (
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"math"
	"math/big"
	"slices"
	"strconv"
	"strings"

	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// A Page is a report. It holds the data that report.tmpl draws.
type Page struct {
	*bench.Results
	Common  string
	Story   []headline
	Hero    *hero
	Figures []*Figure
	Beside  []*pairTable // nil without the baseline
	Memory  []*memorySection
	All     []*measured
}

// New returns the page of checked results.
func New(r *bench.Results) *Page {
	s := newStudy(r)
	return &Page{Results: r, Common: s.common, Story: s.headlines(r.Limits), Hero: s.hero(r.Limits),
		Figures: s.figures(r.Limits), Beside: s.pairTables(), Memory: s.memory(), All: s.all}
}

// Figure returns the figure of a name in PlotNames.
func (p *Page) Figure(id string) *Figure {
	return p.Figures[slices.IndexFunc(p.Figures, func(f *Figure) bool { return f.ID == id })]
}

// A memorySection is a table of problems that differ only in length. It compares the naive form's
// matrices with the memory of a kernel.
type memorySection struct {
	Title    string
	Matrices string // matrices of the naive form
	Kernels  string // kernels compared with the matrices
	Rows     []memoryRow
}

type memoryRow struct {
	Length       int
	Full, Kernel *bench.MemoryLine
}

// memory returns a section for each sweep. Sweeps that differ only in the mask share a section,
// because a mask does not change the size of the matrices.
func (s *study) memory() (sections []*memorySection) {
	seen := map[string]bool{}
	for _, f := range s.sweeps {
		key := fmt.Sprint(f.pass, input.TypesName(&f.like), f.like.Batch, heads(f.like), dims(f.like), f.like.QLen)
		if seen[key] {
			continue
		}
		seen[key] = true
		if m := s.memoryOf(f); len(m.Rows) > 0 {
			sections = append(sections, m)
		}
	}
	return sections
}

func (s *study) memoryOf(f *sweep) *memorySection {
	out := &memorySection{Title: f.Unmasked}
	var kernels []string
	points := map[int]*measured{}
	for _, m := range f.points {
		was := points[m.p.KVLen]
		if m.foreign() {
			continue
		}
		if was == nil || !was.Chosen && (m.Chosen || m.Seconds < was.Seconds) {
			points[m.p.KVLen] = m
		}
	}
	for _, n := range lengths(f.points) {
		m := points[n]
		if m == nil {
			continue // only the baseline or a peer was measured
		}
		t := bench.NewMemoryTable(m.p, m.pass)
		full := t.Written()
		line := &bench.MemoryLine{Name: m.Kernel, Kind: bench.KindKernel, Measured: big.NewInt(m.ExtraBytes), Device: m.Device}
		t.Add(line)
		out.Matrices = full.Name + " in " + full.DType
		out.Rows = append(out.Rows, memoryRow{Length: n, Full: full, Kernel: line})
		if !slices.Contains(kernels, m.Kernel) {
			kernels = append(kernels, m.Kernel)
		}
	}
	out.Kernels = join(kernels)
	return out
}

//go:embed report.tmpl
var reportText string

//go:embed report.css
var pageStyle string

//go:embed plot.css
var plotStyle string

// marks are the shapes of points. Marks distinguish kinds even without color.
var marks = []string{
	"M-3.3 0a3.3 3.3 0 1 0 6.6 0a3.3 3.3 0 1 0-6.6 0z",
	"M-2.9-2.9h5.8v5.8h-5.8z",
	"M0-4L3.7 2.7h-7.4z",
	"M0-4.2L4.2 0 0 4.2-4.2 0z",
	"M0 4L3.7-2.7h-7.4z",
	"M-1.2-3.9h2.4v2.7h2.7v2.4h-2.7v2.7h-2.4v-2.7h-2.7v-2.4h2.7z",
	"M-3.9 0L-1.9-3.4h3.8L3.9 0 1.9 3.4h-3.8z",
	"M-3.4-1.7L-1.7-3.4 0-1.7 1.7-3.4 3.4-1.7 1.7 0 3.4 1.7 1.7 3.4 0 1.7-1.7 3.4-3.4 1.7-1.7 0z",
}

var reportTemplate = template.Must(template.New("report").Funcs(template.FuncMap{
	"pageStyle": func() template.CSS { return template.CSS(pageStyle) },
	"plotStyle": func() template.CSS { return template.CSS(plotStyle) },
	"marks":     func() []string { return marks },
	"percent":   func(s string) string { return strings.TrimSuffix(s, "%") + " %" },
	"times":     times,
	"number":    plainNumber,
	"class":     (*kind).class,
	"seconds":   terminal.Seconds,
	"size":      shortSize,
	"ratio":     bench.FormatRatio,
	"gbps":      func(bytes float64) string { return fmt.Sprintf("%.1f GB/s", bytes/1e9) },
	"gflops":    func(x float64) string { return fmt.Sprintf("%.1f", x) },
	"bytes":     func(x float64) string { return shortSize(bench.Size(x)) },
	"short":     axisSeconds,
	"extra":     func(m *measured) string { return terminal.Bytes(m.Extra()) },
}).Parse(reportText))

func join(list []string) string { return strings.Join(list, ", ") }

// class returns the CSS classes of a kind's color.
func (k *kind) class() string {
	class := fmt.Sprintf("c%d", k.Color)
	if k.Hollow {
		class += " hollow"
	}
	return class
}

// WriteHTML writes the page as a self-contained file.
func (p *Page) WriteHTML(w io.Writer) error { return reportTemplate.ExecuteTemplate(w, "html", p) }

// A poster is a figure drawn as an image, with its panels in columns.
type poster struct {
	*Figure
	W, H    px
	Machine string
	Keys    []key
	At      []placedPanel
}

type placedPanel struct {
	*panel
	X, Y  px
	Title string
}

const (
	posterHead = 46
	posterGap  = 16
)

// WriteSVG writes a figure as an image.
func (p *Page) WriteSVG(w io.Writer, fig *Figure) error {
	columns := min(2, max(1, len(fig.panels())))
	out := &poster{Figure: fig, W: px(columns*(panelWidth+posterGap) + posterGap), H: posterHead, Machine: p.Machine.String()}
	if len(fig.Legend) > 0 {
		legend := panel{W: out.W - 2*posterGap, H: posterHead + 8}
		legend.addLegend(fig.Legend)
		for _, k := range legend.Keys {
			k.X += posterGap
			out.Keys = append(out.Keys, k)
		}
		out.H = legend.H + 6
	}
	for row := range slices.Chunk(fig.panels(), columns) {
		height := px(0)
		for i, panel := range row {
			out.At = append(out.At, placedPanel{panel, px(posterGap + i*(panelWidth+posterGap)), out.H, panel.Full})
			height = max(height, panel.H)
		}
		out.H += height + posterGap
	}
	return reportTemplate.ExecuteTemplate(w, "svg", out)
}

// shortSize formats a size for a narrow column.
func shortSize(n *big.Int) string {
	number, unit, _ := strings.Cut(bench.FormatSize(n), " ")
	if x, err := strconv.ParseFloat(number, 64); err == nil && (x >= 100 || x == math.Trunc(x)) {
		number = strconv.FormatFloat(x, 'f', 0, 64)
	}
	return strings.TrimSpace(number + " " + unit)
}

// PlotNames are the names of a report's figures, which are also the values of --plot.
var PlotNames = []string{"time", "rate", "roofline", "backends", "choices", "peak"}
