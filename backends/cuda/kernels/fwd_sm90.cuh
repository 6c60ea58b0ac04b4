// A block of fwd_sm90: shapes, shared memory, work, masks, the warps that find tiles and scan V, and the ends of rows.
#pragma once
#include "score_tiles.cuh"

// An instance's features: none; none, in p.splits parts of the keys; layout: sequences, sinks and carried rows; layout with
// softcap and ALiBi; layout with one feature (keys: a mask equal for all rows); all.
enum class Kind { plain, split, layout, shaped, softcap, alibi, bias, mask, keys, dropout, any };

// When a warpgroup lets the next one issue products, lest all wait at the same time: after the first scores of a tile of
// rows (begin), after the products of a tile of keys are issued (issue) or complete (values).
enum class Turn { none, begin, issue, values };
constexpr Turn turn_of(Kind kind, int dim, int v_dim) {
    const bool wide = dim == 128;
    if (kind == Kind::plain) return wide ? Turn::begin : dim == 96 || v_dim == 192 ? Turn::none : Turn::issue;
    if (dim > 128) return Turn::none;
    switch (kind) {
    case Kind::layout: return wide ? Turn::begin : Turn::values;
    case Kind::alibi: return Turn::issue;
    case Kind::softcap: return wide ? Turn::none : Turn::begin;
    case Kind::bias: return Turn::values;
    case Kind::mask: return wide ? Turn::issue : Turn::none;
    case Kind::dropout: return wide ? Turn::issue : Turn::none;
    default: return Turn::none;
    }
}

struct alignas(16) Place { // the sequence of a tile of rows
    int lo, hi, keys, rows, q_batch, q0, kv_batch, key0, diagonal, row_end;
    float slope, sink; // of the head
};

// A tile of query rows and the tiles of keys that some row sees, in shared memory: first the edges, which not every row sees
// whole, from the right, then from the left; then the others.
struct alignas(16) Work {
    int row0, end, count, edges;           // rows row0 to end-1, row0 = -1 if no tile is left; tiles of keys; edges
    int first, right;                      // tile(0); edges on the right
    int from, full_to, open_from, open_to; // first tile; last tile that every row sees whole; the band cuts tiles outside the open ones
    int head, kv_head, batch;
    int odd;  // a cut tile of V has non-finite elements
    int part; // of the keys; or index of their Known
    __device__ __forceinline__ int4 extent() const volatile { return *(const int4 *)this; } // row0, end, count, edges
    __device__ __forceinline__ int tile(int n) const volatile {
        return n < right ? full_to + right - n : n < edges ? from + n - right : full_to + edges - n;
    }
    __device__ __forceinline__ bool cut(int n) const volatile { return n < edges && (tile(n) < open_from || tile(n) > open_to); }
};
static_assert(sizeof(Work) == 64);
__device__ __forceinline__ bool banded(const Params &p) { return p.hi < p.kv_len - 1 || p.q_len - 1 + p.lo > 0; }

// A mask equal for all rows. Bit i of word j: some or all keys of tile 32 j + i are visible.
constexpr int kKnown = 64; // words, for listedKeys of instances.go in tiles of 64 keys
struct Known { uint32_t seen[kKnown], whole[kKnown]; };
// A stage of K and V under such a mask. Bit 2 i + e of shown[t]: K's key 8 i + 2 t + e is visible. tile: 2 * K's tile, plus
// 1 if not every row sees it whole. cut: V has hidden keys.
struct alignas(16) Slot { uint32_t shown[4]; int tile, cut; };

// Packed sequences, longest first: the slots, one per tile of rows, before each; its index.
struct alignas(8) Order { int first[33], of[32]; };

struct MapParams {
    TensorMap q, k, v, o;
    Params p;
    int tall, low, low_rows; // per head: tiles of the Plan's rows; then tiles of low_rows, a multiple of 64
};

