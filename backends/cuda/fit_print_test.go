//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"bytes"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// report prints the regret, the largest ones, and how far the predictions of each kernel are off.
func (f *fit) report(when string, most int) {
	if len(f.problems) == 0 {
		return
	}
	f.guess(nil)
	var logs []float64
	order := make([]int, len(f.problems))
	chosen := make([]int, len(f.problems))
	sum, above := 0., 0
	for n, lines := range f.problems {
		best := lines[0]
		for _, i := range lines {
			if f.lines[i].guess < f.lines[best].guess {
				best = i
			}
		}
		order[n], chosen[n] = n, best
		x := math.Log(f.lines[best].near)
		if logs = append(logs, x); f.lines[best].near > 1.1 {
			above++
		}
		sum += x
	}
	slices.SortFunc(order, func(a, b int) int { return -compare(logs[a], logs[b]) })
	fmt.Printf("%s: %d problems, regret %.4f, worst %.3f, %d above 1.1\n", when, len(logs), math.Exp(sum/float64(len(logs))), math.Exp(logs[order[0]]), above)
	for _, n := range order[:min(most, len(order))] {
		first := &f.lines[f.problems[n][0]]
		fmt.Printf("  %.3f %s %v load %d packed %v:", math.Exp(logs[n]), first.call.Pass, first.call.Problem, first.call.Traits.Load, first.call.Traits.PackedQ)
		for _, i := range f.problems[n] {
			l := &f.lines[i]
			fmt.Printf("  %s%s %.1f (%.1f)", map[bool]string{true: "*"}[i == chosen[n]], l.stem.name, l.ms*1e3, math.Exp(l.guess)*1e3)
		}
		fmt.Println()
	}
	for i := range stems {
		var off []float64
		for _, l := range f.lines {
			if l.stem == &stems[i] {
				off = append(off, math.Log(l.ms)-l.guess)
			}
		}
		if slices.Sort(off); len(off) > 0 {
			at := func(part float64) float64 { return math.Exp(off[int(part*float64(len(off)-1))]) }
			fmt.Printf("  %-15s %4d lines, measured over predicted: 5 %% %.2f, 25 %% %.2f, median %.2f, 75 %% %.2f, 95 %% %.2f\n",
				stems[i].name, len(off), at(.05), at(.25), at(.5), at(.75), at(.95))
		}
	}
}

func compare(a, b float64) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// tables returns the source of the tables, by the files and the lines that they begin with.
func (f *fit) tables() map[string]map[string]string {
	sources := map[string]map[string]string{"costs.go": {}, "cost_features.go": {}}
	for _, x := range []struct {
		name string
		c    *costs
	}{
		{"fwdSM90", &fwdSM90Costs}, {"fwdSM90Short", &fwdSM90ShortCosts}, {"fwdSM80", &fwdSM80Costs}, {"bwdSM90", &bwdSM90Costs}, {"bwdSM80", &bwdSM80Costs},
		{"fwdF32", &fwdF32Costs}, {"bwdF32", &bwdF32Costs}, {"decode", &decodeCosts}, {"decodeF32", &decodeF32Costs},
	} {
		var list []string
		for _, y := range x.c.fields() {
			if *y.at != 0 {
				list = append(list, fmt.Sprintf("%s: %s", y.name, digits(*y.at)))
			}
		}
		text := fmt.Sprintf("\t%s,\n\ttiles: []tile{\n", strings.Join(list, ", "))
		for _, t := range x.c.tiles {
			text += fmt.Sprintf("\t\t{%d, %d, %d, %d, %s, %s, %s, %s},\n", t.rows, t.keys, t.warps, t.perSM, digits(t.begin), digits(t.step), digits(t.alone), digits(t.share))
		}
		sources["costs.go"]["var "+x.name+"Costs = costs{\n"] = text + "\t},\n"
	}
	text := ""
	for _, x := range featureTimes {
		name := map[flashkit.Feature]string{flashkit.AllFeatures: "AllFeatures", flashkit.FeatureALiBi: "FeatureALiBi"}[x.feature]
		if text := x.feature.String(); name == "" {
			name = "Feature" + strings.ToUpper(text[:1]) + text[1:]
		}
		list := []string{"\t{flashkit." + name}
		for _, y := range [...]float64{x.float32, x.sm90, x.sm90Alone, x.sm80, x.back90, x.back90Alone, x.back80, x.decode} {
			list = append(list, digits(y))
		}
		text += strings.Join(list, ", ") + "},\n"
	}
	sources["cost_features.go"]["\tdecode              float64\n}{\n"] = text
	return sources
}

// write puts the tables into the sources, from a line on to the end of what it opens.
func (f *fit) write(t *testing.T) {
	for name, tables := range f.tables() {
		source, err := os.ReadFile(name)
		require.NoError(t, err)
		for begin, table := range tables {
			before, rest, found := bytes.Cut(source, []byte(begin))
			require.True(t, found, begin)
			_, after, found := bytes.Cut(rest, []byte("\n}\n"))
			require.True(t, found, begin)
			source = slices.Concat(before, []byte(begin+table), []byte("}\n"), after)
		}
		require.NoError(t, os.WriteFile(name, source, 0o644))
	}
}

// digits writes a number with three of them.
func digits(x float64) string {
	if x == 0 {
		return "0"
	}
	n := math.Pow(10, 2-math.Floor(math.Log10(x)))
	return strings.TrimPrefix(strconv.FormatFloat(math.Round(x*n)/n, 'f', -1, 64), "0")
}
