// fwd_sm80 computes, for each query row i of each head,
//
//	m, l, o = -inf, 0, 0
//	for each tile of keys that row i sees, from the last to the first:
//		s = c Q[i]·K[j] for each key j of the tile, -inf where i does not see j
//		if max(s) > m + 3: a = 2^(m-max(s)); o, l, m = a o, a l, max(s)
//		p = 2^(s-m); l += sum(p); o += p·V
//	O[i] = o / l; LSE[i] = (m + log2(l)) ln(2)
//
// with c = scale log2(e) (Milakov and Gimelshein 2018, algorithm 3; Dao 2023,
// algorithm 1). m may stay below the true maximum by what float16 bears, so that
// most tiles need no pass over o. A tile that all rows see whole is not even
// searched for its maximum: if it has grown, the sums of p show that, and the rest
// of the tile is done again with a search.
//
// Launch: grid.x = ceil(q_len/rows) * heads * batch; threads, rows and shared
// memory by the Plan; no workspace.
//
// A block owns `rows` query rows of one head, each warp 16 or 32 of them. Shared
// memory: Q [rows, dim], two stages of K [keys, dim] and V [keys, dim], m and l of
// each thread's rows. The copy of the next tile runs under the products of this
// one. Rows are padded with zeros to dim, their 16-byte chunks permuted against bank
// conflicts. Registers: o and s, which becomes p, in the layout of the mma's sums;
// fragments of Q, K and V two steps ahead.
//
// A key that a row does not see has p = 0, but 0 * NaN would reach o all the same.
// That happens only in tiles on the edge of the band, and leaves a NaN in o. The
// block then starts anew with the finite part of V, and adds the rest to the rows
// that see it at the end.
#include "mma.cuh"
#include "params.cuh"

template <class Type, int dim_, int warps, int tiles_, int keys_, int blocks_, bool keep_q_> struct Shape {
    using T = Type;
    static constexpr int dim = dim_, tiles = tiles_;     // 16-row tiles of a warp
    static constexpr int keys = keys_, blocks = blocks_; // of a tile of K and V; of a multiprocessor, at least
    static constexpr bool keep_q = keep_q_;              // in registers
    static constexpr int threads = warps * 32, rows = warps * tiles * 16;
    static constexpr int chunks = dim / 8, row_bytes = dim * 2;
    static constexpr int group = chunks % 8 == 0 ? 8 : 4; // chunks that are permuted among themselves
    static constexpr int step = threads / group;          // rows that all threads copy at once
    static constexpr int tile_bytes = keys * row_bytes, stage_bytes = 2 * tile_bytes;
    static constexpr int stages_at = rows * row_bytes, rows_at = stages_at + 2 * stage_bytes; // in shared memory
    static constexpr Plan plan = {threads, rows_at + threads * 2 * tiles * 2 * 4, rows, keys};
    static_assert(chunks % group == 0 && keys % step == 0 && rows % step == 0, "copies are even");
};

// The permutation of row r: chunk c lies at place c ^ swizzle(r).
template <class S> __device__ __forceinline__ int swizzle(int r) { return S::group == 8 ? r & 7 : r >> 1 & 3; }

// Copies rows of a matrix [*, cols] into shared memory. Rows from left on and
// columns from cols on become zeros.
template <class S, int rows>
__device__ __forceinline__ void copy_rows(uint32_t to, const uint16_t *from, int64_t stride, int left, int cols, bool aligned) {
    const int r = threadIdx.x / S::group, c = threadIdx.x % S::group;
    to += r * S::row_bytes + ((c ^ swizzle<S>(r)) << 4);
    from += r * stride + c * 8, left -= r, cols -= c * 8;
    if (aligned) {
#pragma unroll
        for (int n = 0; n < rows; n += S::step, from += S::step * stride)
#pragma unroll
            for (int j = 0; j < S::chunks; j += S::group)
                copy_async16_if(to + n * S::row_bytes + j * 16, from + j * 8, n < left && j * 8 < cols);
        return;
    }
#pragma unroll 1
    for (int n = 0; n < rows; n += S::step, from += S::step * stride)
#pragma unroll 1
        for (int j = 0; j < S::chunks; j += S::group) {
            uint32_t x[4] = {};
#pragma unroll
            for (int e = 0; e < 8; e++)
                if (n < left && j * 8 + e < cols) x[e / 2] |= (uint32_t)from[j * 8 + e] << e % 2 * 16;
            store_shared16x8(to + n * S::row_bytes + j * 16, x);
        }
}

