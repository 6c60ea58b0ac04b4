// Copies of fwd_sm80 to shared memory: Q, and the tiles of K and V.
#pragma once
#include "fwd_sm80.cuh"

// Copies the thread's chunk j, 8 columns of a row, to shared memory. The copy is asynchronous if
// `aligned`. The row has `cols` columns; the columns after these become zeros. If `row` is false,
// the row does not exist, and all 8 columns become zeros. `to` and `from` are the addresses of the
// thread's chunk 0.
template <class S>
__device__ __forceinline__ void copy_chunk(uint32_t to, const uint16_t *from, int j, bool row, int cols, bool aligned) {
    to += j * S::group * 16, from += j * S::group * 8, cols -= (threadIdx.x % S::group + j * S::group) * 8;
    if (aligned) return copy_async16_if(to, from, row && cols > 0);
    uint32_t x[4] = {};
    asm volatile("" : "+l"(from)); // otherwise the compiler keeps eight pointers in registers
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (row && e < cols) x[e / 2] |= (uint32_t)from[e] << e % 2 * 16;
    store_shared16x8(to, x);
}

// A block's copies to shared memory. The tiles, and the row groups of a tile (see Shape::step), are copied from last to first.
template <class S, bool features> struct Copies {
    static constexpr int groups = S::keys / S::step, pieces = S::chunks / S::group, fetches = 2 * groups * pieces, stage_bytes = 2 * S::tile_bytes;
    const Work<S, features> &w;
    const Params &p = w.p;
    const Features &f = w.f;
    const uint16_t *q, *k, *v; // [rows, dim], [kv_len, dim], [kv_len, v_dim]
    bool aligned;                    // copies of 16 bytes are possible
    int thread_row, thread_col;      // row and column of the thread's chunk 0 in a row group
    uint32_t q_tile, tiles_at;       // addresses of Q and of the stages
    uint32_t copy_at;                // address of the thread's chunk 0 in Q
    const uint16_t *k_next, *v_next; // addresses of the thread's chunk 0 of the next row group

    __device__ __forceinline__ Copies(const Work<S, features> &w, char *shared) : w(w) {
        const uint16_t *q = (const uint16_t *)p.q.data + w.e.q_batch() * p.q.batch + w.head * p.q.head + w.row0 * p.q.row;
        const uint16_t *k = (const uint16_t *)p.k.data + w.e.kv_batch() * p.k.batch + w.kv_head * p.k.head;
        const uint16_t *v = (const uint16_t *)p.v.data + w.e.kv_batch() * p.v.batch + w.kv_head * p.v.head;
        if constexpr (features) {
            q += w.e.s.q0 * p.q.row;
            if (f.page) // the page table locates keys, so no batch offset is added
                k = (const uint16_t *)p.k.data + w.kv_head * p.k.head, v = (const uint16_t *)p.v.data + w.kv_head * p.v.head;
            else
                k += w.e.s.key0 * p.k.row, v += w.e.s.key0 * p.v.row;
        }
        aligned = (((uintptr_t)q | (uintptr_t)k | (uintptr_t)v | (p.q.row | p.k.row | p.v.row | p.dim | p.v_dim) * 2) & 15) == 0;
        if (features && f.page) aligned = aligned && ((p.k.batch | p.v.batch) & 7) == 0;
        this->q = q, this->k = k, this->v = v;
        thread_row = threadIdx.x / S::group, thread_col = threadIdx.x % S::group * 8;
        q_tile = kept(shared_address(shared)), tiles_at = q_tile + S::q_bytes;
        copy_at = kept(q_tile + thread_row * S::row_bytes + ((thread_col / 8 ^ swizzle<S::row_bytes>(thread_row)) << 4));
    }

    // Makes the last row group of the last tile the next row group.
    __device__ __forceinline__ void rewind() {
        const int64_t last = w.to * S::keys + S::keys - S::step + thread_row;
        k_next = k + last * p.k.row + thread_col, v_next = v + last * p.v.row + thread_col;
    }

    // Copies piece x of a tile to a stage, one chunk per thread. The first half of the pieces is K, the second V. Only `left`
    // keys of the tile exist.
    __device__ __forceinline__ void fetch(int x, uint32_t stage, int left, bool aligned) {
        const int n = groups - 1 - x / pieces % groups, value = x / pieces / groups;
        const uint32_t at = copy_at + S::q_bytes + stage + value * S::tile_bytes + n * S::step * S::row_bytes;
        copy_chunk<S>(at, value ? v_next : k_next, x % pieces, n * S::step < left - thread_row, value ? p.v_dim : p.dim, aligned);
        if (x % pieces < pieces - 1) return;
        if (value)
            v_next -= S::step * p.v.row;
        else
            k_next -= S::step * p.k.row;
    }

    // Copies a tile of paged keys, row by row.
    __device__ __forceinline__ void load_pages(int tile, uint32_t stage) {
#pragma unroll 1
        for (int n = 0; n < 2 * groups; n++) {
            const int key = tile * S::keys + n % groups * S::step + thread_row;
            const uint32_t at = copy_at + S::q_bytes + stage + n / groups * S::tile_bytes + n % groups * S::step * S::row_bytes;
            const View &view = n < groups ? p.k : p.v;
            const uint16_t *row = (const uint16_t *)view.data + thread_col;
            if constexpr (features)
                if (key < w.e.keys()) row += key_place(view, f, w.e.s, w.batch, w.kv_head, key);
#pragma unroll
            for (int j = 0; j < pieces; j++) copy_chunk<S>(at, row, j, key < w.e.keys(), n < groups ? p.dim : p.v_dim, aligned);
        }
        copy_commit();
    }

    // Copies a tile of K and V to a stage.
    __device__ __forceinline__ void load(int tile, uint32_t stage) {
        if (features && f.page) return load_pages(tile, stage);
        const int left = tile == w.to ? w.e.keys() - tile * S::keys : S::keys; // only the last tile can be partial
        if (aligned) {
#pragma unroll
            for (int x = 0; x < fetches; x++) fetch(x, stage, left, true);
        } else {
#pragma unroll 1
            for (int x = 0; x < fetches; x++) fetch(x, stage, left, false);
        }
        copy_commit();
    }

    __device__ __forceinline__ void load_q() {
#pragma unroll 1
        for (int n = 0; n < S::rows / S::step; n++)
#pragma unroll
            for (int j = 0; j < pieces; j++)
                copy_chunk<S>(copy_at + n * S::step * S::row_bytes, q + (n * S::step + thread_row) * p.q.row + thread_col, j,
                              n * S::step < w.rows - thread_row, p.dim, aligned);
        copy_commit();
    }
};
