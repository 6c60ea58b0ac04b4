// bwd_sm90 for head dims 192 and 256, without features. The differences from compute of bwd_sm90.cu are:
//
//   - Registers suffice for S, dP and only one of dK and dV. So two thread blocks process a tile of keys. The first block sums
//     dK and adds to dQ. The second block sums dV. It computes S again, but not dP.
//   - A tile has 64 rows. For head dim 192, dQ has three blocks of 64 columns. Each warpgroup computes one outer block, and the
//     warpgroups take turns at the middle block. For head dim 256, each warpgroup computes 128 columns of dQ.
//   - For each block of columns, one lane orders the adds to dq_sum. Shared memory has no room for dQ, so the threads add dQ
//     from registers.
//   - For head dim 192 with 128 columns of V, one thread block sums both dK and dV: see bwd_whole.cuh.
//   - For head dim 256, Q and dO have one buffer each. The block that sums dV frees the buffer of Q after S. The block that sums
//     dK frees the buffer of dO after dP.
#pragma once
#include "bwd_sm90.cuh"

template <int knows, class Type, int dim_, int v_dim_> struct WideShape {
    using T = Type;
    static constexpr bool split = knows & kParts, features = false, ranged = false, lies = false, by_rows = false, pair = false, releases = false, stays = false, skews = true;
    static constexpr int works = 1, step = -1;
    static constexpr bool up = false, once = false;
    static constexpr int dim = dim_, v_dim = v_dim_; // columns of Q and K; columns of V and dO
    static constexpr int rows = 64, keys = 128, stages = dim > 192 ? 1 : 2, threads = 384;
    static constexpr bool staged = v_dim <= 128; // dQ goes through shared memory
    static constexpr bool whole = dim == 192 && v_dim == 128; // one block has dK and dV
    static constexpr int shares = whole ? 1 : 2, ds_tiles = staged || stages == 1 ? 1 : 2;
    static constexpr int panels = dim / 64, v_panels = v_dim / 64, dq_blocks = panels == 3 ? 3 : 2, dq_block = 4096 * (panels / dq_blocks), dq_buffers = 1, dq_slots = dq_blocks, dq_shares = 1; // panels have 64 columns; blocks of dQ have 64 columns, or 128 for dim 256
    static constexpr int row_panel = rows * 128, key_panel = keys * 128; // bytes per panel
    static constexpr int row_tile = panels * row_panel, v_row_tile = v_panels * row_panel, key_tile = panels * key_panel, v_key_tile = v_panels * key_panel, ds_tile = 2 * row_panel;
    static constexpr int q_at = key_tile + v_key_tile, ds_at = q_at + stages * (row_tile + v_row_tile); // offsets in shared memory
    static constexpr int dq_at = ds_at + ds_tiles * ds_tile, stats_at = dq_at + (staged ? dq_blocks * 16384 : 0);
    static constexpr int odd_at = stats_at + 2 * stages * rows * 4, work_at = odd_at + keys * 4, barriers_at = work_at + (int)sizeof(Work);
    static constexpr int shared = 1024 + barriers_at + 8 * (2 + 2 * dq_blocks + 4 * stages); // 1024 to align
    static_assert(panels >= 3 && shared <= 227 * 1024);
};

// fetch_wide runs in one lane. It loads K and, if the block sums dK, V. For each tile of rows, it loads Q and LSE, then dO and
// delta. If the buffer of dO is freed before the buffer of Q, it loads dO and delta first.
template <class S> __device__ __forceinline__ void fetch_wide(const MapParams &a, Shared<S> sh) {
    const Params &p = a.p;
    volatile Work &w = sh.work();
    Ring<S::stages> ring(1);
    auto keys = [&](int part, const TensorMap &map, auto panels) {
        barrier_expect(sh.k_full(part), panels.value * S::key_panel);
        each<panels.value>([&](int i) { box_load(sh.k(part) + i * S::key_panel, map, 64 * i, w.key0, w.kv_head, w.batch, sh.k_full(part)); });
    };
    if (w.steps) keys(0, a.k, Count<S::panels>());
    bool first = w.share == 0; // a block that sums dV needs no V
    walk<S>(p, w, [&](int head, int tile) {
        auto rows = [&](int part, const TensorMap &map, auto panels) {
            const uint32_t full = sh.q_full(part, ring.stage);
            const float *stats = p.delta + (((int64_t)part * p.batch + w.batch) * p.heads + head) * padded_rows(p) + tile * S::rows;
            barrier_wait(sh.q_empty(part, ring.stage), ring.parity);
            barrier_expect(full, panels.value * S::row_panel + S::rows * 4);
            each<panels.value>([&](int i) { box_load(sh.q(part, ring.stage) + i * S::row_panel, map, 64 * i, tile * S::rows, head, w.batch, full); });
            bulk_load(sh.stats(part, ring.stage), stats, S::rows * 4, full);
        };
        const bool turned = S::stages == 1 && w.share == 0; // dO is released before Q
        if (turned) rows(1, a.dout, Count<S::v_panels>());
        rows(0, a.q, Count<S::panels>());
        if (first) keys(1, a.v, Count<S::v_panels>());
        first = false;
        if (!turned) rows(1, a.dout, Count<S::v_panels>());
        ring.next();
    });
}

