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
// tiles of keys. Shared memory: Q [rows, dim], then two stages of K [keys, dim] and
// V [keys, dim]: one is prefetched while the other is in use. Rows are padded with zeros to
// dim. Their 16-byte chunks are permuted so that eight rows of one ldmatrix touch all banks.
// Registers: o, s and p in the layout of mma's sums.
//
// A hidden key has p = 0, but if its V is not finite, p V is NaN. If o has a NaN at the
// end, the block starts again with the non-finite elements of V replaced by 0. At the end of
// this second pass it adds the replaced elements, only to the rows that see them.
#include "score.cuh"

template <class Type, int dim_, int warps_, int tiles_, int keys_, int blocks_, bool keep_q_> struct Shape {
    using T = Type;
    static constexpr int dim = dim_, warps = warps_;
    static constexpr int tiles = tiles_;    // 16-row tiles per warp
    static constexpr int keys = keys_;      // keys per tile of K and V
    static constexpr int blocks = blocks_;  // minimum blocks per multiprocessor
    static constexpr bool keep_q = keep_q_; // whether Q stays in registers
    static constexpr int threads = warps * 32, rows = warps * tiles * 16;
    static constexpr int row_bytes = dim * 2;
    static constexpr int chunks = dim / 8;                 // 16-byte chunks per row
    static constexpr int group = chunks % 8 == 0 ? 8 : 4; // number of chunks permuted among themselves
    static constexpr int q_bytes = rows * row_bytes, tile_bytes = keys * row_bytes;
    static constexpr int rows_at = q_bytes + 4 * tile_bytes; // offset in shared memory of m, l and l's Kahan compensation; each thread has one set for each of its rows
    static constexpr int shared = rows_at + 10 * threads * 2 * tiles;
    static constexpr int step = threads / group; // rows per row group, the rows that all threads copy at once
    static_assert(chunks % group == 0 && keys % step == 0 && rows % step == 0, "whole row groups");
};

// The permutation of row r: chunk c is stored at c ^ swizzle(r).
template <class S> __device__ __forceinline__ int swizzle(int r) { return S::group == 8 ? r & 7 : r >> 1 & 3; }

// Copies the thread's chunk j of a row group into shared memory, asynchronously if aligned.
// Columns number cols and higher are replaced by zeros, and if !row all columns. `to` and
// `from` are addresses for the thread's chunk 0.
template <class S>
__device__ __forceinline__ void copy_chunk(uint32_t to, const uint16_t *from, int j, bool row, int cols, bool aligned) {
    to += j * S::group * 16, from += j * S::group * 8, cols -= (threadIdx.x % S::group + j * S::group) * 8;
    if (aligned) return copy_async16_if(to, from, row && cols > 0);
    uint32_t x[4] = {};
    asm volatile("" : "+l"(from)); // otherwise the compiler keeps eight pointers in registers
#pragma unroll
    for (int e = 0; e < 8; e++)
        if (row && e < cols) x[e / 2] |= (uint32_t)from[e] << e % 2 * 16;
    store_shared16x8(to, x);
}

// Returns the shared address of the lane's row of the 16x16 fragment at (row, 16 k)
// of a tile; `at` is the address for (0, 0).
template <class S> __device__ __forceinline__ uint32_t fragment(uint32_t at, int row, int k) {
    constexpr int half = S::group / 2;
    return (at ^ (k % half * 32)) + k / half * (half * 32) + row * S::row_bytes;
}

// Replaces non-finite elements of a pair by 0.
template <class T> __device__ __forceinline__ uint32_t finite(uint32_t pair) {
    const float inf = __int_as_float(0x7f800000);
    return (fabsf(widen<T>(pair & 0xffff)) < inf ? pair & 0xffff : 0) | (fabsf(widen<T>(pair >> 16)) < inf ? pair & 0xffff0000 : 0);
}

// Returns x, and keeps the compiler from recomputing it at each use.
__device__ __forceinline__ uint32_t kept(uint32_t x) { return __shfl_sync(~0u, x, threadIdx.x % 32); }

