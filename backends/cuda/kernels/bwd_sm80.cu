// Backward pass for f16 and bf16 with mma.sync, on compute capability 8.0 and
// later. One call is three launches, in this order; a grid of 0 is not launched.
//
//   bwd_sm80_delta_<dtype>     grid max(1, B*H*ceil(N/64))   LSE and delta; zeroes what is added to
//   bwd_sm80_<dtype>_d<dim>    grid B*G*ceil(M/plan.keys)    dK, dV; adds to dq_sum
//   bwd_sm80_finish_<dtype>    grid B*H*ceil(N/64)           dQ = dq_sum * scale
//
// <dim> is the least one that holds D and DV. Workspace, with T = B*H*ceil(N/64):
// delta T*64*2 floats, the pairs (LSE in base 2, delta) of each row; dq_sum
// T*64*<dim> floats; turn 1 + 2*T ints, the ticket and a counter for each tile of rows.
//
// With P = exp(S*scale - LSE) for the pairs of the band and 0 for the others,
// the main kernel equals
//
//   for each batch b, key head, tile of keys            // a block
//     for each query head h of the group, tile of rows, the last rows first
//       S^T = K Q^T;  dP^T = V dO^T
//       dS^T = P^T * (dP^T - delta)
//       dV += P^T dO;  dK += dS^T Q;  dq_sum[h] += dS K
//     dK *= scale
//
// K and V stay in shared memory, Q and dO pass through it, dK and dV stay in
// registers. Each warp owns 16*blocks keys; `split` warps share them: each has
// a part of the rows of S^T and dP^T, and a part of the columns of dK and dV.
// P^T and dS^T in the layout of sums are operands of dV and dK as they stand;
// the parts of the other warps come through shared memory. dS K needs the keys
// of all warps, so it waits for the barrier of the next tile.
//
// Deterministic: the blocks of one head add to a tile of dq_sum in the order
// of their keys. Each takes a ticket and waits for lower tickets only, so that
// whoever is waited for has started. All walk from the last rows on, one
// behind the other, so waits are short. The first one stores.
//
// Pairs off the band: P and dS are selected to be 0. 0 * NaN still leaks where
// visible and hidden pairs share an operand: dO, Q in dV, dK and K in dQ. There,
// fragments lose their non-finite elements, by flags that are seldom set: LSE
// and delta of a row tell of Q and dO, a scan of the tile tells of K. A visible
// pair still carries NaN: in dS through S and dP, and in dV by an explicit sum.
//
// With features, P^T and dS^T are made of scores and weights that score.cuh changes; every
// tile is then one whose pairs may be hidden, if there is a mask.
#include "score.cuh"
#include "tile.cuh"

#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
#define SHARED_KB 227
#elif __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 870
#define SHARED_KB 163
#else
#define SHARED_KB 99
#endif

struct Shape {
    int warps, split, blocks; // warps of a block of threads; warps that share keys; groups of 16 keys of a warp
    int rows, stages;         // query rows of a tile; buffers for Q and dO
    int resident;             // blocks on a multiprocessor
};
constexpr Shape shape(int d) {
    return d <= 64                        ? Shape{4, 1, 2, 64, 2, SHARED_KB == 227 ? 2 : 1}
           : d == 96                      ? Shape{SHARED_KB == 99 ? 4 : 8, 2, 2, 64, 2, 1}
           : d <= 128 && SHARED_KB == 227 ? Shape{8, 2, 2, 64, 2, 1}
           : d <= 128 && SHARED_KB == 163 ? Shape{8, 2, 2, 32, 2, 1}
           : d <= 128                     ? Shape{8, 4, 2, 64, 1, 1}
           : SHARED_KB == 99              ? Shape{4, 2, 1, 32, 1, 1}
                                          : Shape{8, 4, 2, 64, SHARED_KB == 227 ? 2 : 1, 1};
}

// What a block works on. It lies in shared memory: the loop has no registers to spare.
struct Work {
    int b, hk, k0;          // batch, key head, first key
    int i_lo, i_hi, steps;  // the tiles of rows that see these keys; visits, over all heads of the group
    int aligned, clear_k;   // Q and dO take the fast copy; K holds non-finite elements that some row must not see
    int added;              // the tile of rows that dQ was added to last
};
struct FeatureWork : Work { Sequence s; };
template <bool features> struct WorkOf { using type = Work; };
template <> struct WorkOf<true> { using type = FeatureWork; };

