// Instances of fwd_sm90 for ranges of keys and for row maxima: see fwd_sm90.cu. They skip tiles of keys that no row of a tile
// of rows sees. They also support padded, packed and paged sequences, sinks and carry. A call without ranges is a call whose
// rows see all keys of the band.
//
// If there are ranges, another kernel runs before the main kernel. It finds the bounds of the ranges of each 64 rows. With R = N
// rounded up to a multiple of 128, its grid is ceil(B H R / 256).
#include "fwd_sm90_loop.cuh"

// Finds the bounds of the ranges of all rows. Each warp processes 64 rows of a head.
__device__ __forceinline__ void bounds(const Params &p, const Features &f) {
    const int tiles = (p.q_len + 127) / 128 * 2, n = blockIdx.x * 4 + threadIdx.x / 32, head = n / tiles;
    if (head < p.batch * p.heads) bound_rows<false>(p, f, sequence(p, f, head / p.heads), p.heads, head / p.heads, head % p.heads, n % tiles * 64);
}
#define BOUNDS(type)                                                                   \
    extern "C" __device__ Plan fwd_sm90_features_bounds_ranges_##type##_plan = {128, 0, 256, 0}; \
    extern "C" __global__ void __launch_bounds__(128, 8) fwd_sm90_features_bounds_ranges_##type(const __grid_constant__ FeatureParams x) { bounds(x.p, x.f); }

#define RANGES(type, T)                                                                       \
    KERNEL(fwd_sm90_features_ranges_##type##_d64, FeatureParams, (const MapParams &)x, x.f, Kind::ranges, T, 64, 64, 2, 128, 2, 3, false) \
    KERNEL(fwd_sm90_features_ranges_##type##_d128, FeatureParams, (const MapParams &)x, x.f, Kind::ranges, T, 128, 128, 2, 128, 2, 2, true) \
    KERNEL(fwd_sm90_features_ranges_##type##_d256, FeatureParams, (const MapParams &)x, x.f, Kind::ranges, T, 256, 256, 2, 80, 1, 2, false)
BOUNDS(bf16) RANGES(bf16, BF16)
BOUNDS(f16) RANGES(f16, F16)
