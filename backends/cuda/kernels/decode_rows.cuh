// The rows and the keys of a block of decode_sm80 or decode_int8.
#pragma once
#include "decode_sm80.cuh"

// The query rows of all heads of a KV head's group are numbered together. The packed row with number r is query row r/group of
// head r%group of the group. Row i of the tile sees keys first(i) to last(i) of the block's part of the keys.
struct Band {
    unsigned row, group, total; // number of the tile's first packed row; heads per group; number of packed rows
    int lo, hi, begin, end;     // query row n sees keys n+lo to n+hi; the part consists of keys begin to end-1
    __device__ int n(int i) const { return min(row + i, total - 1) / group; }
    __device__ int head(int i) const { return min(row + i, total - 1) % group; } // within the KV head's group
    __device__ int first(int i) const { return max(begin, n(i) + lo); }
    __device__ int last(int i) const { return min(end - 1, n(i) + hi); }
};

// A packed row, which is query row n of head h, and the arguments of its features.
struct RowOf {
    int n, h;
    float slope;             // ALiBi slope of the row's head, in natural units
    const char *bias, *mask; // addresses of the row's elements for key 0
};

// RowScores modifies scores and computes dropout for the rows of a block.
template <class T> struct RowScores {
    const Params &p;
    const Features &f;
    int b, diagonal;
    bool changes; // features modify scores, which are then in natural units; otherwise scores are dot products

    __device__ __forceinline__ RowScores(const Params &p, const Features &f, int b, int diagonal)
        : p(p), f(f), b(b), diagonal(diagonal), changes(::changes(f)) {}
    __device__ __forceinline__ bool wide() const { return sizeof(T) == 4 || f.bias_wide; }
    __device__ __forceinline__ RowOf row(int n, int h) const {
        return {n, h, f.slopes.data ? slope_of(f, b, h) : 0,
                (const char *)f.bias.data + (b * f.bias.batch + h * f.bias.head + n * f.bias.row) * (wide() ? 4 : 2),
                (const char *)f.mask.data + b * f.mask.batch + h * f.mask.head + n * f.mask.row};
    }
    // Returns the score of key j from the dot product s.
    __device__ __forceinline__ float of(const RowOf &r, float s, int j) const {
        float slope, unit = p.scale; // unit: the factor by which s must still be multiplied
        if (f.cap_in != 0) s = sizeof(T) == 4 ? fine_tanh(s * f.cap_in, slope) : tanh_of(s * f.cap_in, slope), unit = f.cap;
        if (f.bias.data) {
            const int at = min(j, p.kv_len - 1);
            if constexpr (sizeof(T) == 4) s = fmaf(s, unit, ((const float *)r.bias)[at]);
            else s = fmaf(s, unit, f.bias_wide ? ((const float *)r.bias)[at] : widen<T>(((const uint16_t *)r.bias)[at]));
            unit = 1;
        }
        return fmaf(s, unit, -r.slope * fabsf(j - r.n - diagonal));
    }
    __device__ __forceinline__ bool hides(const RowOf &r, int j) const { return f.mask.data && !r.mask[min(j, p.kv_len - 1)]; }
    // Returns a bit mask: bit i is set if dropout drops key j/8*8+i.
    __device__ __forceinline__ uint32_t drops(int n, int h, int j) const { return drops_of(random_words(f, b, h, n, j), f.drop_below); }
};

// Source copies keys of K or V to a warp's ring, L::keys keys per round. Rows in the ring have `pitch` bytes. Each lane copies
// pieces of 16 bytes. Rows begin at column `column` of the tensor.
template <class L, int pitch> struct Source {
    static constexpr int units = pitch / 16, span = units < 32 ? 32 / units : 1; // rows that the warp copies at once
    const char *data; // the lane's 16 bytes of the next round's first row
    int64_t row;      // bytes from one row to the next
    int bytes, place; // bytes of a row from the lane's first byte on; offset of the destination in the stage
    bool aligned;

    __device__ __forceinline__ Source(const View &t, int b, int g, int key, int column, int dim, int lane, bool paged) {
        row = t.row * L::size;
        data = (const char *)t.data + (b * t.batch + g * t.head + column) * L::size + key * row;
        aligned = (((uintptr_t)data | row) & 15) == 0;
        data += (paged ? 0 : lane / units * row) + lane % units * 16;
        bytes = (dim - column) * L::size - lane % units * 16, place = L::template place<pitch>(lane / units, lane % units);
    }
    // Copies the keys of one round from pages. Lane first + i passes in `begins` the offset of key i from data, in bytes.
    __device__ __forceinline__ void fetch_pages(uint32_t to, int keys, int64_t begins, int first, int lane) {
        auto copy = [&](int i, bool plain) {
            const int r = 32 * i / units, u = 32 * i % units, at = L::template place<pitch>(r, u), key = r + lane / units;
            const char *from = data + __shfl_sync(lanes, begins, first + key) + u * 16;
            const int count = plain || key < keys ? max(0, min(16, bytes - u * 16)) : 0;
            const uint32_t there = to + (place ^ at % 128) + at / 128 * 128;
            if (plain || aligned) copy_async16(there, count > 0 ? from : data, count);
            else copy_elements16<L::size>(there, from, count);
        };
        if (aligned && keys >= L::keys) {
            UNROLL for (int i = 0; i < L::keys * units / 32; i++) copy(i, true);
        } else {
            ROLLED for (int i = 0; i < L::keys * units / 32; i++) copy(i, false);
        }
    }
    // Copies the keys of the next round. Only the first `keys` of the L::keys keys exist. The rows of missing keys become zeros.
    __device__ __forceinline__ void fetch(uint32_t to, int keys, int lane) {
        const char *from = data;
        data += L::warps * L::keys * row;
        fetch_from(from, to, keys, lane);
    }
    __device__ __forceinline__ void fetch_from(const char *from, uint32_t to, int keys, int lane) {
        auto copy = [&](int i, bool plain) {
            const int r = 32 * i / units, u = 32 * i % units, at = L::template place<pitch>(r, u); // row and unit relative to the lane's first
            const int count = plain || r + lane / units < keys ? max(0, min(16, bytes - u * 16)) : 0;
            const uint32_t there = to + (place ^ at % 128) + at / 128 * 128;
            if (plain || aligned) copy_async16(there, from + u * 16, count);
            else copy_elements16<L::size>(there, from + u * 16, count);
            if (u + 32 >= units) from += span * row;
        };
        if (aligned && keys >= L::keys) {
            UNROLL for (int i = 0; i < L::keys * units / 32; i++) copy(i, true);
        } else {
            ROLLED for (int i = 0; i < L::keys * units / 32; i++) copy(i, false);
        }
    }
};
