// Shared memory, scales and rows of decode_int8. The file decode_int8.cu explains them.
#pragma once
#include "decode_rows.cuh"

// The argument block. Fields of Features about K and V apply to the int8 elements.
struct alignas(64) Int8Params {
    FeatureParams x;
    View k_scale, v_scale; // [batch, kv_heads, keys, scales of a row], or pools of pages like K and V
    int type;              // of Q and O: 0 float32, 1 float16, 2 bfloat16
    int k_half, v_half;    // 1: the scales are float16; 0: float32
    int shift;             // elements 32c to 32c+31 of a row have scale c >> shift
};

#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1000
constexpr int shared_limit = 227 << 10; // dynamic shared memory per block, in bytes
#else
constexpr int shared_limit = 99 << 10; // the image for 8.0 also runs on 8.6 and 8.9
#endif

// Layout of shared memory. Rows and keys are per warp; sizes are in bytes.
template <int D> struct Layout {
    static constexpr int rows = 8, keys = 32, quads = D / 4, chunks = D / 32, units = D / 16, stages = 2;
    static constexpr int v_at = keys * D, slot = 2 * v_at;                                 // a stage: K, V
    static constexpr int flag_at = 2 * chunks * keys * 4, scales = flag_at + 128;          // float32 scales [K or V, groups, keys], flag
    static constexpr int teams = 4, tile_rows = teams * rows, terms = 2;
    static constexpr int q_chunk = rows * 2 * 32, q_tile = chunks * q_chunk, q_term = teams * q_tile; // Q [terms, teams, chunks, rows, 4, 16], for all warps
    static constexpr int q_all = terms * q_term + tile_rows * 4;                           // then the unit of each row
    static constexpr int ring = stages * slot, warp_bytes = ring + scales, sums = rows * 8; // sums: m, l [rows, 2]
    static constexpr bool fits(int warps) { return warps * (warp_bytes + sums) + q_all <= shared_limit; }
    static constexpr int warps = fits(12) ? 12 : fits(8) ? 8 : 4;
    static constexpr int shared = warps * (warp_bytes + sums) + q_all, o_pitch = D + 16; // o_pitch: floats from row to row of O, which reuses the ring at the end
    static_assert(fits(warps) && ring >= rows * o_pitch * 4 && warp_bytes % 128 == 0);

    // Returns the offset of the 16-byte unit u of row r. For each u, the units of eight consecutive rows are in different banks.
    static __device__ __forceinline__ int place(unsigned r, unsigned u) { return r * D + (u ^ r % 8) * 16; }
};

template <> __device__ __forceinline__ void copy_elements16<1>(uint32_t to, const void *from, int bytes) {
    ROLLED for (int e = 0; e < 16; e++)
        asm volatile("st.shared.u8 [%0], %1;" ::"r"(to + e), "r"(e < bytes ? (uint32_t)((const uint8_t *)from)[e] : 0) : "memory");
}

// Adds the product of a and b to d. a is a row-major 16x32 matrix, and b is a column-major 32x8 matrix, of int8.
__device__ __forceinline__ void mma8(int (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]) : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// Fixed has the units of a fixed-point format for floats of at most `top` in magnitude: a power of two, so that no float is above
// 32639 units, the sum 256 hi + lo of two signed bytes. A second term has the rest, in units of unit / kRest.
constexpr float kRest = 65024; // 254 * 256: half a unit is 32512 of these
constexpr float kBits = (3 << 22) + 128; // a float plus kBits has the rounded float, plus 128, in its lower bits: byte 1 is hi, and byte 0 is lo + 128
struct Fixed {
    float inverse, unit;
    __device__ __forceinline__ Fixed(float top) {
        const uint32_t bits = max(__float_as_uint(top * 1.004f) & 0x7f800000, 15u << 23);
        inverse = __uint_as_float((268u << 23) - bits), unit = __uint_as_float(bits - (14u << 23));
    }
    // Returns what rounding x to units leaves, in units.
    __device__ __forceinline__ float rest(float x) const { return fmaf(x, inverse, kBits - fmaf(x, inverse, kBits)); }
};
// Rounds factor times four floats. Packs the bytes hi to x, and the bytes lo to y.
__device__ __forceinline__ void pack_bytes(uint32_t &x, uint32_t &y, const float *from, float factor) {
    uint32_t bits[4];
    UNROLL for (int i = 0; i < 4; i++) bits[i] = __float_as_uint(fmaf(from[i], factor, kBits));
    const uint32_t a = __byte_perm(bits[0], bits[1], 0x4051), b = __byte_perm(bits[2], bits[3], 0x4051);
    x = __byte_perm(a, b, 0x5410), y = __byte_perm(a, b, 0x7632) ^ 0x80808080;
}

