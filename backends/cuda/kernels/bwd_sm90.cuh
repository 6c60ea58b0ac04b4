// Parts of bwd_sm90: the shapes of tiles, a block's shared memory and work, the replacement of non-finite elements by 0,
// masks, and the kernels delta, finish and sums.
#pragma once
#include "bwd_sm90_ranges.cuh"

struct MapParams {
    TensorMap q, k, v, dout;
    Params p;
};

// If |delta| of a row is below odd_delta, dO and O of the row are finite.
constexpr float odd_delta = 2e38f;

// Traits of an instance. An instance for features has kLayout alone, or kLayout with one other feature, or kAll.
//
//	kLayout     padded or packed sequences
//	kKeys       a mask that is equal for all rows and for all query heads of a group
//	kParts      each group of query heads has p.splits parts
//	kGroups     the loop over a group's heads is inside the loop over tiles of rows
//	kStays      persistent blocks
//	kUpwards    the last keys come first, and the first tile of rows comes first
//	kPairs      clusters of two blocks
//	kOnce       all blocks run at the same time
//	kRanges     ranges of keys
constexpr int kLayout = 1, kSoftcap = 2, kALiBi = 4, kBias = 8, kMask = 16, kDropout = 32, kAll = 63, kParts = 64, kKeys = 128, kGroups = 256, kStays = 512, kUpwards = 1024, kPairs = 2048, kOnce = 4096, kRanges = 8192;

// A block's work: a tile of keys of one KV head, and the tiles of rows that see these keys.
struct Work {
    int batch, kv_head, key0, share; // key0: first key; share: index of the share of columns
    int from, to, steps;             // row tiles that see these keys; number of visits to row tiles, over all heads of the group (-1: no work is left)
    int part;                        // index of the part of the group of query heads
    int before, loads;               // persistent blocks: number of visits to row tiles in earlier Works; number of earlier Works with steps > 0
    int hides, odd[2], lost;         // some pairs are hidden; K of a warpgroup's keys had non-finite elements; dO had non-finite elements
    int begin, last;                 // row tile of the first visit; row tiles after `last` add to the second sum of dQ
};
static_assert(sizeof(Work) == 64);

// Returns the row tile at which the block of key tile j begins its loop, if p.skew is not 0. If p.halves is 1, the result
// is the index of a pair of row tiles.
__device__ __forceinline__ int begin_of(const Params &p, int j) { return p.skew > 0 ? j << (p.skew - 1) : j >> -p.skew; }
// Returns the least key tile j for which begin_of(p, j) >= tile.
__device__ __forceinline__ int first_from(const Params &p, int tile) { return p.skew > 0 ? (tile + (1 << (p.skew - 1)) - 1) >> (p.skew - 1) : tile << -p.skew; }
__device__ __forceinline__ int row_tile(const Params &p) { return max(0, (int)p.tile); }
__device__ __forceinline__ int key_tile(const Params &p) { return max(0, -(int)p.tile); }
// From p.skew = kChains on, dQ of a row tile has several sums: 2^(p.skew-kChains) consecutive key tiles add to one sum.
constexpr int kChains = 64;
__device__ __forceinline__ bool chained(const Params &p) { return p.skew >= kChains; }
// Returns the index of the sum to which key tile j adds, counted from the sum of key tile 0 of this call.
__device__ __forceinline__ int chain_of(const Params &p, int j) { return (j + key_tile(p) >> p.skew - kChains) - (key_tile(p) >> p.skew - kChains); }
// Returns the number of key tiles before tile j that add to the same sum.
__device__ __forceinline__ int chained_before(const Params &p, int j) { return min(j, j + key_tile(p) & (1 << p.skew - kChains) - 1); }
// Returns the number of sums of dQ of a row tile.
__device__ __forceinline__ int sums_of(const Params &p, int key_tiles) { return chained(p) ? chain_of(p, key_tiles - 1) + 1 : p.skew ? 2 : 1; }

// With any other p.skew, dQ of a row tile has two sums. Returns the least key tile that adds to the first sum. Lower key tiles add
// to the second sum.
__device__ __forceinline__ int first_tile(const Params &p, int tile) { return first_from(p, (tile + row_tile(p)) >> p.halves) - key_tile(p); }
__device__ __forceinline__ bool in_second(const Params &p, int last, int tile) { return (tile + row_tile(p)) >> p.halves > last; }
constexpr int no_skew = 1 << 30;

// The visible keys under a kKeys mask, from key 0 to the block's last key. A block without visible keys adds nothing to dQ,
// so other blocks do not wait for this block.
struct Marks {
    uint32_t seen[32]; // bit i of word j: tile 32 j + i has visible keys. 32 words suffice for listedKeys keys (instances.go)
    uint32_t own[4];     // bits of the block's visible keys
    int whole;           // all keys of the block are visible
};
__device__ __forceinline__ int padded_rows(const Params &p) { return (p.q_len + 127) / 128 * 128; }
template <bool features> __device__ __forceinline__ int panels_of(const Params &p) { // panels of 64 columns of <dim>
    const int dim = max(p.dim, p.v_dim);
    return dim <= 64 ? 1 : dim <= 128 ? 2 : dim <= 192 && !features ? 3 : 4;
}

// A compile-time condition as an argument of a lambda.
template <bool x> struct Constant {
    __device__ constexpr operator bool() const { return x; }
};

