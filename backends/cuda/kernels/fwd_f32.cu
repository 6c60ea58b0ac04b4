// Forward attention in float32: for each query row i of each head,
//
//	m = max of S[j] = Q[i]·K[j] over the visible keys j
//	l = sum of P[j] = exp(scale (S[j] - m))
//	O[i] = sum of P[j] V[j] / l;  LSE[i] = scale m + ln l
//
// tile by tile over the keys; l and O are rescaled whenever m grows (Milakov and
// Gimelshein 2018; Dao et al. 2022, algorithm 1).
//
// Launch: grid.x = ceil(q_len / rows) * heads * batch. The d512 kernel needs this
// number times ceil(v_dim / 256). No workspace.
//
// Tiles: each warp has 16 query rows; a block loops over tiles of 64 or 32 keys.
// Q stays in shared memory. K, then V, pass through a ring of two stages in slices
// of 64 columns: one stage is in use while the other is prefetched. In a tile with hidden
// keys, S is masked after Q·K, and non-finite elements of V are replaced by 0 before
// P V.
//
// Registers per lane: 4 for each 8 keys of S, which P then replaces; 4 for each 8
// columns of O; 16 or 32 for products in flight, 16 or 32 for their operands.
#include "f32.cuh"

template <int D> struct Tile {
    static constexpr int keys = D < 256 ? 64 : 32;
    static constexpr int warps = D > 256 ? 2 : 4;
    static constexpr int threads = 32 * warps, rows = 16 * warps;
    static constexpr int slice = D < 64 ? D : 64;     // columns per stage
    static constexpr int out = D < 256 ? D : 256;     // columns of O per block
    static constexpr int stage = keys * slice;        // floats per stage
    static constexpr int shared = (rows * D + 2 * stage) * 4 + slice * 8;
};

__device__ __forceinline__ float quad_sum(float x) {
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
}

// Hides the pairs of a tile that are outside the band, and missing keys. row and key are the first of the lane's.
template <bool features, int tiles> __device__ __forceinline__ void hide(float (&w)[tiles][4], const Extent<features> &s, int row, int key) {
#pragma unroll
    for (int j = 0; j < tiles; j++)
#pragma unroll
        for (int e = 0; e < 4; e++) {
            int x = key + 8 * j + e % 2, i = row + e / 2 * 8;
            if (x < i + s.lo() || x > i + s.hi() || x >= s.keys()) w[j][e] = -kInf;
        }
}

// Replaces a tile of scores by weights. Sets m and l to the maxima and sums so far, and alpha to the factors of O. factor converts
// S to log2 units.
//
// P, alpha and LSE all use the rounded product of the maximum and scale_log2, so the rounding cancels. With features, and in
// rows far from 0, the maximum is subtracted before scaling, because differences of close scores are exact.
template <bool features, int tiles> __device__ __forceinline__ void weights(float (&w)[tiles][4], float (&m)[2], float (&l)[2], float (&alpha)[2], float factor, const Params &p) {
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float top = w[0][2 * r];
#pragma unroll
        for (int j = 0; j < tiles; j++) top = fmaxf(top, fmaxf(w[j][2 * r], w[j][2 * r + 1]));
        top = fmaxf(m[r], quad_max(top));
        const Beneath x(top, factor);
        float from = features ? top == -kInf ? 0 : top : x.base; // if no key was visible yet, 0 avoids -inf - -inf
        alpha[r] = features ? exp2_approx((m[r] - from) * factor) : x.rescale(m[r]);
        m[r] = top;
        if (!features && __any_sync(~0u, x.far())) {
            from = x.far() ? 0 : from;
#pragma unroll
            for (int j = 0; j < tiles; j++) w[j][2 * r] -= x.far() ? top : 0, w[j][2 * r + 1] -= x.far() ? top : 0;
        }
        float sum = 0;
#pragma unroll
        for (int j = 0; j < tiles; j++)
#pragma unroll
            for (int e = 2 * r; e < 2 * r + 2; e++) {
                w[j][e] = exp2_approx(features ? (w[j][e] - from) * factor : fmaf(w[j][e], p.scale_log2, -from));
                sum += w[j][e];
            }
        l[r] = fmaf(l[r], alpha[r], sum);
    }
}