__device__ __forceinline__ float element(const void *data, int64_t i, int type) {
    if (type == 0) return ((const float *)data)[i];
    const uint16_t x = ((const uint16_t *)data)[i];
    const float half = widen<F16>(x), brain = widen<BF16>(x);
    return type == 1 ? half : brain;
}

// Rows copies K or V, 32 keys at once. Each lane copies 16 bytes of every 8th key, and of the key four after it if rows have more
// than 64 bytes.
template <int D> struct Rows {
    static_assert(D == 128, "a row has 8 units");
    const char *data;  // the lane's 16 bytes of its first key, if this is key 0 of the sequence, or of the pool
    int64_t row, page; // bytes from one key, and from one page, to the next
    int first, place;  // the lane's first key of a round; offset of its destination
    int bytes;         // of a row from the lane's first byte on
    bool narrow, aligned;

    __device__ __forceinline__ Rows(const View &v, int dim, int kv_batch, int g, int key0, bool paged, unsigned lane)
        : row(v.row), page(paged ? v.batch : 0), first(dim > 64 ? lane / 8 : lane / 4), narrow(dim <= 64) {
        const int unit = lane % (narrow ? 4 : 8);
        data = (const char *)v.data + kv_batch * v.batch + g * v.head + key0 * row;
        aligned = (((uintptr_t)data | row | page) & 15) == 0, data += first * row + unit * 16;
        bytes = dim - unit * 16, place = fresh(Layout<D>::place(first, unit));
    }
    // begin is the offset of key `lane` from key 0. There are 32 keys. Eight keys in a row are `row` bytes apart.
    __device__ __forceinline__ void fetch(uint32_t to, int64_t begin) const {
        to += place;
        UNROLL for (int i = 0; i < 4; i++) {
            const char *const from = data + __shfl_sync(lanes, begin, 8 * i);
            copy_async16_if(to + 8 * D * i, from, bytes > 0);
            if (!narrow) copy_async16_if((to ^ 64) + 8 * D * i + 4 * D, from + 4 * row, bytes > 0);
        }
    }
    // Like fetch, for any keys, of which the first `keys` exist. The others become zeros.
    __device__ __forceinline__ void fetch_each(uint32_t to, int64_t begin, int keys) const {
        ROLLED for (int i = 0; i < 32; i += narrow ? 8 : 4) {
            const char *const from = data + __shfl_sync(lanes, begin, i + first) - first * row;
            const uint32_t there = to + (place ^ i % 8 * 16) + i * D;
            const int count = i + first < keys ? max(0, min(16, bytes)) : 0;
            if (aligned) copy_async16(there, count > 0 ? from : data, count);
            else copy_elements16<1>(there, from, count);
        }
    }
};

// The scales of a round's keys of K or V on their way to shared memory. Lane j loads the scales of key j.
template <int D> struct Scales {
    using L = Layout<D>;
    const char *data;   // scales of key 0 of the sequence, or of the pool
    int64_t row, batch; // bytes from one key, and from one page, to the next
    int groups;
    bool half;
    uint32_t x[L::chunks];

    __device__ __forceinline__ Scales(const View &v, int dim, int shift, bool half, int kv_batch, int g, int key0) : groups(((unsigned)(dim - 1) / 32 >> shift) + 1), half(half) {
        const unsigned size = half ? 2 : 4;
        row = v.row * size, batch = v.batch * size;
        data = (const char *)v.data + kv_batch * batch + g * v.head * size + key0 * row;
    }
    __device__ __forceinline__ void load(int page, int slot, bool exists) {
        const char *from = data + slot * row;
        if (page) from += page * batch;
        UNROLL for (int i = 0; i < L::chunks; i++) {
            x[i] = 0;
            if (exists && i < groups) x[i] = half ? ((const uint16_t *)from)[i] : ((const uint32_t *)from)[i];
        }
    }
    // Stores the scales and reports whether all are finite.
    __device__ __forceinline__ bool store(float *to, unsigned lane) const {
        bool finite = true;
        UNROLL for (int i = 0; i < L::chunks; i++) {
            if (i >= groups) break;
            const float y = half ? widen<F16>((uint16_t)x[i]) : __uint_as_float(x[i]);
            to[i * L::keys + lane] = y, finite = finite && fabsf(y) < infinity;
        }
        return finite;
    }
};

