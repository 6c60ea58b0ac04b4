// Backward pass for f16 and bf16 by warpgroup products. With P = exp(S*scale - LSE)
// for the pairs of the band and 0 for the others, the main kernel equals
//
//	for each batch b, key head, tile of keys                // a block
//		for each query head h of the group, tile of rows    // the last rows first; groups: heads inside, up: the first rows first
//			S^T = K Q^T;  dP^T = V dO^T
//			dS^T = P^T * (dP^T - delta)
//			dV += P^T dO;  dK += dS^T Q;  dq_sum[h] += dS K
//		dK *= scale
//
// One call is three launches, in this order; a grid of 0 is not launched.
//
//	bwd_sm90_delta_<dtype>     grid max(1, B*H*ceil(N/64))   LSE and delta; zeroes the counters
//	bwd_sm90_<dtype>_d<dim>    grid B*G*ceil(M/plan.keys)    dK, dV; adds to dq_sum (twice the grid for 192, 192 and 256)
//	bwd_sm90_finish_<dtype>    grid B*H*ceil(N/64)           dQ = dq_sum * scale
//
// In place of the main kernel, as backward.go chooses, go bwd_sm90_groups_<dtype>_d<dim>, of 64 and 128, for groups of heads,
// bwd_sm90_up_<dtype>_d64, bwd_sm90_wide_<dtype>_d256, where all blocks run at the same time bwd_sm90_once_<dtype>_d<dim>, of 64 and 128, and, where neither D nor DV is more than 80 or 96, bwd_sm90_columns80_<dtype>_d128
// and bwd_sm90_columns96_<dtype>_d128: of the columns beyond, which are 0, only dQ is computed. And
// bwd_sm90_features_groups and _up for bwd_sm90_features_layout.
//
// Or a block walks one of p.splits parts of a group's query heads, and the sums of the parts are added in order. They
// are [B, G, splits, M, <dim> or <v_dim>] float32, dK without the scale:
//	bwd_sm90_parts_<dtype>_d<dim>  p.splits times the grid  to part_o and part_lse
//	bwd_sm90_sums_<dtype>          grid 2*B*G*ceil(M/64)    dK, dV
//
// Or two blocks, a cluster, share a tile of keys: one has the even tiles of rows, the other the odd ones, whose sums of dQ
// are apart anyhow. At the end one gets the other's dK, the other its dV, through shared memory:
//	bwd_sm90_pairs_<dtype>_d<dim>  twice the grid           for 64 and 128
//
// The second and the third may be launched to start early, as they wait for the one
// before (programmatic dependent launch). The first and the last take Params, the other
// MapParams, by value. <dim> is 64, 128, 192 or 256, the least that holds D and DV, or 192_dv128; features know
// none of 192. bwd_wide.cuh has those. Workspace,
// with R = N rounded up to 128: delta [2][B, H, R], LSE in base 2 and delta; dq_sum
// B*H*R*<dim>; turn 1 + B*H*R/64*<dim>/64 ints, the ticket and a counter for each 64x64
// block of dq_sum; with p.skew, twice dq_sum and its counters. Maps of 16-bit elements, rank 4, 128-byte swizzle, not interleaved, 0 outside:
//
//	      dims, innermost first           strides in bytes    box
//	q     dim, q_len, heads, batch        row, head, batch    64, plan.rows, 1, 1
//	k     dim, kv_len, kv_heads, batch    row, head, batch    64, plan.keys, 1, 1
//	v     v_dim, kv_len, kv_heads, batch  row, head, batch    64, plan.keys, 1, 1
//	dout  v_dim, q_len, heads, batch      row, head, batch    64, plan.rows, 1, 1
//
// Their addresses and strides are multiples of 16 bytes; the stride of a dimension of
// size 1 may be any such. Without rows, q and dout are not read.
//
// Each of two warpgroups owns 64 keys: their K and V as operands of S^T and dP^T,
// which leave P^T and dS^T in registers in the layout of operands of dV and dK, and
// their sums. dS K needs the keys of both, so dS goes through shared memory, and each
// computes a 64x64 block of it. A further warpgroup moves data: two of its warps fetch,
// two add a block of dQ each to dq_sum. Or one fetches and one ends the turns of both, as a release takes as long as a product
// of the tile: the lanes that add take the next turn sooner, and one counter does for both. For D 256 the registers hold half of the columns
// of the sums: two blocks compute all of S and dP, and each its half of the rest. Shared
// memory has no room for dQ then: the threads add it when the warp says that it is their turn.
//
// Products are in flight while the warpgroup computes: dP under the exponentials; dV
// and dK, 16 rows at a time, under the next exponentials and dS; the next S while dQ
// goes to shared memory (Shah et al. 2024, section 3.2, do so in the forward pass).
// LSE and delta are loaded ahead, for many rows at once, as no load passes a product. The
// fence between dQ in shared memory and its copy takes longer than the stores, so it is
// executed by the lane that copies: it need only lie on the path between them.
//
// The first key block of a head stores its dq_sum tile; later ones accumulate, in key
// order when deterministic. Each block takes a ticket and waits for lower tickets only, so
// the block that it waits for has started. All walk from the last rows on, one behind the
// other, so waits are short. Up, the last keys have the first tickets, and each block begins at its own first rows: those that
// it waits for have begun further up, and are ahead of it. Blocks that stay draw one ticket after the other, and fetch while the
// tile of keys before is still written: the grid is what the multiprocessors hold, or more.
//
// But the last block of a head waits until all before it have been at the last rows, which is much of the time where blocks
// are few and all rows see all keys. There each begins at rows of its own, goes to the first ones and on from the last
// ones, and nobody waits: the shift of DASH (arXiv 2601.21824), in which blocks may wait for any other of
// their head, and must all run at once. Here dQ has two sums for that: one for the rows from the block's first on down, one for those that it comes to from
// the last ones. So blocks come to each sum in the order of keys, and still wait for lower tickets only. The last kernel adds
// both. Blocks of instances for features or groups all begin at the first rows, or the last ones.
//
// Blocks that all run at the same time go by their indexes, in whose order they start, not by tickets. So they fetch before
// the kernel of delta has ended.
//
// Pairs off the band: P and dS are selected to be 0. 0 * NaN would still leak through
// the other operand: dO, Q in dV, dK and K in dQ. These lose their non-finite elements
// in tiles with hidden pairs. A visible pair still carries NaN: LSE and delta of a row
// tell of Q and dO, `odd` of K, and what dO lost is added to dV.
//
// Instances for features, bwd_sm90_features_<dtype>_d<dim> and so on, take FeatureParams, of
// which MapParams is the beginning. Maps of packed tensors have batch 1; rows and keys of the
// next sequence that come with a tile count as hidden, as does all under a mask that may be. Of up to 32 sequences
// the longest go first, so that no long one is left for the end.
// One that changes scores alone, or drops weights, has an instance of its own: branches in the loop keep
// the compiler from laying one instruction beside the other. What a tile reads of a bias or a mask is copied
// to shared memory a tile, or two parts of one, ahead; the random words are made while the next S is
// in flight, when dP leaves registers free. Where a mask is the same for all rows, each block looks through it up to its own keys:
// one whose keys are all hidden writes zeros and takes no part in the sums of dQ. dBias leaves by rows of dS, which lie in shared memory anyhow.
#include "bwd_lanes.cuh"

