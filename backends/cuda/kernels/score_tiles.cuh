// Features of the kernels for compute capability 9.0a: softcaps, biases, masks and dropout masks. Each warp prefetches tiles
// of a bias or mask to shared memory. A prefetched tile is called staged. In forward kernels, lane 4g+t holds rows g and g+8
// of the warp's 16 rows, and keys 2t and 2t+1 of each 8 keys. In backward kernels, lane 4g+t holds keys g and g+8 of the
// warp's 16 keys, and rows 2t and 2t+1 of each 8 rows.
#pragma once
#include "score.cuh"
#include "sm90.cuh"
#include "tile.cuh"

// Returns tanh(x) for |x| < 0.4, exact enough for 16-bit scores.
__device__ __forceinline__ float tiny_tanh(float x) {
    const float y = x * x;
    return fmaf(x * y, fmaf(y, fmaf(y, -0.04830796f, 0.13289129f), -0.33332456f), x);
}

// Replaces each score s by tanh(x s). Usually all scores of a warp are small, and a short polynomial suffices.
template <int n> __device__ __forceinline__ void cap(float (&s)[n], float x) {
    float most = 0;
    each<n>([&](int i) { s[i] *= x, most = fmaxf(most, fabsf(s[i])); });
    float slope;
    if (__any_sync(~0u, !(most < 0.4f))) return each<n>([&](int i) { s[i] = tanh_of(s[i], slope); });
    each<n>([&](int i) { s[i] = tiny_tanh(s[i]); });
}

// Forward: turns dot products into capped scores in log2 units, by a polynomial if all scores of the warp are small.
struct Cap {
    float in, out, near, mid, a, b, c; // near, mid: dot products of smaller magnitude can use factor() or small_tanh; a, b, c: coefficients of factor()'s polynomial
    __device__ __forceinline__ Cap(const Features &f) : in(f.cap_in), out(f.cap_out) {
        const bool usual = in > 1e-6f && in < 1e4f; // the powers of `in` neither overflow nor underflow
        near = usual ? fminf(0.25f / in, 1e18f) : -1, mid = usual ? fminf(0.6f / in, 1e18f) : -1;
        a = in * out, b = -0.33324607f * a * in * in, c = 0.12877114f * a * in * in * in * in;
    }
    // Caps scores and returns false. But if all magnitudes in the warp are below near, leaves the scores unchanged and returns
    // true. The caller then multiplies each score s by factor(s) when it computes exponents. Because tanh is monotonic, the
    // largest uncapped score of a row is also the largest capped score.
    template <int n> __device__ __forceinline__ bool apply(float (&s)[n]) const {
        float most[4] = {};
        each<n>([&](int i) { most[i % 4] = fmaxf(most[i % 4], fabsf(s[i])); });
        const float all = fmaxf(fmaxf(most[0], most[1]), fmaxf(most[2], most[3]));
        if (__all_sync(~0u, all < near)) return true; // fmaxf ignores NaN, which stays NaN in factor()
        if (__all_sync(~0u, all < mid)) {
            each<n>([&](int i) { s[i] = small_tanh(s[i] * in) * out; });
        } else {
            float slope;
            each<n>([&](int i) { s[i] = tanh_of(s[i] * in, slope) * out; });
        }
        return false;
    }
    // Returns the factor that caps a small score and converts it to log2 units. The factor for -inf is Inf, so a hidden score
    // stays -inf.
    __device__ __forceinline__ float factor(float s) const {
        const float y = s * s;
        return fmaf(fmaf(c, y, b), y, a);
    }
};

