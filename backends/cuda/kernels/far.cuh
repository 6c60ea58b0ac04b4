// Scores far from 0. The weight of score s is 2^(c s - round(c m)), where c converts scores to log2 units and m is the row
// maximum. Rounding c m scales all weights of the row by one factor, which the division by the sum of weights removes. Far
// from 0, however, this factor leaves the range of the weights' type, or c m overflows. A row is called far if |c m| is at
// least kFar. The weights of a far row are 2^(c (s - m)): m is subtracted before the multiplication, so the largest weight
// is exactly 1.
#pragma once
#include "mma.cuh"

constexpr float kFar = 1 << 14; // in log2 units; below it, the rounding of c m changes a weight less than the weight's own rounding to 16 bits

// Reports whether a row is far: its maximum or LSE is at least kFar in absolute value. scaled is this maximum or LSE, in
// log2 units. If scaled is NaN, either answer is right, because the row's results are NaN.
__device__ __forceinline__ bool is_far(float scaled) { return fabsf(scaled) >= kFar; }
__device__ __forceinline__ bool may_be_far(float highest, float c, bool masked) {
    return is_far(highest * c) && (!masked || highest > __int_as_float(0xff800000));
}
__device__ __forceinline__ float quad_max(float x) {
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 1));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 2));
}

// FarRow updates the maximum of a row that may be far. The constructor's arguments are
//
//	m_         maximum over the earlier tiles, in log2 units
//	highest    maximum over the new tile, unscaled
//	before     maximum over the earlier tiles, unscaled, if the row was far; else -inf
//	c          factor that converts scores to log2 units
//
// The results are
//
//	far        tells whether the row is far now
//	most       the new maximum, unscaled, if far; else -inf
//	m          the old maximum minus the new maximum if far, else the old maximum; in log2 units
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

// Beneath computes the weights of a row with maximum m: 2^(c s - base) or, if the row is far, 2^(c (s - m)). c converts
// scores to log2 units; base is c m, rounded. Before the first visible key, m is -inf and base is 0.
struct Beneath {
    float m, c, base;
    __device__ __forceinline__ Beneath(float m, float c) : m(m), c(c), base(m == __int_as_float(0xff800000) ? 0 : __fmul_rn(m, c)) {}
    __device__ __forceinline__ bool far() const { return is_far(base); }
    // Returns the factor that rescales sums when the maximum rises from `lower` to m.
    __device__ __forceinline__ float rescale(float lower) const { return exp2_approx(far() ? (lower - m) * c : __fmul_rn(lower, c) - base); }
    __device__ __forceinline__ float weight(float s) const { return exp2_approx(far() ? (s - m) * c : fmaf(s, c, -base)); }
};