// Bytes in shared memory: K and V [keys][D], Q and dO [stages][rows][D],
// P^T [keys][rows] if warps share it, dS^T [2][keys][rows], [2][rows] pairs of
// LSE and delta, Work. At the end dK and dV take the place of K and V.
template <int D, bool features = false> struct Layout {
    static constexpr Shape c = shape(D);
    static constexpr int warps = c.warps, split = c.split, blocks = c.blocks, rows = c.rows, stages = c.stages;
    static constexpr int threads = 32 * warps, keys = 16 * blocks * warps / split, pitch = 2 * D, pitch_p = 2 * rows;
    static constexpr int v = keys * pitch, q = 2 * v, dout = q + stages * rows * pitch, pt = dout + stages * rows * pitch;
    static constexpr int ds = pt + (split > 1 ? keys * pitch_p : 0), stat = ds + 2 * keys * pitch_p;
    static constexpr int work = stat + 16 * rows, total = work + sizeof(typename WorkOf<features>::type);
    // Of dS K, a warp computes 16*X rows and Y groups of 16 columns.
    static constexpr int bands = D == 96 && warps == 8 ? 4 : 2, X = rows / bands / 16, Y = D / 16 * bands / warps;
    static_assert(total <= SHARED_KB * 1024 && X * 16 * bands == rows && Y * warps == D / 16 * bands, "shape");
};

template <bool b> struct Bool { static constexpr bool value = b; };

// c += x b over 16 rows of b at an offset from a place, for N/2 groups of 16 columns, 16*step columns apart.
template <class T, int D, int step, int M, int N>
__device__ __forceinline__ void accumulate(float (&c)[M][N][4], const uint32_t (&x)[M][4], uint32_t b, int to_b, bool guard) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t y[4];
        load_matrix_transposed(y, at<2 * D>(b, 0, step * n) + to_b);
        if (guard)
            for (int i = 0; i < 4; i++) y[i] = clear_nonfinite<T>(y[i]);
        for (int m = 0; m < M; m++) mma<T>(c[m][n], x[m], y[0], y[1]), mma<T>(c[m][n + 1], x[m], y[2], y[3]);
    }
}