// Forward: copies 16 rows of a bias or mask, beginning with row number `row`, to a warp's shared memory, one tile of keys at
// a time. The tiles are swizzled against bank conflicts.
template <int size, int keys> struct SideRows {
    static constexpr int pitch = size * keys, chunks = pitch / 16, at_once = 32 / chunks; // at_once: rows that the warp copies at once
    const char *own; // address of the lane's 16-byte chunk for the first tile of keys: in the first row that the lane copies if `whole`, else in row 0
    int64_t step;    // bytes between rows
    bool whole;      // the tensor has all 16 rows
    SideRows() = default;
    __device__ __forceinline__ SideRows(const View &x, const Params &p, int b, int h, int row, int lane) {
        whole = row + 16 <= p.q_len;
        own = (const char *)x.data + (b * x.batch + h * x.head) * size + lane % chunks * 16;
        if (whole) own += (row + lane / chunks) * x.row * size;
        step = x.row * size;
    }
    // Starts the copy of a tile, which overwrites the previous tile. Before a lane calls copy(), it must have read the
    // previous tile.
    __device__ __forceinline__ void copy(uint32_t to, const View &x, const Params &p, int row, int key, int lane) const {
        const int c = lane % chunks, r0 = lane / chunks;
        __syncwarp(); // all lanes have read the previous contents
        if (whole && key + keys <= p.kv_len) {
            const char *from = own + key * size;
            each<16 / at_once>([&](int i) {
                const int r = i * at_once + r0;
                copy_async16(to + r * pitch + ((c ^ swizzle<pitch>(r)) << 4), from + i * at_once * step, 16);
            });
        } else {
            const int bytes = max(0, min(16, (p.kv_len - key) * size - 16 * c));
#pragma unroll 1
            for (int r = r0; r < 16; r += at_once) {
                const char *from = whole ? own + (r - r0) * step : own + min(row + r, p.q_len - 1) * step;
                copy_async16(to + r * pitch + ((c ^ swizzle<pitch>(r)) << 4), bytes ? from + key * size : (const char *)x.data, bytes);
            }
        }
        copy_commit();
    }
};

// Sets s to s * scale + the staged bias. from is the address of the bias in shared memory.
template <class T, int keys> __device__ __forceinline__ void add_staged(float (&s)[keys / 2], float scale, uint32_t from, int lane) {
    const uint32_t own = from + place<2 * keys>(lane, false);
    each<keys / 16>([&](int i) {
        uint32_t y[4];
        load_matrix(y, at<2 * keys>(own, 0, 2 * i));
        each<8>([&](int j) { s[8 * i + j] = fmaf(s[8 * i + j], scale, widen<T>(y[j / 2] >> 16 * (j % 2) & 0xffff)); });
    });
}

// Sets each nonzero byte of y, which holds 16 elements of a mask, to 1.
__device__ __forceinline__ void ones(uint32_t (&y)[4]) {
    if ((y[0] | y[1] | y[2] | y[3]) & 0xfefefefe) each<4>([&](int j) { y[j] = __vcmpne4(y[j], 0) & 0x01010101; });
}

// Loads the staged mask of the lane's two rows as bits. Of each 16 keys, the lane holds four keys: b = 0 to 3. shown[0] and
// shown[1] are for the two rows. Bit 8 b + c is for the lane's key b among keys 16 c to 16 c + 15.
template <int keys> __device__ __forceinline__ void staged_rows(uint32_t (&shown)[2], uint32_t from, int lane) {
    const uint32_t own = from + place<keys>(lane, false);
    uint32_t bits[2] = {}; // one word per row; bit 8 b + c is for key 16 c + 4 t + b
    each<keys / 32>([&](int i) {
        uint32_t y[4];
        load_matrix(y, at<keys>(own, 0, 2 * i));
        ones(y);
        bits[0] += (y[0] << 2 * i) + (y[2] << (2 * i + 1)), bits[1] += (y[1] << 2 * i) + (y[3] << (2 * i + 1));
    });
    each<2>([&](int r) { // fetch the bits from the lanes that loaded them
        const int source = lane & 28 | lane % 4 / 2;
        const uint32_t x = __shfl_sync(~0u, bits[r], source), y = __shfl_sync(~0u, bits[r], source + 2);
        shown[r] = __byte_perm(x, y, lane & 1 ? 0x7632 : 0x5410);
    });
}
// Sets masked scores to -inf.
template <int keys> __device__ __forceinline__ void hide_staged(float (&s)[keys / 2], const uint32_t (&shown)[2]) {
    each<keys / 2>([&](int i) {
        constexpr int blocks = keys / 16;
        const int r = i / (4 * blocks), b = i / blocks % 4, c = i % blocks;
        float &x = s[8 * c + b / 2 * 4 + 2 * r + b % 2];
        x = shown[r] & 1u << (8 * b + c) ? x : -infinity;
    });
}

