// The loop of bwd_wide.cuh for head dim 192 with 128 columns of V. One block computes dK, dV and dQ of a tile of keys. dK and
// dV take 160 registers of a thread. To save other registers, P is rounded to 16 bits before dP is complete, and dS is computed
// from the rounded P. S, dP and 64 columns of dQ share registers. The next S is computed while the rest of dQ is stored.
// Of the 192 columns of dQ, warpgroup 0 computes columns 0 to 95, and warpgroup 1 columns 96 to 191.
#pragma once

// wgmma for 32 columns.
#define OUT_32 OUT(0), OUT(8)
#define LIST_32 "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15"
WGMMA(32, LIST_32, "{%16,%17,%18,%19}", "%20", "%21", "%22", "%16", "%17", "%18", "%19")

// fetch_whole runs in one lane. It loads K and V once. For each tile of rows, it loads Q and LSE, then dO and delta.
template <class S> __device__ __forceinline__ void fetch_whole(const MapParams &a, Shared<S> sh) {
    static_assert(S::stages == 2 && S::panels - S::v_panels < 2);
    const Params &p = a.p;
    volatile Work &w = sh.work();
    if (w.steps == 0) return;
    auto keys = [&](int part, const TensorMap &map, auto panels) {
        barrier_expect(sh.k_full(part), panels.value * S::key_panel);
        each<panels.value>([&](int i) { box_load(sh.k(part) + i * S::key_panel, map, 64 * i, w.key0, w.kv_head, w.batch, sh.k_full(part)); });
    };
    keys(0, a.k, Count<S::panels>());
    keys(1, a.v, Count<S::v_panels>());
    int head = first_head<S>(p, w), tile = w.begin;
#pragma unroll 1
    for (int n = 0; n < w.steps; n++) {
#pragma unroll 1
        for (int part = 0; part < 2; part++) { // one body for both parts, to save registers
            const uint32_t full = sh.q_full(part, n % 2);
            auto box = [&](int i) { box_load(sh.q(part, n % 2) + i * S::row_panel, part ? a.dout : a.q, 64 * i, tile * S::rows, head, w.batch, full); };
            barrier_wait(sh.q_empty(part, n % 2), n / 2 % 2 ^ 1);
            barrier_expect(full, (part ? S::v_row_tile : S::row_tile) + S::rows * 4);
            each<S::v_panels>(box);
            if (S::panels > S::v_panels && part == 0) box(S::v_panels);
            const uint32_t line = (part * p.batch + w.batch) * p.heads + head; // the row index below fits 32 bits, as Q fits into memory
            bulk_load(sh.stats(part, n % 2), p.delta + (line * padded_rows(p) + tile * S::rows), S::rows * 4, full);
        }
        tile = tile == w.to ? w.from : tile + S::step;
        if (tile == w.begin) head++;
    }
}

// Starts the product dS K for 2n columns of dQ. slopes is the address of dS in shared memory. columns is the address of the
// same 2n columns of K.
template <class S, int n> __device__ __forceinline__ void queries(float (&to)[n], uint32_t slopes, uint32_t columns) {
    const uint64_t x = descriptor(slopes, 16), y = descriptor(columns, 16);
    forget(to);
    wgmma_fence();
    each<8>([&](int i) { wgmma<typename S::T, 1>(to, x + (i / 4 * S::row_panel + i % 4 * 32) / 16, y + i * 2048 / 16, i > 0); });
    wgmma_commit();
}

// Returns the address in shared memory at which a lane stores four 8x8 blocks of dS^T by store_matrix_transposed. In shared
// memory, dS has a row per query row, in chunks of 8 keys.
template <class S> __device__ __forceinline__ uint32_t slopes_place(uint32_t tile, int group) {
    const int t = fresh(threadIdx.x) % 128, l = t % 32;
    return tile + group * S::row_panel + (l / 16 * 8 + l % 8) * 128 + ((t / 32 * 2 + l / 8 % 2 ^ l % 8) << 4);
}

