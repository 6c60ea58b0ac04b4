package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A panel is a plot after layout, as report.tmpl draws it. Lengths are in pixels of the panel's own
// coordinates.
type panel struct {
	Title  string // title within its part
	Full   string // title outside its part
	Text   string // the plot in words, for screen readers
	W, H   px
	Grid   string // an SVG path
	Words  []words
	Roofs  []string // each string has the points of one line
	Traces []tracePath
	Cells  []cell
	Keys   []key
}

// A px is a length. It prints with one decimal.
type px float64

func (x px) String() string {
	return strconv.FormatFloat(math.Round(float64(x)*10)/10, 'f', -1, 64)
}

// words are a text at a position. Class determines whether the text starts, ends or is centered at
// this position.
type words struct {
	X, Y  px
	Class string
	Text  string
	Turn  px // rotation in degrees
}

type tracePath struct {
	Kind  *kind
	Line  string // the coordinates of a line, "" without a line
	Marks []mark
}

type mark struct {
	X, Y  px
	Title string
}

type key struct {
	Kind *kind
	X, Y px
}

// A plot is a panel before layout. Both axes are logarithmic.
type plot struct {
	title, full  string
	xName, yName string // names of the axes, "" if the caption has them
	traces       []trace
	roofs        []roof
	x, y         span
	side         px   // width right of the axes for the kinds' names
	labeled      bool // name kinds next to their lines, not in the legend
	width        px   // panelWidth if 0
	height       px
	lengths      bool // x ticks at the points' lengths, not at round numbers
	bytes        bool // y ticks at powers of two
	tickText     func(float64) string
	text         string
}

type trace struct {
	kind   *kind
	points []spot // marks
	line   []spot // points to connect: the marks or their means
}

type spot struct {
	x, y  float64
	title string
}

// A roof is the limit of a processor's rate at each arithmetic intensity. The limit is the smaller
// of two numbers: rate, and bandwidth times intensity.
type roof struct {
	rate, bandwidth float64 // GFLOP/s and GB/s; 0 if unknown
}

func (r roof) at(x float64) float64 {
	switch {
	case r.bandwidth == 0:
		return r.rate
	case r.rate == 0:
		return r.bandwidth * x
	}
	return min(r.rate, r.bandwidth*x)
}

type span struct{ lo, hi float64 }

// add widens the span to v, unless a logarithmic axis cannot show v.
func (s *span) add(v float64) {
	if !plottable(v) {
		return
	}
	if s.lo == 0 {
		s.lo, s.hi = v, v
	}
	s.lo, s.hi = min(s.lo, v), max(s.hi, v)
}

func plottable(v float64) bool { return v > 1e-30 && v < 1e30 }

// padded returns the span with both ends moved outwards. part is the length of each move, as a
// fraction of the span's logarithmic length. The result is never empty.
func (s span) padded(part float64) span {
	if s.lo == 0 {
		s = span{1, 1}
	}
	factor := max(math.Pow(s.hi/s.lo, part), 1.01)
	if s.lo == s.hi {
		factor = 2
	}
	return span{s.lo / factor, s.hi * factor}
}

// A scale maps a span to pixels.
type scale struct {
	span
	from, to px
}

func (s scale) at(v float64) px {
	return s.from + (s.to-s.from)*px(math.Log(v/s.lo)/math.Log(s.hi/s.lo))
}

// Sizes of a panel that is readable on a phone.
const (
	panelWidth, panelHeight = 360, 232
	charWidth               = 7 // in the widest common font

	lineHeight = 13
)

