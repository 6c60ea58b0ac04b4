// Instructions of compute capability 8.0 and later, one function each. The PTX
// ISA, "Matrix fragments for mma", defines the fragment layouts.
#pragma once
#include <stdint.h>

struct F16 {};  // element types, as template arguments
struct BF16 {};

// Returns x. The compiler recomputes expressions of the returned value instead of keeping
// their results in registers.
__device__ __forceinline__ int fresh(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

__device__ __forceinline__ uint32_t shared_address(const void *p) {
    return (uint32_t)__cvta_generic_to_shared(p);
}

// Starts a copy of `bytes` bytes to shared memory, padded with zeros to 16 bytes.
__device__ __forceinline__ void copy_async16(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}
__device__ __forceinline__ void copy_commit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int pending> __device__ __forceinline__ void copy_wait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

// Loads four 8x8 matrices of 16-bit elements; lane l gives the address of row l%8 of matrix l/8.
__device__ __forceinline__ void load_matrix(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}
__device__ __forceinline__ void load_matrix_transposed(uint32_t (&r)[4], uint32_t address) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(address) : "memory");
}

// Adds the product of a and b to d. a is a row-major 16x16 matrix, and b is a column-major 16x8
// matrix. Sums are float32.
template <class T> __device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);
template <> __device__ __forceinline__ void mma<BF16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
template <> __device__ __forceinline__ void mma<F16>(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Rounds two floats to a pair of 16-bit elements, lo in the lower half.
template <class T> __device__ __forceinline__ uint32_t pack(float lo, float hi);
template <> __device__ __forceinline__ uint32_t pack<BF16>(float lo, float hi) {
    uint32_t r;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}
template <> __device__ __forceinline__ uint32_t pack<F16>(float lo, float hi) {
    uint32_t r;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(hi), "f"(lo));
    return r;
}

template <class T> __device__ __forceinline__ float widen(uint16_t x);
template <> __device__ __forceinline__ float widen<BF16>(uint16_t x) { return __uint_as_float((uint32_t)x << 16); }
template <> __device__ __forceinline__ float widen<F16>(uint16_t x) {
    float r;
    asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x));
    return r;
}

// Returns 2^x; 0 for -inf, NaN for NaN.
__device__ __forceinline__ float exp2_approx(float x) {
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

// Starts a copy of 16 bytes to shared memory. If `there` is false, writes 16 zero bytes instead.
__device__ __forceinline__ void copy_async16_if(uint32_t to, const void *from, bool there) {
    asm volatile("{.reg .pred p; setp.eq.u32 p, %2, 0; cp.async.cg.shared.global [%0], [%1], 16, p;}" ::"r"(to), "l"(from),
                 "r"((uint32_t)there) : "memory");
}

__device__ __forceinline__ void store_shared16x8(uint32_t to, const uint32_t (&x)[4]) {
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}

// Stores four 8x8 matrices of 16-bit elements: the inverse of load_matrix.
__device__ __forceinline__ void store_matrix(uint32_t address, const uint32_t (&r)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(address), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
#else
    int lane = threadIdx.x % 32;
    for (int i = 0; i < 4; i++)
        asm volatile("st.shared.b32 [%0], %1;" ::"r"(__shfl_sync(~0u, address, 8 * i + lane / 4) + lane % 4 * 4), "r"(r[i]) : "memory");
#endif
}

// Adds four floats to four floats in 16 aligned bytes of global memory. Each addition is atomic.
__device__ __forceinline__ void add_global4(float *to, const float (&x)[4]) {
#if __CUDA_ARCH__ >= 900
    asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1,%2,%3,%4};" ::"l"(to), "f"(x[0]), "f"(x[1]), "f"(x[2]), "f"(x[3]) : "memory");
#else
    for (int i = 0; i < 4; i++) asm volatile("red.relaxed.gpu.global.add.f32 [%0], %1;" ::"l"(to + i), "f"(x[i]) : "memory");
#endif
}

// Counters in global memory. A block polls a counter until another block has raised it.
// add_counter_release first publishes the thread's earlier writes, and the writes of other
// threads that a barrier ordered before the call.
__device__ __forceinline__ int load_counter(const int *from) {
    int x;
    asm volatile("ld.relaxed.gpu.global.s32 %0, [%1];" : "=r"(x) : "l"(from) : "memory");
    return x;
}
__device__ __forceinline__ void add_counter_release(int *to) { asm volatile("red.release.gpu.global.add.s32 [%0], 1;" ::"l"(to) : "memory"); }

__device__ __forceinline__ void copy_async16(uint32_t to, const void *from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}

// Starts a copy of one float to shared memory if bytes is 4. If bytes is 0, stores 0.
__device__ __forceinline__ void copy_async4(uint32_t to, const void *from, int bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(bytes) : "memory");
}

// Adds the product of a and b to d. a is a row-major 16x8 matrix, and b is a column-major 8x8
// matrix. Sums are float32. a and b are tf32: the tensor core ignores the last 13 bits of
// float32 numbers.
__device__ __forceinline__ void mma_tf32(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Adds the product of a and b to d. a is a row-major 16x8 matrix, and b is a column-major 8x8
// matrix. a and b are bf16. Sums are float32.
__device__ __forceinline__ void mma_bf16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t b) {
    asm("mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "r"(a0), "r"(a1), "r"(b));
}

// Splits x into hi + lo for mma_tf32. hi is x rounded to tf32. lo is the exact difference
// x - hi; mma_tf32 ignores at most one bit of lo.
__device__ __forceinline__ void split_tf32(float x, uint32_t &hi, uint32_t &lo) {
    hi = (__float_as_uint(x) + 0x1000) & 0xffffe000;
    lo = __float_as_uint(x - __uint_as_float(hi));
}

// butterfly_max and butterfly_sum return the maximum and the sum of x over a set of lanes. The
// indices of these lanes differ only in the bits with values from, 2*from, ..., to/2.
template <int from, int to> __device__ __forceinline__ float butterfly_max(float x) {
#pragma unroll
    for (int bit = from; bit < to; bit *= 2) x = fmaxf(x, __shfl_xor_sync(~0u, x, bit));
    return x;
}
template <int from, int to> __device__ __forceinline__ float butterfly_sum(float x) {
#pragma unroll
    for (int bit = from; bit < to; bit *= 2) x += __shfl_xor_sync(~0u, x, bit);
    return x;
}

// Like copy_async16, but synchronous. The function loads elements of `size` bytes one by one,
// so `from` needs to be aligned only to `size` bytes.
template <int size> __device__ __forceinline__ void copy_elements16(uint32_t to, const void *from, int bytes) {
    uint32_t x[4] = {};
#pragma unroll
    for (int e = 0; e < 16; e += size) {
        if (e >= bytes) continue;
        if constexpr (size == 4) x[e / 4] = *(const uint32_t *)((const char *)from + e);
        else x[e / 4] |= (uint32_t)*(const uint16_t *)((const char *)from + e) << e % 4 * 8;
    }
    asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(to), "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]) : "memory");
}
