package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
)

// A comparison is all results of dispatch's kernels for one pass of a problem.
type comparison struct {
	p       flashkit.Problem
	pass    flashkit.Pass
	points  []*measured
	fastest *measured // fastest with host tensors, like dispatch's calls
	chosen  *measured // dispatch's choice, nil if not measured
}

// comparisons returns a comparison for each problem and pass, in the order of the sweeps.
func (s *study) comparisons() (list []*comparison) {
	for _, f := range s.sweeps {
		found := map[flashkit.Problem]*comparison{}
		for _, m := range f.points {
			if m.foreign() {
				continue // never dispatch's choice
			}
			c := found[m.p]
			if c == nil {
				c = &comparison{p: m.p, pass: m.pass}
				found[m.p] = c
				list = append(list, c)
			}
			c.points = append(c.points, m)
			if m.Memory == machine.Host && plottable(m.Seconds) && (c.fastest == nil || m.Seconds < c.fastest.Seconds) {
				c.fastest = m
			}
			if m.chosen() {
				c.chosen = m
			}
		}
	}
	return list
}

// loss returns the time of dispatch's choice divided by the time of the fastest kernel. It returns
// NaN if one of these times is missing or in doubt.
func (c *comparison) loss() float64 {
	if c.chosen == nil || c.fastest == nil || c.chosen.Doubt != "" || c.fastest.Doubt != "" {
		return math.NaN()
	}
	return c.chosen.Seconds / c.fastest.Seconds
}

// byBackend returns the fastest result of each backend and memory, without results in doubt.
func (c *comparison) byBackend() (list []*measured) {
	for _, m := range c.points {
		i := slices.IndexFunc(list, func(o *measured) bool { return o.Backend == m.Backend && o.Memory == m.Memory })
		switch {
		case !plottable(m.Seconds) || m.Doubt != "":
		case i < 0:
			list = append(list, m)
		case m.Seconds < list[i].Seconds:
			list[i] = m
		}
	}
	return list
}

// backends returns the figure of each backend's time divided by the fastest backend's time.
func (s *study) backends() *Figure {
	fig := &Figure{ID: "backends", Title: "Backend against backend",
		Caption: "The time of each backend's fastest kernel over that of the fastest backend: 1 is the fastest. A point is a problem; the line is the geometric mean of a length."}
	kinds := map[string]*kind{}
	var plots []*plot
	for _, g := range s.groupComparisons() {
		title := g[0].pass.String() + ", " + input.TypesName(&g[0].p) + s.shape(like(g[0].p))
		p := &plot{title: title, full: title, xName: lengthName(like(g[0].p)), lengths: true,
			tickText: func(v float64) string { return plainNumber(v) + "×" }}
		rivals := false
		for _, c := range g {
			entries := c.byBackend()
			if len(entries) < 2 {
				continue
			}
			rivals = true
			best := slices.MinFunc(entries, func(a, b *measured) int { return cmp.Compare(a.Seconds, b.Seconds) })
			for _, m := range entries {
				name := placed(m.Backend, m.Memory)
				if kinds[name] == nil {
					kinds[name] = &kind{name, m.kind.style}
					if s, known := styleOf(name); known {
						kinds[name].style = s
					}
					fig.Legend = append(fig.Legend, kinds[name])
				}
				i := slices.IndexFunc(p.traces, func(t trace) bool { return t.kind == kinds[name] })
				if i < 0 {
					i = len(p.traces)
					p.traces = append(p.traces, trace{kind: kinds[name]})
				}
				ratio := m.Seconds / best.Seconds
				p.traces[i].points = append(p.traces[i].points, spot{float64(m.p.KVLen), ratio, fmt.Sprintf("%s, %.3g times the fastest", m.title(), ratio)})
			}
		}
		if rivals {
			p.addMeans()
			plots = append(plots, p)
		}
	}
	if len(plots) == 0 {
		fig.Caption = "No problem has medians of two backends that are not in doubt."
		return fig
	}
	fig.Gist = "the time of each over that of the fastest"
	fig.Parts = []part{{Panels: layOutAll(plots)}}
	return fig
}

// addMeans adds a line to each trace: the geometric mean of the trace's points at each length.
// addMeans also sets the plot's text to a summary of the means.
func (p *plot) addMeans() {
	p.text = p.full + ". "
	for i := range p.traces {
		t := &p.traces[i]
		slices.SortStableFunc(t.points, func(a, b spot) int { return cmp.Compare(a.x, b.x) })
		var all []float64
		for j := 0; j < len(t.points); {
			from := j
			var ratios []float64
			for ; j < len(t.points) && t.points[j].x == t.points[from].x; j++ {
				ratios = append(ratios, t.points[j].y)
			}
			t.line = append(t.line, spot{x: t.points[from].x, y: bench.GeometricMean(ratios)})
			all = append(all, ratios...)
		}
		p.text += fmt.Sprintf("%s takes %.3g times as long as the fastest backend, from %.3g to %.3g. ", t.kind.Name, bench.GeometricMean(all), slices.Min(all), slices.Max(all))
	}
}

// groupComparisons groups the comparisons by pass, types and ratio of rows to keys.
func (s *study) groupComparisons() (list [][]*comparison) {
	for _, c := range s.comparisons() {
		i := slices.IndexFunc(list, func(g []*comparison) bool {
			return g[0].pass == c.pass && input.TypesName(&g[0].p) == input.TypesName(&c.p) && like(g[0].p).QLen == like(c.p).QLen
		})
		if i < 0 {
			list = append(list, []*comparison{c})
			continue
		}
		list[i] = append(list[i], c)
	}
	return list
}