template <class S, bool features> __device__ __forceinline__ void forward(const Params &p, const Features &f) {
    using T = typename S::T;
    constexpr int M = S::tiles, R = 2 * M; // 16-row tiles per warp, rows per thread
    const float inf = __int_as_float(0x7f800000);
    extern __shared__ __align__(128) char shared[];
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;

    // With a band mask, blocks with adjacent indices process several heads whose K and V fit
    // into the L2 cache together. Row tiles with the most keys come first.
    int lo = min(max(p.lo, -p.q_len), p.kv_len), hi = max(min(p.hi, p.kv_len), -p.q_len);
    const bool rising = hi < p.kv_len - 1, banded = rising || p.q_len - 1 + lo > 0;
    const int row_tiles = (p.q_len + S::rows - 1) / S::rows, all = p.batch * p.heads;
    const int together = banded ? max(1, min(all, (int)(16777216.f / ((float)p.kv_len * (p.dim + p.v_dim))))) : 1;
    const int first = blockIdx.x / (together * row_tiles) * together, size = min(together, all - first);
    const int place = blockIdx.x - first * row_tiles, batch = (first + place % size) / p.heads;
    const int head = (first + place % size) % p.heads, kv_head = head / (p.heads / p.kv_heads);
    const int row0 = (rising ? row_tiles - 1 - place / size : place / size) * S::rows;
    const Extent<features> e(p, f, batch);
    if constexpr (features) {
        if (row0 >= e.row_end()) return;
        lo = min(max(e.lo(), -e.rows()), e.keys()), hi = max(min(e.hi(), e.keys()), -e.rows());
    }
    const int rows = min(S::rows, e.rows() - row0);

    // Key tiles number from to number to have keys that some row sees. Of key tiles number
    // full_from to number full_to, every row sees all keys.
    const int last_key = min(e.keys() - 1, row0 + rows - 1 + hi), first_key = max(0, row0 + lo);
    const int from = first_key / S::keys, to = last_key < first_key || features && rows <= 0 ? from - 1 : last_key / S::keys;
    const int full_from = (max(0, row0 + rows - 1 + lo) + S::keys - 1) / S::keys;
    int full_to = max(0, min(e.keys(), row0 + hi + 1)) / S::keys - 1;
    const bool edges = from < full_from || to > full_to || features && f.mask.data;

    const uint16_t *q = (const uint16_t *)p.q.data + e.q_batch() * p.q.batch + head * p.q.head + row0 * p.q.row; // [rows, dim]
    const uint16_t *k = (const uint16_t *)p.k.data + e.kv_batch() * p.k.batch + kv_head * p.k.head;              // [kv_len, dim]
    const uint16_t *v = (const uint16_t *)p.v.data + e.kv_batch() * p.v.batch + kv_head * p.v.head;              // [kv_len, v_dim]
    if constexpr (features) {
        q += e.s.q0 * p.q.row;
        if (f.page) // the page table locates keys, so no batch offset is added
            k = (const uint16_t *)p.k.data + kv_head * p.k.head, v = (const uint16_t *)p.v.data + kv_head * p.v.head;
        else
            k += e.s.key0 * p.k.row, v += e.s.key0 * p.v.row;
    }
    bool aligned = (((uintptr_t)q | (uintptr_t)k | (uintptr_t)v | (p.q.row | p.k.row | p.v.row | p.dim | p.v_dim) * 2) & 15) == 0;
    if (features && f.page) aligned = aligned && ((p.k.batch | p.v.batch) & 7) == 0;

    // Copies go from the last tile and row group to the first.
    constexpr int groups = S::keys / S::step, pieces = S::chunks / S::group, fetches = 2 * groups * pieces, stage_bytes = 2 * S::tile_bytes;
    const int thread_row = threadIdx.x / S::group, thread_col = threadIdx.x % S::group * 8;
    const uint32_t q_tile = kept(shared_address(shared)), tiles_at = q_tile + S::q_bytes;
    const uint32_t copy_at = kept(q_tile + thread_row * S::row_bytes + ((thread_col / 8 ^ swizzle<S>(thread_row)) << 4));
    const uint16_t *k_next, *v_next;
    auto rewind = [&] {
        const int64_t last = to * S::keys + S::keys - S::step + thread_row;
        k_next = k + last * p.k.row + thread_col, v_next = v + last * p.v.row + thread_col;
    };
    // Copies piece x of a tile to a stage, one chunk per thread. The first half of the pieces is K, the second V. Only `left` keys of the tile exist.
    auto fetch = [&](int x, uint32_t stage, int left, bool aligned) {
        const int n = groups - 1 - x / pieces % groups, value = x / pieces / groups;
        const uint32_t at = copy_at + S::q_bytes + stage + value * S::tile_bytes + n * S::step * S::row_bytes;
        copy_chunk<S>(at, value ? v_next : k_next, x % pieces, n * S::step < left - thread_row, value ? p.v_dim : p.dim, aligned);
        if (x % pieces < pieces - 1) return;
        if (value)
            v_next -= S::step * p.v.row;
        else
            k_next -= S::step * p.k.row;
    };
    // Copies a tile of paged keys, row by row.
    auto load_pages = [&](int tile, uint32_t stage) {
#pragma unroll 1
        for (int n = 0; n < 2 * groups; n++) {
            const int key = tile * S::keys + n % groups * S::step + thread_row;
            const uint32_t at = copy_at + S::q_bytes + stage + n / groups * S::tile_bytes + n % groups * S::step * S::row_bytes;
            const View &view = n < groups ? p.k : p.v;
            const uint16_t *row = (const uint16_t *)view.data + thread_col;
            if constexpr (features)
                if (key < e.keys()) row += key_place(view, f, e.s, batch, kv_head, key);
#pragma unroll
            for (int j = 0; j < pieces; j++) copy_chunk<S>(at, row, j, key < e.keys(), n < groups ? p.dim : p.v_dim, aligned);
        }
        copy_commit();
    };
    auto load = [&](int tile, uint32_t stage) {
        if (features && f.page) return load_pages(tile, stage);
        const int left = tile == to ? e.keys() - tile * S::keys : S::keys; // only the last tile can be partial
        if (aligned) {
#pragma unroll
            for (int x = 0; x < fetches; x++) fetch(x, stage, left, true);
        } else {
#pragma unroll 1
            for (int x = 0; x < fetches; x++) fetch(x, stage, left, false);
        }
        copy_commit();
    };

    // Offsets of the row of a 16x16 fragment that the lane addresses for ldmatrix. The four
    // 8x8 matrices are in column-major order for Q and V, in row-major order for K.
    const int down = lane & 15, across = (lane & 7) + (lane >> 4 << 3);
    const uint32_t value_at = kept(S::tile_bytes + down * S::row_bytes + ((lane >> 4 ^ swizzle<S>(down)) << 4));
    const uint32_t key_at = kept(across * S::row_bytes + ((lane >> 3 & 1 ^ swizzle<S>(across)) << 4));
    const uint32_t warp_q = kept(q_tile + warp * (M * 16 * S::row_bytes) + value_at - S::tile_bytes);
    const int top_row = row0 + warp * (M * 16), row = top_row + lane / 4; // the thread's rows are row + 8 r, r < R
    uint32_t qf[S::keep_q ? M : 1][S::keep_q ? S::dim / 16 : 1][4];
    float o[M][S::dim / 8][4];
    // m and l are in shared memory, because S leaves no registers for them.
    float *const m = (float *)(shared + S::rows_at) + threadIdx.x * R, *const l = m + S::threads * R;
    uint16_t *const lacks = (uint16_t *)(shared + S::rows_at + 2 * S::threads * R * 4) + threadIdx.x * R; // upper halves of l's compensations, which are floats
    auto add_weights = [&](int r, float x) { // adds x to l[r] by Kahan summation
        const float more = x + __uint_as_float((uint32_t)lacks[r] << 16), sum = l[r] + more;
        lacks[r] = __float_as_uint(more - (sum - l[r])) >> 16;
        l[r] = sum;
    };

    // S = Q K^T for the tile of keys at `at`.
    auto scores = [&](float(&s)[M][S::keys / 8][4], uint32_t at) {
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[i][n][e] = 0;
        constexpr int across_keys = S::keys / 16, steps = S::dim / 16 * across_keys;
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
        auto load_k = [&](int x) { load_matrix(b[x % 3], fragment<S>(at + key_at, x % across_keys * 16, x / across_keys)); };
        load_q(0), load_k(0), load_k(1);
#pragma unroll
        for (int x = 0; x < steps; x++) {
            const int kk = x / across_keys, n = x % across_keys;
            if (x + 2 < steps) load_k(x + 2);
            if (n == 0 && kk + 1 < S::dim / 16) load_q(kk + 1);
#pragma unroll
            for (int i = 0; i < M; i++) {
                mma<T>(s[i][2 * n], a[kk % 2][i], b[x % 3][0], b[x % 3][1]);
                mma<T>(s[i][2 * n + 1], a[kk % 2][i], b[x % 3][2], b[x % 3][3]);
            }
        }
    };
    // If features change scores, they scale them, too. Otherwise the exponential's factor includes the scale.
    bool changes = false;
    float factor = p.scale_log2, natural = p.scale, slope = 0; // factor and natural convert S to log2 units and to natural units; slope is ALiBi's
    if constexpr (features) {
        const Scores<T> x(p, f, e.s, batch, head);
        changes = x.changes() || f.mask.data, slope = x.slope;
        if (x.changes()) factor = kLog2E, natural = 1;
    }
    auto weight = [&](float &s, float shift) { return s = exp2_approx(fmaf(s, factor, shift)); }; // replaces S by P
    auto adjust = [&](float(&s)[M][S::keys / 8][4], int key0) {
        if constexpr (features)
            if (changes) {
                Scores<T> x(p, f, e.s, batch, head);
                x.slope = slope;
#pragma unroll
                for (int i = 0; i < M; i++) x.template adjust<false>(s[i], row + 16 * i, key0 + lane % 4 * 2);
            }
    };
    auto packed = [&](uint32_t(&a)[4], float(&s)[S::keys / 8][4], int kk) {
#pragma unroll
        for (int e = 0; e < 4; e++) a[e] = pack<T>(s[2 * kk + e / 2][e % 2 * 2], s[2 * kk + e / 2][e % 2 * 2 + 1]);
    };

    // Processes a tile whose keys all rows see, without raising m. Stops before keys whose
    // weights would be too large, and returns the number of keys processed.
    auto attend_full = [&](uint32_t at, int key0) {
        float s[M][S::keys / 8][4];
        scores(s, at);
        adjust(s, key0);
        constexpr int columns = S::dim / 16, steps = S::keys / 16 * columns;
        constexpr int pieces = (2 * M + columns - 1) / columns;
        uint32_t v[3][4];
        auto load_v = [&](int x) { load_matrix_transposed(v[x % 3], fragment<S>(at + value_at, x / columns * 16, x % columns)); };
        load_v(0), load_v(1);
        float top[R], sums[R] = {};
#pragma unroll
        for (int r = 0; r < R; r++) top[r] = __fmul_rn(m[r], factor);
        auto weights = [&](float(&s)[4], int i) {
#pragma unroll
            for (int e = 0; e < 4; e++) weight(s[e], -top[2 * i + e / 2]);
        };
        auto add = [&] {
#pragma unroll
            for (int r = 0; r < R; r++) add_weights(r, sums[r]);
        };
#pragma unroll
        for (int y = 0; y < 2 * M; y++) weights(s[y / 2][y % 2], y / 2);
#pragma unroll
        for (int kk = 0; kk < S::keys / 16; kk++) {
            float sum[R], total = 0;
#pragma unroll
            for (int r = 0; r < R; r++) {
                const float *x = s[r / 2][2 * kk] + r % 2 * 2, *y = s[r / 2][2 * kk + 1] + r % 2 * 2;
                sum[r] = (x[0] + x[1]) + (y[0] + y[1]);
                total += sum[r];
            }
            if (__any_sync(~0u, !(total < 256))) return add(), kk * 16;
            uint32_t a[M][4];
#pragma unroll
            for (int i = 0; i < M; i++) packed(a[i], s[i], kk);
#pragma unroll
            for (int r = 0; r < R; r++) sums[r] += sum[r];
#pragma unroll
            for (int n = 0; n < columns; n++) {
                const int x = kk * columns + n;
                if (x + 2 < steps) load_v(x + 2);
#pragma unroll
                for (int i = 0; i < M; i++) {
                    mma<T>(o[i][2 * n], a[i], v[x % 3][0], v[x % 3][1]);
                    mma<T>(o[i][2 * n + 1], a[i], v[x % 3][2], v[x % 3][3]);
                }
                if (kk + 1 < S::keys / 16) // interleave the next weights with the products
#pragma unroll
                    for (int y = n * pieces; y < (n + 1) * pieces; y++)
                        if (y < 2 * M) weights(s[y / 2][2 * kk + 2 + y % 2], y / 2);
            }
        }
        return add(), S::keys;
    };

    bool far = false; // some row of the warp has scores far from 0, see far.cuh
    // Processes any tile, but skips its first `begin` keys.
    auto attend = [&](uint32_t at, int key0, int begin) {
        if (key0 > top_row + M * 16 - 1 + hi || key0 + S::keys <= top_row + lo) return; // hidden from all rows of the warp
        float s[M][S::keys / 8][4];
        scores(s, at);
        adjust(s, key0);
        const int key = key0 + lane % 4 * 2, left = e.keys() - key; // the thread's first key, and the number of keys from it on
        const uint32_t before = key - row - lo, band = hi - lo;     // keys row + lo .. row + hi are visible
        auto sees = [&](int i, int n, int e) {
            return before + (n * 8 + (e & 1) - i * 16 - (e >> 1) * 8) <= band && n * 8 + (e & 1) < left && n * 8 >= begin;
        };
        float top[R];
        bool grown = false;
#pragma unroll
        for (int r = 0; r < R; r++) {
            top[r] = -inf;
#pragma unroll
            for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
                for (int e = r % 2 * 2; e < r % 2 * 2 + 2; e++) {
                    float &x = s[r / 2][n][e];
                    x = sees(r / 2, n, e) ? x : -inf;
                    top[r] = fmaxf(top[r], x);
                }
            top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 1));
            top[r] = fmaxf(top[r], __shfl_xor_sync(~0u, top[r], 2));
            grown |= (top[r] - m[r]) * factor > 8;
        }
        if (__any_sync(~0u, grown))
