// What instances of bwd_sm90 without features have beside: a lane that fetches all, one that ends turns, and pairs of blocks.
#pragma once
#include "bwd_sm90.cuh"

// One lane that fetches both, K and Q first.
template <class S> __device__ __forceinline__ void fetch_both(const MapParams &a, Shared<S> sh) {
    const Params &p = a.p;
    volatile Work &w = sh.work();
    Ring<S::stages> ring(1);
    bool first = true;
    walk<S>(p, w, [&](int head, int tile) {
#pragma unroll 1
        for (int part = 0; part < 2; part++) {
            if (first) {
                barrier_expect(sh.k_full(part), S::key_tile);
                each<S::panels>([&](int i) { box_load(sh.k(part) + i * S::key_panel, part ? a.v : a.k, 64 * i, w.key0, w.kv_head, w.batch, sh.k_full(part)); });
            }
            const uint32_t full = sh.q_full(part, ring.stage);
            const float *stats = p.delta + (((int64_t)part * p.batch + w.batch) * p.heads + head) * padded_rows(p) + tile * S::rows;
            barrier_wait(sh.q_empty(part, ring.stage), ring.parity);
            barrier_expect(full, S::row_tile + S::rows * 4);
            each<S::panels>([&](int i) { box_load(sh.q(part, ring.stage) + i * S::row_panel, part ? a.dout : a.q, 64 * i, tile * S::rows, head, w.batch, full); });
            bulk_load(sh.stats(part, ring.stage), stats, S::rows * 4, full);
        }
        first = false;
        ring.next();
    });
}

// The lane that ends the turns of both warpgroups, while those that add go on.
template <class S> __device__ __forceinline__ void release(const Params &p, Shared<S> sh) {
    volatile Work &w = sh.work();
    int parity = 0;
    walk<S>(p, w, [&](int head, int tile) {
        const bool ends = p.deterministic || earlier<S>({p, sh}, w, tile) == 0;
        barrier_wait(sh.dq_added(0), parity), barrier_wait(sh.dq_added(1), parity);
        if (ends) add_counter_release(p.turn + 1 + block_of<S>(p, w, head, tile, 0));
        barrier_arrive(sh.dq_told(0)), barrier_arrive(sh.dq_told(1));
        parity ^= 1;
    });
}

// What the other block of a pair has of a warpgroup's sums is added to `own`, and it gets `other`, where Q and dO lay.
// Says whether either block lost rows. Who calls it ends with cluster_wait.
template <class S> __device__ __forceinline__ bool meet(volatile Work &w, Shared<S> sh, float (&own)[S::columns / 2], float (&other)[S::columns / 2], int group) {
    static_assert(256 * S::columns / 2 * 4 <= 2 * S::stages * S::row_tile);
    const int thread = threadIdx.x % 128, peer = cluster_rank() ^ 1;
    const uint32_t at = S::q_at + group * (128 * S::columns / 2 * 4) + thread * 16, to = map_cluster(sh.at + at, peer);
    if (group == 0 && thread == 0) barrier_arrive_cluster(map_cluster(sh.peer_done(), peer)); // both warpgroups are done with Q and dO
    barrier_wait_cluster(sh.peer_done(), 0);
    const bool lost = w.lost | load_cluster(map_cluster(shared_address((const void *)&w.lost), peer));
    each<S::columns / 8>([&](int i) { store_cluster(to + i * 2048, other[4 * i], other[4 * i + 1], other[4 * i + 2], other[4 * i + 3]); });
    barrier_arrive_cluster(map_cluster(sh.peer_sums(group), peer));
    cluster_arrive(); // nothing in the other block is accessed from here on
    barrier_wait_cluster(sh.peer_sums(group), 0);
    each<S::columns / 8>([&](int i) {
        const float4 x = *(const float4 *)(sh.base + at + i * 2048);
        own[4 * i] += x.x, own[4 * i + 1] += x.y, own[4 * i + 2] += x.z, own[4 * i + 3] += x.w;
    });
    return lost;
}
