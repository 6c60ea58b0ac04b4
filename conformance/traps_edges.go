package conformance

import (
	"math"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
)

// edgeTraps is the table of traps at the edges of tiles and bands. It also has traps with large
// dropout counters, softcaps of common models, page tables, and lengths that are powers of two.
var edgeTraps = []trap{
	// Edges of a band, and masks that change at tile edges. The number of rows is odd.
	{name: "edge_nan_bias", catches: "NaN from the bias of a pair that the mask hides", problem: "b1-h2-g1-n17-m67-d8-f32-bias-mask", fill: nanBehindPairs},
	{name: "edge_nan_between", catches: "a mask that counts for the first key of a block alone", problem: "b1-h2-g1-n33-m67-d8-f32-causal-bias-mask", fill: all(hideInBand(15, 16, 17, 31, 32, 63, 64, 65), nanBehindPairs)},
	{name: "edge_band_right", catches: "the right edge of a band rounded up to 16 keys where there is a mask", problem: "b1-h2-g1-n33-m67-d8-f32-causal-topleft-bias-mask", fill: nanBehindPairs},
	{name: "edge_band_left", catches: "the left edge of a band rounded down to 16 keys where there is a mask", problem: "b1-h2-g1-n17-m81-d8-f32-window15.0-bias-mask", fill: nanBehindPairs},
	{name: "edge_mask_row", catches: "an odd last row with the mask of the row before it", problem: "b1-h2-g1-n17-m35-d8-f32-mask", fill: maskEdges},
	{name: "edge_mask_32", catches: "the last of 32 keys shown, whatever the mask says", problem: "b1-h2-g1-n33-m67-d8-f32-mask", fill: maskEdges},
	{name: "edge_mask_64", catches: "keys from 64 on with the mask of the 64 before them", problem: "b1-h2-g1-n7-m131-d8-f32-mask", fill: maskEdges},
	{name: "edge_mask_keys", catches: "the last of 128 keys shown, where the mask is the same for all rows", problem: "b1-h2-g1-n5-m261-d8-f32-mask", fill: all(once(1), once(2), maskEdges, nanBehindMask)},
	{name: "edge_mask_odd", catches: "a run of shown keys rounded to pairs of them", problem: "b2-h2-g1-n5-m99-d8-f32-mask", fill: all(once(1), once(2), oddRuns, nanBehindMask)},
	{name: "edge_band_odd", catches: "keys paired beyond the last that an odd last row sees", problem: "b1-h2-g1-n17-m40-d8-f32-causal-topleft", fill: hide(nan)},
	{name: "edge_empty_rows", catches: "0 * NaN from a row that sees no key", problem: "b1-h2-g1-n37-m16-d8-f32-causal", fill: nanInEmptyRows},
	{name: "edge_masked_rows", catches: "0 * NaN from a row whose keys the mask hides", problem: "b1-h2-g1-n19-m33-d8-f32-mask", fill: all(maskRow(0), maskRow(15), maskRow(18), nanInEmptyRows)},

	// Gradients of bias and sink at the edges of a band.
	{name: "edge_dbias_rows", catches: "DBias left unwritten in rows that see no key", problem: "b1-h2-g1-n133-m37-d8-f32-window1.0-topleft-bias", fill: nanBehindPairs},
	{name: "edge_dbias_keys", catches: "DBias left unwritten at keys that no row sees", problem: "b1-h2-g1-n21-m133-d8-f32-causal-topleft-bias", fill: nanBehindPairs},
	{name: "edge_dbias_shared", catches: "a DBias that repeats left unwritten in rows that see no key", problem: "b2-h2-g1-n69-m19-d8-f32-window1.0-topleft-bias", fill: all(once(0), once(1), nanBehindPairs)},
	{name: "edge_dbias_columns", catches: "a DBias of all rows left unwritten at keys that no row sees", problem: "b2-h2-g1-n21-m133-d8-f32-causal-topleft-bias", fill: all(hide(nan), once(2), nanBehindColumns)},
	{name: "edge_dsink", catches: "rows from 64 on that see no key left out of DSink", problem: "b2-h2-g1-n133-m37-d8-f32-window1.0-topleft-sink", dlse: true},

	// Dropout counters that a kernel might truncate.
	{name: "dropout_sequences", catches: "the number of a sequence cut to 8 bits", problem: "b261-h1-g1-n1-m8-d1-f32-dropout0.25"},
	{name: "dropout_heads_33", catches: "the number of a head cut to 5 bits", problem: "b1-h40-g8-n3-m11-d8-f32-dropout0.25"},
	{name: "dropout_head_16", catches: "the number of a head cut to 16 bits", problem: "b1-h4-g2-n5-m11-d8-f32-dropout0.25-origin", fill: origin(1<<16-2, 1<<16-2, 7, 8)},
	{name: "dropout_row_16", catches: "the number of a row cut to 16 bits", problem: "b1-h2-g1-n19-m11-d8-f32-dropout0.25-origin", fill: origin(0, 0, 1<<16-9, 0)},
	{name: "dropout_key_16", catches: "the number of a block of eight keys cut to 16 bits", problem: "b1-h2-g1-n5-m45-d8-f32-dropout0.25-origin", fill: origin(0, 0, 0, 8<<16-16)},
	{name: "dropout_last", catches: "numbers of the counter kept in float32", problem: "b2-h2-g1-n19-m45-d8-f32-dropout0.25-origin", fill: origin(math.MaxInt32-2, math.MaxInt32-2, math.MaxInt32-40, math.MaxInt32-127)},
	{name: "dropout_window", catches: "blocks of eight keys counted from the first key that a row sees", problem: "b1-h2-g1-n37-m77-d8-f32-window9.3-dropout0.25"},
	{name: "dropout_eighth", catches: "keys after the last whole block of eight kept", problem: "b1-h2-g1-n5-m39-d8-f32-dropout0.25"},
	{name: "dropout_mask", catches: "keys counted without the ones that the mask hides", problem: "b1-h2-g1-n5-m39-d8-f32-mask-dropout0.25"},
	{name: "dropout_pages", catches: "a key's number in its page", problem: "b3-h2-g1-n5-m19-d8-f32-dropout0.25-ragged-page3"},

	// Softcaps of common models.
	{name: "softcap_50", catches: "a cap that leaves scores below an eighth of it as they are", problem: "b1-h2-g1-n9-m33-d64-f32-softcap50"},
	{name: "softcap_30", catches: "a tanh kept in bf16", problem: "b1-h2-g1-n5-m17-d256-f32-scale0.0625-softcap30"},
	{name: "softcap_levels", catches: "a series for tanh where it does not converge", problem: "b1-h2-g1-n25-m20-d16-f32-scale0.0625-softcap30", fill: levels(30)},

	// Rows of bias and mask, and page tables.
	{name: "packed_tiles", catches: "rows of bias and mask counted among all sequences after the first 64", problem: "b2-h2-g1-n70-m19-d8-f32-bias-mask-ragged", layout: packed},
	{name: "page_wide", catches: "a page table as wide as the longest keys need", problem: "b3-h2-g1-n5-m19-d8-f32-ragged-page4", layout: paged},
	{name: "page_wide_bias", catches: "rows of the bias as long as the page table is wide", problem: "b3-h2-g1-n5-m19-d8-f32-bias-mask-ragged-page4", layout: paged},
	{name: "page_odd", catches: "an odd number of keys in the last page of a sequence rounded up", problem: "b3-h2-g1-n5-m37-d8-f32-ragged-page16", layout: paged, fill: lengths([]int32{5, 5, 4}, []int32{37, 15, 17})},

	// Powers of two, and heads that all differ.
	{name: "whole_keys", catches: "the last block of 16 keys dropped when it is full", problem: "b1-h2-g1-n16-m64-d16-f32"},
	{name: "whole_rows", catches: "the last 64 rows dropped when they are a whole tile", problem: "b1-h2-g1-n128-m32-d16-f32-causal-topleft"},
	{name: "many_heads", catches: "the keys of head h mod 16", problem: "b1-h20-g20-n16-m16-d8-f32-causal"},
}

