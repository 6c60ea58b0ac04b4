// decode_int8 is decode_sm80 for keys and values in int8, bound by the bandwidth of K and V. The parts of the keys are the
// same, and so is the workspace, which always has counters.
//
//     for each key j of the block's part:
//         s = scale * sum over groups of (K's scale of j and the group) * Q[r] . K[j]
//         O[r], m[r], l[r] <- the softmax sums with s, (V's scale of j and the group) * V[j]
//
// K and V are copied to shared memory as int8, and become bf16 in registers, which is exact. The tensor cores multiply bf16
// only: Q and the weights are sums of one bf16 term if the problem is bf16, of two if float16, of three if float32.
//
// decode_int8_features_d<D> supports dim and v_dim up to D, all types of Q and O, and splits >= 1.
//     grid.x = batch * kv_heads * ceil(group*q_len / plan.rows) * splits
//
// A block has up to 32 packed rows, in two groups of 16. Warps with different rows form a team: each of its warps processes
// the keys that both have loaded.
#include "decode_int8.cuh"

// Copies the block's rows of Q to shared memory as bf16 terms, in the order of Tile::products.
template <int D> __device__ __forceinline__ void load_q(char *to, const Int8Params &a, const Band &band, const Extent<true> &e, int g, int count) {
    using L = Layout<D>;
    const View &v = a.x.p.q;
    const int terms = terms_of(a.type);
    ROLLED for (int i = threadIdx.x; i < count * (D / 8); i += 32 * L::warps) {
        const int row = i / (D / 8), u = i % (D / 8);
        const unsigned r = band.row + row, h = g * band.group + r % band.group;
        const int64_t at = e.q_batch() * v.batch + h * v.head + (e.q0() + r / band.group) * v.row + 8 * u;
        float x[8];
        UNROLL for (int j = 0; j < 8; j++) {
            x[j] = 0;
            if (r < band.total && 8 * u + j < a.x.p.dim) x[j] = element(v.data, at + j, a.type);
        }
        ROLLED for (int term = 0; term < terms; term++) {
            uint32_t y[4];
            UNROLL for (int j = 0; j < 4; j++) {
                float &v = x[j / 2 * 4 + j % 2], &w = x[j / 2 * 4 + j % 2 + 2];
                y[j] = terms == 1 ? pack<BF16>(v, w) : take_term(v, w);
            }
            char *const at = to + term * L::q_term + L::q_place(row, u);
            *(uint32_t *)at = y[0], *(uint32_t *)(at + 8) = y[1], *(uint32_t *)(at + 512) = y[2], *(uint32_t *)(at + 520) = y[3];
        }
    }
}

// A warp's copies of keys, values and scales to its ring.
template <int D> struct Fetch {
    using L = Layout<D>;
    static constexpr int step = L::warps * L::keys;
    const Features &f;
    Source<L, L::pitch> k;
    Source<L, L::v_pitch> v;
    Scales<D> scales;
    char *ring;
    int b, mine, end, rounds, lane; // mine: first key of the warp's first round; end: end of the block's part
    int64_t k_page, v_page;         // bytes of a page
    bool together;                  // a round's keys are in one page, or there are no pages
    int page, page_ahead;           // page table entries of the keys of two rounds, and of the two rounds after them: lane i has key i%16 of round i/16

    __device__ __forceinline__ Fetch(const Int8Params &a, const Extent<true> &e, const Band &band, char *ring, int b, int g, int warp, int lane)
        : f(a.x.f), k(a.x.p.k, f.page ? 0 : e.kv_batch(), g, f.page ? 0 : e.s.key0, 0, a.x.p.dim, lane, true),
          v(a.x.p.v, f.page ? 0 : e.kv_batch(), g, f.page ? 0 : e.s.key0, 0, a.x.p.v_dim, lane, true),
          scales(a, f.page ? 0 : e.kv_batch(), g, f.page ? 0 : e.s.key0, lane), ring(ring), b(b), mine(band.begin + warp * L::keys), end(band.end),
          rounds((band.end - band.begin + step - 1) / step), lane(lane), k_page(f.page ? a.x.p.k.batch : 0), v_page(f.page ? a.x.p.v.batch : 0),
          together(f.page % L::keys == 0) {
        k.aligned = k.aligned && !(k_page & 15), v.aligned = v.aligned && !(v_page & 15);
        page = look_up(0), page_ahead = look_up(2);
    }
    __device__ __forceinline__ int nth_of(int j) const { return (int)((uint64_t)(uint32_t)j * f.page_factor >> f.page_shift); }
    __device__ __forceinline__ int look_up(int round) const {
        const int j = mine + (round + lane / 16) * step + lane % 16;
        return f.page && j < end ? f.pages[(int64_t)b * f.page_width + nth_of(j)] : 0;
    }
    __device__ __forceinline__ void start(int round, int stage) {
        if (round >= rounds) return;
        const uint32_t to = shared_address(ring) + stage * L::slot;
        const int first = mine + round * step, j = first + lane % 16;
        int at = 0, slot = j;
        if (f.page) {
            if (round % 2 == 0 && round > 0) page = page_ahead, page_ahead = look_up(round + 2);
            at = __shfl_sync(lanes, page, round % 2 * 16 + lane % 16), slot = j - nth_of(j) * f.page;
        }
        const int64_t k_begin = at * k_page + slot * k.row, v_begin = at * v_page + slot * v.row;
        if (together) {
            k.fetch_from(k.data + __shfl_sync(lanes, k_begin, 0) + lane / k.units * k.row, to, end - first, lane);
            v.fetch_from(v.data + __shfl_sync(lanes, v_begin, 0) + lane / v.units * v.row, to + L::v_at, end - first, lane);
        } else {
            k.fetch_pages(to, end - first, k_begin, 0, lane), v.fetch_pages(to + L::v_at, end - first, v_begin, 0, lane);
        }
        scales.load(at * scales.batch + slot * scales.row, j < end);
    }
    // Stores the scales of the last start.
    __device__ __forceinline__ void finish(int round, int stage) {
        if (round < rounds) scales.store(ring + stage * L::slot, lane);
    }
};