// Constants of push_kept. most is the largest 16-bit random number that drops its weight, and less is -most modulo 2^16.
// Both halves of each word hold the same 16 bits.
struct Limit {
    uint32_t most, less;
    __device__ __forceinline__ Limit(uint32_t below) { // below is not 0
        const uint32_t x = (below >> 16) - 1;
        most = x * 0x10001, less = __vneg2(most);
    }
};
// Shifts kept left by one bit. Then sets bit 0 if the lower half of `word` keeps a weight, and bit 16 if the upper half of
// `word` keeps a weight.
__device__ __forceinline__ void push_kept(uint32_t &kept, uint32_t word, Limit x) { kept = 2 * kept + __viaddmin_u16x2(__vmaxu2(word, x.most), x.less, 0x10001); }

// Forward: pushes the bits of keys 0, 1, 4 and 5 to x, and the bits of keys 2, 3, 6 and 7 to y. w holds the random words of
// these eight keys.
__device__ __forceinline__ void push_kept(uint32_t &x, uint32_t &y, uint4 w, Limit limit) { push_kept(x, w.y, limit), push_kept(x, w.x, limit), push_kept(y, w.w, limit), push_kept(y, w.z, limit); }

// Philox in parts. In the first three rounds of a counter {key / 8, row, head, batch}, most products depend only on the key
// or only on the row. These products are computed once, as key = key_words(...) and row = row_words(...). The words after the
// third round are {hi(b) ^ key.y, lo(b), lo(row) ^ key.z, key.w}, where b = kPhilox1 (hi(row) ^ key.x). hi() and lo() are the
// halves of a 64-bit number.
constexpr uint32_t kPhilox0 = 0xD2511F53, kPhilox1 = 0xCD9E8D57, kWeyl0 = 0x9E3779B9, kWeyl1 = 0xBB67AE85;
__device__ __forceinline__ uint32_t high(uint64_t x) { return x >> 32; }
struct Counter { uint32_t seed[2], batch, head, row, keys; };
__device__ __forceinline__ Counter counter_of(const Features &f, int b, int h, int i, int j) {
    return {{f.seed[0], f.seed[1]}, b + f.first_batch, h + f.first_head, i + f.first_row, (j + f.first_key) >> 3};
}
__device__ __forceinline__ uint4 key_words(const Counter &c) {
    const uint64_t y = (uint64_t)kPhilox1 * c.head, a = (uint64_t)kPhilox0 * c.keys;
    const uint64_t z = (uint64_t)kPhilox1 * (high(a) ^ c.batch ^ c.seed[1]);
    const uint64_t x = (uint64_t)kPhilox0 * (high(z) ^ (uint32_t)y ^ (c.seed[0] + kWeyl0));
    return {(uint32_t)a ^ (c.seed[1] + kWeyl1), (uint32_t)z ^ (c.seed[0] + 2 * kWeyl0), high(x) ^ (c.seed[1] + 2 * kWeyl1), (uint32_t)x};
}
__device__ __forceinline__ uint64_t row_words(const Counter &c) { return (uint64_t)kPhilox0 * (high((uint64_t)kPhilox1 * c.head) ^ c.row ^ c.seed[0]); }

