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
//	Kind::layout     processes up to 32 packed sequences in the order of their lengths, longest first
//	Kind::mask       reads the mask while products are in flight
//	Kind::dropout    computes random words while products are in flight or, at dim 64, between exponentials, to save registers
//
// Tensor maps of packed tensors have batch 1. Tensor maps of page pools are
//
//	k, v  dim, page, kv_heads, pages    row, head, batch    64, the greatest common divisor of page and keys, 1, 1
#include "fwd_sm90_epilogue.cuh"
#include "fwd_sm90_fetch.cuh"
#include "fwd_sm90_scores.cuh"
#include "fwd_sm90_softmax.cuh"

// Computes the weights of the nth tile of keys, whose number is `tile`, and adds the product of the previous tile's weights
// and values to o. masked: the nth tile is an edge, so some of its pairs may be hidden.
template <class S, class Next> __device__ __forceinline__ void step(RowTile<S> &t, bool masked, int n, int tile, Next next) {
    Group<S> &g = t.g;
    t.start_scores();
    t.start_values();
    const int stage = g.k.stage;
    g.pass_turn(S::turn == Turn::issue, stage);
    t.prepare(n, tile, next);
    wgmma_wait<1>();
    g.release(g.k, g.sh.k_empty(g.k.stage));
    if (g.changes) t.adjust(n, tile, next);
    if (masked) t.hide(S::features ? tile : t.w.tile(n));
    t.maxima(masked || S::reads || S::biases || S::masks);
    wgmma_wait<0>();
    g.pass_turn(S::turn == Turn::values, stage);
    g.release(g.v, g.sh.v_empty(g.v.stage));
    t.exponentials(tile);
    t.drop(tile);
    t.round_weights();
    if (!S::drops || __any_sync(~0u, t.down[0] != 1 || t.down[1] != 1)) each<S::v_dim / 2>([&](int i) { t.o[i] *= t.down[i % 4 / 2]; });
}

// Like step, for the first tile of keys that the warpgroup's rows see. So there are no weights of an earlier tile. No row
// sees key `end` or a later key.
template <class S, class Next> __device__ __forceinline__ void first_step(RowTile<S> &t, int n, int tile, int end, Next next) {
    Group<S> &g = t.g;
    t.prefetch_side(tile);
    if (S::turn == Turn::begin && g.turned && g.group > 0) {
        // If the first warpgroup sees no keys, it passes the turn only after V has arrived. V is loaded after the next Q,
        // which needs the stage that the previous O occupies. So this warpgroup releases that stage before it waits.
        if (end <= 64 * g.group) g.release_o();
        barrier_wait(g.sh.turn(g.q.stage, g.group - 1), g.q.parity);
    }
    t.start_scores();
    g.release_o();
    t.prepare(n, tile, next);
    wgmma_wait<0>();
    g.pass_turn(S::turn == Turn::begin, g.q.stage);
    g.pass_turn(S::turn > Turn::begin, g.k.stage);
    g.release(g.k, g.sh.k_empty(g.k.stage));
    if (g.changes) t.adjust(n, tile, next);
    if (n < t.edges) t.hide(S::features ? tile : t.w.tile(n));
    t.maxima(true);
    t.exponentials(tile);
    t.drop(tile);
    t.round_weights();
}

// Releases the leading tiles of keys that begin at key `end` or later. The warpgroup's rows see no key of these tiles.
// Returns the number of released tiles.
template <class S> __device__ __forceinline__ int skip(RowTile<S> &t, int end) {
    Group<S> &g = t.g;
    auto tile_of = [&](int n) {
        if constexpr (S::lists)
            if (n > 0) return barrier_wait(g.sh.k_full(g.k.stage), g.k.parity), uniform(g.sh.slot(g.k.stage).tile) / 2;
        return n == 0 ? t.first : t.w.tile(n);
    };
    int n = 0;
#pragma unroll 1
    for (; n < t.count && tile_of(n) * S::keys >= end; n++) {
        g.release_o();
        barrier_wait(g.sh.k_full(g.k.stage), g.k.parity);
        g.await_turn(S::turn > Turn::begin, g.k.stage, g.k.parity); // waits, so that no turn is passed twice
        g.pass_turn(S::turn > Turn::begin, g.k.stage);
        g.release(g.k, g.sh.k_empty(g.k.stage));
        barrier_wait(g.sh.v_full(g.v.stage), g.v.parity);
        g.release(g.v, g.sh.v_empty(g.v.stage));
    }
    return uniform(n);
}

