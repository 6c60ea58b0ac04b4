//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// A fitLine is a line of BenchmarkChoice: one kernel and one problem.
type fitLine struct {
	family            *family
	dev               *Device
	call              *flashkit.Call
	problem           int     // index of the problem
	ms                float64 // measured
	near              float64 // ms over the minimum of the problem
	guess             float64 // logarithm of the predicted milliseconds
	w, logMS, logNear float64
}

// A fit is the measurements and the parameters that are fitted to them.
type fit struct {
	lines    []fitLine
	problems [][]int // indices of their lines
	params   []fitParam
}

// A fitParam is a number of the tables.
type fitParam struct {
	name  string
	at    *float64
	was   float64
	lines []int // lines that depend on it
}

// TestFitCosts fits the costs to measurements and writes costs.json, the input of mkcosts.
// FLASHKIT_FIT names the files with the lines of BenchmarkChoice; FLASHKIT_FIT_CHECK names other
// files, which judge the result. FLASHKIT_FIT_STEMS restricts the fit to some families; "-" keeps
// all of them, and the file.
//
//	FLASHKIT_FIT="$PWD/choice.*.log" go test ./backends/cuda -run 'TestFitCosts$' -v
func TestFitCosts(t *testing.T) {
	files := os.Getenv("FLASHKIT_FIT")
	if files == "" {
		t.Skip("FLASHKIT_FIT names no measurements")
	}
	f, check := readFit(t, named(t, files)), readFit(t, named(t, os.Getenv("FLASHKIT_FIT_CHECK")))
	only := os.Getenv("FLASHKIT_FIT_STEMS")
	for i := range families {
		if only == "" || slices.Contains(strings.Fields(only), families[i].name) {
			f.add(&families[i])
		}
	}
	if only == "-" {
		f.report("as they are", 48)
		return
	}
	f.report("before", 0)
	check.report("check before", 0)
	f.descend()
	f.report("after", 24)
	check.report("check after", 24)
	require.NoError(t, os.WriteFile("costs.json", []byte(fittedJSON()), 0o644))
}

// named returns the files that match patterns.
func named(t *testing.T, patterns string) (files []string) {
	for _, pattern := range strings.Fields(patterns) {
		found, err := filepath.Glob(pattern)
		require.NoError(t, err)
		require.NotEmpty(t, found, pattern)
		files = append(files, found...)
	}
	return files
}

var fitDevice = regexp.MustCompile(`^\{Ordinal:.* Major:(\d+) Minor:\d+ SMs:(\d+) .* ClockMHz:(\d+) Bandwidth:(\d+) `)

// readFit reads lines. The lines of a problem are adjacent.
func readFit(t *testing.T, files []string) *fit {
	f, byName := &fit{}, map[string]*family{}
	for i := range families {
		byName["cuda/"+families[i].name] = &families[i]
	}
	for _, name := range files {
		file, err := os.Open(name)
		require.NoError(t, err)
		dev, last := &Device{}, ""
		for s := bufio.NewScanner(file); s.Scan(); {
			if m := fitDevice.FindStringSubmatch(s.Text()); m != nil {
				number := func(i int) int { n, _ := strconv.Atoi(m[i]); return n }
				dev = &Device{Major: number(1), SMs: number(2), ClockMHz: number(3), Bandwidth: number(4)}
			}
			var x choiceTiming
			if !strings.HasPrefix(s.Text(), `{"problem"`) || json.Unmarshal(s.Bytes(), &x) != nil || x.Memory != "device" {
				continue
			}
			p, err := flashkit.ParseProblem(x.Problem)
			require.NoError(t, err)
			pass := flashkit.PassForward
			if x.Pass != pass.String() {
				pass = flashkit.PassBackward
			}
			l := fitLine{family: byName[x.Kernel], dev: dev, call: p.Ask(pass), ms: x.MS}
			l.call.Traits = flashkit.Traits{Device: true, Load: x.Load, PackedQ: x.Packed, PackedKV: x.Packed, Loose: looseRows(p)}
			if key := fmt.Sprint(x.Problem, x.Pass, x.Load, x.Packed); key != last {
				f.problems, last = append(f.problems, nil), key
			}
			l.problem = len(f.problems) - 1
			f.problems[l.problem] = append(f.problems[l.problem], len(f.lines))
			f.lines = append(f.lines, l)
		}
		require.NoError(t, file.Close())
	}
	for _, lines := range f.problems {
		least := math.Inf(1)
		for _, i := range lines {
			least = min(least, f.lines[i].ms)
		}
		for _, i := range lines {
			l := &f.lines[i]
			l.near = l.ms / least
			l.w, l.logMS, l.logNear = l.weight(), math.Log(l.ms), math.Log(l.near)
		}
	}
	f.guess(nil)
	return f
}

// guess predicts some lines, or all.
func (f *fit) guess(lines []int) {
	one := func(l *fitLine) { l.guess = math.Log(l.family.callCost(l.dev, l.call).Seconds() * 1e3) }
	for _, i := range lines {
		one(&f.lines[i])
	}
	if lines == nil {
		for i := range f.lines {
			one(&f.lines[i])
		}
	}
}