// Sets a lane's scores of hidden pairs to -inf. The tile's first query row is row0. If odd, hide first adds NaN to the scores
// of keys whose K was not finite.
template <class S, int n> __device__ __forceinline__ void hide(float (&s)[n], const Params &p, Shared<S> sh, int key0, int group, int row0, bool odd) {
    const int thread = fresh(threadIdx.x) % 128, row = row0 + thread % 4 * 2, key = key0 + group * 64 + thread / 32 * 16 + thread % 32 / 4;
    each<2>([&](int half) {
        const int k = key + 8 * half;
        const uint32_t shown = k < p.kv_len ? columns_before(min(k - p.lo + 1, p.q_len) - row) & ~columns_before(k - p.hi - row) : 0;
        each<n / 2>([&](int i) {
            float &x = s[i / 2 * 4 + 2 * half + i % 2];
            if (odd) x += sh.odd()[k - key0];
            x = shown & 1u << i ? x : -infinity;
        });
    });
}

// Loads LSE (part 0) or delta (part 1) of the lane's four rows in the ith group of 16 rows of the tile.
template <class S> __device__ __forceinline__ void load_stats(float *to, Shared<S> sh, int part, int stage, int i) {
    const float2 *from = (const float2 *)(sh.base + (sh.stats(part, stage) - sh.at)) + i * 8 + fresh(threadIdx.x) % 4, x = from[0], y = from[4];
    to[0] = x.x, to[1] = x.y, to[2] = y.x, to[3] = y.y;
}

// Returns dS of two pairs of a query row and a key, from the rounded P and dP. If edge, dS of hidden pairs is 0 even if dP or
// delta is NaN.
template <class T> __device__ __forceinline__ uint32_t slopes_of(uint32_t weights, const float *dp, const float *delta, bool edge) {
    const float x = widen<T>((uint16_t)weights), y = widen<T>((uint16_t)(weights >> 16));
    float dx = x * (dp[0] - delta[0]), dy = y * (dp[1] - delta[1]);
    if (edge) dx = x == 0 ? 0 : dx, dy = y == 0 ? 0 : dy;
    return pack<T>(dx, dy);
}

// Writes dK and dV of a warpgroup's keys to global memory.
template <class S> __device__ __forceinline__ void leave_sums(const Params &p, Shared<S> sh, float (&dk)[S::dim / 2], float (&dv)[S::v_dim / 2], int group) {
    named_barrier(1, 256); // K and V are free
    launch_dependents();
    put_wide<S, false>(p, sh, dk, group);
    put_wide<S, true>(p, sh, dv, group);
    named_barrier(2 + group, 128); // the sums are staged
    leave_wide<S, false>(p, sh, group);
    leave_wide<S, true>(p, sh, group);
}

