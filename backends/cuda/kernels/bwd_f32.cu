// Backward attention in float32: for each query row i and visible key j,
//
//	P = exp(scale Q[i]·K[j] - LSE[i]);  delta[i] = dO[i]·O[i] - dLSE[i]
//	dS = P (dO[i]·V[j] - delta[i])
//	dV[j] += P dO[i];  dK[j] += scale dS Q[i];  dQ[i] += scale dS K[j]
//
// (Dao et al. 2022, algorithm 4.) Some blocks own a tile of keys, loop over the query
// rows that see these keys, and sum dK and dV in registers. The remaining blocks own a tile
// of query rows, loop over the keys that these rows see, and sum dQ. Sums need no atomic adds
// and have a fixed order. But P and dP are computed twice: seven products instead of five.
//
// Launch, in this order:
//
//	bwd_f32_delta: grid.x = batch * heads * ceil(q_len / rows)
//	bwd_f32_d*: grid.x = (ceil(kv_len / keys) * kv_heads * key_parts +
//	    ceil(q_len / rows) * heads * row_parts) * batch
//
// with key_parts = row_parts = 1, except for d256 and d512, which split the columns
// of the gradients over several blocks: key_parts = ceil(max(dim, v_dim) / 128),
// row_parts = ceil(dim / 256). Workspace: delta, [2, batch, heads, q_len]. Blocks that own
// keys read delta[0], blocks that own query rows read delta[1].
//
// The function gradients() serves blocks of both kinds. Own rows are the rows of the block's
// tile. Walked rows are the rows that the block loops over, 64 or 32 at a time:
//
//	block owns keys          own rows K, V     walked rows Q, dO
//	block owns query rows    own rows Q, dO    walked rows K, V
//
// Each warp computes 16 own rows. The rows of S and dP are own rows, so P and dS already have
// the register layout of operands. Own rows stay in shared memory if D <= 128. Otherwise
// slices of 64 columns of own rows are loaded again, with the slices of walked rows for S and
// dP. Slices pass through two stages: one stage is in use while the other stage is filled.
#include "f32.cuh"

template <int D, bool F> struct Tile {
    static constexpr int threads = 128, rows = 64;
    static constexpr int walk = D < 64 || D == 64 && !F ? 64 : 32; // query rows per step of a block that owns keys
    static constexpr int row_walk = D <= 64 || D == 128 && !F ? 64 : 32; // keys per step of a block that owns query rows
    static constexpr int slice = D < 64 ? D : 64;       // columns per stage
    static constexpr bool stays = D <= 128;             // own rows stay in shared memory
    static constexpr int out = D < 128 ? D : 128;       // columns of dK and dV per block
    static constexpr int row_out = F ? out : D < 256 ? D : 256; // columns of dQ per block
    static constexpr int own = rows * slice;            // floats per slice of own rows
    static constexpr int stage = row_walk * slice + (stays ? 0 : own);
    static constexpr int shared = ((stays ? 2 * rows * D : 0) + 2 * stage + 4 * walk) * 4 + slice * 8 + (F ? row_walk / 2 * threads * 4 : 0);
};

