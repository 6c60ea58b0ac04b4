// fwd_sm80 computes, for each query row i of each head,
//
//	m, l, o = -inf, 0, 0
//	for each tile of visible keys, from the last to the first:
//		s = Q[i]·K[j] for each key j of the tile, -inf where i does not see j
//		if max(s) > m + 8/c: a = 2^(c (m-max(s))); o, l, m = a o, a l, max(s)
//		p = 2^(c (s-m)); l += sum(p); o += p·V
//	O[i] = o / l; LSE[i] = scale m + ln(l)
//
// with c = scale log2(e) (Milakov and Gimelshein 2018, algorithm 3; Dao 2023,
// algorithm 1). m may be lower than the true maximum by up to 8 in log2 units. Weights
// up to 2^8 do not overflow float16 or bfloat16, and most rescaling of o is saved.
//
// Launch: grid.x = ceil(q_len/rows) * heads * batch; the Plan gives threads, rows and
// shared memory; no workspace.
//
// A block owns `rows` query rows of one head, each warp 16 or 32 of them, and loops over
// tiles of keys. At dims above 256, o does not fit in a warp's registers: two warps own the
// same rows, both compute s and p, and each holds half of o's columns.
//
// Shared memory: Q [rows, dim], then two stages of K [keys, dim] and V [keys, dim]: one stage is prefetched while the other is in use. Rows are padded with zeros
// to dim. Their 16-byte chunks are permuted so that eight rows of one ldmatrix touch all banks.
// Registers: o, s and p in the layout of mma's sums.
//
// A hidden key has p = 0, but if its V is not finite, p V is NaN. If o has a NaN at the
// end, the block starts again with the non-finite elements of V replaced by 0. At the end of
// this second pass, the block adds the replaced elements to the rows that see their keys.
//
// `forward` below is the loop over tiles. The other files are:
//
//	fwd_sm80.cuh             shapes; the rows and keys of a block
//	fwd_sm80_fetch.cuh       copies to shared memory
//	fwd_sm80_rows.cuh        RowTile: registers of a warp, and its matrix products
//	fwd_sm80_softmax.cuh     weights
//	fwd_sm80_epilogue.cuh    O and LSE
#include "fwd_sm80_epilogue.cuh"
#include "fwd_sm80_softmax.cuh"

// Replaces non-finite elements by 0 in a pair of 16-bit elements.
template <class T> __device__ __forceinline__ uint32_t finite(uint32_t pair) {
    const float inf = __int_as_float(0x7f800000);
    return (fabsf(widen<T>(pair & 0xffff)) < inf ? pair & 0xffff : 0) | (fabsf(widen<T>(pair >> 16)) < inf ? pair & 0xffff0000 : 0);
}

// Replaces non-finite elements of a stage's V by 0.
template <class S> __device__ __forceinline__ void clean(char *value) {
    using T = typename S::T;
#pragma unroll 1
    for (int i = threadIdx.x; i < S::tile_bytes / 16; i += S::threads) {
        uint4 &x = ((uint4 *)value)[i];
        x = {finite<T>(x.x), finite<T>(x.y), finite<T>(x.z), finite<T>(x.w)};
    }
    __syncthreads(); // V is finite
}

template <class S, bool features> __device__ __forceinline__ void forward(const Params &p, const Features &f) {
    extern __shared__ __align__(128) char shared[];
    Work<S, features> w(p, f);
    if (!w.find()) return;
    int full_to = w.full_to;
    Copies<S, features> copies(w, shared);
    constexpr int stage_bytes = copies.stage_bytes;
    typename RowTile<S, features>::Q qf;
    typename RowTile<S, features>::O o;
    RowTile<S, features> t(w, copies.q_tile, shared, qf, o);
    copies.rewind();
    if (w.from <= w.to) {
        copies.load_q();
        copies.load(w.to, (w.to & 1) * stage_bytes);
    }
    if constexpr (S::keep_q) t.keep_q();
    bool careful = false;
    for (;; careful = true, full_to = -1) {
        t.clear();
#pragma unroll 1
        for (int tile = w.to; tile >= w.from; tile--) {
            copy_wait<0>();
            __syncthreads(); // the tile has arrived; the other stage is free
            const uint32_t stage = (tile & 1) * stage_bytes, at = copies.tiles_at + stage;
            const bool full = tile >= w.full_from && tile <= full_to && tile < w.to && !(features && f.drop_below); // dropout's branches would slow attend_full
            if (tile > w.from) copies.load(tile - 1, stage_bytes - stage);
            int done = 0;
            if (full && !t.far)
                done = t.attend_full(at, tile * S::keys);
            else if (careful)
                clean<S>(shared + S::q_bytes + stage + S::tile_bytes);
            if (done < S::keys) t.attend(at, tile * S::keys, done);
        }
        if (careful || !w.edges || !__syncthreads_or(t.spoiled())) break; // the barrier also ensures that both stages are free
        copies.rewind();
        copies.load(w.to, (w.to & 1) * stage_bytes);
    }
    t.finish(careful);
}

