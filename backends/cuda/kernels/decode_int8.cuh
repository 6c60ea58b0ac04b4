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
    static constexpr int size = 1, rows = 16, keys = 16, columns = D, quads = D / 4, chunks = D / 32;
    static constexpr int pitch = D, v_pitch = D; // bytes per row of K; of V
    static constexpr int v_at = keys * D, scales_at = 2 * v_at, slot = scales_at + 2 * chunks * keys * 4; // a stage: K, V, float32 scales [K or V, chunks, keys]
    static constexpr int teams = 2, tile_rows = teams * rows, terms = 3;
    static constexpr int q_term = tile_rows * 2 * D, q_all = terms * q_term; // Q [terms, tile_rows, D] bf16, for all warps
    static constexpr int sums = rows * 8;                                                       // m, l [rows, 2]
    static constexpr int fits(int warps) { return ((shared_limit - q_all) / warps - sums) / slot; } // stages
    static constexpr int warps = fits(12) >= 3 ? 12 : fits(8) >= 3 ? 8 : fits(4) >= 3 ? 4 : fits(8) >= 2 ? 8 : fits(4) >= 2 ? 4 : 2;
    static constexpr int stages = fits(warps) > 4 ? 4 : fits(warps), ring = stages * slot;
    static constexpr int shared = warps * (ring + sums) + q_all, o_pitch = D + 4; // o_pitch: floats from row to row of O, which reuses the ring at the end
    static_assert(stages >= 2 && ring >= rows * o_pitch * 4);

    // Returns the offset of the 16-byte unit u of row r. For each u, the units of eight consecutive rows are in different banks,
    // and so are units 2u and 2u+1 of four rows.
    template <int pitch> static __device__ __forceinline__ int place(int r, int u) { return r * pitch + (u ^ (r % 4 * 2 | r / 4 % 2)) * 16; }
    // Returns the offset of 8 elements u of row r of Q. Each lane's four registers of mma's operand a are together.
    static __device__ __forceinline__ int q_place(int r, int u) { return r / 16 * 32 * D + u / 4 * 1024 + (r % 8 * 4 + u % 4) * 16 + r / 8 % 2 * 4; }
};

template <> __device__ __forceinline__ void copy_elements16<1>(uint32_t to, const void *from, int bytes) {
    ROLLED for (int e = 0; e < 16; e++)
        asm volatile("st.shared.u8 [%0], %1;" ::"r"(to + e), "r"(e < bytes ? (uint32_t)((const uint8_t *)from)[e] : 0) : "memory");
}

// Widen converts int8 elements to bf16. The sums are exact: the seven lower bits plus 128, minus 128 or 256. The constants stay in
// registers, so that one instruction takes two of them.
struct Widen {
    uint32_t low = 0x007f007f, sign = 0x00800080, plus = 0x43004300, minus = 0xc300c300;
    __device__ __forceinline__ Widen() { asm volatile("" : "+r"(low), "+r"(sign), "+r"(plus), "+r"(minus)); }
    __device__ __forceinline__ uint32_t even(uint32_t x) const { // bytes 0 and 2
        uint32_t y;
        asm("{.reg .b32 a, b; lop3.b32 a, %1, %2, %3, 0xea; lop3.b32 b, %1, %4, %5, 0xea; fma.rn.bf16x2 %0, a, %6, b;}"
            : "=r"(y) : "r"(x), "r"(low), "r"(plus), "r"(sign), "r"(minus), "r"(0x3f803f80));
        return y;
    }
    __device__ __forceinline__ uint32_t odd(uint32_t x) const { return even(x >> 8); }
};

// A float32 number is the sum of three bf16 terms, and a float16 number the sum of two. take_term returns the next term of x
// and y, and leaves the rest in x and y. For the weights, rounded terms do as well.
__device__ __forceinline__ uint32_t take_term(float &x, float &y) {
    const uint32_t a = __float_as_uint(x), b = __float_as_uint(y);
    x = fabsf(x) < infinity ? x - __uint_as_float(a & 0xffff0000) : 0, y = fabsf(y) < infinity ? y - __uint_as_float(b & 0xffff0000) : 0;
    return __byte_perm(a, b, 0x7632);
}
__device__ __forceinline__ float rounded(float x) { return widen<BF16>((uint16_t)pack<BF16>(x, 0)); }
__device__ __forceinline__ int terms_of(int type) { return 3 - type; }

__device__ __forceinline__ float element(const void *data, int64_t i, int type) {
    if (type == 0) return ((const float *)data)[i];
    const uint16_t x = ((const uint16_t *)data)[i];
    const float half = widen<F16>(x), brain = widen<BF16>(x);
    return type == 1 ? half : brain;
}