#pragma unroll
            for (int r = 0; r < R; r++) {
                const float max = fmaxf(m[r], top[r]), a = Beneath(max, factor).rescale(m[r]);
                m[r] = max;
                l[r] *= a, lacks[r] = __float_as_uint(a * __uint_as_float((uint32_t)lacks[r] << 16)) >> 16;
#pragma unroll
                for (int n = 0; n < S::dim / 8; n++) {
                    o[r / 2][n][r % 2 * 2] *= a;
                    o[r / 2][n][r % 2 * 2 + 1] *= a;
                }
            }
        far = false;
#pragma unroll
        for (int r = 0; r < R; r++) {
            const Beneath x(m[r], factor);
            top[r] = -x.base, far |= x.far();
        }
        far = __any_sync(~0u, far);
        if (far) // subtract the maximum from a far row's S before scaling
#pragma unroll
            for (int r = 0; r < R; r++) {
                const float base = is_far(top[r]) ? m[r] : 0;
                if (is_far(top[r])) top[r] = 0;
#pragma unroll
                for (int n = 0; n < S::keys / 8; n++) s[r / 2][n][r % 2 * 2] -= base, s[r / 2][n][r % 2 * 2 + 1] -= base;
            }
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float shift = top[r];
            float sum = 0;
#pragma unroll
            for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
                for (int e = r % 2 * 2; e < r % 2 * 2 + 2; e++) sum += weight(s[r / 2][n][e], shift);
            add_weights(r, sum);
        }
        if constexpr (features) {
#pragma unroll
            for (int i = 0; i < M; i++) Scores<T>(p, f, e.s, batch, head).template drop<false, true>(s[i], row + 16 * i, key);
        }