// hideInBand hides each given key from the rows whose band contains the key. It shows this key to
// all other rows.
func hideInBand(keys ...int) func(in *Inputs) {
	return func(in *Inputs) {
		in.mask.eachPair(func(i, j int, x *float32) {
			for _, key := range keys {
				if j == key {
					*x = 1
					if oracle.Sees(in.p, i, j) {
						*x = 0
					}
				}
			}
		})
	}
}

// maskEdges hides keys in patterns of blocks of 16 keys, a different pattern in each of five rows in
// turn. Most patterns begin or end at the edge of a block. The last row sees only the first and the
// last key of each block.
func maskEdges(in *Inputs) {
	in.mask.eachPair(func(i, j int, x *float32) {
		hidden := false
		switch at := j % 16; {
		case i == in.p.QLen-1:
			hidden = at != 0 && at != 15
		case i%5 == 0:
			hidden = at == 15 || at == 0 && j%32 != 0
		case i%5 == 1:
			hidden = at == 0 || j%64 == 31
		case i%5 == 2:
			hidden = j/16%2 == 1
		case i%5 == 3:
			hidden = j/64%2 == 0 && at != 3
		default:
			hidden = at == 14 || at == 1 || j%128 == 127
		}
		*x = 1
		if hidden {
			*x = 0
		}
	})
}

