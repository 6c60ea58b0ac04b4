// A tile of bwd_sm80: adds the terms of a tile of query rows to a warp's sums of dK and dV.
#pragma once
#include "bwd_sm80.cuh"

// Tile processes one tile of query rows. If edge, some pairs of a query row and a key may be hidden.
template <class T, int D, bool features, bool edge> struct Tile {
    using L = Layout<D, features>;
    static constexpr int M = L::blocks, split = L::split, pitch = L::pitch, pitch_p = L::pitch_p;
    static constexpr int part_rows = L::rows / L::parts, chunk = part_rows < 32 ? part_rows : 32; // query rows of a tile that one warp computes; query rows of one step
    static constexpr int N = D / 16 / split;                                                   // groups of 16 columns of dK, dV per warp
    static_assert(split == 1 || part_rows == chunk, "warps that share keys do so once in a tile");
    static constexpr int E = L::wide ? 1 : M;                                                  // groups of 16 keys of which a warp computes P^T and dS^T at a time
    using Chunk = float[E][chunk / 8][4]; // chunk of S^T or dP^T
    using Sums = float[M][2 * N][4];      // dK or dV

    const Block<T, D, features> at;
    const int r0, head, buffer;
    const float2 *const stat;        // per row: LSE in log2 units, delta
    const int part, key0, k0;        // index of the warp's part of the rows; the first key of the warp's P^T minus the block's first key; the block's first key if edge, else 0
    const uint32_t q_tile, p_tile;   // address of Q; the lane's address in P^T of the warp's keys
    const int to_ds;                 // offset from P^T to dS^T
    bool guard = false, far = false; // guard: Q or dO may have non-finite elements; far: some row is far (see far.cuh)
    static constexpr int to_dout = L::dout - L::q;

    __device__ __forceinline__ Tile(const Block<T, D, features> &at, int r0, int head, int buffer, int turn)
        : at(at), r0(r0), head(head), buffer(buffer), stat((const float2 *)(at.shared + L::stat) + turn * L::rows), part(fresh(at.warp) % split / (split / L::parts)), key0(fresh(at.warp) / split * 16 * M + (L::wide && M > 1 ? at.warp % 2 * 16 : 0)), k0(edge ? at.work.k0 : 0),
          q_tile(at.base + L::q + buffer * L::rows * pitch), p_tile(at.base + L::pt + (L::wide ? 0 : key0 * pitch_p) + place<pitch_p>(at.lane, false)), to_ds(L::ds - L::pt + turn * L::keys * pitch_p) {
        for (int r = at.lane; r < L::rows; r += 32) far = far || is_far_lse(stat[r].x);
        far = __any_sync(~0u, far);
        if (edge) {
            for (int r = at.lane; r < L::rows; r += 32) guard = guard || !finite(stat[r].x) || is_far_lse(stat[r].x) || !finite(stat[r].y);
            guard = __any_sync(~0u, guard);
        }
    }

    // Adds P^T dO to dV and dS^T Q to dK. dS^T stays in shared memory, for dQ.
    __device__ __forceinline__ void add(Sums &dk, Sums &dv) const {
#pragma unroll
        for (int done = 0; done < part_rows; done += chunk) {
            const int row = part * part_rows + done; // in the tile
            const uint32_t own = at.base + key0 * pitch + place<pitch>(at.lane, false), queries = q_tile + row * pitch + place<pitch>(at.lane, true);
            Chunk s = {}, dp = {};
            product<T, D>(s, own, 0, queries, 0);
            product<T, D>(dp, own, L::v, queries, to_dout);
            uint32_t dropped[M];
            if constexpr (features) change(s, dp, dropped, row);
            else if (far) far_products(s, row);
            differentiate(s, dp, row);
            if constexpr (features) drop(s, dropped);
            uint32_t pa[chunk / 16][M][4], da[chunk / 16][M][4];
            for (int n = 0; n < chunk / 16; n++)
                for (int m = 0; m < M; m++) {
                    pack_block<T>(pa[n][m], s[m], n), pack_block<T>(da[n][m], dp[m], n);
                    if (split > 1) store_matrix(at_p(16 * m, row / 8 + 2 * n), pa[n][m]);
                    store_matrix(at_p(16 * m, row / 8 + 2 * n, to_ds), da[n][m]);
                }
            const uint32_t columns = columns_of(row);
            for (int n = 0; n < chunk / 16; n++) {
                accumulate<T, D, split>(dv, pa[n], columns, to_dout + 16 * n * pitch, edge && guard);
                accumulate<T, D, split>(dk, da[n], columns, 16 * n * pitch, edge && guard);
            }
        }
        if (split > 1) add_others(dk, dv);
        if (edge && guard) add_lost(dv);
    }

    // Like add, for wide heads. Two warps compute S^T and dP^T of a part of the rows. Then each of them computes P^T and dS^T of
    // half of these pairs or, if M is 1, both compute the same. At last, each warp loads P^T and dS^T of all rows.
    __device__ __forceinline__ void add_wide(Sums &dk, Sums &dv) const {
        static_assert(part_rows == 16 && chunk == 16, "a warp computes 16 query rows");
        const int row = part * part_rows;
        Chunk s, dp;
        wide_products(s, dp, row);
        uint32_t dropped[E];
        if constexpr (features) change(s, dp, dropped, row);
        else if (far) far_products(s, row);
        differentiate(s, dp, row);
        if constexpr (features) drop(s, dropped);
        if (guard) clear_rows(dv);
        if (M > 1 || column() % 2 == 0) {
            uint32_t x[4];
            pack_block<T>(x, s[0], 0);
            store_matrix(at_p(key0, row / 8), x);
            pack_block<T>(x, dp[0], 0);
            store_matrix(at_p(key0, row / 8, to_ds), x);
        }
        team_barrier(); // P^T and dS^T are stored
#pragma unroll 1
        for (int r = 0; r < L::rows; r += 16) {
            const uint32_t columns = columns_of(r);
            uint32_t a[M][4];
            for (int m = 0; m < M; m++) load_matrix(a[m], at_p(team_key() + 16 * m, r / 8));
            accumulate_wide(dv, a, columns + to_dout, at.p.v_dim);
            for (int m = 0; m < M; m++) load_matrix(a[m], at_p(team_key() + 16 * m, r / 8, to_ds));
            accumulate_wide(dk, a, columns, at.p.dim);
        }
    }

  private:
    // Returns the index of the warp's columns of dK and dV.
    __device__ __forceinline__ int column() const { return L::wide ? at.warp % split : part; }
    // Returns the first key of the warp's dK and dV minus the block's first key.
    __device__ __forceinline__ int team_key() const { return L::wide ? at.warp / split * 16 * M : key0; }
    __device__ __forceinline__ void team_barrier() const { asm volatile("bar.sync %0, %1;" ::"r"(1 + at.warp / split), "n"(32 * split) : "memory"); }

    // Computes S^T and dP^T of the warp's keys and 16 rows. The warp computes one of them for all keys of the team, and loads
    // the other. The sums have the same order as in the kernel that computes delta.
    __device__ __forceinline__ void wide_products(Chunk &s, Chunk &dp, int row) const {
        const int second = column() % 2, panels = (max(at.p.dim, at.p.v_dim) + 63) / 64;
        uint32_t a = at.base + at.warp / split * 16 * M * pitch + place<pitch>(at.lane, false) + second * L::v, b = q_tile + row * pitch + place<pitch>(at.lane, true) + second * to_dout;
        float x[M][2][4] = {};
#pragma unroll 1
        for (int c = 0; c < panels; c++, a += 128, b += 128) {
#pragma unroll
            for (int k = 0; k < 4; k++) {
                uint32_t u[M][4], w[4];
                for (int m = 0; m < M; m++) load_matrix(u[m], ::at<pitch>(a, 16 * m, 2 * k));
                load_matrix(w, ::at<pitch>(b, 0, 2 * k));
                for (int m = 0; m < M; m++) mma<T>(x[m][0], u[m], w[0], w[1]), mma<T>(x[m][1], u[m], w[2], w[3]);
            }
        }
        uint8_t *const sent = at.shared + L::sent + (at.warp / split * L::parts + part) * M * 2048 + at.lane * 16;
        for (int m = 0; m < M; m++)
            for (int n = 0; n < 2; n++) *(float4 *)(sent + (second * M + m) * 1024 + n * 512) = {x[m][n][0], x[m][n][1], x[m][n][2], x[m][n][3]};
        team_barrier(); // S^T and dP^T are stored
        const int m = M > 1 ? second : 0;
        for (int n = 0; n < 2; n++) {
            const float4 y = *(const float4 *)(sent + m * 1024 + n * 512), z = *(const float4 *)(sent + (M + m) * 1024 + n * 512);
            s[0][n][0] = y.x, s[0][n][1] = y.y, s[0][n][2] = y.z, s[0][n][3] = y.w;
            dp[0][n][0] = z.x, dp[0][n][1] = z.y, dp[0][n][2] = z.z, dp[0][n][3] = z.w;
        }
    }
    // Adds the product x b to c, without columns from dim on. b has 16 rows, at the lane's address b.
    __device__ __forceinline__ void accumulate_wide(Sums &c, const uint32_t (&x)[M][4], uint32_t b, int dim) const {
#pragma unroll
        for (int n = 0; n < N; n++) {
            uint32_t y[4];
            if (16 * split * (n + 1) > 256 && 16 * (column() + split * n) >= dim) break;
            load_matrix_transposed(y, b + n * 32 * split);
            for (int m = 0; m < M; m++) mma<T>(c[m][2 * n], x[m], y[0], y[1]), mma<T>(c[m][2 * n + 1], x[m], y[2], y[3]);
        }
    }
    // Adds the non-finite elements of dO to dV, and then replaces the non-finite elements of Q and dO by 0 in shared memory.
    // All warps of the block call clear_rows for the same tiles.
    __device__ __forceinline__ void clear_rows(Sums &dv) const {
        __syncthreads(); // S^T and dP^T are complete
        add_lost(dv);
        __syncthreads();
        for (int i = at.thread; i < L::rows * D; i += L::threads) { // Q, then dO
            uint32_t *const x = (uint32_t *)(at.shared + L::q) + i;
            *x = clear_nonfinite<T>(*x);
        }
        __syncthreads();
    }
    // Returns the lane's address in P^T of key `key` and query row 8 * chunk. With offset to_ds, returns the address in dS^T.
    __device__ __forceinline__ uint32_t at_p(int key, int chunk, int offset = 0) const { return ::at<pitch_p>(p_tile + offset, key, chunk); }
    // Returns the address of the warp's columns in row `row` of the tile's Q.
    __device__ __forceinline__ uint32_t columns_of(int row) const { return ::at<pitch>(q_tile + row * pitch + place<pitch>(at.lane, false), 0, 2 * column()); }

    // With features: replaces S^T by P^T, and dP^T by (dP^T - delta) times the derivative of the softcap. dS^T is the
    // product of these two results. Bit 8 e + n of dropped[m] is set if weight s[m][n][e] is dropped.
    __device__ __forceinline__ void change(Chunk &s, Chunk &dp, uint32_t (&dropped)[E], int row) const {
        Sequence e = {};
        e.diagonal = at.work.s.diagonal;
        const int key = at.work.k0 + key0, lane = at.lane;
#pragma unroll
        for (int m = 0; m < E; m++) {
            const Scores<T> x(at.p, at.f, e, at.work.b, head);
            const int own = key + 16 * m + lane / 4, walked = row + lane % 4 * 2;
            dropped[m] = 0;
            if (at.f.drop_below) {
#pragma unroll
                for (int n = 0; n < chunk / 8; n += 2) dropped[m] |= x.template drops<true>(own, r0 + walked + 8 * n) << n;
#pragma unroll
                for (int n = 0; n < chunk / 8; n++)
#pragma unroll
                    for (int e = 0; e < 4; e++) dp[m][n][e] = dropped[m] >> (8 * e + n) & 1 ? 0 : dp[m][n][e] * at.f.keep;
            }
#pragma unroll
            for (int n = 0; n < chunk / 8; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) dp[m][n][e] -= stat[walked + 8 * n + e % 2].y;
            auto slope = [&](int n, int e, float d) { dp[m][n][e] *= d; };
            const auto lse = [&](int n, int e) { return stat[walked + 8 * n + e % 2].x; };
            if (far) x.template far_weights<true>(s[m], own, r0 + walked, [&, natural = at.natural_lse(head, r0)](int n, int e) { return natural(walked + 8 * n + e % 2); }, slope);
            else x.template weights<true>(s[m], own, r0 + walked, lse, slope);
        }
    }
    // Replaces the dot products of far rows (see far.cuh) by results of far_product.
    __device__ __forceinline__ void far_products(Chunk &s, int row) const {
        const NaturalLSE natural = at.natural_lse(head, r0);
        for (int n = 0; n < chunk / 8; n++)
            for (int e = 0; e < 2; e++) {
                const int r = row + 8 * n + at.lane % 4 * 2 + e;
                const float lse = natural(r);
                for (int m = 0; m < E; m++)
                    for (int f = e; f < 4; f += 2)
                        if (is_far_lse(stat[r].x)) s[m][n][f] = far_product(s[m][n][f], at.p.scale, kLog2E / at.p.scale_log2, lse);
            }
    }
    // Computes P^T and dS^T from S^T and dP^T. With features, `change` has already computed P^T. For hidden pairs, P^T and
    // dS^T are 0.
    __device__ __forceinline__ void differentiate(Chunk &s, Chunk &dp, int row) const {
        for (int n = 0; n < chunk / 8; n++)
            for (int e = 0; e < 2; e++) {
                const int r = row + 8 * n + at.lane % 4 * 2 + e, i = r0 + r;
                const float2 t = stat[r];
                for (int m = 0; m < E; m++)
                    for (int f = e; f < 4; f += 2) {
                        const int key = k0 + key0 + 16 * m + at.lane / 4 + f / 2 * 8;
                        const bool hidden = edge && (key < i + at.lo() || key > i + at.hi() || key >= at.keys() || i >= at.rows());
                        if constexpr (features) { // dP of a hidden pair may be NaN
                            if (hidden) s[m][n][f] = 0;
                            dp[m][n][f] = hidden || edge && s[m][n][f] == 0 ? 0 : s[m][n][f] * dp[m][n][f];
                            continue;
                        }
                        s[m][n][f] = exp2_approx(hidden ? -infinity : fmaf(s[m][n][f], at.p.scale_log2, -t.x));
                        dp[m][n][f] = hidden ? 0 : s[m][n][f] * (dp[m][n][f] - t.y);
                    }
            }
    }
    __device__ __forceinline__ void drop(Chunk &s, const uint32_t (&dropped)[E]) const {
        if (!at.f.drop_below) return;
#pragma unroll
        for (int m = 0; m < E; m++)
#pragma unroll
            for (int i = 0; i < chunk / 2; i++)
                if (dropped[m] >> (i % 4 * 8 + i / 4) & 1) s[m][i / 4][i % 4] = 0;
    }
    // Adds to dK and dV the terms of query rows that other warps with the same keys have processed. P^T and dS^T of these
    // rows are in shared memory.
    __device__ __forceinline__ void add_others(Sums &dk, Sums &dv) const {
        team_barrier(); // P^T and dS^T are stored
#pragma unroll
        for (int o = 1; o < split; o++) {
            const int row = (part + o) % split * part_rows;
            const uint32_t columns = columns_of(row);
#pragma unroll
            for (int n = 0; n < chunk / 16; n++) {
                uint32_t a[M][4];
                for (int m = 0; m < M; m++) load_matrix(a[m], at_p(16 * m, row / 8 + 2 * n));
                accumulate<T, D, split>(dv, a, columns, to_dout + 16 * n * pitch, edge && guard);
                for (int m = 0; m < M; m++) load_matrix(a[m], at_p(16 * m, row / 8 + 2 * n, to_ds));
                accumulate<T, D, split>(dk, a, columns, 16 * n * pitch, edge && guard);
            }
        }
    }
    // Adds the non-finite elements of dO, which were replaced by 0, to dV of all keys that the element's query row sees.
    __device__ __forceinline__ void add_lost(Sums &dv) const {
        for (int r = 0; r < min(L::rows, at.rows() - r0); r++) {
            if (finite(stat[r].y)) continue;
#pragma unroll
            for (int n = 0; n < 2 * N; n++) {
                const int c = 2 * (column() + split * (n / 2)) + n % 2, i = r0 + r;
                const uint32_t x = *(const uint32_t *)(at.shared + L::dout + (buffer * L::rows + r) * pitch + ((c ^ swizzle<pitch>(r)) << 4) + at.lane % 4 * 4);
                for (int m = 0; m < M; m++)
                    for (int f = 0; f < 4; f++) {
                        const float y = widen<T>(x >> (f % 2 * 16));
                        const int key = k0 + team_key() + 16 * m + at.lane / 4 + f / 2 * 8;
                        if (!finite(y) && key >= i + at.lo() && key <= i + at.hi() && at.takes_part(head, i, key)) dv[m][n][f] += y;
                    }
            }
        }
    }
};
