package report

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/bench"
	"github.com/flashkit-go/flashkit/internal/input"
	"github.com/flashkit-go/flashkit/internal/machine"
)

// A kind is a way to compute that a reader tells from others by color and mark: a
// variant of a kernel, for both passes, and where its tensors lie.
type kind struct {
	Name string // simd avx512
	style
}

// kindName returns the name of a kernel's kind.
func kindName(kernel, memory string) string {
	backend, stem, _ := strings.Cut(kernel, "/")
	switch backend {
	case bench.Naive:
		return backend
	case bench.Peer:
		return stem
	}
	regime, variant, found := strings.Cut(stem, "_")
	name := backend + " " + stem
	if found && (regime == "fwd" || regime == "bwd") {
		name = backend + " " + variant
	} else if found {
		name = backend + " " + variant + " " + regime
	}
	return placed(name, memory)
}

// placed adds where tensors lie, unless that is the host.
func placed(name, memory string) string {
	if memory == machine.Device {
		return name + " on device"
	}
	return name
}

// A measured is a result with its problem.
type measured struct {
	*bench.Result
	p    flashkit.Problem
	pass flashkit.Pass
	kind *kind
}

// A facet is what is measured of problems that differ in their length only: one
// small plot.
type facet struct {
	Title    string // what sets it apart from the other facets
	Row      string // the same without the pass
	Line     string // the same without the pass and how rows go with keys
	Unmasked string // the same without the mask
	pass     flashkit.Pass
	like     flashkit.Problem // its lengths are 0 where they vary
	points   []*measured
}

// A study is results by facet.
type study struct {
	all    []*measured
	facets []*facet
	kinds  []*kind
	common string // what all facets have in common
}

// newStudy sorts results that were checked.
func newStudy(r *bench.Results) *study {
	s := new(study)
	kinds, facets := map[string]*kind{}, map[string]*facet{}
	for i := range r.Results {
		x := &r.Results[i]
		p, _ := flashkit.ParseProblem(x.Problem)
		m := &measured{Result: x, p: p}
		if x.Pass == flashkit.PassBackward.String() {
			m.pass = flashkit.PassBackward
		}
		name := kindName(x.Kernel, x.Memory)
		if m.kind = kinds[name]; m.kind == nil {
			m.kind = &kind{Name: name}
			kinds[name] = m.kind
			s.kinds = append(s.kinds, m.kind)
		}
		s.all = append(s.all, m)
		key := x.Pass + like(p).String()
		f := facets[key]
		if f == nil {
			f = &facet{pass: m.pass, like: like(p)}
			facets[key] = f
			s.facets = append(s.facets, f)
		}
		f.points = append(f.points, m)
	}
	paint(s.kinds)
	slices.SortStableFunc(s.facets, func(a, b *facet) int { return int(a.pass) - int(b.pass) })
	s.name()
	return s
}

// properties tell facets apart.
var properties = []struct {
	name string
	of   func(*facet) string
}{
	{"pass", func(f *facet) string { return f.pass.String() }},
	{"dtype", func(f *facet) string { return input.TypesName(&f.like) }},
	{"dims", func(f *facet) string { return dims(f.like) }},
	{"mask", func(f *facet) string { return maskName(f.like) }},
	{"batch", func(f *facet) string { return "B " + strconv.Itoa(f.like.Batch) }},
	{"heads", func(f *facet) string { return heads(f.like) }},
	{"rows", func(f *facet) string { return rows(f.like) }},
}

// name gives each facet the properties that not all of them share.
func (s *study) name() {
	var common []string
	for _, property := range properties {
		first, differs := property.of(s.facets[0]), false
		for _, f := range s.facets {
			differs = differs || property.of(f) != first
		}
		if !differs {
			common = append(common, first)
			continue
		}
		for _, f := range s.facets {
			add := func(to *string) { *to = strings.TrimPrefix(*to+", "+property.of(f), ", ") }
			add(&f.Title)
			if property.name != "pass" {
				add(&f.Row)
			}
			if property.name != "pass" && property.name != "rows" {
				add(&f.Line)
			}
			if property.name != "mask" {
				add(&f.Unmasked)
			}
		}
	}
	s.common = strings.Join(common, ", ")
	for _, f := range s.facets {
		f.Title, f.Unmasked = cmp.Or(f.Title, f.pass.String()), cmp.Or(f.Unmasked, f.pass.String())
	}
}

func dims(p flashkit.Problem) string {
	if p.Dim == p.VDim {
		return "D " + strconv.Itoa(p.Dim)
	}
	return "D " + strconv.Itoa(p.Dim) + ", DV " + strconv.Itoa(p.VDim)
}

func heads(p flashkit.Problem) string {
	if p.Heads == p.KVHeads {
		return "H " + strconv.Itoa(p.Heads)
	}
	return "H " + strconv.Itoa(p.Heads) + ", G " + strconv.Itoa(p.KVHeads)
}

// rows returns how the query rows of a facet go with its keys.
func rows(p flashkit.Problem) string {
	switch p.QLen {
	case 0:
		return "N = M"
	case 1:
		return "one row"
	}
	return strconv.Itoa(p.QLen) + " rows"
}

// maskName returns what follows the types in the name of a problem.
func maskName(p flashkit.Problem) string {
	_, mask, _ := strings.Cut(p.String(), "-"+input.TypesName(&p))
	if mask == "" {
		return "no mask"
	}
	return strings.ReplaceAll(strings.TrimPrefix(mask, "-"), "-", " ")
}

// shape says how the rows of a facet go with its keys, after a comma, where that is
// not the same for all.
func (s *study) shape(p flashkit.Problem) string {
	for _, f := range s.facets {
		if rows(f.like) != rows(s.facets[0].like) {
			return ", " + rows(p)
		}
	}
	return ""
}

// like returns the problem with 0 for lengths that vary in its facet.
func like(p flashkit.Problem) flashkit.Problem {
	if p.QLen == p.KVLen {
		p.QLen = 0
	}
	p.KVLen = 0
	return p
}

// lengths returns the keys of the points, in order, each once.
func lengths(points []*measured) (list []int) {
	for _, m := range points {
		list = append(list, m.p.KVLen)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// kindsOf returns the kinds among the points, in order of appearance in the study.
func (s *study) kindsOf(points []*measured) (list []*kind) {
	for _, k := range s.kinds {
		if slices.ContainsFunc(points, func(m *measured) bool { return m.kind == k }) {
			list = append(list, k)
		}
	}
	return list
}

// Kind is how the kernel looks, for the page.
func (m *measured) Kind() *kind { return m.kind }