// compute is the body of a computing warpgroup.
template <class S> __device__ __forceinline__ void compute(const MapParams &a, const Features &f, Shared<S> sh, int group) {
    Group<S> g(a, f, sh, group);
    while (true) {
        barrier_wait(sh.q_full(g.q.stage), g.q.parity);
        volatile Work &w = sh.work(g.place.stage);
        const int4 extent = w.extent(), e = {uniform(extent.x), uniform(extent.y), uniform(extent.z), uniform(extent.w)};
        if (e.x < 0) break;
        volatile float most[2] = {-infinity, -infinity};
        RowTile<S> t(g, w, e, most);
        const int end = t.top_row < t.rows_end ? t.top_row + 64 + t.hi() : 0;
        int n = skip(t, end);
        if (n < t.count) {
            auto tile_at = [&](int n) { if constexpr (S::masks) return t.first - n; else if constexpr (S::finds) return w.tile(n); else return 0; };
            auto next = [&] { return tile_at(n + 1); };
            first_step(t, n, tile_at(n), end, next);
#pragma unroll 1
            for (n++; n < t.edges; n++) step(t, true, n, tile_at(n), next);
#pragma unroll 1
            for (; n < t.count; n++) step(t, false, n, t.open - n, [&] { return t.open - n - 1; });
            t.start_values();
            wgmma_wait<0>();
            g.release(g.v, sh.v_empty(g.v.stage));
        } else {
            g.await_turn(S::turn == Turn::begin, g.q.stage, g.q.parity);
            g.pass_turn(S::turn == Turn::begin, g.q.stage);
        }
        g.release_o();
        each<2>([&](int r) {
            t.l[r] += __shfl_xor_sync(~0u, t.l[r], 1);
            t.l[r] += __shfl_xor_sync(~0u, t.l[r], 2);
        });
        if constexpr (S::split) t.finish_part();
        else t.finish();
    }
    store_wait(); // shared memory must outlive the copies
}

template <class S> __device__ __forceinline__ void forward(const MapParams &a, const Features &f) {
    extern __shared__ char unaligned[];
    Shared<S> sh;
    sh.base = unaligned + (-shared_address(unaligned) & 1023); // the permutation of chunks repeats every 1024 bytes
    sh.at = uniform(shared_address(sh.base));
    const bool looks = cuts<S>(a.p, f);
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::q_stages; i++) barrier_init(sh.q_full(i), 1), barrier_init(sh.q_empty(i), S::groups + (looks ? 3 : S::finds ? 1 : 0));
        for (int i = 0; i < S::stages; i++) barrier_init(sh.k_full(i), 1), barrier_init(sh.v_full(i), 1), barrier_init(sh.v_raw(i), 1);
        for (int i = 0; i < S::stages; i++) barrier_init(sh.k_empty(i), 4 * S::groups), barrier_init(sh.v_empty(i), 4 * S::groups + (S::lists ? 3 : 0));
        if constexpr (S::finds) barrier_init(sh.found(), 1);
        for (int i = 0; i < S::turns * (S::groups - 1); i++) barrier_init(sh.turn(0, i), 1);
        barrier_fence();
    }
    if constexpr (S::sorts)
        if (threadIdx.x / 32 == 1 && f.row_slots && a.p.batch <= 32) sort<S>(a.p, f, sh.order());
    __syncthreads(); // the barriers exist
    const int group = uniform(threadIdx.x / 128);
    if (group == 0) {
        registers_shrink<S::fetch_registers>();
        if (threadIdx.x < (S::features ? 32 : 1)) fetch<S>(a, f, sh);
        if (threadIdx.x >= 32 && (looks || S::finds && threadIdx.x < 64)) look<S>(a, f, sh);
    } else {
        registers_grow<S::compute_registers>();
        compute<S>(a, f, sh, group - 1);
    }
}

#define KERNEL(name, block, a, f, ...)                                                                                                 \
    using name##_shape = Shape<__VA_ARGS__>;                                                                                           \
    extern "C" __device__ Plan name##_plan = {name##_shape::threads, name##_shape::shared, name##_shape::rows, name##_shape::keys};     \
    extern "C" __global__ void __launch_bounds__(name##_shape::threads, 1) name(const __grid_constant__ block x) {                      \
        forward<name##_shape>(a, f);                                                                                                   \
    }
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