// The scales of a round's keys on their way to shared memory. Lane 16t+j loads the scales of key j of K (t = 0) or V (t = 1).
template <int D> struct Scales {
    using L = Layout<D>;
    const char *data;   // scales of key 0 of the sequence, or of the pool
    int64_t row, batch; // bytes from one key, and from one page, to the next
    int chunks, shift;
    bool half;
    float x[L::chunks];

    __device__ __forceinline__ Scales(const Int8Params &a, int kv_batch, int g, int key0, int lane)
        : chunks(((lane < 16 ? a.x.p.dim : a.x.p.v_dim) + 31) / 32), shift(a.shift), half(lane < 16 ? a.k_half : a.v_half) {
        const View &v = lane < 16 ? a.k_scale : a.v_scale;
        const int size = half ? 2 : 4;
        row = v.row * size, batch = v.batch * size;
        data = (const char *)v.data + kv_batch * batch + g * v.head * size + key0 * row;
    }
    __device__ __forceinline__ void load(int64_t offset, bool exists) {
        const char *at = data + offset;
        UNROLL for (int c = 0; c < L::chunks; c++) {
            x[c] = c > 0 && c & (1 << shift) - 1 ? x[c > 0 ? c - 1 : 0] : 0;
            if (exists && c < chunks && !(c & (1 << shift) - 1)) x[c] = half ? widen<F16>(((const uint16_t *)at)[c >> shift]) : ((const float *)at)[c >> shift];
        }
    }
    __device__ __forceinline__ void store(char *slot, int lane) const {
        UNROLL for (int c = 0; c < L::chunks; c++) ((float *)(slot + L::scales_at))[(lane / 16 * L::chunks + c) * 16 + lane % 16] = x[c];
    }
};