template <int knows, class Type, int dim_, int columns_, int rows_, int stages_, int parts_> struct Shape {
    using T = Type;
    static constexpr bool split = knows & kParts, pair = knows & kPairs, features = knows & ~(kParts | kGroups | kStays | kUpwards | kPairs | kOnce), by_rows = knows & kGroups, shapes = features && knows & ~(kLayout | kKeys | kRanges), sure = knows != kAll;
    static constexpr bool knows_cap = knows & kSoftcap, knows_alibi = knows & kALiBi, knows_bias = knows & kBias, knows_mask = knows & kMask, knows_dropout = knows & kDropout;
    static constexpr bool lies = features && !(knows & (kAll | kKeys | kRanges) & ~kLayout); // no other feature than sequences
    static constexpr bool changes = knows_cap || knows_alibi || knows_bias; // changes scores before pairs are hidden
    static constexpr int dim = dim_, rows = rows_, keys = 128, stages = stages_; // stages: number of stages of Q, and of dO
    static constexpr int columns = columns_; // columns of dK and dV that a block computes
    static constexpr int parts = parts_, part_rows = rows / parts; // number of parts of a tile's exponentials (two parts use fewer registers); rows per part
    static constexpr bool marks = knows & kKeys, ranged = knows & kRanges;
    static constexpr bool two_bodies = sure && (dim == 64 || dim == 128 && (knows_cap || knows_bias)); // the loop over tiles has two bodies; one body has no branches for hidden pairs
    static constexpr bool ends_in_both = two_bodies && by_rows && !features; // both bodies hide missing keys, to save registers
    static constexpr int threads = 384, panels = dim / 64, v_panels = panels, own_panels = (columns + 63) / 64, shares = panels / own_panels; // panels of 64 columns
    static constexpr int inner = (shares == 1 ? columns : dim) / 16; // number of products, each of 16 columns, for S; instances for narrower heads skip columns
    static constexpr int dq_blocks = 2, dq_shares = shares; // number of 64x64 blocks of dQ per row tile and share; number of shares
    static constexpr bool staged = shares == 1;                                    // dQ goes through shared memory
    static constexpr bool releases = staged && (!features || lies) && (by_rows || pair || dim == 128); // one lane ends the dQ turns of both warpgroups
    static constexpr bool stays = knows & kStays, frees_v = stays && dim == 64;     // persistent blocks; dV is staged in the memory of dS, as dK is
    static constexpr bool once = pair || knows & kOnce;                            // all blocks run at the same time
    static constexpr bool up = knows & kUpwards;                                    // last keys and first rows first
    static constexpr int step = up ? 1 : pair ? -2 : -1, works = stays ? 2 : 1; // difference from one row tile to the next; buffers of Work
    static constexpr bool skews = !features && !by_rows && !up;                     // p.skew may be nonzero
    static constexpr int dq_buffers = releases && dim == 128 ? 2 : 1, dq_slots = dq_blocks * dq_buffers;
    static constexpr int barriers = 2 + 2 * dq_slots + 4 * stages + (releases ? 4 : 0) + (stays ? 2 * works + 2 : 0) + (pair ? 3 : 0);
    static constexpr int row_panel = rows * 128, key_panel = keys * 128; // bytes per panel
    static constexpr int row_tile = panels * row_panel, key_tile = panels * key_panel, ds_tile = 2 * row_panel;
    static constexpr int v_row_tile = row_tile, q_at = 2 * key_tile, ds_at = q_at + 2 * stages * row_tile; // offsets in shared memory
    static constexpr int dq_at = ds_at + 2 * ds_tile, stats_at = dq_at + (staged ? dq_slots * 16384 : 0);
    static constexpr int odd_at = stats_at + 2 * stages * rows * 4, work_at = odd_at + keys * 4, sequence_at = work_at + (int)sizeof(Work) * works;
    static constexpr int marks_at = sequence_at + (features ? 48 * works : 0), barriers_at = (marks_at + (marks ? sizeof(Marks) : ranged ? sizeof(Listed) : 0) + 7) / 8 * 8;
    // Each warp has memory for a 16-bit bias, [bias_rows][16 keys], or for a mask, [rows][16 keys].
    static constexpr int bias_at = (barriers_at + 8 * barriers + 15) / 16 * 16, bias_rows = 64, bias_bytes = knows_bias && dim <= 128 ? 8 * bias_rows * 32 : 0;
    static constexpr int mask_bytes = knows_mask && sure && dim <= 128 ? 8 * rows * 16 : 0;
    static constexpr int shared = 1024 + (bias_bytes + mask_bytes ? bias_at + bias_bytes + mask_bytes : barriers_at + 8 * barriers); // 1024 to align
    static_assert(rows / 64 * own_panels == 2 && shared <= 227 * 1024, "each warpgroup has a 64x64 block of dQ");
};