template <class T, int D, bool features> __device__ __forceinline__ void backward(const Params &p, const Features &f) {
    using L = Layout<D, features>;
    constexpr int M = L::blocks, split = L::split, pitch = L::pitch, pitch_p = L::pitch_p;
    constexpr int part_rows = L::rows / split, chunk = part_rows < 32 ? part_rows : 32; // rows of S^T of a warp, and at a time
    constexpr int N = D / 16 / split;                                                   // groups of 16 columns of dK, dV of a warp
    static_assert(split == 1 || part_rows == chunk, "warps that share keys do so once in a tile");

    extern __shared__ __align__(128) uint8_t shared[]; // Layout
    const uint32_t base = shared_address(shared);
    volatile auto &work = *(typename WorkOf<features>::type *)(shared + L::work);
    // Of the sequence: query rows and keys, the band, where row i or key j of a tensor lies.
    auto rows = [&] { if constexpr (features) return work.s.rows; else return p.q_len; };
    auto keys = [&] { if constexpr (features) return work.s.keys; else return p.kv_len; };
    auto lo = [&] { if constexpr (features) return work.s.lo; else return p.lo; };
    auto hi = [&] { if constexpr (features) return work.s.hi; else return p.hi; };
    auto query = [&](const View &v, int b, int h, int i) { if constexpr (features) return row_of(v, work.s.q_batch, h, work.s.q0 + i); else return row_of(v, b, h, i); };
    auto key_row = [&](const View &v, int b, int h, int j) { if constexpr (features) return row_of(v, work.s.kv_batch, h, work.s.key0 + j); else return row_of(v, b, h, j); };
    const int thread = fresh(threadIdx.x), warp = thread / 32, lane = thread % 32;
    const int tiles = (p.q_len + 63) / 64 * (64 / L::rows), share = p.heads / p.kv_heads; // tiles of rows in the workspace; query heads of a key head

    if (thread == 0) {
        // Groups of 16 heads take turns, each from its first tile of keys on.
        const int ticket = p.deterministic && p.q_len ? atomicAdd(p.turn, 1) : blockIdx.x;
        const int key_tiles = (p.kv_len + L::keys - 1) / L::keys, first = ticket / (16 * key_tiles) * 16, width = min(16, p.batch * p.kv_heads - first);
        const int bh = first + (ticket - first * key_tiles) % width, k0 = (ticket - first * key_tiles) / width * L::keys;
        if constexpr (features) {
            const Sequence s = sequence(p, f, bh / p.kv_heads);
            work.s.q_batch = s.q_batch, work.s.q0 = s.q0, work.s.rows = s.rows, work.s.row_end = s.row_end;
            work.s.kv_batch = s.kv_batch, work.s.key0 = s.key0, work.s.keys = s.keys, work.s.key_end = s.key_end;
            work.s.lo = s.lo, work.s.hi = s.hi, work.s.diagonal = s.diagonal;
        }
        const int row_lo = max(0, k0 - hi()), row_hi = min(rows() - 1, min(k0 + L::keys, keys()) - 1 - lo());
        work.b = bh / p.kv_heads, work.hk = bh % p.kv_heads, work.k0 = k0;
        work.i_lo = row_lo / L::rows, work.i_hi = row_hi / L::rows;
        work.steps = row_lo <= row_hi && lo() <= hi() && !(features && k0 >= keys()) ? (row_hi / L::rows - row_lo / L::rows + 1) * share : 0;
        work.aligned = aligned16(p.q, p.dim) && aligned16(p.dout, p.v_dim);
        work.clear_k = row_lo + hi() < k0 + L::keys - 1 || row_hi + lo() > k0 || features && f.mask.data; // some keys are hidden from some rows: look
    }
    __syncthreads(); // work is there

    // Starts the copies of Q, dO, LSE and delta of a tile.
    auto fetch = [&](int h, int i, int buffer, int turn) {
        const int b = work.b, r0 = i * L::rows, n = rows() - r0;
        const bool aligned = work.aligned;
        copy_rows<L::rows, D, L::threads>(base + L::q + buffer * L::rows * pitch, query(p.q, b, h, r0), p.q.row, n, p.dim, aligned);
        copy_rows<L::rows, D, L::threads>(base + L::dout + buffer * L::rows * pitch, query(p.dout, b, h, r0), p.dout.row, n, p.v_dim, aligned);
        const float *from = p.delta + (((int64_t)b * p.heads + h) * tiles + i) * L::rows * 2;
        if (thread < L::rows / 2) copy_async16_if(base + L::stat + turn * L::rows * 8 + thread * 16, from + thread * 4, true);
        copy_commit();
    };

    float dk[M][2 * N][4] = {}, dv[M][2 * N][4] = {};

    // dS K of one tile of rows, added to dq_sum, which holds 16x8 blocks in the
    // order [T*4, <dim>/8], of each block a lane's four sums together.
    auto add_dq = [&](int h, int i, int buffer) {
        const int tile = (work.b * p.heads + h) * tiles + i;
        if (thread == 0) work.added = tile;
        const int band = fresh(warp) % L::bands, column = fresh(warp) / L::bands;
        const uint32_t ds = at<pitch_p>(base + L::ds + buffer * L::keys * pitch_p + place<pitch_p>(lane, true), 0, 2 * L::X * band);
        const uint32_t k = at<pitch>(base + place<pitch>(lane, false), 0, 2 * column);
        float x[L::X][2 * L::Y][4] = {};
        auto multiply = [&](bool guard) {
#pragma unroll
            for (int j = 0; j < L::keys / 16; j++) {
                uint32_t a[L::X][4];
                for (int m = 0; m < L::X; m++) load_matrix_transposed(a[m], at<pitch_p>(ds, 16 * j, 2 * m));
                accumulate<T, D, L::warps / L::bands>(x, a, k, 16 * j * pitch, guard);
            }
        };
        // The turn is looked at early: most often it is there already. Only adds follow, which are issued
        // after the load has returned and take effect where all blocks see them; nothing is read.
        int now = p.deterministic ? load_counter(p.turn + 1 + tile) : 0, before = 0;
        if (work.clear_k) multiply(true);
        else multiply(false);
        if (p.deterministic) before = work.k0 / L::keys - max(0, i * L::rows + lo()) / L::keys; // tiles of keys that add here earlier
        while (now < before) now = load_counter(p.turn + 1 + tile);
        float *to = p.dq_sum + (int64_t)tile * L::rows * D + (band * L::X * (D / 8) + 2 * column) * 128 + fresh(lane) * 4;
        auto each_block = [&](auto put) {
            for (int m = 0; m < L::X; m++)
                for (int n = 0; n < 2 * L::Y; n++) put(to + (m * (D / 8) + 2 * L::warps / L::bands * (n / 2) + n % 2) * 128, x[m][n]);
        };
        if (p.deterministic && before == 0) each_block([](float *to, const float (&x)[4]) { *(float4 *)to = {x[0], x[1], x[2], x[3]}; });
        else each_block(add_global4);
    };
    auto end_turn = [&] { // all warps have added, and there was a barrier since
        if (p.deterministic && thread == 0) add_counter_release(p.turn + 1 + work.added);
    };

    auto natural_lse = [&](int head, int i) { // Inf for a row without weight, as those that are not there
        float x = -infinity;
        if constexpr (features) { if (i < rows()) x = stat_of(p.lse, work.s.q_batch, head, work.s.q0 + i); }
        else if (i < p.q_len) x = stat_of(p.lse, work.b, head, i);
        return x == -infinity ? infinity : x;
    };
    // Makes P^T of S^T, and of dP^T what P is multiplied by for dS^T: rows of the tile from
    // row on, keys from key on.
    auto weights = [&](float(&s)[M][chunk / 8][4], float(&dp)[M][chunk / 8][4], uint32_t (&dropped)[M], const float2 *stat, int row, int r0, int key, int head, bool far) {
        Sequence e = {};
        if constexpr (features) e.diagonal = work.s.diagonal;
#pragma unroll
        for (int m = 0; m < M; m++) {
            const Scores<T> x(p, f, e, work.b, head);
            const int own = key + 16 * m + lane / 4, walked = row + lane % 4 * 2;
            dropped[m] = 0; // bit 8 e + n
            if (f.drop_below) {
#pragma unroll
                for (int n = 0; n < chunk / 8; n += 2) dropped[m] |= x.template drops<true>(own, r0 + walked + 8 * n) << n;
#pragma unroll
                for (int n = 0; n < chunk / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) dp[m][n][e] = dropped[m] >> (8 * e + n) & 1 ? 0 : dp[m][n][e] * f.keep;
            }
#pragma unroll
            for (int n = 0; n < chunk / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) dp[m][n][e] -= stat[walked + 8 * n + e % 2].y;
            auto slope = [&](int n, int e, float d) { dp[m][n][e] *= d; };
            if (far) x.template far_weights<true>(s[m], own, r0 + walked, [&](int n, int e) { return natural_lse(head, r0 + walked + 8 * n + e % 2); }, slope);
            else x.template weights<true>(s[m], own, r0 + walked, [&](int n, int e) { return stat[walked + 8 * n + e % 2].x; }, slope);
        }
    };
    auto takes_part = [&](int head, int i, int key) {
        if constexpr (features) return key < keys() && Scores<T>(p, f, Sequence{}, work.b, head).takes_part(i, key);
        else return true;
    };

    // One tile of rows, from r0 on; edge: some pairs may be hidden.
    auto step = [&](auto edge, int r0, int head, int buffer, int turn) {
        const float2 *stat = (const float2 *)(shared + L::stat) + turn * L::rows; // LSE in base 2, delta
        const int part = fresh(warp) % split, key0 = fresh(warp) / split * 16 * M, k0 = edge.value ? work.k0 : 0;
        const uint32_t q_tile = base + L::q + buffer * L::rows * pitch, p_tile = base + L::pt + key0 * pitch_p + place<pitch_p>(lane, false);
        const int to_dout = L::dout - L::q, to_ds = L::ds - L::pt + turn * L::keys * pitch_p;
        bool guard = false, far = false; // Q or dO may hold non-finite elements; weights of some row are to be computed in natural units
        for (int r = lane; r < L::rows; r += 32) far = far || is_far_lse(stat[r].x);
        far = __any_sync(~0u, far);
        if (edge.value) {
            for (int r = lane; r < L::rows; r += 32) guard = guard || !finite(stat[r].x) || is_far_lse(stat[r].x) || !finite(stat[r].y);
            guard = __any_sync(~0u, guard);
        }
#pragma unroll
        for (int done = 0; done < part_rows; done += chunk) {
            const int row = part * part_rows + done; // of the tile
            const uint32_t own = base + key0 * pitch + place<pitch>(lane, false), queries = q_tile + row * pitch + place<pitch>(lane, true);
            float s[M][chunk / 8][4] = {}, dp[M][chunk / 8][4] = {};
            product<T, D>(s, own, 0, queries, 0);
            product<T, D>(dp, own, L::v, queries, to_dout);
            uint32_t dropped[M];
            if constexpr (features) {
                weights(s, dp, dropped, stat, row, r0, work.k0 + key0, head, far);
            } else if (far) {
                for (int n = 0; n < chunk / 8; n++)
                    for (int e = 0; e < 2; e++) {
                        const int r = row + 8 * n + lane % 4 * 2 + e;
                        const float lse = natural_lse(head, r0 + r);
                        for (int m = 0; m < M; m++)
                            for (int f = e; f < 4; f += 2)
                                if (is_far_lse(stat[r].x)) s[m][n][f] = far_product(s[m][n][f], p.scale, kLog2E / p.scale_log2, lse);
                    }
            }
            for (int n = 0; n < chunk / 8; n++)
                for (int e = 0; e < 2; e++) {
                    const int r = row + 8 * n + lane % 4 * 2 + e, i = r0 + r;
                    const float2 t = stat[r];
                    for (int m = 0; m < M; m++)
                        for (int f = e; f < 4; f += 2) {
                            const int key = k0 + key0 + 16 * m + lane / 4 + f / 2 * 8;
                            const bool hidden = edge.value && (key < i + lo() || key > i + hi() || key >= keys() || i >= rows());
                            if constexpr (features) { // dP of a hidden key may be NaN
                                if (hidden) s[m][n][f] = 0;
                                dp[m][n][f] = hidden || edge.value && s[m][n][f] == 0 ? 0 : s[m][n][f] * dp[m][n][f];
                                continue;
                            }
                            s[m][n][f] = exp2_approx(hidden ? -infinity : fmaf(s[m][n][f], p.scale_log2, -t.x));
                            dp[m][n][f] = hidden ? 0 : s[m][n][f] * (dp[m][n][f] - t.y);
                        }
                }
            if (features && f.drop_below)
#pragma unroll
                for (int m = 0; m < M; m++)
#pragma unroll
                    for (int i = 0; i < chunk / 2; i++)
                        if (dropped[m] >> (i % 4 * 8 + i / 4) & 1) s[m][i / 4][i % 4] = 0;
            uint32_t pa[chunk / 16][M][4], da[chunk / 16][M][4];
            for (int n = 0; n < chunk / 16; n++)
                for (int m = 0; m < M; m++) {
                    pack_block<T>(pa[n][m], s[m], n), pack_block<T>(da[n][m], dp[m], n);
                    if (split > 1) store_matrix(at<pitch_p>(p_tile, 16 * m, row / 8 + 2 * n), pa[n][m]);
                    store_matrix(at<pitch_p>(p_tile + to_ds, 16 * m, row / 8 + 2 * n), da[n][m]);
                }
            const uint32_t columns = at<pitch>(q_tile + row * pitch + place<pitch>(lane, false), 0, 2 * part);
            for (int n = 0; n < chunk / 16; n++) {
                accumulate<T, D, split>(dv, pa[n], columns, to_dout + 16 * n * pitch, edge.value && guard);
                accumulate<T, D, split>(dk, da[n], columns, 16 * n * pitch, edge.value && guard);
            }
        }
        if (split > 1) {
            // The warps that share these keys have stored their parts of P^T and dS^T.
            asm volatile("bar.sync %0, %1;" ::"r"(1 + warp / split), "n"(32 * split) : "memory");
#pragma unroll
            for (int o = 1; o < split; o++) {
                const int row = (part + o) % split * part_rows;
                const uint32_t columns = at<pitch>(q_tile + row * pitch + place<pitch>(lane, false), 0, 2 * part);
#pragma unroll
                for (int n = 0; n < chunk / 16; n++) {
                    uint32_t a[M][4];
                    for (int m = 0; m < M; m++) load_matrix(a[m], at<pitch_p>(p_tile, 16 * m, row / 8 + 2 * n));
                    accumulate<T, D, split>(dv, a, columns, to_dout + 16 * n * pitch, edge.value && guard);
                    for (int m = 0; m < M; m++) load_matrix(a[m], at<pitch_p>(p_tile + to_ds, 16 * m, row / 8 + 2 * n));
                    accumulate<T, D, split>(dk, a, columns, 16 * n * pitch, edge.value && guard);
                }
            }
        }
        // What was cleared from dO, for the pairs that see it.
        for (int r = 0; edge.value && guard && r < min(L::rows, rows() - r0); r++) {
            if (finite(stat[r].y)) continue;
#pragma unroll
            for (int n = 0; n < 2 * N; n++) {
                const int c = 2 * (part + split * (n / 2)) + n % 2, i = r0 + r;
                const uint32_t x = *(const uint32_t *)(shared + L::dout + (buffer * L::rows + r) * pitch + ((c ^ swizzle<pitch>(r)) << 4) + lane % 4 * 4);
                for (int m = 0; m < M; m++)
                    for (int f = 0; f < 4; f++) {
                        const float y = widen<T>(x >> (f % 2 * 16));
                        const int key = k0 + key0 + 16 * m + lane / 4 + f / 2 * 8;
                        if (!finite(y) && key >= i + lo() && key <= i + hi() && takes_part(head, i, key)) dv[m][n][f] += y;
                    }
            }
        }
    };

    if (work.steps) {
        const int b = work.b, hk = work.hk, k0 = work.k0;
        copy_rows<L::keys, D, L::threads>(base, key_row(p.k, b, hk, k0), p.k.row, keys() - k0, p.dim, aligned16(p.k, p.dim));
        copy_rows<L::keys, D, L::threads>(base + L::v, key_row(p.v, b, hk, k0), p.v.row, keys() - k0, p.v_dim, aligned16(p.v, p.v_dim));
        if (L::stages == 2) fetch(hk * share, work.i_hi, 0, 0);
    }
    // The second warp of a scheduler adds dQ after the step, not before it, so that the two are in different phases.
    const bool late = L::warps > 4 && warp >= 4;
    // The walk: query heads of the group, in each the tiles of rows from last to first.
    int h = work.hk * share, i = work.i_hi;
    auto add_before = [&](int turn) { // of the tile before
        const bool wrap = i == work.i_hi;
        add_dq(wrap ? h - 1 : h, wrap ? work.i_lo : i + 1, turn ^ 1);
    };
    for (int t = 0; t || work.steps; t++) {
        const int turn = t & 1, buffer = L::stages == 2 ? turn : 0;
        if (L::stages == 2) {
            copy_wait<0>();
            __syncthreads(); // Q, dO and stat of this tile, dS of the tile before are there; their other buffers are free
            const bool wrap = i == work.i_lo;
            if (t + 1 < work.steps) fetch(wrap ? h + 1 : h, wrap ? work.i_hi : i - 1, turn ^ 1, turn ^ 1);
        } else {
            __syncthreads(); // dS of the tile before is there; Q and dO are free
            if (t < work.steps) fetch(h, i, 0, turn);
            copy_wait<0>();
            __syncthreads(); // Q, dO and stat of this tile are there
        }
        if (t == 0 && work.clear_k) {
            bool good = true;
            for (int j = thread; j < L::keys * D / 2; j += L::threads) {
                const uint32_t x = ((const uint32_t *)shared)[j];
                good = good && x == clear_nonfinite<T>(x);
            }
            good = __syncthreads_and(good);
            if (thread == 0) work.clear_k = !good; // read after the next barrier
        }
        if (t > 1) end_turn();
        if (t > 0 && (!late || t == work.steps)) add_before(turn);
        if (t == work.steps) break;
        const int k0 = work.k0, r0 = i * L::rows;
        const bool edge = r0 + L::rows > rows() || k0 + L::keys > keys() || k0 < r0 + L::rows - 1 + lo() || k0 + L::keys - 1 > r0 + hi() || features && f.mask.data;
        if (edge) step(Bool<true>(), r0, h, buffer, turn);
        else step(Bool<false>(), r0, h, buffer, turn);
        if (t > 0 && late) add_before(turn);
        if (i == work.i_lo) h++, i = work.i_hi;
        else i--;
    }
    __syncthreads(); // K and V are not read any more; all adds have been issued
    if (work.steps) end_turn();
    const int own = threadIdx.x / 32;
    const uint32_t to = at<pitch>(base + own / split * 16 * M * pitch + place<pitch>(lane, false), 0, 2 * (own % split));
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            uint32_t x[4];
            pack_block<T>(x, dk[m], n, p.scale);
            store_matrix(at<pitch>(to, 16 * m, 2 * split * n), x);
            if constexpr (features) pack_block<T>(x, dv[m], n, f.keep);
            else pack_block<T>(x, dv[m], n);
            store_matrix(at<pitch>(to, 16 * m, 2 * split * n) + L::v, x);
        }
    __syncthreads(); // dK and dV are there
    const int b = work.b, hk = work.hk, k0 = work.k0;
    int end = p.kv_len;
    if constexpr (features) end = work.s.key_end;
    write_rows<L::keys, D, L::threads>(shared, key_row(p.dk, b, hk, k0), p.dk.row, end - k0, p.dim, aligned16(p.dk));
    write_rows<L::keys, D, L::threads>(shared + L::v, key_row(p.dv, b, hk, k0), p.dv.row, end - k0, p.v_dim, aligned16(p.dv));
}