// A warpgroup whose keys are all behind the last one: of all products it has but its part of dQ, of the other one's keys.
template <class S> __device__ __forceinline__ void compute_dq(Shared<S> sh, int group) {
    volatile Work &w = sh.work();
    const int thread = threadIdx.x % 128, lane = threadIdx.x % 32;
    const int begin = __shfl_sync(~0u, w.before, 0), end = begin + __shfl_sync(~0u, w.steps, 0);
    auto give = [&](uint32_t empty) { if (lane == 0) barrier_arrive(empty); };
    for (int i = thread; i < S::row_panel / 8; i += 128) { // dS of its keys
        const int buffer = i / (S::row_panel / 16), at = i % (S::row_panel / 16) * 16;
        store_shared(sh.ds(buffer) + group * S::row_panel + at, 0, 0, 0, 0);
    }
    async_fence(); // the products of both see zeros
    if (begin < end) barrier_wait(sh.k_full(0), w.loads % 2);
#pragma unroll 1
    for (int n = begin; n < end; n++) {
        float dq[32];
        meeting_barrier(1, 256); // the other one has written its own
        const int row_block = S::own_panels == 1 ? group : 0, panel = S::own_panels == 1 ? 0 : group;
        const uint64_t x = descriptor(sh.ds(n % 2) + row_block * 8192, 16), y = descriptor(sh.k(0) + panel * S::key_panel, 16);
        forget(dq);
        wgmma_fence();
        each<4>([&](int i) { wgmma<typename S::T, 1>(dq, x + i * 32 / 16, y + i * 2048 / 16, i > 0); });
        wgmma_commit(), wgmma_wait<0>();
        each<32>([&](int i) { asm volatile("" : "+f"(dq[i])); }); // the compiler would wait again
        give(sh.q_empty(0, n % S::stages)), give(sh.q_empty(1, n % S::stages));
        const int slot = group + n % S::dq_buffers * S::dq_blocks;
        barrier_wait(sh.dq_empty(slot), n / S::dq_buffers % 2 ^ 1);
        each<8>([&](int i) { store_shared(sh.dq(slot) + thread / 32 * 4096 + i * 512 + lane * 16, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]); });
        __syncwarp();
        give(sh.dq_full(slot));
    }
    meeting_barrier(1, 256); // nobody reads K and V any more
    if (begin == end) return;
    give(sh.k_empty(0));
    if (S::frees_v) give(sh.k_empty(1));
}

