// What features change, in the three places of a kernel where they have a say:
//
//	begin    which rows and keys a sequence has, and where they lie: sequence, key_place
//	scores   of a tile before its maximum: Scores::adjust caps, biases and masks them
//	weights  of a tile after its sum: Scores::drop; and of a row at its end: Ending
//
// Scores that features change are in natural units from adjust on, which bear every number that a bias holds. Backward
// kernels of 16-bit types have them in units of log2, with LSE off at once, but for tiles with rows that are far; those of
// float32 take LSE off last. A tile is what
// the tensor cores make: lane 4g+t has rows g and g+8 and, of each 8 columns, 2t and
// 2t+1. Kernels that own keys have keys as rows and query rows as columns: transposed.
// Branches on features are the same for a whole grid, and around loops over a tile.
#pragma once
#include "far.cuh"
#include "params.cuh"

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.69314718f;
constexpr float kLog2ERest = 1.925963e-8f; // of log2(e), which kLog2E lacks
constexpr int kReach = 1 << 30;

// A sequence: rows [0, rows) of it lie from row q0 of batch q_batch of the tensors on,
// keys likewise. Up to row_end and key_end the rows of the tensors are padding, whose
// results are 0. Row i sees the keys from i+lo to i+hi.
struct Sequence {
    int q_batch, q0, rows, row_end;
    int kv_batch, key0, keys, key_end;
    int lo, hi, diagonal;
};

__device__ __forceinline__ int within_reach(int64_t x) { return (int)(x < -kReach ? -kReach : x > kReach ? kReach : x); }

__device__ __forceinline__ Sequence sequence(const Params &p, const Features &f, int b) {
    Sequence s = {b, 0, p.q_len, p.q_len, b, 0, p.kv_len, p.kv_len};
    if (f.q_starts) {
        s.q_batch = 0, s.q0 = f.q_starts[b];
        s.rows = s.row_end = f.q_starts[b + 1] - s.q0;
    } else if (f.q_lens) {
        s.rows = min(max(f.q_lens[b], 0), p.q_len);
    }
    if (f.kv_starts) {
        s.kv_batch = 0, s.key0 = f.kv_starts[b];
        s.keys = s.key_end = f.kv_starts[b + 1] - s.key0;
    } else if (f.kv_lens) {
        s.keys = min(max(f.kv_lens[b], 0), p.kv_len);
    }
    const int64_t off = (f.top_left ? 0 : s.keys - s.rows) + f.shift;
    s.diagonal = within_reach(off);
    s.lo = f.left < 0 ? -kReach : within_reach(off - f.left);
    s.hi = f.right < 0 ? kReach : within_reach(off + f.right);
    return s;
}

// The same for both instances of a kernel: without features it is the argument block.
template <bool features> struct Extent {
    const Params &p;
    int b;
    __device__ __forceinline__ Extent(const Params &p, const Features &, int b) : p(p), b(b) {}
    __device__ __forceinline__ int q_batch() const { return b; }
    __device__ __forceinline__ int kv_batch() const { return b; }
    __device__ __forceinline__ int q0() const { return 0; }
    __device__ __forceinline__ int rows() const { return p.q_len; }
    __device__ __forceinline__ int row_end() const { return p.q_len; }
    __device__ __forceinline__ int keys() const { return p.kv_len; }
    __device__ __forceinline__ int key_end() const { return p.kv_len; }
    __device__ __forceinline__ int lo() const { return p.lo; }
    __device__ __forceinline__ int hi() const { return p.hi; }
};
template <> struct Extent<true> {
    Sequence s;
    __device__ __forceinline__ Extent(const Params &p, const Features &f, int b) : s(sequence(p, f, b)) {}
    __device__ __forceinline__ int q_batch() const { return s.q_batch; }
    __device__ __forceinline__ int kv_batch() const { return s.kv_batch; }
    __device__ __forceinline__ int q0() const { return s.q0; }
    __device__ __forceinline__ int rows() const { return s.rows; }
    __device__ __forceinline__ int row_end() const { return s.row_end; }
    __device__ __forceinline__ int keys() const { return s.keys; }
    __device__ __forceinline__ int key_end() const { return s.key_end; }
    __device__ __forceinline__ int lo() const { return s.lo; }
    __device__ __forceinline__ int hi() const { return s.hi; }
};
__device__ const Features no_features = {};

