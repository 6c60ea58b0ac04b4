// Features of attention calls. Kernels handle them in four places:
//
//	at the start                        sequence() and key_place() find a sequence's rows and keys
//	before a tile's row maximum         Scores::adjust() applies softcap, bias, ALiBi and mask to the scores
//	after the sum of a tile's weights   Scores::drop() applies dropout
//	at the end of a row                 shares() or ending() merges the sink and the result for earlier keys
//
// adjust returns scores in natural units, because in log2 units a finite bias may overflow. Backward kernels of 16-bit
// types use log2 units and subtract LSE before they add bias and ALiBi, except in tiles with far rows (see far.cuh).
// Float32 backward kernels subtract LSE last.
//
// In a tile of scores, lane 4g+t (g < 8, t < 4) holds columns 2t and 2t+1 of each 8 columns, in rows g and g+8. If a
// kernel's warps own keys, tiles are transposed: their rows are keys, and their columns query rows. All lanes of a warp
// take the same branches on features. These branches enclose the loops over a tile.
#pragma once
#include "far.cuh"
#include "params.cuh"

constexpr float kLog2E = 1.4426950408889634f, kLn2 = 0.69314718f;
constexpr float kLog2ERest = 1.925963e-8f; // log2(e) - kLog2E
constexpr int kReach = 1 << 30;

// A sequence has query rows 0 to rows-1 and keys 0 to keys-1. Its row 0 is row q0 of batch q_batch of the tensors. Its key 0
// is row key0 of batch kv_batch. Rows `rows` to row_end-1 and keys `keys` to key_end-1 are padding, whose results are 0. Row i
// sees keys i+lo to i+hi. The diagonal of row i is key i+diagonal.
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

// Extent returns the position, lengths, lo and hi of sequence b. Without features, all sequences have the same lengths, lo
// and hi.
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

// Returns the index in v of the first element of key j of sequence b and KV head h.
__device__ __forceinline__ int64_t key_place(const View &v, const Features &f, const Sequence &s, int b, int h, int j) {
    if (!f.page) return s.kv_batch * v.batch + h * v.head + (s.key0 + j) * v.row;
    const int page = (int)((uint64_t)(uint32_t)j * f.page_factor >> f.page_shift);
    return f.pages[(int64_t)b * f.page_width + page] * v.batch + h * v.head + (j - page * f.page) * v.row;
}

// Returns x. The compiler recomputes expressions of the returned value instead of keeping their results in registers.
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

// Returns 16 random bits for each of the eight keys from key j/8*8 on, in row i. The lower halves of the four words are for
// the first four keys, the upper halves for the last four keys.
__device__ __forceinline__ uint4 random_words(const Features &f, int b, int h, int i, int j) {
    return philox({(j + f.first_key) >> 3, i + f.first_row, h + f.first_head, b + f.first_batch}, f.seed[0], f.seed[1]);
}

// Returns a bit mask of the dropped keys among the eight keys of w, a result of random_words. The lower half of `below` is 0.
__device__ __forceinline__ uint32_t drops_of(uint4 w, uint32_t below) {
    const uint32_t words[4] = {w.x, w.y, w.z, w.w};
    uint32_t dropped = 0;
#pragma unroll
    for (int e = 0; e < 4; e++) dropped |= (words[e] << 16 < below) << e | (words[e] < below) << (e + 4);
    return dropped;
}

// Combines the masks that the four lanes of a quad got from drops_of. Bit 8 r + j of the result is bit j of lane r's mask.
__device__ __forceinline__ uint32_t quad_drops(uint32_t mine) {
    mine <<= 8 * (threadIdx.x % 4);
    mine |= __shfl_xor_sync(~0u, mine, 1);
    return mine | __shfl_xor_sync(~0u, mine, 2);
}

// Returns tanh(x) for |x| < 0.6.
__device__ __forceinline__ float small_tanh(float x) {
    const float y = x * x;
    return fmaf(x * y, fmaf(y, fmaf(y, fmaf(y, fmaf(y, -0.00589516f, 0.02079597f), -0.05378383f), 0.13331924f), -0.33333298f), x);
}

