package report

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
	"github.com/flashkit-go/flashkit/internal/terminal"
)

// A Figure is a set of small plots with the same axes.
type Figure struct {
	ID, Title, Caption string
	Gist               string // summary in a few words
	Legend             []*kind
	Parts              []part
}

// A part is the plots of one pass. A figure that is not divided by pass has one part without a
// title.
type part struct {
	Title  string
	Panels []*panel
}

func (f *Figure) panels() (list []*panel) {
	for _, p := range f.Parts {
		list = append(list, p.Panels...)
	}
	return list
}

// figures returns the figures in the report's order.
func (s *study) figures(limits []machine.Limit) []*Figure {
	return []*Figure{s.rate(limits), s.time(), s.roofline(limits), s.backends(), s.choices(), s.peak()}
}

func (m *measured) title() string {
	text := fmt.Sprintf("%s, %s: %s", m.Kernel, m.Problem, terminal.Seconds(m.Seconds))
	if m.Calls > 1 {
		text += fmt.Sprintf(" (%s to %s)", terminal.Seconds(m.P10), terminal.Seconds(m.P90))
	}
	text += ", " + plainNumber(m.GFLOPS) + " GFLOP/s"
	if m.Doubt != "" {
		text += ", in doubt: " + m.Doubt
	}
	return text
}

// traces returns a trace for each kind of the points. The points of a trace are sorted by x. at
// returns the coordinates of a point. If joined is true, a line connects the points of a trace.
func (s *study) traces(points []*measured, joined bool, at func(*measured) (x, y float64)) (list []trace) {
	for _, k := range s.kindsOf(points) {
		t := trace{kind: k}
		for _, m := range points {
			if m.kind == k {
				x, y := at(m)
				t.points = append(t.points, spot{x, y, m.title()})
			}
		}
		slices.SortStableFunc(t.points, func(a, b spot) int { return cmp.Compare(a.x, b.x) })
		if joined {
			t.line = t.points
		}
		list = append(list, t)
	}
	return list
}

// layOutAll lays out plots with a common y axis. Plots with the same xName share the x axis.
func layOutAll(plots []*plot) (panels []*panel) {
	x, y, side := map[string]*span{}, new(span), px(14)
	for _, p := range plots {
		if x[p.xName] == nil {
			x[p.xName] = new(span)
		}
		for _, t := range p.traces {
			if p.labeled {
				side = min(max(side, t.kind.width()), 160)
			}
			for _, s := range visible(t.points) {
				x[p.xName].add(s.x)
				y.add(s.y)
			}
		}
		for _, r := range p.roofs {
			y.add(r.rate)
			if r.bandwidth > 0 {
				x[p.xName].add(r.rate / r.bandwidth / 4) // shows part of the slope
			}
		}
	}
	for _, p := range plots {
		p.x, p.y, p.side = *x[p.xName], *y, side
		if p.text == "" {
			p.text = p.inWords()
		}
		panels = append(panels, p.layOut())
	}
	return panels
}

// inWords describes the first and last point of each trace.
func (p *plot) inWords() string {
	var parts []string
	for _, t := range p.traces {
		if len(t.points) == 0 {
			continue
		}
		a, b := t.points[0], t.points[len(t.points)-1]
		text := fmt.Sprintf("%s %s at %s", t.kind.Name, p.tickText(a.y), plainNumber(a.x))
		if a.x != b.x {
			text += fmt.Sprintf(", %s at %s", p.tickText(b.y), plainNumber(b.x))
		}
		parts = append(parts, text)
	}
	return p.full + ": " + strings.Join(parts, "; ") + "."
}

// perSweep returns a plot of y against sequence length for each sweep.
func (s *study) perSweep(tickText func(float64) string, y func(*measured) float64) (plots []*plot) {
	for _, f := range s.sweeps {
		plots = append(plots, s.sweepPlot(f, tickText, y))
	}
	return plots
}

func (s *study) sweepPlot(f *sweep, tickText func(float64) string, y func(*measured) float64) *plot {
	return &plot{title: f.Row, full: f.Title, xName: lengthName(f.like), lengths: true, tickText: tickText,
		traces: s.traces(f.points, true, func(m *measured) (float64, float64) { return float64(m.p.KVLen), y(m) })}
}

// lengthName returns the name of a sweep's x axis, or "" if query and key lengths are equal.
func lengthName(p flashkit.Problem) string {
	switch p.QLen {
	case 0:
		return ""
	case 1:
		return "keys of one row"
	}
	return "keys of " + rows(p)
}

func (s *study) byPass(plots []*plot) (parts []part) {
	panels := layOutAll(plots)
	for i, f := range s.sweeps {
		if n := len(parts); n == 0 || parts[n-1].Title != f.pass.String() {
			parts = append(parts, part{Title: f.pass.String()})
		}
		last := &parts[len(parts)-1]
		last.Panels = append(last.Panels, panels[i])
	}
	return parts
}

// legend returns the kinds of the plots, in the study's order.
func (s *study) legend(plots []*plot) (list []*kind) {
	var points []*measured
	for _, p := range plots {
		for _, t := range p.traces {
			points = append(points, &measured{kind: t.kind})
		}
	}
	return s.kindsOf(points)
}

func (s *study) time() *Figure {
	plots := s.perSweep(axisSeconds, func(m *measured) float64 { return m.Seconds })
	return &Figure{ID: "time", Title: "Time", Caption: "Median time of a call against sequence length.", Gist: count(plots), Legend: s.legend(plots), Parts: s.byPass(plots)}
}

