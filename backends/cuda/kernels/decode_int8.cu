// decode_int8 is decode_sm80 for keys and values in int8, bound by the bandwidth of K and V. The parts of the keys are the
// same, and so is the workspace. Without counters, decode_sm80_features_merge merges the parts.
//
//     for each key j of the block's part:
//         s = scale * sum over groups of (K's scale of j and the group) * Q[r] . K[j]
//         O[r], m[r], l[r] <- the softmax sums with s, (V's scale of j and the group) * V[j]
//
// The tensor cores multiply bytes, so nothing is widened. Q and the weights are in fixed point, in terms of two signed bytes: the rows
// of mma's operand a are the upper bytes of eight rows, then their lower bytes. Integer sums are exact. A row of Q has two terms, with
// an error of at most 2^-30 of its largest magnitude. A row's weights of 32 keys, times the scales of V, have one term, with an error
// of at most 2^-15 of the largest, or two terms if the problem is float32.
//
// decode_int8_features_d<D> supports dim and v_dim up to D, all types of Q and O, and splits >= 1.
//     grid.x = batch * kv_heads * ceil(group*q_len / plan.rows) * splits
//
// A block has up to 32 packed rows, in groups of 8. Warps with different rows form a team of 2 or 4: each of its warps processes
// the keys that any of them has loaded.
#include "decode_int8.cuh"

// Writes the block's rows of Q to shared memory in fixed point, and then their units. A row that is not finite has a unit of NaN.
template <int D> __device__ __forceinline__ void load_q(char *to, const Int8Params &a, const Band &band, const Extent<true> &e, int g, int count) {
    using L = Layout<D>;
    static_assert(D == 128, "each lane has four elements");
    const View &v = a.x.p.q;
    const unsigned lane = threadIdx.x % 32;
    ROLLED for (int row = threadIdx.x / 32; row < count; row += L::warps) {
        const unsigned r = band.row + row, h = g * band.group + r % band.group;
        const int64_t at = e.q_batch() * v.batch + h * v.head + (e.q0() + r / band.group) * v.row + 4 * lane;
        float x[4];
        uint32_t top = 0;
        UNROLL for (int j = 0; j < 4; j++) {
            x[j] = r < band.total && 4 * lane + j < a.x.p.dim ? element(v.data, at + j, a.type) : 0;
            top = max(top, __float_as_uint(fabsf(x[j])));
        }
        top = __reduce_max_sync(lanes, top);
        const Fixed fixed(__uint_as_float(top));
        char *const place = to + row / 8 * L::q_tile + lane / 8 * L::q_chunk + (row % 8 * 4 + lane % 4) * 16 + lane % 8 / 4 * 8;
        uint2 y;
        pack_bytes(y.x, y.y, x, fixed.inverse), *(uint2 *)place = y;
        UNROLL for (int j = 0; j < 4; j++) x[j] = fixed.rest(x[j]);
        pack_bytes(y.x, y.y, x, kRest), *(uint2 *)(place + L::q_term) = y;
        if (lane == 0) ((float *)(to + L::terms * L::q_term))[row] = top < 0x7f800000 ? fixed.unit : __int_as_float(0x7fffffff);
    }
}

// A warp's copies of keys, values and scales.
template <int D> struct Fetch {
    using L = Layout<D>;
    static constexpr int step = L::warps * L::keys;
    const Features &f;
    Rows<D> k, v;
    Scales<D> k_scales, v_scales;
    char *ring;
    int b, mine, end; // the warp's first key of a round, relative to the block's; end of the block's part
    unsigned lane;
    bool whole;                     // fetch does for rounds of 32 keys
    int page_ahead;                 // page table entry of the lane's key of the next round

    __device__ __forceinline__ Fetch(const Int8Params &a, const Extent<true> &e, const Band &band, char *ring, int b, int g, int warp, unsigned lane)
        : Fetch(a, band, ring, b, a.x.f.page ? 0 : e.kv_batch(), g, a.x.f.page ? 0 : e.s.key0, warp, lane) {}
    __device__ __forceinline__ Fetch(const Int8Params &a, const Band &band, char *ring, int b, int kv_batch, int g, int key0, int warp, unsigned lane)
        : f(a.x.f), k(a.x.p.k, a.x.p.dim, kv_batch, g, key0, f.page, lane), v(a.x.p.v, a.x.p.v_dim, kv_batch, g, key0, f.page, lane),
          k_scales(a.k_scale, a.x.p.dim, a.shift, a.k_half, kv_batch, g, key0), v_scales(a.v_scale, a.x.p.v_dim, a.shift, a.v_half, kv_batch, g, key0),
          ring(ring), b(b), mine(warp * L::keys), end(band.end), lane(lane),
          whole(k.aligned && v.aligned && ((a.x.p.dim | a.x.p.v_dim) & 15) == 0 && (f.page & 7) == 0) {
        page_ahead = look_up(band.begin);
    }
    __device__ __forceinline__ int nth_of(int j) const { return (int)((uint64_t)(uint32_t)j * f.page_factor >> f.page_shift); }
    __device__ __forceinline__ int look_up(int from) const {
        const int j = from + mine + lane;
        return f.page && j < end ? f.pages[(int64_t)b * f.page_width + nth_of(j)] : 0;
    }
    // Starts the copies of the round whose first key of the block is `from`.
    __device__ __forceinline__ void start(int from, int stage) {
        if (from >= end) return;
        const uint32_t to = shared_address(ring) + stage * L::slot;
        const int first = from + mine;
        int page = 0, slot = first + lane; // of the lane's key
        const bool exists = slot < end;
        int64_t k_begin = slot * k.row, v_begin = slot * v.row;
        if (f.page) {
            page = page_ahead, page_ahead = look_up(from + step), slot -= nth_of(slot) * f.page;
            k_begin = page * k.page + slot * k.row, v_begin = page * v.page + slot * v.row;
        }
        if (whole && end - first >= L::keys) {
            k.fetch(to, k_begin), v.fetch(to + L::v_at, v_begin);
        } else {
            ROLLED for (int i = 0; i < 2; i++) {
                const Rows<D> x = i ? v : k;
                x.fetch_each(to + i * L::v_at, i ? v_begin : k_begin, end - first);
            }
        }
        k_scales.load(page, slot, exists), v_scales.load(page, slot, exists);
    }
    // Stores the scales of the last start.
    __device__ __forceinline__ void store_scales() {
        char *const to = ring + L::ring;
        k_scales.store((float *)to, lane);
        const bool finite = __all_sync(lanes, v_scales.store((float *)to + L::chunks * L::keys, lane));
        if (lane == 0) *(int *)(to + L::flag_at) = !finite;
    }
};

