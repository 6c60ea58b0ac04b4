package bench

import "github.com/flashkit-go/flashkit/internal/machine"

type comparison struct {
	File    string       `json:"file"`
	Machine machine.Info `json:"machine"` // of the earlier results
	Pairs   []pair       `json:"pairs"`
	Mean    *meanRatio   `json:"geometric_mean,omitempty"` // nil without a ratio
	OnlyOld int          `json:"only_old"`                 // cases that only the earlier results have
	OnlyNew int          `json:"only_new"`
}

type pair struct {
	Problem string  `json:"problem"`
	Pass    string  `json:"pass"`
	Kernel  string  `json:"kernel"`
	Memory  string  `json:"memory"`
	Old     float64 `json:"old_seconds"`
	New     float64 `json:"new_seconds"`
	Ratio   float64 `json:"ratio,omitempty"` // new time divided by old time, so faster if below 1; 0 if a median is in doubt
	Doubt   string  `json:"doubt,omitempty"` // reason for no ratio
	Apart   bool    `json:"apart"`           // the ranges from p10 to p90 do not overlap
}

type meanRatio struct {
	Ratio float64 `json:"ratio"`
	Cases int     `json:"cases"`
}

// Compare pairs each result with the earlier result for the same problem, pass, kernel and memory.
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
		x := pair{Problem: r.Problem, Pass: r.Pass, Kernel: r.Kernel, Memory: r.Memory, Old: was.Seconds, New: r.Seconds, Apart: r.P10 > was.P90 || r.P90 < was.P10}
		switch {
		case r.Doubt != "":
			x.Doubt = "now " + r.Doubt
		case was.Doubt != "":
			x.Doubt = "before " + was.Doubt
		default:
			x.Ratio = r.Seconds / was.Seconds
			ratios = append(ratios, x.Ratio)
		}
		c.Pairs = append(c.Pairs, x)
	}
	if n := len(ratios); n > 0 {
		c.Mean = &meanRatio{GeometricMean(ratios), n}
	}
	return c
}
