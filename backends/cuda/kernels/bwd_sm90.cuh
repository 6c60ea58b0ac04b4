// What a block of bwd_sm90 is: its shapes, its shared memory, what it works on.
#pragma once
#include "score.cuh"
#include "sm90.cuh"
#include "tile.cuh"

struct MapParams {
    TensorMap q, k, v, dout;
    Params p;
};

// Stands for -LSE that is NaN: P is Inf for a visible score, and 0 for -Inf.
constexpr float odd_lse = 2e38f;

// What an instance knows: no features; none, and p.splits parts of each group of query heads; where sequences lie;
// softcap and ALiBi too; all.
enum class Kind { plain, parts, layout, shaped, any };

// What a block works on.
struct Work {
    int batch, kv_head, key0, share; // the first key; which share of the columns
    int from, to, steps;             // tiles of rows that see some of these keys; visits, over all heads of the group
    int part;                        // of the group
    int hides, odd[2], lost;         // some of these rows do not see all of these keys; a warpgroup's keys were not finite; nor were rows
};
__device__ __forceinline__ int padded_rows(const Params &p) { return (p.q_len + 127) / 128 * 128; }
__device__ __forceinline__ int panels_of(const Params &p) { // of 64 columns of <dim>
    const int dim = max(p.dim, p.v_dim);
    return dim <= 64 ? 1 : dim <= 128 ? 2 : 4;
}

// What a loop body is made for.
template <bool x> struct Constant {
    __device__ constexpr operator bool() const { return x; }
};

template <Kind kind, class Type, int dim_, int columns_, int rows_, int stages_, int parts_> struct Shape {
    using T = Type;
    static constexpr bool split = kind == Kind::parts, features = kind >= Kind::layout, shapes = kind >= Kind::shaped, reads = kind == Kind::any;
    static constexpr int dim = dim_, rows = rows_, keys = 128, stages = stages_; // of Q and of dO
    static constexpr int columns = columns_; // of dK, dV and dQ, that a block sums up; others have the other ones
    static constexpr int parts = parts_; // in which a tile is exponentiated: with two, fewer registers are in use at a time
    static constexpr bool two_bodies = dim == 64 && !shapes; // of the loop over tiles, one of them without the branches for hidden pairs
    static constexpr int threads = 384, panels = dim / 64, own_panels = columns / 64, shares = dim / columns; // panels of 64 columns
    static constexpr bool staged = shares == 1; // dQ goes through shared memory
    static constexpr int row_panel = rows * 128, key_panel = keys * 128; // bytes of one
    static constexpr int row_tile = panels * row_panel, key_tile = panels * key_panel, ds_tile = 2 * row_panel;
    static constexpr int q_at = 2 * key_tile, ds_at = q_at + 2 * stages * row_tile; // in shared memory
    static constexpr int dq_at = ds_at + 2 * ds_tile, stats_at = dq_at + (staged ? 2 * 16384 : 0);
    static constexpr int odd_at = stats_at + 2 * stages * rows * 4, work_at = odd_at + keys * 4, sequence_at = work_at + 48, barriers_at = sequence_at + (features ? 48 : 0);
    // Of a bias of 16 bits, for each warp the columns of its 16 keys of so many rows.
    static constexpr int bias_at = (barriers_at + 8 * (6 + 4 * stages) + 15) / 16 * 16, bias_rows = 64, bias_bytes = reads && dim <= 128 ? 8 * bias_rows * 32 : 0;
    static constexpr int shared = 1024 + (bias_bytes ? bias_at + bias_bytes : barriers_at + 8 * (6 + 4 * stages)); // 1024 to align
    static_assert(rows / 64 * own_panels == 2 && shared <= 227 * 1024, "each warpgroup has a 64x64 block of dQ");
};

