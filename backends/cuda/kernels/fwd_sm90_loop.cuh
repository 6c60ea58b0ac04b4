// The loop of fwd_sm90 over tiles of keys, for fwd_sm90.cu and fwd_sm90_ranges.cu.
#pragma once
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
        if (S::ranges || end <= 64 * g.group) g.release_o();
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
        return n == 0 ? t.first : key_tile<S>(t.w, n);
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
            auto tile_at = [&](int n) { if constexpr (S::masks) return t.first - n; else if constexpr (S::finds) return key_tile<S>(w, n); else return 0; };
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
