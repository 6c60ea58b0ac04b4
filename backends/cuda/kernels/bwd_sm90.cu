// Backward pass for f16 and bf16 by warpgroup products (WGMMA). P is exp(S*scale - LSE) for visible pairs and 0 for hidden
// pairs. The main kernel computes
//
//	for each batch b, KV head, tile of keys                 // one block
//		for each query head h of the group, tile of rows    // from the last tile of rows to the first
//			S^T = K Q^T;  dP^T = V dO^T
//			dS^T = P^T * (dP^T - delta)
//			dV += P^T dO;  dK += dS^T Q;  dq_sum[h] += dS K
//		dK *= scale
//
// One call launches three kernels, in this order. A kernel whose grid is 0 is not launched.
//
//	bwd_sm90_delta_<dtype>     grid max(1, B*H*ceil(N/64))   LSE and delta; clears the counters
//	bwd_sm90_<dtype>_d<dim>    grid B*G*ceil(M/plan.keys)    dK, dV; adds to dq_sum (d192 and d256: a grid twice as large)
//	bwd_sm90_finish_<dtype>    grid B*H*ceil(N/64)           dQ = dq_sum * scale; with several sums (see chain_of) 4 times the grid
//
// The main kernel has variants, chosen by instances.go:
//
//	groups                  dims 64 and 128: the loop over the query heads of a group is inside the loop over tiles of rows
//	up                      dim 64: the last keys first; the first tile of rows first
//	once                    dims 64 and 128: all blocks run at the same time
//	columns80, columns96    dim 128: for D and DV up to 80 or 96; dK and dV of higher columns are not computed
//	wide                    dim 256: see bwd_wide.cuh
//	features_<feature>      score features; features_groups and features_up correspond to groups and up
//
// With p.splits > 1, the query heads of each KV head are divided into p.splits parts. A block sums over one part. It writes
// dV and unscaled dK, as float32 of shape [B, G, splits, M, <dim> or <v_dim>]. A fourth kernel adds these sums in order.
//
//	bwd_sm90_parts_<dtype>_d<dim>  p.splits times the grid  writes part_o and part_lse
//	bwd_sm90_sums_<dtype>          grid 2*B*G*ceil(M/64)    writes dK and dV
//
// In another variant, a cluster of two blocks shares a tile of keys. One block processes the even tiles of rows, the other
// block the odd tiles. The blocks exchange sums through shared memory. Then one block stores dK, the other block dV.
//
//	bwd_sm90_pairs_<dtype>_d<dim>  twice the grid           for dims 64 and 128
//
// The second and third kernel may start early, and then wait for the previous kernel (programmatic dependent launch).
// The main kernels take MapParams by value, the other kernels Params. <dim> is the smallest of 64, 128, 192 and 256 that is
// at least D and at least DV. d192_dv128 is for DV up to 128. Instances for features have no dim 192. bwd_wide.cuh has the
// kernels of dim 192.
//
// The workspace is, with R = N rounded up to a multiple of 128:
//
//	delta    [2][B, H, R]               LSE in base 2, then delta
//	dq_sum   B*H*R*<dim>                float32, for each sum: see sums_of
//	turn     1 + B*H*R/64*<dim>/64      the ticket, and a counter for each 64x64 block of dq_sum, of each sum
//
// Tensor maps have 16-bit elements, rank 4, a 128-byte swizzle, no interleaving, and zeros outside:
//
//	      dims, innermost first           strides in bytes    box
//	q     dim, q_len, heads, batch        row, head, batch    64, plan.rows, 1, 1
//	k     dim, kv_len, kv_heads, batch    row, head, batch    64, plan.keys, 1, 1
//	v     v_dim, kv_len, kv_heads, batch  row, head, batch    64, plan.keys, 1, 1
//	dout  v_dim, q_len, heads, batch      row, head, batch    64, plan.rows, 1, 1
//
// Addresses and strides are multiples of 16 bytes. If N = 0, q and dout are not read.
//
// Each of two warpgroups owns 64 keys and the sums dK and dV of these keys. P^T and dS^T stay in registers, as operands of
// dV and dK. dS K needs the keys of both warpgroups, so dS passes through shared memory, and each warpgroup computes a
// 64x64 block of dQ. A third warpgroup moves data: two lanes load, and two lanes each add one block of dQ to dq_sum. If
// S::releases, one lane loads, and another lane ends the turns of both warpgroups (see add in bwd_lanes.cuh). Ending a turn
// takes as long as a product. With S::releases, the lanes that add can begin their next turn meanwhile, and one counter
// serves both warpgroups.
//
// At dim 256 the registers of a block hold only half of the columns of dK and dV. So two blocks share a tile of keys: both
// compute all of S and dP, and each computes one half of the columns of dV, dK and dQ. Shared memory has no room for dQ,
// so the computing threads themselves add dQ to dq_sum.
//
// Products overlap other work. The product dP runs during the exponentials. The products of 16 rows for dV and dK run
// during the exponentials and dS of the next 16 rows. The next product S runs while dQ is stored to shared memory (Shah et
// al. 2024, section 3.2, for the forward pass). LSE and delta of many rows are loaded in advance, because the compiler does
// not move loads across products. The fence between the stores of dQ and the bulk copy of dQ takes longer than the stores,
// so the copying lane executes the fence.
//
// At each tile of rows, the block of the first visible keys stores to dq_sum, and the blocks of later keys add to dq_sum.
// With p.deterministic, they add in the order of keys. A block takes a ticket and waits only for blocks with lower tickets,
// which have started. All blocks loop from the last tile of rows to the first, so a block waits only a short time for the
// block before it. In variant up, the last keys have the first tickets, and each block begins at its first visible row.
// Blocks with lower tickets began at later rows, so they are ahead. Persistent blocks, at most one per multiprocessor, draw
// one ticket after another. Each loads its next tile of keys while it writes dK and dV of the previous tile. In variants
// once and pairs, a block's index is its ticket, and loads begin before the delta kernel has ended.
//
// A head's last block waits until all other blocks have processed the last rows. With few blocks, and if all rows see all
// keys, this wait is long. With p.skew, each block begins at a different tile of rows, continues to the first tile, and
// then goes on from the last tile. So no block waits. This is the shift of DASH (arXiv 2601.21824). In DASH, a block may
// wait for any block of its head, so all blocks must run at once. Here dQ has two sums. A block adds to the first sum
// until it has processed the first tile of rows, and then to the second sum. So blocks reach each sum in the order of keys,
// and wait for lower tickets only. The finish kernel adds the two sums. Features, groups and up have no skew.
//
// With few tiles of rows and many tiles of keys, a skew does not help: many blocks add to each row tile. Then consecutive
// key tiles share a sum of dQ, and each row tile has several sums (see chain_of). The finish kernel adds the sums in order.
//
// For hidden pairs, P and dS are set to 0. But 0 * NaN is NaN, so NaN would still pass from dO to dV, from Q to dK, and
// from K to dQ. In tiles with hidden pairs, non-finite elements of dO, Q and K are set to 0. Visible pairs must still yield
// NaN. LSE and delta of a row reveal non-finite elements of Q and dO, and `odd` marks keys with non-finite K. At the end, the
// elements of dO that were set to 0 are added to dV.
//
// Instances for features (bwd_sm90_features) take FeatureParams, which begins with MapParams. Maps of packed tensors have
// batch 1. If a tile has rows or keys of the next sequence, their pairs are hidden. Up to 32 sequences are processed
// longest first. Each feature of scores or weights has its own instance, because branches in the loop hinder the compiler's
// scheduling. A bias is prefetched to shared memory two parts of a tile ahead, a mask one tile ahead. The random words of
// dropout are computed while the next product S is in flight, when the registers of dP are free. A mask that is equal for
// all rows is scanned from key 0 to the block's last key. If no key of the block is visible, the block writes zeros and
// adds nothing to dQ. If DBias is aligned, dS is copied to DBias from shared memory, else stored from registers.
#include "bwd_sm90_loop.cuh"
#include "bwd_wide.cuh"

