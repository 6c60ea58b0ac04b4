//go:build arm64 && !purego

package simd

import (
	"context"

	"github.com/flashkit-go/flashkit"
)

// bwd_neon is bwdLanes with 16 query rows in the lanes of four vectors.
func (b *Backend) bwdNEON(ctx context.Context, c *flashkit.Call) error {
	return b.bwdLanes(ctx, c, &neonLanes, bwdNEONPlan, bwdNEONPrepare, bwdNEONBlock, bwdNEONFinish)
}

func bwdNEONPlan(pl *plan) (tile, block phase)   { return neonLanes.bwdPlan(pl) }
func bwdNEONPrepare(j *job, ws *arena, item int) { neonLanes.bwdPrepare(j, ws, item) }
func bwdNEONBlock(j *job, ws *arena, item int)   { neonLanes.bwdBlock(j, ws, item) }
func bwdNEONFinish(j *job, ws *arena, item int)  { neonLanes.bwdFinish(j, ws, item) }