// Turns the key_words of n counters into random words. Calls between(i) after step i of five steps, so that the caller can
// interleave other work.
template <int n, class F> __device__ __forceinline__ void last_rounds(uint4 (&c)[n], uint64_t row, const uint32_t (&seed)[2], F between) {
    each<n>([&](int i) {
        const uint64_t y = (uint64_t)kPhilox1 * (high(row) ^ c[i].x);
        c[i] = {high(y) ^ c[i].y, (uint32_t)y, (uint32_t)row ^ c[i].z, c[i].w};
    });
    between(0);
    each<4>([&](int r) {
        const uint32_t k0 = seed[0] + (3 + r) * kWeyl0, k1 = seed[1] + (3 + r) * kWeyl1;
        each<n>([&](int i) {
            const uint64_t a = (uint64_t)kPhilox0 * c[i].x, b = (uint64_t)kPhilox1 * c[i].z;
            c[i] = {high(b) ^ c[i].y ^ k0, (uint32_t)b, high(a) ^ c[i].w ^ k1, (uint32_t)a};
        });
        between(1 + r);
    });
}

// Forward: writes the key_words of a tile's keys to the warp's shared memory. `key` is the tile's first key.
template <int keys> __device__ __forceinline__ void share_key_words(const Features &f, uint32_t side, int b, int h, int key, int lane) {
    __syncwarp(); // all lanes have read the previous contents
    if (lane < keys / 8) {
        const uint4 x = key_words(counter_of(f, b, h, 0, key + 8 * lane));
        asm volatile("st.shared.v4.b32 [%0], {%1,%2,%3,%4};" ::"r"(side + 16 * lane), "r"(x.x), "r"(x.y), "r"(x.z), "r"(x.w) : "memory");
    }
    __syncwarp(); // all lanes have written
}
// Forward: sets kept to the dropout masks of the lane's two rows. The four lanes of a quad exchange bits of x and y, the
// results of push_kept.
__device__ __forceinline__ void share_kept(uint32_t (&kept)[2], uint32_t x, uint32_t y, int lane) {
    const bool odd = lane & 1, upper = lane & 2;
    const uint32_t low = 0x5410, high = 0x7632; // selectors of __byte_perm for the words' lower and upper halves
    const uint32_t own = __byte_perm(x, y, upper ? high : low), got = __shfl_xor_sync(~0u, __byte_perm(x, y, upper ? low : high), 2);
    const uint32_t which = (odd ? high : low) ^ (upper ? 0x4444 : 0); // puts the half of the lower-numbered lane first
    const uint32_t same = __byte_perm(own, got, which), other = __shfl_xor_sync(~0u, __byte_perm(own, got, which ^ 0x2222), 1);
    kept[0] = odd ? other : same, kept[1] = odd ? same : other;
}
// Forward: sets kept to the dropout masks of the lane's rows g and g+8 in a tile. In a row's mask, bit 16 i + 2 j + e (i and
// e: 0 or 1; j < keys / 16) is 1 if the row keeps key 8 (2 j + i) + e, counted from the lane's first key.
//
// One Philox counter yields the random bits of eight keys of a row. Four lanes hold the weights of these keys. Each lane
// computes the counters of one row, g + t % 2 * 8, and then the lanes exchange bits. own is row_words of this row. The lane
// computes `once` counters at a time, and calls between(i) for i = 0 to 5 (keys / 16 / once) - 1.
template <int keys, int once, class F> __device__ __forceinline__ void kept_keys(uint32_t (&kept)[2], const Features &f, uint32_t side, const uint32_t (&seed)[2], uint64_t own, int lane, F between) {
    const Limit limit(f.drop_below);
    uint32_t x = 0, y = 0;
    each<keys / 16 / once>([&](int i) {
        uint4 c[once];
        each<once>([&](int j) {
            asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3}, [%4];" : "=r"(c[j].x), "=r"(c[j].y), "=r"(c[j].z), "=r"(c[j].w) : "r"(side + (2 * (keys / 16 - 1 - i * once - j) + lane % 4 / 2) * 16));
        });
        last_rounds(c, own, seed, [&](int r) { between(5 * i + r); });
        each<once>([&](int j) { push_kept(x, y, c[j], limit); });
    });
    share_kept(kept, x, y, lane);
}
// Like the function above, but without precomputed key_words and row_words.
template <int keys> __device__ __forceinline__ void kept_keys(uint32_t (&kept)[2], const Features &f, int b, int h, int row, int key, int lane) {
    const Limit limit(f.drop_below);
    uint32_t x = 0, y = 0;
    each<keys / 16>([&](int i) { push_kept(x, y, random_words(f, b, h, row + lane % 2 * 8, key + 16 * (keys / 16 - 1 - i) + lane % 4 / 2 * 8), limit); });
    share_kept(kept, x, y, lane);
}
template <int keys> __device__ __forceinline__ void keep_pairs(float (&s)[keys / 2], const uint32_t (&kept)[2]) {
    each<keys / 2>([&](int i) {
        constexpr int blocks = keys / 8;
        const int r = i / (2 * blocks), half = i / blocks % 2, bit = i % blocks; // elements in the order of their bits
        float &x = s[(bit / 2 * 2 + half) * 4 + 2 * r + bit % 2];
        x = kept[r] & 1u << (16 * half + bit) ? x : 0;
    });
}

