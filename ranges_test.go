package flashkit_test

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// rangesProblem has two sequences, two heads, three rows and nine keys.
func rangesProblem(count int) flashkit.Problem {
	return flashkit.Problem{Batch: 2, Heads: 2, KVHeads: 1, QLen: 3, KVLen: 9, Dim: 4, VDim: 4, Score: flashkit.Score{Ranges: count}}
}

func TestCheckRefusesRanges(t *testing.T) {
	for _, c := range []struct {
		field string
		ends  []int32
		about string
	}{
		{"Ranges[1][0][2][0]", []int32{-1, 2, 3, 4}, "must be from 0 to KVLen = 9"},
		{"Ranges[1][0][2][0]", []int32{math.MinInt32, 2, 3, 4}, "must be from 0 to KVLen = 9"},
		{"Ranges[1][0][2][3]", []int32{0, 2, 3, 10}, "must be from 0 to KVLen = 9"},
		{"Ranges[1][0][2][3]", []int32{0, 2, 3, math.MaxInt32}, "must be from 0 to KVLen = 9"},
		{"Ranges[1][0][2][1]", []int32{3, 2, 4, 5}, "must not be below 3 before it"},
		{"Ranges[1][0][2][2]", []int32{1, 4, 3, 5}, "must not be below 4 before it"},
		{"Ranges[1][0][2][2]", []int32{4, 5, 0, 0}, "must not be below 5 before it"},
		{"Ranges[1][0][2][3]", []int32{1, 4, 6, 5}, "must not be below 6 before it"},
	} {
		for _, pass := range []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward} {
			p := rangesProblem(2)
			a := flashkit.NewArgs(p, pass)
			require.NoError(t, p.Check(pass, a), "no row sees a key")
			copy(a.Ranges.Int32s()[a.Ranges.Offset(1, 0, 2):], c.ends)
			var wrong *flashkit.ProblemError
			require.ErrorAs(t, p.Check(pass, a), &wrong)
			require.Equal(t, [2]string{c.field, c.about}, [2]string{wrong.Field, wrong.Reason})
		}
	}
}

// Rows past the end of a sequence are not read. Ranges that broadcast are read up to the longest.
func TestCheckReadsRangesOfRows(t *testing.T) {
	p := rangesProblem(1)
	p.Ragged = true
	for _, batches := range []int{1, 2} {
		a := flashkit.NewArgs(p, flashkit.PassForward)
		a.Seqs.QLens = []int32{1, 2}
		a.Ranges = flashkit.Zeros(flashkit.Int32, batches, 1, 3, 2)
		at := func(b, i int) *int32 { return &a.Ranges.Int32s()[a.Ranges.Offset(b, 0, i)] }
		*at(batches-1, 2) = -1
		require.NoError(t, p.Check(flashkit.PassForward, a))
		*at(batches-1, 1) = -1
		requireProblemError(t, p.Check(flashkit.PassForward, a), map[int]string{1: "Ranges[0][0][1][0]", 2: "Ranges[1][0][1][0]"}[batches])
	}
}

func TestRangesOfProblem(t *testing.T) {
	for count := range 5 {
		a := flashkit.NewArgs(rangesProblem(0), flashkit.PassForward)
		a.Ranges = flashkit.Int32s(make([]int32, 100), 2, 2, 3, 2*count)
		p := flashkit.ProblemOf(a, flashkit.Band{})
		require.Equal(t, count, p.Score.Ranges)
		if count > 2 {
			requireProblemError(t, p.Validate(), "Score.Ranges")
			continue
		}
		require.Equal(t, count > 0, p.Features() == flashkit.FeatureRanges)
	}
	p := rangesProblem(-1)
	requireProblemError(t, p.Validate(), "Score.Ranges")
}

// Each visible key of a row is in one range, cut by band and length.
func TestVisibleRanges(t *testing.T) {
	p := rangesProblem(2)
	p.Band, p.Ragged = flashkit.Causal(), true
	a := flashkit.NewArgs(p, flashkit.PassForward)
	a.Seqs.KVLens = []int32{9, 7}
	for i := range 12 {
		copy(a.Ranges.Int32s()[4*i:], []int32{1, 3, 5, 9})
	}
	var c flashkit.Call
	require.NoError(t, c.Set(p, flashkit.PassForward, a))
	first, second := c.Seq(0), c.Seq(1)
	require.Equal(t, [2][2]int{{1, 3}, {5, 7}}, c.VisibleRanges(&first, 0, 1, 0))
	require.Equal(t, [2][2]int{{1, 3}, {5, 9}}, c.VisibleRanges(&first, 0, 0, 2))
	require.Equal(t, [2][2]int{{1, 3}, {5, 5}}, c.VisibleRanges(&second, 1, 1, 0))
	require.Equal(t, [2][2]int{{1, 3}, {5, 7}}, c.VisibleRanges(&second, 1, 1, 2))
	p.Score.Ranges, a.Ranges = 0, flashkit.Tensor{}
	require.NoError(t, c.Set(p, flashkit.PassForward, a))
	require.Equal(t, [2][2]int{{0, 6}, {6, 6}}, c.VisibleRanges(&second, 1, 1, 1))
}