// A warp's 16 rows and their sums. Lane 4g+t holds rows g and g+8, and columns 16i+4t to 16i+4t+3 of O: elements e and e+2 in
// o[2i], and e+1 and e+3 in o[2i+1].
template <int D> struct Tile {
    using L = Layout<D>;
    float o[D / 8][4] = {}, m[2] = {-infinity, -infinity}, l[2] = {};
    int first[2], last[2]; // first and last visible key of each of the lane's two rows
    RowOf rows[2];
    const char *q; // the lane's first 16 bytes of Q
    int terms, k_chunks, v_chunks;
    Widen widen;

    __device__ __forceinline__ Tile(const Int8Params &a, const char *rows_of_q, const Band &band, const RowScores<F32> &x, int head, int lane)
        : q(rows_of_q + lane * 16), terms(terms_of(a.type)), k_chunks((a.x.p.dim + 31) / 32), v_chunks((a.x.p.v_dim + 31) / 32) {
        UNROLL for (int h = 0; h < 2; h++) {
            const int r = lane / 4 + 8 * h;
            first[h] = band.first(r), last[h] = band.last(r), rows[h] = x.row(band.n(r), head + band.head(r));
        }
    }

    // Adds the product of 32 columns of a term of Q and keys to s. The lane holds elements 8t to 8t+7 of them: a permutation of the order
    // in mma, the same for Q.
    __device__ __forceinline__ void product(float (&s)[2][4], const char *slot, const char *at, int c, int lane) {
        const int t = lane % 4, g = lane / 4;
        float sum[2][4] = {};
        uint32_t k[2][4];
        UNROLL for (int half = 0; half < 2; half++) {
            const uint2 x = *(const uint2 *)(slot + L::template place<L::pitch>(8 * half + g, 2 * c + t / 2) + t % 2 * 8);
            k[half][0] = widen.even(x.x), k[half][1] = widen.odd(x.x), k[half][2] = widen.even(x.y), k[half][3] = widen.odd(x.y);
        }
        const uint4 a = *(const uint4 *)(at + c * 1024), b = *(const uint4 *)(at + c * 1024 + 512);
        UNROLL for (int half = 0; half < 2; half++) {
            mma<BF16>(sum[half], {a.x, a.y, a.z, a.w}, k[half][0], k[half][1]);
            mma<BF16>(sum[half], {b.x, b.y, b.z, b.w}, k[half][2], k[half][3]);
        }
        const float *const scale = (const float *)(slot + L::scales_at) + c * 16 + 2 * t;
        const float2 x = *(const float2 *)scale, y = *(const float2 *)(scale + 8);
        UNROLL for (int e = 0; e < 8; e++) s[e / 4][e % 4] = fmaf(sum[e / 4][e % 4], e < 4 ? (e % 2 ? x.y : x.x) : (e % 2 ? y.y : y.x), s[e / 4][e % 4]);
    }

    // Sets a to a term of P times the scales of 32 columns of V. The weight of a hidden key stays 0 if the key's scale is NaN.
    __device__ __forceinline__ void scale_weights(uint32_t (&a)[4], const float (&s)[2][4], int term, bool edge, uint32_t hidden, const char *slot, int c, int lane) {
        const float *const scale = (const float *)(slot + L::scales_at) + (L::chunks + c) * 16 + lane % 4 * 2;
        const float2 v = *(const float2 *)scale, w = *(const float2 *)(scale + 8);
        float p[8];
        UNROLL for (int e = 0; e < 8; e++) p[e] = s[e / 4][e % 4] * (e < 4 ? (e % 2 ? v.y : v.x) : (e % 2 ? w.y : w.x));
        if (edge || term > 0) {
            ROLLED for (int e = 0; e < 8; e++) { // the weights rotate
                float x = hidden >> e & 1 ? 0 : p[0];
                if (term > 0) x = fabsf(x) < infinity ? x - rounded(x) : 0;
                if (term > 1) x -= rounded(x);
                UNROLL for (int i = 0; i < 7; i++) p[i] = p[i + 1];
                p[7] = x;
            }
        }
        UNROLL for (int i = 0; i < 4; i++) a[i] = pack<BF16>(p[2 * i], p[2 * i + 1]);
    }

    // Adds the product of a and 32 columns of V to O.
    __device__ __forceinline__ void add_values(const uint32_t (&a)[4], const char *slot, int c, int lane) {
        uint32_t x[4], y[4];
        load_matrix_transposed(x, (shared_address(slot) + L::v_at + L::template place<L::v_pitch>(lane % 16, lane / 16)) ^ 32 * c);
        UNROLL for (int i = 0; i < 4; i++) y[i] = widen.odd(x[i]), x[i] = widen.even(x[i]);
        mma<BF16>(o[4 * c], a, x[0], x[1]), mma<BF16>(o[4 * c + 1], a, y[0], y[1]);
        mma<BF16>(o[4 * c + 2], a, x[2], x[3]), mma<BF16>(o[4 * c + 3], a, y[2], y[3]);
    }

    // Adds keys `key` to `key` + 15 to the softmax sums. edge is true if some row does not see all of these keys.
    // Columns are in pairs of chunks, as branches between instructions cost time.
    __device__ __forceinline__ void step(const char *slot, int key, bool edge, float c, int lane, const RowScores<F32> &x) {
        float s[2][4] = {};
        ROLLED for (int term = 0; term < terms; term++) {
            UNROLL for (int c = 0; c < L::chunks; c += 2)
                if (c == 0 || c < k_chunks) product(s, slot, q + term * L::q_term, c, lane), product(s, slot, q + term * L::q_term, c + 1, lane);
        }
        uint32_t hidden = 0; // bit e: score e is hidden
        if (edge || x.changes) {
            ROLLED for (int e = 0; e < 8; e++) { // the scores rotate, so that there is one copy of the code
                const int j = key + e / 4 * 8 + lane % 4 * 2 + e % 2, h = e / 2 % 2;
                const RowOf r = {h ? rows[1].n : rows[0].n, 0, h ? rows[1].slope : rows[0].slope, nullptr, h ? rows[1].mask : rows[0].mask};
                float y = x.changes ? x.of(r, s[0][0], j) : s[0][0];
                const bool hides = j < (h ? first[1] : first[0]) || j > (h ? last[1] : last[0]) || x.hides(r, j);
                hidden |= hides << e;
                UNROLL for (int i = 0; i < 7; i++) s[i / 4][i % 4] = s[(i + 1) / 4][(i + 1) % 4];
                s[1][3] = hides ? -infinity : y;
            }
        }
        float grow[2];
        UNROLL for (int h = 0; h < 2; h++) {
            const Beneath top(fmaxf(m[h], butterfly_max<1, 4>(fmaxf(fmaxf(s[0][2 * h], s[0][2 * h + 1]), fmaxf(s[1][2 * h], s[1][2 * h + 1])))), c);
            grow[h] = top.rescale(m[h]), m[h] = top.m;
            UNROLL for (int e = 0; e < 4; e++) s[e / 2][2 * h + e % 2] = top.weight(s[e / 2][2 * h + e % 2]);
            l[h] = l[h] * grow[h] + ((s[0][2 * h] + s[0][2 * h + 1]) + (s[1][2 * h] + s[1][2 * h + 1]));
        }
        if (__any_sync(lanes, grow[0] != 1 || grow[1] != 1)) {
            UNROLL for (int i = 0; i < D / 2; i++) o[i / 4][i % 4] *= grow[i / 2 % 2];
        }
        ROLLED for (int term = 0; term < terms; term++) {
            uint32_t a[L::chunks][4];
            UNROLL for (int c = 0; c < L::chunks; c++) scale_weights(a[c], s, term, edge, hidden, slot, c, lane);
            UNROLL for (int c = 0; c < L::chunks; c += 2)
                if (c == 0 || c < v_chunks) add_values(a[c], slot, c, lane), add_values(a[c + 1], slot, c + 1, lane);
        }
    }

    // Writes O [16, o_pitch] and m, l [16].
    __device__ __forceinline__ void store(float *to, float2 *to_sums, int lane) {
        UNROLL for (int h = 0; h < 2; h++) {
            const int row = lane / 4 + 8 * h;
            UNROLL for (int i = 0; i < D / 16; i++)
                *(float4 *)(to + row * L::o_pitch + 16 * i + lane % 4 * 4) = {o[2 * i][2 * h], o[2 * i + 1][2 * h], o[2 * i][2 * h + 1], o[2 * i + 1][2 * h + 1]};
            const float sum = butterfly_sum<1, 4>(l[h]);
            if (lane % 4 == 0) to_sums[row] = {m[h], sum};
        }
    }
};
