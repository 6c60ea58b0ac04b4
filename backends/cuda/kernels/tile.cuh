// Copies rows of 16-bit elements between strided global memory and tiles in shared memory.
// The tiles' layout lets ldmatrix read without bank conflicts.
#pragma once
#include "mma.cuh"
#include "params.cuh"

constexpr float infinity = __builtin_inff();
__device__ __forceinline__ bool finite(float x) { return fabsf(x) < infinity; }

// Replaces by 0 each of x's two elements that is infinite or NaN (exponent all ones).
template <class T> __device__ __forceinline__ uint32_t clear_nonfinite(uint32_t x);
template <> __device__ __forceinline__ uint32_t clear_nonfinite<BF16>(uint32_t x) {
    return x & ~((((x & 0x7f807f80) + 0x00800080) >> 15 & 0x00010001) * 0xffff);
}
template <> __device__ __forceinline__ uint32_t clear_nonfinite<F16>(uint32_t x) {
    return x & ~((((x & 0x7c007c00) + 0x04000400) >> 15 & 0x00010001) * 0xffff);
}

// Tiles are row-major, in chunks of 16 bytes. Chunk c of row r is stored as
// chunk c ^ swizzle(r), so that the chunks c of eight consecutive rows are in different banks.
template <int pitch> __device__ __forceinline__ int swizzle(int row) { return pitch % 128 ? row >> 1 & 3 : row & 7; }

// Returns the address `row` rows below and `chunk` chunks right of `place`, which is a
// tile's address plus a result of place(). row is a multiple of 8. chunk is even, and place()
// chooses chunk 0 or 1, so an exclusive or adds the chunk numbers.
template <int pitch> __device__ __forceinline__ uint32_t at(uint32_t place, int row, int chunk) {
    constexpr int mask = pitch % 128 ? 3 : 7;
    return (place ^ ((chunk & mask) << 4)) + row * pitch + ((chunk & ~mask) << 4);
}

// Returns the offset in a tile of the chunk that lane l addresses for ldmatrix.
//
//	across = false    chunk l/16 of row l%16: for load_matrix of mma's operand a, and for
//	                  load_matrix_transposed of operand b
//	across = true     chunk l/8%2 of row l/16*8 + l%8: for load_matrix of b in a product
//	                  a b^T, and for load_matrix_transposed of a
template <int pitch> __device__ __forceinline__ uint32_t place(int lane, bool across) {
    const int l = fresh(lane), row = across ? l / 16 * 8 + l % 8 : l % 16, chunk = across ? l / 8 % 2 : l / 16;
    return row * pitch + ((chunk ^ swizzle<pitch>(row)) << 4);
}

// Loads min(count, 8) elements of a row, padded with zeros to 8.
__device__ __forceinline__ uint4 load8(const uint16_t *from, int count, bool aligned) {
    if (count >= 8 && aligned) return *(const uint4 *)from;
    uint32_t w[4];
    for (int i = 0; i < 4; i++)
        w[i] = (2 * i < count ? from[2 * i] : 0) | (2 * i + 1 < count ? from[2 * i + 1] : 0) << 16;
    return {w[0], w[1], w[2], w[3]};
}
__device__ __forceinline__ void store8(uint16_t *to, uint4 x, int count, bool aligned) {
    if (count >= 8 && aligned) {
        *(uint4 *)to = x;
        return;
    }
    const uint32_t w[4] = {x.x, x.y, x.z, x.w};
    for (int i = 0; i < 8; i++)
        if (i < count) to[i] = w[i / 2] >> (i % 2 * 16);
}
// Reports whether all rows are 16-byte aligned and, if dim is given, consist of whole
// 16-byte chunks.
__device__ __forceinline__ bool aligned16(const View &v, int dim = 0) {
    return ((uint64_t)v.data & 15) == 0 && ((v.batch | v.head | v.row | dim) & 7) == 0;
}
__device__ __forceinline__ uint16_t *row_of(const View &v, int b, int h, int i) {
    return (uint16_t *)v.data + b * v.batch + h * v.head + i * v.row;
}
__device__ __forceinline__ float stat_of(const View &v, int b, int h, int i) {
    return ((const float *)v.data)[b * v.batch + h * v.head + i * v.row];
}

// Starts an asynchronous copy of `count` rows of `dim` elements into a tile of rows x D
// elements. The remaining rows and columns of the tile become zeros.
template <int rows, int D, int threads>
__device__ __forceinline__ void copy_rows(uint32_t tile, const uint16_t *from, int64_t stride, int count, int dim, bool aligned) {
    constexpr int width = D % 64 ? 4 : 8, pitch = 2 * D, step = threads / width; // width adjacent threads copy width chunks of a row; the block copies step rows at a time
    const int r = threadIdx.x / width, c = threadIdx.x % width;
    const uint32_t to = tile + r * pitch + ((c ^ swizzle<pitch>(r)) << 4);
    from += r * stride + 8 * c;
    if (aligned) {
#pragma unroll
        for (int i = 0; i < rows / step; i++, from += step * stride)
#pragma unroll
            for (int j = 0; j < D / 8; j += width)
                copy_async16_if(to + i * step * pitch + 16 * j, from + 8 * j, r + i * step < count && 8 * (c + j) < dim);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < rows / step; i++, from += step * stride)
#pragma unroll 1
        for (int j = 0; j < D / 8; j += width) {
            const uint4 x = load8(from + 8 * j, r + i * step < count ? dim - 8 * (c + j) : 0, false);
            asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to + i * step * pitch + 16 * j), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
        }
}

// Writes `dim` elements of each of the first `count` rows of a tile to global memory.
template <int rows, int D, int threads>
__device__ __forceinline__ void write_rows(const uint8_t *tile, uint16_t *to, int64_t stride, int count, int dim, bool aligned) {
    for (int i = threadIdx.x; i < rows * D / 8; i += threads) {
        const int row = i / (D / 8), chunk = i % (D / 8);
        const uint4 x = *(const uint4 *)(tile + row * 2 * D + ((chunk ^ swizzle<2 * D>(row)) << 4));
        if (row < count) store8(to + row * stride + 8 * chunk, x, dim - 8 * chunk, aligned);
    }
}

// Multiplies the 16x16 block n of a product's sums by factor and converts the block to operand a
// of mma.
template <class T, int N> __device__ __forceinline__ void pack_block(uint32_t (&y)[4], const float (&x)[N][4], int n, float factor = 1) {
    for (int i = 0; i < 4; i++) y[i] = pack<T>(x[2 * n + i / 2][i % 2 * 2] * factor, x[2 * n + i / 2][i % 2 * 2 + 1] * factor);
}

// Adds the product a b^T to c. a has 16*M rows, b has 8*N rows, each of D columns. The lane
// addresses a by a + to_a and b by b + to_b. Each of these two sums includes a result of place().
template <class T, int D, int M, int N>
__device__ __forceinline__ void product(float (&c)[M][N][4], uint32_t a, int to_a, uint32_t b, int to_b) {
#pragma unroll
    for (int k = 0; k < D / 16; k++) {
        uint32_t x[M][4], y[4];
        for (int m = 0; m < M; m++) load_matrix(x[m], at<2 * D>(a, 16 * m, 2 * k) + to_a);
        for (int n = 0; n < N; n += 2) {
            load_matrix(y, at<2 * D>(b, 8 * n, 2 * k) + to_b);
            for (int m = 0; m < M; m++) mma<T>(c[m][n], x[m], y[0], y[1]), mma<T>(c[m][n + 1], x[m], y[2], y[3]);
        }
    }
}
