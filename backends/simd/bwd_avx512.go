//go:build amd64 && !purego

package simd

import (
	"context"

	"github.com/flashkit-go/flashkit"
)

// bwd_avx512 is bwdLanes with 32 query rows in the lanes.
func (b *Backend) bwdAVX512(ctx context.Context, c *flashkit.Call) error {
	return b.bwdLanes(ctx, c, &avx512Lanes, bwdAVX512Plan, bwdAVX512Prepare, bwdAVX512Block, bwdAVX512Finish)
}

func bwdAVX512Plan(pl *plan) (tile, block phase)   { return avx512Lanes.bwdPlan(pl) }
func bwdAVX512Prepare(j *job, ws *arena, item int) { avx512Lanes.bwdPrepare(j, ws, item) }
func bwdAVX512Block(j *job, ws *arena, item int)   { avx512Lanes.bwdBlock(j, ws, item) }
func bwdAVX512Finish(j *job, ws *arena, item int)  { avx512Lanes.bwdFinish(j, ws, item) }