// <dim> of the main kernel.
__device__ __forceinline__ int padded(const Params &p) {
    const int d = max(p.dim, p.v_dim);
    return d <= 32 ? 32 : d > 64 && d <= 96 ? 96 : (d + 63) / 64 * 64;
}

// The pairs (LSE in base 2, delta) of 64 rows of a head, delta = rowsum(dO * O) - dLSE.
// The sum is the diagonal of O dO^T, by the same instructions in the same order as
// dP^T = V dO^T: where a row gives all its weight to one key, O is that row of V, and
// dP - delta is 0 and not a difference of roundings. An empty row gets LSE = Inf, so
// that P = 0.
constexpr int delta_threads = 128, delta_columns = 64, delta_shared = 2 * 64 * 2 * delta_columns;
template <class T, bool features> __device__ __forceinline__ void delta(const Params &p, const Features &f) {
    const int tiles = (p.q_len + 63) / 64, bh = blockIdx.x / max(tiles, 1), r0 = blockIdx.x % max(tiles, 1) * 64;
    const int64_t counters = 1 + (int64_t)p.batch * p.heads * tiles * 2, threads = (int64_t)gridDim.x * delta_threads;
    for (int64_t i = (int64_t)blockIdx.x * delta_threads + threadIdx.x; i < counters; i += threads) p.turn[i] = 0;
    if (p.q_len == 0 || p.batch == 0) return;
    float4 *sum = (float4 *)p.dq_sum + (int64_t)blockIdx.x * 16 * padded(p);
    for (int i = threadIdx.x; i < 16 * padded(p) && !p.deterministic; i += delta_threads) sum[i] = {0, 0, 0, 0};

    extern __shared__ __align__(128) uint8_t shared[]; // O and dO, 64 rows of delta_columns
    constexpr int pitch = 2 * delta_columns, dout = 64 * pitch;
    const uint32_t base = shared_address(shared);
    const int b = bh / p.heads, h = bh % p.heads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Extent<features> e(p, f, b);
    const bool aligned = aligned16(p.o, p.v_dim) && aligned16(p.dout, p.v_dim);
    float x[1][2][4] = {};
    for (int c = 0; c < p.v_dim; c += delta_columns) {
        copy_rows<64, delta_columns, delta_threads>(base, row_of(p.o, e.q_batch(), h, e.q0() + r0) + c, p.o.row, e.rows() - r0, p.v_dim - c, aligned);
        copy_rows<64, delta_columns, delta_threads>(base + dout, row_of(p.dout, e.q_batch(), h, e.q0() + r0) + c, p.dout.row, e.rows() - r0, p.v_dim - c, aligned);
        copy_commit();
        copy_wait<0>();
        __syncthreads(); // O and dO are there
        const uint32_t rows = base + 16 * warp * pitch;
        product<T, delta_columns>(x, rows + place<pitch>(lane, false), 0, rows + place<pitch>(lane, true), dout);
        __syncthreads(); // and may be replaced
    }
    if (lane % 4 != lane / 8) return; // off the diagonal
    for (int half = 0; half < 2; half++) {
        const int r = r0 + 16 * warp + 8 * half + lane / 4;
        const float on_diagonal = lane / 4 % 2 ? x[0][half][2 * half + 1] : x[0][half][2 * half];
        const bool there = r < e.rows();
        const float lse = there ? stat_of_lse(stat_of(p.lse, e.q_batch(), h, e.q0() + r)) : 0;
        const float dlse = there && p.dlse.data ? stat_of(p.dlse, e.q_batch(), h, e.q0() + r) : 0;
        ((float2 *)p.delta)[(int64_t)bh * tiles * 64 + r] = {lse, on_diagonal - dlse};
    }
}

