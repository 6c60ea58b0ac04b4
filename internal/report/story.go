package report

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/machine"
)

// A headline is a sentence of the story: the highest rate of a pass and type. It compares
// results of several calls only.
type headline struct {
	*measured
	Title    string  // forward, f32
	Portable float64 // its rate over that of the portable kernel on the problem; 0 if unknown
	Limit    float64 // GFLOP/s; 0 if unknown
	OfLimit  string
	Naive    *beside // of the longest rows, nil if the baseline was not measured
}

// portable are the kernels that run everywhere, by pass.
var portable = map[flashkit.Pass]string{flashkit.PassForward: "simd/fwd_generic", flashkit.PassBackward: "simd/bwd_generic"}

// headlines returns one for each group.
func (s *study) headlines(limits []machine.Limit) (list []headline) {
	for _, g := range s.groups() {
		sampled := slices.DeleteFunc(slices.Clone(g.points), func(m *measured) bool { return !m.sampled() })
		points := slices.DeleteFunc(slices.Clone(sampled), (*measured).naive)
		if len(points) == 0 {
			continue
		}
		top := slices.MaxFunc(points, func(a, b *measured) int { return cmp.Compare(a.GFLOPS, b.GFLOPS) })
		h := headline{measured: top, Title: g.title(s), OfLimit: top.OfLimit(limits), Limit: roofOf(limits, g.place, g.dtype).rate}
		if m := s.find(top, portable[g.pass]); m != nil && m != top && m.sampled() && m.GFLOPS > 0 {
			h.Portable = top.GFLOPS / m.GFLOPS
		}
		if pairs := besides(sampled); len(pairs) > 0 {
			h.Naive = slices.MaxFunc(pairs, func(a, b *beside) int { return cmp.Compare(a.Keys(), b.Keys()) }) // the first of several
		}
		list = append(list, h)
	}
	return list
}

// sampled reports whether a result has enough calls for a median.
func (m *measured) sampled() bool { return m.Calls >= 3 }

// varies reports whether other programs took much of the time of some calls: on a machine
// that is idle the times of calls are closer.
func (m *measured) varies() bool { return m.P90 > 2*m.P10 }

// find returns the result of another kernel on the problem of m, with tensors on the
// host, nil if there is none.
func (s *study) find(m *measured, kernel string) *measured {
	i := slices.IndexFunc(s.all, func(o *measured) bool {
		return o.Kernel == kernel && o.Problem == m.Problem && o.Memory == machine.Host
	})
	if i < 0 {
		return nil
	}
	return s.all[i]
}

// A hero is the one large plot: rates of the facet of most lengths, for a wide screen
// and for a phone.
type hero struct {
	Title        string
	Wide, Narrow *panel
}

// Sizes of the large plot.
const (
	wideWidth, wideHeight     = 1120, 420
	narrowWidth, narrowHeight = 360, 340
)

func (s *study) hero(limits []machine.Limit) *hero {
	f := slices.MaxFunc(s.facets, func(a, b *facet) int {
		return cmp.Compare(len(lengths(a.points)), len(lengths(b.points))) // the first of several
	})
	h := &hero{Title: f.Title}
	for _, size := range []struct {
		to   **panel
		w, h px
	}{{&h.Wide, wideWidth, wideHeight}, {&h.Narrow, narrowWidth, narrowHeight}} {
		p := s.ratePlot(f, limits)
		p.width, p.height, p.labeled, p.title = size.w, size.h, true, ""
		if p.xName == "" {
			p.xName = "query rows and keys"
		}
		p.yName = "GFLOP/s"
		*size.to = layOutAll([]*plot{p})[0]
	}
	return h
}

// A beside is a kernel beside the baseline that stores its matrices.
type beside struct{ naive, kernel *measured }

var naiveNames = map[flashkit.Pass]string{flashkit.PassForward: bench.Naive + "/fwd_matrices", flashkit.PassBackward: bench.Naive + "/bwd_matrices"}

func (m *measured) naive() bool { return m.Backend == bench.Naive }

// Peak returns the bytes that a call holds at most.
func (m *measured) Peak() float64 { return m.PeakOf(m.p, m.pass) }

// Faster returns how many times shorter the kernel takes.
func (b *beside) Faster() string { return times(b.naive.Seconds / b.kernel.Seconds) }

// Smaller returns how many times less the kernel holds.
func (b *beside) Smaller() string { return times(b.naive.Peak() / b.kernel.Peak()) }

// besides returns the fastest kernel beside each result of the baseline among the
// points, fewest keys first.
func besides(points []*measured) (list []*beside) {
	for _, m := range points {
		if !m.naive() || !plottable(m.Seconds) {
			continue
		}
		b := &beside{naive: m}
		for _, k := range points {
			if k.Problem == m.Problem && !k.naive() && plottable(k.Seconds) && (b.kernel == nil || k.Seconds < b.kernel.Seconds) {
				b.kernel = k
			}
		}
		if b.kernel != nil {
			list = append(list, b)
		}
	}
	slices.SortStableFunc(list, func(a, b *beside) int { return cmp.Compare(a.Keys(), b.Keys()) })
	return list
}

func (b *beside) Keys() int           { return b.kernel.p.KVLen }
func (b *beside) Baseline() *measured { return b.naive }
func (b *beside) Kernel() *measured   { return b.kernel }

// times prints a factor with two digits, "" if there is none.
func times(x float64) string {
	switch {
	case !plottable(x):
		return ""
	case x < 9.95:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// A besideTable is the problems of a facet, the fastest kernel beside the baseline.
type besideTable struct {
	Title, Kernels string
	Rows           []*beside
}

// besideTables returns the tables of the facets that have the baseline.
func (s *study) besideTables() (list []*besideTable) {
	for _, f := range s.facets {
		t := &besideTable{Title: f.Title, Rows: besides(f.points)}
		if len(t.Rows) == 0 {
			continue
		}
		var kernels []string
		for _, b := range t.Rows {
			if !slices.Contains(kernels, b.kernel.Kernel) {
				kernels = append(kernels, b.kernel.Kernel)
			}
		}
		t.Kernels = join(kernels)
		list = append(list, t)
	}
	return list
}
