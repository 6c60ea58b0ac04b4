// Helpers of float32 kernels: tiles in shared memory, and products of tiles on tensor
// cores with float32's precision.
//
// Each operand is split into a tf32 number and the rest, a = hi + lo. A product a b is
// computed as hi hi + (hi lo + lo hi). The omitted term lo lo is about as small as float32's
// rounding error (Markidis et al. 2018). The tensor core truncates, so long sums would
// drift towards zero. Therefore the small terms hi lo and lo hi are summed before the large
// terms hi hi, or separately. Float32 units, which round, add up short sums of large terms
// (Ootomo and Yokota 2022).
//
// Each warp of a block has 16 rows. Lane g*4+t of a warp holds four elements of a 16x8
// product: rows g and g+8, columns 2t and 2t+1. A lane loads 16 or 8 bytes of an operand
// at once, so it holds adjacent columns of operands: see score_many and weigh.
#pragma once
#include "score.cuh"

constexpr float kInf = __builtin_huge_valf();

__device__ __forceinline__ int lane_g() { return threadIdx.x / 4 % 8; }
__device__ __forceinline__ int lane_t() { return threadIdx.x % 4; }

// Returns the offset, in floats, of a row's 16-byte chunk in a tile of `slice`
// columns in shared memory. The chunks of a row are permuted, so that the loads of
// score and weigh have no bank conflicts.
template <int slice> __device__ __forceinline__ int place(int row, int chunk) {
    return row * slice + ((chunk ^ (row & 6) ^ (row & 1) << 2) << 2);
}

__device__ __forceinline__ float *first(const View &v, int batch, int head) {
    return (float *)v.data + batch * v.batch + head * v.head;
}

// Starts the copy of `count` rows and `slice` columns of a matrix [rows, cols], from element
// (row, col) on. The matrix's rows are `step` elements apart. Elements outside the matrix
// become zeros.
template <int threads, int slice, int count>
__device__ __forceinline__ void load(float *to, const float *data, int64_t step, int rows, int cols, int row, int col) {
    constexpr int chunks = slice / 4, stride = threads / chunks;
    static_assert(count % stride == 0, "every thread copies as much");
    int chunk = threadIdx.x % chunks, r = threadIdx.x / chunks;
    const float *from = data + (row + r) * step + col + chunk * 4;
    bool aligned = (((uintptr_t)data | step << 2) & 15) == 0;
    if (stride % 8 == 0 && aligned && row + count <= rows && col + slice <= cols) { // the slice is complete
        uint32_t at = shared_address(to + place<slice>(r, chunk));
#pragma unroll
        for (int i = 0; i < count; i += stride, from += stride * step) copy_async16(at + i * slice * 4, from);
        return;
    }
    rows -= row + r;
    cols -= col + chunk * 4;
    if (cols <= 0) rows = 0;
#pragma unroll 1
    for (int i = 0; i < count; i += stride, from += stride * step) {
        uint32_t at = shared_address(to + place<slice>(i + r, chunk));
        if (aligned) {
            copy_async16(at, i < rows ? from : data, i < rows ? min(cols * 4, 16) : 0);
        } else {
#pragma unroll 1
            for (int c = 0; c < 4; c++) {
                bool in = i < rows && c < cols;
                copy_async4(at + c * 4, in ? from + c : data, in ? 4 : 0);
            }
        }
    }
}

// Like load, but copies `count` keys of KV head h, from key `row` on. K and V may be paged.
// Elements of 16 bits are converted to float32.
template <int threads, int slice, int count>
__device__ __forceinline__ void load_keys(float *to, const View &v, const Features &f, const Sequence &s, int b, int h, int cols, int row, int col) {
    if (!f.page && !f.kv_type) {
        load<threads, slice, count>(to, (const float *)v.data + key_place(v, f, s, b, h, 0), v.row, s.keys, cols, row, col);
        return;
    }
    constexpr int chunks = slice / 4, stride = threads / chunks;
    const int chunk = threadIdx.x % chunks, r = threadIdx.x / chunks, c0 = col + chunk * 4, left = cols - c0;
    const bool aligned = (((uintptr_t)v.data | v.batch << 2 | v.head << 2 | v.row << 2) & 15) == 0;
#pragma unroll 1
    for (int i = r; i < count; i += stride) {
        const bool in = row + i < s.keys && left > 0;
        const int64_t at = in ? key_place(v, f, s, b, h, row + i) + c0 : 0;
        float *into = to + place<slice>(i, chunk);
        if (f.kv_type) {
            const uint16_t *from = (const uint16_t *)v.data + at;
            float x[4];
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const uint16_t y = in && c < left ? from[c] : 0;
                x[c] = f.kv_type == 1 ? widen<F16>(y) : widen<BF16>(y);
            }
            *(float4 *)into = make_float4(x[0], x[1], x[2], x[3]);
            continue;
        }
        const float *from = (const float *)v.data + at;
        if (aligned) {
            copy_async16(shared_address(into), from, in ? min(left * 4, 16) : 0);
            continue;
        }
#pragma unroll 1
        for (int c = 0; c < 4; c++) copy_async4(shared_address(into + c), in && c < left ? from + c : (const float *)v.data, in && c < left ? 4 : 0);
    }
}