// The block's shared memory. A barrier is "full" when what it is for has arrived, "empty" when nobody reads it any more.
template <class S> struct Shared {
    char *base;
    uint32_t at; // address of base, in a uniform register
    // part 0 is of K, Q and LSE; part 1 of V, dO and delta.
    __device__ __forceinline__ uint32_t k(int part) const { return at + part * S::key_tile; } // [panels][keys][64]
    __device__ __forceinline__ uint32_t q(int part, int i) const { return at + S::q_at + (part * S::stages + i) * S::row_tile; } // [panels][rows][64]
    __device__ __forceinline__ uint32_t ds(int i) const { return at + S::ds_at + i * S::ds_tile; } // [2][rows][64 keys]
    __device__ __forceinline__ uint32_t dq(int group) const { return at + S::dq_at + group * 16384; } // as in dq_sum
    __device__ __forceinline__ uint32_t stats(int part, int i) const { return at + S::stats_at + (part * S::stages + i) * S::rows * 4; } // [rows]
    __device__ __forceinline__ float *odd() const { return (float *)(base + S::odd_at); } // [keys], NaN where K was not finite, else 0
    __device__ __forceinline__ volatile Work &work() const { return *(Work *)(base + S::work_at); }
    __device__ __forceinline__ volatile Sequence &sequence() const { return *(Sequence *)(base + S::sequence_at); }
    __device__ __forceinline__ uint32_t bias(int warp) const { return at + S::bias_at + warp * S::bias_rows * 32; }
    __device__ __forceinline__ uint32_t k_full(int part) const { return at + S::barriers_at + 8 * part; }
    __device__ __forceinline__ uint32_t dq_full(int group) const { return k_full(2 + group); }
    __device__ __forceinline__ uint32_t dq_empty(int group) const { return k_full(4 + group); }
    __device__ __forceinline__ uint32_t q_full(int part, int i) const { return k_full(6 + part * S::stages + i); }
    __device__ __forceinline__ uint32_t q_empty(int part, int i) const { return q_full(part, 2 * S::stages + i); }
};

// Of the block's sequence: its rows and keys, the band, and where it lies in the tensors.
template <class S> struct Bounds {
    const Params &p;
    Shared<S> sh;
#define BOUND(name, plain)                                                 \
    __device__ __forceinline__ int name() const {                          \
        if constexpr (S::features) return sh.sequence().name;              \
        else return plain;                                                 \
    }
    BOUND(rows, p.q_len) BOUND(keys, p.kv_len) BOUND(key_end, p.kv_len) BOUND(lo, p.lo) BOUND(hi, p.hi)
    BOUND(q_batch, sh.work().batch) BOUND(kv_batch, sh.work().batch) BOUND(q0, 0) BOUND(key0, 0)
};

// Brings a tile of a mask to the L2 cache.
template <class S> __device__ __forceinline__ void bring_mask(const Params &p, const View &x, int b, int h, int row, int key) {
    const char *from = (const char *)x.data + b * x.batch + h * x.head + row * x.row + key;
    const int bytes = min(S::keys, p.kv_len - key);
#pragma unroll 1
    for (int n = x.row ? min(S::rows, p.q_len - row) : 1; n > 0; n--, from += x.row) {
        const uint64_t first = (uint64_t)from & ~15, end = (uint64_t)(from + bytes) & ~15;
        if (end > first) bulk_prefetch((const void *)first, end - first);
    }
}

// Bit c says that the mask shows key `key`+c of 16 to a row.
__device__ __forceinline__ uint32_t mask_row(const Params &p, const Features &f, const uint8_t *at, int count, bool aligned) {
    uint32_t bits = 0;
    if (aligned && count >= 16) {
        const uint4 x = *(const uint4 *)at;
        auto four = [](uint32_t y) { return (__vcmpne4(y, 0) & 0x01010101) * 0x01020408 >> 24; };
        bits = four(x.x) | four(x.y) << 4 | four(x.z) << 8 | four(x.w) << 12;
    } else {
#pragma unroll 1
        for (int c = 0; c < min(count, 16); c++) bits |= (at[c] != 0) << c;
    }
    return bits;
}

// Takes out of `shown`, bits by columns of the lane's two keys, what the mask hides: of a tile of
// rows from `row` on, and the warp's 16 keys from `key` on. Each lane reads the keys of some
// rows, then gets those of the rows that it has.
template <class S> __device__ __forceinline__ void mask_tile(uint32_t (&shown)[2], const Params &p, const Features &f, int b, int h, int row, int key) {
    const int lane = threadIdx.x % 32;
    const bool aligned = ((uint64_t)f.mask.data & 15) == 0 && ((f.mask.batch | f.mask.head | f.mask.row) & 15) == 0;
    const uint8_t *mask = (const uint8_t *)f.mask.data + b * f.mask.batch + h * f.mask.head + key;
    uint32_t bits[2] = {};
    each<S::rows / 64>([&](int block) {
        auto read = [&](int r) { return mask_row(p, f, mask + min(row + 64 * block + r, p.q_len - 1) * f.mask.row, p.kv_len - key, aligned); };
        const uint32_t two = read(lane) | read(lane + 32) << 16;
        uint32_t own = 0; // bytes: the first key and the second, of 32 rows; the same of the next 32
        each<8>([&](int i) { own |= (__shfl_sync(~0u, two, 8 * (i / 2) + lane % 4 * 2 + i % 2) >> lane / 4 & 0x01010101) << i; });
        bits[0] |= __byte_perm(own, 0, 0x4420) << 16 * block, bits[1] |= __byte_perm(own, 0, 0x4431) << 16 * block;
    });
    shown[0] &= bits[0], shown[1] &= bits[1];
}