// A warpgroup that computes.
template <class S> __device__ __forceinline__ void compute(const MapParams &a, const Features &f, Shared<S> sh, int group) {
    using T = typename S::T;
    const Params &p = a.p;
    const Bounds<S> e{p, sh};
    volatile Work &w = sh.work();
    auto uniform = [](int x) { return __shfl_sync(~0u, x, 0); }; // as the compiler must know of what steers the loops
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = threadIdx.x % 32;
    const int key0 = uniform(w.key0), from = uniform(w.from), to = uniform(w.to), steps = uniform(w.steps), first_panel = uniform(w.share) * S::own_panels;
    // Where the lane's row of four 8x8 blocks of dS^T goes: as rows of dS, chunks of 8 keys.
    const uint32_t ds_place = group * S::row_panel + (lane / 16 * 8 + lane % 8) * 128 + ((warp * 2 + lane / 8 % 2 ^ lane % 8) << 4);
    if constexpr (S::stays && !S::features) // else what lies behind the last key may be another sequence's
        if (group && key0 + 64 >= p.kv_len) return compute_dq(sh, group);
    float dk[S::columns / 2], dv[S::columns / 2], s[S::rows / 2], dp[S::rows / 2], dq[32], stat[S::rows / S::parts / 4];
    uint32_t weights[S::rows / 16][4], slopes[S::rows / 16][4];
    each<S::columns / 2>([&](int i) { dk[i] = dv[i] = 0; });
    auto give = [&](uint32_t empty) { if (lane == 0) barrier_arrive(empty); };
    auto keep = [](uint32_t (&x)[S::rows / 16][4]) { // operands in flight are not protected: their registers are in use up to here
        each<S::rows / 4>([&](int i) { asm volatile("" ::"r"(x[i / 4][i % 4])); });
    };
    const int begin = S::stays ? uniform(w.before) : 0, end = begin + steps;
    Ring<S::stages> ring = ring_at<S>(0, begin);
    int tile = S::skews ? uniform(w.begin) : from, buffer = S::stays ? begin % 2 : 0; // of dS
    [[maybe_unused]] const int heads = uniform(last_head<S>(p, w) - first_head<S>(p, w) + 1);
    [[maybe_unused]] int left = heads; // of the tile of rows
    // With features: the first rows of the tiles that have no hidden pairs, read once.
    [[maybe_unused]] int whole_from = 0, whole_to = 0;
    if constexpr (S::features) {
        whole_from = uniform(key0 + S::keys - 1 - e.hi());
        if constexpr (S::marks)
            if (!uniform(sh.marks().whole)) whole_from = kReach; // none
        whole_to = uniform(key0 + S::keys > e.keys() ? -S::rows : min(e.rows() - S::rows, key0 - (S::rows - 1) - e.lo()));
    }
    auto cut = [&] { // whether the tile has hidden pairs of rows and keys that are there
        const int row0 = tile * S::rows;
        if constexpr (S::features) return row0 < whole_from || row0 > whole_to || S::knows_mask && !S::sure && f.mask.data;
        // Rows behind the last one are zeros, whose LSE and delta are 0: they add nothing to what is written.
        else return key0 < min(row0 + S::rows, e.rows()) - 1 + e.lo() || min(key0 + S::keys, e.keys()) - 1 > row0 + e.hi();
    };
    auto stats = [&](int part) { return (const float *)(sh.base + (sh.stats(part, ring.stage) - sh.at)); }; // [rows], LSE or delta
    auto start = [&](bool there) { // S, in flight
        if (there) barrier_wait(sh.q_full(0, ring.stage), ring.parity);
        scores<S, S::panels, S::inner>(s, sh.k(0), sh.q(0, ring.stage), group);
    };
    auto sums = [&](float (&to)[S::columns / 2], uint32_t (&x)[4], uint32_t rows, int i) { // to += x dO or x Q for 16 rows, in flight
        wgmma_fence();
        wgmma<T, 1>(to, x, descriptor(rows + first_panel * S::row_panel, S::row_panel) + i * 2048 / 16, true);
        wgmma_commit();
    };
    if (steps) {
        barrier_wait(sh.k_full(0), S::stays ? w.loads % 2 : 0);
        if (w.hides) clean_keys(sh, w, group, thread);
        start(true);
        wgmma_wait<0>();
        barrier_wait(sh.k_full(1), S::stays ? w.loads % 2 : 0);
    }
    int head = first_head<S>(p, w);
    const bool odd = uniform(w.odd[group]);
    [[maybe_unused]] const bool ends = key0 + S::keys > e.keys();
    // What changes scores: an instance for one feature is sure of it.
    [[maybe_unused]] const bool capped = S::knows_cap && (S::sure || f.cap_in != 0), leans = S::knows_alibi && (S::sure || f.slopes.data);
    [[maybe_unused]] const bool biased = S::knows_bias && (S::sure || f.bias.data), drops = S::knows_dropout && (S::sure || f.drop_below);
    [[maybe_unused]] const bool staged = S::bias_bytes && biased && !f.bias_wide && aligned16(f.bias);
    [[maybe_unused]] auto ask_bias = [&](int head, int row) { // in time for when it is read: two parts of a tile ahead
        if (staged) bias_chunk<S::part_rows>(sh.bias(group * 4 + warp) + row / S::part_rows % 2 * S::part_rows * 32, p, f, w.batch, head, row, key0 + group * 64 + warp * 16, lane);
    };
    [[maybe_unused]] const bool staged_hides = S::mask_bytes && (((uint64_t)f.mask.data | f.mask.batch | f.mask.head | f.mask.row) & 15) == 0;
    [[maybe_unused]] auto ask_mask = [&](int head, int row) {
        if (staged_hides) mask_chunk<S::rows>(sh.mask(group * 4 + warp), p, f.mask, w.batch, head, row, key0 + group * 64 + warp * 16, lane);
    };
    // Of ALiBi: the slope, and how far the lane's first key is from its first row in the first tile.
    [[maybe_unused]] float lean = 0;
    [[maybe_unused]] int here = 0;
    [[maybe_unused]] auto load_slope = [&](int head) {
        if (leans) lean = -slope_log2(((const float *)f.slopes.data)[w.batch * f.slopes.batch + head * f.slopes.head]);
    };
    if constexpr (S::knows_alibi) here = key0 + group * 64 + fresh(thread) / 32 * 16 + fresh(lane) / 4 - fresh(lane) % 4 * 2 - e.diagonal(), load_slope(head);
    [[maybe_unused]] const bool writes = S::knows_bias && f.dbias_apart && first_panel == 0, writes_tiles = writes && !f.dbias_wide && aligned16(f.dbias);
    [[maybe_unused]] uint32_t kept[2] = {}; // by dropout, of the lane's two keys
    [[maybe_unused]] auto keeps = [&](int i, int j) { return kept[j / 2 % 2] & 1u << kept_bit<S::rows>(i, j / 4 * 2 + j % 2); }; // of 16 rows
    [[maybe_unused]] auto draw = [&](int head) { kept_pairs<S::rows>(kept, f, w.batch, head, tile * S::rows + fresh(lane) % 4 * 2, key0 + group * 64 + fresh(thread) / 32 * 16 + fresh(lane) / 4); };
    if constexpr (S::bias_bytes > 0)
        if (steps) ask_bias(head, tile * S::rows), ask_bias(head, tile * S::rows + S::part_rows);
    if constexpr (S::mask_bytes > 0)
        if (steps) ask_mask(head, tile * S::rows);
    if constexpr (S::knows_dropout)
        if (steps && drops) draw(head);
    auto visit = [&](int n, auto edge, bool hidden) { // the n-th tile; hidden: pairs are, or K was not finite; edge: or keys are not there
        constexpr int groups = S::rows / 16, size = groups / S::parts; // of 16 rows
        auto load_stats = [&](int which, int part) { // of all rows of a part, ahead of time, as loads do not pass the products
            each<size>([&](int i) {
                const float2 *from = (const float2 *)stats(which) + (part * size + i) * 8 + lane % 4, x = from[0], y = from[4];
                stat[4 * i] = x.x, stat[4 * i + 1] = x.y, stat[4 * i + 2] = y.x, stat[4 * i + 3] = y.y;
            });
        };
        load_stats(0, 0);
        [[maybe_unused]] auto natural_lse = [&] {
            const int all = last_head<S>(p, w) - first_head<S>(p, w) + 1, nth = n - (S::stays ? (int)w.before : 0);
            const int head = first_head<S>(p, w) + (S::by_rows ? nth % all : nth / (w.steps / all)); // in no register
            return NaturalLSE(p.lse, e.q_batch(), head, e.q0() + tile * S::rows, e.rows() - tile * S::rows);
        };
        [[maybe_unused]] const float away = here - tile * S::rows;
        barrier_wait(sh.q_full(1, ring.stage), ring.parity);
        scores<S, S::panels, S::inner>(dp, sh.k(1), sh.q(1, ring.stage), group);
        const bool far = any_far<S>(stats(0)); // weights of some row are to be computed in natural units
        uint32_t shown[2]; // by columns, of the lane's two keys
        [[maybe_unused]] auto hide_ends = [&] { // keys behind the last one, which are zeros: P = 0, lest it overflow
            const int key = key0 + group * 64 + fresh(thread) / 32 * 16 + fresh(lane) / 4;
            each<S::rows / 2>([&](int i) { s[i] = key + i / 2 % 2 * 8 < e.keys() ? s[i] : -infinity; });
        };
        if (edge && !S::features && !S::ends_in_both && !hidden) hide_ends();
        else if (edge) {
            clean_rows(sh, w, ring.stage, group, thread);
            const int row = tile * S::rows + fresh(lane) % 4 * 2, key = key0 + group * 64 + fresh(thread) / 32 * 16 + fresh(lane) / 4;
            auto hide = [&](int half, uint32_t seen) {
                auto each_pair = [&](auto f) { each<S::rows / 4>([&](int i) { f(i, s[i / 2 * 4 + 2 * half + i % 2]); }); };
                if (odd) {
                    const float lost = sh.odd()[key + 8 * half - key0];
                    each_pair([&](int i, float &x) { x += lost; });
                }
                if constexpr (!S::changes) each_pair([&](int i, float &x) { x = seen & 1u << i ? x : -infinity; });
            };
            each<2>([&](int half) {
                const int k = key + 8 * half;
                if constexpr (S::knows_mask && S::sure) {
                    shown[half] = ~0u;
                    if (!cut()) return;
                }
                uint32_t seen = k < e.keys() ? columns_before(min(k - e.lo() + 1, e.rows()) - row) & ~columns_before(k - e.hi() - row) : 0;
                if constexpr (S::marks)
                    if (!(sh.marks().own[(k - key0) / 32] >> (k - key0) % 32 & 1)) seen = 0;
                shown[half] = seen;
                if constexpr (!S::knows_mask) hide(half, seen);
            });
            if constexpr (S::knows_mask) {
                if (staged_hides) {
                    copy_wait<0>(), __syncwarp();
                    staged_mask<S::rows>(shown, sh.mask(group * 4 + warp), lane);
                    const bool ends = tile == to;
                    if (n + 1 < end) ask_mask(head + ends, (ends ? from : tile + S::step) * S::rows);
                } else if (S::sure || f.mask.data) mask_tile<S>(shown, p, f, w.batch, head, tile * S::rows, key0 + group * 64 + fresh(thread) / 32 * 16);
                hide(0, shown[0]), hide(1, shown[1]);
            }
        }
        if (S::ends_in_both && ends && !edge) hide_ends();
        if constexpr (!S::changes)
            if (far) far_products(s, p, stats(0), natural_lse());
        [[maybe_unused]] bool large = false; // not all scores of the warp are small beside the softcap
        if (capped) {
            float most = 0;
            each<S::rows / 2>([&](int i) { most = fmaxf(most, fabsf(s[i])); });
            large = __any_sync(~0u, !(most * f.cap_in < 0.4f));
        }
        auto changed = [&](int i) { // the same where scores change. S becomes P times the softcap's slope, with the sign - where P is dropped
            const int own = key0 + group * 64 + fresh(thread) / 32 * 16 + fresh(lane) / 4, walked = tile * S::rows + 16 * i + fresh(lane) % 4 * 2;
            const float *lse = stat + i % size * 4;
            float x[8], cap[8]; // P, the slopes
            if (S::changes && far) {
                each<8>([&](int j) { x[j] = s[8 * i + j]; });
                const Flat<8> both{x};
                Sequence seq;
                seq.diagonal = e.diagonal();
                const auto natural = natural_lse();
                Scores<T>(p, f, seq, w.batch, head).template far_weights<true>(both, own, walked, [&](int n, int c) { return natural(16 * i + fresh(lane) % 4 * 2 + 8 * n + c % 2); },
                                                                               [&](int n, int c, float d) { cap[4 * n + c] = d; });
            } else if (capped) {
                each<8>([&](int j) { x[j] = s[8 * i + j] * f.cap_in; });
                if (large) each<8>([&](int j) { x[j] = tanh_of(x[j], cap[j]); });
                else each<8>([&](int j) { x[j] = tiny_tanh(x[j]), cap[j] = fmaf(-x[j], x[j], 1); });
                each<8>([&](int j) { x[j] = fmaf(x[j], f.cap_out, -lse[j / 4 * 2 + j % 2]); });
            } else {
                each<8>([&](int j) { x[j] = fmaf(s[8 * i + j], p.scale_log2, -lse[j / 4 * 2 + j % 2]); });
            }
            if (biased && !(S::changes && far)) {
                const Flat<8> both{x};
                const Scores<T> scores(p, f, Sequence{}, w.batch, head);
                if (staged) staged_bias<T>(x, sh.bias(group * 4 + warp), i * 16 % S::bias_rows, lane);
                else if (f.bias_wide) scores.template add_bias<true, float, false>(both, own, walked);
                else scores.template add_bias<true, T, false>(both, own, walked);
            }
            if (leans && !(S::changes && far)) each<8>([&](int j) { x[j] = fmaf(lean, fabsf(away - (16 * i + j / 4 * 8 + j % 2 - j / 2 % 2 * 8)), x[j]); });
            if (!(S::changes && far)) each<8>([&](int j) { x[j] = exp2_approx(x[j]); });
            if constexpr (S::changes)
                if (edge) each<8>([&](int j) { if (!(shown[j / 2 % 2] & 1u << (4 * i + j / 4 * 2 + j % 2))) x[j] = cap[j] = 0; });
            auto goes = [&](int j) { return drops && !keeps(i, j); };
            each<4>([&](int j) { weights[i][j] = pack<T>(goes(2 * j) ? 0 : x[2 * j], goes(2 * j + 1) ? 0 : x[2 * j + 1]); });
            sums(dv, weights[i], sh.q(1, ring.stage), i);
            if (capped) each<8>([&](int j) { x[j] *= cap[j]; });
            each<8>([&](int j) { s[8 * i + j] = x[j]; });
        };
        auto exponentials = [&](int i) { // P of 16 rows, in place of S; dV += P dO
            if constexpr (S::shapes) return changed(i);
            each<8>([&](int j) { s[8 * i + j] = exp2_approx(fmaf(s[8 * i + j], p.scale_log2, -stat[i % size * 4 + j / 4 * 2 + j % 2])); });
            each<4>([&](int j) { weights[i][j] = pack<T>(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]); });
            sums(dv, weights[i], sh.q(1, ring.stage), i);
        };
        auto store_slopes = [&](int i) { // dK += dS Q
            store_matrix_transposed(sh.ds(buffer) + ds_place + i * 2048, slopes[i]);
            if (i + 1 == groups) async_fence(); // the product of both warpgroups' dS sees it
            sums(dk, slopes[i], sh.q(0, ring.stage), i);
        };
        auto gradients = [&](int i) { // dS of 16 rows, in place of dP; dK += dS Q
            auto delta = [&](int j) { return stat[i % size * 4 + j / 4 * 2 + j % 2]; };
            if (drops) each<8>([&](int j) { dp[8 * i + j] = s[8 * i + j] * fmaf(keeps(i, j) ? dp[8 * i + j] : 0, f.keep, -delta(j)); });
            else each<8>([&](int j) { dp[8 * i + j] = s[8 * i + j] * (dp[8 * i + j] - delta(j)); });
            if (edge) each<8>([&](int j) { if (s[8 * i + j] == 0) dp[8 * i + j] = 0; }); // hidden pairs, whatever dP and delta are
            if constexpr (S::knows_bias)
                if (writes && !writes_tiles) store_pairs<T>(p, f, &dp[8 * i], edge, w.batch, head, tile * S::rows + 16 * i + fresh(lane) % 4 * 2, key0 + group * 64 + fresh(thread) / 32 * 16 + fresh(lane) / 4);
            each<4>([&](int j) { slopes[i][j] = pack<T>(dp[8 * i + 2 * j], dp[8 * i + 2 * j + 1]); });
            store_slopes(i);
        };
        each<S::parts>([&](int part) {
            if (part) load_stats(0, part);
            if constexpr (S::bias_bytes > 0) copy_wait<1>(), __syncwarp();
            each<size>([&](int i) { exponentials(part * size + i); });
            if constexpr (S::bias_bytes > 0) {
                const bool ends = tile == to;
                if (part + 2 < S::parts) ask_bias(head, tile * S::rows + (part + 2) * S::part_rows);
                else if (n + 1 < end) ask_bias(head + ends, (ends ? from : tile + S::step) * S::rows + (part + 2 - S::parts) * S::part_rows);
                else copy_commit(); // nothing, as the wait counts
            }
            load_stats(1, part);
            if (part == 0) wgmma_wait<size>(); // dP is there
            each<size>([&](int i) { gradients(part * size + i); });
        });
        meeting_barrier(1, 256); // both have written theirs; and the product of the tile before is over
        {
            const int row_block = S::own_panels == 1 ? group : 0, panel = S::own_panels == 1 ? 0 : first_panel + group;
            const uint64_t x = descriptor(sh.ds(buffer) + row_block * 8192, 16), y = descriptor(sh.k(0) + panel * S::key_panel, 16);
            forget(dq);
            wgmma_fence();
            each<8>([&](int i) { wgmma<T, 1>(dq, x + (i / 4 * S::row_panel + i % 4 * 32) / 16, y + i * 2048 / 16, i > 0); });
            wgmma_commit();
        }
        if constexpr (S::knows_bias)
            if (writes_tiles) store_tile<S>(p, f, sh.base + (sh.ds(buffer) - sh.at) + group * S::row_panel, w.batch, head, tile * S::rows, key0 + group * 64, thread);
        const int stage = ring.stage;
        [[maybe_unused]] const int done = tile;
        if constexpr (S::stays) ring.stage = (n + 1) % S::stages, ring.parity = (n + 1) / S::stages % 2, buffer = (n + 1) % 2;
        else ring.next(), buffer ^= 1;
        if constexpr (!S::by_rows) tile = tile == to ? from : tile + S::step;
        else if (--left == 0) left = heads, tile += S::step;
        wgmma_wait<1>();
        keep(weights), keep(slopes);
        give(sh.q_empty(0, stage)), give(sh.q_empty(1, stage));
        start(n + 1 < end); // after the last tile, of whatever is there: for nobody
        if constexpr (S::knows_dropout)
            if (drops) draw(head + (done == to));
        wgmma_wait<1>();
        const int slot = group + n % S::dq_buffers * S::dq_blocks; // of dQ
        barrier_wait(sh.dq_empty(slot), n / S::dq_buffers % 2 ^ S::staged);
        if constexpr (S::staged) {
            each<8>([&](int i) { store_shared(sh.dq(slot) + warp * 4096 + i * 512 + lane * 16, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]); });
        } else {
            float *to = p.dq_sum + block_of<S>(p, w, head, done, group) * 4096 + warp * 1024 + lane * 4;
            const int before = earlier<S>(e, w, done);
            each<8>([&](int i) {
                if (before == 0) *(float4 *)(to + i * 128) = {dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]};
                else add_global4(to + i * 128, {dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]});
            });
        }
        if (S::by_rows) head = left == heads ? head - heads + 1 : head + 1;
        else if (tile == (S::skews ? w.begin : from)) { // read again, as registers are few
            head++;
            if constexpr (S::knows_alibi)
                if (n + 1 < end) load_slope(head);
        }
        __syncwarp();
        give(sh.dq_full(slot));
        wgmma_wait<0>();
    };
