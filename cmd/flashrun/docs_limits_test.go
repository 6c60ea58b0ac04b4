package main

import (
	"regexp"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// The examples of docs/limits.md are rejected as its table shows, and its limits of head dims
// match the kernels.
func TestLimitations(t *testing.T) {
	page := docText(t, "../../docs/limits.md")
	kernels := everyKernel(t)
	row := regexp.MustCompile("(?m)^\\| [^|]* \\| `(b\\d[^`]*)`(?: by `([^`]*)`)?[^|]* \\| `([^`]*)`")
	rows := row.FindAllStringSubmatch(page, -1)
	require.GreaterOrEqual(t, len(rows), 7)
	for _, r := range rows {
		p, err := flashkit.ParseProblem(r[1])
		if r[3] == "*flashkit.ProblemError" {
			var wrong *flashkit.ProblemError
			require.ErrorAs(t, err, &wrong, r[1])
			require.NotContains(t, err.Error(), "problem name", "it must be understood")
			continue
		}
		require.Equal(t, "*flashkit.UnsupportedError", r[3])
		require.NoError(t, err, r[1])
		at := slices.IndexFunc(kernels, func(k flashkit.Kernel) bool { return k.Name == r[2] })
		require.GreaterOrEqual(t, at, 0, "no kernel %s", r[2])
		k := kernels[at]
		outside := !slices.Contains(k.DTypes, p.DType) || k.MaxDim > 0 && max(p.Dim, p.VDim) > k.MaxDim ||
			k.MaxRows > 0 && p.Heads/p.KVHeads*p.QLen > k.MaxRows
		require.True(t, outside && k.Fits(p.Ask(k.Pass)) != "", "%s takes %s", r[2], r[1])
	}
	for _, k := range kernels {
		if k.MaxDim > 0 {
			require.Regexp(t, "\\b"+limitCell(k.MaxDim)+"\\b", page, k.Name)
		}
	}
}
