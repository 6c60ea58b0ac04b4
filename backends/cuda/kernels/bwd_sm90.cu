// Backward pass for f16 and bf16 by warpgroup products. With P = exp(S*scale - LSE)
// for visible pairs and 0 for hidden pairs, the main kernel computes
//
//	for each batch b, KV head, tile of keys                 // a block
//		for each query head h of the group, tile of rows    // last rows first; groups: heads inside; up: first rows first
//			S^T = K Q^T;  dP^T = V dO^T
//			dS^T = P^T * (dP^T - delta)
//			dV += P^T dO;  dK += dS^T Q;  dq_sum[h] += dS K
//		dK *= scale
//
// One call is three launches, in this order; a grid of 0 is not launched.
//
//	bwd_sm90_delta_<dtype>     grid max(1, B*H*ceil(N/64))   LSE and delta; clears the counters
//	bwd_sm90_<dtype>_d<dim>    grid B*G*ceil(M/plan.keys)    dK, dV; adds to dq_sum (twice the grid for d192 and d256)
//	bwd_sm90_finish_<dtype>    grid B*H*ceil(N/64)           dQ = dq_sum * scale
//
// Variants of the main kernel, chosen by instances.go: groups, of 64 and 128, for groups of heads; up_d64; wide_d256;
// once, of 64 and 128, if all blocks run at once; columns80_d128 and columns96_d128 for D and DV up to 80 and 96,
// which compute only dQ of the other columns; features_groups and features_up_d64.
//
// With p.splits > 1, a block processes one part of a group's query heads, and a fourth kernel adds the parts in order:
// [B, G, splits, M, <dim> or <v_dim>] float32, dK without the scale.
//	bwd_sm90_parts_<dtype>_d<dim>  p.splits times the grid  to part_o and part_lse
//	bwd_sm90_sums_<dtype>          grid 2*B*G*ceil(M/64)    dK, dV
//
// Or a cluster of two blocks shares a tile of keys: one processes the even tiles of rows, the other the odd ones. They
// exchange sums through shared memory; one stores dK, the other dV:
//	bwd_sm90_pairs_<dtype>_d<dim>  twice the grid           for 64 and 128
//
// The second and third launch may start early: they wait for the previous one (programmatic dependent launch).
// The main kernels take MapParams by value, the others Params. <dim> is 64, 128, 192 or 256, the least that holds D and DV,
// or 192_dv128; features have no 192. bwd_wide.cuh has 192 and wide. Workspace, with R = N rounded up to 128: delta
// [2][B, H, R], LSE in base 2 and delta; dq_sum B*H*R*<dim>; turn 1 + B*H*R/64*<dim>/64 ints, the ticket and a counter per
// 64x64 block of dq_sum; with p.skew, twice dq_sum and its counters. Maps of 16-bit elements, rank 4, 128-byte swizzle, no
// interleaving, zeros outside:
//
//	      dims, innermost first           strides in bytes    box
//	q     dim, q_len, heads, batch        row, head, batch    64, plan.rows, 1, 1
//	k     dim, kv_len, kv_heads, batch    row, head, batch    64, plan.keys, 1, 1
//	v     v_dim, kv_len, kv_heads, batch  row, head, batch    64, plan.keys, 1, 1
//	dout  v_dim, q_len, heads, batch      row, head, batch    64, plan.rows, 1, 1
//
// Addresses and strides are multiples of 16 bytes; size-1 dimensions may have any such stride. Without rows, q and dout
// are not read.
//
// Each of two warpgroups owns 64 keys and their sums dK and dV. P^T and dS^T stay in registers, in the layout of operands
// of dV and dK. dS K needs the keys of both warpgroups, so dS passes through shared memory, and each computes a 64x64 block
// of dQ. A third warpgroup moves data: two lanes load, two add one block of dQ each to dq_sum. If S::releases, one lane
// loads and one ends the turns of both warpgroups: a release takes as long as a product, so the adding lanes take their
// next turn sooner, and one counter serves both. At D 256 the registers hold half the columns of the sums: two blocks
// compute all of S and dP, and each half of the rest. Shared memory has no room for dQ then: the computing threads add it
// in their turn.
//
// Products overlap computation: dP the exponentials; dV and dK, 16 rows at a time, the next exponentials and dS; the next
// S the stores of dQ to shared memory (Shah et al. 2024, section 3.2, for the forward pass). LSE and delta of many rows are
// loaded in advance, because no load passes a product. The fence between dQ's stores and its bulk copy takes longer than
// the stores, so the copying lane executes it.
//
// The first key block of a head stores its dq_sum tile; later ones add, in key order if deterministic. A block takes a
// ticket and waits for lower tickets only, whose blocks have started. All walk from the last rows to the first, one after
// another, so waits are short. In up, the last keys have the first tickets, and each block begins at its first visible
// rows: the blocks that it waits for began at later rows and are ahead. Persistent blocks, at most one per multiprocessor,
// draw ticket after ticket, and load while the previous tile of keys is written. Blocks of once and pairs use their
// indexes as tickets, and load before the delta kernel has ended.
//
// A head's last block waits until all others have processed the last rows: long, if blocks are few and all rows see all
// keys. Then, with p.skew, each block begins at its own rows, walks to the first ones and continues from the last ones, and
// none waits: the shift of DASH (arXiv 2601.21824). DASH's blocks wait for any block of their head, so all must run at
// once. Here dQ has two sums, for the rows before and after a walk's wrap. So blocks reach each sum in key order and wait
// for lower tickets only. The finish kernel adds both. Features, groups and up have no skew.
//
// Hidden pairs: P and dS are set to 0. 0 * NaN still leaks through the other operand: dO, Q in dV, dK and K in dQ. In tiles
// with hidden pairs, non-finite elements of these operands are cleared. A visible pair still carries NaN: LSE and delta of
// a row reveal them in Q and dO, `odd` in K, and dV gets the cleared elements of dO at the end.
//
// Instances for features (bwd_sm90_features) take FeatureParams, which begins with MapParams. Maps of packed tensors have
// batch 1; a tile's rows and keys of the next sequence are hidden, and under a mask every pair may be. Of up to 32
// sequences the longest go first. Each feature of scores or weights has its own instance, because branches in the loop
// hinder the compiler's scheduling. A bias or mask is prefetched to shared memory, two parts of a tile or a tile ahead.
// Random words are drawn while the next S is in flight, when dP's registers are free. A mask equal for all rows is scanned
// up to the block's keys; if none is visible, the block writes zeros and adds nothing to dQ. dBias is copied from dS in
// shared memory if aligned, else stored from registers.
#include "bwd_lanes.cuh"

