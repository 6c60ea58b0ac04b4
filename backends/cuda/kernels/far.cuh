// Scores far from 0. A weight is 2^(c s - round(c m)), where m is the row's maximum. The rounding is a factor of all
// weights of the row, which the division by their sum removes. Far from 0 this factor leaves the range of the weights' type,
// or c m overflows. There the maximum is subtracted before the product, and the largest weight is exactly 1.
#pragma once
#include "mma.cuh"

constexpr float kFar = 1 << 14; // in units of log2: half a unit in the last place is less than that of a 16-bit weight

// Whether a row is far, from its scaled maximum or its LSE; a row of NaN need not be.
__device__ __forceinline__ bool is_far(float scaled) { return fabsf(scaled) >= kFar; }
// Whether a lane's highest score can make its row far.
__device__ __forceinline__ bool may_be_far(float highest, float c, bool masked) {
    return is_far(highest * c) && (!masked || highest > __int_as_float(0xff800000));
}
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// A row where scores may be far. m is the scaled maximum so far, or, of a row that was far, 0; before is the highest
// score of such a row, else -inf; highest is that of a tile. If the row is far with it, most becomes the highest score of
// all, and m what scores are beneath it that were beneath the old one.
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

// A row's maximum m, in units that c makes log2, and what comes off c s. Without a key yet, m is -inf.
struct Beneath {
    float m, c, base;
    __device__ __forceinline__ Beneath(float m, float c) : m(m), c(c), base(m == __int_as_float(0xff800000) ? 0 : __fmul_rn(m, c)) {}
    __device__ __forceinline__ bool far() const { return is_far(base); }
    // What sums beneath a lower maximum are multiplied by.
    __device__ __forceinline__ float rescale(float lower) const { return exp2_approx(far() ? (lower - m) * c : __fmul_rn(lower, c) - base); }
    __device__ __forceinline__ float weight(float s) const { return exp2_approx(far() ? (s - m) * c : fmaf(s, c, -base)); }
};