// Processes the block's part of the keys for the warp's rows. The first stages - 1 iterations only start copies; in the first,
// load copies Q.
template <int D, class F> __device__ __forceinline__ void walk(Tile<D> &sums, Fetch<D> &keys, const Band &band, const RowScores<F32> &scores, char *shared, int warp, int team, float c, F &&load) {
    using L = Layout<D>;
    constexpr int ahead = L::stages - 1;
    const int first = band.first(0), all_first = band.first(L::rows - 1), all_last = band.last(0), last = band.last(L::rows - 1);
    const int mates = warp / team * team, barrier = 1 + warp / team;
    const bool always = scores.f.mask.data;
    ROLLED for (int round = -ahead, stage = 0; round < keys.rounds; round++) { // stage: of round + ahead
        if (round > -ahead) keys.finish(round + ahead - 1, stage == 0 ? ahead : stage - 1);
        if (round >= 0) {
            copy_wait<ahead - 1>();
            if (team == 1) __syncwarp(); // the team's keys have arrived, and the next fetch's stage is free
            else asm volatile("bar.sync %0, %1;" ::"r"(barrier), "r"(32 * team) : "memory");
        }
        keys.start(round + ahead, stage), copy_commit();
        stage = stage == ahead ? 0 : stage + 1; // of round
        if (round == -ahead) load();
        if (round < 0) continue;
        for (int w = mates; w < mates + team; w++) {
            const int key = band.begin + round * Fetch<D>::step + w * L::keys;
            if (key > last || key + L::keys <= first) continue;
            const char *const slot = shared + w * L::ring + stage * L::slot;
            const bool edge = key < all_first || key + L::keys - 1 > all_last || always;
            sums.step(slot, key, edge, c, keys.lane, scores);
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
    extern __shared__ __align__(1024) char shared[]; // rings [W, stages, slot], Q, m and l [W, R, 2]
    char *const q = shared + W * L::ring;
    float2 *const warp_sums = (float2 *)(q + L::q_all);
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const unsigned group = (unsigned)p.heads / p.kv_heads;
    const int team = group * p.q_len > R ? 2 : 1; // number of warps that hold different rows
    const unsigned tiles = (group * p.q_len + team * R - 1) / (team * R), tile = blockIdx.x % tiles, x = blockIdx.x / tiles;
    const unsigned part = x % p.splits, y = x / p.splits, g = y % p.kv_heads, b = y / p.kv_heads, start = tile * team * R;
    const Extent<true> e(p, f, b);
    if (start >= group * e.row_end()) return;
    const unsigned total = group * e.rows(), rows = min(team * R, group * e.row_end() - start); // padding rows included in rows

    Band band = {start, group, total, e.lo(), e.hi(), 0, e.keys()};
    const int from = band.first(0) & ~15, seen = start < total ? max(0, band.last(min(rows, total - start) - 1) + 1 - from) : 0;
    const unsigned pieces = (seen + L::keys - 1) / L::keys, each_part = pieces / p.splits, more = pieces % p.splits;
    band.begin = from + (each_part * part + min(part, more)) * L::keys;
    band.end = min(from + seen, band.begin + (each_part + (part < more)) * L::keys);

    Fetch<D> keys(a, e, band, shared + warp * L::ring, b, g, warp, lane);
    Band own = band;
    own.row += warp % team * R;
    const RowScores<F32> scores(p, f, b, e.s.diagonal);
    Tile<D> sums(a, q + warp % team * R * 2 * D, own, scores, g * group, lane);
    const float c = unit_of<true>(p, f);
    walk<D>(sums, keys, own, scores, shared, warp, team, c, [&] {
        load_q<D>(q, a, band, e, g, team * R);
        __syncthreads(); // Q is in shared memory
    });
    __syncthreads(); // O [W, R, o_pitch] reuses the ring
    sums.store((float *)(shared + warp * L::ring), warp_sums + warp * R, lane);
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
                const float *const o = merges ? p.part_o + at * D : (const float *)(shared + w * L::ring) + r * L::o_pitch;
                const float2 *const o_sums = merges ? (const float2 *)p.part_lse + at : warp_sums + w * R + r;
                s.add<8>(merges ? p.splits : W / team, o + d, merges ? all * D : team * L::ring / 4, o_sums, merges ? all : team * R);
            }
            if (whole) {
                write(s, a, e.s, b, h, n, d);
                continue;
            }
            *(float4 *)(p.part_o + (part * all + at) * D + d) = {s.o[0], s.o[1], s.o[2], s.o[3]};
            if (d == 0) ((float2 *)p.part_lse)[part * all + at] = {s.m, s.l};
        }
        if (whole) return;
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