// Processes the block's part of the keys for the warp's rows. The first iteration only starts copies, and load copies Q.
template <int D, class F> __device__ __forceinline__ void walk(Tile<D> &sums, Fetch<D> &keys, const Band &band, const RowScores<F32> &scores, char *shared, int warp, int team, float c, F &&load) {
    using L = Layout<D>;
    const int first = band.first(0), all_first = band.first(L::rows - 1), all_last = band.last(0), last = band.last(L::rows - 1);
    const int mates = warp / team * team, barrier = 1 + warp / team;
    const bool always = scores.f.mask.data;
    auto meet = [&] {
        if (team == 1) __syncwarp();
        else asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(32 * team) : "memory");
    };
    constexpr int step = Fetch<D>::step;
    ROLLED for (int from = band.begin - step, stage = 1; from < band.end; from += step, stage ^= 1) {
        const bool starts = from < band.begin;
        if (!starts) {
            meet(); // the last round is processed
            keys.store_scales();
            copy_wait<0>();
            meet(); // the team's keys have arrived
        }
        keys.start(from + step, stage ^ 1), copy_commit();
        if (starts) {
            load();
            continue;
        }
        for (int w = mates; w < mates + team; w++) {
            const int key = from + w * L::keys;
            if (key > last || key + L::keys <= first) continue;
            const char *const its = shared + w * L::warp_bytes;
            const bool edge = key < all_first || key + L::keys - 1 > all_last || always;
            sums.step(its + stage * L::slot, (const float *)(its + L::ring), key, edge, c, keys.lane, scores);
        }
    }
}

// Writes columns d to d+3 of O and, if d is 0, LSE. In padding rows, O is 0 and LSE is -inf.
__device__ __forceinline__ void write(const Sums &s, const Int8Params &a, const Sequence &e, int b, int h, int n, int d) {
    const Params &p = a.x.p;
    const Features &f = a.x.f;
    const bool real = n < e.rows;
    const float carried = f.carry && real ? f.carried_lse[((int64_t)b * p.heads + h) * p.q_len + n] : -infinity;
    const Ending y = real ? ending(f, s.m * (changes(f) ? 1 : p.scale), s.l, h, carried) : Ending{0, 0, -infinity};
    const int64_t at = e.q_batch * p.o.batch + h * p.o.head + (e.q0 + n) * p.o.row + d;
    UNROLL for (int i = 0; i < 4 && d + i < p.v_dim; i++) {
        float x = y.scale == 0 ? 0 : s.o[i] * y.scale;
        if (y.earlier != 0) x = fmaf(y.earlier, element(p.o.data, at + i, a.type), x);
        if (a.type == 0) ((float *)p.o.data)[at + i] = x;
        else ((uint16_t *)p.o.data)[at + i] = (uint16_t)(a.type == 1 ? pack<F16>(x, 0) : pack<BF16>(x, 0));
    }
    if (d == 0 && p.lse.data) ((float *)p.lse.data)[e.q_batch * p.lse.batch + h * p.lse.head + (e.q0 + n) * p.lse.row] = y.lse;
}

