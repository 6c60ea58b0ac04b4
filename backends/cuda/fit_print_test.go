//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// report prints the regret, the largest regrets, and the errors of each kernel's predictions.
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
	slices.SortFunc(order, func(a, b int) int { return cmp.Compare(logs[b], logs[a]) })
	fmt.Printf("%s: %d problems, regret %.4f, worst %.3f, %d above 1.1\n", when, len(logs), math.Exp(sum/float64(len(logs))), math.Exp(logs[order[0]]), above)
	for _, n := range order[:min(most, len(order))] {
		first := &f.lines[f.problems[n][0]]
		fmt.Printf("  %.3f %s %v load %d packed %v:", math.Exp(logs[n]), first.call.Pass, first.call.Problem, first.call.Traits.Load, first.call.Traits.PackedQ)
		for _, i := range f.problems[n] {
			l := &f.lines[i]
			fmt.Printf("  %s%s %.1f (%.1f)", map[bool]string{true: "*"}[i == chosen[n]], l.family.name, l.ms*1e3, math.Exp(l.guess)*1e3)
		}
		fmt.Println()
	}
	for i := range families {
		var off []float64
		for _, l := range f.lines {
			if l.family == &families[i] {
				off = append(off, math.Log(l.ms)-l.guess)
			}
		}
		if slices.Sort(off); len(off) > 0 {
			at := func(part float64) float64 { return math.Exp(off[int(part*float64(len(off)-1))]) }
			fmt.Printf("  %-15s %4d lines, measured over predicted: 5 %% %.2f, 25 %% %.2f, median %.2f, 75 %% %.2f, 95 %% %.2f\n",
				families[i].name, len(off), at(.05), at(.25), at(.5), at(.75), at(.95))
		}
	}
}

// fittedTables are the cost tables by name.
var fittedTables = map[string]*costs{
	"fwdSM90": &fwdSM90Costs, "fwdSM90Short": &fwdSM90ShortCosts, "fwdSM90Wide": &fwdSM90WideCosts, "fwdSM80": &fwdSM80Costs, "bwdSM90": &bwdSM90Costs, "bwdSM80": &bwdSM80Costs,
	"fwdF32": &fwdF32Costs, "bwdF32": &bwdF32Costs, "decode": &decodeCosts, "decodeF32": &decodeF32Costs, "decodeInt8": &decodeInt8Costs,
}

// fittedJSON returns the numbers of all tables for mkcosts, a line each.
func fittedJSON() string {
	lines := func(list []string) string { return strings.Join(list, ",\n    ") }
	var tables, features []string
	for _, name := range slices.Sorted(maps.Keys(fittedTables)) {
		c := fittedTables[name]
		tiles := []map[string]float64{}
		for i := range c.tiles {
			tiles = append(tiles, roundedNumbers(&c.tiles[i]))
		}
		tables = append(tables, fmt.Sprintf("%q: {\"fields\": %s,\n      \"tiles\": %s}", name, toJSON(roundedNumbers(c)), toJSON(tiles)))
	}
	for i := range featureTimes {
		x := &featureTimes[i]
		name := map[flashkit.Feature]string{flashkit.AllFeatures: "AllFeatures", flashkit.FeatureALiBi: "FeatureALiBi"}[x.feature]
		if text := x.feature.String(); name == "" {
			name = "Feature" + strings.ToUpper(text[:1]) + text[1:]
		}
		features = append(features, fmt.Sprintf("{\"name\": %q, \"times\": %s}", name, toJSON(roundedNumbers(x))))
	}
	return "{\n  \"costs\": {\n    " + lines(tables) + "\n  },\n  \"features\": [\n    " + lines(features) + "\n  ]\n}\n"
}

func toJSON(x any) string {
	text, err := json.Marshal(x)
	if err != nil {
		panic(err)
	}
	return string(text)
}

// roundedNumbers returns the numbers of a table other than 0.
func roundedNumbers(table any) map[string]float64 {
	numbers := map[string]float64{}
	for _, x := range numbersOf(table) {
		if *x.at != 0 {
			numbers[x.name] = rounded(*x.at)
		}
	}
	return numbers
}

// rounded returns a number with three digits.
func rounded(x float64) float64 {
	x, _ = strconv.ParseFloat(strconv.FormatFloat(x, 'e', 2, 64), 64)
	return x
}

// A fit that changes nothing writes costs.json as it is. A model of more numbers predicts no better.
func TestFittedJSON(t *testing.T) {
	text, err := os.ReadFile("costs.json")
	require.NoError(t, err)
	require.Equal(t, string(text), fittedJSON())
	numbers := 0
	for name, c := range fittedTables {
		fields := len(roundedNumbers(c))
		require.LessOrEqual(t, fields, 10, name)
		numbers += fields
		for i := range c.tiles {
			numbers += len(roundedNumbers(&c.tiles[i]))
		}
	}
	for i := range featureTimes {
		numbers += len(roundedNumbers(&featureTimes[i]))
	}
	require.LessOrEqual(t, numbers, 250)
}