#pragma unroll
        for (int kk = 0; kk < S::keys / 16; kk++) {
            uint32_t a[M][4];
#pragma unroll
            for (int i = 0; i < M; i++) packed(a[i], s[i], kk);
#pragma unroll
            for (int n = 0; n < S::dim / 16; n++) {
                uint32_t b[4];
                load_matrix_transposed(b, fragment<S>(at + value_at, kk * 16, n));
#pragma unroll
                for (int i = 0; i < M; i++) {
                    mma<T>(o[i][2 * n], a[i], b[0], b[1]);
                    mma<T>(o[i][2 * n + 1], a[i], b[2], b[3]);
                }
            }
        }
    };

    rewind();
    if (from <= to) {
#pragma unroll 1
        for (int n = 0; n < S::rows / S::step; n++)
#pragma unroll
            for (int j = 0; j < pieces; j++)
                copy_chunk<S>(copy_at + n * S::step * S::row_bytes, q + (n * S::step + thread_row) * p.q.row + thread_col, j,
                              n * S::step < rows - thread_row, p.dim, aligned);
        copy_commit();
        load(to, (to & 1) * stage_bytes);
    }
    if constexpr (S::keep_q) {
        copy_wait<1>();
        __syncthreads(); // Q has arrived
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int kk = 0; kk < S::dim / 16; kk++) load_matrix(qf[i][kk], fragment<S>(warp_q, i * 16, kk));
    }
    bool careful = false;
    for (;; careful = true, full_to = -1) {
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int n = 0; n < S::dim / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) o[i][n][e] = 0;
#pragma unroll
        for (int r = 0; r < R; r++) m[r] = -inf, l[r] = 0, lacks[r] = 0;
