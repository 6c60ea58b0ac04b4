package replay

import (
	"fmt"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/bench"
)

const small = "b1-h2-g1-n5-m9-d8-f32"

func TestParseTrace(t *testing.T) {
	p, err := flashkit.ParseProblem(small)
	require.NoError(t, err)
	for _, test := range []struct {
		text  string
		steps []step
		order []int
		calls int
	}{
		{"fwd " + small, []step{{line: 1, problem: p, calls: 1, callers: 1}}, []int{0}, 1},
		{"# nothing\n\n\tbwd " + small + "  calls=3 pause=1ms touch=64KiB busy=2 # else\r\n",
			[]step{{line: 3, pass: flashkit.PassBackward, problem: p, calls: 3, callers: 1, pause: time.Millisecond, touch: 64 << 10, busy: 2}}, []int{0}, 3},
		{"procs 2\ngodebug cpu.avx512f=off,cpu.avx2=off\nfwd " + small + " callers=4 grow=7 calls=5",
			[]step{{line: 3, problem: p, calls: 5, callers: 4, grow: 7}}, []int{0}, 5},
		{"loop 2\nfwd " + small + "\nloop 3\nbwd " + small + " calls=2\nend\nend\nfwd " + small + " touch=1GiB",
			[]step{{line: 2, problem: p, calls: 1, callers: 1}, {line: 4, pass: flashkit.PassBackward, problem: p, calls: 2, callers: 1},
				{line: 7, problem: p, calls: 1, callers: 1, touch: 1 << 30}}, []int{0, 1, 1, 1, 0, 1, 1, 1, 2}, 15},
	} {
		got, err := parseTrace("name", test.text)
		require.NoError(t, err, test.text)
		require.Equal(t, "name", got.name)
		require.Equal(t, test.steps, got.steps, test.text)
		require.Equal(t, test.order, got.order, test.text)
		require.Equal(t, test.calls, got.calls, test.text)
		if got.procs > 0 {
			require.Equal(t, 2, got.procs)
			require.Equal(t, "cpu.avx512f=off,cpu.avx2=off", got.godebug)
		}
	}
}

// A trace that is not understood whole is refused, with line, field and value.
func TestBadTraces(t *testing.T) {
	fwd := "fwd " + small + " "
	for text, want := range map[string]string{
		"":                                   "line 0: there is no step",
		"# fwd\n\n":                          "line 2: there is no step",
		"fly " + small:                       `line 1: step = "fly"`,
		"fwd":                                "line 1: fwd: a problem is missing",
		"\nfwd b1-h8":                        `line 2: flashkit: problem name = "b1-h8"`,
		"fwd b0-h1-g1-n1-m1-d8-f32":          `problem = "b0-h1-g1-n1-m1-d8-f32": there is nothing`,
		"fwd b1-h1-g1-n1-m0-d8-f32":          "there is nothing to compute",
		fwd + "calls":                        `calls = ""`,
		fwd + "calls=0":                      `calls = "0": must be a number from 1 to 100000`,
		fwd + "calls=+3":                     `calls = "+3"`,
		fwd + "calls=1.5":                    `calls = "1.5"`,
		fwd + "calls=100001":                 `calls = "100001"`,
		fwd + "calls=2 calls=2":              `calls = "2": is given twice`,
		fwd + "callers=257":                  `callers = "257"`,
		fwd + "busy=0":                       `busy = "0"`,
		fwd + "busy=65":                      `busy = "65"`,
		fwd + "grow=-1":                      `grow = "-1"`,
		fwd + "grow=1048577":                 `grow = "1048577"`,
		fwd + "speed=9":                      `setting = "speed"`,
		fwd + "touch=64":                     `touch = "64"`,
		fwd + "touch=MiB":                    `touch = "MiB"`,
		fwd + "touch=-1MiB":                  `touch = "-1MiB"`,
		fwd + "touch=2GiB":                   `touch = "2GiB"`,
		fwd + "touch=9999999999999999999KiB": `touch = "9999`,
		fwd + "pause=1":                      `pause = "1"`,
		fwd + "pause=2s":                     `pause = "2s"`,
		fwd + "pause=-1ms":                   `pause = "-1ms"`,
		fwd + "callers=2 touch=1MiB":         "callers = 2: goes without touch and pause",
		fwd + "callers=2 pause=1ms":          "callers = 2",
		fwd + "calls=61 pause=1s":            "pause = 1s: all pauses",
		fwd + "calls=60000\n" + fwd + "calls=60000":                     "line 2: calls = 60000: all steps",
		fwd + "calls=100000 grow=1048576":                               "line 1: the tensors of all steps take",
		"fwd b1-h1-g1-n1-m9-d2000000-f64":                               "problem name",
		"fwd b1-h1-g1-n100000-m100000-d16384-f32":                       "line 1: the tensors of all steps take",
		"fwd b1-h16-g16-n4096-m4096-d64-f32 callers=256":                "the tensors",
		"fwd b1-h1-g1-n1-m9-d1000000000000-f32 calls=99999 grow=999999": "grow = 999999: flashkit: ",
		"loop":           `loop = ""`,
		"loop x":         `loop = "x"`,
		"loop 2 3":       `loop = "2 3": must be one word`,
		"loop 2\n" + fwd: "line 1: loop has no end",
		"loop 2\nend":    "line 2: loop = 2: has no step",
		"end":            "line 1: end: there is no loop",
		fwd + "\nend 2":  `line 2: end = "2"`,
		"loop 10000\n" + fwd + "\n" + fwd + "\nend":   "line 4: loop = 10000: makes more than 10000 steps",
		"loop 9999\nloop 9999\n" + fwd + "\nend\nend": "line 5: loop = 9999",
		"loop 100\n" + fwd + "calls=2000\nend":        "line 3: calls = 2000: all steps",
		"procs 0":                                     `procs = "0"`,
		"procs 2\nprocs 2":                            `line 2: procs = "2": is given twice`,
		fwd + "\nprocs 2":                             `line 2: procs = "2": must stand before`,
		"loop 2\nprocs 2":                             "must stand before",
		"godebug gctrace=1":                           `godebug = "gctrace=1"`,
		"godebug cpu.avx2=off,":                       `godebug = "cpu.avx2=off,"`,
		"godebug cpu.avx2=on":                         "godebug",
		strings.Repeat("#", 1<<20+1):                  "1048577 bytes",
		strings.Repeat(fwd+"\n", 10001):               "line 10001: there are more than 10000 steps",
	} {
		_, err := parseTrace("name", text)
		require.ErrorContains(t, err, want, "%.60q", text)
		require.NotContains(t, err.Error(), "\n")
	}
}

