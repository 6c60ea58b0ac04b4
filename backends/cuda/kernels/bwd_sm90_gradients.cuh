// Weights and gradients of bwd_sm90, 16 rows at a time, and the products dV, dK and dQ that follow.
#pragma once
#include "bwd_sm90_keys.cuh"

// Like exponentials, for instances with score features or dropout. Replaces S by P times the derivative of the softcap.
// Dropout changes only the weights in the product P^T dO.
template <class S> template <class Edge> __device__ __forceinline__ void KeyTile<S>::changed_exponentials(const Visit<Edge> &v, int i) {
    float x[8], cap[8]; // P; derivatives of the softcap
    change(v, i, x, cap);
    auto goes = [&](int j) { return drops && !keeps(i, j); };
    each<4>([&](int j) { weights[i][j] = pack<T>(goes(2 * j) ? 0 : x[2 * j], goes(2 * j + 1) ? 0 : x[2 * j + 1]); });
    start_sum(dv, weights[i], sh.q(1, ring.stage), i);
    if (capped) each<8>([&](int j) { x[j] *= cap[j]; });
    each<8>([&](int j) { s[8 * i + j] = x[j]; });
}

// Replaces S by P in the i-th group of 16 rows, and starts dV += P^T dO.
template <class S> template <class Edge> __device__ __forceinline__ void KeyTile<S>::exponentials(const Visit<Edge> &v, int i) {
    if constexpr (S::shapes) return changed_exponentials(v, i);
    each<8>([&](int j) { s[8 * i + j] = exp2_approx(fmaf(s[8 * i + j], p.scale_log2, -stat[i % size * 4 + j / 4 * 2 + j % 2])); });
    each<4>([&](int j) { weights[i][j] = pack<T>(s[8 * i + 2 * j], s[8 * i + 2 * j + 1]); });
    start_sum(dv, weights[i], sh.q(1, ring.stage), i);
}

// Replaces dP by dS in the i-th group of 16 rows, stores dS to shared memory, and starts dK += dS^T Q.
template <class S> template <class Edge> __device__ __forceinline__ void KeyTile<S>::gradients(const Visit<Edge> &v, int i) {
    auto delta = [&](int j) { return stat[i % size * 4 + j / 4 * 2 + j % 2]; };
    if (drops) each<8>([&](int j) { dp[8 * i + j] = s[8 * i + j] * fmaf(keeps(i, j) ? dp[8 * i + j] : 0, f.keep, -delta(j)); });
    else each<8>([&](int j) { dp[8 * i + j] = s[8 * i + j] * (dp[8 * i + j] - delta(j)); });
    if (v.edge) each<8>([&](int j) { if (s[8 * i + j] == 0) dp[8 * i + j] = 0; }); // hidden pairs, even with NaN in dP or delta
    if constexpr (S::knows_bias)
        if (writes && !writes_tiles) store_pairs<T>(p, f, &dp[8 * i], v.edge, w.batch, head, tile * S::rows + 16 * i + fresh(lane) % 4 * 2, own_key());
    each<4>([&](int j) { slopes[i][j] = pack<T>(dp[8 * i + 2 * j], dp[8 * i + 2 * j + 1]); });
    store_matrix_transposed(sh.ds(buffer) + ds_place + i * 2048, slopes[i]);
    if (i + 1 == groups) async_fence(); // the product dS K sees dS
    start_sum(dk, slopes[i], sh.q(0, ring.stage), i);
}

// Starts the product dQ = dS K for the warpgroup's 64x64 block of dQ. The product sums over the keys of both warpgroups.
template <class S> __device__ __forceinline__ void KeyTile<S>::start_dq() {
    const int row_block = S::own_panels == 1 ? group : 0, panel = S::own_panels == 1 ? 0 : first_panel + group;
    const uint64_t x = descriptor(sh.ds(buffer) + row_block * 8192, 16), y = descriptor(sh.k(0) + panel * S::key_panel, 16);
    forget(dq);
    wgmma_fence();
    each<8>([&](int i) { wgmma<T, 1>(dq, x + (i / 4 * S::row_panel + i % 4 * 32) / 16, y + i * 2048 / 16, i > 0); });
    wgmma_commit();
}

// Completes dQ of visit n, whose tile of rows is `done`. If S::staged, copies dQ to shared memory, from which another
// thread adds dQ to dq_sum. If S::staged is false, adds dQ to dq_sum. Then sets `head` for the next visit.
template <class S> __device__ __forceinline__ void KeyTile<S>::store_dq(int n, int done) {
    const int slot = group + n % S::dq_buffers * S::dq_blocks;
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
    else if (tile == (S::skews ? w.begin : from)) { // w.begin is read again, to save registers
        head++;
        if constexpr (S::knows_alibi)
            if (n + 1 < end) load_slope();
    }
    __syncwarp();
    release(sh.dq_full(slot));
    wgmma_wait<0>();
}