// The block's shared memory. "full" barriers complete when data have arrived, "empty" barriers when all readers have read.
template <class S> struct Shared {
    char *base;
    uint32_t at; // address of base, in a uniform register
    int turn = 0; // number of Works that a persistent block has finished
    // The argument part is 0 for K, Q and LSE, and 1 for V, dO and delta.
    __device__ __forceinline__ uint32_t k(int part) const { return at + part * S::key_tile; } // [panels][keys][64]
    __device__ __forceinline__ uint32_t q(int part, int i) const { return at + S::q_at + part * S::stages * S::row_tile + i * (part ? S::v_row_tile : S::row_tile); } // [panels][rows][64]
    __device__ __forceinline__ uint32_t ds(int i) const { return at + S::ds_at + i * S::ds_tile; } // [2][rows][64 keys]
    __device__ __forceinline__ uint32_t dq(int slot) const { return at + S::dq_at + slot * 16384; } // same layout as in dq_sum
    __device__ __forceinline__ uint32_t stats(int part, int i) const { return at + S::stats_at + (part * S::stages + i) * S::rows * 4; } // [rows]
    __device__ __forceinline__ float *odd() const { return (float *)(base + S::odd_at); } // [keys], NaN where K was not finite, else 0
    __device__ __forceinline__ volatile Work &work(int later = 0) const { return *(Work *)(base + S::work_at + (S::works > 1 ? (turn + later) % S::works * sizeof(Work) : 0)); }
    __device__ __forceinline__ volatile Sequence &sequence() const { return *(Sequence *)(base + S::sequence_at + (S::works > 1 ? turn % S::works * 48 : 0)); }
    __device__ __forceinline__ volatile Marks &marks() const { return *(Marks *)(base + S::marks_at); }
    __device__ __forceinline__ volatile Listed &listed() const { return *(Listed *)(base + S::marks_at); }
    __device__ __forceinline__ uint32_t bias(int warp) const { return at + S::bias_at + warp * S::bias_rows * 32; }
    __device__ __forceinline__ uint32_t mask(int warp) const { return at + S::bias_at + warp * S::rows * 16; }
    __device__ __forceinline__ uint32_t k_full(int part) const { return at + S::barriers_at + 8 * part; }
    __device__ __forceinline__ uint32_t dq_full(int slot) const { return k_full(2 + slot); }
    __device__ __forceinline__ uint32_t dq_empty(int slot) const { return k_full(2 + S::dq_slots + slot); }
    __device__ __forceinline__ uint32_t dq_added(int group) const { return q_full(4, group); }    // dQ is in dq_sum
    __device__ __forceinline__ uint32_t dq_told(int group) const { return q_full(4, 2 + group); } // the turn has ended
    __device__ __forceinline__ uint32_t work_full() const { return q_full(4, 4 * S::releases + turn % S::works); }
    __device__ __forceinline__ uint32_t work_empty() const { return q_full(4, 4 * S::releases + S::works + turn % S::works); }
    __device__ __forceinline__ uint32_t k_empty(int part) const { return q_full(4, 4 * S::releases + 2 * S::works + part); }
    __device__ __forceinline__ uint32_t peer_done() const { return q_full(4, 4 * S::releases); } // pairs are not persistent
    __device__ __forceinline__ uint32_t peer_sums(int group) const { return q_full(4, 4 * S::releases + 1 + group); }
    __device__ __forceinline__ uint32_t q_full(int part, int i) const { return k_full(2 + 2 * S::dq_slots + part * S::stages + i); }
    __device__ __forceinline__ uint32_t q_empty(int part, int i) const { return q_full(part, 2 * S::stages + i); }
};

// Reports whether p.lo or p.hi hides a pair of a query row and a key.
__device__ __forceinline__ bool masks(const Params &p) { return p.hi < p.kv_len - 1 || p.lo > 1 - p.q_len; }
template <class S> __device__ __forceinline__ int64_t head_bytes(const Params &p) { return (int64_t)padded_rows(p) * S::dim * (2 + 2 + 4); }
// Blocks process `of` KV heads in sets of about equal size, one set after another. Returns the number of heads in a set.
// With more heads in a set, fewer blocks wait for the same rows of dQ. But Q, dO and dQ of all these heads must fit into
// the L2 cache, because a head's blocks do not stay at the same rows. If p.lo or p.hi hides pairs, a head's blocks stay
// closer together. Then a set of up to 16 heads may need several times the size of the cache.
template <class S> __device__ __forceinline__ int together(const Params &p, int of) {
    const int64_t group = p.heads / p.kv_heads / (S::split ? p.splits : 1), bytes = head_bytes<S>(p), walked = bytes * group;
    const int lane = fresh(threadIdx.x) % 32;
    auto fit = [&](int64_t most, int64_t each, int from, int end) { return __popc(__ballot_sync(~0u, from + lane < end && (from + 1 + lane) * each <= most)); }; // how many of the numbers from + 1 to end are at most most / each
    const int few = masks(p) ? fit(256 << 20, bytes, 0, 16) : fit(32 << 20, walked, 0, 16);
    // If S::up, no block waits. If S::dim > 64, blocks seldom wait, because a tile takes longer: they wait only in calls
    // with few keys, or with few rows compared to the number of keys.
    const bool waits = p.kv_len <= 3 * S::keys || (S::dim > 128 ? p.q_len <= S::rows : p.q_len * group < p.kv_len / 2);
    const int heads = S::up || S::dim > 64 && !waits ? few : max(few, fit(16 << 20, walked, 0, 32) + fit(16 << 20, walked, 32, 64));
    const int times = (of + max(2, heads) - 1) / max(2, heads);
    return (of + times - 1) / max(1, times); // groups of about equal size
}

// A persistent block processes one Work after another. Returns the number of visits to tiles of rows in all earlier Works.
// The states of barriers and rings depend on this number.
template <class S> __device__ __forceinline__ int before(volatile Work &w) {
    if constexpr (S::stays) return w.before;
    else return 0;
}

// Returns the state of the ring of stages after `before` visits to tiles of rows.
template <class S> __device__ __forceinline__ Ring<S::stages> ring_at(int parity, int before) {
    Ring<S::stages> ring(parity ^ before / S::stages % 2);
    ring.stage = before % S::stages;
    return ring;
}