// Writes O and LSE. row is the first of the lane's rows, part the block's part of the columns.
template <int D, bool features, class O>
__device__ __forceinline__ void finish(const Params &p, const Features &f, const Extent<features> &s, const O &o, const float (&m)[2], float (&l)[2], int row, int part, int head, int batch, bool scaled) {
    using T = Tile<D>;
    constexpr int slice = T::slice;
    const int g = lane_g(), t = lane_t();
    // Corrects LSE for the rounding of scale_log2, because the backward pass scales scores by p.scale.
    const float rest = lacking(p.scale, p.scale_log2), more = rest == 0 ? 0 : rest / p.scale_log2 * kLn2;
    [[maybe_unused]] auto lse_of = [&](float m, float l) {
        const float scaled = __fmul_rn(m, p.scale_log2);
        return is_far(scaled) ? fmaf(m, p.scale, logf(l)) : fmaf(scaled, kLn2, fmaf(scaled, more, logf(l)));
    };
    float scale[2], earlier[2], sum[2];
#pragma unroll
    for (int r = 0; r < 2; r++) {
        int i = row + 8 * r;
        l[r] = quad_sum(l[r]);
        if constexpr (features) {
            Shares y = {0, 0, -kInf, 1};
            if (i < s.rows()) y = shares(scaled ? m[r] : m[r] * p.scale, l[r], sink_of(f, head), f.carry ? f.carried_lse[((int64_t)batch * p.heads + head) * p.q_len + i] : -kInf);
            scale[r] = y.mine * f.keep, earlier[r] = y.earlier, sum[r] = y.sum;
            if (p.lse.data && t == 0 && part == 0 && i < s.row_end()) first(p.lse, s.q_batch(), head)[(s.s.q0 + i) * p.lse.row] = y.top + logf(y.sum);
            continue;
        }
        scale[r] = l[r] == 0 ? 0 : 1 / l[r];
        if (p.lse.data && t == 0 && part == 0 && i < p.q_len)
            first(p.lse, batch, head)[i * p.lse.row] = l[r] == 0 ? -kInf : lse_of(m[r], l[r]);
    }
#pragma unroll
    for (int n = 0; n < 4; n++) {
        int i = row - g + 2 * t + n % 2 + n / 2 * 8; // the lane's row n in weigh's layout
        float by = __shfl_sync(~0u, scale[n / 2], 8 * t + n % 2 * 4), onto = 0, whole = 0;
        if constexpr (features) onto = __shfl_sync(~0u, earlier[n / 2], 8 * t + n % 2 * 4), whole = __shfl_sync(~0u, sum[n / 2], 8 * t + n % 2 * 4);
        if (i >= s.row_end()) continue;
        float *to = first(p.o, s.q_batch(), head) + i * p.o.row;
        if constexpr (features) to += s.s.q0 * p.o.row;
#pragma unroll
        for (int x = 0; x < T::out / slice; x++)
#pragma unroll
            for (int b = 0; b < slice / 16; b++)
                if constexpr (features)
                    store_onto(to, p.v_dim, part * T::out + x * slice + 16 * b, o[x][b], n, by, onto, whole, i < s.rows());
                else
                    store(to, p.v_dim, part * T::out + x * slice + 16 * b, o[x][b], n, by);
    }
}