// Replaces the non-finite elements of a tile by zeros and reports whether there were any.
// If so, bit r of bad[c] is set if the element in row r, column c was replaced.
template <int threads, int slice, int count> __device__ __forceinline__ bool clean(float *tile, unsigned long long *bad) {
    bool found = false;
#pragma unroll 2
    for (int i = 4 * threadIdx.x; i < count * slice; i += 4 * threads) {
        float4 x = *(const float4 *)(tile + i);
        found |= !(fabsf(x.x) < kInf) | !(fabsf(x.y) < kInf) | !(fabsf(x.z) < kInf) | !(fabsf(x.w) < kInf);
    }
    if (!__syncthreads_or(found)) return false; // the barrier also ensures that bad is free
#pragma unroll 1
    for (int c = threadIdx.x; c < slice; c += threads) bad[c] = 0;
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < count * slice; i += threads) {
        int row = i / slice, col = i % slice, at = place<slice>(row, col / 4) + col % 4;
        if (!(fabsf(tile[at]) < kInf)) {
            tile[at] = 0;
            atomicOr(&bad[col], 1ull << row);
        }
    }
    __syncthreads();
    return true;
}

// Turns elements of o, weigh's result for 16 columns from column `col` on, into NaN. An element
// in row i, column c becomes NaN if clean() has replaced an element of column c of the tile, in
// a row that row i sees. Row n (0 to 3) of the lane sees rows from + x to `to` + x of the tile.
// x is n%2 + n/2*8.
__device__ __forceinline__ void spoil(float (&o)[2][4], const unsigned long long *bad, int col, int from, int to) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
        int lo = max(from + n % 2 + n / 2 * 8, 0), hi = min(to + n % 2 + n / 2 * 8, 63);
        unsigned long long seen = lo <= hi ? ~0ull >> (63 - hi) & ~0ull << lo : 0;
#pragma unroll
        for (int c = 0; c < 2; c++)
            if (bad[col + 2 * lane_g() + c] & seen) o[n / 2][2 * c + n % 2] = __int_as_float(0x7fffffff);
    }
}

// Like spoil, for kernels with a mask. at is the index of the lane's row 0 in the sequence, and
// walked the index of the tile's row 0.
template <bool transposed>
__device__ __forceinline__ void spoil_masked(float (&o)[2][4], const unsigned long long *bad, int col, int from, int to, const Scores<float> &x, int at, int walked, int rows) {
#pragma unroll
    for (int n = 0; n < 4; n++) {
        const int own = at + n % 2 + n / 2 * 8, lo = max(from + n % 2 + n / 2 * 8, 0), hi = min(to + n % 2 + n / 2 * 8, 63);
        const unsigned long long seen = lo <= hi && own < rows ? ~0ull >> (63 - hi) & ~0ull << lo : 0;
#pragma unroll
        for (int c = 0; c < 2; c++)
#pragma unroll 1
            for (unsigned long long left = bad[col + 2 * lane_g() + c] & seen; left; left &= left - 1) {
                const int other = walked + __ffsll(left) - 1;
                if (x.takes_part(transposed ? other : own, transposed ? own : other)) o[n / 2][2 * c + n % 2] = __int_as_float(0x7fffffff);
            }
    }
}

// Splits four numbers by split_tf32. Numbers whose relative difference from the largest float32
// is less than about 2^-12 become Inf.
__device__ __forceinline__ void split4(const float4 &x, uint32_t (&hi)[4], uint32_t (&lo)[4]) {
    split_tf32(x.x, hi[0], lo[0]);
    split_tf32(x.y, hi[1], lo[1]);
    split_tf32(x.z, hi[2], lo[2]);
    split_tf32(x.w, hi[3], lo[3]);
}