// Returns tanh(x), and sets slope to 1 - tanh(x)^2 without cancellation. For |x| < 0.6, the difference 1 - e would lose bits,
// so a polynomial computes tanh.
__device__ __forceinline__ float tanh_of(float x, float &slope) {
    const float a = fabsf(x), e = exp2_approx(-2 * kLog2E * a), r = __fdividef(1, 1 + e), small = small_tanh(x);
    slope = 4 * e * r * r;
    return a < 0.6f ? small : copysignf((1 - e) * r, x);
}

// Like tanh_of, but precise enough for float32 scores. The exponential e is corrected for the rounding of the exponent. For
// |x| >= 0.6, errors of e and r affect only the small term 2 e r. For |x| < 0.6, slope is rounded only once.
__device__ __forceinline__ float fine_tanh(float x, float &slope) {
    const float a = fabsf(x) > 64 ? 64 : fabsf(x), exponent = -2 * kLog2E * a; // keeps NaN
    const float rest = fmaf(-2 * kLog2E, a, -exponent) - 2 * kLog2ERest * a, power = exp2_approx(exponent);
    const float e = fmaf(power, rest * kLn2, power), r = __frcp_rn(1 + e), t = tanh_of(x, slope);
    slope = a < 0.6f ? fmaf(-t, t, 1) : 4 * e * r * r;
    return a < 0.6f ? t : copysignf(fmaf(-2 * e, r, 1), x);
}

// Returns the difference natural * log2(e) - rounded, where rounded > 0 is natural * log2(e) rounded to float32. Returns 0 if
// the difference is more than a rounding error.
__device__ __forceinline__ float lacking(float natural, float rounded) {
    const float x = fmaf(natural, kLog2E, -rounded) + natural * kLog2ERest;
    return fabsf(x) <= rounded * 1e-6f ? x : 0;
}

// Returns the bias element of type T at an address.
template <class T> __device__ __forceinline__ float narrow_bias(const char *at) { return widen<T>(*(const uint16_t *)at); }
template <> __device__ __forceinline__ float narrow_bias<float>(const char *at) { return *(const float *)at; }

// A lane's part of a tile of scores is an array [columns/8][4]. Flat gives this shape to the sums of wgmma, an array [n].
template <int n> struct Flat {
    float (&x)[n];
    __device__ __forceinline__ float *operator[](int i) const { return x + 4 * i; }
};
template <class Tiles> constexpr int count_of = 0; // number of groups of 8 columns
template <int n> constexpr int count_of<float[n][4]> = n;
template <int n> constexpr int count_of<const Flat<n>> = n / 4;

// In backward kernels of 16-bit types, the LSE of a far row (see far.cuh) is replaced by kFarLSE. The weights of such a row
// are computed from the row's LSE in natural units.
constexpr uint32_t kFarLSE = 0x80000000; // -0; stat_of_lse returns it for no other row
__device__ __forceinline__ bool is_far_lse(float lse) { return __float_as_uint(lse) == kFarLSE; }
// Converts a natural LSE to log2 units. Returns Inf for a row without weights, and kFarLSE if the row is far or lse is NaN.
__device__ __forceinline__ float stat_of_lse(float lse) {
    const float x = lse * kLog2E + 0.f; // not -0
    return lse == __int_as_float(0xff800000) ? __int_as_float(0x7f800000) : fabsf(x) < kFar ? x : __uint_as_float(kFarLSE);
}
// Returns the base-2 logarithm of a weight in a far row, divided by scale_log2. s is the dot product, lse the row's LSE in
// natural units, and unit is log2(e) / scale_log2. If s is -inf, the pair is hidden, and the result is -inf.
__device__ __forceinline__ float far_product(float s, float scale, float unit, float lse) {
    return s == __int_as_float(0xff800000) ? s : (__fmul_rn(s, scale) - lse) * unit;
}

