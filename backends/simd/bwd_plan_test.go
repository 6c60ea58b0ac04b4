//go:build (amd64 || arm64) && !purego

package simd

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// A long sequence has blocks of the same size alone and in a batch with short sequences. Many short
// blocks do not help workers that wait for a few long blocks.
func TestBlocksOfOneLongSequence(t *testing.T) {
	const workers, rows, keys, least = 8, 256, 256, 128
	alone := parsed(t, "b1-h4-g4-n2048-m2048-d64-f32")
	cut := func(pl *plan) {
		pl.workers = workers
		pl.planBlocks(rows, keys, least)
	}
	one := planned(alone.Ask(flashkit.PassBackward), cut)

	p := parsed(t, "b8-h4-g4-n2048-m2048-d64-f32-ragged")
	args := flashkit.NewArgs(p, flashkit.PassBackward)
	lens := slices.Repeat([]int32{64}, p.Batch)
	lens[4] = 2048
	args.Seqs = &flashkit.Sequences{QLens: lens, KVLens: lens}
	var c flashkit.Call
	require.NoError(t, c.Set(p, flashkit.PassBackward, args))
	many := planned(&c, cut)
	assert.Equal(t, one.keys, many.keys)
	assert.Less(t, one.keys, 2*keys)
}