#pragma unroll 1
        for (int tile = to; tile >= from; tile--) {
            copy_wait<0>();
            __syncthreads(); // the tile has arrived; the other stage is free
            const uint32_t stage = (tile & 1) * stage_bytes, at = tiles_at + stage;
            const bool full = tile >= full_from && tile <= full_to && tile < to && !(features && f.drop_below); // dropout's branches would slow attend_full
            if (tile > from) load(tile - 1, stage_bytes - stage);
            int done = 0;
            if (full && !far)
                done = attend_full(at, tile * S::keys);
            else if (careful) {
#pragma unroll 1
                for (int i = threadIdx.x; i < S::tile_bytes / 16; i += S::threads) {
                    uint4 &x = ((uint4 *)(shared + S::q_bytes + stage + S::tile_bytes))[i];
                    x = {finite<T>(x.x), finite<T>(x.y), finite<T>(x.z), finite<T>(x.w)};
                }
                __syncthreads(); // V is finite
            }
            if (done < S::keys) attend(at, tile * S::keys, done);
        }
        if (careful || !edges) break;
        bool nan = false;
#pragma unroll
        for (int i = 0; i < M; i++)
#pragma unroll
            for (int n = 0; n < S::dim / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) nan |= o[i][n][e] != o[i][n][e];
        if (!__syncthreads_or(nan)) break; // the barrier also ensures that both stages are free
        rewind();
        load(to, (to & 1) * stage_bytes);
    }

    // Stage O in the warp's own rows of Q in shared memory, so that stores are whole
    // chunks.
    uint16_t *out = (uint16_t *)p.o.data + e.q_batch() * p.o.batch + head * p.o.head; // [q_len, v_dim]
    float *lse = p.lse.data ? (float *)p.lse.data + e.q_batch() * p.lse.batch + head * p.lse.head : nullptr; // [q_len]
    if constexpr (features) {
        out += e.s.q0 * p.o.row;
        if (lse) lse += e.s.q0 * p.lse.row;
    }
    char *rows_o = shared + warp * (M * 16 * S::row_bytes);
    __syncwarp(); // every lane has read its part of Q
