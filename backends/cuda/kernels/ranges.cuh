// Ranges of keys of fwd_sm90 and bwd_sm90: the ranges of a row, and bounds of the ranges of 64 rows, by which kernels skip tiles.
// Row maxima.
#pragma once
#include "score_tiles.cuh"

// The keys that a row sees, as two ranges of keys: begin[r] to end[r] - 1. An unused range is empty.
struct RowRanges {
    int begin[2], end[2];
    __device__ __forceinline__ bool has(int j) const { return begin[0] <= j && j < end[0] || begin[1] <= j && j < end[1]; }
};
__device__ __forceinline__ RowRanges ranges_of(const Features &f, int b, int h, int i) {
    const int *at = (const int *)f.ranges.data + b * f.ranges.batch + h * f.ranges.head + i * f.ranges.row;
    RowRanges x = {{__ldg(at), 0}, {__ldg(at + 1), 0}};
    if (f.range_count > 1) x.begin[1] = __ldg(at + 2), x.end[1] = __ldg(at + 3);
    return x;
}

// Stores a row's maximum m, in natural units. l is the row's sum of weights, and carried the LSE of the earlier keys, whose
// maximum is in `to`. A row with a score of NaN or Inf gets NaN.
__device__ __forceinline__ void store_row_max(float *to, float m, float l, float carried) {
    float x = l != l || m == __int_as_float(0x7f800000) ? __int_as_float(0x7fffffff) : m;
    if (carried != __int_as_float(0xff800000)) x = x != x || *to != *to ? __int_as_float(0x7fffffff) : fmaxf(x, *to);
    *to = x;
}

// Features::row_bounds has two arrays int4[B, sets, R/64], with R = N rounded up to a multiple of 128. A set of query heads is
// a head in forward passes, and the group of a KV head in backward passes. Each int4 has the bounds of the first ranges and of
// the second ranges: the first key and the key after the last. Some row of the set sees a key within the first array's bounds. All
// rows see the keys within the second array's bounds.
__device__ __forceinline__ int4 *bounds_of(const Params &p, const Features &f, int sets, int b, int set, int array) {
    return (int4 *)f.row_bounds + (((int64_t)array * p.batch + b) * sets + set) * ((p.q_len + 127) / 128 * 2);
}

// Sets the bounds of 64 rows from row0 on. All lanes of a warp call bound_rows. If missing, rows after the last row count as
// rows that see no key.
template <bool missing> __device__ __forceinline__ void bound_rows(const Params &p, const Features &f, const Sequence &s, int sets, int b, int set, int row0) {
    const int lane = threadIdx.x % 32, group = p.heads / sets;
    int from[2] = {kReach, kReach}, to[2] = {}, whole_from[2] = {}, whole_to[2] = {kReach, kReach};
#pragma unroll 2
    for (int n = 0; n < (f.ranges.head ? group : 1) * 64; n += 32) {
        const int i = row0 + n % 64 + lane;
        RowRanges x = {}; // no keys
        if (i < s.rows) x = ranges_of(f, b, set * group + n / 64, i);
        else if (!missing) continue;
        each<2>([&](int r) {
            const int first = max(x.begin[r], max(i + s.lo, 0)), last = max(0, min(x.end[r], min(i + s.hi + 1, s.keys)));
            if (first < last) from[r] = min(from[r], first), to[r] = max(to[r], last);
            whole_from[r] = max(whole_from[r], first), whole_to[r] = min(whole_to[r], last);
        });
    }
    each<2>([&](int r) {
        from[r] = __reduce_min_sync(~0u, from[r]), to[r] = __reduce_max_sync(~0u, to[r]);
        whole_from[r] = __reduce_max_sync(~0u, whole_from[r]), whole_to[r] = __reduce_min_sync(~0u, whole_to[r]);
    });
    if (lane) return;
    bounds_of(p, f, sets, b, set, 0)[row0 / 64] = {from[0], to[0], from[1], to[1]};
    bounds_of(p, f, sets, b, set, 1)[row0 / 64] = {whole_from[0], whole_to[0], whole_from[1], whole_to[1]};
}
