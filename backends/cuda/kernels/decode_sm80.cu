// Attention of few query rows over many keys, bound by the bandwidth of K and V.
//
//     for each batch b, KV head g, tile of rows, part of the keys:      one block
//         for each key j of the part:                                   K[j], V[j] are loaded once
//             for each row r of the tile, if r sees j:                  r = n*group + h: query row n of head g*group + h
//                 s = scale * Q[r] . K[j]
//                 O[r], m[r], l[r] <- the softmax sums with s, V[j]
//     for each row: merge the parts' O, m, l                            the tile's last block to end, or a second kernel
//
// decode_sm80_<type>_d<D> supports dim and v_dim up to D, and splits >= 1.
//     grid.x = batch * kv_heads * shares * ceil(group*q_len / plan.rows) * splits
// If D is 512, a block holds 256 columns of O, and shares = ceil(v_dim / 256) blocks compute the same scores. Otherwise shares = 1.
// Workspace, for splits > 1 only. s is the dot product Q[r] . K[j], or the score if features change scores. c converts s to
// log2 units.
//     part_o   [splits, batch, heads, q_len, D]   sum of exp2(c (s - m)) V
//     part_lse [splits, batch, heads, q_len, 2]   m = row maximum, l = sum of exp2(c (s - m))
//     turn     [grid.x / splits]                  counts ended blocks; 0 at launch and at the end; if null, the host launches the merge kernel
// decode_sm80_merge_<type>_d<D> merges the parts to O and LSE; grid.x = ceil(batch*heads*q_len / plan.rows)
// decode_sm80_cluster_<type>_d<D>, for compute capability 9.0: a cluster of `splits` blocks, 2 to 8, merges the parts of a
// tile through shared memory, without workspace, counters or a second kernel.
//
// Each warp loads its own keys into a ring of stages, and holds O, m and l of 16 rows (8 for float32) in registers. If the
// tile has no more rows than this, all warps hold the same rows. Each warp then processes only the keys that it has loaded,
// without barriers before the end. If the tile has more rows, warps with different rows form a team of 2, 4 or 8 warps.
// Each warp then processes the keys that any warp of its team has loaded.
//
// With features, the keys of each sequence are split by the sequence's own length.
#include "decode_rows.cuh"

#if __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890 || __CUDA_ARCH__ >= 1200
constexpr int shared_limit = 99 << 10; // dynamic shared memory per block, in bytes
#elif __CUDA_ARCH__ >= 900
constexpr int shared_limit = 227 << 10;
#else
constexpr int shared_limit = 163 << 10;
#endif

// Layout of shared memory. Rows and keys are per warp; sizes are in bytes.
template <class T, int D> struct Layout {
    static constexpr bool f32 = sizeof(T) == 4;
    static constexpr int size = f32 ? 4 : 2, rows = f32 ? 8 : 16, keys = !f32 ? 16 : D >= 256 ? 4 : 8;
    static constexpr int columns = D > 256 ? 256 : D, quads = columns / 4; // of V and O per block
    static constexpr int pitch = D * size, v_pitch = columns * size;   // bytes per row of K and Q; of V
    static constexpr int units = pitch / 16;                           // 16-byte units per row of Q
    static constexpr int v_at = keys * pitch, slot = v_at + keys * v_pitch; // bytes per stage: K, then V
    static constexpr int extra = f32 || D >= 256 ? rows * pitch : 0;   // Q [rows, pitch], unless in registers
    static constexpr int sums = rows * 8;                              // m, l [rows, 2]
    static constexpr int least = 2 * slot + extra + sums;
    static constexpr int warps = 8 * least <= shared_limit ? 8 : 4 * least <= shared_limit ? 4 : 2 * least <= shared_limit ? 2 : 1;
    static constexpr int most = (shared_limit / warps - extra - sums) / slot, stages = most > 4 ? 4 : most;
    static constexpr int ring = stages * slot, shared = warps * (ring + extra + sums), o_pitch = columns + 8; // o_pitch: floats from row to row of O, which reuses the ring at the end
    static_assert(stages >= 2 && ring >= rows * o_pitch * 4);

    // In a cluster, each block writes its merged sums to shared memory, where the other blocks read them. part is the offset of
    // O for row r of warp w: in the memory of Q, or after the warp's O before the merge. part_sums is the offset of m and l, in
    // the padding of the warp's O before the merge.
    static constexpr bool in_extra = extra >= rows * columns * 4;
    static constexpr bool has_part = in_extra || ring >= rows * (o_pitch + columns) * 4;
    static __device__ __forceinline__ int part(int w, int r) { return (in_extra ? warps * ring + w * extra : w * ring + rows * o_pitch * 4) + r * columns * 4; }
    static __device__ __forceinline__ int part_sums(int w, int r) { return w * ring + (r * o_pitch + columns) * 4; }

    // Returns the offset of the 16-byte unit u of row r. For each u, the units of eight consecutive rows are in different banks.
    template <int pitch = Layout::pitch> static __device__ __forceinline__ int place(int r, int u) { return r * pitch + (u ^ r * (keys < 8 ? 8 / keys : 1) % 8) * 16; }
    static __device__ __forceinline__ int v_place(int r, int u) { return place<v_pitch>(r, u); }
};

