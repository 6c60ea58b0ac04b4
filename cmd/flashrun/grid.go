package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/flashkit-go/flashkit"
)

// gridFlags say which problems to measure, as given.
type gridFlags struct {
	problems []string
	random   int
	batch    string
	heads    string
	kvHeads  string
	seq      string
	qLen     string
	headDim  string
	causal   string
	dtype    string
	features string
}

// gridNames are the flags that --problem replaces.
var gridNames = []string{"batch", "heads", "kv-heads", "seq", "q-len", "head-dim", "causal", "dtype", "features"}

func (g *gridFlags) add(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&g.problems, "problem", nil, "measure the problem of this `name` and no grid; repeat for more")
	flags.IntVar(&g.random, "random", 0, "measure so many random problems and no grid, drawn by --seed")
	flags.StringVar(&g.seq, "seq", "128:2048:x2", "query rows and keys: a `list` of numbers and of ranges from:to:x2 or from:to:+128")
	flags.StringVar(&g.qLen, "q-len", "", "query rows where they differ from --seq: a `list`, such as 1 to decode")
	flags.StringVar(&g.headDim, "head-dim", "64", "a `list` of head dims")
	flags.StringVar(&g.batch, "batch", "1", "a `list` of batch sizes")
	flags.StringVar(&g.heads, "heads", "8", "a `list` of query heads")
	flags.StringVar(&g.kvHeads, "kv-heads", "", "a `list` of key and value heads (default as many as --heads)")
	flags.StringVar(&g.causal, "causal", "no", "a causal mask: no, yes or both")
	flags.StringVar(&g.dtype, "dtype", "f32", "a `list` of types: f32, f16, bf16 and, with K and V in the second one, f32-kvf16, f32-kvbf16")
	flags.StringVar(&g.features, "features", "", "`what` each problem has beside, as the end of its name: softcap30-alibi-bias-mask-sink-dropout0.1-ragged-page16")
}

// given reports whether any of the flags is given.
func (g *gridFlags) given(cmd *cobra.Command) bool {
	return len(g.problems) > 0 || g.random > 0 || slices.ContainsFunc(gridNames, func(name string) bool { return cmd.Flags().Changed(name) })
}

// gridLimit is the most problems of a grid, and the most numbers of a list.
const gridLimit = 10000

// grid returns the problems, each once, with the longest sequences last, random ones
// as they are drawn.
func (g *gridFlags) grid(cmd *cobra.Command, seed uint64) ([]flashkit.Problem, error) {
	whole := ""
	switch {
	case g.random < 0 || g.random > gridLimit:
		return nil, fmt.Errorf("--random %d: must be a number up to %d", g.random, gridLimit)
	case len(g.problems) > 0 && g.random > 0:
		return nil, errors.New("--random: conflicts with --problem")
	case len(g.problems) > 0:
		whole = "problem"
	case g.random > 0:
		whole = "random"
	}
	for _, name := range gridNames {
		if whole != "" && cmd.Flags().Changed(name) {
			return nil, fmt.Errorf("--%s: conflicts with --%s", name, whole)
		}
	}
	switch whole {
	case "problem":
		return namedProblems(g.problems)
	case "random":
		return randomProblems(seed, g.random), nil
	}
	var axes axes
	for _, list := range []struct {
		flag, value string
		to          *[]int
	}{
		{"batch", g.batch, &axes.batch}, {"heads", g.heads, &axes.heads}, {"kv-heads", g.kvHeads, &axes.kvHeads},
		{"seq", g.seq, &axes.seq}, {"q-len", g.qLen, &axes.qLen}, {"head-dim", g.headDim, &axes.headDim},
	} {
		if list.value == "" && !cmd.Flags().Changed(list.flag) {
			*list.to = []int{asOther}
			continue
		}
		var err error
		if *list.to, err = parseNumbers(list.value); err != nil {
			return nil, fmt.Errorf("--%s %q: %w", list.flag, list.value, err)
		}
	}
	var err error
	if axes.masks, err = parseCausal(g.causal); err != nil {
		return nil, err
	}
	if axes.dtypes, err = parseDTypes(g.dtype); err != nil {
		return nil, err
	}
	list, err := axes.problems()
	if err != nil || g.features == "" {
		return list, err
	}
	for i, p := range list {
		if list[i], err = flashkit.ParseProblem(p.String() + "-" + g.features); err != nil {
			return nil, fmt.Errorf("--features %q: %w", g.features, err)
		}
	}
	return list, nil
}

// origin names the flag that a problem comes from.
func (g *gridFlags) origin(p flashkit.Problem) string {
	switch {
	case len(g.problems) > 0:
		return "--problem " + p.String()
	case g.random > 0:
		return fmt.Sprintf("--random %d", g.random)
	}
	return fmt.Sprintf("--seq %d", p.KVLen)
}

func namedProblems(names []string) ([]flashkit.Problem, error) {
	var problems []flashkit.Problem
	for _, name := range names {
		p, err := flashkit.ParseProblem(name)
		if err != nil {
			return nil, fmt.Errorf("--problem %s: %w", name, err)
		}
		if !slices.Contains(problems, p) {
			problems = append(problems, p)
		}
	}
	return problems, nil
}

// asOther stands for a number that another axis gives.
const asOther = 0

// axes are the values of each dimension of a grid.
type axes struct {
	batch, heads, kvHeads, seq, qLen, headDim []int
	masks                                     []flashkit.Band
	dtypes                                    []types
}

