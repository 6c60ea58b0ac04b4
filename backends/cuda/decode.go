package cuda

import "github.com/flashkit-go/flashkit"

// A decodePlan is the partition of the keys of a call with few query rows.
type decodePlan struct {
	workspace
	splits  int
	tiles   int  // tiles of query rows and columns; the rows of all query heads of a KV head are packed together
	cluster bool // the blocks of all parts of a tile's keys form a cluster, which needs no workspace
}

// Limits of clusters on compute capability 9.0. All blocks of a cluster run on one GPC. GPCs differ
// in their number of multiprocessors.
const (
	maxCluster = 8 // maximum blocks of a cluster
	maxGPCs    = 8
	gpcStep    = 2 // multiprocessors that the smallest GPC may lack
)

// fitsClusters reports whether the given number of clusters certainly runs at the same time, with
// one block per multiprocessor. Multiprocessors come in pairs, so a cluster with an odd number of
// blocks leaves one multiprocessor idle.
func fitsClusters(clusters, blocks, sms int) bool {
	return blocks <= maxCluster && clusters*blocks <= sms-maxGPCs*(blocks+blocks%2-gpcStep)
}

// clusters reports whether device and driver support clusters.
func (b *Backend) clusters() bool { return b.dev.Major == 9 && b.drv.LaunchCluster != nil }

// planDecode cuts the keys into parts, with one thread block per part. It chooses the number of
// parts with which the busiest multiprocessor has the least work. A part costs one, plus the number
// of pieces of f.keys keys that each warp loads. If the merge is small, the block of a tile that
// ends last merges the tile's parts. Otherwise a second kernel merges the parts.
func (b *Backend) planDecode(f *function, id familyID, p flashkit.Problem) (d decodePlan) {
	rows := p.Heads / p.KVHeads * p.QLen
	shares := families[id].columnShares(&p)
	d.tiles, d.splits = p.Batch*p.KVHeads*ceilDiv(rows, f.rows)*shares, 1
	if d.tiles == 0 {
		return d
	}
	slots := b.dev.SMs * max(1, f.perSM)
	if d.splits, d.cluster = cutDecode(d.tiles, ceilDiv(seenKeys(&p), f.keys), f.threads/32, slots, b.dev.SMs, b.clusters() && id == decodeSM80); d.splits == 1 || d.cluster {
		return d
	}
	dim, parts := families[id].padded(&p).dim, p.Batch*p.Heads*p.QLen*d.splits
	d.partO, d.partLSE = parts*dim, 2*parts
	if ceilDiv(min(rows, f.rows)*dim/shares/4, f.threads)*ceilDiv(d.splits, 16) <= 3 {
		d.counters = d.tiles
	}
	return d
}

// apartPieces is the extra time of a merge outside a cluster, in units of the time that a warp
// needs for a piece of keys.
const apartPieces = 3

// cutDecode returns the number of parts of each query tile's keys, and whether the parts' blocks
// form a cluster. all is the number of query tiles. pieces is the number of pieces of a query
// tile's keys: a warp loads one piece at a time. warps is the number of warps of a block, and slots
// is the number of blocks that run at the same time.
func cutDecode(all, pieces, warps, slots, sms int, clusters bool) (splits int, cluster bool) {
	splits, least := cutKeys(all, pieces, warps, slots)
	if !clusters || splits == 1 {
		return splits, false
	}
	least += apartPieces
	for s := 2; s <= min(maxCluster, ceilDiv(pieces, warps)); s++ {
		if cost := partCost(all, pieces, warps, slots, s); fitsClusters(all, s, sms) && cost < least {
			splits, least, cluster = s, cost, true
		}
	}
	return splits, cluster
}

// cutKeys returns the number of parts that costs least without clusters, and the cost (partCost).
// Parameters are as for cutDecode.
func cutKeys(all, pieces, warps, slots int) (splits, least int) {
	for s := 1; s <= max(1, min(ceilDiv(4*slots, all), ceilDiv(pieces, warps))); s++ {
		if cost := partCost(all, pieces, warps, slots, s); s == 1 || cost < least {
			splits, least = s, cost
		}
	}
	return splits, least
}

// partCost returns the time of a call that cuts each tile's keys into the given number of parts.
// The unit is the time that a warp needs for a piece of keys.
func partCost(all, pieces, warps, slots, splits int) int {
	return ceilDiv(all*splits, slots)*(ceilDiv(ceilDiv(pieces, splits), warps)+1) + min(1, splits-1)
}

// decode launches a decode kernel. If the keys are cut into parts, it also launches the kernel that
// merges the results of the parts, unless the decode kernel merges them.
func (l *launch) decode() error {
	b, x := l.b, l.x
	f, err := l.get(l.instance(1, false))
	if err != nil {
		return err
	}
	clustered := (*function)(nil)
	merge, err := b.images.get(b.drv, decodeSM80, l.featureTrait()|traitMerge, l.family.parts(l.p))
	if err != nil {
		return err
	}
	if b.clusters() && l.id == decodeSM80 {
		if clustered, err = l.get(l.featureTrait() | traitCluster); err != nil {
			return err
		}
	}
	d := b.planDecode(f, l.id, l.p)
	x.splits = int32(d.splits)
	return l.within(&d.workspace, func() error {
		if d.cluster {
			return b.drv.LaunchCluster(clustered.handle, d.tiles*d.splits, clustered.threads, clustered.shared, d.splits, l.s, l.block(false))
		}
		if d.counters > 0 {
			if err := b.drv.MemsetD32Async(x.counters, 0, d.counters, l.s); err != nil {
				return err
			}
		}
		if err := l.run(f, d.tiles*d.splits, false); err != nil || d.splits == 1 || d.counters > 0 {
			return err
		}
		return l.run(merge, ceilDiv(l.p.Batch*l.p.Heads*l.p.QLen, merge.rows), false)
	})
}