// Returns a head's ALiBi slope, or NaN if the slope is not finite.
__device__ __forceinline__ float slope_of(const Features &f, int b, int h) {
    const float x = ((const float *)f.slopes.data)[b * f.slopes.batch + h * f.slopes.head];
    return fabsf(x) < __int_as_float(0x7f800000) ? x : __int_as_float(0x7fffffff);
}
// Returns a slope in log2 units, clamped to finite numbers so that its product with distance 0 is 0.
__device__ __forceinline__ float slope_log2(float slope) { return fmaxf(fminf(slope * kLog2E, 3.4e38f), -3.4e38f); }

// Reports whether softcap, bias or ALiBi changes scores.
__device__ __forceinline__ bool changes(const Features &f) { return f.cap_in != 0 || f.bias.data || f.slopes.data; }

// Modifies the scores of one query head of a sequence. T is the problem's type: float, F16 or BF16. A bias has type T, or
// float32 if Features::bias_wide is 1.
template <class T> struct Scores {
    const Params &p;
    const Features &f;
    int b, h, diagonal;
    float slope; // ALiBi slope of the head
    const char *bias, *mask; // addresses of the elements of row 0, key 0

    // Kernels construct Scores anew for each tile, to save registers.
    __device__ __forceinline__ Scores(const Params &p, const Features &f, const Sequence &s, int batch, int query_head) : p(p), f(f) {
        b = again(batch), h = again(query_head), diagonal = s.diagonal;
        slope = f.slopes.data ? slope_of(f, b, h) : 0;
        bias = (const char *)f.bias.data + (b * f.bias.batch + h * f.bias.head) * bias_size();
        mask = (const char *)f.mask.data + (b * f.mask.batch + h * f.mask.head);
    }
    __device__ __forceinline__ int bias_size() const { return sizeof(T) == 4 || f.bias_wide ? 4 : 2; }

    // Reports whether the mask shows key j to row i.
    __device__ __forceinline__ bool takes_part(int i, int j) const { return !f.mask.data || mask[i * f.mask.row + j]; }

    __device__ __forceinline__ bool changes() const { return ::changes(f); }

    // Turns a tile's dot products into scores in natural units. Callers call adjust only if changes() is true. own is the
    // index of the lane's row g in the sequence. walked is the index of the lane's column 2t in the sequence. Masked scores
    // become -inf. lo and hi are not applied. Scores of rows or keys outside the tensors become arbitrary.
    template <bool transposed, class Tiles> __device__ __forceinline__ void adjust(Tiles &s, int own, int walked) const {
        change_natural<transposed, false>(s, own, walked, [](int, int) { return 0.f; }, [](int, int, float) {});
    }
    // For backward kernels: turns dot products into weights. lse(n, e) returns the LSE of element s[n][e]'s query row, in
    // natural units for float32, else in log2 units. For a row without weights lse returns Inf. With a softcap, weights()
    // calls slope(n, e, d), where d is the derivative of the softcap at s[n][e].
    template <bool transposed, class Tiles, class LSE, class Slope>
    __device__ __forceinline__ void weights(Tiles &s, int own, int walked, LSE lse, Slope slope) const {
        if constexpr (sizeof(T) == 4) return far_weights<transposed>(s, own, walked, lse, slope);
        change_log2<transposed>(s, own, walked, lse, slope);
#pragma unroll
        for (int n = 0; n < count_of<Tiles>; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[n][e] = exp2_approx(s[n][e]);
    }
    // Like weights, but lse(n, e) returns natural units for every type. Used for float32, and for tiles with far rows (see
    // far.cuh).
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

    // Computes scores in natural units and, if backward, subtracts LSE. At each step, the score is s * unit. The first
    // addition to a score is a fused multiply-add with unit, so the product s * unit is not rounded. Forward and backward
    // kernels thus round scores in the same way. In far rows (see far.cuh), s * unit is rounded before LSE is subtracted.
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

    // If natural, sets s to s * unit + x, where x = by * |key - row - diagonal| is the ALiBi term. If not, adds x to s.
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

    // If natural, sets s to s * unit + bias. If not, adds the bias in log2 units to s.
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

    // Applies dropout to a tile of weights. If `zeros`, dropped weights become 0. Otherwise their sign bits are set; the
    // functions dropped() and left_of() read these bits. The other weights have sign bit 0, even if they are NaN.
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
    // Returns a bit mask of the lane's dropped weights in two groups of 8 columns. The lane has weights e = 0 to 3 of groups
    // n = 0 and 1. Weight e of group n has bit 16 n + e / 2 * 8 + e % 2 or, if transposed, bit 8 e + n. One call of Philox
    // yields the random bits of eight keys of a row. The weights of these keys are in four lanes or, if transposed, in eight
    // lanes. Each lane calls Philox once, for a different row or different keys. Then the lanes exchange bits.
    template <bool transposed> __device__ __forceinline__ uint32_t drops(int own, int walked) const {
        const int lane = threadIdx.x % 32, t = lane % 4, g = lane / 4;
        if constexpr (transposed) {
            uint32_t mine = drops_of(random_words(f, b, h, walked + g / 4 * 8 + g % 2, own - g + g / 2 % 2 * 8), f.drop_below) << 8 * (g % 4);
            mine |= __shfl_xor_sync(~0u, mine, 4);
            mine |= __shfl_xor_sync(~0u, mine, 8);
            const uint32_t other = __shfl_xor_sync(~0u, mine, 16);
            const uint32_t first = g < 4 ? mine : other, second = g < 4 ? other : mine;
            return (first >> g & 0x01010101) | (second >> g & 0x01010101) << 1;
        }
        return quad_drops(drops_of(random_words(f, b, h, own + t % 2 * 8, walked - 2 * t + t / 2 * 8), f.drop_below)) >> 2 * t;
    }
};

// dropped reports whether Scores::drop has set the weight's sign bit, so the weight is dropped. left_of returns 0 for a
// dropped weight, else the weight. Neither function multiplies by Features::keep.
__device__ __forceinline__ bool dropped(float weight) { return __float_as_int(weight) < 0; }
__device__ __forceinline__ float left_of(float weight) { return __int_as_float(max(__float_as_int(weight), 0)); }

// Returns a head's sink, -inf if the call has no sinks, or NaN if the sink is Inf.
__device__ __forceinline__ float sink_of(const Features &f, int h) {
    if (!f.sink.data) return __int_as_float(0xff800000);
    const float x = ((const float *)f.sink.data)[h * f.sink.head];
    return x < __int_as_float(0x7f800000) ? x : __int_as_float(0x7fffffff);
}

// shares() merges a row's softmax sums with the sink and with the result for earlier keys. m is the row's maximum in natural
// units, l the row's sum of weights, and carried the LSE of the earlier keys. If o is the row's weighted sum of values, then
//
//	O = (o * mine + earlier * (O of the earlier keys)) / sum      LSE = top + ln(sum)
//
// If `earlier` is 0, O of the earlier keys must not be read. A carried LSE of Inf counts as NaN, unless the row has neither
// keys nor a sink.
struct Shares { float mine, earlier, top, sum; };

__device__ __forceinline__ Shares shares(float m, float l, float sink, float carried) {
    const float none = __int_as_float(0xff800000);
    if (l == 0 && sink == none) return {0, carried == none ? 0.f : 1.f, carried, 1};
    if (l == 0) m = none;
    if (carried == -none) carried = __int_as_float(0x7fffffff);
    const float top = fmaxf(m, fmaxf(sink, carried)), mine = l == 0 ? 0 : expf(m - top), earlier = expf(carried - top);
    return {mine, earlier, top, l * mine + earlier + expf(sink - top)};
}

// Like Shares, but the factors include dropout's factor and the division by sum:
// O = o * scale + earlier * (O of the earlier keys).
struct Ending { float scale, earlier, lse; };

__device__ __forceinline__ Ending ending(const Features &f, float m, float l, int h, float carried) {
    const Shares x = shares(m, l, sink_of(f, h), carried);
    const float by = 1 / x.sum;
    return {x.mine * by * f.keep, x.earlier * by, x.top + logf(x.sum)};
}