template <Kind kind_, class Type, int dim_, int v_dim_, int groups_, int keys_, int q_stages_, int stages_, bool keep_q_> struct Shape {
    using T = Type;
    static constexpr bool split = kind_ == Kind::split, features = kind_ >= Kind::layout, reads = kind_ == Kind::any, shapes = kind_ == Kind::shaped || reads;
    static constexpr bool caps = kind_ == Kind::softcap, tilts = kind_ == Kind::alibi, biases = kind_ == Kind::bias, masks = kind_ == Kind::mask, lists = kind_ == Kind::keys, drops = kind_ == Kind::dropout; // one feature alone
    static constexpr bool finds = features && !lists; // a separate lane finds tiles
    static constexpr bool sorts = kind_ == Kind::layout; // up to 32 packed sequences by length
    static constexpr int dim = dim_, v_dim = v_dim_, keys = keys_; // of Q and K; of V and O; of a tile
    static constexpr int groups = groups_;     // computing warpgroups
    static constexpr int q_stages = q_stages_; // of Q
    static constexpr int stages = stages_;     // of K and of V
    static constexpr bool keep_q = keep_q_;    // Q in registers
    static constexpr int rows = 64 * groups, threads = 128 * (groups + 1);
    static constexpr int panels = (dim + 63) / 64, v_panels = (v_dim + 63) / 64, q_panel = rows * 128, panel = keys * 128; // of 64 columns; bytes per panel
    static constexpr int q_bytes = panels * q_panel, k_bytes = panels * panel, v_bytes = v_panels * panel;
    static constexpr int part_dim = v_dim > 128 ? 256 : v_dim > 64 ? 128 : 64; // of part_o, as decode_sm80_merge reads it
    static constexpr int k_at = q_stages * q_bytes, v_at = k_at + stages * k_bytes; // offsets in shared memory
    static constexpr int work_at = v_at + stages * v_bytes, places_at = work_at + 64 * (q_stages + 1), slots_at = places_at + (features ? sizeof(Place) : 0) * (q_stages + 1);
    static constexpr Turn turn = turn_of(kind_, dim, v_dim);
    static constexpr int turns = turn == Turn::none ? 0 : turn == Turn::begin ? q_stages : stages;
    static constexpr int barriers = 2 * q_stages + 5 * stages + (finds ? 1 : 0) + turns * (groups - 1);
    static constexpr int known_at = slots_at + (lists ? stages * sizeof(Slot) : 0), barriers_at = known_at + (lists ? 2 * sizeof(Known) : sorts ? sizeof(Order) : 0);
    static constexpr int side_at = (barriers_at + 8 * barriers + 127) / 128 * 128, side_bytes = biases ? 32 * keys : masks ? 16 * keys : drops ? 2 * keys : 0; // per warp: a tile of a bias or mask, or key_words
    static constexpr int shared = 1024 + (side_bytes ? side_at + 4 * groups * side_bytes : barriers_at + 8 * barriers); // 1024 to align
    static constexpr int fetch_registers = reads || split ? 56 : groups == 2 ? 40 : 32;
    static constexpr int compute_registers = reads || split ? 224 : groups == 2 ? 232 : 160;
};

