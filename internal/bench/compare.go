package bench

import "github.com/flashkit-go/flashkit/internal/machine"

// A comparison sets results beside earlier ones.
type comparison struct {
	File    string       `json:"file"`
	Machine machine.Info `json:"machine"` // of the earlier results
	Pairs   []pair       `json:"pairs"`
	Mean    *meanRatio   `json:"geometric_mean,omitempty"` // nil if no case is in both
	OnlyOld int          `json:"only_old"`                 // cases that are not in both
	OnlyNew int          `json:"only_new"`
}

// A pair is a case that was measured both times.
type pair struct {
	Problem string  `json:"problem"`
	Pass    string  `json:"pass"`
	Kernel  string  `json:"kernel"`
	Memory  string  `json:"memory"`
	Old     float64 `json:"old_seconds"`
	New     float64 `json:"new_seconds"`
	Ratio   float64 `json:"ratio"` // new over old: below 1 is faster than before
	Apart   bool    `json:"apart"` // the ranges from p10 to p90 do not overlap
}

// A meanRatio is the geometric mean of the ratios of n cases.
type meanRatio struct {
	Ratio float64 `json:"ratio"`
	Cases int     `json:"cases"`
}

// Compare pairs the results that have problem, pass, kernel and memory in common.
func Compare(file string, before, now *Results) *comparison {
	type key struct{ problem, pass, kernel, memory string }
	earlier := map[key]Result{}
	for _, r := range before.Results {
		if r.Seconds > 0 {
			earlier[key{r.Problem, r.Pass, r.Kernel, r.Memory}] = r
		}
	}
	c := &comparison{File: file, Machine: before.Machine, OnlyOld: len(earlier)}
	var ratios []float64
	for _, r := range now.Results {
		was, both := earlier[key{r.Problem, r.Pass, r.Kernel, r.Memory}]
		if !both || r.Seconds <= 0 {
			c.OnlyNew++
			continue
		}
		c.OnlyOld--
		ratio := r.Seconds / was.Seconds
		ratios = append(ratios, ratio)
		c.Pairs = append(c.Pairs, pair{r.Problem, r.Pass, r.Kernel, r.Memory, was.Seconds, r.Seconds, ratio, r.P10 > was.P90 || r.P90 < was.P10})
	}
	if n := len(ratios); n > 0 {
		c.Mean = &meanRatio{GeometricMean(ratios), n}
	}
	return c
}
