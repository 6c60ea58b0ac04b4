package report

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/machine"
)

// A headline is the result with the highest rate for one pass, types and processor, with
// comparisons to other results. Results in doubt are excluded.
type headline struct {
	*measured
	Title    string  // such as forward, f32
	Portable float64 // speedup over the portable kernel on the same problem; 0 if unknown
	Limit    float64 // highest GFLOP/s of the processor; 0 if unknown
	OfLimit  string
	Naive    *pairing // comparison with the baseline on the most keys; nil without the baseline
	Peer     *pairing // comparison with a peer on the most keys; nil without a peer
}

// portable maps passes to the kernels that run everywhere.
var portable = map[flashkit.Pass]string{flashkit.PassForward: "simd/fwd_generic", flashkit.PassBackward: "simd/bwd_generic"}

func (s *study) headlines(limits []machine.Limit) (list []headline) {
	for _, g := range s.groups() {
		sound := slices.DeleteFunc(slices.Clone(g.points), func(m *measured) bool { return m.Doubt != "" })
		points := slices.DeleteFunc(slices.Clone(sound), (*measured).foreign)
		if len(points) == 0 {
			continue
		}
		top := slices.MaxFunc(points, func(a, b *measured) int { return cmp.Compare(a.GFLOPS, b.GFLOPS) })
		h := headline{measured: top, Title: g.title(s), OfLimit: top.OfLimit(limits), Limit: roofOf(limits, g.place, g.dtype).rate}
		if m := s.find(top, portable[g.pass]); m != nil && m != top && m.Doubt == "" && m.GFLOPS > 0 {
			h.Portable = top.GFLOPS / m.GFLOPS
		}
		h.Naive, h.Peer = longest(pairings(sound, (*measured).naive)), longest(pairings(sound, (*measured).peer))
		list = append(list, h)
	}
	return list
}

// longest returns the first pair with the most keys, or nil if there are no pairs.
func longest(pairs []*pairing) *pairing {
	if len(pairs) == 0 {
		return nil
	}
	return slices.MaxFunc(pairs, func(a, b *pairing) int { return cmp.Compare(a.Keys(), b.Keys()) })
}

// find returns the result of a kernel on m's problem with host tensors, or nil.
func (s *study) find(m *measured, kernel string) *measured {
	i := slices.IndexFunc(s.all, func(o *measured) bool {
		return o.Kernel == kernel && o.Problem == m.Problem && o.Memory == machine.Host
	})
	if i < 0 {
		return nil
	}
	return s.all[i]
}

// A hero is the large plot: rates of the sweep with the most lengths, for a wide screen and a
// phone.
type hero struct {
	Title        string
	Wide, Narrow *panel
}

const (
	wideWidth, wideHeight     = 1120, 420
	narrowWidth, narrowHeight = 360, 340
)

func (s *study) hero(limits []machine.Limit) *hero {
	f := slices.MaxFunc(s.sweeps, func(a, b *sweep) int {
		return cmp.Compare(len(lengths(a.points)), len(lengths(b.points))) // the first of several sweeps with the most lengths
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

// A pairing is two results for the same problem: a kernel's result, and a result of the baseline or
// of a peer.
type pairing struct{ other, kernel *measured }

var naiveNames = map[flashkit.Pass]string{flashkit.PassForward: bench.Naive + "/fwd_matrices", flashkit.PassBackward: bench.Naive + "/bwd_matrices"}

func (m *measured) naive() bool { return m.Backend == bench.Naive }

// peer reports whether the result is of another library's kernel.
func (m *measured) peer() bool { return m.Backend == bench.Peer }

// foreign reports whether dispatch cannot run the kernel.
func (m *measured) foreign() bool { return m.naive() || m.peer() }

// Peak returns the maximum bytes during a call.
func (m *measured) Peak() float64 { return m.PeakOf(m.p, m.pass) }

// Faster returns the kernel's speedup over the other result, or "" if a time is in doubt.
func (b *pairing) Faster() string {
	if b.other.Doubt != "" || b.kernel.Doubt != "" {
		return ""
	}
	return times(b.other.Seconds / b.kernel.Seconds)
}

// Smaller returns the ratio of the other result's peak memory to the kernel's peak memory.
func (b *pairing) Smaller() string { return times(b.other.Peak() / b.kernel.Peak()) }

// pairings pairs, for each problem, the fastest result for which other is true with the fastest
// result of a kernel that dispatch can run. It omits problems that lack one of these results.
// Pairings are in order of keys.
func pairings(points []*measured, other func(*measured) bool) (list []*pairing) {
	for _, m := range points {
		if !other(m) || !plottable(m.Seconds) || slices.ContainsFunc(points, func(o *measured) bool { return other(o) && o.Problem == m.Problem && o.Seconds < m.Seconds }) {
			continue
		}
		b := &pairing{other: m}
		for _, k := range points {
			if k.Problem == m.Problem && !k.foreign() && plottable(k.Seconds) && (b.kernel == nil || k.Seconds < b.kernel.Seconds) {
				b.kernel = k
			}
		}
		if b.kernel != nil {
			list = append(list, b)
		}
	}
	slices.SortStableFunc(list, func(a, b *pairing) int { return cmp.Compare(a.Keys(), b.Keys()) })
	return list
}

func (b *pairing) Keys() int         { return b.kernel.p.KVLen }
func (b *pairing) Other() *measured  { return b.other }
func (b *pairing) Kernel() *measured { return b.kernel }

// times formats a factor, with one decimal if it is below 10. It returns "" if no plot can show the
// factor.
func times(x float64) string {
	switch {
	case !plottable(x):
		return ""
	case x < 9.95:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// A pairTable compares the fastest kernel with the baseline on the problems of a sweep.
type pairTable struct {
	Title, Kernels string
	Rows           []*pairing
}

// pairTables returns the tables of the sweeps that have the baseline.
func (s *study) pairTables() (list []*pairTable) {
	for _, f := range s.sweeps {
		t := &pairTable{Title: f.Title, Rows: pairings(f.points, (*measured).naive)}
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