// Backward: starts a copy of a 16-bit bias, for `rows` rows and the warp's 16 keys, swizzled against bank conflicts. The copy
// overwrites the previous copy. Before a lane calls bias_chunk, it must have read the previous copy.
template <int rows> __device__ __forceinline__ void bias_chunk(uint32_t to, const Params &p, const Features &f, int b, int h, int row, int key, int lane) {
    const uint16_t *from = (const uint16_t *)f.bias.data + b * f.bias.batch + h * f.bias.head + key + lane % 2 * 8;
    const int bytes = 2 * max(0, min(8, p.kv_len - key - lane % 2 * 8));
    __syncwarp(); // all lanes have read the previous contents
    each<rows / 16>([&](int i) {
        const int r = 16 * i + lane / 2;
        copy_async16(to + r * 32 + ((lane & 1) ^ (r >> 2 & 1)) * 16, bytes ? from + min(row + r, p.q_len - 1) * f.bias.row : f.bias.data, bytes);
    });
    copy_commit();
}

// Adds a bias to the scores of 16 rows, in log2 units. The bias was copied by bias_chunk. `row` is the first of the 16 rows,
// counted from the first row of the copy.
template <class T> __device__ __forceinline__ void staged_bias(float (&x)[8], uint32_t from, int row, int lane) {
    const int r = row + lane / 16 * 8 + lane % 8;
    uint32_t y[4];
    load_matrix_transposed(y, from + r * 32 + ((lane / 8 & 1) ^ (r >> 2 & 1)) * 16);
    each<8>([&](int j) { x[j] = fmaf(widen<T>(y[j / 2] >> 16 * (j % 2) & 0xffff), kLog2E, x[j]); });
}

// Backward: starts a copy of a mask, for a tile's rows and the warp's 16 keys. The copy overwrites the previous copy. Before a
// lane calls mask_chunk, it must have read the previous copy.
template <int rows> __device__ __forceinline__ void mask_chunk(uint32_t to, const Params &p, const View &x, int b, int h, int row, int key, int lane) {
    const uint8_t *from = (const uint8_t *)x.data + b * x.batch + h * x.head + key;
    const int bytes = max(0, min(16, p.kv_len - key));
    __syncwarp(); // all lanes have read the previous contents
    each<rows / 32>([&](int i) { copy_async16(to + (32 * i + lane) * 16, bytes ? from + min(row + 32 * i + lane, p.q_len - 1) * x.row : x.data, bytes); });
    copy_commit();
}

