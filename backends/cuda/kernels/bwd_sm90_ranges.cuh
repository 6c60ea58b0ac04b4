// Ranges of keys in bwd_sm90. The delta kernel finds the bounds of each 64 rows. A block of the main kernel lists the tiles of
// rows that see its keys, and skips the others.
#pragma once
#include "ranges.cuh"

constexpr int kRangeKeys = 128; // keys per tile

// The tiles of keys in which some row of a tile of rows sees a key: tiles from[r] to to[r] - 1. The two runs are disjoint.
struct KeyRuns {
    int from[2], to[2];
    __device__ __forceinline__ bool has(int j) const { return from[0] <= j && j < to[0] || from[1] <= j && j < to[1]; }
    // Returns the number of these tiles before tile j.
    __device__ __forceinline__ int before(int j) const { return max(0, min(j, to[0]) - from[0]) + max(0, min(j, to[1]) - from[1]); }
};

// Reports whether all rows of a block of 64 rows see all keys of tile j. x is the block's element of the second array of bounds.
__device__ __forceinline__ bool whole_tile(int4 x, int j) {
    const int begin = j * kRangeKeys, end = begin + kRangeKeys;
    return x.x <= begin && end <= x.y || x.z <= begin && end <= x.w;
}

// Returns the tiles of keys of n adjacent blocks of 64 rows, from their bounds.
__device__ __forceinline__ KeyRuns runs_of(const int4 *bounds, int n) {
    int4 x = bounds[0];
#pragma unroll
    for (int i = 1; i < n; i++) {
        const int4 y = bounds[i];
        x = {min(x.x, y.x), max(x.y, y.y), min(x.z, y.z), max(x.w, y.w)};
    }
    x = {x.x / kRangeKeys, (x.y + kRangeKeys - 1) / kRangeKeys, x.z / kRangeKeys, (x.w + kRangeKeys - 1) / kRangeKeys};
    if (max(x.x, x.z) < min(x.y, x.w)) return {{min(x.x, x.z), 0}, {max(x.y, x.w), 0}};
    return {{x.x, x.z}, {x.y, x.w}};
}

// The tiles of rows that see a block's keys. Bit i of rows[j] is 1 if tile 32 j + i has a row that sees a key. Bit i of
// whole[j] is 1 if all rows of this tile see all keys.
constexpr int kListedRows = 64; // words: enough for listedKeys rows (instances.go) in tiles of 64 rows
struct alignas(8) Listed {
    uint32_t rows[kListedRows], whole[kListedRows];
    const int4 *bounds; // of the KV head
    __device__ __forceinline__ bool is_whole(int tile) const volatile { return whole[tile / 32] >> tile % 32 & 1; }
    // Returns the last listed tile before `tile`. Such a tile must exist.
    __device__ __forceinline__ int below(int tile) const volatile {
        int word = (tile - 1) / 32;
        uint32_t bits = rows[word] & ~0u >> (31 - (tile - 1) % 32);
        while (!bits) bits = rows[--word];
        return 32 * word + 31 - __clz(bits);
    }
};