// dQ = dq_sum * scale for 64 rows of a head, 0 where a row sees no key. A
// thread takes 8 columns of the rows r and r+8, which lie together.
template <class T, bool features> __device__ __forceinline__ void finish(const Params &p, const Features &f) {
    const int tiles = (p.q_len + 63) / 64, bh = blockIdx.x / tiles, tile = blockIdx.x % tiles, chunks = (p.dim + 7) / 8, all = padded(p) / 8;
    const float4 *sum = (const float4 *)p.dq_sum + (int64_t)blockIdx.x * 128 * all;
    const bool aligned = aligned16(p.dq);
    const Extent<features> e(p, f, bh / p.heads);
    for (int j = threadIdx.x; j < 32 * chunks; j += 256) {
        const int chunk = j % chunks, g = j / chunks % 8, m = j / chunks / 8;
        bool sees[2];
        for (int i = 0; i < 2; i++) {
            const int r = tile * 64 + m * 16 + g + 8 * i;
            sees[i] = (!features || r < e.rows()) && max(0, r + e.lo()) <= min(e.keys() - 1, r + e.hi());
        }
        uint32_t y[2][4];
        for (int i = 0; i < 4; i++) {
            const float4 x = sees[0] || sees[1] ? sum[(m * all + chunk) * 32 + 4 * g + i] : float4{}; // nobody wrote what no row needs
            y[0][i] = pack<T>(x.x * p.scale, x.y * p.scale), y[1][i] = pack<T>(x.z * p.scale, x.w * p.scale);
        }
        for (int i = 0; i < 2; i++) {
            const int r = tile * 64 + m * 16 + g + 8 * i;
            const uint4 x = sees[i] ? uint4{y[i][0], y[i][1], y[i][2], y[i][3]} : uint4{0, 0, 0, 0};
            if constexpr (features) {
                if (r < e.row_end()) store8(row_of(p.dq, e.q_batch(), bh % p.heads, e.q0() + r) + 8 * chunk, x, p.dim - 8 * chunk, aligned);
            } else if (r < p.q_len) {
                store8(row_of(p.dq, bh / p.heads, bh % p.heads, r) + 8 * chunk, x, p.dim - 8 * chunk, aligned);
            }
        }
    }
}