// Tells the compiler that the sums x are undefined. The first product overwrites x, but the compiler cannot see this.
template <int n> __device__ __forceinline__ void forget(float (&x)[n]) {
    each<n>([&](int i) { asm volatile("" : "=f"(x[i])); });
}

// Starts the product K Q^T or V dO^T for a warpgroup's keys, with result `to`. The product sums over 16 * inner columns, by
// default over all columns of `panels` panels.
template <class S, int panels, int inner = panels * 4> __device__ __forceinline__ void scores(float (&to)[S::rows / 2], uint32_t keys, uint32_t rows, int group) {
    const uint64_t x = descriptor(keys + group * 8192, 16), y = descriptor(rows, 16);
    forget(to);
    wgmma_fence();
    each<inner>([&](int i) {
        wgmma<typename S::T, 0>(to, x + (i / 4 * S::key_panel + i % 4 * 32) / 16, y + (i / 4 * S::row_panel + i % 4 * 32) / 16, i > 0);
    });
    wgmma_commit();
}

// Sets non-finite elements in the 16 bytes at address `at` to 0. Reports whether there were any.
template <class S> __device__ __forceinline__ bool clear(Shared<S> sh, uint32_t at) {
    using T = typename S::T;
    uint4 &x = *(uint4 *)(sh.base + (at - sh.at)), y = x;
    y.x = clear_nonfinite<T>(y.x), y.y = clear_nonfinite<T>(y.y), y.z = clear_nonfinite<T>(y.z), y.w = clear_nonfinite<T>(y.w);
    const bool found = x.x != y.x || x.y != y.y || x.z != y.z || x.w != y.w;
    if (found) x = y;
    return found;
}
__device__ __forceinline__ bool usual(float x) { return fabsf(x) < odd_delta; }

// Sets non-finite elements of a warpgroup's K to 0, and writes NaN to `odd` for each key with such an element.
template <class S> __device__ __forceinline__ void clean_keys(Shared<S> sh, volatile Work &w, int group, int thread) {
    if (thread < 64) sh.odd()[group * 64 + thread] = 0;
    named_barrier(2 + group, 128); // zeros precede marks
    for (int i = thread; i < 512 * S::panels; i += 128)
        if (clear(sh, sh.k(0) + i / 512 * S::key_panel + group * 8192 + i % 512 * 16)) sh.odd()[group * 64 + i / 8 % 64] = infinity - infinity, w.odd[group] = 1;
    async_fence();                 // the products see the zeros
    named_barrier(2 + group, 128); // the whole warpgroup is done
}

// Sets non-finite elements of a tile of Q and dO to 0, if LSE or delta show that there may be any. After the last tile of
// rows, add_lost adds the non-finite elements of dO to dV, for visible pairs.
template <class S> __device__ __forceinline__ void clean_rows(Shared<S> sh, volatile Work &w, int stage, int group, int thread) {
    auto stats = [&](int part) { return (const float *)(sh.base + (sh.stats(part, stage) - sh.at)); }; // [rows], LSE or delta
    bool found[2] = {};
    each<2>([&](int part) {
        each<S::rows / 32>([&](int i) {
            const float x = stats(part)[i * 32 + threadIdx.x % 32];
            found[part] |= !usual(x) || part == 0 && is_far_lse(x);
        });
    });
    const bool odd_row = __any_sync(~0u, found[1]);
    if (!odd_row && !__any_sync(~0u, found[0])) return;
    for (int part = 0; part < 2; part++)
        for (int i = thread; i < (part ? S::v_row_tile : S::row_tile) / 16; i += 128) clear(sh, sh.q(part, stage) + i * 16);
    if (odd_row) w.lost = 1; // if only LSE is unusual, the row sees no key, is of another sequence, or is far
    async_fence();                 // the products see the zeros
    named_barrier(2 + group, 128); // the whole warpgroup is done
}

// Reports whether a tile has far rows (see far.cuh). lse points to the results of stat_of_lse for the tile's rows.
template <class S> __device__ __forceinline__ bool any_far(const float *lse) {
    bool far = false;
    each<S::rows / 64>([&](int i) {
        const float2 x = ((const float2 *)lse)[i * 32 + threadIdx.x % 32];
        far |= is_far_lse(x.x) || is_far_lse(x.y);
    });
    return __any_sync(~0u, far);
}
// A NaturalLSE returns the LSE, in natural units, of row r of a tile. It returns Inf if the row is after the last row or
// sees no key.
struct NaturalLSE {
    const float *at;
    int64_t row;
    int last;
    __device__ __forceinline__ NaturalLSE(const View &lse, int b, int h, int first, int rows)
        : at((const float *)lse.data + b * lse.batch + h * lse.head + first * lse.row), row(lse.row), last(rows - 1) {}
    __device__ __forceinline__ float operator()(int r) const {
        const float x = at[min(r, last) * row];
        return x == -infinity || r > last ? infinity : x;
    }
};
// Applies far_product to a lane's dot products of far rows (see far.cuh). lse[r] is the result of stat_of_lse for row r.
// natural(r) returns the LSE of row r in natural units.
template <int n, class F> __device__ __forceinline__ void far_products(float (&s)[n], const Params &p, const float *lse, F natural) {
    const float unit = kLog2E / p.scale_log2;
    each<n / 2>([&](int i) { // two elements of row r
        const int r = i / 4 * 16 + i / 2 % 2 * 8 + fresh(threadIdx.x) % 4 * 2 + i % 2;
        if (!is_far_lse(lse[r])) return;
        const float own = natural(r);
        each<2>([&](int half) {
            float &x = s[i / 4 * 8 + i / 2 % 2 * 4 + half * 2 + i % 2];
            x = far_product(x, p.scale, unit, own);
        });
    });
}