func count(plots []*plot) string {
	if len(plots) == 1 {
		return "1 plot"
	}
	return fmt.Sprintf("%d plots", len(plots))
}

// peak returns the figure of peak memory. If the baseline was not measured, the figure has no plots
// and its caption names the command that measures the baseline.
func (s *study) peak() *Figure {
	fig := &Figure{ID: "peak", Title: "Peak memory", Caption: "The baseline that stores its matrices was not measured: flashrun bench --baseline naive."}
	if !slices.ContainsFunc(s.all, (*measured).naive) {
		return fig
	}
	plots := s.perSweep(func(v float64) string { return shortSize(bench.Size(v)) }, func(m *measured) float64 {
		if m.peer() {
			return 0 // the peak of a peer is unknown and not drawn
		}
		return m.Peak()
	})
	for _, p := range plots {
		p.bytes = true
	}
	fig.Caption = "What a call holds at most against sequence length: its tensors and what it allocates. naive stores its matrices of rows times keys, so four times as much for twice the length."
	fig.Gist, fig.Legend, fig.Parts = "with and without the matrices", s.legend(plots), s.byPass(plots)
	return fig
}

// axisSeconds formats a time with up to three digits.
func axisSeconds(v float64) string {
	for _, unit := range []struct {
		size float64
		name string
	}{{1, "s"}, {1e-3, "ms"}, {1e-6, "µs"}} {
		if v >= unit.size*.9999 {
			return strconv.FormatFloat(v/unit.size, 'g', 3, 64) + " " + unit.name
		}
	}
	return strconv.FormatFloat(v*1e9, 'g', 3, 64) + " ns"
}

func (s *study) rate(limits []machine.Limit) *Figure {
	var plots []*plot
	for _, f := range s.sweeps {
		plots = append(plots, s.ratePlot(f, limits))
	}
	return &Figure{ID: "rate", Title: "Rates of all problems", Gist: count(plots), Legend: s.legend(plots),
		Caption: "GFLOP/s against sequence length. Operations are counted as papers do: 4·B·H·D for each pair of a row and a key that the mask lets through, 2.5 times that for the backward pass. The dashed line is what the machine does at most in registers.",
		Parts:   s.byPass(plots)}
}

// ratePlot returns a plot of rates with the limits of the sweep's processors.
func (s *study) ratePlot(f *sweep, limits []machine.Limit) *plot {
	p := s.sweepPlot(f, plainNumber, func(m *measured) float64 { return m.GFLOPS })
	for _, place := range []string{machine.Host, machine.Device} {
		if slices.ContainsFunc(f.points, func(m *measured) bool { return m.Place() == place }) {
			p.roofs = append(p.roofs, roof{rate: roofOf(limits, place, f.like.DType).rate})
		}
	}
	return p
}

// roofOf returns the limits of a processor and type.
func roofOf(limits []machine.Limit, place string, t flashkit.DType) roof {
	rate, bandwidth := machine.Most(limits, place, t)
	return roof{rate, bandwidth / 1e9}
}

// roofline returns the figure with a plot for each pass, type and processor.
func (s *study) roofline(limits []machine.Limit) *Figure {
	fig := &Figure{ID: "roofline", Title: "Roofline",
		Caption: "Rate against arithmetic intensity: operations for each byte that must move at least. The lines are what the machine does at most: copying from one array to another, and multiply-adds in registers. Problems that fit into a cache can be above the slope."}
	if len(limits) == 0 {
		fig.Caption = "Rate against arithmetic intensity: operations for each byte that must move at least. What the machine does at most was not measured."
	}
	var plots []*plot
	for _, g := range s.groups() {
		p := &plot{title: g.title(s), full: g.title(s), xName: "FLOP/B", yName: "GFLOP/s", tickText: plainNumber,
			traces: s.traces(g.points, false, func(m *measured) (float64, float64) { return m.Intensity, m.GFLOPS })}
		if r := roofOf(limits, g.place, g.dtype); r.rate > 0 || r.bandwidth > 0 {
			p.roofs = []roof{r}
		}
		plots = append(plots, p)
	}
	fig.Gist, fig.Legend, fig.Parts = "rate against arithmetic intensity", s.legend(plots), []part{{Panels: layOutAll(plots)}}
	return fig
}

// A group is the points with the same pass, element types and processor. place is host for the CPU
// and device for the GPU.
type group struct {
	pass   flashkit.Pass
	dtype  flashkit.DType
	types  string
	place  string
	points []*measured
}

func (g *group) title(s *study) string {
	text := g.pass.String() + ", " + g.types
	if slices.ContainsFunc(s.all, func(m *measured) bool { return m.Place() == machine.Device }) {
		text += ", " + map[string]string{machine.Host: "CPU", machine.Device: "GPU"}[g.place]
	}
	return text
}

// groups returns the groups of the host, then the groups of the device, each in the order of the
// sweeps.
func (s *study) groups() (list []*group) {
	for _, place := range []string{machine.Host, machine.Device} {
		for _, f := range s.sweeps {
			for _, m := range f.points {
				if m.Place() != place {
					continue
				}
				i := slices.IndexFunc(list, func(g *group) bool { return g.pass == f.pass && g.types == input.TypesName(&m.p) && g.place == place })
				if i < 0 {
					i = len(list)
					list = append(list, &group{pass: f.pass, dtype: m.p.DType, types: input.TypesName(&m.p), place: place})
				}
				list[i].points = append(list[i].points, m)
			}
		}
	}
	return list
}