template <int D> __device__ void decode(const Int8Params &a) {
    using L = Layout<D>;
    const Params &p = a.x.p;
    const Features &f = a.x.f;
    constexpr int W = L::warps, R = L::rows;
    extern __shared__ __align__(1024) char memory[]; // [W] rings [stages, slot] and scales, Q, m and l [W, R, 2]
    char *const shared = (char *)__cvta_shared_to_generic(fresh(shared_address(memory)));
    char *const q = shared + W * L::warp_bytes;
    float2 *const warp_sums = (float2 *)(q + L::q_all);
    const int warp = fresh(threadIdx.x / 32);
    const unsigned lane = fresh(threadIdx.x % 32);
    const unsigned group = (unsigned)p.heads / p.kv_heads;
    const int team = group * p.q_len > 2 * R ? 4 : group * p.q_len > R ? 2 : 1; // number of warps that hold different rows
    const unsigned tiles = (group * p.q_len + team * R - 1) / (team * R), tile = blockIdx.x % tiles, x = blockIdx.x / tiles;
    const unsigned part = x % p.splits, y = x / p.splits, g = y % p.kv_heads, b = y / p.kv_heads, start = tile * team * R;
    const Extent<true> e(p, f, b);
    if (start >= group * e.row_end()) return;
    const unsigned total = group * e.rows(), rows = min(team * R, group * e.row_end() - start); // padding rows included in rows

    Band band = {start, group, total, e.lo(), e.hi(), 0, e.keys()};
    const int from = band.first(0) & -L::keys, seen = start < total ? max(0, band.last(min(rows, total - start) - 1) + 1 - from) : 0;
    const unsigned pieces = (seen + L::keys - 1) / L::keys, each_part = pieces / p.splits, more = pieces % p.splits;
    band.begin = from + (each_part * part + min(part, more)) * L::keys;
    band.end = min(from + seen, band.begin + (each_part + (part < more)) * L::keys);

    Fetch<D> keys(a, e, band, shared + warp * L::warp_bytes, b, g, warp, lane);
    Band own = band;
    own.row += warp % team * R;
    const RowScores<F32> scores(p, f, b, e.s.diagonal);
    Tile<D> sums(a, q + warp % team * L::q_tile, own, scores, g * group, lane);
    const float c = unit_of<true>(p, f);
    walk<D>(sums, keys, own, scores, shared, warp, team, c, [&] {
        load_q<D>(q, a, band, e, g, team * R);
        __syncthreads(); // Q is in shared memory
        sums.unit = ((const float *)(q + L::terms * L::q_term))[warp % team * R + lane / 4];
    });
    __syncthreads(); // O [W, R, o_pitch] reuses the ring
    sums.store((float *)(shared + warp * L::warp_bytes), warp_sums + warp * R, lane);
    __syncthreads(); // the warps' sums are written

    // First the block merges the sums of its warps. If the keys have several parts, the block that ends last merges the tile's parts.
    ROLLED for (bool merges = false;; merges = true) {
        const bool whole = merges || p.splits == 1;
        ROLLED for (int i = threadIdx.x; i < rows * L::quads; i += 32 * W) { // four columns, from d on, of a row
            const int row = i / L::quads, d = i % L::quads * 4, h = g * group + (start + row) % group, n = (start + row) / group;
            const int w = row / R, r = row % R; // warps w, w + team, ... hold sums of the row
            const int64_t all = (int64_t)p.batch * p.heads * p.q_len, at = ((int64_t)b * p.heads + h) * p.q_len + n;
            Sums s(c);
            if (n < e.rows()) {
                const float *const o = merges ? p.part_o + at * D : (const float *)(shared + w * L::warp_bytes) + r * L::o_pitch;
                const float2 *const o_sums = merges ? (const float2 *)p.part_lse + at : warp_sums + w * R + r;
                s.add<8>(merges ? p.splits : W / team, o + d, merges ? all * D : team * L::warp_bytes / 4, o_sums, merges ? all : team * R);
            }
            if (whole) {
                write(s, a, e.s, b, h, n, d);
                continue;
            }
            *(float4 *)(p.part_o + (part * all + at) * D + d) = {s.o[0], s.o[1], s.o[2], s.o[3]};
            if (d == 0) ((float2 *)p.part_lse)[part * all + at] = {s.m, s.l};
        }
        if (whole || !p.turn) return;
        __syncthreads(); // the part is written. The last increment wraps the counter to 0
        int ended = 0;
        if (threadIdx.x == 0) // release: the part is visible before its count; acquire: other parts are read after their counts
            asm volatile("atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;" : "=r"(ended) : "l"(p.turn + y * tiles + tile), "r"(p.splits - 1) : "memory");
        if (!__syncthreads_or(ended == p.splits - 1)) return;
    }
}

#define INSTANCE(D)                                                                                                             \
    extern "C" __device__ Plan decode_int8_features_d##D##_plan = {32 * Layout<D>::warps, Layout<D>::shared, Layout<D>::tile_rows, Layout<D>::keys}; \
    extern "C" __global__ void __launch_bounds__(32 * Layout<D>::warps, 1) decode_int8_features_d##D(const __grid_constant__ Int8Params x) { decode<D>(x); }
INSTANCE(128)