#pragma unroll 1
    for (int n = begin; n < end; n++) {
        const bool hidden = odd || cut(), edge = hidden || !S::features && !S::ends_in_both && ends;
        if constexpr (S::knows_mask && S::sure) visit(n, Constant<true>(), true);
        else if constexpr (!S::two_bodies) visit(n, edge, hidden);
        else if (edge) visit(n, Constant<true>(), hidden);
        else visit(n, Constant<false>(), false);
    }
    meeting_barrier(1, 256); // nobody reads K and V any more
    if constexpr (!S::stays && !S::once) launch_dependents(); // else its blocks would crowd on the first multiprocessors that are free
    const bool some = !S::stays || uniform(w.steps); // else nothing was fetched: zeros leave, and the next K and V may be there
    if constexpr (S::stays)
        if (some) {
            give(sh.k_empty(0));
            if (S::frees_v) give(sh.k_empty(1));
        }

    [[maybe_unused]] auto part_of = [&](float *sums, int key) { return sums + ((((int64_t)w.batch * p.kv_heads + w.kv_head) * p.splits + w.part) * p.kv_len + key) * S::dim + first_panel * 64; };
    if constexpr (S::split)
        each<2>([&](int r) {
            const int key = key0 + group * 64 + warp * 16 + 8 * r + lane / 4, at = lane % 4 * 2;
            if (key >= p.kv_len) return;
            float *to_k = part_of(p.part_o, key) + at, *to_v = part_of(p.part_lse, key) + at;
            each<S::columns / 8>([&](int i) {
                *(float2 *)(to_k + 8 * i) = {dk[4 * i + 2 * r], dk[4 * i + 2 * r + 1]};
                *(float2 *)(to_v + 8 * i) = {dv[4 * i + 2 * r], dv[4 * i + 2 * r + 1]};
            });
        });
    [[maybe_unused]] const bool of_values = S::pair && cluster_rank();
    [[maybe_unused]] bool lost = false; // by either block of a pair
    if constexpr (S::pair) {
        if (of_values) lost = meet<S>(w, sh, dv, dk, group);
        else lost = meet<S>(w, sh, dk, dv, group);
    }
    // dK and dV leave through the warpgroup's rows of K and V; or of dS, as the next K and V come.
    auto home = [&](int part, int panel) -> uint32_t {
        if (!S::stays || part == 1 && !S::frees_v) return sh.k(part) + panel * S::key_panel + group * 8192;
        return sh.ds(panel) + group * S::row_panel + part * 8192;
    };
    if constexpr (!S::split) each<S::columns / 16>([&](int i) {
        const int l = lane;
        const uint32_t at = (warp * 16 + l % 16) * 128 + ((i % 4 * 2 + l / 16 ^ l % 8) << 4);
        const float kept = S::knows_dropout ? f.keep : 1;
        auto pair = [&](const float (&x)[S::columns / 2], int j, float c) { return pack<T>(x[8 * i + 2 * j] * c, x[8 * i + 2 * j + 1] * c); };
        if (!S::pair || !of_values) store_matrix(home(0, i / 4) + at, pair(dk, 0, p.scale), pair(dk, 1, p.scale), pair(dk, 2, p.scale), pair(dk, 3, p.scale));
        if (some && (!S::pair || of_values)) store_matrix(home(1, i / 4) + at, pair(dv, 0, kept), pair(dv, 1, kept), pair(dv, 2, kept), pair(dv, 3, kept));
    });
    named_barrier(2 + group, 128); // all of the warpgroup have written theirs
    auto takes_part = [&](int head, int i, int key) {
        if constexpr (S::knows_mask || S::marks) return key < e.keys() && Scores<T>(p, f, Sequence{}, w.batch, head).takes_part(i, key);
        else return !S::features || key < e.keys();
    };
    auto each_tile = [&](auto visit) { // of rows; also those of the other block of a pair
        if constexpr (S::pair) {
            for (int head = first_head<S>(p, w), n = p.heads / p.kv_heads; n > 0; n--, head++)
                for (int tile = 0; tile * S::rows < e.rows(); tile++) visit(head, tile);
        } else walk<S>(p, w, visit);
    };
    if (S::pair ? of_values && lost : w.lost) // what was taken out of dO
        each_tile([&](int head, int tile) {
            for (int r = tile * S::rows; r < min((tile + 1) * S::rows, e.rows()); r++) {
                if (usual(p.delta[((int64_t)(p.batch + w.batch) * p.heads + head) * padded_rows(p) + r])) continue;
                for (int i = thread; i < 64 * S::columns; i += 128) {
                    const int row = i / S::columns, own = i % S::columns, column = w.share * S::columns + own, j = key0 + group * 64 + row;
                    const float x = column < p.v_dim ? widen<T>(row_of(p.dout, e.q_batch(), head, e.q0() + r)[column]) : 0;
                    const bool adds = !finite(x) && j >= r + e.lo() && j <= r + e.hi() && takes_part(head, r, j);
                    if constexpr (S::split) {
                        if (adds && j < p.kv_len) part_of(p.part_lse, j)[own] += x;
                        continue;
                    }
                    uint16_t *sum = (uint16_t *)(sh.base + (home(1, own / 64) - sh.at) + row * 128 + ((own / 8 ^ row) % 8 << 4)) + own % 8;
                    if (adds) *sum = pack<T>(widen<T>(*sum) + x, 0);
                }
            }
            named_barrier(2 + group, 128); // the next ones may add to the same
        });
    auto write = [&](const View &v, int part, int dim) {
        const bool aligned = aligned16(v);
        for (int i = thread; i < 8 * S::columns; i += 128) {
            const int row = i / (S::columns / 8), chunk = i % (S::columns / 8), at = row * 128 + ((chunk ^ row) % 8 << 4);
            const int j = key0 + group * 64 + row, column = w.share * S::columns + 8 * chunk;
            if (j < e.key_end()) store8(row_of(v, e.kv_batch(), w.kv_head, e.key0() + j) + column, some ? *(const uint4 *)(sh.base + (home(part, chunk / 8) - sh.at) + at) : uint4{}, dim - column, aligned);
        }
    };
    if constexpr (S::split) return;
    if (!S::pair || !of_values) write(p.dk, 0, p.dim);
    if (!S::pair || of_values) write(p.dv, 1, p.v_dim);
    if constexpr (S::pair) cluster_wait(); // the other block is done with this one's shared memory
}