// A warp's 8 rows and their sums. Lane 4g+t holds row g: scores of keys 8i+2t and 8i+2t+1, and columns 16u+4t to 16u+4t+3 of O in o[u].
template <int D> struct Tile {
    using L = Layout<D>;
    float o[L::units][4] = {}, m = -infinity, l = 0;
    int first, last; // first and last visible key of the row
    RowOf row;
    const char *q; // the lane's first 16 bytes of Q
    float unit;    // of Q
    int terms;     // of the weights
    int k_chunks, v_chunks, shift;
    int k_place, v_place; // offsets of the lane's addresses for load_matrix

    __device__ __forceinline__ Tile(const Int8Params &a, const char *rows_of_q, const Band &band, const RowScores<F32> &x, int head, unsigned lane)
        : first(band.first(lane / 4)), last(band.last(lane / 4)), row(x.row(band.n(lane / 4), head + band.head(lane / 4))), q(rows_of_q + lane * 16),
          terms(a.type == 0 ? L::terms : 1), k_chunks((unsigned)(a.x.p.dim + 31) / 32), v_chunks((unsigned)(a.x.p.v_dim + 31) / 32), shift(a.shift),
          k_place(fresh(L::place(lane / 16 * 8 + lane % 8, lane / 8 % 2))), v_place(fresh(L::v_at + L::place(lane, 0))) {}

    // Sets s to the dot products of Q and the keys. Sums of integers are exact; the last chunk of a group scales them.
    __device__ __forceinline__ void product(float (&s)[8], const char *slot, const float *scales, unsigned lane) const {
        const uint32_t k = shared_address(slot) + k_place;
        int sum[8][4] = {}; // of the first term, then of the second
        UNROLL for (int c = 0; c < L::chunks; c++) {
            if (c >= k_chunks) break;
            uint32_t low[4], high[4];
            load_matrix(low, k ^ 32 * c), load_matrix(high, (k ^ 32 * c) + 16 * D);
            UNROLL for (int term = 0; term < L::terms; term++) {
                const uint4 x = *(const uint4 *)(q + term * L::q_term + c * L::q_chunk);
                int(*const y)[4] = sum + 4 * term;
                mma8(y[0], {x.x, x.y, x.z, x.w}, low[0], low[1]), mma8(y[1], {x.x, x.y, x.z, x.w}, low[2], low[3]);
                mma8(y[2], {x.x, x.y, x.z, x.w}, high[0], high[1]), mma8(y[3], {x.x, x.y, x.z, x.w}, high[2], high[3]);
            }
            if (c + 1 < k_chunks && (c + 1 & (1 << shift) - 1)) continue;
            const float *const scale = scales + (c >> shift) * L::keys + lane % 4 * 2;
            UNROLL for (int e = 0; e < 8; e++) {
                const int *const x = sum[e / 2] + e % 2, *const y = sum[4 + e / 2] + e % 2;
                s[e] = fmaf(fmaf(y[0] * 256 + y[2], 1 / kRest, x[0] * 256 + x[2]), scale[e / 2 * 8 + e % 2], s[e]);
            }
            UNROLL for (int i = 0; i < 32; i++) sum[i / 4][i % 4] = 0;
        }
        UNROLL for (int e = 0; e < 8; e++) s[e] *= unit;
    }

    // Adds the product of a term of P and the values to O. The first chunk of a group multiplies P by the group's scales.
    __device__ __forceinline__ void add_values(const float (&p)[8], int term, const char *slot, const float *scales, unsigned lane) {
        const uint32_t v = shared_address(slot) + v_place;
        uint32_t a[4];
        float unit = 0;
        UNROLL for (int c = 0; c < L::chunks; c++) {
            if (c >= v_chunks) break;
            if (c == 0 || !(c & (1 << shift) - 1)) {
                const float *const scale = scales + (L::chunks + (c >> shift)) * L::keys + lane % 4 * 2;
                float x[8], top = 0;
                UNROLL for (int i = 0; i < 4; i++) {
                    const float2 y = *(const float2 *)(scale + 8 * i);
                    x[2 * i] = p[2 * i] * y.x, x[2 * i + 1] = p[2 * i + 1] * y.y;
                    top = fmaxf(top, fmaxf(fabsf(x[2 * i]), fabsf(x[2 * i + 1])));
                }
                const Fixed fixed(quad_max(top));
                float factor = fixed.inverse;
                if (unit = fixed.unit; term > 0) {
                    ROLLED for (int e = 0; e < 8; e++) { // the weights rotate
                        const float rest = fixed.rest(x[0]);
                        UNROLL for (int i = 0; i < 7; i++) x[i] = x[i + 1];
                        x[7] = rest;
                    }
                    factor = kRest, unit *= 1 / kRest;
                }
                pack_bytes(a[0], a[1], x, factor), pack_bytes(a[2], a[3], x + 4, factor);
            }
            UNROLL for (int u = 2 * c; u < 2 * c + 2; u++) {
                uint32_t x[4];
                load_matrix_transposed(x, v ^ 16 * u); // keys 8i+2t and 8i+2t+1 of columns 2g and 2g+1
                int even[4] = {}, odd[4] = {};
                mma8(even, a, __byte_perm(x[0], x[1], 0x6420), __byte_perm(x[2], x[3], 0x6420));
                mma8(odd, a, __byte_perm(x[0], x[1], 0x7531), __byte_perm(x[2], x[3], 0x7531));
                UNROLL for (int i = 0; i < 4; i++) o[u][i] = fmaf((i % 2 ? odd : even)[i / 2] * 256 + (i % 2 ? odd : even)[i / 2 + 2], unit, o[u][i]);
            }
        }
    }

    // Adds P V to O key by key, for scales that are not finite. Skips the keys that are hidden from the row.
    __device__ __forceinline__ void add_each(float (&p)[8], uint32_t hidden, const char *slot, const float *scales, unsigned lane) {
        ROLLED for (int e = 0; e < 8; e++) { // the weights rotate
            ROLLED for (int t = 0; t < 4; t++) {
                const float x = __shfl_sync(lanes, p[0], lane & 28 | t);
                const bool hides = __shfl_sync(lanes, hidden, lane & 28 | t) >> e & 1;
                const int j = e / 2 * 8 + 2 * t + e % 2;
                ROLLED for (int u = 0; u < L::units; u++) { // and so does O
                    const char4 y = *(const char4 *)(slot + L::v_at + L::place(j, u) + lane % 4 * 4);
                    const float z = x * scales[(L::chunks + (min(u / 2, v_chunks - 1) >> shift)) * L::keys + j];
                    float4 a = {o[0][0], o[0][1], o[0][2], o[0][3]};
                    if (!hides) a = {fmaf(z, y.x, a.x), fmaf(z, y.y, a.y), fmaf(z, y.z, a.z), fmaf(z, y.w, a.w)};
                    UNROLL for (int i = 0; i < D / 4 - 4; i++) o[i / 4][i % 4] = o[i / 4 + 1][i % 4];
                    o[L::units - 1][0] = a.x, o[L::units - 1][1] = a.y, o[L::units - 1][2] = a.z, o[L::units - 1][3] = a.w;
                }
            }
            const float x = p[0];
            UNROLL for (int i = 0; i < 7; i++) p[i] = p[i + 1];
            p[7] = x;
        }
    }

    // Adds keys `key` to `key` + 31 to the softmax sums. edge is true if some row does not see all of these keys.
    __device__ __forceinline__ void step(const char *slot, const float *scales, int key, bool edge, float c, unsigned lane, const RowScores<F32> &x) {
        float s[8] = {};
        product(s, slot, scales, lane);
        uint32_t hidden = 0; // bit e: score e is hidden
        if (edge || x.changes) {
            ROLLED for (int e = 0; e < 8; e++) { // the scores rotate, so that there is one copy of the code
                const int j = key + e / 2 * 8 + lane % 4 * 2 + e % 2;
                const float y = x.changes ? x.of(row, s[0], j) : s[0];
                const bool hides = j < first || j > last || x.hides(row, j);
                hidden |= hides << e;
                UNROLL for (int i = 0; i < 7; i++) s[i] = s[i + 1];
                s[7] = hides ? -infinity : y;
            }
        }
        const Beneath top(fmaxf(m, quad_max(fmaxf(fmaxf(fmaxf(s[0], s[1]), fmaxf(s[2], s[3])), fmaxf(fmaxf(s[4], s[5]), fmaxf(s[6], s[7]))))), c);
        float grow = exp2_approx(__fmul_rn(m, c) - top.base), base = top.base;
        if (__any_sync(lanes, top.far())) { // subtract the maximum from a far row's scores before scaling
            if (top.far()) grow = top.rescale(m), base = 0;
            UNROLL for (int e = 0; e < 8; e++) s[e] -= top.far() ? top.m : 0;
        }
        m = top.m;
        UNROLL for (int e = 0; e < 8; e++) s[e] = exp2_approx(fmaf(s[e], c, -base));
        l = l * grow + (((s[0] + s[1]) + (s[2] + s[3])) + ((s[4] + s[5]) + (s[6] + s[7])));
        if (__any_sync(lanes, grow != 1)) {
            UNROLL for (int i = 0; i < D / 4; i++) o[i / 4][i % 4] *= grow;
        }
        if (*(const int *)((const char *)scales + L::flag_at)) return add_each(s, hidden, slot, scales, lane);
        ROLLED for (int term = 0; term < terms; term++) add_values(s, term, slot, scales, lane);
    }

    // Writes O [8, o_pitch] and m, l [8].
    __device__ __forceinline__ void store(float *to, float2 *to_sums, unsigned lane) {
        UNROLL for (int u = 0; u < L::units; u++) *(float4 *)(to + lane / 4 * L::o_pitch + 16 * u + lane % 4 * 4) = {o[u][0], o[u][1], o[u][2], o[u][3]};
        const float sum = butterfly_sum<1, 4>(l);
        if (lane % 4 == 0) to_sums[lane / 4] = {m, sum};
    }
};