// Adds the product a b^T over one slice of columns to s. a has 16 rows, and b has 8*tiles rows.
// Lane 4g+t loads columns 4t to 4t+3 of each 16 columns. With `fine`, each sum is split into two
// shorter sums, for more precision. `fine` is for scores, because an absolute error of a score
// becomes a relative error of the weight.
template <int slice, bool fine, int tiles>
__device__ __forceinline__ void score_many(float (&s)[tiles][4], const float *a, const float *b) {
    constexpr int group = tiles < 4 ? tiles : 4; // products in flight
    int g = lane_g(), t = lane_t();
#pragma unroll 1
    for (int kk = 0; kk < slice / 16; kk++) {
        uint32_t h0[4], l0[4], h8[4], l8[4]; // rows g and g+8
        split4(*(const float4 *)(a + place<slice>(g, 4 * kk + t)), h0, l0);
        split4(*(const float4 *)(a + place<slice>(g + 8, 4 * kk + t)), h8, l8);
        uint32_t ah[2][4] = {{h0[0], h8[0], h0[1], h8[1]}, {h0[2], h8[2], h0[3], h8[3]}};
        uint32_t al[2][4] = {{l0[0], l8[0], l0[1], l8[1]}, {l0[2], l8[2], l0[3], l8[3]}};
#pragma unroll
        for (int j = 0; j < tiles; j += group) {
            uint32_t bh[group][4], bl[group][4];
            float x[group][4] = {}, y[group][4] = {};
#pragma unroll
            for (int n = 0; n < group; n++)
                split4(*(const float4 *)(b + place<slice>(8 * (j + n) + g, 4 * kk + t)), bh[n], bl[n]);
#pragma unroll
            for (int i = 0; i < 6; i++) // small terms, then large ones
#pragma unroll
                for (int n = 0; n < group; n++) {
                    int c = i % 2 * 2;
                    if (i < 2) mma_tf32(x[n], al[i % 2], bh[n][c], bh[n][c + 1]);
                    else if (i < 4) mma_tf32(x[n], ah[i % 2], bl[n][c], bl[n][c + 1]);
                    else mma_tf32(fine && i == 5 ? y[n] : x[n], ah[i % 2], bh[n][c], bh[n][c + 1]);
                }
#pragma unroll
            for (int n = 0; n < group; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[j + n][e] += fine ? x[n][e] + y[n][e] : x[n][e];
        }
    }
}

__device__ __forceinline__ float dot4(const float4 &x, const float4 &y, float sum) {
    return fmaf(x.w, y.w, fmaf(x.z, y.z, fmaf(x.y, y.y, fmaf(x.x, y.x, sum))));
}

// Like score_many, without tensor cores. Groups of eight products are summed separately,
// because each addition in one long sum would round at the size of the whole sum.
template <int slice, int tiles>
__device__ __forceinline__ void score_few(float (&s)[tiles][4], const float *a, const float *b, int cols) {
    int g = lane_g(), t = lane_t();
#pragma unroll 1
    for (int chunk = 0; 4 * chunk < cols; chunk += 2) {
        float4 x[2][2];
#pragma unroll
        for (int i = 0; i < 4; i++) x[i / 2][i % 2] = *(const float4 *)(a + place<slice>(g + i / 2 * 8, chunk + i % 2));
#pragma unroll
        for (int j = 0; j < tiles; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float4 y = *(const float4 *)(b + place<slice>(8 * j + 2 * t + e, chunk));
                const float4 z = *(const float4 *)(b + place<slice>(8 * j + 2 * t + e, chunk + 1));
#pragma unroll
                for (int half = 0; half < 2; half++) s[j][2 * half + e] += dot4(x[half][1], z, dot4(x[half][0], y, 0));
            }
    }
}

// Adds the product a b^T to s by score_few or score_many. Two tf32 numbers hold 23 of a float32's 24
// bits, and the tensor core truncates. So score_many is more precise than rounded float32
// sums only if the sums are long.
template <int slice, bool fine, int tiles>
__device__ __forceinline__ void score(float (&s)[tiles][4], const float *a, const float *b, int cols) {
    if (slice < 64 || cols <= 32) score_few<slice>(s, a, b, min(cols, slice));
    else if constexpr (slice >= 64) score_many<slice, fine>(s, a, b);
}

// Truncates x and y, bits of float32 numbers, to bf16 and packs them, x in the lower half.
__device__ __forceinline__ uint32_t pair_bf16(uint32_t x, uint32_t y) { return __byte_perm(x, y, 0x7632); }

// Returns the difference between lo and lo truncated to tf32. mma_tf32 ignores this difference.
__device__ __forceinline__ uint32_t unread(uint32_t lo) { return __float_as_uint(__uint_as_float(lo) - __uint_as_float(lo & 0xffffe000)); }

// Computes o = alpha o + p v for a slice of v. p has the layout of score's result. The product
// is computed transposed, because then p already has the register layout of an operand: p's key
// 2t has index t in the operand, and key 2t+1 has index t+4. Lane 4g+t loads columns 2g and 2g+1
// of each 16 columns of v. Element e of o[m][h] is in
//
//	row       8h + 2t + e%2
//	column    16m + 2g + e/2
//
// alpha[n] (n < 4) is for row 2t + n%2 + n/2*8. Template arguments:
//
//	signs     negative elements of p are weights that Scores::drop has dropped, and count as 0
//	rounds    float32 units add up sums over 8 keys; otherwise the tensor core truncates each
//	          partial sum over the tile, which costs precision if the first keys have most weight
//	all       no bit of v is lost, so that O = v in a row with one key
template <int slice, bool signs = false, bool rounds = false, bool all = false, int tiles>
__device__ __forceinline__ void weigh(float (&o)[slice / 16][2][4], const float (&alpha)[4], const float (&p)[tiles][4], const float *v) {
    int g = lane_g(), t = lane_t();
#pragma unroll
    for (int m = 0; m < slice / 16; m += 2) {
        float s[2][2][4] = {}, c[2][2][4] = {}; // sums of large terms and of small terms; if rounds, the whole sum and the sum over 8 keys
#pragma unroll
        for (int j = 0; j < tiles; j++) {
            uint32_t ph[4], pl[4];
            if constexpr (signs)
                split4(make_float4(left_of(p[j][0]), left_of(p[j][1]), left_of(p[j][2]), left_of(p[j][3])), ph, pl);
            else
                split4(make_float4(p[j][0], p[j][1], p[j][2], p[j][3]), ph, pl);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                int chunk = 4 * (m + n) + g / 2, half = g % 2 * 2;
                float2 x = *(const float2 *)(v + place<slice>(8 * j + 2 * t, chunk) + half);
                float2 y = *(const float2 *)(v + place<slice>(8 * j + 2 * t + 1, chunk) + half);
                uint32_t vh[4], vl[4];
                split4(make_float4(x.x, x.y, y.x, y.y), vh, vl);
                if constexpr (rounds) {
#pragma unroll
                    for (int h = 0; h < 2; h++)
#pragma unroll
                        for (int e = 0; e < 4; e++) c[n][h][e] = 0;
                }
                if constexpr (all) {
                    const uint32_t v0 = pair_bf16(unread(vl[0]), unread(vl[2])), v1 = pair_bf16(unread(vl[1]), unread(vl[3]));
#pragma unroll
                    for (int h = 0; h < 2; h++) mma_bf16(c[n][h], v0, v1, pair_bf16(ph[2 * h], ph[2 * h + 1]));
                }
#pragma unroll
                for (int i = 0; i < 3; i++) // two interleaved chains of sums; if rounds, one chain, whose last term is the large term
#pragma unroll
                    for (int h = 0; h < 2; h++) {
                        const bool large = i == (rounds ? 2 : 1);
                        const uint32_t(&by)[4] = i == 0 || large ? ph : pl;
                        mma_tf32(large && !rounds ? s[n][h] : c[n][h], i == 0 ? vl : vh, by[2 * h], by[2 * h + 1]);
                    }
                if constexpr (rounds) {
#pragma unroll
                    for (int h = 0; h < 2; h++)
#pragma unroll
                        for (int e = 0; e < 4; e++) s[n][h][e] += c[n][h][e];
                }
            }
        }
#pragma unroll
        for (int n = 0; n < 2; n++)
#pragma unroll
            for (int h = 0; h < 2; h++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    o[m + n][h][e] = fmaf(o[m + n][h][e], alpha[2 * h + e % 2], rounds ? s[n][h][e] : s[n][h][e] + c[n][h][e]);
    }
}

// Multiplies the lane's row n of o, weigh's result for 16 columns, by scale. Writes the products
// to a row of cols elements, which begins at `to`. The first of the 16 columns is col.
__device__ __forceinline__ void store(float *to, int cols, int col, const float (&o)[2][4], int n, float scale) {
    float x = o[n / 2][n % 2] * scale, y = o[n / 2][2 + n % 2] * scale;
    col += 2 * lane_g();
    if (col + 2 <= cols && ((uintptr_t)to & 7) == 0) {
        *(float2 *)(to + col) = make_float2(x, y);
    } else {
        if (col < cols) to[col] = x;
        if (col + 1 < cols) to[col + 1] = y;
    }
}

// Like store, but writes (mine * o + earlier * (old content of to)) / sum. If `row` is false, the row is padding, and
// store_onto writes 0. The division is last, so O is rounded once. If earlier is 0, `to` is not read.
__device__ __forceinline__ void store_onto(float *to, int cols, int col, const float (&o)[2][4], int n, float mine, float earlier, float sum, bool row) {
    const float by = __fdividef(1, sum);
    col += 2 * lane_g();
#pragma unroll
    for (int c = 0; c < 2; c++)
        if (col + c < cols) {
            float x = o[n / 2][2 * c + n % 2];
            x = earlier == 0 ? x * mine : fmaf(x, mine, earlier * to[col + c]);
            const float y = x * by, rest = fmaf(-y, sum, x); // remainder of the division, which corrects y's last bit
            to[col + c] = row ? fabsf(y) < kInf ? fmaf(rest, by, y) : y : 0;
        }
}