// Starts to copy so many rows of a bias of 16 bits for a warp's 16 keys, when it has read those before.
// Chunks of 8 keys lie where load_matrix finds them in different banks.
template <int rows> __device__ __forceinline__ void bias_chunk(uint32_t to, const Params &p, const Features &f, int b, int h, int row, int key, int lane) {
    const uint16_t *from = (const uint16_t *)f.bias.data + b * f.bias.batch + h * f.bias.head + key + lane % 2 * 8;
    const int bytes = 2 * max(0, min(8, p.kv_len - key - lane % 2 * 8));
    __syncwarp(); // all lanes have read
    each<rows / 16>([&](int i) {
        const int r = 16 * i + lane / 2;
        copy_async16(to + r * 32 + ((lane & 1) ^ (r >> 2 & 1)) * 16, bytes ? from + min(row + r, p.q_len - 1) * f.bias.row : f.bias.data, bytes);
    });
    copy_commit();
}

// Adds those of 16 rows to scores in units of log2.
template <class T> __device__ __forceinline__ void staged_bias(float (&x)[8], uint32_t from, int row, int lane) {
    const int r = row + lane / 16 * 8 + lane % 8;
    uint32_t y[4];
    load_matrix_transposed(y, from + r * 32 + ((lane / 8 & 1) ^ (r >> 2 & 1)) * 16);
    each<8>([&](int j) { x[j] = fmaf(widen<T>(y[j / 2] >> 16 * (j % 2) & 0xffff), kLog2E, x[j]); });
}

template <class T> __device__ __forceinline__ void store_pair(const Features &f, int64_t at, float x) {
    if (f.dbias_wide) ((float *)f.dbias.data)[at] = x;
    else ((uint16_t *)f.dbias.data)[at] = (uint16_t)pack<T>(x, 0);
}

// Writes dBias of the pairs of a lane, of 16 rows.
template <class T> __device__ __forceinline__ void store_pairs(const Params &p, const Features &f, const float *x, int b, int h, int row, int key) {
    const int64_t at = b * f.dbias.batch + h * f.dbias.head;
    each<8>([&](int j) {
        const int r = row + j / 4 * 8 + j % 2, k = key + j / 2 % 2 * 8;
        if (r < p.q_len && k < p.kv_len) store_pair<T>(f, at + r * f.dbias.row + k, x[j]);
    });
}

// dK and dV of 64 keys of a key head: the sums of the parts of its group, in order. The blocks of dK come first.
template <class T> __device__ __forceinline__ void sum_parts(const Params &p) {
    const int tiles = (p.kv_len + 63) / 64, all = p.batch * p.kv_heads * tiles, dim = 64 * panels_of(p);
    const bool of_keys = blockIdx.x < all;
    const int bg = blockIdx.x % all / tiles, key0 = blockIdx.x % tiles * 64;
    const View &v = of_keys ? p.dk : p.dv;
    const int columns = of_keys ? p.dim : p.v_dim, chunks = (columns + 7) / 8;
    const float scale = of_keys ? p.scale : 1, *from = (of_keys ? p.part_o : p.part_lse) + (int64_t)bg * p.splits * p.kv_len * dim;
    const bool aligned = aligned16(v);
    for (int i = threadIdx.x; i < min(64, p.kv_len - key0) * chunks; i += 256) {
        const int key = key0 + i / chunks, column = i % chunks * 8;
        float x[8] = {};
        for (int part = 0; part < p.splits; part++) {
            const float4 *y = (const float4 *)(from + ((int64_t)part * p.kv_len + key) * dim + column), a = y[0], b = y[1];
            x[0] += a.x, x[1] += a.y, x[2] += a.z, x[3] += a.w, x[4] += b.x, x[5] += b.y, x[6] += b.z, x[7] += b.w;
        }
        uint32_t z[4];
        each<4>([&](int j) { z[j] = pack<T>(x[2 * j] * scale, x[2 * j + 1] * scale); });
        store8(row_of(v, bg / p.kv_heads, bg % p.kv_heads, key) + column, {z[0], z[1], z[2], z[3]}, columns - column, aligned);
    }
}
