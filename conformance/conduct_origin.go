package conformance

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/flashkit-go/flashkit"
)

// originOfParts checks that a call on a part of a problem drops the same weights as the call on the
// whole problem. A part has some of the sequences, heads, rows or keys. The call's Origin is the
// part's position in the whole problem. All weights are equal, and each appears in its own output
// element.
func originOfParts(ctx context.Context, k flashkit.Kernel) error {
	const batch, heads, rows, keys = 2, 3, 19, 40
	whole, err := droppedBy(ctx, k, [4]int{batch, heads, rows, keys}, flashkit.Origin{})
	if err != nil {
		return err
	}
	if !slices.Contains(whole, true) || !slices.Contains(whole, false) {
		return errors.New("of the whole no weight is dropped, or each")
	}
	for _, x := range []struct {
		n [4]int // numbers of sequences, heads, rows and keys of the part
		flashkit.Origin
	}{
		{[4]int{1, heads, rows, keys}, flashkit.Origin{Batch: 1}},
		{[4]int{batch, 2, rows, keys}, flashkit.Origin{Head: 1}},
		{[4]int{batch, heads, 8, keys}, flashkit.Origin{Row: 11}},
		{[4]int{batch, heads, rows, 15}, flashkit.Origin{Key: 24}},
		{[4]int{1, 1, 5, 3}, flashkit.Origin{Batch: 1, Head: 2, Row: 13, Key: 32}},
	} {
		part, err := droppedBy(ctx, k, x.n, x.Origin)
		if err != nil {
			return err
		}
		for i, dropped := range part {
			j, r, h, b := i%x.n[3]+x.Key, i/x.n[3]%x.n[2]+x.Row, i/x.n[3]/x.n[2]%x.n[1]+x.Head, i/x.n[3]/x.n[2]/x.n[1]+x.Batch
			if dropped != whole[((b*heads+h)*rows+r)*keys+j] {
				return fmt.Errorf("a part of %v from %+v on: whether the weight of sequence %d, head %d, row %d, key %d of the whole is dropped is %v",
					x.n, x.Origin, b, h, r, j, dropped)
			}
		}
	}
	return nil
}

// droppedBy returns, for each weight, whether the kernel drops this weight. The array is ordered by
// sequence, head, row and key.
func droppedBy(ctx context.Context, k flashkit.Kernel, n [4]int, o flashkit.Origin) ([]bool, error) {
	wide := max(n[2], n[3])
	p := flashkit.Problem{Batch: n[0], Heads: n[1], KVHeads: n[1], QLen: n[2], KVLen: n[3], Dim: 8, VDim: wide, Scale: 1}
	p.Score = flashkit.Score{Dropout: .5, Origin: true}
	for _, p.DType = range dtypes {
		if k.Fits(p.Ask(k.Pass)) == "" {
			break
		}
	}
	in := Case{Name: "part", Problem: p}.Inputs()
	clear(in.q)
	eachRow(in.v, p.VShape(), func(r int, row []float32) { clear(row); row[r] = 1 })
	eachRow(in.do, p.OShape(), func(r int, row []float32) { clear(row); row[r] = 1 })
	in.origin = o
	want := result{o: make([]float64, len(in.do)), lse: make([]float64, size(p.LSEShape()))}
	for i := range want.lse {
		want.lse[i] = math.Log(float64(n[3]))
	}
	a := newArguments(in, bhsd, k.Pass, want)
	if err := a.run(ctx, k); err != nil {
		return nil, err
	}
	name := "o" // element c of row r is the weight of key c
	if k.Pass == flashkit.PassBackward {
		name = "dv" // element c of key r is the weight of query row c
	}
	list := make([]bool, n[0]*n[1]*n[2]*n[3])
	for _, out := range a.outputs {
		if out.name != name {
			continue
		}
		for i, at := range out.index {
			head, r, c := i/out.dense[3]/out.dense[2], i/out.dense[3]%out.dense[2], i%out.dense[3]
			if k.Pass == flashkit.PassBackward {
				r, c = c, r
			}
			if r < n[2] && c < n[3] {
				list[(head*n[2]+r)*n[3]+c] = out.value(at) == 0
			}
		}
	}
	return list, nil
}