// The shared address of the lane's row of the 16x16 fragment at (row, 16 k) of a
// tile; at is the address for (0, 0).
template <class S> __device__ __forceinline__ uint32_t fragment(uint32_t at, int row, int k) {
    constexpr int half = S::group / 2;
    return (at ^ (k % half * 32)) + k / half * (half * 32) + row * S::row_bytes;
}

// A pair of elements, those that are not finite replaced by 0.
template <class T> __device__ __forceinline__ uint32_t finite(uint32_t pair) {
    const float inf = __int_as_float(0x7f800000);
    return (fabsf(widen<T>(pair & 0xffff)) < inf ? pair & 0xffff : 0) | (fabsf(widen<T>(pair >> 16)) < inf ? pair & 0xffff0000 : 0);
}

// Keeps the compiler from computing x again wherever it is used.
__device__ __forceinline__ uint32_t kept(uint32_t x) { return __shfl_sync(~0u, x, threadIdx.x % 32); }

template <class S> __device__ __forceinline__ void forward(const Params &p) {
    using T = typename S::T;
    constexpr int M = S::tiles, R = 2 * M; // 16-row tiles of a warp, rows of a thread
    const float inf = __int_as_float(0x7f800000), lowest = -__int_as_float(0x7f7fffff);
    extern __shared__ __align__(128) char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    // The block's row tile and head. Under a mask, heads whose K and V fit into the
    // L2 cache together go row tile by row tile, the longest first.
    const int lo = min(max(p.lo, -p.q_len), p.kv_len), hi = max(min(p.hi, p.kv_len), -p.q_len);
    const bool rising = hi < p.kv_len - 1, banded = rising || p.q_len - 1 + lo > 0;
    const int row_tiles = (p.q_len + S::rows - 1) / S::rows, all = p.batch * p.heads;
    const int together = banded ? max(1, min(all, (int)(16777216.f / ((float)p.kv_len * (p.dim + p.v_dim))))) : 1;
    const int first = blockIdx.x / (together * row_tiles) * together, size = min(together, all - first);
    const int place = blockIdx.x - first * row_tiles, batch = (first + place % size) / p.heads;
    const int head = (first + place % size) % p.heads, kv_head = head / (p.heads / p.kv_heads);
    const int row0 = (rising ? row_tiles - 1 - place / size : place / size) * S::rows;
    const int rows = min(S::rows, p.q_len - row0);

    // The tiles of keys from..to hold what some row sees; every row sees all of
    // full_from..full_to.
    const int first_key = max(0, row0 + lo), last_key = min(p.kv_len - 1, row0 + rows - 1 + hi);
    const int from = first_key / S::keys, to = last_key < first_key ? from - 1 : last_key / S::keys;
    const int full_from = (max(0, row0 + rows - 1 + lo) + S::keys - 1) / S::keys;
    int full_to = max(0, min(p.kv_len, row0 + hi + 1)) / S::keys - 1;

    const uint16_t *q = (const uint16_t *)p.q.data + batch * p.q.batch + head * p.q.head + row0 * p.q.row; // [rows, dim]
    const uint16_t *k = (const uint16_t *)p.k.data + batch * p.k.batch + kv_head * p.k.head;               // [kv_len, dim]
    const uint16_t *v = (const uint16_t *)p.v.data + batch * p.v.batch + kv_head * p.v.head;               // [kv_len, v_dim]
    auto odd = [](const View &x) { return (int)(((intptr_t)x.data | (x.batch | x.head | x.row) * 2) & 15); };
    const bool aligned = (odd(p.q) | odd(p.k) | odd(p.v) | ((p.dim | p.v_dim) & 7)) == 0;
    const uint32_t q_tile = kept(shared_address(shared)), stages = q_tile + S::stages_at;
    auto load = [&](int tile) { // K and V into the tile's stage
        const int64_t key = tile * S::keys;
        const int left = tile == to ? p.kv_len - key : S::keys;
        const uint32_t at = stages + (tile & 1) * S::stage_bytes;
        copy_rows<S, S::keys>(at, k + key * p.k.row, p.k.row, left, p.dim, aligned);
        copy_rows<S, S::keys>(at + S::tile_bytes, v + key * p.v.row, p.v.row, left, p.v_dim, aligned);
        copy_commit();
    };

    // Where the lane's row of a 16x16 fragment lies: the matrices of an ldmatrix go
    // down first in Q and V, across first in K.
    const int down = lane & 15, across = (lane & 7) + (lane >> 4 << 3);
    const uint32_t value_at = kept(S::tile_bytes + down * S::row_bytes + ((lane >> 4 ^ swizzle<S>(down)) << 4));
    const uint32_t key_at = kept(across * S::row_bytes + ((lane >> 3 & 1 ^ swizzle<S>(across)) << 4));
    const uint32_t warp_q = kept(q_tile + warp * (M * 16 * S::row_bytes) + value_at - S::tile_bytes);
    const int top_row = row0 + warp * (M * 16), row = top_row + lane / 4; // the thread's rows are row + 8 r, r < R
    uint32_t qf[S::keep_q ? M : 1][S::keep_q ? S::dim / 16 : 1][4];
    float o[M][S::dim / 8][4];
    // m and l of the thread's rows. Registers are short while S is made.
    float *const m = (float *)(shared + S::rows_at) + threadIdx.x * R, *const l = m + S::threads * R;

    // A tile of keys from its key `begin` on, K and V at `at`. Returns how many of its
    // keys are done: all, unless without a look at the mask and the maxima these grew.
    auto attend = [&](uint32_t at, int key0, int begin, bool look) __attribute__((always_inline)) {
        // S = Q K^T, sixteen columns of Q and K at a time.
        float s[M][S::keys / 8][4] = {};
        {
            constexpr int columns = S::keys / 16, steps = S::dim / 16 * columns;
            uint32_t a[2][M][4], b[3][4];
            auto load_q = [&](int kk) {
#pragma unroll
                for (int i = 0; i < M; i++)
                    if constexpr (S::keep_q)
#pragma unroll
                        for (int e = 0; e < 4; e++) a[kk % 2][i][e] = qf[i][kk][e];
                    else
                        load_matrix(a[kk % 2][i], fragment<S>(warp_q, i * 16, kk));
            };
            auto load_k = [&](int x) { load_matrix(b[x % 3], fragment<S>(at + key_at, x % columns * 16, x / columns)); };
            load_q(0), load_k(0), load_k(1);
#pragma unroll
            for (int x = 0; x < steps; x++) {
                const int kk = x / columns, n = x % columns;
                if (x + 2 < steps) load_k(x + 2);
                if (n == 0 && kk + 1 < S::dim / 16) load_q(kk + 1);
#pragma unroll
                for (int i = 0; i < M; i++) {
                    mma<T>(s[i][2 * n], a[kk % 2][i], b[x % 3][0], b[x % 3][1]);
                    mma<T>(s[i][2 * n + 1], a[kk % 2][i], b[x % 3][2], b[x % 3][3]);
                }
            }
        }

        if (look) {
            int key = key0 + lane % 4 * 2; // the thread's first
            asm volatile("" : "+r"(key));  // or the compiler compares ahead, for all tiles
            const int left = p.kv_len - key;
            const uint32_t before = key - row - lo, band = hi - lo; // row + lo .. row + hi are seen
            float top[R];
            bool grown = false;
#pragma unroll
            for (int r = 0; r < R; r++) {
                top[r] = -inf;
#pragma unroll
                for (int n = 0; n < S::keys; n += 8)
#pragma unroll
                    for (int e = 0; e < 2; e++) {
                        float &x = s[r / 2][n / 8][r % 2 * 2 + e];
                        if (before + (n + e - r * 8) > band || n + e >= left || n < begin) x = -inf;
                        top[r] = fmaxf(top[r], x);
                    }
                top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
                top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
                top[r] *= p.scale_log2;
                grown |= top[r] > m[r] + 3; // p <= 8, far from the limit below
            }
            if (__any_sync(~0u, grown))
#pragma unroll
                for (int r = 0; r < R; r++) {
                    const float max = fmaxf(m[r], top[r]), a = exp2_approx(m[r] - max);
                    m[r] = max;
                    l[r] *= a;
#pragma unroll
                    for (int n = 0; n < S::dim / 8; n++) {
                        o[r / 2][n][r % 2 * 2] *= a;
                        o[r / 2][n][r % 2 * 2 + 1] *= a;
                    }
                }
        }

        // P in place of S, sixteen keys ahead of o += P V.
        constexpr int columns = S::dim / 16, steps = S::keys / 16 * columns, pieces = (2 * M + columns - 1) / columns;
        uint32_t b[3][4];
        auto load_v = [&](int x) { load_matrix_transposed(b[x % 3], fragment<S>(at + value_at, x / columns * 16, x % columns)); };
        load_v(0), load_v(1);
        float top[R], sums[R] = {};
#pragma unroll
        for (int r = 0; r < R; r++) top[r] = m[r];
        auto weights = [&](int kk, int y) {
            float(&x)[4] = s[y / 2][2 * kk + y % 2];
#pragma unroll
            for (int e = 0; e < 4; e++) x[e] = exp2_approx(fmaf(x[e], p.scale_log2, -top[y / 2 * 2 + e / 2]));
        };
        auto done = [&](int keys) {
#pragma unroll
            for (int r = 0; r < R; r++) l[r] += sums[r];
            return keys;
        };
#pragma unroll
        for (int y = 0; y < 2 * M; y++) weights(0, y);
#pragma unroll
        for (int kk = 0; kk < S::keys / 16; kk++) {
            float sum[R], total = 0;
#pragma unroll
            for (int r = 0; r < R; r++) {
                const float *x = s[r / 2][2 * kk] + r % 2 * 2, *y = s[r / 2][2 * kk + 1] + r % 2 * 2;
                sum[r] = (x[0] + x[1]) + (y[0] + y[1]);
                total += sum[r];
            }
            if (__any_sync(~0u, total >= 256)) return done(kk * 16);
            uint32_t a[M][4];
#pragma unroll
            for (int i = 0; i < M; i++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    a[i][e] = pack<T>(s[i][2 * kk + e / 2][e % 2 * 2], s[i][2 * kk + e / 2][e % 2 * 2 + 1]);
#pragma unroll
            for (int r = 0; r < R; r++) sums[r] += sum[r];
#pragma unroll
            for (int n = 0; n < columns; n++) {
                const int x = kk * columns + n;
                if (x + 2 < steps) load_v(x + 2);
#pragma unroll
                for (int i = 0; i < M; i++) {
                    mma<T>(o[i][2 * n], a[i], b[x % 3][0], b[x % 3][1]);
                    mma<T>(o[i][2 * n + 1], a[i], b[x % 3][2], b[x % 3][3]);
                }
                if (kk + 1 < S::keys / 16)
#pragma unroll
                    for (int y = n * pieces; y < min((n + 1) * pieces, 2 * M); y++) weights(kk + 1, y);
            }
        }
        return done(S::keys);
    };

    if (from <= to) {
        copy_rows<S, S::rows>(q_tile, q, p.q.row, rows, p.dim, aligned);
        copy_commit();
        load(to);
    }
    if constexpr (S::keep_q) {
        copy_wait<1>();
        __syncthreads(); // Q has arrived for every thread
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int kk = 0; kk < S::dim / 16; kk++) load_matrix(qf[i][kk], fragment<S>(warp_q, i * 16, kk));
    }
    auto each_o = [&](auto f) {
#pragma unroll
        for (int x = 0; x < M * S::dim / 2; x++) f(o[x / (S::dim / 2)][x / 4 % (S::dim / 8)][x % 4]);
    };
    bool careful = false;
    for (;; careful = true, full_to = -1) {
        each_o([](float &x) { x = 0; });
#pragma unroll
        for (int r = 0; r < R; r++) m[r] = lowest, l[r] = 0;
#pragma unroll 1
        for (int tile = to; tile >= from; tile--) {
            copy_wait<0>();
            __syncthreads(); // this tile has arrived for every thread, and all have left the other stage
            if (tile > from) load(tile - 1);
            const int at = S::stages_at + (tile & 1) * S::stage_bytes, key0 = tile * S::keys;
            int done = 0;
            if (tile < to && tile >= full_from && tile <= full_to) {
                done = attend(q_tile + at, key0, 0, false);
            } else if (careful) {
#pragma unroll 1
                for (int i = threadIdx.x; i < S::tile_bytes / 16; i += S::threads) {
                    uint4 &x = ((uint4 *)(shared + at + S::tile_bytes))[i];
                    x = {finite<T>(x.x), finite<T>(x.y), finite<T>(x.z), finite<T>(x.w)};
                }
                __syncthreads(); // V is finite
            }
            const bool sees = key0 <= top_row + M * 16 - 1 + hi && key0 + S::keys > top_row + lo; // the warp, some of it
            if (sees && done < S::keys) attend(q_tile + at, key0, done, true);
        }
        if (careful || (from >= full_from && to <= full_to)) break;
        bool nan = false;
        each_o([&](float x) { nan |= x != x; });
        if (!__syncthreads_or(nan)) break; // also: all have left both stages
        load(to);
    }

    // O goes through the warp's own rows of Q, so that whole chunks are stored.
    uint16_t *out = (uint16_t *)p.o.data + batch * p.o.batch + head * p.o.head; // [q_len, v_dim]
    float *lse = p.lse.data ? (float *)p.lse.data + batch * p.lse.batch + head * p.lse.head : nullptr; // [q_len]
    char *rows_o = shared + warp * (M * 16 * S::row_bytes);
    auto at_o = [&](int r, int c) { return rows_o + r * S::row_bytes + ((c / 8 ^ swizzle<S>(r)) << 4) + c % 8 * 2; };
    __syncwarp(); // every lane has read its part of Q
#pragma unroll
    for (int r = 0; r < R; r++) {
        float sum = l[r] + __shfl_xor_sync(~0u, l[r], 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const float a = sum == 0 ? 0 : 1 / sum;
#pragma unroll
        for (int n = 0; n < S::dim / 8; n++)
            *(uint32_t *)at_o(r * 8 + lane / 4, n * 8 + lane % 4 * 2) = pack<T>(o[r / 2][n][r % 2 * 2] * a, o[r / 2][n][r % 2 * 2 + 1] * a);
        if (lse && lane % 4 == 0 && row + r * 8 < p.q_len) lse[(row + r * 8) * p.lse.row] = (m[r] + log2f(sum)) * 0.69314718f;
    }
    __syncwarp(); // O is complete
    if (careful) { // what of V is not finite, to the rows that see it
#pragma unroll 1
        for (int key = first_key; key <= last_key; key++)
#pragma unroll 1
            for (int c = lane; c < p.v_dim; c += 32) {
                const float x = widen<T>(v[key * p.v.row + c]);
                if (fabsf(x) < inf) continue;
#pragma unroll 1
                for (int r = max(0, key - hi - top_row); r <= min(M * 16 - 1, key - lo - top_row); r++)
                    *(uint16_t *)at_o(r, c) = pack<T>(widen<T>(*(uint16_t *)at_o(r, c)) + x, 0);
            }
        __syncwarp(); // O is complete again
    }
    const bool whole = (((uintptr_t)out | p.o.row * 2) & 15) == 0;
#pragma unroll 4
    for (int i = lane; i < M * 16 * S::chunks; i += 32) {
        const int r = i / S::chunks, c = i % S::chunks * 8;
        if (top_row + r >= p.q_len) continue;
        uint16_t *to = out + (top_row + r) * p.o.row + c;
        if (whole && c + 8 <= p.v_dim)
            *(uint4 *)to = *(const uint4 *)at_o(r, c);
        else
            for (int e = 0; e < min(8, p.v_dim - c); e++) to[e] = *(const uint16_t *)at_o(r, c + e);
    }
}

#define INSTANCE(name, ...)                                                                               \
    extern "C" __device__ Plan name##_plan = Shape<__VA_ARGS__>::plan;                                    \
    extern "C" __global__ void __launch_bounds__(Shape<__VA_ARGS__>::threads, Shape<__VA_ARGS__>::blocks) \
        name(const __grid_constant__ Params p) { forward<Shape<__VA_ARGS__>>(p); }

// Warps, 16-row tiles of a warp, keys, blocks of a multiprocessor, Q in registers.
#define SHAPE_32 4, 2, 64, 3, true
#if __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 // 100 KB of shared memory
#define SHAPE_64 4, 2, 32, 2, true
#define SHAPE_96 4, 1, 32, 2, true
#define SHAPE_128 8, 1, 32, 1, true
#define SHAPE_192 4, 1, 32, 1, true
#define SHAPE_256 4, 1, 32, 1, false
#else
#define SHAPE_64 4, 2, 64, 3, false
#define SHAPE_96 4, 2, 64, 2, false
#if __CUDA_ARCH__ < 900 // 164 KB
#define SHAPE_128 4, 2, 32, 2, false
#define SHAPE_192 4, 1, 32, 2, true
#define SHAPE_256 8, 1, 32, 1, false
#else // 228 KB
#define SHAPE_128 4, 2, 64, 2, false
#define SHAPE_192 8, 1, 64, 1, true
#define SHAPE_256 8, 1, 64, 1, false
#endif
#endif

INSTANCE(fwd_sm80_f16_d32, F16, 32, SHAPE_32)
INSTANCE(fwd_sm80_f16_d64, F16, 64, SHAPE_64)
INSTANCE(fwd_sm80_f16_d96, F16, 96, SHAPE_96)
INSTANCE(fwd_sm80_f16_d128, F16, 128, SHAPE_128)
INSTANCE(fwd_sm80_f16_d192, F16, 192, SHAPE_192)
INSTANCE(fwd_sm80_f16_d256, F16, 256, SHAPE_256)
INSTANCE(fwd_sm80_bf16_d32, BF16, 32, SHAPE_32)
INSTANCE(fwd_sm80_bf16_d64, BF16, 64, SHAPE_64)
INSTANCE(fwd_sm80_bf16_d96, BF16, 96, SHAPE_96)
INSTANCE(fwd_sm80_bf16_d128, BF16, 128, SHAPE_128)
INSTANCE(fwd_sm80_bf16_d192, BF16, 192, SHAPE_192)
INSTANCE(fwd_sm80_bf16_d256, BF16, 256, SHAPE_256)