// add adds the numbers of a family to the fit, unless they are 0. To fit a number that is 0, write
// a small one into costs.json.
func (f *fit) add(s *family) {
	param := func(name string, x *float64) {
		if *x == 0 {
			return
		}
		p := fitParam{name: s.name + "." + name, at: x, was: *x}
		before := make([]float64, len(f.lines))
		for i := range f.lines {
			before[i] = f.lines[i].guess
		}
		for _, factor := range [...]float64{.5, 2} {
			*x = p.was * factor
			f.guess(nil)
			for i := range f.lines {
				if f.lines[i].guess != before[i] && !slices.Contains(p.lines, i) {
					p.lines = append(p.lines, i)
				}
			}
		}
		*x = p.was
		f.guess(nil)
		if p.lines != nil {
			f.params = append(f.params, p)
		}
	}
	tables := []*costs{s.costs}
	if s.rows > 0 {
		tables = append(tables, &decodeF32Costs)
	}
	for _, c := range tables {
		for _, x := range numbersOf(c) {
			param(x.name, x.at)
		}
		for i := range c.tiles {
			for _, x := range numbersOf(&c.tiles[i]) {
				param(fmt.Sprint("tile", i, ".", x.name), x.at)
			}
		}
	}
	for i := range featureTimes {
		for _, x := range s.featureTimes(i) {
			param(fmt.Sprint(featureTimes[i].feature), x)
		}
	}
}

// A costField is a number of a table.
type costField struct {
	name string
	at   *float64
}

// numbersOf returns the numbers of a table, which is a pointer to a struct.
func numbersOf(table any) (list []costField) {
	x := reflect.ValueOf(table).Elem()
	for i := range x.NumField() {
		if x.Field(i).Kind() == reflect.Float64 {
			list = append(list, costField{x.Type().Field(i).Name, (*float64)(x.Field(i).Addr().UnsafePointer())})
		}
	}
	return list
}

// featureTimes returns the times that a feature adds to the family's calls.
func (s *family) featureTimes(i int) []*float64 {
	x := &featureTimes[i]
	switch {
	case s.rows > 0:
		return []*float64{&x.decode}
	case s.dtypes[0] == flashkit.Float32:
		return []*float64{&x.float32}
	case s.hopper && s.pass == flashkit.PassForward:
		return []*float64{&x.sm90, &x.sm90Alone}
	case s.hopper:
		return []*float64{&x.back90, &x.back90Alone}
	case s.pass == flashkit.PassForward:
		return []*float64{&x.sm80}
	}
	return []*float64{&x.back80}
}

const (
	fitRegret  = 10   // weight of a wrong choice relative to a wrong prediction
	fitEven    = .04  // logarithm of the ratio up to which two predictions count as equal
	fitFar     = .15  // error from which errors count linearly, not squared
	fitPenalty = .001 // cost of a number's squared change, over the count of its lines
)

// weight is smaller for a kernel far from the fastest of a problem.
func (l *fitLine) weight() float64 { return min(1, math.Pow(1.5/l.near, 3)) }

// loss is the objective that the fit minimizes.
func (f *fit) loss() (sum float64) {
	for _, lines := range f.problems {
		least := math.Inf(1)
		for _, i := range lines {
			least = min(least, f.lines[i].guess)
		}
		chance, regret := 0., 0.
		for _, i := range lines {
			l := &f.lines[i]
			off := math.Abs(l.logMS - l.guess)
			if off > fitFar {
				off = math.Sqrt(fitFar * (2*off - fitFar))
			}
			sum += l.w * off * off
			w := math.Exp((least - l.guess) / fitEven)
			chance, regret = chance+w, regret+w*l.logNear
		}
		sum += fitRegret * regret / chance * (1 + regret/chance)
	}
	sum /= float64(max(1, len(f.problems)))
	for _, p := range f.params {
		x := math.Log(*p.at / p.was)
		sum += fitPenalty / float64(len(p.lines)) * x * x
	}
	return sum
}

// descend moves one number after another while that reduces the loss.
func (f *fit) descend() {
	least := f.loss()
	for step := .3; step > .01; step /= 2 {
		for range 40 {
			before := least
			for i := range f.params {
				least = f.move(&f.params[i], step, least)
			}
			fmt.Printf("step %.3f: loss %.5f\n", step, least)
			if least > before*.9998 {
				break
			}
		}
	}
}

// move changes a number by a factor, up or down.
func (f *fit) move(p *fitParam, step, least float64) float64 {
	for _, factor := range [...]float64{1 + step, 1 / (1 + step)} {
		for range 3 {
			x := *p.at
			*p.at = x * factor
			f.guess(p.lines)
			if l := f.loss(); l < least {
				least = l
				continue
			}
			*p.at = x
			f.guess(p.lines)
			break
		}
	}
	return least
}