// compute_whole is the body of a consumer warpgroup.
template <class S> __device__ __forceinline__ void compute_whole(const MapParams &a, Shared<S> sh, int group) {
    using T = typename S::T;
    constexpr int groups = S::rows / 16; // groups of 16 rows
    const Params &p = a.p;
    volatile Work &w = sh.work();
    auto thread = [] { return fresh(threadIdx.x) % 128; };
    const int key0 = uniform(w.key0), steps = uniform(w.steps);
    float dk[S::dim / 2], dv[S::v_dim / 2], s[S::rows / 2], dp[S::rows / 2], dq[32], half[16], stat[4 * groups];
    uint32_t weights[groups][4], slopes[groups][4]; // P and dS
    each<S::dim / 2>([&](int i) { dk[i] = 0; });
    each<S::v_dim / 2>([&](int i) { dv[i] = 0; });
    Ring<S::stages> ring(0);
    int tile = uniform(w.begin);
    auto give = [&](uint32_t empty) { if (thread() % 32 == 0) barrier_arrive(empty); };
    auto cut = [&] { // whether the tile has hidden pairs
        const int row0 = tile * S::rows;
        return row0 + S::rows > p.q_len || key0 + S::keys > p.kv_len || key0 < row0 + S::rows - 1 + p.lo || key0 + S::keys - 1 > row0 + p.hi;
    };
    auto start = [&](bool there) { // starts S
        if (there) barrier_wait(sh.q_full(0, ring.stage), ring.parity);
        scores<S, S::panels>(s, sh.k(0), sh.q(0, ring.stage), group);
    };
    if (steps) {
        barrier_wait(sh.k_full(0), 0);
        if (w.hides) clean_keys(sh, w, group, thread());
        start(true);
        wgmma_wait<0>();
        barrier_wait(sh.k_full(1), 0);
    }
    const bool odd = uniform(w.odd[group]);
    auto visit = [&](int n, auto edge) { // n-th tile; edge: some pairs are hidden, or K was not finite
        const int stage = ring.stage;
        auto add_up = [&](auto &sum, uint32_t (&x)[4], int part, int i) { // starts sum += P^T dO or dS^T Q for 16 rows
            wgmma_fence();
            wgmma<T, 1>(sum, x, descriptor(sh.q(part, stage), S::row_panel) + i * 2048 / 16, true);
            wgmma_commit();
        };
        each<groups>([&](int i) { load_stats(stat + 4 * i, sh, 0, stage, i); }); // early, because loads cannot overtake the products
        const float *own_lse = (const float *)(sh.base + (sh.stats(0, stage) - sh.at));
        const bool far = any_far<S>(own_lse); // some row is far, see far.cuh
        barrier_wait(sh.q_full(1, stage), ring.parity);
        if (edge) clean_rows(sh, w, stage, group, thread()), hide(s, p, sh, key0, group, tile * S::rows, odd);
        if (__builtin_expect(far, false)) {
            const int first = first_head<S>(p, w), head = first + n / (w.steps / (last_head<S>(p, w) - first + 1));
            far_products(s, p, own_lse, NaturalLSE(p.lse, w.batch, head, tile * S::rows, p.q_len - tile * S::rows));
        }
        each<groups>([&](int i) { // P of 16 rows
            each<8>([&](int j) { s[8 * i + j] = exp2_approx(fmaf(s[8 * i + j], p.scale_log2, -stat[4 * i + j / 4 * 2 + j % 2])); });
            each<4>([&](int j) { weights[i][j] = pack<T>(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]); });
            add_up(dv, weights[i], 1, i);
        });
        scores<S, S::v_panels>(dp, sh.k(1), sh.q(1, stage), group); // dP
        each<groups>([&](int i) { load_stats(stat + 4 * i, sh, 1, stage, i); });
        wgmma_wait<0>(); // dP and dV are complete
        give(sh.q_empty(1, stage));
        if (n > 0) named_barrier(5 - group, 256); // the other warpgroup's previous dQ has read dS
        const uint32_t place = slopes_place<S>(sh.ds(0), group);
        each<groups>([&](int i) { // dS of 16 rows
            each<4>([&](int j) { slopes[i][j] = slopes_of<T>(weights[i][j], dp + 8 * i + 2 * j, stat + 4 * i + j / 2 * 2, edge); });
            store_matrix_transposed(place + i * 2048, slopes[i]);
            if (i + 1 == groups) async_fence(); // visible to the product with dS
            add_up(dk, slopes[i], 0, i);
        });
        named_barrier(1, 256); // both warpgroups have written dS
        auto leave = [&](auto &x, int block, int chunk) { // stages columns of dQ, from the given chunk of 8 columns on
            barrier_wait(sh.dq_empty(block), n % 2 ^ 1);
            const int t = thread();
            const uint32_t to = sh.dq(block) + t / 32 * 4096 + chunk * 512 + t % 32 * 16;
            each<sizeof(x) / 16>([&](int i) { store_shared(to + i * 512, x[4 * i], x[4 * i + 1], x[4 * i + 2], x[4 * i + 3]); });
            __syncwarp();
            give(sh.dq_full(block));
        };
        ring.next(), tile = tile == uniform(w.to) ? uniform(w.from) : tile + S::step; // w.to and w.from are loaded again, to save registers
        queries<S>(dq, sh.ds(0), sh.k(0) + 2 * group * S::key_panel);
        wgmma_wait<1>(); // dK is complete. The registers of its operands must stay unchanged until here, which the compiler does not ensure
        each<4 * groups>([&](int i) { asm volatile("" ::"r"(slopes[i / 4][i % 4])); });
        give(sh.q_empty(0, stage));
        queries<S>(half, sh.ds(0), sh.k(0) + S::key_panel + group * 64);
        wgmma_wait<1>();
        leave(dq, 2 * group, 0);
        start(n + 1 < steps); // after the last tile, S is computed from old data and not used
        wgmma_wait<1>();
        if (n + 1 < steps) named_arrive(4 + group, 256); // this warpgroup has read dS
        leave(half, 1, 4 * group);
        wgmma_wait<0>();
    };
#pragma unroll 1
    for (int n = 0; n < steps; n++) { // with two bodies the compiler interleaves better, but if S::split, two bodies would spill registers
        if constexpr (S::split) visit(n, odd || cut());
        else if (odd || cut()) visit(n, Constant<true>());
        else visit(n, Constant<false>());
    }
    leave_sums<S>(p, sh, dk, dv, group);
}
