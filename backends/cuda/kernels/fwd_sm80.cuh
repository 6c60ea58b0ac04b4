// A block of fwd_sm80: its shape, and its rows and keys.
#pragma once
#include "score.cuh"
#include "tile.cuh"

template <class Type, int dim_, int warps_, int tiles_, int keys_, int blocks_, bool keep_q_, int shares_ = 1> struct Shape {
    using T = Type;
    static constexpr int dim = dim_, warps = warps_;
    static constexpr int tiles = tiles_;    // 16-row tiles per warp
    static constexpr int keys = keys_;      // keys per tile of K and V
    static constexpr int blocks = blocks_;  // minimum blocks per multiprocessor
    static constexpr bool keep_q = keep_q_; // whether Q stays in registers
    static constexpr int shares = shares_;  // number of warps that hold the same rows: each of them holds each shares-th block of 16 columns of O
    static constexpr int columns = dim / shares;
    static constexpr int threads = warps * 32, rows = warps / shares * tiles * 16;
    static constexpr int row_bytes = dim * 2;
    static constexpr int chunks = dim / 8;                 // 16-byte chunks per row
    static constexpr int group = chunks % 8 == 0 ? 8 : 4; // number of chunks permuted among themselves
    static constexpr int q_bytes = rows * row_bytes, tile_bytes = keys * row_bytes;
    static constexpr int rows_at = q_bytes + 4 * tile_bytes; // offset in shared memory of m, l and l's Kahan compensation; each thread has one set for each of its rows
    static constexpr int shared = rows_at + 10 * threads * 2 * tiles;
    static constexpr int step = threads / group; // rows per row group, the rows that all threads copy at once
    static_assert(chunks % group == 0 && keys % step == 0 && rows % step == 0, "whole row groups");
};

// Returns x, and keeps the compiler from recomputing it at each use.
__device__ __forceinline__ uint32_t kept(uint32_t x) { return __shfl_sync(~0u, x, threadIdx.x % 32); }

// A block's tile of query rows of one head, and the tiles of keys that some row sees. If lo or hi hides pairs, blocks with
// adjacent indices process several heads whose K and V fit into the L2 cache together. Row tiles with the most keys come first.
template <class S, bool features> struct Work {
    const Params &p;
    const Features &f;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    int lo = min(max(p.lo, -p.q_len), p.kv_len), hi = max(min(p.hi, p.kv_len), -p.q_len); // row i sees keys i+lo to i+hi
    const bool rising = hi < p.kv_len - 1, banded = rising || p.q_len - 1 + lo > 0;
    const int row_tiles = (p.q_len + S::rows - 1) / S::rows, all = p.batch * p.heads;
    const int together = banded ? max(1, min(all, (int)(16777216.f / ((float)p.kv_len * (p.dim + p.v_dim))))) : 1;
    const int first = blockIdx.x / (together * row_tiles) * together, size = min(together, all - first);
    const int place = blockIdx.x - first * row_tiles, batch = (first + place % size) / p.heads;
    const int head = (first + place % size) % p.heads, kv_head = head / (p.heads / p.kv_heads);
    const int row0 = (rising ? row_tiles - 1 - place / size : place / size) * S::rows;
    const Extent<features> e;
    int rows;                // of the tile, without padding
    int first_key, last_key; // first and last key that some row sees
    int from, to;            // first and last tile of these keys
    int full_from, full_to;  // first and last tile of which every row sees all keys
    bool edges;              // some tile has a hidden pair

    __device__ __forceinline__ Work(const Params &p, const Features &f) : p(p), f(f), e(p, f, batch) {}

    // Sets the number of rows and the ranges of keys and tiles. Returns false if the tile has no rows, not even padding.
    __device__ __forceinline__ bool find() {
        if constexpr (features) {
            if (row0 >= e.row_end()) return false;
            lo = min(max(e.lo(), -e.rows()), e.keys()), hi = max(min(e.hi(), e.keys()), -e.rows());
        }
        rows = min(S::rows, e.rows() - row0);
        last_key = min(e.keys() - 1, row0 + rows - 1 + hi), first_key = max(0, row0 + lo);
        from = first_key / S::keys, to = last_key < first_key || features && rows <= 0 ? from - 1 : last_key / S::keys;
        full_from = (max(0, row0 + rows - 1 + lo) + S::keys - 1) / S::keys;
        full_to = max(0, min(e.keys(), row0 + hi + 1)) / S::keys - 1;
        edges = from < full_from || to > full_to || features && f.mask.data;
        return true;
    }
};