// Returns the workspace address of a key's dV or dK, which the block sums over its part of the group's query heads.
template <class S, bool of_v> __device__ __forceinline__ float *part_of(const Params &p, volatile Work &w, int key) {
    return (of_v ? p.part_lse : p.part_o) + ((((int64_t)w.batch * p.kv_heads + w.kv_head) * p.splits + w.part) * p.kv_len + key) * (of_v ? S::v_dim : S::dim);
}

// Stores dV or dK of a warpgroup's keys in the shared memory of V or K or, if S::split, in the workspace as float32.
template <class S, bool of_v, int n> __device__ __forceinline__ void put_wide(const Params &p, Shared<S> sh, float (&sum)[n], int group) {
    volatile Work &w = sh.work();
    const int thread = fresh(threadIdx.x) % 128, warp = thread / 32, lane = thread % 32;
    if constexpr (S::split) {
        each<2>([&](int r) {
            const int key = w.key0 + group * 64 + warp * 16 + 8 * r + lane / 4;
            if (key >= p.kv_len) return;
            float *to = part_of<S, of_v>(p, w, key) + lane % 4 * 2;
            each<n / 4>([&](int i) { *(float2 *)(to + 8 * i) = {sum[4 * i + 2 * r], sum[4 * i + 2 * r + 1]}; });
        });
    } else {
        each<n / 8>([&](int i) {
            const uint32_t at = group * 8192 + (warp * 16 + lane % 16) * 128 + i / 4 * S::key_panel + ((i % 4 * 2 + lane / 16 ^ lane % 8) << 4);
            const float scale = of_v ? 1 : p.scale;
            auto pair = [&](int j) { return pack<typename S::T>(sum[8 * i + 2 * j] * scale, sum[8 * i + 2 * j + 1] * scale); };
            store_matrix(sh.k(of_v) + at, pair(0), pair(1), pair(2), pair(3));
        });
    }
}

// Copies dV or dK of a warpgroup's keys from shared memory to global memory. If of_v, first adds to dV the non-finite elements
// of dO that were replaced by 0.
template <class S, bool of_v> __device__ __forceinline__ void leave_wide(const Params &p, Shared<S> sh, int group) {
    using T = typename S::T;
    constexpr int columns = of_v ? S::v_dim : S::dim;
    volatile Work &w = sh.work();
    const int thread = threadIdx.x % 128, key0 = w.key0;
    const uint32_t staged = sh.k(of_v) - sh.at;
    auto place_of = [&](int row) { return group * 8192 + row * 128; };
    if (of_v && w.lost) // add the cleared elements of dO
        walk<S>(p, w, [&](int head, int tile) {
            for (int r = tile * S::rows; r < min((tile + 1) * S::rows, p.q_len); r++) {
                if (usual(p.delta[((int64_t)(p.batch + w.batch) * p.heads + head) * padded_rows(p) + r])) continue;
                for (int i = thread; i < 64 * columns; i += 128) {
                    const int row = i / columns, column = i % columns, j = key0 + group * 64 + row;
                    const float x = column < p.v_dim ? widen<T>(row_of(p.dout, w.batch, head, r)[column]) : 0;
                    if (finite(x) || j < r + p.lo || j > r + p.hi || j >= p.kv_len) continue;
                    if constexpr (S::split) {
                        part_of<S, of_v>(p, w, j)[column] += x;
                        continue;
                    }
                    uint16_t *sum = (uint16_t *)(sh.base + staged + place_of(row) + column / 64 * S::key_panel + ((column / 8 ^ row) % 8 << 4)) + column % 8;
                    *sum = pack<T>(widen<T>(*sum) + x, 0);
                }
            }
            named_barrier(2 + group, 128); // other threads may add to the same elements in the next tile
        });
    if constexpr (S::split) return;
    const View &out = of_v ? p.dv : p.dk;
    const int dim = of_v ? p.v_dim : p.dim;
    const bool aligned = aligned16(out);
    for (int i = thread; i < 8 * columns; i += 128) {
        const int row = i / (columns / 8), chunk = i % (columns / 8), j = key0 + group * 64 + row;
        const uint32_t at = staged + place_of(row) + chunk / 8 * S::key_panel + ((chunk ^ row) % 8 << 4);
        if (j < p.kv_len) store8(row_of(out, w.batch, w.kv_head, j) + 8 * chunk, *(const uint4 *)(sh.base + at), dim - 8 * chunk, aligned);
    }
}

