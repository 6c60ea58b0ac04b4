// Arguments and helpers of limits.cu and limits_sm90.cu.
#pragma once
#include "params.cuh"

struct F16;
struct BF16;

struct Limits {
    const uint4 *from; // source of copies
    uint4 *to;
    int64_t words; // number of 16-byte words to copy
    int rounds;
};

template <class T> constexpr uint32_t mantissas = 0; // mask of the mantissa and sign bits of two packed numbers
template <> constexpr uint32_t mantissas<F16> = 0x83ff83ff;
template <> constexpr uint32_t mantissas<BF16> = 0x807f807f;
template <class T> constexpr uint32_t ones = 0; // two packed numbers 1.0
template <> constexpr uint32_t ones<F16> = 0x3c003c00;
template <> constexpr uint32_t ones<BF16> = 0x3f803f80;

// Returns two packed random numbers with magnitudes from 1 to 2 and random signs. Products
// of zeros would draw less power, and the measured rate would be too high.
template <class T> __device__ __forceinline__ uint32_t random_pair(uint32_t seed) {
    uint32_t x = (seed + blockIdx.x * 7919) * 2654435761u;
    x = (x ^ x >> 15) * 2246822519u;
    return (x ^ x >> 13) & mantissas<T> | ones<T>;
}

// Stores x if x equals a constant, which never happens. So the compiler cannot remove the computation of x.
__device__ __forceinline__ void keep(const Limits &a, float x) {
    if (x == 0x1.234p77f) *(float *)a.to = x;
}

#define LIMIT(name, body, threads, thousands, blocks)                                       \
    extern "C" __device__ Plan name##_plan = {threads, 0, (int)(thousands), blocks};        \
    extern "C" __global__ void __launch_bounds__(threads) name(const __grid_constant__ Limits a) { body(a); }
