//go:build amd64 && !purego

package simd

import (
	"context"

	"github.com/flashkit-go/flashkit"
)

// bwd_avx2 is bwdLanes with 16 query rows in the lanes.
func (b *Backend) bwdAVX2(ctx context.Context, c *flashkit.Call) error {
	return b.bwdLanes(ctx, c, &avx2Lanes, bwdAVX2Plan, bwdAVX2Prepare, bwdAVX2Block, bwdAVX2Finish)
}

func bwdAVX2Plan(pl *plan) (tile, block phase)   { return avx2Lanes.bwdPlan(pl) }
func bwdAVX2Prepare(j *job, ws *arena, item int) { avx2Lanes.bwdPrepare(j, ws, item) }
func bwdAVX2Block(j *job, ws *arena, item int)   { avx2Lanes.bwdBlock(j, ws, item) }
func bwdAVX2Finish(j *job, ws *arena, item int)  { avx2Lanes.bwdFinish(j, ws, item) }