#pragma unroll
    for (int r = 0; r < R; r++) {
        float sum = l[r] + __shfl_xor_sync(~0u, l[r], 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const int at = r * 8 + lane / 4;
        if constexpr (features) {
            const int i = row + r * 8;
            const bool real = i < e.rows();
            const Ending y = ending(f, m[r] * natural, sum, head, f.carry && real ? f.carried_lse[((int64_t)batch * p.heads + head) * p.q_len + i] : -inf);
            if (lse && lane % 4 == 0 && i < e.row_end()) lse[i * p.lse.row] = real ? y.lse : -inf;
#pragma unroll
            for (int n = 0; n < S::dim / 8; n++) {
                float z[2];
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const int col = n * 8 + lane % 4 * 2 + c;
                    z[c] = o[r / 2][n][r % 2 * 2 + c] * y.scale;
                    if (y.earlier != 0 && real && col < p.v_dim) z[c] = fmaf(y.earlier, widen<T>(out[i * p.o.row + col]), z[c]);
                    if (!real || y.scale == 0 && y.earlier == 0) z[c] = 0;
                }
                *(uint32_t *)(rows_o + at * S::row_bytes + ((n ^ swizzle<S>(at)) << 4) + lane % 4 * 4) = pack<T>(z[0], z[1]);
            }
            continue;
        }
        const float a = sum == 0 ? 0 : 1 / sum;
#pragma unroll
        for (int n = 0; n < S::dim / 8; n++)
            *(uint32_t *)(rows_o + at * S::row_bytes + ((n ^ swizzle<S>(at)) << 4) + lane % 4 * 4) =
                pack<T>(o[r / 2][n][r % 2 * 2] * a, o[r / 2][n][r % 2 * 2 + 1] * a);
        if (lse && lane % 4 == 0 && row + r * 8 < p.q_len) lse[(row + r * 8) * p.lse.row] = fmaf(m[r], p.scale, logf(sum));
    }
    __syncwarp(); // O is complete
    if (careful) {
        // Add V's non-finite elements to the rows that see them.
        const uint16_t *value = (const uint16_t *)p.v.data + e.kv_batch() * p.v.batch + kv_head * p.v.head;
#pragma unroll 1
        for (int key = first_key; key <= last_key; key++)
#pragma unroll 1
            for (int c = lane; c < p.v_dim; c += 32) {
                float x;
                if constexpr (features) x = widen<T>(((const uint16_t *)p.v.data)[key_place(p.v, f, e.s, batch, kv_head, key) + c]);
                else x = widen<T>(value[key * p.v.row + c]);
                if (fabsf(x) < inf) continue;
#pragma unroll 1
                for (int r = max(0, key - hi - top_row); r <= min(M * 16 - 1, key - lo - top_row); r++) {
                    if constexpr (features)
                        if (top_row + r >= e.rows() || !Scores<T>(p, f, e.s, batch, head).takes_part(top_row + r, key)) continue;
                    uint16_t &y = *(uint16_t *)(rows_o + r * S::row_bytes + ((c / 8 ^ swizzle<S>(r)) << 4) + c % 8 * 2);
                    y = pack<T>(widen<T>(y) + x, 0);
                }
            }
        __syncwarp();
    }
    const bool out_whole = (((uintptr_t)out | p.o.row * 2) & 15) == 0;