// For each of two packed elements, returns 0 x + y: y if x is finite, else NaN.
template <class T> __device__ __forceinline__ uint32_t zero_times(uint32_t x, uint32_t y);
template <> __device__ __forceinline__ uint32_t zero_times<BF16>(uint32_t x, uint32_t y) {
    asm("fma.rn.bf16x2 %0, %1, %2, %0;" : "+r"(y) : "r"(x), "r"(0));
    return y;
}
template <> __device__ __forceinline__ uint32_t zero_times<F16>(uint32_t x, uint32_t y) {
    asm("fma.rn.f16x2 %0, %1, %2, %0;" : "+r"(y) : "r"(x), "r"(0));
    return y;
}

// A warp's rows and their sums, for 16-bit types. Lane l holds columns 8i + l%4*2 + {0,1} of rows l/4 and l/4+8: columns/2
// registers of o and, unless Q stays in shared memory, D/4 of q.
template <class T, int D, bool features> struct Tile {
    using L = Layout<T, D>;
    uint32_t q[L::extra ? 2 : D / 16][4], q_at;
    static constexpr int columns = L::columns;
    float o[columns / 8][4] = {}, m[2] = {-infinity, -infinity}, l[2] = {};
    int first[2], last[2]; // first and last visible key of each of the lane's two rows
    RowOf rows[features ? 2 : 1];

    __device__ __forceinline__ void load(const char *rows_of_q, const Band &band, int lane) {
        q_at = shared_address(rows_of_q) + L::place(lane % 16, lane / 16);
        UNROLL for (int i = 0; !L::extra && i < D / 16; i++) load_matrix(q[i], q_at ^ 32 * i);
        UNROLL for (int h = 0; h < 2; h++) first[h] = band.first(lane / 4 + 8 * h), last[h] = band.last(lane / 4 + 8 * h);
    }
    __device__ __forceinline__ void begin(const RowScores<T> &x, const Band &band, int head, int lane) {
        UNROLL for (int h = 0; h < 2; h++) rows[h] = x.row(band.n(lane / 4 + 8 * h), head + band.head(lane / 4 + 8 * h));
    }

    // Adds keys `key` to `key` + 15 to the softmax sums. K and V of these keys are at k and v. edge is 0 if every row sees all of
    // these keys, else 1 if the bounds first and last are equal for all rows, else 2.
    __device__ __forceinline__ void step(const char *k, const char *v, int key, int edge, float c, int lane, const RowScores<T> &x) {
        float s[2][4] = {}, odd[2][4] = {}; // two independent sums per score, for even and odd i
        const uint32_t k_at = shared_address(k) + L::place(lane / 16 * 8 + lane % 8, lane / 8 % 2);
        UNROLL for (int i = 0; i < D / 16; i += 2) {
            uint32_t x[4], y[4];
            load_matrix(x, k_at ^ 32 * i);
            load_matrix(y, k_at ^ 32 * (i + 1));
            const int even = L::extra ? 0 : i;
            if constexpr (L::extra) load_matrix(q[0], q_at ^ 32 * i), load_matrix(q[1], q_at ^ 32 * (i + 1));
            mma<T>(s[0], q[even], x[0], x[1]);
            mma<T>(s[1], q[even], x[2], x[3]);
            mma<T>(odd[0], q[even + 1], y[0], y[1]);
            mma<T>(odd[1], q[even + 1], y[2], y[3]);
        }
        UNROLL for (int e = 0; e < 8; e++) s[e / 4][e % 4] += odd[e / 4][e % 4];
        if (features && x.changes) {
            UNROLL for (int e = 0; e < 8; e++) s[e / 4][e % 4] = x.of(rows[features ? e / 2 % 2 : 0], s[e / 4][e % 4], key + e / 4 * 8 + lane % 4 * 2 + e % 2);
        }
        uint32_t hidden = 0; // bit e: score e is hidden
        if (edge) {
            UNROLL for (int e = 0; e < 8; e++) {
                const int j = key + e / 4 * 8 + lane % 4 * 2 + e % 2, h = e / 2 % 2;
                bool hides = j < first[h] || j > last[h];
                if constexpr (features) hides = hides || x.hides(rows[h], j), hidden |= hides << e;
                if (hides) s[e / 4][e % 4] = -infinity;
            }
        }
        float grow[2], bases[2];
        bool far = false;
        UNROLL for (int h = 0; h < 2; h++) {
            const Beneath top(fmaxf(m[h], butterfly_max<1, 4>(fmaxf(fmaxf(s[0][2 * h], s[0][2 * h + 1]), fmaxf(s[1][2 * h], s[1][2 * h + 1])))), c);
            grow[h] = exp2_approx(__fmul_rn(m[h], c) - top.base);
            if (top.far()) far = true, grow[h] = top.rescale(m[h]);
            m[h] = top.m, bases[h] = top.base;
        }
        if (__any_sync(lanes, far)) { // subtract the maximum from a far row's scores before scaling
            UNROLL for (int h = 0; h < 2; h++) {
                const float off = is_far(bases[h]) ? m[h] : 0;
                s[0][2 * h] -= off, s[0][2 * h + 1] -= off, s[1][2 * h] -= off, s[1][2 * h + 1] -= off;
                if (is_far(bases[h])) bases[h] = 0;
            }
        }
        UNROLL for (int h = 0; h < 2; h++) {
            float *const x = s[0] + 2 * h, *const y = s[1] + 2 * h, base = bases[h];
            x[0] = exp2_approx(fmaf(x[0], c, -base)), x[1] = exp2_approx(fmaf(x[1], c, -base));
            y[0] = exp2_approx(fmaf(y[0], c, -base)), y[1] = exp2_approx(fmaf(y[1], c, -base));
            l[h] = l[h] * grow[h] + ((x[0] + x[1]) + (y[0] + y[1]));
        }
        if (__any_sync(lanes, grow[0] != 1 || grow[1] != 1)) {
            UNROLL for (int i = 0; i < columns / 2; i++) o[i / 4][i % 4] *= grow[i / 2 % 2];
        }
        if (features && x.f.drop_below) {
            const RowOf &r = rows[0], &other = rows[features]; // each lane draws random numbers for one of its two rows
            const bool odd = lane % 2;
            const uint32_t dropped = quad_drops(x.drops(odd ? other.n : r.n, odd ? other.h : r.h, key + lane % 4 / 2 * 8)) >> lane % 4 * 2;
            UNROLL for (int e = 0; e < 8; e++)
                if (dropped >> (e / 2 * 8 + e % 2) & 1) s[e / 4][e % 4] = 0;
        }
        if (features && edge) {
            uint32_t odd = 0;
            UNROLL for (int i = 0; i < columns / 16; i++) {
                const uint4 y = ((const uint4 *)v)[i * 32 + lane];
                odd = zero_times<T>(y.x, zero_times<T>(y.y, zero_times<T>(y.z, zero_times<T>(y.w, odd))));
            }
            if (__any_sync(lanes, odd != 0)) return add_visible(v, key, s, hidden, lane);
        } else if (edge == 2) {
            float zero = 0;
            _Pragma("unroll 8") for (int i = lane; i < 16 * columns; i += 32) zero += 0 * widen<T>(((const uint16_t *)v)[i]);
            if (__any_sync(lanes, zero != 0)) return add_visible(v, key, s, 0, lane); // 0 times a non-finite V is NaN, also in rows that do not see the key
        }
        const uint32_t p[4] = {pack<T>(s[0][0], s[0][1]), pack<T>(s[0][2], s[0][3]), pack<T>(s[1][0], s[1][1]), pack<T>(s[1][2], s[1][3])};
        const uint32_t v_at = shared_address(v) + L::v_place(lane / 8 % 2 * 8 + lane % 8, lane / 16);
        UNROLL for (int i = 0; i < columns / 16; i++) {
            uint32_t x[4];
            load_matrix_transposed(x, v_at ^ 32 * i);
            mma<T>(o[2 * i], p, x[0], x[1]);
            mma<T>(o[2 * i + 1], p, x[2], x[3]);
        }
    }

    // Adds P V to O key by key. Skips the keys that are hidden from a row.
    __device__ __forceinline__ void add_visible(const char *v, int key, const float (&s)[2][4], uint32_t hidden, int lane) {
        ROLLED for (int j = 0; j < 16; j++) {
            UNROLL for (int h = 0; h < 2; h++) {
                const float low = j & 1 ? s[0][2 * h + 1] : s[0][2 * h], high = j & 1 ? s[1][2 * h + 1] : s[1][2 * h];
                const float p = __shfl_sync(lanes, j & 8 ? high : low, (lane & 28) | (j & 7) / 2);
                const uint32_t hides = features ? __shfl_sync(lanes, hidden, (lane & 28) | (j & 7) / 2) >> (j / 8 * 4 + 2 * h + j % 2) & 1 : 0;
                if (features ? hides : key + j < first[h] || key + j > last[h]) continue;
                UNROLL for (int i = 0; i < columns / 4; i++)
                    o[i / 2][2 * h + i % 2] += p * widen<T>(((const uint16_t *)(v + L::v_place(j, i / 2)))[lane % 4 * 2 + i % 2]);
            }
        }
    }

    // Writes O [16, o_pitch] and m, l [16].
    __device__ __forceinline__ void store(float *to, float2 *to_sums, int lane) {
        UNROLL for (int h = 0; h < 2; h++) {
            const int row = lane / 4 + 8 * h;
            UNROLL for (int i = 0; i < columns / 8; i++) *(float2 *)(to + row * L::o_pitch + 8 * i + lane % 4 * 2) = {o[i][2 * h], o[i][2 * h + 1]};
            const float sum = butterfly_sum<1, 4>(l[h]);
            if (lane % 4 == 0) to_sums[row] = {m[h], sum};
        }
    }
};

