package flashkit

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
)

// The first page outside a pool is found in tables of every length, wherever it is.
func TestFirstPageBeyond(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20000 {
		pool := []int{0, 1, 2, 1 + r.IntN(1<<20), math.MaxInt32, math.MaxInt}[r.IntN(6)]
		pages := make([]int32, r.IntN(40))
		for i := range pages {
			if pages[i] = int32(r.IntN(min(max(1, pool), math.MaxInt32))); r.IntN(40) == 0 {
				pages[i] = []int32{-1, math.MinInt32, math.MaxInt32, int32(min(pool, math.MaxInt32)), int32(max(0, pool-1))}[r.IntN(5)]
			}
		}
		from := r.IntN(len(pages) + 1)
		want := slices.IndexFunc(pages[from:], func(x int32) bool { return x < 0 || int(x) >= pool })
		require.Equal(t, want, firstBeyond(pages[from:], pool), "%v of %d", pages[from:], pool)
	}
}

type someDevice struct{}

func (someDevice) Device() string { return "some device" }

// A page table may be on the device alone, where the tensors are, and its rows' length is checked.
func TestPageTableOnTheDevice(t *testing.T) {
	p := Problem{Batch: 2, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 6, Dim: 4, VDim: 4, DType: Float32, Ragged: true, Page: 2}
	args := NewArgs(p, PassForward)
	args.Seqs.Pages, args.Seqs.PagesPerSeq = nil, 3
	require.ErrorContains(t, p.Check(PassForward, args), "Seqs.PagesPerSeq", "the tensors are on the host")
	for i, x := range []*Tensor{&args.Q, &args.K, &args.V, &args.O, &args.LSE} {
		n := x.Shape()
		*x = OnDevice(someDevice{}, Float32, uintptr(1+i)<<20, x.Len(), n[0], n[1], n[2], n[3])
	}
	require.NoError(t, p.Check(PassForward, args))
	require.Equal(t, p, ProblemOf(args, p.Band))
	args.Seqs.KVLens = nil
	require.NoError(t, p.Check(PassForward, args))
	require.Equal(t, p, ProblemOf(args, p.Band))
	c := new(Call)
	require.NoError(t, c.Set(p, PassForward, args))
	offset, keys := c.KeyRun(&args.K, 0, 0, 0)
	require.Zero(t, offset)
	require.Zero(t, keys)
	for _, w := range []int{-1, 2, math.MaxInt} {
		args.Seqs.PagesPerSeq = w
		require.Error(t, p.Check(PassForward, args))
	}
	args.Seqs.PagesPerSeq, args.Seqs.Pages = 0, make([]int32, 6)
	require.ErrorContains(t, p.Check(PassForward, args), "Seqs.KVLens", "no lengths")
	args.Seqs.PagesPerSeq = 3
	require.ErrorContains(t, p.Check(PassForward, args), "Seqs.PagesPerSeq", "two tables")
	args.Seqs.PagesPerSeq, args.Seqs.Pages = 0, nil
	require.ErrorContains(t, p.Check(PassForward, args), "Seqs.Pages", "none")
}

// Tensors of packed rows without starts are told so, not that their shape is wrong.
func TestMissingStarts(t *testing.T) {
	rows, lens, starts := func(n int) Tensor { return Zeros(Float32, 1, 1, n, 4) }, []int32{2, 3, 1}, []int32{0, 2, 5, 6}
	for _, x := range []struct {
		seqs Sequences
		want string
	}{
		{Sequences{QStarts: starts}, "Seqs.KVStarts = nil: must be given, as K has batch 1 in a call of 3 sequences"},
		{Sequences{KVStarts: starts}, "Seqs.QStarts = nil: must be given, as Q has batch 1 in a call of 3 sequences"},
		{Sequences{QStarts: starts, KVLens: lens}, "Seqs.KVStarts = nil: must be given"},
		{Sequences{QLens: lens}, "Seqs.QStarts = nil: must be given"},
		{Sequences{KVLens: lens, Pages: make([]int32, 6)}, "Seqs.QStarts = nil: must be given"},
	} {
		args := Args{Q: rows(6), K: rows(6), V: rows(6), O: rows(6), Seqs: &x.seqs}
		require.ErrorContains(t, ProblemOf(&args, Band{}).Check(PassForward, &args), x.want)
	}
}

// A missing tensor is told by its name where ProblemOf has found no problem without it.
func TestMissingTensorsOfProblemOf(t *testing.T) {
	for _, name := range []string{"Q", "K", "V"} {
		args := NewArgs(Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 2, KVLen: 3, Dim: 4, VDim: 5}, PassForward)
		*map[string]*Tensor{"Q": &args.Q, "K": &args.K, "V": &args.V}[name] = Tensor{}
		require.ErrorContains(t, ProblemOf(args, Band{}).Check(PassForward, args), name+" = none: the tensor is missing")
	}
}
