package fastest

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/allocs"
)

func TestLeast(t *testing.T) {
	times := []float64{3, 1, 2, 1, 0}
	may := []bool{true, true, true, true, false}
	least := func(n int) int { return Least(n, func(i int) (float64, bool) { return times[i], may[i] }) }
	require.Equal(t, 0, least(1))
	require.Equal(t, 1, least(5), "the first of equals, of those that may run")
	require.Equal(t, -1, least(0))
	may = make([]bool, 5)
	require.Equal(t, -1, least(5))
}

// Subjects that differ in any field are different, also in fields that are not hashed.
func TestCacheTellsSubjectsApart(t *testing.T) {
	c := new(Cache[int])
	s := Subject{Problem: flashkit.Problem{Batch: 1, Heads: 2, KVHeads: 2, QLen: 3, KVLen: 4, Dim: 8, VDim: 8}}
	c.Keep(&s, 7)
	value, ok := c.Find(&s)
	require.True(t, ok)
	require.Equal(t, 7, value)
	for name, change := range map[string]func(*Subject){
		"problem": func(x *Subject) { x.Problem.VDim = 9 },
		"score":   func(x *Subject) { x.Problem.Score.Sink = true },
		"pass":    func(x *Subject) { x.Pass = flashkit.PassBackward },
		"traits":  func(x *Subject) { x.Traits.Loose = true },
		"paired":  func(x *Subject) { x.Paired = true },
	} {
		other := s
		change(&other)
		_, ok := c.Find(&other)
		require.False(t, ok, name)
	}
}

// The cache is bounded, and has the latest subject.
func TestCacheEvicts(t *testing.T) {
	c := new(Cache[int])
	var s Subject
	const many = 4 * sets * ways
	for i := range many {
		s.Problem.QLen = i
		c.Keep(&s, i)
	}
	value, ok := c.Find(&s)
	require.True(t, ok)
	require.Equal(t, many-1, value)
	require.LessOrEqual(t, len(c.Kept()), sets*ways)
	require.Equal(t, many, len(c.Kept())+c.Evicted())
}

func TestFindAllocatesNothing(t *testing.T) {
	c := new(Cache[int])
	s := Subject{Problem: flashkit.Problem{Batch: 1}}
	c.Keep(&s, 1)
	require.Zero(t, allocs.PerRun(100, func() {
		if _, ok := c.Find(&s); !ok {
			t.Error("lost")
		}
	}))
}