func (p *plot) layOut() *panel {
	width, height := cmp.Or(p.width, panelWidth), cmp.Or(p.height, panelHeight)
	top, bottom := px(26), height-22
	if p.title == "" {
		top = 12
	}
	if p.yName != "" || len(p.roofs) > 0 {
		top += lineHeight
	}
	if p.xName != "" {
		bottom -= lineHeight
	}
	out := &panel{Title: p.title, Full: p.full, Text: p.text, W: width, H: height}
	y := scale{p.y.padded(.06), bottom, top}
	high := func(string) px { return lineHeight + 3 }
	yTicks := roundTicks(y, p.tickText, high)
	if p.bytes {
		yTicks = apart(y, powersOfTwo(y), p.tickText, high)
	}
	left := px(0)
	for _, t := range yTicks {
		left = max(left, textWidth(t.text)+8)
	}
	x := scale{p.x.padded(.04), left, width - p.side}
	out.axes(x, y, p.xTicks(x), yTicks)
	out.Words = append(out.Words, words{X: 0, Y: y.to - 12, Class: "dim", Text: p.yName}, words{X: x.to, Y: height - 6, Class: "dim end", Text: p.xName})
	for _, t := range p.traces {
		out.trace(t, x, y)
	}
	if !p.labeled {
		out.Keys = nil
	}
	spread(out.Keys, y.to, y.from)
	for _, r := range p.roofs {
		r.layOut(out, x, y)
	}
	return out
}

// width returns the approximate width of the kind's name and mark.
func (k *kind) width() px { return textWidth(k.Name) + 30 }

// textWidth estimates the width of a text. The estimate is rather too large than too small.
func textWidth(s string) px { return px(utf8.RuneCountInString(s)) * charWidth }

func (p *panel) axes(x, y scale, xTicks, yTicks []tick) {
	for _, t := range xTicks {
		p.Grid += fmt.Sprintf("M%s %sV%s", t.at, y.from, y.to)
		p.Words = append(p.Words, words{X: t.at, Y: y.from + 15, Class: "dim mid", Text: t.text})
	}
	for _, t := range yTicks {
		p.Grid += fmt.Sprintf("M%s %sH%s", x.from, t.at, x.to)
		p.Words = append(p.Words, words{X: x.from - 5, Y: t.at + 4, Class: "dim end", Text: t.text})
	}
}

// trace draws the points and the line of a kind. It puts the kind's name next to the end of the
// line or, without a line, next to the last point.
func (p *panel) trace(t trace, x, y scale) {
	path := tracePath{Kind: t.kind}
	for _, s := range visible(t.points) {
		path.Marks = append(path.Marks, mark{x.at(s.x), y.at(s.y), s.title})
	}
	if len(path.Marks) == 0 {
		return
	}
	end := path.Marks[len(path.Marks)-1].Y
	if line := visible(t.line); len(line) > 1 {
		var list []string
		for _, s := range line {
			end = y.at(s.y)
			list = append(list, x.at(s.x).String()+","+end.String())
		}
		path.Line = strings.Join(list, " ")
	}
	p.Traces = append(p.Traces, path)
	p.Keys = append(p.Keys, key{t.kind, x.to + 10, end})
}

// visible returns the points that logarithmic axes can show.
func visible(points []spot) []spot {
	return slices.DeleteFunc(slices.Clone(points), func(s spot) bool { return !plottable(s.x) || !plottable(s.y) })
}

// spread moves labels apart so that none overlap.
func spread(labels []key, top, bottom px) {
	slices.SortStableFunc(labels, func(a, b key) int { return cmp.Compare(a.Y, b.Y) })
	for i := range labels {
		labels[i].Y = max(labels[i].Y, top+px(i)*lineHeight) // below the labels before it
	}
	for i := len(labels) - 1; i >= 0; i-- {
		labels[i].Y = min(labels[i].Y, bottom)
		bottom = labels[i].Y - lineHeight
	}
}

type tick struct {
	at   px
	text string
}

func (p *plot) xTicks(x scale) []tick {
	width := func(text string) px { return textWidth(text) + 5 }
	if !p.lengths {
		return roundTicks(x, plainNumber, width)
	}
	var values []float64
	for _, t := range p.traces {
		for _, s := range t.points {
			values = append(values, s.x)
		}
	}
	slices.Sort(values)
	return apart(x, slices.Compact(values), plainNumber, width)
}