// Where key j of sequence b lies: the element at which its row of KV head h begins.
__device__ __forceinline__ int64_t key_place(const View &v, const Features &f, const Sequence &s, int b, int h, int j) {
    if (!f.page) return s.kv_batch * v.batch + h * v.head + (s.key0 + j) * v.row;
    const int page = (int)((uint64_t)(uint32_t)j * f.page_factor >> f.page_shift);
    return f.pages[(int64_t)b * f.page_width + page] * v.batch + h * v.head + (j - page * f.page) * v.row;
}

// The same value, but what follows from it is computed again, not kept in registers.
__device__ __forceinline__ int again(int x) {
    asm volatile("" : "+r"(x));
    return x;
}

// Philox4x32-7 (Salmon et al., Parallel random numbers: as easy as 1, 2, 3, 2011).
__device__ __forceinline__ uint4 philox(uint4 c, uint32_t k0, uint32_t k1) {
#pragma unroll
    for (int i = 0; i < 7; i++) {
        const uint64_t a = (uint64_t)0xD2511F53 * c.x, b = (uint64_t)0xCD9E8D57 * c.z;
        c = {(uint32_t)(b >> 32) ^ c.y ^ k0, (uint32_t)b, (uint32_t)(a >> 32) ^ c.w ^ k1, (uint32_t)a};
        k0 += 0x9E3779B9, k1 += 0xBB67AE85;
    }
    return c;
}

// The random words of keys j/8*8 to j/8*8+7 of row i: the lower halves are the numbers of the first four, the upper ones of the others.
__device__ __forceinline__ uint4 random_words(const Features &f, int b, int h, int i, int j) {
    return philox({(j + f.first_key) >> 3, i + f.first_row, h + f.first_head, b + f.first_batch}, f.seed[0], f.seed[1]);
}

// Bit e of the result says that dropout drops key e of those eight. `below` is 0 in its lower half.
__device__ __forceinline__ uint32_t drops_of(uint4 w, uint32_t below) {
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
    uint32_t dropped = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) dropped |= (words[e] << 16 < below) << e | (words[e] < below) << (e + 4);
    return dropped;
}

// Bit 8 r + j of the result says that dropout drops key j of eight of row r; a lane of a quad brings those of row t % 4 of four.
__device__ __forceinline__ uint32_t quad_drops(uint32_t mine) {
    mine <<= 8 * (threadIdx.x % 4);
    mine |= __shfl_xor_sync(~0u, mine, 1);
    return mine | __shfl_xor_sync(~0u, mine, 2);
}

// tanh(x) for |x| < 0.6.
__device__ __forceinline__ float small_tanh(float x) {
    const float y = x * x;
    return fmaf(x * y, fmaf(y, fmaf(y, fmaf(y, fmaf(y, -0.00589516f, 0.02079597f), -0.05378383f), 0.13331924f), -0.33333298f), x);
}

// tanh(x), and 1 - tanh(x)^2 without the digits that this difference would lose. Near 0
// tanh is a polynomial, as 1-e would lose them there.
__device__ __forceinline__ float tanh_of(float x, float &slope) {
    const float a = fabsf(x), e = exp2_approx(-2 * kLog2E * a), r = __fdividef(1, 1 + e), small = small_tanh(x);
    slope = 4 * e * r * r;
    return a < 0.6f ? small : copysignf((1 - e) * r, x);
}

// The same for scores of float32: the exponential takes in what rounding took off its argument,
// and far from 0 its error and that of r are those of a small term. Near 0 the difference is
// exact but for a rounding.
__device__ __forceinline__ float fine_tanh(float x, float &slope) {
    const float a = fabsf(x) > 64 ? 64 : fabsf(x), exponent = -2 * kLog2E * a; // NaN stays
    const float rest = fmaf(-2 * kLog2E, a, -exponent) - 2 * kLog2ERest * a, power = exp2_approx(exponent);
    const float e = fmaf(power, rest * kLn2, power), r = __frcp_rn(1 + e), t = tanh_of(x, slope);
    slope = a < 0.6f ? fmaf(-t, t, 1) : 4 * e * r * r;
    return a < 0.6f ? t : copysignf(fmaf(-2 * e, r, 1), x);
}