// A warpgroup without keys computes only its block of dQ, from the other's keys.
template <class S> __device__ __forceinline__ void compute_dq(Shared<S> sh, int group) {
    volatile Work &w = sh.work();
    const int thread = threadIdx.x % 128, lane = threadIdx.x % 32;
    const int begin = __shfl_sync(~0u, w.before, 0), end = begin + __shfl_sync(~0u, w.steps, 0);
    auto give = [&](uint32_t empty) { if (lane == 0) barrier_arrive(empty); };
    for (int i = thread; i < S::row_panel / 8; i += 128) { // dS = 0
        const int buffer = i / (S::row_panel / 16), at = i % (S::row_panel / 16) * 16;
        store_shared(sh.ds(buffer) + group * S::row_panel + at, 0, 0, 0, 0);
    }
    async_fence(); // both warpgroups' products see zeros
    if (begin < end) barrier_wait(sh.k_full(0), w.loads % 2);
#pragma unroll 1
    for (int n = begin; n < end; n++) {
        float dq[32];
        meeting_barrier(1, 256); // the other warpgroup's dS is written
        const int row_block = S::own_panels == 1 ? group : 0, panel = S::own_panels == 1 ? 0 : group;
        const uint64_t x = descriptor(sh.ds(n % 2) + row_block * 8192, 16), y = descriptor(sh.k(0) + panel * S::key_panel, 16);
        forget(dq);
        wgmma_fence();
        each<4>([&](int i) { wgmma<typename S::T, 1>(dq, x + i * 32 / 16, y + i * 2048 / 16, i > 0); });
        wgmma_commit(), wgmma_wait<0>();
        each<32>([&](int i) { asm volatile("" : "+f"(dq[i])); }); // else the compiler waits again
        give(sh.q_empty(0, n % S::stages)), give(sh.q_empty(1, n % S::stages));
        const int slot = group + n % S::dq_buffers * S::dq_blocks;
        barrier_wait(sh.dq_empty(slot), n / S::dq_buffers % 2 ^ 1);
        each<8>([&](int i) { store_shared(sh.dq(slot) + thread / 32 * 4096 + i * 512 + lane * 16, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]); });
        __syncwarp();
        give(sh.dq_full(slot));
    }
    meeting_barrier(1, 256); // K and V are free
    if (begin == end) return;
    give(sh.k_empty(0));
    if (S::frees_v) give(sh.k_empty(1));
}