template <class S> __device__ __forceinline__ void backward(const MapParams &a, const Features &f) {
    extern __shared__ char unaligned[];
    Shared<S> sh;
    sh.base = unaligned + (-shared_address(unaligned) & 1023); // the permutation of chunks repeats every 1024 bytes
    sh.at = __shfl_sync(~0u, shared_address(sh.base), 0);      // the same for a warp, as the compiler must know
    if constexpr (S::marks)
        if (threadIdx.x < sizeof(Marks) / 4) ((volatile uint32_t *)&sh.marks())[threadIdx.x] = 0;
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::dq_slots; i++) barrier_init(sh.dq_full(i), 4), barrier_init(sh.dq_empty(i), 1);
        for (int i = 0; i < 2; i++) {
            barrier_init(sh.k_full(i), 1);
            if constexpr (S::releases) barrier_init(sh.dq_added(i), 1), barrier_init(sh.dq_told(i), 1);
            if constexpr (S::stays) barrier_init(sh.k_empty(i), 8);
            if constexpr (S::pair) barrier_init(sh.peer_sums(i), 128);
            for (int j = 0; j < S::stages; j++) barrier_init(sh.q_full(i, j), 1), barrier_init(sh.q_empty(i, j), 8);
        }
        for (int i = 0; S::stays && i < S::works; i++) barrier_init(sh.work_full() + 8 * i, 1), barrier_init(sh.work_empty() + 8 * i, 3 + 256);
        if constexpr (S::pair) barrier_init(sh.peer_done(), 1);
        barrier_fence();
        if constexpr (S::releases) map_prefetch(a.k), map_prefetch(a.q), map_prefetch(a.v), map_prefetch(a.dout);
        if constexpr (!S::once) wait_for_dependency();
    }
    if constexpr (S::pair) {
        __syncwarp();
        cluster_meet(); // the barriers exist
    }
    if constexpr (S::stays) {
        __syncthreads(); // the barriers exist
        return stay<S>(a, f, sh);
    }
    if (threadIdx.x < 32) __syncwarp(), find(a.p, f, sh);
    __syncthreads(); // the barriers and the work exist
    if constexpr (S::marks)
        if (sh.work().steps) mark(a.p, f, sh);
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0); // likewise
    if (group == 0) {
        registers_shrink<24>();
        if (threadIdx.x == 0) fetch<S, 0, S::releases>(a, sh);
        if (threadIdx.x == 32) {
            if constexpr (S::releases) release(a.p, sh);
            else fetch<S, 1, 1>(a, sh);
        }
        if (threadIdx.x == 64 || threadIdx.x == 96) add(a.p, sh, threadIdx.x / 32 - 2);
    } else {
        registers_grow<240>();
        compute(a, f, sh, group - 1);
    }
}