// The block's shared memory. A stage's barriers: "full" when its contents are ready, "raw" when a cut tile of V has arrived,
// "empty" when all have read them.
template <class S> struct Shared {
    char *base;
    uint32_t at; // address of base, in a uniform register
    __device__ __forceinline__ volatile Work &work(int i) const { return ((Work *)(base + S::work_at))[i]; }
    __device__ __forceinline__ volatile Place &place(const volatile Work &w) const { return ((Place *)(base + S::places_at))[&w - &work(0)]; }
    __device__ __forceinline__ volatile Slot &slot(int stage) const { return ((Slot *)(base + S::slots_at))[stage]; }
    __device__ __forceinline__ volatile Known &known(int i) const { return ((Known *)(base + S::known_at))[i]; }
    __device__ __forceinline__ volatile Order &order() const { return *(Order *)(base + S::known_at); }
    __device__ __forceinline__ uint32_t q(int i) const { return at + i * S::q_bytes; } // [panels][rows][64]
    __device__ __forceinline__ uint32_t k(int i) const { return at + S::k_at + i * S::k_bytes; } // [panels][keys][64]
    __device__ __forceinline__ uint32_t v(int i) const { return at + S::v_at + i * S::v_bytes; } // [v_panels][keys][64]
    __device__ __forceinline__ uint32_t side(int warp) const { return at + S::side_at + warp * S::side_bytes; }
    __device__ __forceinline__ uint32_t q_full(int i) const { return at + S::barriers_at + 8 * i; }
    __device__ __forceinline__ uint32_t q_empty(int i) const { return q_full(S::q_stages + i); }
    __device__ __forceinline__ uint32_t k_full(int i) const { return q_full(2 * S::q_stages + i); }
    __device__ __forceinline__ uint32_t k_empty(int i) const { return k_full(S::stages + i); }
    __device__ __forceinline__ uint32_t v_full(int i) const { return k_full(2 * S::stages + i); }
    __device__ __forceinline__ uint32_t v_empty(int i) const { return k_full(3 * S::stages + i); }
    __device__ __forceinline__ uint32_t v_raw(int i) const { return k_full(4 * S::stages + i); }
    __device__ __forceinline__ uint32_t found() const { return v_raw(S::stages); } // the next tile of rows
    __device__ __forceinline__ uint32_t turn(int i, int group) const { return v_raw(S::stages + S::finds + i * (S::groups - 1) + group); } // the next warpgroup's, per stage
};

__device__ __forceinline__ bool has(const volatile uint32_t *list, int tile) { return list[tile / 32] >> tile % 32 & 1; }

// Scans a mask of `end` keys with a warp, 16 keys per lane at a time.
template <int keys> __device__ __forceinline__ void learn(volatile Known &to, const uint8_t *mask, int end) {
    constexpr int lanes = keys / 16, tiles = 32 / lanes; // per tile; per step
    constexpr uint32_t all = (1u << lanes) - 1;
    const int lane = threadIdx.x % 32;
    const bool aligned = ((uint64_t)mask & 15) == 0;
#pragma unroll 1
    for (int word = 0; word * 32 * keys < end; word++) {
        uint32_t seen = 0, whole = 0;
#pragma unroll 2
        for (int i = 0; i < lanes; i++) {
            const int key = word * 32 * keys + i * 512 + lane * 16;
            uint4 x = {};
            if (aligned && key + 16 <= end) x = *(const uint4 *)(mask + key);
            bool some = x.x | x.y | x.z | x.w, full = !((__vcmpeq4(x.x, 0) | __vcmpeq4(x.y, 0)) | (__vcmpeq4(x.z, 0) | __vcmpeq4(x.w, 0)));
            if (!aligned || key + 16 > end) {
                full = true;
#pragma unroll 4
                for (int j = key; j < min(key + 16, end); j++) some |= mask[j] != 0, full &= mask[j] != 0;
            }
            const uint32_t y = __ballot_sync(~0u, some) >> lane % tiles * lanes, z = __ballot_sync(~0u, full) >> lane % tiles * lanes;
            seen |= __ballot_sync(~0u, lane < tiles && y & all) << i * tiles, whole |= __ballot_sync(~0u, lane < tiles && (z & all) == all) << i * tiles;
        }
        if (lane == 0) to.seen[word] = seen, to.whole[word] = whole;
    }
    __syncwarp(); // all lanes see it
}

// Returns the last visible tile before another one; it must exist.
__device__ __forceinline__ int before(const volatile Known &known, int tile) {
    int word = (tile - 1) / 32;
    uint32_t bits = known.seen[word] & ~0u >> (31 - (tile - 1) % 32);
    while (!bits) bits = known.seen[--word];
    return 32 * word + 31 - __clz(bits);
}