// One of the two computing warpgroups.
template <class S> __device__ __forceinline__ void compute(const MapParams &a, const Features &f, Shared<S> sh, int group) {
    using T = typename S::T;
    const Params &p = a.p;
    const Bounds<S> e{p, sh};
    volatile Work &w = sh.work();
    auto uniform = [](int x) { return __shfl_sync(~0u, x, 0); }; // makes loop bounds uniform
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = threadIdx.x % 32;
    const int key0 = uniform(w.key0), from = uniform(w.from), to = uniform(w.to), steps = uniform(w.steps), first_panel = uniform(w.share) * S::own_panels;
    // Place of the lane's row of four 8x8 blocks of dS^T in dS.
    const uint32_t ds_place = group * S::row_panel + (lane / 16 * 8 + lane % 8) * 128 + ((warp * 2 + lane / 8 % 2 ^ lane % 8) << 4);
    if constexpr (S::stays && !S::features) // with features, another sequence may follow
        if (group && key0 + 64 >= p.kv_len) return compute_dq(sh, group);
    float dk[S::columns / 2], dv[S::columns / 2], s[S::rows / 2], dp[S::rows / 2], dq[32], stat[S::rows / S::parts / 4];
    uint32_t weights[S::rows / 16][4], slopes[S::rows / 16][4];
    each<S::columns / 2>([&](int i) { dk[i] = dv[i] = 0; });
    auto give = [&](uint32_t empty) { if (lane == 0) barrier_arrive(empty); };
    auto keep = [](uint32_t (&x)[S::rows / 16][4]) { // protects operands in flight up to here
        each<S::rows / 4>([&](int i) { asm volatile("" ::"r"(x[i / 4][i % 4])); });
    };
    const int begin = S::stays ? uniform(w.before) : 0, end = begin + steps;
    Ring<S::stages> ring = ring_at<S>(0, begin);
    int tile = S::skews ? uniform(w.begin) : from, buffer = S::stays ? begin % 2 : 0; // buffer: of dS
    [[maybe_unused]] const int heads = uniform(last_head<S>(p, w) - first_head<S>(p, w) + 1);
    [[maybe_unused]] int left = heads; // of the row tile
    // With features: tiles whose first row is in this range have no hidden pairs.
    [[maybe_unused]] int whole_from = 0, whole_to = 0;
    if constexpr (S::features) {
        whole_from = uniform(key0 + S::keys - 1 - e.hi());
        if constexpr (S::marks)
            if (!uniform(sh.marks().whole)) whole_from = kReach; // no tile
        whole_to = uniform(key0 + S::keys > e.keys() ? -S::rows : min(e.rows() - S::rows, key0 - (S::rows - 1) - e.lo()));
    }
    auto cut = [&] { // whether existing rows and keys of the tile have hidden pairs
        const int row0 = tile * S::rows;
        if constexpr (S::features) return row0 < whole_from || row0 > whole_to || S::knows_mask && !S::sure && f.mask.data;
        // Missing rows are zeros with LSE and delta 0: they add nothing to stored results.
        else return key0 < min(row0 + S::rows, e.rows()) - 1 + e.lo() || min(key0 + S::keys, e.keys()) - 1 > row0 + e.hi();
    };
    auto stats = [&](int part) { return (const float *)(sh.base + (sh.stats(part, ring.stage) - sh.at)); }; // [rows], LSE or delta
    auto start = [&](bool there) { // starts S
        if (there) barrier_wait(sh.q_full(0, ring.stage), ring.parity);
        scores<S, S::panels, S::inner>(s, sh.k(0), sh.q(0, ring.stage), group);
    };
    auto sums = [&](float (&to)[S::columns / 2], uint32_t (&x)[4], uint32_t rows, int i) { // starts to += x dO or x Q for 16 rows
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
    // Instances for one feature need no tests.
    [[maybe_unused]] const bool capped = S::knows_cap && (S::sure || f.cap_in != 0), leans = S::knows_alibi && (S::sure || f.slopes.data);
    [[maybe_unused]] const bool biased = S::knows_bias && (S::sure || f.bias.data), drops = S::knows_dropout && (S::sure || f.drop_below);
    [[maybe_unused]] const bool staged = S::bias_bytes && biased && !f.bias_wide && aligned16(f.bias);
    [[maybe_unused]] auto ask_bias = [&](int head, int row) { // prefetches, two parts of a tile ahead
        if (staged) bias_chunk<S::part_rows>(sh.bias(group * 4 + warp) + row / S::part_rows % 2 * S::part_rows * 32, p, f, w.batch, head, row, key0 + group * 64 + warp * 16, lane);
    };
    [[maybe_unused]] const bool staged_hides = S::mask_bytes && (((uint64_t)f.mask.data | f.mask.batch | f.mask.head | f.mask.row) & 15) == 0;
    [[maybe_unused]] auto ask_mask = [&](int head, int row) {
        if (staged_hides) mask_chunk<S::rows>(sh.mask(group * 4 + warp), p, f.mask, w.batch, head, row, key0 + group * 64 + warp * 16, lane);
    };
    // ALiBi: -slope in log2 units; the lane's first key minus its first row of row tile 0 and the diagonal.
    [[maybe_unused]] float lean = 0;
    [[maybe_unused]] int here = 0;
    [[maybe_unused]] auto load_slope = [&](int head) {
        if (leans) lean = -slope_log2(((const float *)f.slopes.data)[w.batch * f.slopes.batch + head * f.slopes.head]);
    };
    if constexpr (S::knows_alibi) here = key0 + group * 64 + fresh(thread) / 32 * 16 + fresh(lane) / 4 - fresh(lane) % 4 * 2 - e.diagonal(), load_slope(head);
    [[maybe_unused]] const bool writes = S::knows_bias && f.dbias_apart && first_panel == 0, writes_tiles = writes && !f.dbias_wide && aligned16(f.dbias);
    [[maybe_unused]] uint32_t kept[2] = {}; // dropout masks of the lane's two keys
    [[maybe_unused]] auto keeps = [&](int i, int j) { return kept[j / 2 % 2] & 1u << kept_bit<S::rows>(i, j / 4 * 2 + j % 2); }; // i: group of 16 rows
    [[maybe_unused]] auto draw = [&](int head) { kept_pairs<S::rows>(kept, f, w.batch, head, tile * S::rows + fresh(lane) % 4 * 2, key0 + group * 64 + fresh(thread) / 32 * 16 + fresh(lane) / 4); };
    if constexpr (S::bias_bytes > 0)
        if (steps) ask_bias(head, tile * S::rows), ask_bias(head, tile * S::rows + S::part_rows);
    if constexpr (S::mask_bytes > 0)
        if (steps) ask_mask(head, tile * S::rows);
    if constexpr (S::knows_dropout)
        if (steps && drops) draw(head);
    auto visit = [&](int n, auto edge, bool hidden) { // tile n. hidden: pairs are hidden or K was not finite; edge: hidden, or keys are missing
        constexpr int groups = S::rows / 16, size = groups / S::parts; // groups of 16 rows
        auto load_stats = [&](int which, int part) { // in advance: loads do not pass products
            each<size>([&](int i) {
                const float2 *from = (const float2 *)stats(which) + (part * size + i) * 8 + lane % 4, x = from[0], y = from[4];
                stat[4 * i] = x.x, stat[4 * i + 1] = x.y, stat[4 * i + 2] = y.x, stat[4 * i + 3] = y.y;
            });
        };
        load_stats(0, 0);
        [[maybe_unused]] auto natural_lse = [&] {
            const int all = last_head<S>(p, w) - first_head<S>(p, w) + 1, nth = n - (S::stays ? (int)w.before : 0);
            const int head = first_head<S>(p, w) + (S::by_rows ? nth % all : nth / (w.steps / all)); // saves registers
            return NaturalLSE(p.lse, e.q_batch(), head, e.q0() + tile * S::rows, e.rows() - tile * S::rows);
        };
        [[maybe_unused]] const float away = here - tile * S::rows;
        barrier_wait(sh.q_full(1, ring.stage), ring.parity);
        scores<S, S::panels, S::inner>(dp, sh.k(1), sh.q(1, ring.stage), group);
        const bool far = any_far<S>(stats(0)); // some row needs weights in natural units
        uint32_t shown[2]; // bits by columns, for the lane's two keys
        [[maybe_unused]] auto hide_ends = [&] { // P = 0 for missing keys, else exp(-LSE) may overflow
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
        [[maybe_unused]] bool large = false; // a score of the warp is not small
        if (capped) {
            float most = 0;
            each<S::rows / 2>([&](int i) { most = fmaxf(most, fabsf(s[i])); });
            large = __any_sync(~0u, !(most * f.cap_in < 0.4f));
        }
        auto changed = [&](int i) { // exponentials with score features or dropout. S becomes P times the softcap's slope; only dV's weights are dropped
            const int own = key0 + group * 64 + fresh(thread) / 32 * 16 + fresh(lane) / 4, walked = tile * S::rows + 16 * i + fresh(lane) % 4 * 2;
            const float *lse = stat + i % size * 4;
            float x[8], cap[8]; // P; softcap slopes
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
        auto store_slopes = [&](int i) { // stores dS; dK += dS Q
            store_matrix_transposed(sh.ds(buffer) + ds_place + i * 2048, slopes[i]);
            if (i + 1 == groups) async_fence(); // the product dS K sees it
            sums(dk, slopes[i], sh.q(0, ring.stage), i);
        };
        auto gradients = [&](int i) { // dS of 16 rows, in place of dP; dK += dS Q
            auto delta = [&](int j) { return stat[i % size * 4 + j / 4 * 2 + j % 2]; };
            if (drops) each<8>([&](int j) { dp[8 * i + j] = s[8 * i + j] * fmaf(keeps(i, j) ? dp[8 * i + j] : 0, f.keep, -delta(j)); });
            else each<8>([&](int j) { dp[8 * i + j] = s[8 * i + j] * (dp[8 * i + j] - delta(j)); });
            if (edge) each<8>([&](int j) { if (s[8 * i + j] == 0) dp[8 * i + j] = 0; }); // hidden pairs, even with NaN in dP or delta
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
                else copy_commit(); // an empty group, for copy_wait's count
            }
            load_stats(1, part);
            if (part == 0) wgmma_wait<size>(); // dP is complete
            each<size>([&](int i) { gradients(part * size + i); });
        });
        meeting_barrier(1, 256); // both dS are written; the previous dQ is complete
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
        start(n + 1 < end); // after the last tile its result is unused
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
        else if (tile == (S::skews ? w.begin : from)) { // reread: saves registers
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
    meeting_barrier(1, 256); // K and V are free
    if constexpr (!S::stays && !S::once) launch_dependents(); // else dependent blocks would crowd onto the first free multiprocessors
    const bool some = !S::stays || uniform(w.steps); // else results are zeros, and the next K and V may arrive
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
    [[maybe_unused]] bool lost = false; // dO of either block was not finite
    if constexpr (S::pair) {
        if (of_values) lost = meet<S>(w, sh, dv, dk, group);
        else lost = meet<S>(w, sh, dk, dv, group);
    }
    // dK and dV leave through the warpgroup's rows of K and V; in persistent blocks through dS, if the next K or V may arrive.
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
    named_barrier(2 + group, 128); // the warpgroup's results are staged
    auto takes_part = [&](int head, int i, int key) {
        if constexpr (S::knows_mask || S::marks) return key < e.keys() && Scores<T>(p, f, Sequence{}, w.batch, head).takes_part(i, key);
        else return !S::features || key < e.keys();
    };
    auto each_tile = [&](auto visit) { // row tiles, also the other block's of a pair
        if constexpr (S::pair) {
            for (int head = first_head<S>(p, w), n = p.heads / p.kv_heads; n > 0; n--, head++)
                for (int tile = 0; tile * S::rows < e.rows(); tile++) visit(head, tile);
        } else walk<S>(p, w, visit);
    };
    if (S::pair ? of_values && lost : w.lost) // add the cleared elements of dO
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
            named_barrier(2 + group, 128); // the next tile may add to the same elements
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
    sh.at = __shfl_sync(~0u, shared_address(sh.base), 0);      // makes the address uniform
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
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0); // uniform
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