#define WIDEST(name, knows, type, T)                                                                             \
    WIDE(name, MapParams, x, no_features, knows, type, T, 1)                                                     \
    MAIN(name##_##type##_d192_dv128, MapParams, backward_wide, x, no_features, WideShape<knows, T, 192, 128>)    \
    MAIN(name##_##type##_d192, MapParams, backward_wide, x, no_features, WideShape<knows, T, 192, 192>)
#define PLAIN(type, T)                                                                                           \
    DIMS(bwd_sm90, MapParams, x, no_features, kStays, type, T, 1) WIDEST(bwd_sm90, 0, type, T)                   \
    DIMS(bwd_sm90_groups, MapParams, x, no_features, kGroups, type, T, 1)                                        \
    DIMS(bwd_sm90_parts, MapParams, x, no_features, kParts | kGroups, type, T, 1) WIDEST(bwd_sm90_parts, kParts, type, T) \
    MAIN(bwd_sm90_pairs_##type##_d64, MapParams, backward, x, no_features, Shape<kPairs, T, 64, 64, 128, 2, 2>)          \
    MAIN(bwd_sm90_pairs_##type##_d128, MapParams, backward, x, no_features, Shape<kPairs, T, 128, 128, 64, 2, 1>)        \
    DIMS(bwd_sm90_once, MapParams, x, no_features, kOnce, type, T, 1)                                                    \
    MAIN(bwd_sm90_up_##type##_d64, MapParams, backward, x, no_features, Shape<kStays | kUpwards, T, 64, 64, 128, 2, 2>) \
    MAIN(bwd_sm90_columns80_##type##_d128, MapParams, backward, x, no_features, Shape<kStays, T, 128, 80, 64, 2, 1>)     \
    MAIN(bwd_sm90_columns96_##type##_d128, MapParams, backward, x, no_features, Shape<kStays, T, 128, 96, 64, 2, 1>)     \
    MAIN(bwd_sm90_wide_##type##_d256, MapParams, backward_wide, x, no_features, WideShape<0, T, 256, 256>)
#define SUMS(name, T)                                       \
    extern "C" __device__ Plan name##_plan = {256, 0, 64, 0}; \
    extern "C" __global__ void __launch_bounds__(256, 4) name(const __grid_constant__ Params x) { sum_parts<T>(x); }
#define ALL(type, T)                                                               \
    ENDS(bwd_sm90, Params, false, false, x, no_features, type, T) PLAIN(type, T)           \
    SUMS(bwd_sm90_sums_##type, T)                                                  \
    ENDS(bwd_sm90_features, FeatureParams, true, false, x.p, x.f, type, T)                 \
    DIMS(bwd_sm90_features_layout, FeatureParams, (const MapParams &)x, x.f, kLayout | kStays, type, T, 1)                                                    \
    WIDE(bwd_sm90_features_layout, FeatureParams, (const MapParams &)x, x.f, kLayout, type, T, 1)                                                             \
    DIMS(bwd_sm90_features_groups, FeatureParams, (const MapParams &)x, x.f, kLayout | kGroups, type, T, 1)                                                   \
    MAIN(bwd_sm90_features_up_##type##_d64, FeatureParams, backward, (const MapParams &)x, x.f, Shape<kLayout | kStays | kUpwards, T, 64, 64, 128, 2, 2>)      \
    FEATURES(_softcap, kLayout | kSoftcap, type, T, 2) \
    FEATURES(_alibi, kLayout | kALiBi, type, T, 2) FEATURES(_bias, kLayout | kBias, type, T, 2) \
    FEATURES(_mask, kLayout | kMask, type, T, 2) FEATURES(_keys, kLayout | kKeys, type, T, 1) \
    FEATURES(_dropout, kLayout | kDropout, type, T, 2)                             \
    FEATURES(, kAll, type, T, 2)
ALL(bf16, BF16)
ALL(f16, F16)