// What rounded, which is natural * log2(e), lacks of it; 0 where it overflows or vanishes.
__device__ __forceinline__ float lacking(float natural, float rounded) {
    const float x = fmaf(natural, kLog2E, -rounded) + natural * kLog2ERest;
    return fabsf(x) <= rounded * 1e-6f ? x : 0;
}

// Row i, key j of a bias in float32 or in T.
template <class T> __device__ __forceinline__ float narrow_bias(const char *at) { return widen<T>(*(const uint16_t *)at); }
template <> __device__ __forceinline__ float narrow_bias<float>(const char *at) { return *(const float *)at; }

// A tile of scores is an array [8 columns][4]; for the sums of a warpgroup's products, one
// row of it after the other.
template <int n> struct Flat {
    float (&x)[n];
    __device__ __forceinline__ float *operator[](int i) const { return x + 4 * i; }
};
template <class Tiles> constexpr int count_of = 0; // of 8 columns
template <int n> constexpr int count_of<float[n][4]> = n;
template <int n> constexpr int count_of<const Flat<n>> = n / 4;

// Backward, 16-bit types: of rows that are far kFarLSE stands for LSE in units of log2, and weights are computed in natural units.
constexpr uint32_t kFarLSE = 0x80000000; // -0, which no other row has
__device__ __forceinline__ bool is_far_lse(float lse) { return __float_as_uint(lse) == kFarLSE; }
// Of a natural LSE, which may be NaN; Inf where the row has no weight.
__device__ __forceinline__ float stat_of_lse(float lse) {
    const float x = lse * kLog2E + 0.f; // not -0
    return lse == __int_as_float(0xff800000) ? __int_as_float(0x7f800000) : fabsf(x) < kFar ? x : __uint_as_float(kFarLSE);
}
// What stands for the product s of a row that is far: times scale_log2 it is the exponent of the weight. unit is log2(e) / scale_log2. Hidden ones stay.
__device__ __forceinline__ float far_product(float s, float scale, float unit, float lse) {
    return s == __int_as_float(0xff800000) ? s : (__fmul_rn(s, scale) - lse) * unit;
}

// The slope of ALiBi of a head: NaN if it is not finite.
__device__ __forceinline__ float slope_of(const Features &f, int b, int h) {
    const float x = ((const float *)f.slopes.data)[b * f.slopes.batch + h * f.slopes.head];
    return fabsf(x) < __int_as_float(0x7f800000) ? x : __int_as_float(0x7fffffff);
}
// It in units of log2, where it overflows nowhere: times 0 it is 0.
__device__ __forceinline__ float slope_log2(float slope) { return fmaxf(fminf(slope * kLog2E, 3.4e38f), -3.4e38f); }

// Whether scores are more than dot products times the scale.
__device__ __forceinline__ bool changes(const Features &f) { return f.cap_in != 0 || f.bias.data || f.slopes.data; }

