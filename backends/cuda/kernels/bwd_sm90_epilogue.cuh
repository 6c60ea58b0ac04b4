// The last step of bwd_sm90 for a tile of keys: writing dK and dV.
#pragma once
#include "bwd_sm90_keys.cuh"

template <class S> __device__ __forceinline__ float *KeyTile<S>::part_of(float *sums, int key) const {
    return sums + ((((int64_t)w.batch * p.kv_heads + w.kv_head) * p.splits + w.part) * p.kv_len + key) * S::dim + first_panel * 64;
}

// For blocks that sum over a part of the group's query heads: stores dK and dV to the workspace, as float32.
template <class S> __device__ __forceinline__ void KeyTile<S>::write_part() const {
    each<2>([&](int r) {
        const int key = key0 + group * 64 + warp * 16 + 8 * r + lane / 4, at = lane % 4 * 2;
        if (key >= p.kv_len) return;
        float *to_k = part_of(p.part_o, key) + at, *to_v = part_of(p.part_lse, key) + at;
        each<S::columns / 8>([&](int i) {
            *(float2 *)(to_k + 8 * i) = {dk[4 * i + 2 * r], dk[4 * i + 2 * r + 1]};
            *(float2 *)(to_v + 8 * i) = {dv[4 * i + 2 * r], dv[4 * i + 2 * r + 1]};
        });
    });
}

// Returns the address at which a panel of dK (part 0) or dV (part 1) is staged in shared memory. The panel overwrites the
// warpgroup's rows of K or V. If the next K or V may already arrive there, the panel overwrites dS instead.
template <class S> __device__ __forceinline__ uint32_t KeyTile<S>::home(int part, int panel) const {
    if (!S::stays || part == 1 && !S::frees_v) return sh.k(part) + panel * S::key_panel + group * 8192;
    return sh.ds(panel) + group * S::row_panel + part * 8192;
}
template <class S> __device__ __forceinline__ void KeyTile<S>::stage(bool some, bool of_values) {
    each<S::columns / 16>([&](int i) {
        const int l = lane;
        const uint32_t at = (warp * 16 + l % 16) * 128 + ((i % 4 * 2 + l / 16 ^ l % 8) << 4);
        const float kept = S::knows_dropout ? f.keep : 1;
        auto pair = [&](const float (&x)[S::columns / 2], int j, float c) { return pack<T>(x[8 * i + 2 * j] * c, x[8 * i + 2 * j + 1] * c); };
        if (!S::pair || !of_values) store_matrix(home(0, i / 4) + at, pair(dk, 0, p.scale), pair(dk, 1, p.scale), pair(dk, 2, p.scale), pair(dk, 3, p.scale));
        if (some && (!S::pair || of_values)) store_matrix(home(1, i / 4) + at, pair(dv, 0, kept), pair(dv, 1, kept), pair(dv, 2, kept), pair(dv, 3, kept));
    });
}

// Reports whether the key belongs to the sequence and the mask or the ranges show it to row i. The bounds lo and hi are not tested.
template <class S> __device__ __forceinline__ bool KeyTile<S>::takes_part(int head, int i, int key) const {
    if constexpr (S::knows_mask || S::marks) return key < e.keys() && Scores<T>(p, f, Sequence{}, w.batch, head).takes_part(i, key);
    else if constexpr (S::ranged) return key < e.keys() && ranges_of(f, w.batch, head, i).has(key);
    else return !S::features || key < e.keys();
}

// Adds the non-finite elements of dO, which clean_rows has set to 0, to dV of all keys that the element's query row sees.
template <class S> __device__ __forceinline__ void KeyTile<S>::add_lost() {
    auto add_tile = [&](int head, int tile) {
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
    };
    if constexpr (S::pair) { // all tiles of rows, because dV includes the sums of the other block
        for (int head = first_head<S>(p, w), n = p.heads / p.kv_heads; n > 0; n--, head++)
            for (int tile = 0; tile * S::rows < e.rows(); tile++) add_tile(head, tile);
    } else walk<S>(p, sh, add_tile);
}

// Copies the staged dK (part 0) or dV (part 1) to tensor v. Writes zeros if `some` is false, because then no row sees the
// keys.
template <class S> __device__ __forceinline__ void KeyTile<S>::write(const View &v, int part, int dim, bool some) const {
    const bool aligned = aligned16(v);
    for (int i = thread; i < 8 * S::columns; i += 128) {
        const int row = i / (S::columns / 8), chunk = i % (S::columns / 8), at = row * 128 + ((chunk ^ row) % 8 << 4);
        const int j = key0 + group * 64 + row, column = w.share * S::columns + 8 * chunk;
        if (j < e.key_end()) store8(row_of(v, e.kv_batch(), w.kv_head, e.key0() + j) + column, some ? *(const uint4 *)(sh.base + (home(part, chunk / 8) - sh.at) + at) : uint4{}, dim - column, aligned);
    }
}

// Frees K and V, and writes dK and dV.
template <class S> __device__ __forceinline__ void KeyTile<S>::finish() {
    meeting_barrier(1, 256); // K and V are free
    if constexpr (!S::stays && !S::once) launch_dependents(); // not earlier: dependent blocks would crowd onto the first free multiprocessors
    const bool some = !S::stays || uniform(w.steps); // false: results are zeros, and the next K and V may arrive
    if constexpr (S::stays)
        if (some) {
            release(sh.k_empty(0));
            if (S::frees_v) release(sh.k_empty(1));
        }
    if constexpr (S::split) write_part();
    const bool of_values = S::pair && cluster_rank();
    bool lost = false; // dO of either block was not finite
    if constexpr (S::pair) {
        if (of_values) lost = meet<S>(w, sh, dv, dk, group);
        else lost = meet<S>(w, sh, dk, dv, group);
    }
    if constexpr (!S::split) stage(some, of_values);
    named_barrier(2 + group, 128); // the warpgroup's results are staged
    if (S::pair ? of_values && lost : w.lost) add_lost();
    if constexpr (S::split) return;
    if (!S::pair || !of_values) write(p.dk, 0, p.dim, some);
    if (!S::pair || of_values) write(p.dv, 1, p.v_dim, some);
    if constexpr (S::pair) cluster_wait(); // the other block no longer uses the shared memory of this block
}