// Every call is in one group, with its problem and conditions.
func TestCallGroups(t *testing.T) {
	tr, err := parseTrace("", `
fwd b1-h1-g1-n1-m6-d8-f32 calls=12 grow=1
loop 3
  fwd b1-h1-g1-n4-m4-d8-f32 calls=2
  fwd b1-h1-g1-n4-m4-d8-f32 busy=1
  bwd b1-h1-g1-n4-m4-d8-f32 callers=2 calls=2
end
fwd b1-h1-g1-n1-m6-d8-f32 calls=12 grow=1`)
	require.NoError(t, err)
	calls := map[string]int{}
	seen := map[string]bool{}
	for _, g := range tr.groups() {
		calls[g.step.pass.String()+" "+g.name()] = g.calls
		for _, s := range g.spans {
			for i := range s.n {
				at := fmt.Sprint(s.at, s.from+i)
				require.False(t, seen[at], at)
				seen[at] = true
			}
		}
	}
	require.Equal(t, map[string]int{
		"forward b1-h1-g1-n1-m6-d8-f32 to m7":      4,
		"forward b1-h1-g1-n1-m8-d8-f32 to m15":     16,
		"forward b1-h1-g1-n1-m16-d8-f32 to m17":    4,
		"forward b1-h1-g1-n4-m4-d8-f32":            6,
		"forward b1-h1-g1-n4-m4-d8-f32 busy=1":     3,
		"backward b1-h1-g1-n4-m4-d8-f32 callers=2": 6,
	}, calls)
	require.Len(t, seen, tr.calls)
	for _, v := range visits(tr.groups()) {
		require.Positive(t, v.n)
		require.LessOrEqual(t, v.from+v.n, tr.steps[tr.order[v.at]].calls)
	}
}

// The built-in traces are lives of some hundred calls that every machine can afford.
// A long word in place of each word of a trace gives a short error.
func TestLongWordsInTraces(t *testing.T) {
	const text = "procs 2\ngodebug cpu.avx512f=off\nloop 3\nfwd b1-h1-g1-n1-m1-d1-f32 calls=2 pause=1ms touch=64KiB busy=1\nend\n"
	_, err := parseTrace("t", text)
	require.NoError(t, err)
	words := regexp.MustCompile(`[^\s=]+`).FindAllStringIndex(text, -1)
	for _, at := range words {
		_, err := parseTrace("t", text[:at[0]]+strings.Repeat("x", 50000)+text[at[1]:])
		require.Error(t, err)
		require.Less(t, len(err.Error()), 1000, "%s: %.200s", text[at[0]:at[1]], err)
	}
}

func TestBuiltinTraces(t *testing.T) {
	names := BuiltinNames()
	require.GreaterOrEqual(t, len(names), 12)
	passes, types := map[flashkit.Pass]bool{}, map[flashkit.DType]bool{}
	for _, name := range names {
		tr, err := readTrace(name)
		require.NoError(t, err, name)
		require.Equal(t, name, tr.name)
		require.True(t, strings.HasPrefix(tr.text, "# "), "%s says what it is", name)
		require.True(t, tr.calls >= 20 && tr.calls <= 600, "%s: %d calls", name, tr.calls)
		require.Less(t, tr.Bytes(), 1e9, name)
		for _, s := range tr.steps {
			passes[s.pass], types[s.problem.DType] = true, true
		}
	}
	require.Len(t, passes, 2)
	require.Len(t, types, 3)
}

func FuzzTrace(f *testing.F) {
	for _, name := range BuiltinNames() {
		tr, err := readTrace(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(tr.text)
	}
	f.Add("loop 3\nbwd " + small + " callers=3 calls=7 grow=2\nend")
	f.Fuzz(func(t *testing.T, text string) {
		tr, err := parseTrace("", text)
		if err != nil {
			require.NotContains(t, err.Error(), "\n")
			return
		}
		require.LessOrEqual(t, tr.Bytes(), float64(bench.TensorLimit))
		require.LessOrEqual(t, len(tr.order), traceSteps)
		require.LessOrEqual(t, tr.calls, traceCalls)
		calls := 0
		for _, g := range tr.groups() {
			require.NoError(t, g.problem.Validate())
			for _, s := range g.spans {
				calls += s.n
			}
		}
		require.Equal(t, tr.calls, calls)
	})
}