// The scores of one query head of a sequence. T is float, F16 or BF16: the type of a
// bias that is not float32.
template <class T> struct Scores {
    const Params &p;
    const Features &f;
    int b, h, diagonal;
    float slope; // of ALiBi
    const char *bias, *mask; // of row 0, key 0

    // Computed again for each tile: registers are short.
    __device__ __forceinline__ Scores(const Params &p, const Features &f, const Sequence &s, int batch, int query_head) : p(p), f(f) {
        b = again(batch), h = again(query_head), diagonal = s.diagonal;
        slope = f.slopes.data ? slope_of(f, b, h) : 0;
        bias = (const char *)f.bias.data + (b * f.bias.batch + h * f.bias.head) * bias_size();
        mask = (const char *)f.mask.data + (b * f.mask.batch + h * f.mask.head);
    }
    __device__ __forceinline__ int bias_size() const { return sizeof(T) == 4 || f.bias_wide ? 4 : 2; }

    // Whether the mask lets row i see key j.
    __device__ __forceinline__ bool takes_part(int i, int j) const { return !f.mask.data || mask[i * f.mask.row + j]; }

    __device__ __forceinline__ bool changes() const { return ::changes(f); }

    // Makes natural scores of the dot products of a tile if there are changes, else these stay. own is the lane's row g, walked
    // its column 2t. What lies outside the tensors becomes anything. Hidden scores are -inf; what the band hides stays.
    template <bool transposed, class Tiles> __device__ __forceinline__ void adjust(Tiles &s, int own, int walked) const {
        change_natural<transposed, false>(s, own, walked, [](int, int) { return 0.f; }, [](int, int, float) {});
    }
    // The same for backward: lse(n, e) is that of the element's row, for 16-bit types in units
    // of log2, and Inf for a row without weight. Makes weights of the dot products. slope(n, e, d) is told, where there is a softcap, by what a gradient of
    // the capped score is to be multiplied.
    template <bool transposed, class Tiles, class LSE, class Slope>
    __device__ __forceinline__ void weights(Tiles &s, int own, int walked, LSE lse, Slope slope) const {
        if constexpr (sizeof(T) == 4) return far_weights<transposed>(s, own, walked, lse, slope);
        change_log2<transposed>(s, own, walked, lse, slope);
#pragma unroll
        for (int n = 0; n < count_of<Tiles>; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[n][e] = exp2_approx(s[n][e]);
    }
    // The same of float32, and of a tile with rows that are far: lse is natural.
    template <bool transposed, class Tiles, class LSE, class Slope>
    __device__ __forceinline__ void far_weights(Tiles &s, int own, int walked, LSE lse, Slope slope) const {
        change_natural<transposed, true>(s, own, walked, lse, slope);
#pragma unroll
        for (int n = 0; n < count_of<Tiles>; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[n][e] = exp2_approx(s[n][e] * kLog2E);
    }

    template <bool transposed, class Tiles, class LSE, class Slope>
    __device__ __forceinline__ void change_log2(Tiles &s, int own, int walked, LSE lse, Slope told) const {
        if (f.cap_in != 0) {
#pragma unroll
            for (int n = 0; n < count_of<Tiles>; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float d;
                    const float x = tanh_of(s[n][e] * f.cap_in, d);
                    s[n][e] = fmaf(x, f.cap_out, -lse(n, e));
                    told(n, e, d);
                }
        } else {
#pragma unroll
            for (int n = 0; n < count_of<Tiles>; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[n][e] = fmaf(s[n][e], p.scale_log2, -lse(n, e));
        }
        if (f.bias.data) {
            if (f.bias_wide) add_bias<transposed, float, false>(s, own, walked);
            else add_bias<transposed, T, false>(s, own, walked);
        }
        if (f.slopes.data) add_slopes<transposed, false>(s, own, walked, 1, -slope_log2(slope));
        if (f.mask.data) hide<transposed>(s, own, walked);
    }

    // The first thing that is added to a product is added before it is rounded. Backward rounds as forward did, and takes
    // LSE off last: then its weights are those that LSE is the sum of. Far from 0 the product is rounded first, as LSE is.
    template <bool transposed, bool backward, class Tiles, class LSE, class Slope>
    __device__ __forceinline__ void change_natural(Tiles &s, int own, int walked, LSE lse, Slope told) const {
        float unit = p.scale;
        if (f.cap_in != 0) {
            unit = f.cap;
#pragma unroll
            for (int n = 0; n < count_of<Tiles>; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    float d;
                    s[n][e] = sizeof(T) == 4 ? fine_tanh(s[n][e] * f.cap_in, d) : tanh_of(s[n][e] * f.cap_in, d);
                    if (backward) told(n, e, d);
                }
        }
        if (f.bias.data) {
            if (sizeof(T) != 4 && f.bias_wide) add_bias<transposed, float, true>(s, own, walked, unit);
            else add_bias<transposed, T, true>(s, own, walked, unit);
            unit = 1;
        }
        if (f.slopes.data) add_slopes<transposed, true>(s, own, walked, unit, -slope), unit = 1;
        if (f.cap_in != 0 && unit != 1) {
#pragma unroll
            for (int n = 0; n < count_of<Tiles>; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) s[n][e] *= unit;
            unit = 1;
        }
        if (backward) {
#pragma unroll
            for (int n = 0; n < count_of<Tiles>; n++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const float own_lse = lse(n, e);
                    s[n][e] = is_far(own_lse) ? __fmul_rn(s[n][e], unit) - own_lse : fmaf(s[n][e], unit, -own_lse);
                }
        }
        if (f.mask.data) hide<transposed>(s, own, walked);
    }

    // s = s unit + by |key - row - diagonal|.
    template <bool transposed, bool natural, class Tiles> __device__ __forceinline__ void add_slopes(Tiles &s, int own, int walked, float unit, float by) const {
        const float distance = transposed ? own - walked - diagonal : walked - own - diagonal;
#pragma unroll
        for (int n = 0; n < count_of<Tiles>; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) {
                const int further = 8 * n + e % 2 - e / 2 * 8;
                const float away = fabsf(distance + (transposed ? -further : further));
                s[n][e] = natural ? fmaf(s[n][e], unit, by * away) : fmaf(by, away, s[n][e]);
            }
    }

    // s = s unit + bias if natural, else s + bias in units of log2.
    template <bool transposed, class B, bool natural, class Tiles>
    __device__ __forceinline__ void add_bias(Tiles &s, int own, int walked, float unit = 1) const {
        auto add = [&](float &x, float y) { x = natural ? fmaf(x, unit, y) : fmaf(y, kLog2E, x); };
        constexpr int size = sizeof(B) == 4 ? 4 : 2;
        own = again(own), walked = again(walked);
        const int rows = p.q_len - 1, keys = p.kv_len - 1;
        const int64_t step = f.bias.row * size;
        if (transposed) {
            const char *at[2] = {bias + min(own, keys) * size, bias + min(own + 8, keys) * size};
#pragma unroll
            for (int n = 0; n < count_of<Tiles>; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    add(s[n][e], narrow_bias<B>(at[e / 2] + min(walked + 8 * n + e % 2, rows) * step));
            return;
        }
        const char *at[2] = {bias + min(own, rows) * step, bias + min(own + 8, rows) * step};
        if (f.bias_pairs) {
#pragma unroll
            for (int n = 0; n < count_of<Tiles>; n++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const char *from = at[r] + min(walked + 8 * n, keys - 1) * size;
                    float x, y;
                    if constexpr (size == 4) {
                        const float2 both = *(const float2 *)from;
                        x = both.x, y = both.y;
                    } else {
                        const uint32_t both = *(const uint32_t *)from;
                        x = widen<B>(both & 0xffff), y = widen<B>(both >> 16);
                    }
                    add(s[n][2 * r], x);
                    add(s[n][2 * r + 1], y);
                }
            return;
        }
#pragma unroll
        for (int n = 0; n < count_of<Tiles>; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                add(s[n][e], narrow_bias<B>(at[e / 2] + min(walked + 8 * n + e % 2, keys) * size));
    }

    template <bool transposed, class Tiles> __device__ __forceinline__ void hide(Tiles &s, int own, int walked) const {
        const int rows = p.q_len - 1, keys = p.kv_len - 1;
        const float hidden = __int_as_float(0xff800000);
        own = again(own), walked = again(walked);
        if (transposed) {
            const char *at[2] = {mask + min(own, keys), mask + min(own + 8, keys)};
#pragma unroll
            for (int n = 0; n < count_of<Tiles>; n++)
#pragma unroll
                for (int e = 0; e < 4; e++)
                    if (!at[e / 2][min(walked + 8 * n + e % 2, rows) * f.mask.row]) s[n][e] = hidden;
            return;
        }
        const char *at[2] = {mask + min(own, rows) * f.mask.row, mask + min(own + 8, rows) * f.mask.row};
        if (f.mask_pairs) {
#pragma unroll
            for (int n = 0; n < count_of<Tiles>; n++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const uint16_t both = *(const uint16_t *)(at[r] + min(walked + 8 * n, keys - 1));
                    if (!(both & 0xff)) s[n][2 * r] = hidden;
                    if (!(both >> 8)) s[n][2 * r + 1] = hidden;
                }
            return;
        }
#pragma unroll
        for (int n = 0; n < count_of<Tiles>; n++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                if (!at[e / 2][min(walked + 8 * n + e % 2, keys)]) s[n][e] = hidden;
    }

    // Gives the weights that dropout drops the sign -, from which dropped and kept tell
    // them again, or makes them zeros: P is positive, and a NaN that the tensor cores or exp2 make is too.
    template <bool transposed, bool zeros = false, class Tiles> __device__ __forceinline__ void drop(Tiles &s, int own, int walked) const {
        if (!f.drop_below) return;
#pragma unroll
        for (int n = 0; n < count_of<Tiles>; n += 2) {
            const uint32_t dropped = drops<transposed>(own, walked + 8 * n);
#pragma unroll
            for (int i = n; i < n + 2 && i < count_of<Tiles>; i++)
#pragma unroll
                for (int e = 0; e < 4; e++) {
                    const uint32_t bit = dropped >> (transposed ? 8 * e + i - n : 16 * (i - n) + e / 2 * 8 + e % 2);
                    s[i][e] = zeros && bit & 1 ? 0 : __uint_as_float(__float_as_uint(s[i][e]) | (zeros ? 0 : bit << 31));
                }
        }
    }
    // Says which weights dropout drops of the lane's, of two times 8 columns: weight e of the n-th by bit 16 n + e / 2 * 8 + e % 2 or,
    // transposed, 8 e + n. A random counter serves eight keys of a row, which lanes have that tell each other: those of a quad or eight.
    template <bool transposed> __device__ __forceinline__ uint32_t drops(int own, int walked) const {
        const int lane = threadIdx.x % 32, t = lane % 4, g = lane / 4;
        if constexpr (transposed) {
            uint32_t mine = drops_of(random_words(f, b, h, walked + g / 4 * 8 + g % 2, own - g + g / 2 % 2 * 8), f.drop_below) << 8 * (g % 4);
            mine |= __shfl_xor_sync(~0u, mine, 4);
            mine |= __shfl_xor_sync(~0u, mine, 8); // of 8 columns
            const uint32_t other = __shfl_xor_sync(~0u, mine, 16);
            const uint32_t first = g < 4 ? mine : other, second = g < 4 ? other : mine;
            return (first >> g & 0x01010101) | (second >> g & 0x01010101) << 1;
        }
        return quad_drops(drops_of(random_words(f, b, h, own + t % 2 * 8, walked - 2 * t + t / 2 * 8), f.drop_below)) >> 2 * t;
    }
};

// A weight after drop: whether it is dropped; what is left of it, before keep.
__device__ __forceinline__ bool dropped(float weight) { return __float_as_int(weight) < 0; }
__device__ __forceinline__ float left_of(float weight) { return __int_as_float(max(__float_as_int(weight), 0)); }

// The sink of a head: -inf where there is none, NaN for Inf.
__device__ __forceinline__ float sink_of(const Features &f, int h) {
    if (!f.sink.data) return __int_as_float(0xff800000);
    const float x = ((const float *)f.sink.data)[h * f.sink.head];
    return x < __int_as_float(0x7f800000) ? x : __int_as_float(0x7fffffff);
}

// The end of a row, whose keys gave the natural maximum m, the sum of weights l and the sum o of weighted values:
// O = (o * mine + earlier * (the O of earlier keys)) / sum, of which the latter is not to be read where earlier is 0, and
// LSE = top + ln(sum). carried is LSE of the earlier keys: as a sink is, it is NaN for Inf, unless nothing joins them.
struct Shares { float mine, earlier, top, sum; };

__device__ __forceinline__ Shares shares(float m, float l, float sink, float carried) {
    const float none = __int_as_float(0xff800000);
    if (l == 0 && sink == none) return {0, carried == none ? 0.f : 1.f, carried, 1};
    if (l == 0) m = none;
    if (carried == -none) carried = __int_as_float(0x7fffffff);
    const float top = fmaxf(m, fmaxf(sink, carried)), mine = l == 0 ? 0 : expf(m - top), earlier = expf(carried - top);
    return {mine, earlier, top, l * mine + earlier + expf(sink - top)};
}

// The same for 16-bit types: O = o * scale + earlier * (the O of earlier keys).
struct Ending { float scale, earlier, lse; };

__device__ __forceinline__ Ending ending(const Features &f, float m, float l, int h, float carried) {
    const Shares x = shares(m, l, sink_of(f, h), carried);
    const float by = 1 / x.sum;
    return {x.mine * by * f.keep, x.earlier * by, x.top + logf(x.sum)};
}