// Bounds returns the lengths of the block's sequence, lo and hi (row i sees keys i+lo to i+hi), and the sequence's position
// in the tensors.
template <class S> struct Bounds {
    const Params &p;
    Shared<S> sh;
#define BOUND(name, plain)                                                 \
    __device__ __forceinline__ int name() const {                          \
        if constexpr (S::features) return sh.sequence().name;              \
        else return plain;                                                 \
    }
    BOUND(rows, p.q_len) BOUND(keys, p.kv_len) BOUND(key_end, p.kv_len) BOUND(lo, p.lo) BOUND(hi, p.hi)
    BOUND(q_batch, sh.work().batch) BOUND(kv_batch, sh.work().batch) BOUND(q0, 0) BOUND(key0, 0) BOUND(diagonal, 0)
};

// Returns 16 bytes of a mask as bits: bit c is 1 if c < count and at[c] is not 0. aligned: the address is a multiple of 16.
__device__ __forceinline__ uint32_t mask_row(const uint8_t *at, int count, bool aligned) {
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

__device__ __forceinline__ bool chunks16(const View &v) { return (((uint64_t)v.data | v.batch | v.head) & 15) == 0; }

// Sets the block's Marks. All threads of the block call mark. If no key of the block is visible, mark sets Work::steps to 0.
template <class S> __device__ __forceinline__ void mark(const Params &p, const Features &f, Shared<S> sh) {
    volatile Work &w = sh.work();
    volatile Marks &m = sh.marks();
    const int lane = threadIdx.x % 32, own = w.key0, end = min(own + S::keys, sh.sequence().keys), head = w.kv_head * (p.heads / p.kv_heads);
    const uint8_t *mask = (const uint8_t *)f.mask.data + w.batch * f.mask.batch + head * f.mask.head;
    const bool aligned = chunks16(f.mask);
    for (int key = threadIdx.x / 32 * 512; key < own + S::keys; key += S::threads * 16) { // four tiles per warp
        const int k = key + lane * 16;
        const uint32_t bits = mask_row(mask + k, end - k, aligned), some = __ballot_sync(~0u, bits) >> lane % 4 * 8;
        const uint32_t tiles = __ballot_sync(~0u, lane < 4 && some & 255);
        if (lane == 0 && tiles) atomicOr((uint32_t *)&m.seen[key / S::keys / 32], tiles << key / S::keys % 32);
        if (k >= own && bits) atomicOr((uint32_t *)&m.own[(k - own) / 32], bits << (k - own) % 32);
    }
    __syncthreads(); // the marks are set
    if (threadIdx.x == 0) {
        const uint32_t all = m.own[0] & m.own[1] & m.own[2] & m.own[3], some = m.own[0] | m.own[1] | m.own[2] | m.own[3];
        if (m.whole = all == ~0u; !some) w.steps = 0;
        else if (all != ~0u) w.hides = 1;
    }
    __syncthreads(); // the work is set
}

// Returns the number of tiles, among tiles first to end - 1, that have visible keys.
__device__ __forceinline__ int marked(const volatile uint32_t *seen, int first, int end) {
    int n = 0;
#pragma unroll 1
    for (int i = first / 32; 32 * i < end; i++)
        n += __popc(seen[i] & ~0u << max(first - 32 * i, 0) & ~0u >> max(32 * i + 32 - end, 0));
    return n;
}

// Reports whether at least one of 64 rows of a head may see a key. Only ranges, and a mask that is equal for all rows, are tested. If the
// result is false, no block has written dq_sum for these rows.
template <bool features, bool ranged> __device__ __forceinline__ bool some_seen(const Params &p, const Features &f, const Extent<features> &e, int b, int h, int row) {
    if constexpr (ranged) {
        const int4 x = bounds_of(p, f, p.kv_heads, b, h / (p.heads / p.kv_heads), 0)[row / 64];
        return x.x < x.y || x.z < x.w;
    }
    if (!features || !f.mask.data || f.mask.row) return true;
    const uint8_t *mask = (const uint8_t *)f.mask.data + b * f.mask.batch + h * f.mask.head;
    const bool aligned = chunks16(f.mask);
    const int first = max(0, row + e.lo()), end = min(e.keys(), min(row + 64, e.rows()) + e.hi());
#pragma unroll 1
    for (int from = first / 16 * 16; from < end; from += 4096) {
        const int key = from + threadIdx.x * 16;
        uint32_t bits = mask_row(mask + key, end - key, aligned);
        if (key < first) bits &= ~0u << (first - key);
        if (__syncthreads_or(bits)) return true;
    }
    return false;
}

// Clears the bits of hidden pairs in `shown`, which has a word for each of the lane's two keys. read(r) returns 16 bits for the
// warp's 16 keys in row r of the tile. Each lane reads some rows; then the lanes exchange bits.
template <class S, class Read> __device__ __forceinline__ void hide_rows(uint32_t (&shown)[2], Read read) {
    const int lane = threadIdx.x % 32;
    uint32_t bits[2] = {};
    each<S::rows / 64>([&](int block) {
        const uint32_t two = read(64 * block + lane) | read(64 * block + lane + 32) << 16;
        uint32_t own = 0; // bytes: bits of the first and of the second key in 32 rows, then in the next 32 rows
        each<8>([&](int i) { own |= (__shfl_sync(~0u, two, 8 * (i / 2) + lane % 4 * 2 + i % 2) >> lane / 4 & 0x01010101) << i; });
        bits[0] |= __byte_perm(own, 0, 0x4420) << 16 * block, bits[1] |= __byte_perm(own, 0, 0x4431) << 16 * block;
    });
    shown[0] &= bits[0], shown[1] &= bits[1];
}

// Clears the bits of masked pairs in `shown`. The tile's rows begin at `row`, and the warp's 16 keys at `key`.
template <class S> __device__ __forceinline__ void mask_tile(uint32_t (&shown)[2], const Params &p, const Features &f, int b, int h, int row, int key) {
    const bool aligned = ((uint64_t)f.mask.data & 15) == 0 && ((f.mask.batch | f.mask.head | f.mask.row) & 15) == 0;
    const uint8_t *mask = (const uint8_t *)f.mask.data + b * f.mask.batch + h * f.mask.head + key;
    hide_rows<S>(shown, [&](int r) { return mask_row(mask + min(row + r, p.q_len - 1) * f.mask.row, p.kv_len - key, aligned); });
}

// Clears the bits of pairs outside the ranges in `shown`. The sequence has `rows` rows.
template <class S> __device__ __forceinline__ void range_tile(uint32_t (&shown)[2], const Features &f, int b, int h, int rows, int row, int key) {
    auto below = [&](int end) { return (1u << min(max(end - key, 0), 16)) - 1; };
    hide_rows<S>(shown, [&](int r) {
        const RowRanges x = ranges_of(f, b, h, min(row + r, rows - 1));
        return below(x.end[0]) & ~below(x.begin[0]) | below(x.end[1]) & ~below(x.begin[1]);
    });
}

// Copies dS of the warpgroup's 64 keys from shared memory to dBias.
template <class S> __device__ __forceinline__ void store_tile(const Params &p, const Features &f, const char *from, int b, int h, int row, int key, int thread) {
    const int c = thread % 8, k = key + 8 * c, last = p.q_len - row - thread / 8;
    uint16_t *to = (uint16_t *)f.dbias.data + b * f.dbias.batch + h * f.dbias.head + (row + thread / 8) * f.dbias.row + k;
    from += thread / 8 * 128 + ((c ^ thread / 8 % 8) << 4);
    each<S::rows / 16>([&](int i) {
        const uint4 x = *(const uint4 *)(from + i * 2048);
        if (16 * i < last) store8(to, x, p.kv_len - k, true);
        to += 16 * f.dbias.row;
    });
}

// Stores x, a lane's elements of dS in 16 rows, to dBias. edge: some elements may be outside the tensor.
template <class T> __device__ __forceinline__ void store_pairs(const Params &p, const Features &f, const float *x, bool edge, int b, int h, int row, int key) {
    const int64_t at = b * f.dbias.batch + h * f.dbias.head + row * f.dbias.row + key;
    auto there = [&](int j) { return !edge || row + j / 4 * 8 + j % 2 < p.q_len && key + j / 2 % 2 * 8 < p.kv_len; };
    auto place = [&](int j) { return at + (j / 4 * 8 + j % 2) * f.dbias.row + j / 2 % 2 * 8; };
    if (f.dbias_wide) each<8>([&](int j) { if (there(j)) ((float *)f.dbias.data)[place(j)] = x[j]; });
    else each<8>([&](int j) { if (there(j)) ((uint16_t *)f.dbias.data)[place(j)] = (uint16_t)pack<T>(x[j], 0); });
}

// A grid for packed sequences has `all` slots for tiles of `size` rows or keys. The slots of sequence b begin at slot
// (starts[b] - starts[0]) / size + b. Sequence b has at least one slot per tile. The last sequence has all remaining slots.
struct Slots { int b, first, count; }; // sequence b has `count` slots, from slot `first` on

// Returns the slots of the sequence to which `slot` belongs. All lanes of a warp call slots().
__device__ __forceinline__ Slots slots(const int *starts, int batch, int size, int all, int slot) {
    const int lane = threadIdx.x % 32, from = starts[0];
    auto first = [&](int b) { return (starts[b] - from) / size + b; };
    int b = 0, n = batch; // the slot is of one of n sequences from b on
    while (n > 1) {
        const int step = (n + 31) / 32, i = lane * step, end = b + n;
        const int before = __popc(__ballot_sync(~0u, i < n && first(b + min(i, n - 1)) <= slot));
        b += (max(before, 1) - 1) * step, n = min(step, end - b);
    }
    return {b, first(b), (b + 1 < batch ? first(b + 1) : all) - first(b)};
}

// Like slots, but for at most 32 sequences. The slots are in the order of the sequences' numbers of tiles, most tiles first.
// Each sequence has exactly one slot per tile. If `slot` is after the last slot, count is 0.
__device__ __forceinline__ Slots sorted_slots(const int *starts, int batch, int size, int slot) {
    const int lane = threadIdx.x % 32, count = lane < batch ? (starts[lane + 1] - starts[lane] + size - 1) / size : 0;
    int first = 0;
#pragma unroll 4
    for (int i = 0; i < 32; i++) {
        const int other = __shfl_sync(~0u, count, i);
        if (other > count || other == count && i < lane) first += other;
    }
    const uint32_t own = __ballot_sync(~0u, first <= slot && slot < first + count);
    const int b = own ? __ffs(own) - 1 : 0, at = __shfl_sync(~0u, first, b), n = __shfl_sync(~0u, count, b);
    return {b, own ? at : slot, own ? n : 0};
}

// A block's tile of 64 query rows. bh is batch * heads + head.
struct Rows64 { int bh, tile; };
template <bool features> __device__ __forceinline__ Rows64 rows64(const Params &p, const Features &f, int block) {
    const int tiles = max(1, (p.q_len + 63) / 64);
    if (features && f.row_slots) {
        const Slots s = slots(f.q_starts, p.batch, 64, f.row_slots, block / p.heads);
        const int n = block - s.first * p.heads;
        return {s.b * p.heads + n / s.count, n % s.count};
    }
    return {block / tiles, block % tiles};
}

// Writes dQ = dq_sum * scale for 64 rows of a head, or 0 for rows that see no key. A thread writes 8 columns of rows r and
// r+8, because a float4 of dq_sum holds two columns of row r and two columns of row r+8.
template <class T, bool features, bool ranged> __device__ __forceinline__ void finish(const Params &p, const Features &f) {
    const int quarters = !features && chained(p) ? 4 : 1, quarter = blockIdx.x % quarters; // a block writes 16 rows if there are many sums
    const Rows64 place = rows64<features>(p, f, blockIdx.x / quarters);
    const int bh = place.bh, tile = place.tile, chunks = (p.dim + 7) / 8;
    const int panels = panels_of<features>(p);
    const float4 *sum = (const float4 *)p.dq_sum + ((int64_t)bh * (padded_rows(p) / 64) + tile) * panels * 1024; // [panels][4][8][32]
    const int64_t next = (int64_t)p.batch * p.heads * (padded_rows(p) / 64) * panels * 1024; // from one sum of dQ to the next
    int sums = 1;    // number of sums to read
    bool one = true; // some block added to the first sum
    if (!features && p.skew) {
        sums = sums_of(p, (p.kv_len + 127) / 128);
        if (!chained(p)) {
            const int first = first_tile(p, panels == 1 ? tile / 2 : tile);
            one = first < (p.kv_len + 127) / 128, sums = 1 + (first > 0);
        }
    }
    const bool aligned = aligned16(p.dq);
    wait_for_dependency();
    const Extent<features> e(p, f, bh / p.heads);
    const bool some = some_seen<features, ranged>(p, f, e, bh / p.heads, bh % p.heads, tile * 64);
    auto sees = [&](int r) { return some && (!features || r < e.rows()) && max(0, r + e.lo()) <= min(e.keys() - 1, r + e.hi()); };
    for (int j = quarter * 8 * chunks + threadIdx.x; j < (quarter + 1) * 32 / quarters * chunks; j += 256) {
        const int chunk = j % chunks, g = j / chunks % 8, m = j / chunks / 8, row = tile * 64 + m * 16 + g;
        uint32_t y[2][4];
        for (int i = 0; i < 4; i++) {
            const int at = chunk / 8 * 1024 + (m * 8 + chunk % 8) * 32 + 4 * g + i;
            float4 x = one && (sees(row) || sees(row + 8)) ? sum[at] : float4{}; // unneeded sums were not written
#pragma unroll 4
            for (int k = 1; k < sums; k++) {
                const float4 z = sum[at + k * next];
                x.x += z.x, x.y += z.y, x.z += z.z, x.w += z.w;
            }
            y[0][i] = pack<T>(x.x * p.scale, x.y * p.scale), y[1][i] = pack<T>(x.z * p.scale, x.w * p.scale);
        }
        for (int i = 0, r = row; i < 2; i++, r += 8) {
            const uint4 x = sees(r) ? uint4{y[i][0], y[i][1], y[i][2], y[i][3]} : uint4{0, 0, 0, 0};
            if constexpr (features) {
                if (r < e.row_end()) store8(row_of(p.dq, e.q_batch(), bh % p.heads, e.q0() + r) + 8 * chunk, x, p.dim - 8 * chunk, aligned);
            } else if (r < p.q_len) store8(row_of(p.dq, bh / p.heads, bh % p.heads, r) + 8 * chunk, x, p.dim - 8 * chunk, aligned);
        }
    }
}

// Writes dK or dV of 64 keys of a KV head. dK and dV are sums over the p.splits parts of the head's group of query heads,
// added in order. The first half of the blocks writes dK, the second half dV.
template <class T> __device__ __forceinline__ void sum_parts(const Params &p) {
    const int tiles = (p.kv_len + 63) / 64, all = p.batch * p.kv_heads * tiles, panels = panels_of<false>(p);
    const bool of_keys = blockIdx.x < all;
    const int dim = 64 * (of_keys || panels != 3 || p.v_dim > 128 ? panels : 2);
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

// Writes LSE in base 2 and delta = rowsum(dO * O) - dLSE of 64 rows of a head. The row sums are the diagonal of O dO^T,
// computed by the same instructions in the same order as dP^T = V dO^T. So dP - delta is exactly 0 if one key has all the
// weight. A row without visible keys gets LSE = Inf, so P = 0. Rows after the last row get zeros, or LSE = Inf if rows of
// another sequence may follow.
constexpr int delta_shared = 1024 + 4 * 8192; // 1024 to align
template <class T, bool features, bool ranged> __device__ __forceinline__ void delta(const Params &p, const Features &f) {
    const Rows64 place = rows64<features>(p, f, blockIdx.x);
    const int bh = place.bh, tile = place.tile, tiles = (p.q_len + 63) / 64, row0 = tile * 64;
    const int64_t heads = (int64_t)p.batch * p.heads, padded = padded_rows(p), counters = 1 + heads * padded / 64 * panels_of<features>(p) * (features ? 1 : sums_of(p, (p.kv_len + 127) / 128)), threads = (int64_t)gridDim.x * 128;
    launch_dependents();
    for (int64_t i = (int64_t)blockIdx.x * 128 + threadIdx.x; i < counters; i += threads) p.turn[i] = 0;
    if (p.q_len == 0 || p.batch == 0) return;
    extern __shared__ char unaligned[]; // O, dO: [2][64][64] each
    const uint32_t o = (shared_address(unaligned) + 1023) & ~1023, dout = o + 16384;
    const int b = bh / p.heads, h = bh % p.heads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Extent<features> e(p, f, b);
    if (features && row0 >= (e.rows() + 127) / 128 * 128) return; // these rows are never read
    if constexpr (ranged)
        if (warp == 0 && h % (p.heads / p.kv_heads) == 0) bound_rows<true>(p, f, e.s, p.kv_heads, b, h / (p.heads / p.kv_heads), row0);
    const int own = row0 + threadIdx.x; // row whose LSE the thread converts; the load of LSE overlaps the copies
    const bool strange = features && (f.q_starts || f.q_lens); // rows of another sequence or padding may follow
    const float lse = own < e.rows() ? stat_of_lse(stat_of(p.lse, e.q_batch(), h, e.q0() + own)) : strange ? infinity : 0;
    const bool aligned = aligned16(p.o, p.v_dim) && aligned16(p.dout, p.v_dim);
    float x[32]; // O dO^T
    for (int c = 0; c < p.v_dim; c += 128) {
        for (int i = 0; i < 2; i++) {
            copy_rows<64, 64, 128>(o + i * 8192, row_of(p.o, e.q_batch(), h, e.q0() + row0) + c + 64 * i, p.o.row, e.rows() - row0, p.v_dim - c - 64 * i, aligned);
            copy_rows<64, 64, 128>(dout + i * 8192, row_of(p.dout, e.q_batch(), h, e.q0() + row0) + c + 64 * i, p.dout.row, e.rows() - row0, p.v_dim - c - 64 * i, aligned);
        }
        copy_commit(), copy_wait<0>();
        async_fence();   // the products see the copies
        __syncthreads(); // O and dO have arrived
        wgmma_fence();
        each<8>([&](int i) {
            const int step = (i / 4 * 8192 + i % 4 * 32) / 16;
            wgmma<T, 0>(x, descriptor(o, 16) + step, descriptor(dout, 16) + step, c + i > 0);
        });
        wgmma_commit(), wgmma_wait<0>();
        each<32>([&](int i) { asm volatile("" : "+f"(x[i])); }); // otherwise the compiler would insert another wait
        __syncthreads(); // O and dO may be overwritten
    }
    float *to = p.delta + bh * padded, *to_delta = to + heads * padded;
    if (threadIdx.x < 64 || tile == tiles - 1 && own < padded) to[own] = lse;
    if (threadIdx.x >= 64 && tile == tiles - 1 && own < padded) to_delta[own] = 0;
    each<16>([&](int i) { // the diagonal: element i%2 of block i/2, in the thread's row i/2%2, may be on it
        const int half = i / 2 % 2, r = row0 + 16 * warp + 8 * half + lane / 4;
        if (i / 2 != 2 * warp + half || lane % 4 * 2 + i % 2 != lane / 4) return;
        to_delta[r] = x[i / 2 * 4 + half * 2 + i % 2] - (r < e.rows() && p.dlse.data ? stat_of(p.dlse, e.q_batch(), h, e.q0() + r) : 0);
    });
}

// Exchanges a warpgroup's sums with the other block of a cluster, through the shared memory of Q and dO. Sends `other`, and
// adds the received sums to `own`. Reports whether dO of either block was not finite. Before the kernel ends, the thread
// must call cluster_wait.
template <class S> __device__ __forceinline__ bool meet(volatile Work &w, Shared<S> sh, float (&own)[S::columns / 2], float (&other)[S::columns / 2], int group) {
    static_assert(256 * S::columns / 2 * 4 <= 2 * S::stages * S::row_tile);
    const int thread = threadIdx.x % 128, peer = cluster_rank() ^ 1;
    const uint32_t at = S::q_at + group * (128 * S::columns / 2 * 4) + thread * 16, to = map_cluster(sh.at + at, peer);
    if (group == 0 && thread == 0) barrier_arrive_cluster(map_cluster(sh.peer_done(), peer)); // both warpgroups are done with Q and dO
    barrier_wait_cluster(sh.peer_done(), 0);
    const bool lost = w.lost | load_cluster(map_cluster(shared_address((const void *)&w.lost), peer));
    each<S::columns / 8>([&](int i) { store_cluster(to + i * 2048, other[4 * i], other[4 * i + 1], other[4 * i + 2], other[4 * i + 3]); });
    barrier_arrive_cluster(map_cluster(sh.peer_sums(group), peer));
    cluster_arrive(); // from here on, this thread accesses nothing in the other block
    barrier_wait_cluster(sh.peer_sums(group), 0);
    each<S::columns / 8>([&](int i) {
        const float4 x = *(const float4 *)(sh.base + at + i * 2048);
        own[4 * i] += x.x, own[4 * i + 1] += x.y, own[4 * i + 2] += x.z, own[4 * i + 3] += x.w;
    });
    return lost;
}