// Reports whether tiles of V may be cut.
template <class S> __device__ __forceinline__ bool cuts(const Params &p, const Features &f) {
    return banded(p) || S::features && (S::reads || S::masks || S::lists || f.q_lens || f.kv_starts || f.kv_lens || f.page);
}

// Returns how many of some heads fit into the L2 cache with their K and V.
__device__ __forceinline__ int heads_in_cache(const Params &p, int heads, int keys) {
    return max(1, min(heads, (int)(16777216.f / ((float)keys * (p.dim + p.v_dim)))));
}

// Returns how many of all heads are processed together under a mask: the number that fits into the cache, half of it for Q
// and O if rows are few; or a slightly smaller divisor of `all`. Few are tried: divisions are slow, and instances for
// features call this per tile.
__device__ __forceinline__ int heads_together(const Params &p, int all) {
    const int most = heads_in_cache(p, all, p.q_len > 1536 ? p.kv_len : 2 * p.kv_len);
#pragma unroll 1
    for (int n = most; 2 * n > most && n > most - 8; n--)
        if (all % n == 0) return n;
    return most;
}

// A tile of rows of packed sequences: the nth of `count` of a head, numbered over all sequences; and the ticket after the
// nth tiles of the other heads. Sequence b has slots for its tiles from (starts[b] - starts[0]) / rows + b on, at most one
// too many. After the last slot, head is -1.
struct PackedTile { int head, nth, count, behind; };
template <class S> __device__ __forceinline__ PackedTile packed_tile(const Params &p, const Features &f, int ticket) {
    const int from = f.q_starts[0], slot = ticket / p.heads;
    auto first = [&](int b) { return (f.q_starts[b] - from) / S::rows + b; };
    if (slot >= first(p.batch)) return {-1};
    int b = 0; // it is among n sequences from b on
    for (int n = p.batch; n > 1;) {
        const int half = n / 2;
        if (first(b + half) <= slot) b += half, n -= half;
        else n = half;
    }
    const int count = first(b + 1) - first(b), at = ticket - first(b) * p.heads;
    const int wide = heads_in_cache(p, p.heads, f.kv_starts ? f.kv_starts[b + 1] - f.kv_starts[b] : p.kv_len);
    const int head0 = at / (wide * count) * wide, width = min(wide, p.heads - head0), place = at - head0 * count;
    return {b * p.heads + head0 + place % width, place / width, count, ticket - place % width + width};
}

// Sorts up to 32 sequences with a warp.
template <class S> __device__ __forceinline__ void sort(const Params &p, const Features &f, volatile Order &to) {
    const int lane = threadIdx.x % 32;
    const int rows = lane < p.batch ? f.q_starts[lane + 1] - f.q_starts[lane] : 0, tiles = (rows + S::rows - 1) / S::rows;
    const int keys = lane >= p.batch ? -1 : f.kv_starts ? f.kv_starts[lane + 1] - f.kv_starts[lane] : rows;
    int first = 0, nth = 0;
#pragma unroll 4
    for (int i = 0; i < 32; i++) {
        const int other = __shfl_sync(~0u, keys, i), n = __shfl_sync(~0u, tiles, i);
        if (other > keys || other == keys && i < lane) first += n, nth++;
    }
    to.first[nth] = first, to.of[nth] = lane;
    if (nth == 31) to.first[32] = first + tiles;
}

// A tile of rows in that order, the nth of `count` of a head of sequence b; b is -1 after the last slot.
struct SortedTile { int b, head, nth, count; };
template <class S> __device__ __forceinline__ SortedTile sorted_tile(const Params &p, const Features &f, const volatile Order &order, int ticket) {
    const int slot = ticket / p.heads, h = ticket - slot * p.heads;
    if (slot >= order.first[32]) return {-1};
    int i = 0;
    for (int half = 16; half > 0; half /= 2)
        if (order.first[i + half] <= slot) i += half;
    const int b = order.of[i], first = order.first[i], count = order.first[i + 1] - first;
    const int wide = heads_in_cache(p, p.heads, f.kv_starts ? f.kv_starts[b + 1] - f.kv_starts[b] : p.kv_len);
    if (wide == p.heads) return {b, h, slot - first, count};
    const int at = ticket - first * p.heads, head0 = at / (wide * count) * wide, width = min(wide, p.heads - head0), place = at - head0 * count;
    return {b, head0 + place % width, place / width, count};
}

