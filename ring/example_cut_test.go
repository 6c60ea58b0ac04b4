package ring_test

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/ring"
)

// Every rank computes the same cut. A causal sequence is cut so that each rank has early and late
// rows.
func ExampleNewCut() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 8, KVLen: 8, Dim: 4, VDim: 4, Band: flashkit.Causal()}
	cut, err := ring.NewCut(p, nil, 2, false)
	if err != nil {
		panic(err)
	}
	fmt.Println(cut.Rows(0), cut.Rows(1))
	// Output: [{0 0 2} {0 6 8}] [{0 2 6}]
}

// The tokens of a rank, for a data loader that reads only these.
func ExampleCut_Rows() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 8, KVLen: 8, Dim: 4, VDim: 4, Band: flashkit.Causal()}
	cut, err := ring.NewCut(p, nil, 2, false)
	if err != nil {
		panic(err)
	}
	tokens := []string{"a", "b", "c", "d", "e", "f", "g", "h"}
	for _, s := range cut.Rows(0) {
		fmt.Println(tokens[s.From:s.To])
	}
	// Output:
	// [a b]
	// [g h]
}

// Rows and keys of cross-attention have different lengths, and each has a cut of its own.
func ExampleCut_Keys() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 4, KVLen: 100, Dim: 4, VDim: 4}
	cut, err := ring.NewCut(p, nil, 2, false)
	if err != nil {
		panic(err)
	}
	fmt.Println(cut.Rows(1), cut.Keys(1))
	// Output: [{0 2 4}] [{0 50 100}]
}

// The shape of a rank's queries in memory that the program allocates.
func ExampleCut_QLen() {
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 2, QLen: 7, KVLen: 7, Dim: 64, VDim: 64}
	cut, err := ring.NewCut(p, nil, 3, false)
	if err != nil {
		panic(err)
	}
	for rank := range cut.Size() {
		q := flashkit.Zeros(p.DType, p.Batch, p.Heads, cut.QLen(rank), p.Dim)
		fmt.Println(q.Shape())
	}
	// Output:
	// [1 8 2 64]
	// [1 8 2 64]
	// [1 8 3 64]
}

// The memory that a rank's keys and values take.
func ExampleCut_KVLen() {
	p, err := flashkit.ParseProblem("b1-h32-g8-n131072-m131072-d128-bf16-causal")
	if err != nil {
		panic(err)
	}
	cut, err := ring.NewCut(p, nil, 8, false)
	if err != nil {
		panic(err)
	}
	fmt.Println(cut.KVLen(0)*p.KVHeads*(p.Dim+p.VDim)*p.DType.Size()>>20, "MB")
	// Output: 64 MB
}

// A loop over the ranks.
func ExampleCut_Size() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 10, KVLen: 10, Dim: 4, VDim: 4}
	cut, err := ring.NewCut(p, nil, 4, false)
	if err != nil {
		panic(err)
	}
	rows := 0
	for rank := range cut.Size() {
		rows += cut.QLen(rank)
	}
	fmt.Println(rows)
	// Output: 10
}

// The rank's queries, keys and values as dense copies.
func ExampleCut_Shard() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 4, KVLen: 4, Dim: 1, VDim: 1, Band: flashkit.Causal()}
	whole := flashkit.NewArgs(p, flashkit.PassForward)
	copy(whole.Q.Float32s(), []float32{0, 1, 2, 3})
	cut, err := ring.NewCut(p, nil, 2, false)
	if err != nil {
		panic(err)
	}
	shard, err := cut.Shard(0, whole)
	if err != nil {
		panic(err)
	}
	fmt.Println(shard.Q.Float32s())
	// Output: [0 3]
}

// The ranks' results return to their places in the whole.
func ExampleCut_Join() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 4, KVLen: 4, Dim: 1, VDim: 1, Band: flashkit.Causal()}
	whole := flashkit.NewArgs(p, flashkit.PassForward)
	cut, err := ring.NewCut(p, nil, 2, false)
	if err != nil {
		panic(err)
	}
	shard, err := cut.Shard(0, whole)
	if err != nil {
		panic(err)
	}
	copy(shard.O.Float32s(), []float32{5, 8}) // what Ring.Forward does
	if err := cut.Join(0, flashkit.PassForward, whole, shard); err != nil {
		panic(err)
	}
	fmt.Println(whole.O.Float32s())
	// Output: [5 0 0 8]
}
