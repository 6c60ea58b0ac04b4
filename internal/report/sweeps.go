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

// A kind is the kernels of one variant, for both passes, with tensors in one memory. Each kind has
// a color and mark.
type kind struct {
	Name string // such as simd avx512
	style
}

func kindName(kernel, memory string) string {
	backend, stem, _ := strings.Cut(kernel, "/")
	switch backend {
	case bench.Naive:
		return backend
	case bench.Peer:
		return stem
	}
	if rest, found := strings.CutPrefix(stem, "bwd_"); found && strings.Contains(rest, "_") { // bwd_decode_avx2 is of the kind of decode_avx2
		stem = rest
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

// placed returns name, with the suffix " on device" if the tensors are in device memory.
func placed(name, memory string) string {
	if memory == machine.Device {
		return name + " on device"
	}
	return name
}

// A measured is a result with its parsed problem.
type measured struct {
	*bench.Result
	p    flashkit.Problem
	pass flashkit.Pass
	kind *kind
}

// A sweep is the results of problems that differ only in length. Many figures have a plot per
// sweep.
type sweep struct {
	Title    string // the properties of the sweep that differ among sweeps
	Row      string // Title without the pass
	Line     string // Title without the pass and the ratio of rows to keys
	Unmasked string // Title without the mask
	pass     flashkit.Pass
	like     flashkit.Problem // the common problem; lengths that vary are 0
	points   []*measured
}

type study struct {
	all    []*measured
	sweeps []*sweep
	kinds  []*kind
	common string // properties that all sweeps share
}

func newStudy(r *bench.Results) *study {
	s := new(study)
	kinds, sweeps := map[string]*kind{}, map[string]*sweep{}
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
		f := sweeps[key]
		if f == nil {
			f = &sweep{pass: m.pass, like: like(p)}
			sweeps[key] = f
			s.sweeps = append(s.sweeps, f)
		}
		f.points = append(f.points, m)
	}
	paint(s.kinds)
	slices.SortStableFunc(s.sweeps, func(a, b *sweep) int { return int(a.pass) - int(b.pass) })
	s.name()
	return s
}

var properties = []struct {
	name string
	of   func(*sweep) string
}{
	{"pass", func(f *sweep) string { return f.pass.String() }},
	{"dtype", func(f *sweep) string { return input.TypesName(&f.like) }},
	{"dims", func(f *sweep) string { return dims(f.like) }},
	{"mask", func(f *sweep) string { return maskName(f.like) }},
	{"batch", func(f *sweep) string { return "B " + strconv.Itoa(f.like.Batch) }},
	{"heads", func(f *sweep) string { return heads(f.like) }},
	{"rows", func(f *sweep) string { return rows(f.like) }},
}

// name sets the Title and the other names of each sweep to the properties in which sweeps differ.
// It sets s.common to all other properties.
func (s *study) name() {
	var common []string
	for _, property := range properties {
		first, differs := property.of(s.sweeps[0]), false
		for _, f := range s.sweeps {
			differs = differs || property.of(f) != first
		}
		if !differs {
			common = append(common, first)
			continue
		}
		for _, f := range s.sweeps {
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
	for _, f := range s.sweeps {
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

// rows describes a sweep's query length, or the ratio of the query length to the key length.
func rows(p flashkit.Problem) string {
	switch p.QLen {
	case 0:
		return "N = M"
	case 1:
		return "one row"
	}
	return strconv.Itoa(p.QLen) + " rows"
}

// maskName returns the part of a problem's name after the types.
func maskName(p flashkit.Problem) string {
	_, mask, _ := strings.Cut(p.String(), "-"+input.TypesName(&p))
	if mask == "" {
		return "no mask"
	}
	return strings.ReplaceAll(strings.TrimPrefix(mask, "-"), "-", " ")
}

// shape returns ", " and rows(p), or "" if rows is the same for all sweeps.
func (s *study) shape(p flashkit.Problem) string {
	for _, f := range s.sweeps {
		if rows(f.like) != rows(s.sweeps[0].like) {
			return ", " + rows(p)
		}
	}
	return ""
}

// like returns p with a length of 0 in place of the lengths that vary in p's sweep: KVLen, and QLen
// if it equals KVLen.
func like(p flashkit.Problem) flashkit.Problem {
	if p.QLen == p.KVLen {
		p.QLen = 0
	}
	p.KVLen = 0
	return p
}

func lengths(points []*measured) (list []int) {
	for _, m := range points {
		list = append(list, m.p.KVLen)
	}
	slices.Sort(list)
	return slices.Compact(list)
}

// kindsOf returns the kinds of the points, in the study's order.
func (s *study) kindsOf(points []*measured) (list []*kind) {
	for _, k := range s.kinds {
		if slices.ContainsFunc(points, func(m *measured) bool { return m.kind == k }) {
			list = append(list, k)
		}
	}
	return list
}

// Kind returns the kind, for the template.
func (m *measured) Kind() *kind { return m.kind }
