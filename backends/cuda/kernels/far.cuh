// Scores far from 0. A weight is 2^(c s - round(c m)), where m is the row maximum. The rounding scales all weights of the
// row by one factor, which the division by their sum removes. Far from 0 this factor leaves the range of the weights' type,
// or c m overflows. There the maximum is subtracted before the product, and the largest weight is exactly 1.
#pragma once
#include "mma.cuh"

constexpr float kFar = 1 << 14; // in units of log2; below it, the rounding error of c m is within a 16-bit weight's

// Reports whether a row is far, from its scaled maximum or its LSE. Either result is right for NaN.
__device__ __forceinline__ bool is_far(float scaled) { return fabsf(scaled) >= kFar; }
__device__ __forceinline__ bool may_be_far(float highest, float c, bool masked) {
    return is_far(highest * c) && (!masked || highest > __int_as_float(0xff800000));
}
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// FarRow updates a row whose scores may be far. m_ is its scaled maximum so far; before is the highest score of a row that
// was far, else -inf; highest is the tile's highest score. If the row is far now, most is its highest score, and m the old
// maximum relative to it.
struct FarRow {
    float m, most;
    bool far;
    __device__ __forceinline__ FarRow(float m_, float highest, float before, float c) {
        const float none = __int_as_float(0xff800000), high = fmaxf(highest, before);
        const bool was = before > none;
        m = was ? __fmul_rn(before, c) : m_;
        far = high > none && fabsf(__fmul_rn(high, c)) >= kFar && (was || !(m > __fmul_rn(high, c)));
        most = far ? high : none;
        if (far) m = was ? (before - high) * c : m == none ? none : m - __fmul_rn(high, c);
    }
};

// Beneath computes weights 2^(c s - base) of a row with maximum m, -inf before the first visible key; c converts scores to
// units of log2.
struct Beneath {
    float m, c, base;
    __device__ __forceinline__ Beneath(float m, float c) : m(m), c(c), base(m == __int_as_float(0xff800000) ? 0 : __fmul_rn(m, c)) {}
    __device__ __forceinline__ bool far() const { return is_far(base); }
    // Returns the factor of sums from a lower maximum to m.
    __device__ __forceinline__ float rescale(float lower) const { return exp2_approx(far() ? (lower - m) * c : __fmul_rn(lower, c) - base); }
    __device__ __forceinline__ float weight(float s) const { return exp2_approx(far() ? (s - m) * c : fmaf(s, c, -base)); }
};