// Finds tiles of query rows and their tiles of keys. Under a mask, heads that fit into the L2 cache together are processed
// row tile by row tile, longest first.
template <class S> struct Finder {
    const MapParams &a;
    const Features &f;
    const Shared<S> sh;
    const int group, all;
    const bool rising;
    const int together;
    __device__ __forceinline__ Finder(const MapParams &a, const Features &f, Shared<S> sh) : a(a), f(f), sh(sh),
        group(a.p.heads / a.p.kv_heads), all(a.p.batch * a.p.heads), rising(a.p.hi < a.p.kv_len - 1),
        together(banded(a.p) ? heads_together(a.p, all) : 1) {}

    // Returns the number of the block's next tile.
    __device__ __forceinline__ int next(int tile) const {
        return a.p.turn ? atomicAdd(a.p.turn, 1) + gridDim.x : tile + (rising && tile < gridDim.x ? 2 * (gridDim.x - tile) - 1 : gridDim.x);
    }

    // Sets w to tile number `tile` or, with features, the next existing one.
    __device__ __forceinline__ void operator()(int &tile, volatile Work &w) const {
        const Params &p = a.p;
        w.row0 = -1, w.count = 0;
    again:
        const int rows_of = S::split ? tile / p.splits : tile; // the parts of a tile are neighbors
        int head, row0, end, first = 0, size = 1, behind = 0;
        [[maybe_unused]] int sequence = -1; // sorted: head is within it
        const bool alike = !S::features && a.tall == 0; // all tiles are low
        const int place = rows_of - a.tall * all, tiles = alike ? a.low : a.tall, rows = alike ? a.low_rows : S::rows;
        if (S::sorts && f.row_slots && p.batch <= 32) {
            const SortedTile t = sorted_tile<S>(p, f, sh.order(), rows_of);
            if (t.b < 0) return;
            head = t.head, row0 = (rising ? t.count - 1 - t.nth : t.nth) * S::rows, end = row0 + S::rows, sequence = t.b;
        } else if (S::features && f.row_slots) {
            const PackedTile t = packed_tile<S>(p, f, rows_of);
            if (t.head < 0) return;
            head = t.head, row0 = (rising ? t.count - 1 - t.nth : t.nth) * S::rows, end = row0 + S::rows, behind = t.behind;
        } else if (rows_of >= (a.tall + a.low) * all) {
            return;
        } else if (alike || place < 0) {
            first = rows_of / (together * tiles) * together, size = min(together, all - first);
            const int nth = (rows_of - first * tiles) / size;
            // If later rows see more keys, the partial tile is the first, which sees the fewest; unless a tile's begin changes
            // the order of a row's sums.
            const bool ends = !S::features && S::groups == 3 && rising && !alike && p.lo + p.q_len + p.kv_len <= 0;
            const int spare = ends ? max(0, tiles * rows - p.q_len) / 64 * 64 : 0;
            head = rows_of - first * (tiles - 1) - nth * size, end = ((rising ? tiles - 1 - nth : nth) + 1) * rows - spare, row0 = max(0, end - rows);
        } else {
            head = place / a.low, row0 = a.tall * S::rows + place % a.low * a.low_rows, end = row0 + a.low_rows;
        }
        const int b = S::sorts && sequence >= 0 ? sequence : head / p.heads;
        auto own_head = [&] { return S::sorts && sequence >= 0 ? head : head % p.heads; };
        const Extent<S::features> e(p, f, b);
        if (S::features && row0 >= e.row_end()) { // after a sequence's end: all blocks skip the next such tiles
            const int next = f.row_slots ? behind : place >= 0 ? a.tall * all + (e.row_end() > a.tall * S::rows ? head + 1 : (b + 1) * p.heads) * a.low
                : first / p.heads < (first + size - 1) / p.heads ? rows_of + min((b + 1) * p.heads, first + size) - head
                : first * a.tall + (a.tall - (rising ? (e.row_end() + S::rows - 1) / S::rows : 0)) * size;
            if (p.turn) atomicMax(p.turn, next - (int)gridDim.x), tile = atomicAdd(p.turn, 1) + gridDim.x;
            else tile += max(1, (next - tile + (int)gridDim.x - 1) / (int)gridDim.x) * gridDim.x;
            goto again;
        }
        end = min(end, e.row_end());
        const int last_row = (S::features ? min(end, e.rows()) : end) - 1;
        w.row0 = row0, w.end = end, w.head = own_head(), w.kv_head = own_head() / group, w.batch = S::sorts ? b : head / p.heads, w.odd = 0;
        const int lo = min(max(e.lo(), -e.rows()), e.keys()), hi = max(min(e.hi(), e.keys()), -e.rows());
        const int last_key = min(e.keys() - 1, last_row + hi);
        int from = max(0, row0 + lo) / S::keys;
        int to = last_key < max(0, row0 + lo) || S::features && last_row < row0 ? from - 1 : last_key / S::keys;
        int full_to = max(from - 1, max(0, min(e.keys(), row0 + hi + 1)) / S::keys - 1);
        int open_from = (max(0, last_row + lo) + S::keys - 1) / S::keys;
        if constexpr (S::split) {
            const int part = tile - rows_of * p.splits, each_part = (to - from + 1) / p.splits, more = (to - from + 1) % p.splits;
            from += each_part * part + min(part, more), to = from + each_part - (part < more ? 0 : 1);
            full_to = max(from - 1, min(full_to, to)), w.part = part;
        }
        [[maybe_unused]] const int band_to = full_to;
        if constexpr (S::features) {
            if (S::masks || S::lists || S::reads && f.mask.data || to < from) full_to = from - 1; // every tile is an edge,
            if (S::masks || S::reads && f.mask.data) open_from = kReach;              // and cut
            volatile Place &at = sh.place(w);
            at.lo = e.lo(), at.hi = e.hi(), at.keys = e.keys(), at.rows = e.rows(), at.row_end = e.row_end();
            if (S::tilts || S::shapes && f.slopes.data) at.slope = slope_of(f, b, own_head());
            at.sink = sink_of(f, own_head());
            at.q_batch = e.q_batch(), at.q0 = e.q0(), at.kv_batch = e.kv_batch(), at.key0 = e.s.key0, at.diagonal = e.s.diagonal;
        }
        w.count = to - from + 1, w.right = to - full_to, w.edges = to - full_to + max(0, min(open_from, full_to + 1) - from);
        w.from = from, w.full_to = full_to, w.open_from = open_from, w.open_to = row0 + hi + 1 >= e.keys() && !(S::features && (e.keys() != p.kv_len || f.kv_starts || f.page)) ? to : S::lists ? band_to : full_to;
        w.first = w.tile(0);
    }
};