// compute_wide is the body of a consumer warpgroup. It computes dV if of_v, else dK and dQ.
template <class S, bool of_v> __device__ __forceinline__ void compute_wide(const MapParams &a, Shared<S> sh, int group) {
    using T = typename S::T;
    constexpr int groups = S::rows / 16, columns = of_v ? S::v_dim : S::dim; // groups of 16 rows; columns of the sum
    const Params &p = a.p;
    volatile Work &w = sh.work();
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = threadIdx.x % 32;
    const int key0 = uniform(w.key0), from = uniform(w.from), to = uniform(w.to), steps = uniform(w.steps);
    // Offset in dS for the lane's store_matrix_transposed of four 8x8 blocks of dS^T. dS has a row per query row, in chunks of 8 keys.
    const uint32_t ds_place = group * S::row_panel + (lane / 16 * 8 + lane % 8) * 128 + ((warp * 2 + lane / 8 % 2 ^ lane % 8) << 4);
    float sum[columns / 2], s[S::rows / 2], dp[S::rows / 2], dq[32], stat[S::rows / 4];
    uint32_t operands[groups][4]; // P or dS
    each<columns / 2>([&](int i) { sum[i] = 0; });
    Ring<S::stages> ring(0);
    const int begin = uniform(w.begin);
    int tile = begin, head = first_head<S>(p, w), buffer = 0; // buffer of dS
    auto give = [&](uint32_t empty) { if (lane == 0) barrier_arrive(empty); };
    auto add_up = [&](const float *x, int part, int i) { // starts sum += x dO or x Q for 16 rows
        each<4>([&](int j) { operands[i][j] = pack<T>(x[8 * i + 2 * j], x[8 * i + 2 * j + 1]); });
        if constexpr (!of_v) {
            store_matrix_transposed(sh.ds(buffer) + ds_place + i * 2048, operands[i]);
            if (i + 1 == groups) async_fence(); // visible to the product with dS
        }
        wgmma_fence();
        wgmma<T, 1>(sum, operands[i], descriptor(sh.q(part, ring.stage), S::row_panel) + i * 2048 / 16, true);
        wgmma_commit();
    };
    auto keep = [&] { // the operands' registers must stay unchanged until here, which the compiler does not ensure
        each<S::rows / 4>([&](int i) { asm volatile("" ::"r"(operands[i / 4][i % 4])); });
    };
    auto cut = [&] { // whether the tile has hidden pairs
        const int row0 = tile * S::rows;
        return row0 + S::rows > p.q_len || key0 + S::keys > p.kv_len || key0 < row0 + S::rows - 1 + p.lo || key0 + S::keys - 1 > row0 + p.hi;
    };
    auto stats = [&](int part) { return (const float *)(sh.base + (sh.stats(part, ring.stage) - sh.at)); }; // [rows], LSE or delta
    auto start = [&](bool there) { // starts S
        if (there) barrier_wait(sh.q_full(0, ring.stage), ring.parity);
        scores<S, S::panels>(s, sh.k(0), sh.q(0, ring.stage), group);
    };
    if (steps) {
        barrier_wait(sh.k_full(0), 0);
        if (w.hides) clean_keys(sh, w, group, thread);
        start(true);
        wgmma_wait<0>();
        if (!of_v) barrier_wait(sh.k_full(1), 0);
    }
    const bool odd = uniform(w.odd[group]);
    auto visit = [&](int n, auto edge) { // n-th tile; edge: some pairs are hidden, or K was not finite
        auto load_stats = [&](int which) { // of all rows; early, because loads cannot overtake the products
            each<groups>([&](int i) {
                const float2 *from = (const float2 *)stats(which) + i * 8 + lane % 4, x = from[0], y = from[4];
                stat[4 * i] = x.x, stat[4 * i + 1] = x.y, stat[4 * i + 2] = y.x, stat[4 * i + 3] = y.y;
            });
        };
        load_stats(0);
        const bool far = any_far<S>(stats(0)); // some row is far, see far.cuh
        barrier_wait(sh.q_full(1, ring.stage), ring.parity);
        if constexpr (!of_v) scores<S, S::v_panels>(dp, sh.k(1), sh.q(1, ring.stage), group); // dP
        if (edge) {
            clean_rows(sh, w, ring.stage, group, thread);
            const int row = tile * S::rows + fresh(lane) % 4 * 2, key = key0 + group * 64 + fresh(thread) / 32 * 16 + fresh(lane) / 4;
            each<2>([&](int half) {
                const int k = key + 8 * half;
                const uint32_t shown = k < p.kv_len ? columns_before(min(k - p.lo + 1, p.q_len) - row) & ~columns_before(k - p.hi - row) : 0;
                each<S::rows / 4>([&](int i) {
                    float &x = s[i / 2 * 4 + 2 * half + i % 2];
                    if (odd) x += sh.odd()[k - key0];
                    x = shown & 1u << i ? x : -infinity;
                });
            });
        }
        if (__builtin_expect(far, false)) far_products(s, p, stats(0), NaturalLSE(p.lse, w.batch, head, tile * S::rows, p.q_len - tile * S::rows));
        if constexpr (of_v && S::stages == 1) __syncwarp(), give(sh.q_empty(0, ring.stage)); // S is complete
        each<groups>([&](int i) { // replace S by P, for 16 rows
            each<8>([&](int j) { s[8 * i + j] = exp2_approx(fmaf(s[8 * i + j], p.scale_log2, -stat[4 * i + j / 4 * 2 + j % 2])); });
            if constexpr (of_v) add_up(s, 1, i);
        });
        const int stage = ring.stage, done = tile;
        auto next = [&] { ring.next(), tile = tile == to ? from : tile + S::step; };
        auto release = [&] { // waits for the sum and releases the stage's Q and dO
            wgmma_wait<1>();
            keep();
            if constexpr (!of_v || S::stages > 1) give(sh.q_empty(0, stage));
            if constexpr (of_v || S::stages > 1) give(sh.q_empty(1, stage));
        };
        if constexpr (of_v) {
            next();
            if (tile == begin) head++;
            start(n + 1 < steps); // after the last tile, S is computed from old data and not used
            release();
            wgmma_wait<0>();
        } else {
            load_stats(1);
            wgmma_wait<0>();                                              // dP is complete
            if constexpr (S::stages == 1) give(sh.q_empty(1, stage));
            if (S::ds_tiles == 1 && n > 0) named_barrier(5 - group, 256); // the other warpgroup's previous dQ has read dS
            each<groups>([&](int i) { // replace dP by dS, for 16 rows
                each<8>([&](int j) { dp[8 * i + j] = s[8 * i + j] * (dp[8 * i + j] - stat[4 * i + j / 4 * 2 + j % 2]); });
                if (edge) each<8>([&](int j) { if (s[8 * i + j] == 0) dp[8 * i + j] = 0; }); // hidden pairs, even if dP or delta is NaN
                add_up(dp, 0, i);
            });
            named_barrier(1, 256); // both warpgroups have written dS
            auto queries = [&](int panel) { // starts 64 columns of dQ
                const uint64_t x = descriptor(sh.ds(buffer), 16), y = descriptor(sh.k(0) + panel * S::key_panel, 16);
                forget(dq);
                wgmma_fence();
                each<8>([&](int i) { wgmma<T, 1>(dq, x + (i / 4 * S::row_panel + i % 4 * 32) / 16, y + i * 2048 / 16, i > 0); });
                wgmma_commit();
            };
            auto leave = [&](int panel) {
                const int block = S::panels == 3 ? panel : panel / 2;
                if (S::panels == 3 || panel % 2 == 0) barrier_wait(sh.dq_empty(block), S::staged ? n % 2 ^ 1 : n % 2);
                if constexpr (S::staged) {
                    each<8>([&](int i) { store_shared(sh.dq(panel) + warp * 4096 + i * 512 + lane * 16, dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]); });
                } else {
                    float *to = p.dq_sum + block_of<S>(p, w, head, done, block) * S::dq_block + (S::panels == 3 ? 0 : panel % 2 * 4096) + warp * 1024 + lane * 4;
                    const int before = earlier<S>({p, sh}, w, done);
                    each<8>([&](int i) {
                        if (before == 0) *(float4 *)(to + i * 128) = {dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]};
                        else add_global4(to + i * 128, {dq[4 * i], dq[4 * i + 1], dq[4 * i + 2], dq[4 * i + 3]});
                    });
                }
                __syncwarp();
                if (S::panels == 3 || panel % 2) give(sh.dq_full(block));
            };
            if constexpr (S::panels > 3) {
                queries(2 * group);
                next();
                wgmma_wait<0>();
                keep();
                give(sh.q_empty(0, stage));
                leave(2 * group);
                queries(2 * group + 1);
                wgmma_wait<0>();
                if (n + 1 < steps) named_arrive(4 + group, 256); // this warpgroup has read dS
                leave(2 * group + 1);
                start(n + 1 < steps);
                if (tile == begin) head++;
                wgmma_wait<0>();
                return;
            }
            if (n % 2 == group) {
                queries(1);
                wgmma_wait<0>();
                leave(1);
            }
            queries(2 * group);
            next();
            release();
            start(n + 1 < steps);
            wgmma_wait<1>();
            if (S::ds_tiles == 1 && n + 1 < steps) named_arrive(4 + group, 256); // this warpgroup has read dS
            leave(2 * group);
            buffer = (buffer + 1) % S::ds_tiles;
            if (tile == begin) head++;
            wgmma_wait<0>();
        }
    };
