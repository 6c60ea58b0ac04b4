package conformance

import (
	"fmt"
	"slices"
	"strings"

	"github.com/flashkit-go/flashkit"
)

// describes checks the fields of k. It returns an error if a field has an invalid value, or if Fits
// disagrees with DTypes, MaxDim or MaxRows. About and Requires must be single lines without |.
func describes(k flashkit.Kernel) error {
	switch {
	case strings.TrimSpace(k.About) == "" || strings.ContainsAny(k.About+k.Requires, "\r\n|"):
		return fmt.Errorf("the kernel says About = %q, Requires = %q: want one line each, without |", k.About, k.Requires)
	case len(k.DTypes) == 0:
		return fmt.Errorf("the kernel says DTypes = []: want the element types that the kernel takes")
	case k.MaxDim < 0 || k.MaxRows < 0:
		return fmt.Errorf("the kernel says MaxDim = %d, MaxRows = %d: want 0 or more", k.MaxDim, k.MaxRows)
	case k.Missing != nil && k.Missing() != "":
		return nil // Fits refuses every problem on this machine
	}
	small := flashkit.Problem{Batch: 1, Heads: 2, KVHeads: 1, QLen: 1, KVLen: 1, Dim: 1, VDim: 1, DType: k.DTypes[0]}
	for _, t := range dtypes {
		p := small
		p.DType = t
		if err := takes(k, p, slices.Contains(k.DTypes, t), fmt.Sprintf("DTypes = %v", k.DTypes)); err != nil {
			return err
		}
	}
	for _, l := range []struct {
		field string
		limit int
		set   func(p *flashkit.Problem, n int)
	}{
		{"MaxDim", k.MaxDim, func(p *flashkit.Problem, n int) { p.Dim = n }},
		{"MaxDim", k.MaxDim, func(p *flashkit.Problem, n int) { p.VDim = n }},
		{"MaxRows", k.MaxRows, func(p *flashkit.Problem, n int) { p.Heads = n }},
		{"MaxRows", k.MaxRows, func(p *flashkit.Problem, n int) { p.Heads, p.QLen = 1, n }},
	} {
		for n := l.limit; n > 0 && n <= l.limit+1; n++ {
			p := small
			l.set(&p, n)
			if err := takes(k, p, n == l.limit, fmt.Sprintf("%s = %d", l.field, l.limit)); err != nil {
				return err
			}
		}
	}
	return nil
}

// takes returns an error if want is true and Fits refuses p, or if want is false and Fits accepts
// p. The error's message begins with the text in field.
func takes(k flashkit.Kernel, p flashkit.Problem, want bool, field string) error {
	if reason := k.Fits(p.Ask(k.Pass)); (reason == "") != want {
		return fmt.Errorf("%s, but Fits(%s) = %q", field, p, reason)
	}
	return nil
}