#define KERNEL(name, block, features, p, f, ...)                                                               \
    using name##_shape = Shape<__VA_ARGS__>;                                                                  \
    extern "C" __device__ Plan name##_plan = {name##_shape::threads, name##_shape::shared, name##_shape::rows, \
                                              name##_shape::keys};                                            \
    extern "C" __global__ void __launch_bounds__(name##_shape::threads, name##_shape::blocks)                 \
        name(const __grid_constant__ block x) {                                                               \
        forward<name##_shape, features>(p, f);                                                                \
    }
#define INSTANCE(type, T, dim, ...)                                                                           \
    KERNEL(fwd_sm80_##type##_d##dim, Params, false, x, no_features, T, dim, __VA_ARGS__)                      \
    KERNEL(fwd_sm80_features_##type##_d##dim, FeatureParams, true, x.p, x.f, T, dim, __VA_ARGS__)

// Arguments of Shape: warps, 16-row tiles per warp, keys per tile, minimum blocks per multiprocessor, whether Q stays in
// registers, warps that hold the same rows. The three groups of definitions are for multiprocessors with 228, 100 and 164 KB of
// shared memory.
#if __CUDA_ARCH__ >= 900
#define SHAPE_32 4, 2, 64, 3, true
#define SHAPE_64 4, 2, 64, 3, false
#define SHAPE_96 4, 2, 64, 2, false
#define SHAPE_128 4, 2, 64, 2, false
#define SHAPE_192 8, 1, 64, 1, true
#define SHAPE_256 8, 1, 64, 1, false
#define SHAPE_320 8, 1, 64, 1, false, 2
#define SHAPE_512 8, 1, 32, 1, false, 2
#elif __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890
#define SHAPE_32 4, 2, 64, 3, true
#define SHAPE_64 4, 2, 32, 2, true
#define SHAPE_96 4, 1, 32, 2, true
#define SHAPE_128 8, 1, 32, 1, true
#define SHAPE_192 4, 1, 32, 1, true
#define SHAPE_256 4, 1, 32, 1, false
#define SHAPE_320 4, 1, 16, 1, false, 2
#define SHAPE_512 4, 1, 16, 1, false, 2
#else
#define SHAPE_32 4, 2, 64, 3, true
#define SHAPE_64 4, 2, 64, 3, false
#define SHAPE_96 4, 2, 64, 2, false
#define SHAPE_128 4, 2, 32, 2, false
#define SHAPE_192 4, 1, 32, 2, true
#define SHAPE_256 8, 1, 32, 1, false
#define SHAPE_320 8, 1, 32, 1, false, 2
#define SHAPE_512 4, 1, 32, 1, false, 2
#endif

INSTANCE(f16, F16, 32, SHAPE_32)
INSTANCE(f16, F16, 64, SHAPE_64)
INSTANCE(f16, F16, 96, SHAPE_96)
INSTANCE(f16, F16, 128, SHAPE_128)
INSTANCE(f16, F16, 192, SHAPE_192)
INSTANCE(f16, F16, 256, SHAPE_256)
INSTANCE(f16, F16, 320, SHAPE_320)
INSTANCE(f16, F16, 512, SHAPE_512)
INSTANCE(bf16, BF16, 32, SHAPE_32)
INSTANCE(bf16, BF16, 64, SHAPE_64)
INSTANCE(bf16, BF16, 96, SHAPE_96)
INSTANCE(bf16, BF16, 128, SHAPE_128)
INSTANCE(bf16, BF16, 192, SHAPE_192)
INSTANCE(bf16, BF16, 256, SHAPE_256)
INSTANCE(bf16, BF16, 320, SHAPE_320)
INSTANCE(bf16, BF16, 512, SHAPE_512)