// The warp's rows and their sums for float32: 8 rows, with Q in shared memory. Lane l computes dot products with key l%keys,
// over each (32/keys)th group of four columns. It holds `wide` adjacent columns of each 32*wide columns of O.
template <int D, bool features> struct Tile<F32, D, features> {
    using L = Layout<F32, D>;
    static constexpr int R = L::rows, keys = L::keys, wide = D == 64 ? 2 : 4, C = L::columns / 32; // C columns per lane
    float o[R][C] = {}, m[R], l[R]; // l: partial sum over the lane's keys
    int first, last, live;          // first and last visible key of row lane%8; number of existing rows
    const char *q;                  // [R, pitch]
    RowOf mine;                     // arguments of row lane%8

    __device__ __forceinline__ void load(const char *rows_of_q, const Band &band, int lane) {
        q = rows_of_q, first = band.first(lane % R), last = band.last(lane % R), live = band.total - band.row;
        UNROLL for (int i = 0; i < R; i++) m[i] = -infinity, l[i] = 0;
    }

    __device__ __forceinline__ void begin(const RowScores<F32> &x, const Band &band, int head, int lane) {
        mine = x.row(band.n(lane % R), head + band.head(lane % R));
    }
    __device__ __forceinline__ RowOf row(int i) const { // row i, from lane i
        return {__shfl_sync(lanes, mine.n, i), __shfl_sync(lanes, mine.h, i), __shfl_sync(lanes, mine.slope, i),
                (const char *)__shfl_sync(lanes, (unsigned long long)mine.bias, i), (const char *)__shfl_sync(lanes, (unsigned long long)mine.mask, i)};
    }

    __device__ __forceinline__ void step(const char *k, const char *v, int key, int edge, float c, int lane, const RowScores<F32> &x) {
        live > 0 && live <= R / 2 ? add<R / 2>(k, v, key, edge, c, lane, x) : add<R>(k, v, key, edge, c, lane, x);
    }
    template <int R> __device__ __forceinline__ void add(const char *k, const char *v, int key, int edge, float c, int lane, const RowScores<F32> &scores) {
        const int j = lane % keys;
        float s[R] = {};
        _Pragma("unroll 4") for (int u = lane / keys; u < D / 4; u += 32 / keys) {
            const float4 x = *(const float4 *)(k + L::place(j, u));
            UNROLL for (int i = 0; i < R; i++) {
                const float4 y = *(const float4 *)(q + L::place(i, u));
                s[i] = fmaf(x.x, y.x, fmaf(x.y, y.y, fmaf(x.z, y.z, fmaf(x.w, y.w, s[i]))));
            }
        }
        UNROLL for (int i = 0; i < R; i++) {
            s[i] = butterfly_sum<keys, 32>(s[i]);
            const int from = __shfl_sync(lanes, first, i), to = __shfl_sync(lanes, last, i);
            bool hidden = edge && (key + j < from || key + j > to), dropped = false;
            if constexpr (features) {
                const RowOf r = row(i);
                if (scores.changes) s[i] = scores.of(r, s[i], key + j);
                hidden = hidden || scores.hides(r, key + j);
                dropped = scores.f.drop_below && scores.drops(r.n, r.h, key + j) >> (key + j) % 8 & 1;
            }
            if (hidden) s[i] = -infinity;
            const Beneath top(fmaxf(m[i], butterfly_max<1, keys>(s[i])), c);
            const float grow = top.rescale(m[i]);
            s[i] = top.weight(s[i]);
            m[i] = top.m, l[i] = l[i] * grow + s[i];
            if (dropped) s[i] = 0;
            if (hidden) s[i] = -1; // marks the hidden key, as no weight is negative
            UNROLL for (int e = 0; e < C; e++) o[i][e] *= grow;
        }
        for (int x = 0; x < keys; x++) {
            float y[C];
            UNROLL for (int e = 0; e < C; e++) {
                const int column = (e / wide * 32 + lane) * wide + e % wide;
                y[e] = ((const float *)(v + L::v_place(x, column / 4)))[column % 4];
            }
            UNROLL for (int i = 0; i < R; i++) {
                const float w = __shfl_sync(lanes, s[i], x);
                if (edge && w < 0) continue; // 0 times a hidden V may be NaN
                UNROLL for (int e = 0; e < C; e++) o[i][e] = fmaf(w, y[e], o[i][e]);
            }
        }
    }

    __device__ __forceinline__ void store(float *to, float2 *to_sums, int lane) {
        UNROLL for (int i = 0; i < R; i++) {
            UNROLL for (int e = 0; e < C; e++) to[i * L::o_pitch + (e / wide * 32 + lane) * wide + e % wide] = o[i][e];
            const float sum = butterfly_sum<1, keys>(l[i]);
            if (lane == 0) to_sums[i] = {m[i], sum};
        }
    }
};

