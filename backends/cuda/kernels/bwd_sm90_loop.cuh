// The loop of bwd_sm90 over tiles of rows, and its kernels, for bwd_sm90.cu and bwd_sm90_ranges.cu.
#pragma once
#include "bwd_sm90_epilogue.cuh"
#include "bwd_sm90_gradients.cuh"
#include "bwd_sm90_scores.cuh"

// compute_dq replaces compute in a warpgroup whose 64 keys are all past the end of K. Computes only the warpgroup's 64x64
// block of dQ, from dS and K of the other warpgroup.
template <class S> __device__ __forceinline__ void compute_dq(Shared<S> sh, int group) {
    volatile Work &w = sh.work();
    const int thread = threadIdx.x % 128, lane = threadIdx.x % 32;
    const int begin = uniform(w.before), end = begin + uniform(w.steps);
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
        each<32>([&](int i) { asm volatile("" : "+f"(dq[i])); }); // otherwise the compiler would insert another wait
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

// Adds the terms of the current tile of query rows to dK, dV and dQ. n is the number of the visit. edge, hidden: see Visit.
template <class S, class Edge> __device__ __forceinline__ void visit(KeyTile<S> &t, int n, Edge edge, bool hidden) {
    Visit<Edge> v(n, edge, hidden);
    t.load_stats(0, 0);
    v.away = t.here - t.tile * S::rows;
    barrier_wait(t.sh.q_full(1, t.ring.stage), t.ring.parity);
    scores<S, S::panels, S::inner>(t.dp, t.sh.k(1), t.sh.q(1, t.ring.stage), t.group);
    v.far = any_far<S>(t.stats(0));
    t.hide_all(v);
    constexpr int size = KeyTile<S>::size;
    each<S::parts>([&](int part) {
        if (part) t.load_stats(0, part);
        if constexpr (S::bias_bytes > 0) copy_wait<1>(), __syncwarp();
        each<size>([&](int i) { t.exponentials(v, part * size + i); });
        if constexpr (S::bias_bytes > 0) t.prefetch_next_bias(v, part);
        t.load_stats(1, part);
        if (part == 0) wgmma_wait<size>(); // dP is complete
        each<size>([&](int i) { t.gradients(v, part * size + i); });
    });
    meeting_barrier(1, 256); // both dS are written; the previous dQ is complete
    t.start_dq();
    if constexpr (S::knows_bias)
        if (t.writes_tiles) store_tile<S>(t.p, t.f, t.sh.base + (t.sh.ds(t.buffer) - t.sh.at) + t.group * S::row_panel, t.w.batch, t.head, t.tile * S::rows, t.key0 + t.group * 64, t.thread);
    const int stage = t.ring.stage, done = t.tile;
    t.advance(n);
    wgmma_wait<1>();
    t.keep_operand(t.weights), t.keep_operand(t.slopes);
    t.release(t.sh.q_empty(0, stage)), t.release(t.sh.q_empty(1, stage));
    t.start_scores(n + 1 < t.end); // after the last tile, the product's result is unused
    if constexpr (S::knows_dropout)
        if (t.drops) t.draw(t.head + (done == t.to));
    wgmma_wait<1>();
    t.store_dq(n, done);
}

// compute is the body of a computing warpgroup. It processes the keys of one Work.
template <class S> __device__ __forceinline__ void compute(const MapParams &a, const Features &f, Shared<S> sh, int group) {
    KeyTile<S> t(a, f, sh, group);
    if constexpr (S::stays && !S::features) // with features, another sequence may follow
        if (group && t.key0 + 64 >= a.p.kv_len) return compute_dq(sh, group);
    t.start();
#pragma unroll 1
    for (int n = t.begin; n < t.end; n++) {
        const bool hidden = t.odd || t.cut(), edge = hidden || !S::features && !S::ends_in_both && t.ends;
        if constexpr (S::knows_mask && S::sure) visit(t, n, Constant<true>(), true);
        else if constexpr (!S::two_bodies) visit(t, n, edge, hidden);
        else if (edge) visit(t, n, Constant<true>(), hidden);
        else visit(t, n, Constant<false>(), false);
    }
    t.finish();
}

template <class S> __device__ __forceinline__ void backward(const MapParams &a, const Features &f) {
    extern __shared__ char unaligned[];
    Shared<S> sh;
    sh.base = unaligned + (-shared_address(unaligned) & 1023); // the permutation of chunks repeats every 1024 bytes
    sh.at = uniform(shared_address(sh.base));
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
    if constexpr (S::ranged)
        if (sh.work().steps) list_rows(a.p, f, sh);
    const int group = uniform(threadIdx.x / 128);
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

#define MAIN(name, block, body, a, f, ...)                                                                                         \
    using name##_shape = __VA_ARGS__;                                                                                              \
    extern "C" __device__ Plan name##_plan = {name##_shape::threads, name##_shape::shared, name##_shape::rows, name##_shape::keys}; \
    extern "C" __global__ void __launch_bounds__(name##_shape::threads, 1) name(const __grid_constant__ block x) { body<name##_shape>(a, f); }
#define END(name, block, body, p, f, threads, shared)                    \
    extern "C" __device__ Plan name##_plan = {threads, shared, 64, 0}; \
    extern "C" __global__ void __launch_bounds__(threads, 4) name(const __grid_constant__ block x) { body(p, f); }
#define ENDS(name, block, features, ranged, p, f, type, T)                                                    \
    END(name##_delta_##type, block, (delta<T, features, ranged>), p, f, 128, delta_shared)                     \
    END(name##_finish_##type, block, (finish<T, features, ranged>), p, f, 256, 0)
#define DIMS(name, block, a, f, knows, type, T, parts)                            \
    MAIN(name##_##type##_d64, block, backward, a, f, Shape<knows, T, 64, 64, 128, 2, 2 * parts>) \
    MAIN(name##_##type##_d128, block, backward, a, f, Shape<knows, T, 128, 128, 64, 2, parts>)
#define WIDE(name, block, a, f, knows, type, T, parts) \
    MAIN(name##_##type##_d256, block, backward, a, f, Shape<knows, T, 256, 128, 64, 1, parts>)
#define FEATURES(name, knows, type, T, parts)                                            \
    DIMS(bwd_sm90_features##name, FeatureParams, (const MapParams &)x, x.f, knows, type, T, parts) \
    WIDE(bwd_sm90_features##name, FeatureParams, (const MapParams &)x, x.f, knows, type, T, parts)