#pragma unroll 1
    for (int n = 0; n < steps; n++) { // with two bodies the compiler interleaves better
        if (odd || cut()) visit(n, Constant<true>());
        else visit(n, Constant<false>());
    }
    named_barrier(1, 256); // K and V are free
    launch_dependents();
    put_wide<S, of_v>(p, sh, sum, group);
    named_barrier(2 + group, 128); // the sums are staged
    leave_wide<S, of_v>(p, sh, group);
}

#include "bwd_whole.cuh"

template <class S> __device__ __forceinline__ void backward_wide(const MapParams &a, const Features &f) {
    extern __shared__ char unaligned[];
    Shared<S> sh;
    sh.base = unaligned + (-shared_address(unaligned) & 1023); // the permutation of chunks repeats every 1024 bytes
    sh.at = uniform(shared_address(sh.base));
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::dq_blocks; i++) barrier_init(sh.dq_full(i), S::whole && i == 1 ? 8 : 4), barrier_init(sh.dq_empty(i), 1);
        for (int i = 0; i < 2; i++) {
            barrier_init(sh.k_full(i), 1);
            for (int j = 0; j < S::stages; j++) barrier_init(sh.q_full(i, j), 1), barrier_init(sh.q_empty(i, j), 8);
        }
        barrier_fence();
        wait_for_dependency();
    }
    if (threadIdx.x < 32) __syncwarp(), find(a.p, f, sh);
    __syncthreads(); // the barriers and the work are written
    const int group = uniform(threadIdx.x / 128);
    const bool of_values = __shfl_sync(~0u, sh.work().share, 0);
    if (group == 0) {
        registers_shrink<S::dim == 256 || S::whole ? 24 : 40>();
        if (threadIdx.x == 0) {
            if constexpr (S::whole) fetch_whole(a, sh);
            else fetch_wide(a, sh);
        }
        if (threadIdx.x % 32 == 0 && threadIdx.x > 0 && threadIdx.x / 32 <= S::dq_blocks && !of_values) add(a.p, sh, threadIdx.x / 32 - 1);
    } else {
        registers_grow<S::dim == 256 || S::whole ? 240 : 232>();
        if constexpr (S::whole) compute_whole<S>(a, sh, group - 1);
        else if (of_values) compute_wide<S, true>(a, sh, group - 1);
        else compute_wide<S, false>(a, sh, group - 1);
    }
}
