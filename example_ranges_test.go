package flashkit_test

import (
	"context"
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/dispatch"
)

// show prints a line for each row, with x for each visible key.
func show(ranges flashkit.Tensor, band flashkit.Band, keys int) {
	s := ranges.Shape()
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: s[2], KVLen: keys, Dim: 1, VDim: 1, Band: band}
	p.Score.Ranges = s[3] / 2
	args := flashkit.NewArgs(p, flashkit.PassForward)
	args.Ranges = ranges
	var c flashkit.Call
	if err := c.Set(p, flashkit.PassForward, args); err != nil {
		fmt.Println(err)
		return
	}
	seq := c.Seq(0)
	for i := range s[2] {
		line := make([]byte, keys)
		for j := range line {
			line[j] = '.'
		}
		for _, r := range c.VisibleRanges(&seq, 0, 0, i) {
			for j := r[0]; j < r[1]; j++ {
				line[j] = 'x'
			}
		}
		fmt.Println(string(line))
	}
}

// Three documents in one sequence, of a decoder.
func ExampleDocumentRanges() {
	show(flashkit.DocumentRanges(3, 1, 2), flashkit.Causal(), 6)
	// Output:
	// x.....
	// xx....
	// xxx...
	// ...x..
	// ....x.
	// ....xx
}

func ExamplePrefixRanges() {
	show(flashkit.PrefixRanges(3, 5, 5), flashkit.Band{}, 5)
	// Output:
	// xxx..
	// xxx..
	// xxx..
	// xxxx.
	// xxxxx
}

func ExampleBlockRanges() {
	show(flashkit.BlockRanges(2, 5, 5), flashkit.Band{}, 5)
	// Output:
	// xx...
	// xx...
	// xxxx.
	// xxxx.
	// xxxxx
}

func ExampleSinkRanges() {
	show(flashkit.SinkRanges(1, 1, 5, 5), flashkit.Band{}, 5)
	// Output:
	// x....
	// xx...
	// xxx..
	// x.xx.
	// x..xx
}

// Two rows see the pages of keys 0 and 2, and two rows see the pages 1 and 2.
func ExamplePageRanges() {
	ranges, err := flashkit.PageRanges([][]int{{0, 2}, {2, 1}}, 2, 2, 4, 6)
	if err != nil {
		panic(err)
	}
	show(ranges, flashkit.Band{}, 6)
	_, err = flashkit.PageRanges([][]int{{0, 2, 4}}, 4, 2, 4, 12)
	fmt.Println(err)
	// Output:
	// xx..xx
	// xx..xx
	// ..xxxx
	// ..xxxx
	// flashkit: pages[0] = [0 2 4]: must be at most 2 runs of neighboring pages, not 3
}

// Two sequences share ranges: each row sees its document.
func ExampleInt32s() {
	p := flashkit.Problem{Batch: 2, Heads: 4, KVHeads: 4, QLen: 4, KVLen: 4, Dim: 8, VDim: 8}
	args := flashkit.NewArgs(p, flashkit.PassForward)
	args.Ranges = flashkit.Int32s([]int32{0, 2, 0, 2, 2, 4, 2, 4}, 1, 1, 4, 2)
	p = flashkit.ProblemOf(args, flashkit.Band{})
	fmt.Println(p)

	d, err := dispatch.Default(context.Background())
	if err != nil {
		panic(err)
	}
	defer d.Close()
	if err := d.Forward(context.Background(), p, args); err != nil {
		panic(err)
	}
	fmt.Printf("%.3f\n", args.LSE.Float32s()[0]) // two keys of score 0
	// Output:
	// b2-h4-g4-n4-m4-d8-f32-ranges1
	// 0.693
}

func ExampleTensor_Int32s() {
	fmt.Println(flashkit.DocumentRanges(2, 1).Int32s())
	// Output: [0 2 0 2 2 3]
}

// A kernel in plain Go loops over the visible keys of a row.
func ExampleCall_VisibleRanges() {
	p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 2, KVLen: 6, Dim: 1, VDim: 1, Score: flashkit.Score{Ranges: 2}}
	args := flashkit.NewArgs(p, flashkit.PassForward)
	args.Ranges = flashkit.Int32s([]int32{0, 1, 3, 5, 2, 2, 4, 6}, 1, 1, 2, 4)
	var c flashkit.Call
	if err := c.Set(p, flashkit.PassForward, args); err != nil {
		panic(err)
	}
	seq := c.Seq(0)
	for i := range 2 {
		for _, r := range c.VisibleRanges(&seq, 0, 0, i) {
			for j := r[0]; j < r[1]; j++ {
				fmt.Printf("row %d sees key %d\n", i, j)
			}
		}
	}
	// Output:
	// row 0 sees key 0
	// row 0 sees key 3
	// row 0 sees key 4
	// row 1 sees key 4
	// row 1 sees key 5
}