// Reduces the work's tiles to the visible ones.
__device__ __forceinline__ void select(volatile Work &w, const volatile Known &known, int side) {
    const int lane = threadIdx.x % 32;
    int count = 0;
    for (int word = lane; word < kKnown; word += 32) {
        const int from = w.from - 32 * word, to = w.from + w.right - 32 * word;
        if (from < 32 && to > 0) count += __popc(known.seen[word] & ~0u << max(from, 0) & ~0u >> (32 - min(to, 32)));
    }
    count = __reduce_add_sync(~0u, count);
    if (lane == 0) w.count = w.edges = count, w.part = side, w.first = count ? before(known, w.from + w.right) : 0;
    __syncwarp(); // all lanes see it
}

// Returns a tile's Slot::shown.
template <int keys> __device__ __forceinline__ uint4 shown_keys(const volatile Known &known, const uint8_t *mask, int tile, int end) {
    if (has(known.whole, tile)) return {~0u, ~0u, ~0u, ~0u};
    const int key = tile * keys + threadIdx.x % 32 * 4;
    uint32_t x = 0;
    if (threadIdx.x % 32 < keys / 4) {
        if (((uint64_t)mask & 3) == 0 && key + 4 <= end) x = *(const uint32_t *)(mask + key);
        else for (int j = key; j < min(key + 4, end); j++) x |= (uint32_t)mask[j] << (j - key) * 8;
    }
    uint32_t bits[4]; // bit l of word j is for key 4 l + j
    each<4>([&](int j) { bits[j] = __ballot_sync(~0u, x >> 8 * j & 0xff); });
    auto word = [&](int t) { return (bits[t % 2 * 2] >> t / 2 & 0x55555555) | (bits[t % 2 * 2 + 1] >> t / 2 & 0x55555555) << 1; };
    return {word(0), word(1), word(2), word(3)};
}

