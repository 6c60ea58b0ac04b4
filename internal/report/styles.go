package report

import (
	"hash/fnv"
	"slices"
	"strings"

	"github.com/flashkit-go/flashkit/internal/bench"
)

// A style is the color and mark of a kind in all plots of a report.
type style struct {
	Color, Mark int
	Hollow      bool
}

// Colors, numbered as in plot.css. A color stands for a family of instructions.
const (
	blue = iota
	orange
	green
	purple
	olive
	indigo
	gray
	red
	numColors
)

// Marks, numbered as in the variable marks.
const (
	disk = iota
	square
	triangle
	diamond
	wedge
	plus
	hexagon
	cross
)

// styles are the styles of the kernels and backends of this repository. Most decode kernels have
// hollow marks.
var styles = map[string]style{
	"simd":                {Color: blue, Mark: disk},
	"simd avx512":         {Color: blue, Mark: disk},
	"simd avx512bf16":     {Color: indigo, Mark: hexagon},
	"simd amxbf16":        {Color: orange, Mark: square},
	"simd amxf32":         {Color: orange, Mark: wedge},
	"simd avx2":           {Color: green, Mark: triangle},
	"simd neon":           {Color: green, Mark: diamond},
	"simd neonfhm":        {Color: green, Mark: square},
	"simd neonbf16":       {Color: green, Mark: hexagon},
	"simd generic":        {Color: gray, Mark: cross},
	"wasm":                {Color: purple, Mark: diamond},
	"wasm simd128":        {Color: purple, Mark: diamond},
	"wasm scalar":         {Color: olive, Mark: plus},
	"cuda":                {Color: red, Mark: square},
	"cuda sm80":           {Color: red, Mark: square},
	"cuda sm90":           {Color: red, Mark: diamond},
	"cuda f32":            {Color: red, Mark: triangle},
	"cuda sm80 decode":    {Color: red, Mark: hexagon},
	bench.Naive:           {Color: gray, Mark: disk, Hollow: true},
	"simd avx512 decode":  {Color: blue, Mark: disk, Hollow: true},
	"simd avx512 fewkeys": {Color: blue, Mark: wedge},
	"simd avx2 fewkeys":   {Color: green, Mark: wedge},
}

// styleOf returns the style of a name in styles, also with the suffix " decode" or " on device". It
// returns false for other names.
func styleOf(name string) (style, bool) {
	if s, ok := styles[name]; ok {
		return s, true
	}
	if base, found := strings.CutSuffix(name, " on device"); found {
		s, ok := styleOf(base)
		s.Hollow = !s.Hollow
		return s, ok
	}
	base, found := strings.CutSuffix(name, " decode")
	s, ok := styles[base]
	s.Hollow = true
	return s, found && ok
}

// paint gives each kind its style. A kind that is not in styles gets a style that depends only on
// the kind's name. If another kind of this report has that style, the kind gets the next free
// style.
func paint(kinds []*kind) {
	taken := map[style]bool{}
	var unknown []*kind
	for _, k := range kinds {
		var known bool
		if k.style, known = styleOf(k.Name); known {
			taken[k.style] = true
		} else {
			unknown = append(unknown, k)
		}
	}
	slices.SortFunc(unknown, func(a, b *kind) int { return strings.Compare(a.Name, b.Name) })
	for _, k := range unknown {
		h := fnv.New32a()
		h.Write([]byte(k.Name))
		first := int(h.Sum32() % uint32(numColors*len(marks)))
		for i := range 2 * numColors * len(marks) {
			n := first + i
			k.style = style{Color: n % numColors, Mark: n / numColors % len(marks), Hollow: n/numColors/len(marks)%2 == 1}
			if !taken[k.style] {
				break
			}
		}
		taken[k.style] = true
	}
}