// oddRuns shows one run of keys per sequence, which begins and ends inside tiles, as if both sides
// of the sequence were padded.
func oddRuns(in *Inputs) {
	for at := range in.mask.x {
		b, j := at/in.p.KVLen, at%in.p.KVLen
		in.mask.x[at] = 0
		if 17-8*b <= j && j < 77-4*b {
			in.mask.x[at] = 1
		}
	}
}

// nanBehindPairs sets the bias to NaN in each pair of row and key that the band or the mask hides.
// It also sets K and V of keys that no row sees to NaN.
func nanBehindPairs(in *Inputs) {
	seen := map[[3]int]bool{} // by sequence, KV head and key
	for b := range in.p.Batch {
		for h := range in.p.Heads {
			for i := range in.p.QLen {
				for j := range in.p.KVLen {
					switch {
					case oracle.Sees(in.p, i, j) && (in.mask.x == nil || in.mask.x[in.mask.at(b, h, i, j)] != 0):
						seen[[3]int{b, h / (in.p.Heads / in.p.KVHeads), j}] = true
					case in.bias.x != nil:
						in.bias.x[in.bias.at(b, h, i, j)] = nan
					}
				}
			}
		}
	}
	for _, t := range []struct {
		x     []float32
		shape [4]int
	}{{in.k, in.p.KShape()}, {in.v, in.p.VShape()}} {
		for at := range t.x {
			row := at / t.shape[3]
			if !seen[[3]int{row / t.shape[2] / t.shape[1], row / t.shape[2] % t.shape[1], row % t.shape[2]}] {
				t.x[at] = nan
			}
		}
	}
}

// nanBehindColumns sets the bias of keys that no row sees to NaN.
func nanBehindColumns(in *Inputs) {
	in.bias.eachPair(func(_, j int, x *float32) {
		for i := range in.p.QLen {
			if oracle.Sees(in.p, i, j) {
				return
			}
		}
		*x = nan
	})
}

// nanInEmptyRows sets Q and dO of rows that see no key to NaN.
func nanInEmptyRows(in *Inputs) {
	for b := range in.p.Batch {
		for h := range in.p.Heads {
			for i := range in.p.QLen {
				empty := true
				for j := range in.p.KVLen {
					empty = empty && (!oracle.Sees(in.p, i, j) || in.mask.x != nil && in.mask.x[in.mask.at(b, h, i, j)] == 0)
				}
				row := (b*in.p.Heads+h)*in.p.QLen + i
				for c := 0; empty && c < in.p.Dim; c++ {
					in.q[row*in.p.Dim+c] = nan
				}
				for c := 0; empty && c < in.p.VDim; c++ {
					in.do[row*in.p.VDim+c] = nan
				}
			}
		}
	}
}

// origin sets the position of the case's problem in a larger problem, for dropout.
func origin(batch, head, row, key int) func(in *Inputs) {
	return func(in *Inputs) {
		in.features.origin = flashkit.Origin{Batch: batch, Head: head, Row: row, Key: key}
	}
}

// levels makes the scores of a row nearly equal. The size of the scores differs by row: from far
// below to far above the softcap, with both signs.
func levels(limit float64) func(in *Inputs) {
	return func(in *Inputs) {
		by := float32(1 / in.p.SoftmaxScale())
		eachRow(in.q, in.p.QShape(), func(i int, row []float32) {
			level := rounder(flashkit.BFloat16)(float32(limit) / 64 * float32(math.Pow(2, float64(i%12)*.8)))
			row[0] = level * float32(1-i/12%2*2)
		})
		eachRow(in.k, in.p.KShape(), func(j int, row []float32) { row[0] = by + by/16*float32(j%5-2) })
	}
}
