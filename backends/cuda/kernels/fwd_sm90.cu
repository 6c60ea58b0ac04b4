// fwd_sm90 computes, for each query row i of each head,
//
//	m, l, o = -inf, 0, 0
//	for each tile of keys that row i sees, tiles cut by a mask first:
//		s = Q[i]·K[j] for each key j of the tile, -inf where i does not see j
//		n = max(m, max(c s)); a = 2^(m-n); m = n
//		p = 2^(c s - m); l = a l + sum(p); o = a o + p·V
//	O[i] = o / l; LSE[i] = ln(2) m + ln(l)
//
// with c = scale log2(e) (Milakov and Gimelshein 2018, algorithm 3). The products have the order of Shah et al. 2024,
// algorithm 2: a tile's product Q K^T is issued before the previous tile's product P V. While a warpgroup's product P V
// runs, the warpgroup computes maxima, and other warpgroups compute exponentials.
//
// Compiled with -gencode=arch=compute_90a,code=sm_90a only.
//
// Launch: MapParams by value; grid.x = min(multiprocessors, tiles), where tiles = (tall + low) * heads * batch > 0. A tall tile
// has plan.rows query rows, and a low tile low_rows (see MapParams). The Plan has the other launch parameters. p.turn is null
// or, only if a mask hides keys, the address of an int of value 0. From this counter, blocks draw their tiles: first the tall
// tiles, most keys first, then the low tiles. If p.turn is null, the second tiles of the blocks are in reverse order, to pair
// tiles that see many keys with tiles that see few keys. Tensor maps have 16-bit elements, rank 4, a 128-byte swizzle, no
// interleaving, and zeros outside:
//
//	   dims, innermost first            strides in bytes    box
//	q  dim, q_len, heads, batch         row, head, batch    64, rows, 1, 1
//	k  dim, kv_len, kv_heads, batch     row, head, batch    64, keys, 1, 1
//	v  v_dim, kv_len, kv_heads, batch   row, head, batch    64, keys, 1, 1
//	o  v_dim, q_len, heads, batch       row, head, batch    64, 64, 1, 1
//
// Addresses and strides are multiples of 16 bytes. If kv_len = 0, k and v are not read. Of the views in MapParams::p, the
// kernel uses v, o and lse. With features, or if p.skew is nonzero, warpgroups take turns at the tensor cores, at the times
// that turn_of chooses.
//
// Blocks are persistent. They process the tall tiles of query rows of all heads, then the low tiles. If all tiles are low,
// the tiles that see most keys are first. In a low tile only some warpgroups have rows. Low tiles let all multiprocessors
// end at about the same time. One lane of the first warpgroup loads boxes of Q, K and V, each box when its stage in shared
// memory is free. Each other warpgroup owns 64 rows, and stages O in the shared memory of these rows of Q. s, o and p are in
// registers, in the layouts of wgmma's sums and operands. With keep_q, Q is in registers, too.
//
// A hidden key has p = 0, but 0 * NaN would still add NaN to o. A tile of V is called cut if some row does not see all of
// its keys. The other three warps of the first warpgroup scan cut tiles of V and replace non-finite elements by 0. At the
// end, these elements are added to O, in rows that see their keys.
//
// The split instances process parts of the keys: grid.x = min(multiprocessors, tiles * p.splits). For each part, they write
// o, maximum and sum to part_o and part_lse, like decode_sm80. The kernel decode_sm80_merge for v_dim merges the parts.
//
// Instances for features take FeatureParams, which begins with MapParams. p.turn is set if sequences or rows see different
// keys. With a mask tensor, all tiles of V count as cut. While the current tile of rows is computed, one lane of the scanning
// warps finds the next tile of rows. O of packed rows is stored by chunks or elements if a box would reach into the next
// sequence. Some kinds of instances differ:
//
//	Kind::keys       skips tiles without visible keys; the loading warp, not a scanning warp, finds the next tile of rows
//	Kind::ranges     see fwd_sm90_ranges.cu
//	Kind::layout     processes up to 32 packed sequences in the order of their lengths, longest first
//	Kind::mask       reads the mask while products are in flight
//	Kind::dropout    computes random words while products are in flight or, at dim 64, between exponentials, to save registers
//
// Tensor maps of packed tensors have batch 1. Tensor maps of page pools are
//
//	k, v  dim, page, kv_heads, pages    row, head, batch    64, the greatest common divisor of page and keys, 1, 1
#include "fwd_sm90_loop.cuh"

#define FEATURES(name, kind, type, T, groups, keep_q, keys)                                                                       \
    KERNEL(fwd_sm90_features##name##_##type##_d64, FeatureParams, (const MapParams &)x, x.f, Kind::kind, T, 64, 64, groups, 128, 2, 3, false) \
    KERNEL(fwd_sm90_features##name##_##type##_d128, FeatureParams, (const MapParams &)x, x.f, Kind::kind, T, 128, 128, 2, 128, 2, 2, keep_q) \
    KERNEL(fwd_sm90_features##name##_##type##_d256, FeatureParams, (const MapParams &)x, x.f, Kind::kind, T, 256, 256, 2, keys, 1, 2, false)
#define MLA(name, block, a, f, kind, type, T)                                                       \
    KERNEL(name##_##type##_d192_dv128, block, a, f, Kind::kind, T, 192, 128, 2, 128, 1, 2, false) \
    KERNEL(name##_##type##_d192, block, a, f, Kind::kind, T, 192, 192, 2, 112, 1, 2, false)
#define DIMS(name, kind, type, T, groups, keep_q)                                                            \
    KERNEL(name##_##type##_d64, MapParams, x, no_features, Kind::kind, T, 64, 64, groups, 128, 2, 3, keep_q) \
    KERNEL(name##_##type##_d80, MapParams, x, no_features, Kind::kind, T, 80, 80, groups, 112, 2, 2, keep_q) \
    KERNEL(name##_##type##_d96, MapParams, x, no_features, Kind::kind, T, 96, 96, groups, 96, 2, 2, keep_q)  \
    KERNEL(name##_##type##_d128, MapParams, x, no_features, Kind::kind, T, 128, 128, 2, 128, 2, 2, true)     \
    KERNEL(name##_##type##_d256, MapParams, x, no_features, Kind::kind, T, 256, 256, 2, 80, 1, 2, false)     \
    MLA(name, MapParams, x, no_features, kind, type, T)
#define INSTANCES(type, T)                                                                            \
    DIMS(fwd_sm90, plain, type, T, 3, false) DIMS(fwd_sm90_split, split, type, T, 2, true)            \
    FEATURES(_layout, layout, type, T, 3, true, 80) FEATURES(_shaped, shaped, type, T, 2, false, 64) \
    FEATURES(_softcap, softcap, type, T, 3, true, 80) FEATURES(_alibi, alibi, type, T, 3, true, 80)  \
    FEATURES(_bias, bias, type, T, 3, false, 64) FEATURES(_mask, mask, type, T, 3, false, 64)        \
    FEATURES(_keys, keys, type, T, 3, true, 64)                                                    \
    FEATURES(_dropout, dropout, type, T, 3, false, 64) FEATURES(, any, type, T, 2, false, 64)        \
    MLA(fwd_sm90_features_layout, FeatureParams, (const MapParams &)x, x.f, layout, type, T)
INSTANCES(bf16, BF16)
INSTANCES(f16, F16)