#pragma unroll 4
    for (int i = lane; i < M * 16 * S::chunks; i += 32) {
        const int r = i / S::chunks, c = i % S::chunks, n = row0 + warp * (M * 16) + r;
        if (n >= e.row_end()) continue;
        const uint4 x = *(const uint4 *)(rows_o + r * S::row_bytes + ((c ^ swizzle<S>(r)) << 4));
        uint16_t *to = out + n * p.o.row + c * 8;
        if (out_whole && c * 8 + 8 <= p.v_dim)
            *(uint4 *)to = x;
        else
            for (int e = 0; e < min(8, p.v_dim - c * 8); e++)
                to[e] = (e < 4 ? e < 2 ? x.x : x.y : e < 6 ? x.z : x.w) >> e % 2 * 16;
    }
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

// Shapes: warps, 16-row tiles per warp, keys per tile, minimum blocks per multiprocessor, whether Q stays in registers. The
// three groups are for multiprocessors with 228, 100 and 164 KB of shared memory.
#if __CUDA_ARCH__ >= 900
#define SHAPE_32 4, 2, 64, 3, true
#define SHAPE_64 4, 2, 64, 3, false
#define SHAPE_96 4, 2, 64, 2, false
#define SHAPE_128 4, 2, 64, 2, false
#define SHAPE_192 8, 1, 64, 1, true
#define SHAPE_256 8, 1, 64, 1, false
#elif __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890
#define SHAPE_32 4, 2, 64, 3, true
#define SHAPE_64 4, 2, 32, 2, true
#define SHAPE_96 4, 1, 32, 2, true
#define SHAPE_128 8, 1, 32, 1, true
#define SHAPE_192 4, 1, 32, 1, true
#define SHAPE_256 4, 1, 32, 1, false
#else
#define SHAPE_32 4, 2, 64, 3, true
#define SHAPE_64 4, 2, 64, 3, false
#define SHAPE_96 4, 2, 64, 2, false
#define SHAPE_128 4, 2, 32, 2, false
#define SHAPE_192 4, 1, 32, 2, true
#define SHAPE_256 8, 1, 32, 1, false
#endif

INSTANCE(f16, F16, 32, SHAPE_32)
INSTANCE(f16, F16, 64, SHAPE_64)
INSTANCE(f16, F16, 96, SHAPE_96)
INSTANCE(f16, F16, 128, SHAPE_128)
INSTANCE(f16, F16, 192, SHAPE_192)
INSTANCE(f16, F16, 256, SHAPE_256)
INSTANCE(bf16, BF16, 32, SHAPE_32)
INSTANCE(bf16, BF16, 64, SHAPE_64)
INSTANCE(bf16, BF16, 96, SHAPE_96)
INSTANCE(bf16, BF16, 128, SHAPE_128)
INSTANCE(bf16, BF16, 192, SHAPE_192)
INSTANCE(bf16, BF16, 256, SHAPE_256)
