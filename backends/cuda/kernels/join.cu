// Joins partial results of ring ranks. Tensors are strided and float32, float16 or bfloat16.
//
//	join_sum    dst = x + y; x or y may be null; if x and y are null, dst = value
//	join_merge  merges the outputs x and y of two sets of keys, whose LSE are lse and
//	            part_lse, into dst and lse; if y is null, the second set only adds weight
//	            to the softmax's sum, like a sink
//
// Sums are in float32. dst may be x. Launch: grid.x = ceil(batch * heads * rows / rows per
// block), with 256 / lanes rows per block.
//
// `lanes` threads share a row in pieces of 8 columns. The first of these threads computes
// the weights of x and y in float64, because an absolute error of LSE becomes a relative
// error of the weights.
#include "mma.cuh"
#include "params.cuh"

struct Join {
    View dst, x, y, lse, part_lse;
    int64_t count; // total number of rows of all heads and batches
    int heads, rows, dim;
    int lanes;                     // threads per row: a power of 2, at most 32
    int dst_type, x_type, y_type;  // 0 float32, 1 float16, 2 bfloat16
    int aligned;                   // 1 if the pieces of 8 columns are 16-byte aligned in all tensors
    float value;
};

constexpr int join_threads = 256;

__device__ __forceinline__ void widen(float (&to)[8], const uint32_t (&from)[4], int type) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        if (type == 1) {
            asm("{.reg .f16 lo, hi; mov.b32 {lo, hi}, %2; cvt.f32.f16 %0, lo; cvt.f32.f16 %1, hi;}" : "=f"(to[2 * i]), "=f"(to[2 * i + 1]) : "r"(from[i]));
        } else {
            to[2 * i] = __uint_as_float(from[i] << 16);
            to[2 * i + 1] = __uint_as_float(from[i] & 0xffff0000);
        }
    }
}

// Loads n <= 8 columns of a row, from element `at` of v on, padded with zeros to 8.
__device__ __forceinline__ void load8(float (&to)[8], const View &v, int64_t at, int type, int n, bool aligned) {
    if (type == 0) {
        const float *from = (const float *)v.data + at;
        if (aligned && n == 8) {
            const float4 a = *(const float4 *)from, b = *(const float4 *)(from + 4);
            to[0] = a.x, to[1] = a.y, to[2] = a.z, to[3] = a.w, to[4] = b.x, to[5] = b.y, to[6] = b.z, to[7] = b.w;
            return;
        }
#pragma unroll
        for (int i = 0; i < 8; i++) to[i] = i < n ? from[i] : 0;
        return;
    }
    const uint16_t *from = (const uint16_t *)v.data + at;
    uint32_t bits[4];
    if (aligned && n == 8) {
        const uint4 a = *(const uint4 *)from;
        bits[0] = a.x, bits[1] = a.y, bits[2] = a.z, bits[3] = a.w;
    } else {
#pragma unroll
        for (int i = 0; i < 4; i++) bits[i] = (2 * i < n ? from[2 * i] : 0) | (uint32_t)(2 * i + 1 < n ? from[2 * i + 1] : 0) << 16;
    }
    widen(to, bits, type);
}

__device__ __forceinline__ void store8(const View &v, int64_t at, int type, const float (&x)[8], int n, bool aligned) {
    if (type == 0) {
        float *to = (float *)v.data + at;
        if (aligned && n == 8) {
            *(float4 *)to = make_float4(x[0], x[1], x[2], x[3]);
            *(float4 *)(to + 4) = make_float4(x[4], x[5], x[6], x[7]);
            return;
        }
#pragma unroll
        for (int i = 0; i < 8; i++)
            if (i < n) to[i] = x[i];
        return;
    }
    uint16_t *to = (uint16_t *)v.data + at;
    uint32_t bits[4];
#pragma unroll
    for (int i = 0; i < 4; i++) bits[i] = type == 1 ? pack<F16>(x[2 * i], x[2 * i + 1]) : pack<BF16>(x[2 * i], x[2 * i + 1]);
    if (aligned && n == 8) {
        *(uint4 *)to = make_uint4(bits[0], bits[1], bits[2], bits[3]);
        return;
    }
#pragma unroll
    for (int i = 0; i < 8; i++)
        if (i < n) to[i] = (uint16_t)(bits[i / 2] >> i % 2 * 16);
}

__device__ __forceinline__ int64_t offset(const View &v, int64_t b, int64_t h, int64_t r) { return b * v.batch + h * v.head + r * v.row; }

template <bool merge> __device__ __forceinline__ void join(const Join &j) {
    const int lane = threadIdx.x % j.lanes;
    const int64_t row = (int64_t)blockIdx.x * (join_threads / j.lanes) + threadIdx.x / j.lanes;
    const bool there = row < j.count;
    int64_t r, h, b;
    if (j.count < 1ll << 31) { // 32-bit divisions are cheap
        const uint32_t at = (uint32_t)row, head = at / j.rows;
        r = at % j.rows, h = head % j.heads, b = head / j.heads;
    } else {
        r = row % j.rows, h = row / j.rows % j.heads, b = row / j.rows / j.heads;
    }
    float mine = 1, theirs = 1;
    if constexpr (merge) {
        if (there && lane == 0) {
            float *at = (float *)j.lse.data + offset(j.lse, b, h, r);
            const double a = *at, c = ((const float *)j.part_lse.data)[offset(j.part_lse, b, h, r)], most = fmax(a, c);
            if (most < 0 && isinf(most) && a == c) { // neither x nor y has keys
                mine = theirs = 0, *at = (float)most;
            } else { // the weights are NaN if either LSE is NaN or Inf
                const double ea = exp(a - most), ec = exp(c - most);
                mine = (float)(ea / (ea + ec)), theirs = (float)(ec / (ea + ec));
                *at = (float)(most + log(ea + ec));
            }
        }
        const int first = threadIdx.x % 32 / j.lanes * j.lanes;
        mine = __shfl_sync(0xffffffff, mine, first);
        theirs = __shfl_sync(0xffffffff, theirs, first);
    }
    if (!there) return;
    for (int c = 8 * lane; c < j.dim; c += 8 * j.lanes) {
        const int n = min(8, j.dim - c);
        float x[8], y[8];
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = 0, y[i] = 0;
        if (j.x.data && mine != 0) load8(x, j.x, offset(j.x, b, h, r) + c, j.x_type, n, j.aligned);
        if (j.y.data && theirs != 0) load8(y, j.y, offset(j.y, b, h, r) + c, j.y_type, n, j.aligned);
#pragma unroll
        for (int i = 0; i < 8; i++) {
            if constexpr (merge) x[i] = mine * x[i] + theirs * y[i];
            else x[i] = j.x.data ? (j.y.data ? x[i] + y[i] : x[i]) : (j.y.data ? y[i] : j.value);
        }
        store8(j.dst, offset(j.dst, b, h, r) + c, j.dst_type, x, n, j.aligned);
    }
}

extern "C" __global__ void __launch_bounds__(join_threads) join_sum(const __grid_constant__ Join j) { join<false>(j); }
extern "C" __device__ Plan join_sum_plan = {join_threads, 0, 0, 0};

extern "C" __global__ void __launch_bounds__(join_threads) join_merge(const __grid_constant__ Join j) { join<true>(j); }
extern "C" __device__ Plan join_merge_plan = {join_threads, 0, 0, 0};