template <class T, int D, bool features, bool cluster> __device__ void decode(const Params &p, const Features &f) {
    using L = Layout<T, D>;
    constexpr int W = L::warps, R = L::rows, step = W * L::keys;
    extern __shared__ __align__(1024) char shared[]; // rings [W, stages, slot], Q [W, extra], m and l [W, R, 2]
    float2 *const warp_sums = (float2 *)(shared + W * (L::ring + L::extra));
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned group = (unsigned)p.heads / p.kv_heads;
    unsigned total = group * p.q_len;
    int team = 1; // number of warps that hold different rows; see the start of the file
    while (team < W && team * R < total) team *= 2;
    const unsigned tiles = (total + team * R - 1) / (team * R), shares = D > L::columns ? (p.v_dim + L::columns - 1) / L::columns : 1;
    const unsigned inner = cluster ? p.splits : tiles, outer = cluster ? tiles : p.splits; // adjacent blocks process, in a cluster, the parts of one tile; otherwise the tiles of one part
    const unsigned x = blockIdx.x / inner, y = x / outer;
    const unsigned tile = cluster ? x % outer : blockIdx.x % inner, part = cluster ? blockIdx.x % inner : x % outer, g_share = y % (p.kv_heads * shares), g = g_share / shares, b = y / (p.kv_heads * shares);
    const int column = D > L::columns ? g_share % shares * L::columns : 0; // the block's first column of O
    const unsigned start = tile * team * R;
    const Extent<features> e(p, f, b);
    if constexpr (features) {
        if (start >= group * e.row_end()) return;
        total = group * e.rows();
    }
    const unsigned rows = min(team * R, group * e.row_end() - start); // padding rows included

    Band band = {start, group, total, e.lo(), e.hi(), 0, e.keys()}; // band.row is first the block's first packed row, later the warp's
    int from = band.first(0), seen;
    if constexpr (features) {
        from &= ~15; // random words and key pairs need this alignment
        seen = start < total ? max(0, band.last(min(rows, total - start) - 1) + 1 - from) : 0;
    } else {
        seen = max(0, band.last(rows - 1) + 1 - from);
    }
    const unsigned pieces = (seen + L::keys - 1) / L::keys, each_part = pieces / p.splits, more = pieces % p.splits;
    band.begin = from + (each_part * part + min(part, more)) * L::keys;
    band.end = min(from + seen, band.begin + (each_part + (part < more)) * L::keys);
    band.row += warp % team * R;
    const int first = band.first(0), all_first = band.first(R - 1), all_last = band.last(0), last = band.last(R - 1), mine = band.begin + warp * L::keys, rounds = (band.end - band.begin + step - 1) / step;

    const bool paged = features && f.page;
    int first_key = mine;
    if constexpr (features) first_key = paged ? 0 : mine + e.s.key0;
    const int kv_batch = paged ? 0 : e.kv_batch();
    Source<L, L::pitch> k(p.k, kv_batch, g, first_key, 0, p.dim, lane, paged);
    Source<L, L::v_pitch> v(p.v, kv_batch, g, first_key, column, p.v_dim, lane, paged);
    if (paged) k.aligned = k.aligned && (p.k.batch * L::size & 15) == 0, v.aligned = v.aligned && (p.v.batch * L::size & 15) == 0;
    char *const ring = shared + warp * L::ring;
    // page holds the page table entries of a group of at_once rounds, page_ahead of the next group. Lane i: round i of the group if whole, else key i%L::keys of round i/L::keys.
    const bool whole = paged && f.page % L::keys == 0; // a round's keys are in one page
    const int at_once = whole ? 32 : 32 / L::keys;
    auto key_of = [&](int round) { return mine + (whole ? (round + lane) * step : (round + lane / L::keys) * step + lane % L::keys); };
    auto nth_of = [&](int j) { return (int)((uint64_t)(uint32_t)j * f.page_factor >> f.page_shift); };
    auto look_up = [&](int round) { return paged && key_of(round) < band.end ? f.pages[(int64_t)b * f.page_width + nth_of(key_of(round))] : 0; };
    int page = look_up(0), page_ahead = look_up(at_once);
    auto fetch = [&](int round, int stage) {
        if (round >= rounds) return;
        const uint32_t to = shared_address(ring) + stage * L::slot;
        if (paged) {
            const int keys = band.end - mine - round * step, nth = round & at_once - 1;
            if (nth == 0 && round > 0) page = page_ahead, page_ahead = look_up(round + at_once);
            if (whole) {
                const int j = mine + round * step, at = __shfl_sync(lanes, page, nth), row = j - nth_of(j) * f.page;
                k.fetch_from(k.data + at * (p.k.batch * L::size) + (row + lane / k.units) * k.row, to, keys, lane);
                v.fetch_from(v.data + at * (p.v.batch * L::size) + (row + lane / v.units) * v.row, to + L::v_at, keys, lane);
            } else {
                const int j = key_of(round - nth), slot = j - nth_of(j) * f.page;
                k.fetch_pages(to, keys, page * (p.k.batch * L::size) + slot * k.row, nth * L::keys, lane);
                v.fetch_pages(to + L::v_at, keys, page * (p.v.batch * L::size) + slot * v.row, nth * L::keys, lane);
            }
            return;
        }
        k.fetch(to, band.end - mine - round * step, lane);
        v.fetch(to + L::v_at, band.end - mine - round * step, lane);
    };
    fetch(0, 0);
    // Q is copied to its own memory if it stays in shared memory, else to the last stage of the ring, which is still free.
    char *const q = L::extra ? shared + W * L::ring + warp * L::extra : ring + (L::stages - 1) * L::slot;
    ROLLED for (int i = lane; i < R * L::units; i += 32) {
        const unsigned r = band.row + i / L::units, h = g * group + r % group;
        const char *row = (const char *)p.q.data + (e.q_batch() * p.q.batch + h * p.q.head + (e.q0() + r / group) * p.q.row) * L::size;
        const int u = i % L::units, bytes = r < total ? max(0, min(16, p.dim * L::size - u * 16)) : 0;
        const uint32_t to = shared_address(q) + L::place(i / L::units, u);
        if (((uintptr_t)row & 15) == 0) copy_async16(to, row + u * 16, bytes);
        else copy_elements16<L::size>(to, row + u * 16, bytes);
    }
    copy_commit();
    for (int i = 1; i < L::stages - 1; i++) fetch(i, i), copy_commit();
    Tile<T, D, features> sums;
    copy_wait<L::stages - 2>();
    __syncwarp(); // Q has arrived
    sums.load(q, band, lane);
    int diagonal = 0;
    if constexpr (features) diagonal = e.s.diagonal;
    const RowScores<T> scores(p, f, b, diagonal);
    if constexpr (features) sums.begin(scores, band, g * group, lane);
    const float c = unit_of<features>(p, f);

    const int mates = warp / team * team, barrier = 1 + warp / team, edge = p.q_len > 1 ? 2 : 1, always = features && f.mask.data;
    for (int round = 0, stage = 0; round < rounds; round++) {
        copy_wait<L::stages - 2>();
        if (team == 1) __syncwarp(); // the team's keys have arrived, and the next fetch's stage is free
        else asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(32 * team) : "memory");
        fetch(round + L::stages - 1, stage == 0 ? L::stages - 1 : stage - 1), copy_commit();
        for (int w = mates; w < mates + team; w++) {
            const int key = band.begin + round * step + w * L::keys;
            if (key > last || key + L::keys <= first) continue;
            const char *slot = shared + w * L::ring + stage * L::slot;
            sums.step(slot, slot + L::v_at, key, key < all_first || key + L::keys - 1 > all_last || always ? edge : 0, c, lane, scores);
        }
        stage = stage == L::stages - 1 ? 0 : stage + 1;
    }
    __syncthreads(); // O [W, R, o_pitch] reuses the ring
    sums.store((float *)ring, warp_sums + warp * R, lane);
    __syncthreads(); // the warps' sums are written

    auto each = [&](auto &&f) { // calls f(row, head, query row, first of four columns of the block's columns)
        ROLLED for (int e = threadIdx.x; e < rows * L::quads; e += 32 * W) {
            const unsigned row = e / L::quads;
            f(row, g * group + (start + row) % group, (start + row) / group, e % L::quads * 4);
        }
    };
    each([&](int row, int h, int n, int d) {
        Sums s(c);
        if constexpr (features) {
            if (n >= e.rows()) {
                if (part == 0) s.template write<T>(p, f, e.s, b, h, n, column + d);
                return;
            }
        }
        const int w = row / R, r = row % R; // warps w, w + team, ... hold sums of the row
        s.add<W>(W / team, (float *)(shared + w * L::ring) + r * L::o_pitch + d, team * L::ring / 4, warp_sums + w * R + r, team * R);
        if constexpr (cluster) {
            *(float4 *)(shared + L::part(w, r) + d * 4) = {s.o[0], s.o[1], s.o[2], s.o[3]};
            if (d == 0) *(float4 *)(shared + L::part_sums(w, r)) = {s.m, s.l, 0, 0};
            return;
        }
        if (p.splits == 1) {
            if constexpr (features) return s.template write<T>(p, f, e.s, b, h, n, column + d);
            else return s.template write<T>(p, b, h, n, column + d);
        }
        const int64_t at = (((int64_t)part * p.batch + b) * p.heads + h) * p.q_len + n;
        *(float4 *)(p.part_o + at * D + column + d) = {s.o[0], s.o[1], s.o[2], s.o[3]};
        if (d == 0) ((float2 *)p.part_lse)[at] = {s.m, s.l};
    });
    if constexpr (cluster) {
        static_assert(L::has_part);
        cluster_meet(); // the parts are written
        const int all = rows * L::quads, share = (all + p.splits - 1) / p.splits; // an equal share for each block
        ROLLED for (int i = part * share + threadIdx.x; i < min(all, (int)(part + 1) * share); i += 32 * W) {
            const unsigned row = i / L::quads, h = g * group + (start + row) % group, n = (start + row) / group, d = i % L::quads * 4;
            if (features && n >= e.rows()) continue;
            const uint32_t at = shared_address(shared) + L::part(row / R, row % R) + d * 4, sums_at = shared_address(shared) + L::part_sums(row / R, row % R);
            Sums s(c);
            s.add_each<most_parts>(p.splits, [&](int k) { return load_from(in_block(at, k)); },
                                   [&](int k) { const float4 x = load_from(in_block(sums_at, k)); return float2{x.x, x.y}; });
            if constexpr (features) s.template write<T>(p, f, e.s, b, h, n, column + d);
            else s.template write<T>(p, b, h, n, column + d);
        }
        cluster_meet(); // no block ends while others read its sums
        return;
    }
    if (p.splits == 1 || !p.turn) return;

    // The block that ends last merges the tile's parts. The last increment wraps the counter to 0.
    __syncthreads(); // the part is written
    int ended = 0;
    if (threadIdx.x == 0) // release: the part is visible before its count; acquire: other parts are read after their counts
        asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(ended) : "l"(p.turn + y * tiles + tile), "r"(p.splits - 1) : "memory");
    if (__syncthreads_or(ended == p.splits - 1)) each([&](int, int h, int n, int d) { merge<T, D, features>(p, f, e, b, h, n, column + d); });
}