// The functions that make ranges agree with the masks that they name, also without rows or keys.
func TestRangesOfMasks(t *testing.T) {
	for rows := range 7 {
		for keys := range 9 {
			for a := range 10 {
				for b := range 4 {
					requireRanges(t, flashkit.PrefixRanges(a, rows, keys), rows, keys, func(d, j int) bool { return j < a || j <= d })
					requireRanges(t, flashkit.BlockRanges(a+1, rows, keys), rows, keys, func(d, j int) bool { return d >= 0 && j/(a+1) <= d/(a+1) })
					requireRanges(t, flashkit.SinkRanges(a, b, rows, keys), rows, keys, func(d, j int) bool { return j <= d && (j < a || j >= d-b) })
				}
			}
		}
	}
	beyond := int64(math.MaxInt32) + 1 // negative as an int of 32 bits
	for _, x := range []flashkit.Tensor{
		flashkit.DocumentRanges(2, -1), flashkit.DocumentRanges(math.MaxInt32, 1), flashkit.PrefixRanges(-1, 2, 2), flashkit.PrefixRanges(1, -2, 2),
		flashkit.BlockRanges(0, 2, 2), flashkit.BlockRanges(2, 2, -2), flashkit.SinkRanges(-1, 1, 2, 2), flashkit.SinkRanges(1, -1, 2, 2),
		flashkit.SinkRanges(1, 1, 2, int(beyond)),
	} {
		require.True(t, x.IsZero())
	}
	for _, x := range []flashkit.Tensor{flashkit.BlockRanges(math.MaxInt, 2, 9), flashkit.SinkRanges(math.MaxInt, math.MaxInt, 2, 9), flashkit.PrefixRanges(math.MaxInt, 2, 9)} {
		require.Equal(t, int32(9), x.Int32s()[x.Len()-1], "numbers beyond all keys do not overflow")
	}
}

// PageRanges agrees with the lists of pages, whose last page may be short. It refuses other lists.
func TestPageRanges(t *testing.T) {
	for _, c := range []struct {
		pages       [][]int
		block, page int
		rows, keys  int
		count       int
	}{
		{[][]int{{0, 1}, {2}, nil}, 2, 3, 5, 8, 1},
		{[][]int{{3, 0, 1, 3}, {2, 1, 2}}, 3, 2, 4, 7, 2},
		{[][]int{{1}, {0, 2}, {}}, 1, 4, 3, 9, 2},
		{nil, 4, 4, 0, 9, 1},
		{[][]int{nil}, math.MaxInt32, math.MaxInt32, 3, 0, 1},
		{[][]int{{0}}, math.MaxInt32, math.MaxInt32, 3, 5, 1},
	} {
		x, err := flashkit.PageRanges(c.pages, c.block, c.page, c.rows, c.keys)
		require.NoError(t, err)
		require.Equal(t, [4]int{1, 1, c.rows, 2 * c.count}, x.Shape())
		requireRanges(t, x, c.rows, c.keys, func(d, j int) bool {
			return slices.Contains(c.pages[(d+c.rows-c.keys)/c.block], j/c.page)
		})
	}
	for field, get := range map[string]func() (flashkit.Tensor, error){
		"pages[1]":   func() (flashkit.Tensor, error) { return flashkit.PageRanges([][]int{{0}, {4, 2, 0}}, 1, 2, 2, 10) },
		"pages[0]":   func() (flashkit.Tensor, error) { return flashkit.PageRanges([][]int{{5}}, 1, 2, 1, 10) },
		"len(pages)": func() (flashkit.Tensor, error) { return flashkit.PageRanges([][]int{{0}}, 1, 2, 2, 10) },
		"block":      func() (flashkit.Tensor, error) { return flashkit.PageRanges(nil, 0, 2, 0, 10) },
		"page":       func() (flashkit.Tensor, error) { return flashkit.PageRanges(nil, 1, -1, 0, 10) },
		"rows":       func() (flashkit.Tensor, error) { return flashkit.PageRanges(nil, 1, 1, -1, 10) },
		"keys":       func() (flashkit.Tensor, error) { return flashkit.PageRanges(nil, 1, 1, 0, -10) },
	} {
		x, err := get()
		require.True(t, x.IsZero())
		requireProblemError(t, err, field)
	}
	_, err := flashkit.PageRanges([][]int{{-1}}, 1, 2, 1, 0)
	requireProblemError(t, err, "pages[0]")
}

// requireRanges requires row i to see key j if sees(diagonal, j) is true. The row's diagonal meets
// key i+keys-rows.
func requireRanges(t *testing.T, ranges flashkit.Tensor, rows, keys int, sees func(diagonal, j int) bool) {
	t.Helper()
	count := ranges.Shape()[3] / 2
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: rows, KVLen: keys, Dim: 1, VDim: 1, Score: flashkit.Score{Ranges: count}}
	args := flashkit.NewArgs(p, flashkit.PassForward)
	args.Ranges = ranges
	var c flashkit.Call
	require.NoError(t, c.Set(p, flashkit.PassForward, args))
	seq := c.Seq(0)
	for i := range rows {
		for j := range keys {
			seen := 0
			for _, r := range c.VisibleRanges(&seq, 0, 0, i) {
				if r[0] <= j && j < r[1] {
					seen++
				}
			}
			require.Equal(t, sees(i+keys-rows, j), seen == 1, "%v rows %d keys %d: row %d key %d", ranges.Int32s(), rows, keys, i, j)
			require.LessOrEqual(t, seen, 1)
		}
	}
}