// Reads the mask that mask_chunk has copied, and clears the bits of hidden pairs (row, key) in shown. A transposed load gives
// each lane the mask bytes of two adjacent keys for some rows. The lane packs these bytes to bits. Shuffles then bring the
// bits to the lanes that hold these keys.
template <int rows> __device__ __forceinline__ void staged_mask(uint32_t (&shown)[2], uint32_t from, int lane) {
    uint32_t bits[2] = {}; // one word per 64 rows: two bytes for the first key, two for the second
    each<rows / 32>([&](int i) {
        uint32_t y[4];
        load_matrix_transposed(y, from + (32 * i + lane) * 16);
        ones(y);
        uint32_t x = y[0] + 4 * y[1] + 16 * y[2] + 64 * y[3];
        x += x >> 15;
        bits[i / 2] = i % 2 ? __byte_perm(bits[i / 2], x, 0x5140) : x;
    });
    const int source = lane / 8 * 4 + lane % 4, which = lane & 4 ? 0x7632 : 0x5410;
    each<2>([&](int half) {
        const uint32_t x = __shfl_sync(~0u, bits[0], source + 16 * half), y = rows > 64 ? __shfl_sync(~0u, bits[1], source + 16 * half) : 0;
        shown[half] &= __byte_perm(x, y, which);
    });
}

// Backward: sets kept to the dropout masks of the lane's keys `key` and `key`+8 in a tile of rows; `row` is the lane's first
// row. In a key's mask, bit kept_bit<rows>(i, j) (i < rows / 16, j < 4) is for row 16 i + 8 (j / 2) + j % 2, counted from
// `row`.
//
// One Philox counter yields the random bits of eight keys of a row. Eight lanes hold the weights of these keys. Each lane
// computes the counters of a quarter of the rows, for the first or the last eight of the warp's keys. Then the lanes
// exchange bits.
template <int rows> __device__ __forceinline__ constexpr int kept_bit(int i, int j) { return 512 / rows * i + j; }
template <int rows> __device__ __forceinline__ void kept_pairs(uint32_t (&kept)[2], const Features &f, int b, int h, int row, int key) {
    const int g = threadIdx.x % 32 / 4;
    const Limit limit(f.drop_below);
    uint32_t x[4] = {}; // x[j] has the bits of keys j and j + 4 of each counter
    each<rows / 16>([&](int n) {
        const int i = rows / 16 - 1 - n; // the last row first, as push_kept shifts left
        const uint4 w = random_words(f, b, h, row + (g % 2 * 2 + g / 4) * (rows / 4) + 16 * (i / 4) + 8 * (i / 2 % 2) + i % 2, key - g + g / 2 % 2 * 8);
        push_kept(x[0], w.x, limit), push_kept(x[1], w.y, limit), push_kept(x[2], w.z, limit), push_kept(x[3], w.w, limit);
    });
    // Three steps, one for each bit of g. In each step, two lanes that differ in this bit exchange bytes, so that each lane
    // gets the bytes of its own keys.
    const uint32_t low = 0x5410, high = 0x7632; // selectors of __byte_perm for the words' lower and upper halves
    auto swap = [&](uint32_t x, uint32_t y, uint32_t mine, uint32_t flip, int lanes, uint32_t &got) {
        got = __shfl_xor_sync(~0u, __byte_perm(x, y, mine ^ flip), lanes);
        return __byte_perm(x, y, mine);
    };
    uint32_t got, x2, y2;
    const uint32_t x1 = swap(x[0] + (x[1] << 8), x[2] + (x[3] << 8), g & 4 ? high : low, 0x2222, 16, got);
    x2 = swap(x1, got, (g & 2 ? high : low) ^ (g & 4 ? 0x4444 : 0), 0x2222, 8, y2);
    const uint32_t x3 = swap(x2, y2, (g & 1 ? 0x7531 : 0x6420) ^ (g & 2 ? 0x4444 : 0), 0x1111, 4, got);
    const uint32_t first = g & 1 ? got : x3, last = g & 1 ? x3 : got;
    kept[0] = __byte_perm(first, last, low), kept[1] = __byte_perm(first, last, high);
}