#define KERNEL(name, block, body, p, f, threads, resident, shared, rows, keys)   \
    extern "C" __device__ Plan name##_plan = {threads, shared, rows, keys};      \
    extern "C" __global__ void __launch_bounds__(threads, resident) name(const __grid_constant__ block x) { body(p, f); }
#define BOTH(name, block, features, p, f, dtype, T, D) \
    KERNEL(name##_##dtype##_d##D, block, (backward<T, D, features>), p, f, (Layout<D, features>::threads), shape(D).resident, (Layout<D, features>::total), (Layout<D, features>::rows), (Layout<D, features>::keys))
#define ENDS(name, block, features, p, f, dtype, T)                                                          \
    KERNEL(name##_delta_##dtype, block, (delta<T, features>), p, f, delta_threads, 4, delta_shared, 64, 0) \
    KERNEL(name##_finish_##dtype, block, (finish<T, features>), p, f, 256, 4, 0, 64, 0)
#define INSTANCE(dtype, T, D)                                                       \
    BOTH(bwd_sm80, Params, false, x, no_features, dtype, T, D)                      \
    BOTH(bwd_sm80_features, FeatureParams, true, x.p, x.f, dtype, T, D)
#define ALL(dtype, T)                                               \
    ENDS(bwd_sm80, Params, false, x, no_features, dtype, T)         \
    ENDS(bwd_sm80_features, FeatureParams, true, x.p, x.f, dtype, T)
ALL(f16, F16)
ALL(bf16, BF16)
INSTANCE(f16, F16, 32)
INSTANCE(f16, F16, 64)
INSTANCE(f16, F16, 96)
INSTANCE(f16, F16, 128)
INSTANCE(f16, F16, 192)
INSTANCE(f16, F16, 256)
INSTANCE(bf16, BF16, 32)
INSTANCE(bf16, BF16, 64)
INSTANCE(bf16, BF16, 96)
INSTANCE(bf16, BF16, 128)
INSTANCE(bf16, BF16, 192)
INSTANCE(bf16, BF16, 256)