// roundTicks returns ticks at powers of ten. If these are fewer than three, it adds other round
// numbers, such as 2 and 5 times powers of ten. A span without any of these numbers gets ticks at
// its ends.
func roundTicks(s scale, text func(float64) string, size func(string) px) (list []tick) {
	for _, digits := range [][]float64{{1}, {1, 2, 5}, {1, 1.5, 2, 3, 4, 5, 6, 7, 8, 9}, tenths()} {
		var values []float64
		for e := math.Floor(math.Log10(s.lo)); e <= math.Log10(s.hi); e++ {
			for _, d := range digits {
				if v := d * math.Pow(10, e); v >= s.lo && v <= s.hi {
					values = append(values, v)
				}
			}
		}
		if list = apart(s, values, text, size); len(list) >= 3 {
			return list
		}
	}
	if len(list) == 0 {
		list = apart(s, []float64{s.lo, s.hi}, text, size)
	}
	return list
}

func powersOfTwo(s scale) (list []float64) {
	for e := math.Ceil(math.Log2(s.lo)); e <= math.Log2(s.hi); e++ {
		list = append(list, math.Exp2(e))
	}
	return list
}

func tenths() (list []float64) {
	for i := 10; i < 100; i++ {
		list = append(list, float64(i)/10)
	}
	return list
}

// apart returns a tick at every value. If the texts of these ticks would overlap, apart returns a
// tick at every second value, else at every third value, and so on.
func apart(s scale, values []float64, text func(float64) string, size func(string) px) (list []tick) {
	values = slices.DeleteFunc(values, func(v float64) bool { return !plottable(v) })
	for step := 1; step <= len(values); step++ {
		list = list[:0]
		room := true
		for i := 0; i < len(values) && room; i += step {
			t := tick{s.at(values[i]), text(values[i])}
			if n := len(list); n > 0 {
				room = px(math.Abs(float64(t.at-list[n-1].at))) >= (size(t.text)+size(list[n-1].text))/2
			}
			list = append(list, t)
		}
		if room {
			break
		}
	}
	return list
}

// plainNumber formats a number with three digits, or without a fraction if it is at least 100. It
// uses an exponent and one digit for numbers from 1e7 and below 1e-3.
func plainNumber(v float64) string {
	switch {
	case v >= 1e7 || v < 1e-3:
		return strconv.FormatFloat(v, 'e', 0, 64)
	case v >= 100 || v == math.Trunc(v):
		return strconv.FormatFloat(v, 'f', 0, 64)
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}

// layOut draws the visible part of a roof: the slope and the flat part.
func (r roof) layOut(p *panel, x, y scale) {
	ridge := x.lo
	switch {
	case r.bandwidth == 0:
	case r.rate == 0:
		ridge = x.hi
	default:
		ridge = min(max(x.lo, r.rate/r.bandwidth), x.hi)
	}
	if from := max(x.lo, y.lo/max(r.bandwidth, 1e-300)); from < ridge {
		turn := math.Atan2(float64(y.at(r.at(ridge))-y.at(r.at(from))), float64(x.at(ridge)-x.at(from)))
		p.Roofs = append(p.Roofs, line(x, y, from, r.at(from), ridge, r.at(ridge)))
		text := fmt.Sprintf("%s GB/s", plainNumber(r.bandwidth))
		if step := x.at(ridge) - x.at(from) - (textWidth(text)+6)*px(math.Cos(turn)); step > 0 { // next to the ridge, where points are rare
			p.Words = append(p.Words, words{X: x.at(from) + step, Y: y.at(r.at(from)) + step*px(math.Tan(turn)) - 6, Class: "dim", Text: text, Turn: px(turn * 180 / math.Pi)})
		}
	}
	if r.rate > 0 && ridge < x.hi {
		p.Roofs = append(p.Roofs, line(x, y, ridge, r.rate, x.hi, r.rate))
		p.Words = append(p.Words, words{X: x.to, Y: y.at(r.rate) - 5, Class: "dim end", Text: r.label() + plainNumber(r.rate) + " GFLOP/s"})
	}
}

// label returns the word before the rate of a roof: "limit " if the roof has no slope.
func (r roof) label() string {
	if r.bandwidth == 0 {
		return "limit "
	}
	return ""
}

func line(x, y scale, x1, y1, x2, y2 float64) string {
	return fmt.Sprintf("%s,%s %s,%s", x.at(x1), y.at(y1), x.at(x2), y.at(y2))
}