template <int D, bool features> __device__ __forceinline__ void forward(const Params &p, const Features &f) {
    using T = Tile<D>;
    constexpr int slice = T::slice, keys = T::keys;
    extern __shared__ __align__(16) float shared[];
    float *q_tile = shared;                                             // [D / slice][rows][slice]
    float *ring = q_tile + T::rows * D;                                 // [2][keys][slice]
    auto *bad = (unsigned long long *)(ring + 2 * T::stage);            // [slice]

    // Last tiles of rows first, because under a causal mask their rows see the most keys.
    int at = blockIdx.x, parts = (p.v_dim + T::out - 1) / T::out, heads = p.heads * p.batch;
    parts = D > T::out ? parts : 1;
    int part = at % parts;
    at /= parts;
    int tile = (p.q_len + T::rows - 1) / T::rows - 1 - at / heads;
    int head = at % heads % p.heads, batch = at % heads / p.heads;
    int kv_head = head / (p.heads / p.kv_heads);
    const Extent<features> s(p, f, batch);
    const float *q = first(p.q, s.q_batch(), head), *k = first(p.k, batch, kv_head), *v = first(p.v, batch, kv_head);
    if constexpr (features) {
        if (tile * T::rows >= s.row_end()) return;
        q += s.s.q0 * p.q.row;
    }

    int row0 = tile * T::rows, row1 = min(row0 + T::rows, s.rows());      // the rows of the block
    int key0 = max(0, row0 + s.lo()) / keys * keys;                       // first key of the first tile that some row sees
    int key1 = min(s.keys(), max(0, row1 + s.hi()));                        // no row sees key key1 or a later key
    if constexpr (features)
        if (row0 >= row1) key1 = key0;                          // all rows are padding
    const int k_slices = D > slice ? (p.dim + slice - 1) / slice : 1;
    const int v_slices = D > slice ? (min(p.v_dim - part * T::out, T::out) + slice - 1) / slice : 1;

    int g = lane_g(), t = lane_t(), warp = threadIdx.x / 32;
    int row = row0 + 16 * warp + g;                                     // the lane holds rows `row` and `row` + 8
    float o[T::out / slice][slice / 16][2][4] = {}, m[2] = {-kInf, -kInf}, l[2] = {};

    // Stages are loaded in the order of use: for each tile of keys, the slices of K,
    // then of V.
    int next_key = key0, next_slice = 0, stage = 0;
    auto load_next = [&](int into) {
        if (next_key < key1) {
            float *to = ring + into * T::stage;
            int v_col = part * T::out + (next_slice - k_slices) * slice;
            if constexpr (features)
                load_keys<T::threads, slice, keys>(to, next_slice < k_slices ? p.k : p.v, f, s.s, batch, kv_head,
                                                   next_slice < k_slices ? p.dim : p.v_dim, next_key, next_slice < k_slices ? next_slice * slice : v_col);
            else if (next_slice < k_slices)
                load<T::threads, slice, keys>(to, k, p.k.row, p.kv_len, p.dim, next_key, next_slice * slice);
            else
                load<T::threads, slice, keys>(to, v, p.v.row, p.kv_len, p.v_dim, next_key, v_col);
            if (++next_slice == k_slices + v_slices) next_slice = 0, next_key += keys;
        }
        copy_commit();
    };
    auto next_stage = [&] {
        copy_wait<0>();
        __syncthreads(); // the stage has arrived; the previous one is free
        load_next(stage ^ 1);
        stage ^= 1;
        return ring + (stage ^ 1) * T::stage;
    };

    for (int i = 0; i < k_slices; i++)
        load<T::threads, slice, T::rows>(q_tile + i * T::rows * slice, q, p.q.row, s.rows(), p.dim, row0, i * slice);
    load_next(0);

    bool scaled = true;
    if constexpr (features) scaled = Scores<float>(p, f, s.s, batch, head).changes();
    const float factor = features && scaled ? kLog2E : p.scale_log2; // converts S to log2 units
    for (int key = key0; key < key1; key += keys) {
        float w[keys / 8][4] = {}; // S, which P replaces
        for (int i = 0; i < k_slices; i++) {
            const float *kt = next_stage();
            score<slice, true>(w, q_tile + (i * T::rows + 16 * warp) * slice, kt, p.dim);
        }
        bool edge = key < row1 - 1 + s.lo() || key + keys - 1 > min(row0 + s.hi(), s.keys() - 1);
        if constexpr (features) Scores<float>(p, f, s.s, batch, head).template adjust<false>(w, row, key + 2 * t);
        if (edge) hide(w, s, row, key + 2 * t);
        float alpha[2];
        weights<features>(w, m, l, alpha, factor, p);
        [[maybe_unused]] const bool sparse = edge; // some row may see only few keys of the tile
        if constexpr (features) {
            Scores<float>(p, f, s.s, batch, head).template drop<false>(w, row, key + 2 * t);
            edge |= f.mask.data != nullptr;
        }

        float row_alpha[4]; // alpha of the lane's rows in weigh's layout
#pragma unroll
        for (int n = 0; n < 4; n++) row_alpha[n] = __shfl_sync(~0u, alpha[n / 2], 8 * t + n % 2 * 4);

#pragma unroll
        for (int i = 0; i < T::out / slice; i++) {
            if (i == v_slices) break;
            float *vt = next_stage();
            bool spoiled = edge && clean<T::threads, slice, keys>(vt, bad);
            if constexpr (features && D <= 32) {
                // In a row with one visible key, O must equal V exactly, or dS would not be 0. For D > 32, errors of dP hide such a difference.
                if (sparse) weigh<slice, true, true, true>(o[i], row_alpha, w, vt);
                else weigh<slice, true, true>(o[i], row_alpha, w, vt);
            } else {
                weigh<slice, features, features>(o[i], row_alpha, w, vt);
            }
            if (!spoiled) continue;
            int i0 = row - g + 2 * t - key;
#pragma unroll
            for (int b = 0; b < slice / 16; b++)
                if constexpr (features)
                    spoil_masked<false>(o[i][b], bad, 16 * b, i0 + s.lo(), i0 + s.hi(), Scores<float>(p, f, s.s, batch, head), row - g + 2 * t, key, s.rows());
                else
                    spoil(o[i][b], bad, 16 * b, i0 + s.lo(), i0 + s.hi());
        }
    }

    copy_wait<0>(); // copies must end before the block ends
    finish<D, features>(p, f, s, o, m, l, row, part, head, batch, scaled);
}

#define INSTANCE(D, blocks)                                                                                                   \
    extern "C" __global__ void __launch_bounds__(Tile<D>::threads, blocks)                                                    \
        fwd_f32_d##D(const __grid_constant__ Params p) { forward<D, false>(p, no_features); }                                 \
    extern "C" __device__ Plan fwd_f32_d##D##_plan = {Tile<D>::threads, Tile<D>::shared, Tile<D>::rows, Tile<D>::keys};       \
    extern "C" __global__ void __launch_bounds__(Tile<D>::threads, blocks)                                                    \
        fwd_f32_features_d##D(const __grid_constant__ FeatureParams x) { forward<D, true>(x.p, x.f); }                        \
    extern "C" __device__ Plan fwd_f32_features_d##D##_plan = {Tile<D>::threads, Tile<D>::shared, Tile<D>::rows, Tile<D>::keys};

INSTANCE(32, 3)
INSTANCE(64, 3)
INSTANCE(128, 2)
INSTANCE(256, 2)
INSTANCE(512, 2)
