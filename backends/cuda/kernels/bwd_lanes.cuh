// The lanes of bwd_sm90 that move data, beside the one that adds, and the blocks that stay.
#pragma once
#include "bwd_sm90.cuh"

// The lane that fetches K, Q and LSE (part 0), or V, dO and delta (part 1).
template <class S> __device__ __forceinline__ void fetch(const Params &p, const TensorMap &keys, const TensorMap &rows, Shared<S> sh, int part) {
    volatile Work &w = sh.work();
    Ring<S::stages> ring = ring_at<S>(1, before<S>(w));
    const Bounds<S> e{p, sh};
    bool first = S::stays;
    if (!S::stays && w.steps) {
        barrier_expect(sh.k_full(part), S::key_tile);
        each<S::panels>([&](int i) { box_load(sh.k(part) + i * S::key_panel, keys, 64 * i, w.key0 + e.key0(), w.kv_head, e.kv_batch(), sh.k_full(part)); });
    }
    walk<S>(p, w, [&](int head, int tile) {
        const uint32_t full = sh.q_full(part, ring.stage);
        const float *stats = p.delta + (((int64_t)part * p.batch + w.batch) * p.heads + head) * padded_rows(p) + tile * S::rows;
        barrier_wait(sh.q_empty(part, ring.stage), ring.parity);
        barrier_expect(full, S::row_tile + S::rows * 4);
        each<S::panels>([&](int i) { box_load(sh.q(part, ring.stage) + i * S::row_panel, rows, 64 * i, tile * S::rows + e.q0(), head, e.q_batch(), full); });
        bulk_load(sh.stats(part, ring.stage), stats, S::rows * 4, full);
        ring.next();
        if constexpr (S::stays)
            if (first) {
                first = false;
                barrier_wait(sh.k_empty(part), sh.turn % 2 ^ 1);
                barrier_expect(sh.k_full(part), S::key_tile);
                each<S::panels>([&](int i) { box_load(sh.k(part) + i * S::key_panel, keys, 64 * i, w.key0 + e.key0(), w.kv_head, e.kv_batch(), sh.k_full(part)); });
            }
    });
    if constexpr (S::stays)
        if (first) barrier_wait(sh.k_empty(1), sh.turn % 2 ^ 1); // no more than one block ahead
}

// One lane that fetches both.
template <class S> __device__ __forceinline__ void fetch_both(const MapParams &a, Shared<S> sh) {
    const Params &p = a.p;
    volatile Work &w = sh.work();
    Ring<S::stages> ring = ring_at<S>(1, before<S>(w));
    bool first = true;
    walk<S>(p, w, [&](int head, int tile) {
#pragma unroll 1
        for (int part = 0; part < 2; part++) {
            const uint32_t full = sh.q_full(part, ring.stage);
            const float *stats = p.delta + (((int64_t)part * p.batch + w.batch) * p.heads + head) * padded_rows(p) + tile * S::rows;
            barrier_wait(sh.q_empty(part, ring.stage), ring.parity);
            barrier_expect(full, S::row_tile + S::rows * 4);
            each<S::panels>([&](int i) { box_load(sh.q(part, ring.stage) + i * S::row_panel, part ? a.dout : a.q, 64 * i, tile * S::rows, head, w.batch, full); });
            bulk_load(sh.stats(part, ring.stage), stats, S::rows * 4, full);
            if (first) {
                if constexpr (S::stays) barrier_wait(sh.k_empty(part), sh.turn % 2 ^ 1);
                barrier_expect(sh.k_full(part), S::key_tile);
                each<S::panels>([&](int i) { box_load(sh.k(part) + i * S::key_panel, part ? a.v : a.k, 64 * i, w.key0, w.kv_head, w.batch, sh.k_full(part)); });
            }
        }
        first = false;
        ring.next();
    });
    if constexpr (S::stays)
        if (first) barrier_wait(sh.k_empty(1), sh.turn % 2 ^ 1); // no more than one block ahead
}

// The lane that ends the turns of both warpgroups.
template <class S> __device__ __forceinline__ void release(const Params &p, Shared<S> sh) {
    volatile Work &w = sh.work();
    int parity = before<S>(w) % 2;
    walk<S>(p, w, [&](int head, int tile) {
        const bool tells = p.deterministic || earlier<S>({p, sh}, w, tile) == 0;
#pragma unroll 1
        for (int group = 0; group < 2; group++) barrier_wait(sh.dq_added(group), parity);
        if (tells) add_counter_release(p.turn + 1 + block_of<S>(p, w, head, tile, 0));
        barrier_arrive(sh.dq_told(0)), barrier_arrive(sh.dq_told(1));
        parity ^= 1;
    });
}

// Blocks that take one ticket after the other.
template <class S> __device__ __forceinline__ void stay(const MapParams &a, const Features &f, Shared<S> sh) {
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    auto next = [&] { // whether there is another block
        barrier_wait(sh.work_full(), sh.turn / 4 % 2);
        return sh.work().steps >= 0;
    };
    if (group == 0) {
        registers_shrink<24>();
        if (threadIdx.x < 32) {
#pragma unroll 1
            for (;; sh.turn++) {
                barrier_wait(sh.work_empty(), sh.turn / 4 % 2 ^ 1);
                find(a.p, f, sh);
                if (threadIdx.x == 0) barrier_arrive(sh.work_full());
                __syncwarp();
                if (sh.work().steps < 0) break;
                if (threadIdx.x == 0) {
                    if constexpr (S::releases) fetch_both(a, sh);
                    else fetch(a.p, a.k, a.q, sh, 0);
                }
                __syncwarp();
            }
        } else if (threadIdx.x == 32) {
            if constexpr (S::releases) {
                for (; next(); sh.turn++) release(a.p, sh), barrier_arrive(sh.work_empty());
            } else {
                for (; next(); sh.turn++) fetch(a.p, a.v, a.dout, sh, 1), barrier_arrive(sh.work_empty());
            }
        } else if (threadIdx.x == 64 || threadIdx.x == 96) {
            for (; next(); sh.turn++) add(a.p, sh, threadIdx.x / 32 - 2), barrier_arrive(sh.work_empty());
        }
    } else {
        registers_grow<240>();
#pragma unroll 1
        for (; next(); sh.turn++) {
            compute(a, f, sh, __shfl_sync(~0u, fresh(threadIdx.x) / 128, 0) - 1);
            if constexpr (!S::frees_v) {
                async_fence(); // before copies to where dV was staged
                __syncwarp();
                if (threadIdx.x % 32 == 0) barrier_arrive(sh.k_empty(1));
            }
            named_barrier(1 + group, 128); // the warpgroup may write dS
        }
        launch_dependents();
    }
}