// Computes columns part * out to (part + 1) * out - 1 of a tile's gradients. If `keys`, the tile
// consists of keys, and the gradients are dK and dV. Otherwise the tile consists of query rows,
// and the gradient is dQ.
template <int D, bool keys, bool features>
__device__ __forceinline__ void gradients(const Params &p, const Features &f, int tile, int part, int own_head, int batch) {
    using T = Tile<D, features>;
    const Extent<features> e(p, f, batch);
    constexpr int slice = T::slice, walk = keys ? T::walk : T::row_walk, tiles = walk / 8;
    constexpr int out = keys ? T::out : T::row_out;
    constexpr int kOut = out / slice;
    constexpr bool whole = D <= out;
    extern __shared__ __align__(16) float shared[];
    float *own_tile = shared;                                           // [2][D / slice][rows][slice]
    float *ring = own_tile + (T::stays ? 2 * T::rows * D : 0);          // [2 stages][walked rows, then own rows][slice]
    float *stats = ring + 2 * T::stage;                                 // [2 tiles][LSE, delta][walk], of walked rows
    auto *bad = (unsigned long long *)(stats + 4 * T::walk);            // [slice]
    float *slopes = (float *)(bad + slice) + threadIdx.x;               // derivative of the softcap at each score: [walk / 2][threads]

    // Own rows a0, a1 and walked rows b0, b1: S = a0·b0, dP = a1·b1.
    const View &a0 = keys ? p.k : p.q, &a1 = keys ? p.v : p.dout;
    const View &b0 = keys ? p.q : p.k, &b1 = keys ? p.dout : p.v;
    const int owned = keys ? e.keys() : e.rows(), walked = keys ? e.rows() : e.keys();
    const int end = keys ? e.key_end() : e.row_end();                   // end of own rows, padding included
    const int lo = keys ? -e.hi() : e.lo(), hi = keys ? -e.lo() : e.hi();       // own row i and walked row j are a visible pair if i+lo <= j <= i+hi
    const int group = p.heads / p.kv_heads;
    const int head0 = keys ? own_head * group : own_head / group, head1 = keys ? head0 + group : head0 + 1;
    const int own_batch = keys ? e.kv_batch() : e.q_batch(), walked_batch = keys ? e.q_batch() : e.kv_batch();
    const float *own0 = first(a0, own_batch, own_head), *own1 = first(a1, own_batch, own_head);
    if constexpr (features) {
        if (tile * T::rows >= end) return;
        own0 += (keys ? e.s.key0 : e.s.q0) * a0.row, own1 += (keys ? e.s.key0 : e.s.q0) * a1.row;
    }

    int row0 = tile * T::rows, row1 = min(row0 + T::rows, owned);
    int walk0 = max(0, row0 + lo) / walk * walk, walk1 = min(walked, max(0, row1 + hi));
    if (features && row0 >= row1) walk1 = walk0;                        // all own rows are padding
    const int slices0 = D > slice ? (p.dim + slice - 1) / slice : 1;    // number of slices of a0 and b0
    const int slices1 = D > slice ? (p.v_dim + slice - 1) / slice : 1;  // number of slices of a1 and b1
    const int out0 = whole ? slices0 : max(0, min(slices0 - part * kOut, kOut));
    const int out1 = whole ? slices1 : max(0, min(slices1 - part * kOut, kOut));

    int g = lane_g(), t = lane_t(), warp = threadIdx.x / 32;
    int row = row0 + 16 * warp + g;                                     // the lane holds rows `row` and `row` + 8
    float d0[kOut][slice / 16][2][4] = {}, d1[keys ? kOut : 1][slice / 16][2][4] = {};  // d0: dK or dQ; d1: dV, if keys
    float lse[2] = {}, delta[2] = {};
    if (!keys) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int i = row + 8 * r;
            if (i >= owned) continue;
            lse[r] = first(p.lse, e.q_batch(), own_head)[(features ? e.q0() + i : i) * p.lse.row];
            delta[r] = p.delta[((int64_t)(p.batch + batch) * p.heads + own_head) * p.q_len + i];
        }
    }

    // Slices of walked rows are loaded in this order: b0 for S, b1 for dP, b1 for dV, b0 for d0. A block that
    // owns query rows computes no dV. If whole, each slice of b1 is loaded once, for dP and dV.
    const int dp = slices0, dv = dp + slices1, dk = dv + (keys && !whole ? out1 : 0), last = dk + out0;
    const float *walked0 = first(b0, walked_batch, head0), *walked1 = first(b1, walked_batch, head0); // first walked rows of head next_head
    if constexpr (features) walked0 += (keys ? e.s.q0 : e.s.key0) * b0.row, walked1 += (keys ? e.s.q0 : e.s.key0) * b1.row;
    int next_head = head0, next = walk0, next_step = 0, next_stats = 0, stage = 0;
    auto load_next = [&](int into) {
        if (next_head < head1) {
            float *to = ring + into * T::stage;
            int s = next_step;
            bool second = s >= dp && s < dk;
            int col = (s < dp ? s : s < dv ? s - dp : part * kOut + (s < dk ? s - dv : s - dk)) * slice;
            int cols = second ? p.v_dim : p.dim;
            const float *from = second ? walked1 : walked0;
            load<T::threads, slice, walk>(to, from, second ? b1.row : b0.row, walked, cols, next, col);
            from = second ? own1 : own0;
            if (!T::stays && s < dv)
                load<T::threads, slice, T::rows>(to + walk * slice, from, second ? a1.row : a0.row, owned, cols, row0, col);
            if (keys && s == 0 && threadIdx.x < 2 * walk) {
                int i = threadIdx.x % walk;
                bool in = next + i < walked;
                from = threadIdx.x < walk
                    ? first(p.lse, e.q_batch(), next_head) + ((in ? next + i : 0) + (features ? e.q0() : 0)) * p.lse.row
                    : p.delta + ((int64_t)batch * p.heads + next_head) * p.q_len + (in ? next + i : 0);
                copy_async4(shared_address(stats + next_stats * 2 * walk + threadIdx.x), from, in ? 4 : 0);
            }
            if (++next_step == last) {
                next_step = 0, next += walk, next_stats ^= 1;
                if (next >= walk1) {
                    next = walk0, next_head++;
                    walked0 += b0.head, walked1 += b1.head; // only a block that owns keys loops over several heads
                }
            }
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
    auto own_slice = [&](const float *at, int which, int i) {
        return (T::stays ? own_tile + (which * (D / slice) + i) * T::own : at + walk * slice) + 16 * warp * slice;
    };

    if (walk0 >= walk1) next_head = head1;
    if (T::stays && walk0 < walk1) {
        float *to = own_tile;
        for (int i = 0; i < slices0; i++, to += T::own)
            load<T::threads, slice, T::rows>(to, own0, a0.row, owned, p.dim, row0, i * slice);
        to = own_tile + T::rows * D;
        for (int i = 0; i < slices1; i++, to += T::own)
            load<T::threads, slice, T::rows>(to, own1, a1.row, owned, p.v_dim, row0, i * slice);
    }
    load_next(0);

    const float one[4] = {1, 1, 1, 1};
    int stat = 0;
    for (int head = head0; head < head1; head++) {
        for (int at = walk0; at < walk1; at += walk, stat ^= 1) {
            bool edge = at < row1 - 1 + lo || at + walk - 1 > min(row0 + hi, walked - 1);
            const int from[2] = {row + lo - at, row + 8 + lo - at};     // row g forms visible pairs with walked rows from[0] to to[0], row g+8 with from[1] to to[1]
            const int to[2] = {min(row + hi, walked - 1) - at, min(row + 8 + hi, walked - 1) - at};
            float s[tiles][4] = {}, ds[tiles][4] = {};
            for (int i = 0; i < slices0; i++) {
                const float *b = next_stage();
                score<slice, true>(s, own_slice(b, 0, i), b, p.dim);
            }
            const float *row_stats = stats + stat * 2 * walk;
            if constexpr (features) {
                auto lse_of = [&](int j, int e) { // Inf for a row without weights
                    const float l = keys ? row_stats[8 * j + 2 * t + e % 2] : lse[e / 2];
                    return l == -kInf ? kInf : l;
                };
                Scores<float>(p, f, e.s, batch, keys ? head : own_head).template weights<keys>(s, row, at + 2 * t, lse_of,
                    [&](int j, int e, float d) { slopes[(4 * j + e) * T::threads] = d; });
            } else {
#pragma unroll
                for (int j = 0; j < tiles; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        float l = keys ? row_stats[8 * j + 2 * t + e % 2] : lse[e / 2];
                        s[j][e] = exp2_approx((is_far(l) ? __fmul_rn(s[j][e], p.scale) - l : fmaf(s[j][e], p.scale, -l)) * kLog2E);
                    }
            }
            auto hide = [&](float (&x)[tiles][4]) {
#pragma unroll
                for (int j = 0; j < tiles; j++)
#pragma unroll
                    for (int e = 0; e < 4; e++) {
                        int i = 8 * j + 2 * t + e % 2;
                        if (i < from[e / 2] || i > to[e / 2]) x[j][e] = 0;
                    }
            };
            if (edge) hide(s);
            if constexpr (features) {
                Scores<float>(p, f, e.s, batch, keys ? head : own_head).template drop<keys>(s, row, at + 2 * t);
                edge |= f.mask.data != nullptr;
            }

            // Adds the product of y and the slice at b to slice i of the gradient d. If signs, negative elements of y count as 0.
            auto add = [&](bool signs, float (&d)[kOut][slice / 16][2][4], int i, const float (&y)[tiles][4], float *b) {
                bool spoiled = edge && clean<T::threads, slice, walk>(b, bad);
                if (features && signs)
                    weigh<slice, true>(d[i], one, y, b);
                else
                    weigh<slice>(d[i], one, y, b);
                if (!spoiled) return;
                int i0 = row - g + 2 * t - at;
#pragma unroll
                for (int c = 0; c < slice / 16; c++)
                    if constexpr (features)
                        spoil_masked<keys>(d[i][c], bad, 16 * c, i0 + lo, i0 + hi, Scores<float>(p, f, e.s, batch, keys ? head : own_head), row - g + 2 * t, at, owned);
                    else
                        spoil(d[i][c], bad, 16 * c, i0 + lo, i0 + hi);
            };
            if constexpr (keys && whole) {
#pragma unroll
                for (int i = 0; i < kOut; i++) {
                    if (i == slices1) break;
                    float *b = next_stage();
                    score<slice, false>(ds, own_slice(b, 1, i), b, p.v_dim);
                    add(true, d1, i, s, b);
                }
            } else {
                for (int i = 0; i < slices1; i++) {
                    const float *b = next_stage();
                    score<slice, false>(ds, own_slice(b, 1, i), b, p.v_dim);
                }
                if constexpr (keys) {
#pragma unroll
                    for (int i = 0; i < kOut; i++) {
                        if (i == out1) break;
                        add(true, d1, i, s, next_stage());
                    }
                }
            }
#pragma unroll
            for (int j = 0; j < tiles; j++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float l = keys ? row_stats[walk + 8 * j + 2 * t + e % 2] : delta[e / 2];
                    if constexpr (features) // dP of a hidden pair may be NaN
                        ds[j][e] = s[j][e] == 0 ? 0 : fabsf(s[j][e]) * ((dropped(s[j][e]) ? 0 : ds[j][e] * f.keep) - l);
                    else
                        ds[j][e] = s[j][e] * (ds[j][e] - l);
                }
            if (edge) hide(ds);
            if constexpr (features)
                if (f.cap_in != 0)
#pragma unroll
                    for (int j = 0; j < tiles; j++)
#pragma unroll
                        for (int e = 0; e < 4; e++) ds[j][e] = s[j][e] == 0 ? 0 : ds[j][e] * slopes[(4 * j + e) * T::threads]; // a hidden pair's slope may be NaN
#pragma unroll
            for (int i = 0; i < kOut; i++) {
                if (i == out0) break;
                add(false, d0, i, ds, next_stage());
            }
        }
    }

    copy_wait<0>(); // copies must end before the block ends
    const View &to0 = keys ? p.dk : p.dq;
#pragma unroll
    for (int n = 0; n < 4; n++) {
        int i = row - g + 2 * t + n % 2 + n / 2 * 8; // the lane's row n in weigh's layout
        if (i >= end) continue;
        float *to = first(to0, own_batch, own_head) + i * to0.row, *to1 = first(p.dv, own_batch, own_head) + i * p.dv.row;
        if constexpr (features) {
            to += (keys ? e.s.key0 : e.s.q0) * to0.row, to1 += (keys ? e.s.key0 : e.s.q0) * p.dv.row;
            if (i >= owned) {
                for (int col = part * out + lane_g(); col < min((part + 1) * out, max(p.dim, p.v_dim)); col += 8) {
                    if (col < p.dim) to[col] = 0;
                    if (keys && col < p.v_dim) to1[col] = 0;
                }
                continue;
            }
        }
#pragma unroll
        for (int x = 0; x < kOut; x++)
#pragma unroll
            for (int c = 0; c < slice / 16; c++) {
                int col = part * out + x * slice + 16 * c;
                store(to, p.dim, col, d0[x][c], n, p.scale);
                if constexpr (keys) store(to1, p.v_dim, col, d1[x][c], n, features ? f.keep : 1);
            }
    }
}

template <int D, bool features> __device__ __forceinline__ void backward(const Params &p, const Features &f) {
    using T = Tile<D, features>;
    int at = blockIdx.x;
    int key_parts = D > T::out ? (max(p.dim, p.v_dim) + T::out - 1) / T::out : 1;
    int row_parts = D > T::row_out ? (p.dim + T::row_out - 1) / T::row_out : 1;
    int key_blocks = (p.kv_len + T::rows - 1) / T::rows * p.kv_heads * p.batch * key_parts;
    if (at < key_blocks) { // first keys first, because under a causal mask the most rows see these keys
        int heads = p.kv_heads * p.batch, part = at % key_parts;
        at /= key_parts;
        gradients<D, true, features>(p, f, at / heads, part, at % heads % p.kv_heads, at % heads / p.kv_heads);
    } else { // last rows first, because under a causal mask these rows see the most keys
        at -= key_blocks;
        int heads = p.heads * p.batch, part = at % row_parts;
        at /= row_parts;
        int tile = (p.q_len + T::rows - 1) / T::rows - 1 - at / heads;
        gradients<D, false, features>(p, f, tile, part, at % heads % p.heads, at % heads / p.heads);
    }
}

// Computes delta = rowsum(dO * O) - dLSE for 64 rows of a head, once for each array of delta.
// The row sums for blocks that own keys are the diagonal of O dO^T, computed by the instructions
// of dP^T = V dO^T. The row sums for blocks that own query rows are the diagonal of dO O^T,
// computed by the instructions of dP = dO V^T. So dP - delta is exactly 0 if one key has all the
// weight.
constexpr int delta_threads = 128, delta_rows = 64;
template <bool features> __device__ __forceinline__ void diagonal(const Params &p, const Features &f) {
    constexpr int slice = 64; // columns per step
    extern __shared__ __align__(16) float shared[]; // [2][delta_rows][slice]: O and dO
    int tiles = (p.q_len + delta_rows - 1) / delta_rows, row = blockIdx.x % tiles * delta_rows, head = blockIdx.x / tiles;
    const Extent<features> e(p, f, head / p.heads);
    const float *o = first(p.o, e.q_batch(), head % p.heads), *dout = first(p.dout, e.q_batch(), head % p.heads);
    if constexpr (features) {
        if (row >= e.rows()) return;
        o += e.s.q0 * p.o.row, dout += e.s.q0 * p.dout.row;
    }
    int g = lane_g(), t = lane_t(), warp = threadIdx.x / 32;
    float *own_o = shared + 16 * warp * slice, *own_dout = own_o + delta_rows * slice;
    float of_keys[2][4] = {}, of_rows[2][4] = {};
    for (int col = 0; col < p.v_dim; col += slice) {
        load<delta_threads, slice, delta_rows>(shared, o, p.o.row, e.rows(), p.v_dim, row, col);
        load<delta_threads, slice, delta_rows>(shared + delta_rows * slice, dout, p.dout.row, e.rows(), p.v_dim, row, col);
        copy_commit();
        copy_wait<0>();
        __syncthreads(); // O and dO have arrived
        score<slice, false>(of_keys, own_o, own_dout, p.v_dim);
        score<slice, false>(of_rows, own_dout, own_o, p.v_dim);
        __syncthreads();
    }
    if (t != g / 2) return; // off the diagonal
#pragma unroll
    for (int half = 0; half < 2; half++) {
        int i = row + 16 * warp + 8 * half + g;
        if (i >= e.rows()) continue;
        float dlse = p.dlse.data ? first(p.dlse, e.q_batch(), head % p.heads)[(features ? e.q0() + i : i) * p.dlse.row] : 0;
        int64_t at = (int64_t)head * p.q_len + i;
        p.delta[at] = (g % 2 ? of_keys[half][2 * half + 1] : of_keys[half][2 * half]) - dlse;
        p.delta[at + (int64_t)p.batch * p.heads * p.q_len] = (g % 2 ? of_rows[half][2 * half + 1] : of_rows[half][2 * half]) - dlse;
    }
}
#define DELTA(name, block, features, p, f)                                                                                        \
    extern "C" __global__ void __launch_bounds__(delta_threads) name(const __grid_constant__ block x) { diagonal<features>(p, f); } \
    extern "C" __device__ Plan name##_plan = {delta_threads, 2 * delta_rows * 64 * 4, delta_rows, 0};

DELTA(bwd_f32_delta, Params, false, x, no_features)
DELTA(bwd_f32_features_delta, FeatureParams, true, x.p, x.f)

#define MAIN(name, D, blocks, block, features, p, f)                                                                              \
    extern "C" __global__ void __launch_bounds__(Tile<D, features>::threads, blocks) name(const __grid_constant__ block x) {                 \
        backward<D, features>(p, f);                                                                                               \
    }                                                                                                                              \
    extern "C" __device__ Plan name##_plan = {Tile<D, features>::threads, Tile<D, features>::shared, Tile<D, features>::rows, Tile<D, features>::rows};
#define INSTANCE(D, blocks, feature_blocks)                          \
    MAIN(bwd_f32_d##D, D, blocks, Params, false, x, no_features)     \
    MAIN(bwd_f32_features_d##D, D, feature_blocks, FeatureParams, true, x.p, x.f)

INSTANCE(32, 3, 2)
INSTANCE(64, 2, 2)
INSTANCE(128, 2, 2)
INSTANCE(256, 2, 2)
INSTANCE(512, 2, 2)