// The three warps that scan cut tiles of V. With features, one lane finds each tile of rows when the previous one has
// arrived: that takes as long as several tiles of keys.
template <class S> __device__ __forceinline__ void look(const MapParams &a, const Features &f, Shared<S> sh) {
    using T = typename S::T;
    const int thread = threadIdx.x - 32;
    Ring<S::q_stages> q(0);
    Ring<S::q_stages + 1> place(0);
    Ring<S::stages> v(0);
    uint32_t raw = 0; // bit i: the parity of v_raw(i)
    [[maybe_unused]] int tile = blockIdx.x, drawn = -1; // drawn: the next tile's number, drawn early after a short tile
    [[maybe_unused]] auto find = [&](int nth) {
        if (thread == 0) Finder<S>(a, f, sh)(tile, sh.work(nth)), barrier_arrive(sh.found());
        __syncwarp();
    };
    if constexpr (S::finds) find(0);
    while (true) {
        barrier_wait(sh.q_full(q.stage), q.parity);
        volatile Work &w = sh.work(place.stage);
        if (w.row0 < 0) break;
        if constexpr (S::finds) { // replaces a free Work: else this Q could not have arrived
            if (S::sorts && drawn >= 0) tile = drawn;
            else if (thread == 0) tile = a.p.turn ? atomicAdd(a.p.turn, 1) + gridDim.x : tile + gridDim.x;
            find(place.stage == S::q_stages ? 0 : place.stage + 1);
            if constexpr (S::sorts) {
                drawn = -1;
                volatile Work &next = sh.work(place.stage == S::q_stages ? 0 : place.stage + 1);
                if (thread == 0 && a.p.turn && next.row0 >= 0 && next.count <= 2) drawn = atomicAdd(a.p.turn, 1) + gridDim.x;
            }
        }
#pragma unroll 1
        for (int n = 0; n < (S::finds ? w.edges : w.count); n++, v.next()) { // other tiles are not cut
            if (!S::lists && !w.cut(n)) continue;
            barrier_wait(sh.v_raw(v.stage), raw >> v.stage & 1);
            raw ^= 1 << v.stage;
            if constexpr (S::lists) {
                const bool cut = sh.slot(v.stage).cut;
                __syncwarp(); // all lanes have read
                if (thread % 32 == 0) barrier_arrive(sh.v_empty(v.stage));
                if (!cut) continue;
            }
            uint4 *tile = (uint4 *)(sh.base + (sh.v(v.stage) - sh.at)), odd = {};
#pragma unroll 6
            for (int i = thread; i < S::v_bytes / 16; i += 96) { // without branches: the products of values wait
                const uint4 x = tile[i];
                odd = {zero_times<T>(x.x, odd.x), zero_times<T>(x.y, odd.y), zero_times<T>(x.z, odd.z), zero_times<T>(x.w, odd.w)};
            }
            if (odd.x | odd.y | odd.z | odd.w) {
                w.odd = 1;
                for (int i = thread; i < S::v_bytes / 16; i += 96) {
                    const uint4 x = tile[i];
                    tile[i] = {clear_nonfinite<T>(x.x), clear_nonfinite<T>(x.y), clear_nonfinite<T>(x.z), clear_nonfinite<T>(x.w)};
                }
            }
            async_fence();        // the products see the zeros
            named_barrier(1, 96); // all threads are done
            if (thread == 0) barrier_arrive(sh.v_full(v.stage));
        }
        if constexpr (S::finds) v.stage = (v.stage + w.count - w.edges) % S::stages;
        __syncwarp(); // all lanes have read the work
        if (thread % 32 == 0) barrier_arrive(sh.q_empty(q.stage));
        q.next(), place.next();
    }
}