template <class T, int D, bool features> __device__ void merge_all(const Params &p, const Features &f) {
    const int64_t x = (int64_t)blockIdx.x * merge_threads + threadIdx.x, row = x / (D / 4);
    const unsigned n = row % p.q_len, h = row / p.q_len % p.heads, b = row / p.q_len / p.heads;
    if (b < p.batch) merge<T, D, features>(p, f, Extent<features>(p, f, b), b, h, n, x % (D / 4) * 4);
}

#define KERNEL(name, block, features, cluster, p, f, T, D)                                                                      \
    extern "C" __device__ Plan name##_plan = {32 * Layout<T, D>::warps, Layout<T, D>::shared,                                   \
                                              Layout<T, D>::warps * Layout<T, D>::rows, Layout<T, D>::keys};                    \
    extern "C" __global__ void __launch_bounds__(32 * Layout<T, D>::warps, 1) name(const __grid_constant__ block x) { decode<T, D, features, cluster>(p, f); }
#define MERGE(name, block, features, p, f, T, D)                                                                                \
    extern "C" __device__ Plan name##_plan = {merge_threads, 0, merge_threads / (D / 4), 0};                                    \
    extern "C" __global__ void __launch_bounds__(merge_threads) name(const __grid_constant__ block x) { merge_all<T, D, features>(p, f); }
#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000 || !defined(__CUDA_ARCH__)
#define CLUSTER KERNEL
#else
#define CLUSTER(...)
#endif
#define INSTANCE(type, T, D)                                                                                                    \
    KERNEL(decode_sm80_##type##_d##D, Params, false, false, x, no_features, T, D)                                               \
    MERGE(decode_sm80_merge_##type##_d##D, Params, false, x, no_features, T, D)                                                 \
    CLUSTER(decode_sm80_cluster_##type##_d##D, Params, false, true, x, no_features, T, D)                                       \
    KERNEL(decode_sm80_features_##type##_d##D, FeatureParams, true, false, x.p, x.f, T, D)                                      \
    MERGE(decode_sm80_features_merge_##type##_d##D, FeatureParams, true, x.p, x.f, T, D)                                        \
    CLUSTER(decode_sm80_features_cluster_##type##_d##D, FeatureParams, true, true, x.p, x.f, T, D)

#define INSTANCES(type, T) INSTANCE(type, T, 64) INSTANCE(type, T, 128) INSTANCE(type, T, 256) INSTANCE(type, T, 512)
INSTANCES(f16, F16)
INSTANCES(bf16, BF16)
INSTANCES(f32, F32)
