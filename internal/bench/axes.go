package bench

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/input"
)

// Limit is the maximum number of problems in a grid, and of numbers in a list.
const Limit = 10000

// ParseProblems parses the names of --problem, without repetitions.
func ParseProblems(names []string) ([]flashkit.Problem, error) {
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

// AsOther in KvHeads stands for the value of Heads, and in QLen for the value of Seq.
const AsOther = 0

// Axes are the values of each dimension of a grid.
type Axes struct {
	Batch, Heads, KvHeads, Seq, QLen, HeadDim []int
	Masks                                     []flashkit.Band
	Dtypes                                    []types
}

func (a *Axes) size() int {
	n := 1
	for _, axis := range []int{len(a.Batch), len(a.Heads), len(a.KvHeads), len(a.Seq), len(a.QLen), len(a.HeadDim), len(a.Masks), len(a.Dtypes)} {
		if n *= axis; n > Limit {
			return n // stop before the product overflows
		}
	}
	return n
}

// Problems returns every combination. The first axis varies slowest.
func (a *Axes) Problems() ([]flashkit.Problem, error) {
	if a.size() > Limit {
		return nil, fmt.Errorf("--seq and the other lists make more than %d problems", Limit)
	}
	list := []flashkit.Problem{{}}
	for _, axis := range []struct {
		n   int
		set func(p *flashkit.Problem, i int)
	}{
		{len(a.Dtypes), func(p *flashkit.Problem, i int) { p.DType, p.KVDType = a.Dtypes[i].all, a.Dtypes[i].kv }},
		{len(a.Masks), func(p *flashkit.Problem, i int) { p.Band = a.Masks[i] }},
		{len(a.HeadDim), func(p *flashkit.Problem, i int) { p.Dim, p.VDim = a.HeadDim[i], a.HeadDim[i] }},
		{len(a.Batch), func(p *flashkit.Problem, i int) { p.Batch = a.Batch[i] }},
		{len(a.Heads), func(p *flashkit.Problem, i int) { p.Heads, p.KVHeads = a.Heads[i], a.Heads[i] }},
		{len(a.KvHeads), func(p *flashkit.Problem, i int) { orElse(&p.KVHeads, a.KvHeads[i]) }},
		{len(a.Seq), func(p *flashkit.Problem, i int) { p.QLen, p.KVLen = a.Seq[i], a.Seq[i] }},
		{len(a.QLen), func(p *flashkit.Problem, i int) { orElse(&p.QLen, a.QLen[i]) }},
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
	if value != AsOther {
		*to = value
	}
}

// ParseNumbers parses lists and ranges: 128, 128,256, 128:16384:x2, 64:256:+64 or any mix. It drops
// repetitions.
func ParseNumbers(s string) ([]int, error) {
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
		if list = append(list, n); len(list) > Limit {
			return nil, fmt.Errorf("more than %d numbers", Limit)
		}
		if n > (to-plus)/factor {
			break // the next number is beyond the end and may overflow
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

// types are a problem's DType and KVDType.
type types struct{ all, kv flashkit.DType }

// ParseDTypes parses a list of types.
func ParseDTypes(s string) (list []types, err error) {
	for _, name := range strings.Split(s, ",") {
		var t types
		if t.all, t.kv, err = input.ParseTypes(name); err != nil {
			return nil, fmt.Errorf("--dtype %q: must be a list of f32, f16, bf16, f32-kvf16 and f32-kvbf16", s)
		}
		if !slices.Contains(list, t) {
			list = append(list, t)
		}
	}
	return list, nil
}