#include "bwd_wide.cuh"

#define MAIN(name, block, body, a, f, ...)                                                                                         \
    using name##_shape = __VA_ARGS__;                                                                                              \
    extern "C" __device__ Plan name##_plan = {name##_shape::threads, name##_shape::shared, name##_shape::rows, name##_shape::keys}; \
    extern "C" __global__ void __launch_bounds__(name##_shape::threads, 1) name(const __grid_constant__ block x) { body<name##_shape>(a, f); }
#define END(name, block, body, p, f, threads, shared)                    \
    extern "C" __device__ Plan name##_plan = {threads, shared, 64, 0}; \
    extern "C" __global__ void __launch_bounds__(threads, 4) name(const __grid_constant__ block x) { body(p, f); }
#define ENDS(name, block, features, p, f, type, T)                                                    \
    END(name##_delta_##type, block, (delta<T, features>), p, f, 128, delta_shared)                     \
    END(name##_finish_##type, block, (finish<T, features>), p, f, 256, 0)
#define DIMS(name, block, a, f, knows, type, T, parts)                            \
    MAIN(name##_##type##_d64, block, backward, a, f, Shape<knows, T, 64, 64, 128, 2, 2 * parts>) \
    MAIN(name##_##type##_d128, block, backward, a, f, Shape<knows, T, 128, 128, 64, 2, parts>)
#define WIDE(name, block, a, f, knows, type, T, parts) \
    MAIN(name##_##type##_d256, block, backward, a, f, Shape<knows, T, 256, 128, 64, 1, parts>)
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
#define FEATURES(name, knows, type, T, parts)                                            \
    DIMS(bwd_sm90_features##name, FeatureParams, (const MapParams &)x, x.f, knows, type, T, parts) \
    WIDE(bwd_sm90_features##name, FeatureParams, (const MapParams &)x, x.f, knows, type, T, parts)
#define SUMS(name, T)                                       \
    extern "C" __device__ Plan name##_plan = {256, 0, 64, 0}; \
    extern "C" __global__ void __launch_bounds__(256, 4) name(const __grid_constant__ Params x) { sum_parts<T>(x); }
#define ALL(type, T)                                                               \
    ENDS(bwd_sm90, Params, false, x, no_features, type, T) PLAIN(type, T)           \
    SUMS(bwd_sm90_sums_##type, T)                                                  \
    ENDS(bwd_sm90_features, FeatureParams, true, x.p, x.f, type, T)                 \
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