// Ends a row: merges sink and earlier keys into m, in natural units, and l, for LSE; own and before become the factors of
// its O and of the earlier keys' O.
__device__ __forceinline__ void end_row(float &m, float &l, float &own, float &before, float keep, float sink, float carried, bool real) {
    const Shares x = real ? shares(m, l, sink, carried) : Shares{0, 0, -infinity, 1};
    const float by = __fdividef(1, x.sum);
    own = x.mine * by * keep, before = x.earlier * by, m = x.top, l = x.sum;
}

// Writes o, maximum and sum of the thread's rows over a part of the keys, for decode_sm80_merge.
template <class S> __device__ __forceinline__ void write_part(const Params &p, const volatile Work &w, const float (&o)[S::v_dim / 2], const float (&m)[2], const float (&l)[2], int row, int end) {
    const int64_t first = (((int64_t)w.part * p.batch + w.batch) * p.heads + w.head) * p.q_len;
    const int lane = threadIdx.x % 32;
    each<2>([&](int r) {
        const int64_t at = first + row + 8 * r;
        if (row + 8 * r >= end) return;
        each<S::part_dim / 8>([&](int i) { *(float2 *)(p.part_o + at * S::part_dim + i * 8 + lane % 4 * 2) = i < S::v_dim / 8 ? float2{o[4 * i + 2 * r], o[4 * i + 2 * r + 1]} : float2{0, 0}; });
        if (lane % 4 == 0) ((float2 *)p.part_lse)[at] = {m[r], l[r]};
    });
}

// Adds the cleared elements of V to part_o of the warp's 16 rows, from `top` on.
template <class S> __device__ __forceinline__ void add_odd_part(const Params &p, const volatile Work &w, int top, int end) {
    const uint16_t *value = (const uint16_t *)p.v.data + w.batch * p.v.batch + w.kv_head * p.v.head; // [kv_len, v_dim]
    const int64_t first = (((int64_t)w.part * p.batch + w.batch) * p.heads + w.head) * p.q_len;
    __syncwarp(); // the warp's rows are written
    for (int i = threadIdx.x % 32; i < 16 * p.v_dim; i += 32) {
        const int see = top + i % 16, column = i / 16;
        if (see >= end) continue;
        float sum = 0;
        for (int n = 0; n < w.edges; n++) {
            const int to = min(min((w.tile(n) + 1) * S::keys, p.kv_len), see + p.hi + 1);
#pragma unroll 1
            for (int j = max(w.tile(n) * S::keys, see + p.lo); w.cut(n) && j < to; j++) {
                const float x = widen<typename S::T>(value[j * p.v.row + column]);
                if (!(fabsf(x) < __int_as_float(0x7f800000))) sum += x;
            }
        }
        if (sum != 0) p.part_o[(first + see) * S::part_dim + column] += sum;
    }
}
