// What fwd_sm90 knows of a tile of query rows, and what becomes of it where a part of the keys is all
// that a block sees.
#pragma once
#include "score.cuh"
#include "sm90.cuh"
#include "tile.cuh"

// What an instance knows: no features; none, and p.splits parts of the keys; where sequences lie, and what a row
// begins and ends with; softcap and ALiBi too; one of the others and those of layout; all.
enum class Kind { plain, split, layout, shaped, softcap, alibi, bias, mask, dropout, any };

struct alignas(16) Place { int lo, hi, keys, rows, q_batch, q0, kv_batch, key0, diagonal, row_end; }; // what a sequence is, beside a tile of its rows

// A tile of query rows, in shared memory, and the tiles of keys that hold what some
// row of it sees, in the order in which they are taken: first those that not every
// row sees whole, from the right, then from the left; then the others.
struct alignas(16) Work {
    int row0, end, count, edges;           // rows from row0 to end-1; row0 is -1 when there is no further tile; tiles of keys; the first of them
    int first, right;                      // tile(0); how many of the edges come from the right
    int from, full_to, open_from, open_to; // every row sees full_to whole; the band cuts those outside the open ones
    int head, kv_head, batch;
    int odd;  // a tile of V that the band cuts holds what is not finite
    int part; // of the keys
    __device__ __forceinline__ int4 extent() const volatile { return *(const int4 *)this; } // row0, end, count and edges at once
    __device__ __forceinline__ int tile(int n) const volatile {
        return n < right ? full_to + right - n : n < edges ? from + n - right : full_to + edges - n;
    }
    __device__ __forceinline__ bool cut(int n) const volatile { return n < edges && (tile(n) < open_from || tile(n) > open_to); }
};
static_assert(sizeof(Work) == 64);
__device__ __forceinline__ bool banded(const Params &p) { return p.hi < p.kv_len - 1 || p.q_len - 1 + p.lo > 0; }

// O, the maximum and the sum of the thread's rows over a part of the keys, for decode_sm80_merge.
template <class S> __device__ __forceinline__ void write_part(const Params &p, const volatile Work &w, const float (&o)[S::v_dim / 2], const float (&m)[2], const float (&l)[2], int row, int end) {
    const int64_t first = (((int64_t)w.part * p.batch + w.batch) * p.heads + w.head) * p.q_len;
    const int lane = threadIdx.x % 32;
    each<2>([&](int r) {
        const int64_t at = first + row + 8 * r;
        if (row + 8 * r >= end) return;
        each<S::part_dim / 8>([&](int i) { *(float2 *)(p.part_o + at * S::part_dim + i * 8 + lane % 4 * 2) = i < S::v_dim / 8 ? float2{o[4 * i + 2 * r], o[4 * i + 2 * r + 1]} : float2{0, 0}; });
        if (lane % 4 == 0) ((float2 *)p.part_lse)[at] = {m[r], l[r]};
    });
}

// Adds what was taken out of V to the part of the warp's 16 rows from top on.
template <class S> __device__ __forceinline__ void add_odd_part(const Params &p, const volatile Work &w, int top, int end) {
    const uint16_t *value = (const uint16_t *)p.v.data + w.batch * p.v.batch + w.kv_head * p.v.head; // [kv_len, v_dim]
    const int64_t first = (((int64_t)w.part * p.batch + w.batch) * p.heads + w.head) * p.q_len;
    __syncwarp(); // the warp's rows are written
    for (int i = threadIdx.x % 32; i < 16 * p.v_dim; i += 32) {
        const int see = top + i % 16, column = i / 16;
        if (see >= end) continue;
        float sum = 0;
        for (int n = 0; n < w.edges; n++) {
            const int to = min(min((w.tile(n) + 1) * S::keys, p.kv_len), see + p.hi + 1);
#pragma unroll 1
            for (int j = max(w.tile(n) * S::keys, see + p.lo); w.cut(n) && j < to; j++) {
                const float x = widen<typename S::T>(value[j * p.v.row + column]);
                if (!(fabsf(x) < __int_as_float(0x7f800000))) sum += x;
            }
        }
        if (sum != 0) p.part_o[(first + see) * S::part_dim + column] += sum;
    }
}