func (a *axes) size() int {
	n := 1
	for _, axis := range []int{len(a.batch), len(a.heads), len(a.kvHeads), len(a.seq), len(a.qLen), len(a.headDim), len(a.masks), len(a.dtypes)} {
		if n *= axis; n > gridLimit {
			return n // no later axis may overflow
		}
	}
	return n
}

// problems returns every combination, the first axis changing slowest.
func (a *axes) problems() ([]flashkit.Problem, error) {
	if a.size() > gridLimit {
		return nil, fmt.Errorf("--seq and the other lists make more than %d problems", gridLimit)
	}
	list := []flashkit.Problem{{}}
	for _, axis := range []struct {
		n   int
		set func(p *flashkit.Problem, i int)
	}{
		{len(a.dtypes), func(p *flashkit.Problem, i int) { p.DType, p.KVDType = a.dtypes[i].all, a.dtypes[i].kv }},
		{len(a.masks), func(p *flashkit.Problem, i int) { p.Band = a.masks[i] }},
		{len(a.headDim), func(p *flashkit.Problem, i int) { p.Dim, p.VDim = a.headDim[i], a.headDim[i] }},
		{len(a.batch), func(p *flashkit.Problem, i int) { p.Batch = a.batch[i] }},
		{len(a.heads), func(p *flashkit.Problem, i int) { p.Heads, p.KVHeads = a.heads[i], a.heads[i] }},
		{len(a.kvHeads), func(p *flashkit.Problem, i int) { orElse(&p.KVHeads, a.kvHeads[i]) }},
		{len(a.seq), func(p *flashkit.Problem, i int) { p.QLen, p.KVLen = a.seq[i], a.seq[i] }},
		{len(a.qLen), func(p *flashkit.Problem, i int) { orElse(&p.QLen, a.qLen[i]) }},
	} {
		var next []flashkit.Problem
		for _, p := range list {
			for i := range axis.n {
				axis.set(&p, i)
				next = append(next, p)
			}
		}
		list = next
	}
	for _, p := range list {
		if p.Heads%p.KVHeads != 0 {
			return nil, fmt.Errorf("--kv-heads %d: must divide --heads %d", p.KVHeads, p.Heads)
		}
		if err := p.Validate(); err != nil {
			return nil, fmt.Errorf("--seq %d: %w", p.KVLen, err)
		}
	}
	return list, nil
}

func orElse(to *int, value int) {
	if value != asOther {
		*to = value
	}
}

// parseNumbers parses 128, 128,256 and 128:16384:x2 and 64:256:+64, in any mix,
// each number once.
func parseNumbers(s string) ([]int, error) {
	var list []int
	for _, part := range strings.Split(s, ",") {
		values, err := parseRange(part)
		if err != nil {
			return nil, err
		}
		for _, n := range values {
			if !slices.Contains(list, n) {
				list = append(list, n)
			}
		}
	}
	return list, nil
}

var errRange = errors.New("a range is from:to:x2 or from:to:+128")

func parseRange(s string) ([]int, error) {
	parts := strings.Split(s, ":")
	if len(parts) == 1 {
		n, err := parseNumber(s)
		return []int{n}, err
	}
	if len(parts) != 3 || parts[2] == "" || !strings.Contains("x+", parts[2][:1]) || parts[2] == "x1" {
		return nil, errRange
	}
	var n [3]int
	for i, part := range []string{parts[0], parts[1], parts[2][1:]} {
		var err error
		if n[i], err = parseNumber(part); err != nil {
			return nil, err
		}
	}
	from, to := n[0], n[1]
	if to < from {
		return nil, fmt.Errorf("the range ends at %d, before it begins", to)
	}
	factor, plus := n[2], 0
	if parts[2][0] == '+' {
		factor, plus = 1, n[2]
	}
	var list []int
	for n := from; n <= to; n = n*factor + plus {
		if list = append(list, n); len(list) > gridLimit {
			return nil, fmt.Errorf("more than %d numbers", gridLimit)
		}
		if n > (to-plus)/factor {
			break // the next one is beyond the end, and perhaps beyond an int
		}
	}
	return list, nil
}

func parseNumber(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 1 || s[0] == '+' {
		return 0, fmt.Errorf("%q must be a number of 1 or more", s)
	}
	return n, nil
}

func parseCausal(s string) ([]flashkit.Band, error) {
	switch s {
	case "no":
		return []flashkit.Band{{}}, nil
	case "yes":
		return []flashkit.Band{flashkit.Causal()}, nil
	case "both":
		return []flashkit.Band{{}, flashkit.Causal()}, nil
	}
	return nil, fmt.Errorf("--causal %q: must be no, yes or both", s)
}

// types are those of a problem.
type types struct{ all, kv flashkit.DType }

func parseDTypes(s string) (list []types, err error) {
	for _, name := range strings.Split(s, ",") {
		var t types
		if t.all, t.kv, err = parseTypes(name); err != nil {
			return nil, fmt.Errorf("--dtype %q: must be a list of f32, f16, bf16, f32-kvf16 and f32-kvbf16", s)
		}
		if !slices.Contains(list, t) {
			list = append(list, t)
		}
	}
	return list, nil
}

func parsePasses(s string) ([]flashkit.Pass, error) {
	var list []flashkit.Pass
	for _, name := range strings.Split(s, ",") {
		pass := flashkit.PassForward
		switch name {
		case "fwd":
		case "bwd":
			pass = flashkit.PassBackward
		default:
			return nil, fmt.Errorf("--pass %q: must be a list of fwd and bwd", s)
		}
		if !slices.Contains(list, pass) {
			list = append(list, pass)
		}
	}
	return list, nil
}
