// The order of work in fwd_sm90: which tile of query rows a block computes next, and which tiles of keys its rows see.
#pragma once
#include "fwd_sm90.cuh"

__device__ __forceinline__ bool has(const volatile uint32_t *list, int tile) { return list[tile / 32] >> tile % 32 & 1; }

// Sets the bits of `to` for a mask of `end` keys. Each lane of the warp scans 16 keys at a time.
template <int keys> __device__ __forceinline__ void learn(volatile Known &to, const uint8_t *mask, int end) {
    constexpr int lanes = keys / 16, tiles = 32 / lanes; // lanes per tile; tiles per step
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
    __syncwarp(); // all lanes see `to`
}

// Returns the last tile before `tile` that has a visible key. Such a tile must exist.
__device__ __forceinline__ int before(const volatile Known &known, int tile) {
    int word = (tile - 1) / 32;
    uint32_t bits = known.seen[word] & ~0u >> (31 - (tile - 1) % 32);
    while (!bits) bits = known.seen[--word];
    return 32 * word + 31 - __clz(bits);
}

// Reports whether tiles of V may be cut: some row may not see all keys of a tile.
template <class S> __device__ __forceinline__ bool cuts(const Params &p, const Features &f) {
    return banded(p) || S::features && (S::reads || S::masks || S::lists || S::ranges || f.q_lens || f.kv_starts || f.kv_lens || f.page);
}

// Returns the number of heads, from 1 to `heads`, whose K and V fit into the L2 cache together. A head has `keys` keys.
__device__ __forceinline__ int heads_in_cache(const Params &p, int heads, int keys) {
    return max(1, min(heads, (int)(16777216.f / ((float)keys * (p.dim + p.v_dim)))));
}

// Returns the number of heads that are processed together if a mask hides keys. The result is the number of heads that fit
// into the L2 cache, or a slightly smaller divisor of `all`. If rows are few, half of the cache is left for Q and O. Few
// divisors are tried, because divisions are slow and instances for features call this function for every tile.
__device__ __forceinline__ int heads_together(const Params &p, int all) {
    const int most = heads_in_cache(p, all, p.q_len > 1536 ? p.kv_len : 2 * p.kv_len);
#pragma unroll 1
    for (int n = most; 2 * n > most && n > most - 8; n--)
        if (all % n == 0) return n;
    return most;
}

// A tile of rows of packed sequences. head is the sequence's index times p.heads plus the head's index. nth is the index of
// the tile among the head's `count` slots. behind is the first ticket after the tickets for tile nth of all heads that are
// processed together. After the last slot, head is -1.
//
// The slots for the tiles of sequence b begin at slot (starts[b] - starts[0]) / rows + b. A sequence may have one slot more
// than tiles.
struct PackedTile { int head, nth, count, behind; };
template <class S> __device__ __forceinline__ PackedTile packed_tile(const Params &p, const Features &f, int ticket) {
    const int from = f.q_starts[0], slot = ticket / p.heads;
    auto first = [&](int b) { return (f.q_starts[b] - from) / S::rows + b; };
    if (slot >= first(p.batch)) return {-1};
    int b = 0; // the slot is of one of n sequences from b on
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

// Sorts up to 32 sequences by their numbers of keys, most keys first. Runs in one warp.
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

// A tile of rows of sequence b, in the order that sort() computes. nth is the index of the tile among the head's `count`
// tiles. After the last slot, b is -1.
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

// Finds tiles of query rows, and the tiles of keys that the rows see. If a mask hides keys, heads that fit into the L2 cache
// are processed together: first the row tile of each head that sees most keys, then the next row tile of each head.
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

    // Sets w to tile number `tile`. With features, if this tile is after the end of its sequence, draws further tiles until a
    // tile has rows.
    __device__ __forceinline__ void operator()(int &tile, volatile Work &w) const {
        const Params &p = a.p;
        w.row0 = -1, w.count = 0;
    again:
        const int rows_of = S::split ? tile / p.splits : tile; // the parts of a tile have adjacent numbers
        int head, row0, end, first = 0, size = 1, behind = 0;
        [[maybe_unused]] int sequence = -1; // if tiles are sorted: the tile's sequence; `head` is then an index in this sequence
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
            // One tile of each head may have fewer rows than the others. If later rows see more keys, the first tile has
            // fewer rows. But if the first row of a tile affects the order of a row's sums, the last tile has fewer rows.
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
            if (S::masks || S::lists || S::reads && f.mask.data || to < from) full_to = from - 1; // every tile is an edge
            if (S::masks || S::reads && f.mask.data) open_from = kReach;              // every tile is cut
            volatile Place &at = sh.place(w);
            at.lo = e.lo(), at.hi = e.hi(), at.keys = e.keys(), at.rows = e.rows(), at.row_end = e.row_end();
            if (S::tilts || S::shapes && f.slopes.data) at.slope = slope_of(f, b, own_head());
            at.sink = sink_of(f, own_head());
            at.q_batch = e.q_batch(), at.q0 = e.q0(), at.kv_batch = e.kv_batch(), at.key0 = e.s.key0, at.diagonal = e.s.diagonal;
        }
        w.count = to - from + 1, w.right = to - full_to, w.edges = to - full_to + max(0, min(open_from, full_to + 1) - from);
        w.from = from, w.full_to = full_to, w.open_from = S::ranges ? kReach : open_from, w.open_to = row0 + hi + 1 >= e.keys() && !(S::features && (e.keys() != p.kv_len || f.kv_starts || f.page)) ? to : S::lists ? band_to : full_to;
        if constexpr (S::ranges) w.open_to = full_to + w.edges;
        w.first = w.tile(0);
    }
};

// Removes the tiles without visible keys from w, a Work. side is the index of `known` in shared memory.
__device__ __forceinline__ void select(volatile Work &w, const volatile Known &known, int side) {
    const int lane = threadIdx.x % 32;
    int count = 0;
    for (int word = lane; word < kKnown; word += 32) {
        const int from = w.from - 32 * word, to = w.from + w.right - 32 * word;
        if (from < 32 && to > 0) count += __popc(known.seen[word] & ~0u << max(from, 0) & ~0u >> (32 - min(to, 32)));
    }
    count = __reduce_add_sync(~0u, count);
    if (lane == 0) w.count = w.edges = count, w.part = side, w.first = count ? before(known, w.from + w.right) : 0;
    __syncwarp(); // all lanes see w
}

// Kind::ranges: sets the tiles of keys of w. These are the tiles in which some row sees a key. A tile is an edge if some row does
// not see all of its keys. Of two runs of tiles that are no edges, the shorter one becomes edges. Runs in one warp.
template <class S> __device__ __forceinline__ void bound(const Params &p, const Features &f, volatile Work &w) {
    __syncwarp(); // w is set
    if (w.row0 < 0) return;
    // Lane 8 i + 4 j + k loads number k of array j for the i-th 64 rows.
    const int lane = threadIdx.x % 32, blocks = (w.end - w.row0 + 63) / 64, at = w.row0 / 64 + min(lane / 8, blocks - 1);
    int x = ((const int *)(bounds_of(p, f, p.heads, w.batch, w.head, lane / 4 % 2) + at))[lane % 4];
    each<2>([&](int i) {
        const int y = __shfl_xor_sync(~0u, x, 8 << i);
        x = lane % 2 == lane / 4 % 2 ? min(x, y) : max(x, y);
    });
    int from[2], to[2], whole_from[2], whole_to[2]; // in tiles of keys
    each<2>([&](int r) {
        from[r] = __shfl_sync(~0u, x, 2 * r) / S::keys, to[r] = (__shfl_sync(~0u, x, 2 * r + 1) + S::keys - 1) / S::keys;
        whole_from[r] = (__shfl_sync(~0u, x, 2 * r + 4) + S::keys - 1) / S::keys, whole_to[r] = __shfl_sync(~0u, x, 2 * r + 5) / S::keys;
    });
    if (lane) return;
    const int low = from[1] < from[0], begin = min(from[0], from[1]);
    const int gap = to[1 - low] ? max(0, from[1 - low] - to[low]) : 0, gap_from = gap ? to[low] : kReach;
    const int count = max(0, max(to[0], to[1]) - begin - gap), which = whole_to[1] - whole_from[1] > whole_to[0] - whole_from[0];
    const int length = count ? max(0, whole_to[which] - whole_from[which]) : 0, moved = whole_from[which] >= gap_from ? gap : 0;
    const int full_to = length ? whole_to[which] - moved - 1 : begin - 1;
    w.count = count, w.edges = count - length, w.right = begin + count - 1 - full_to;
    w.from = begin, w.full_to = full_to, w.open_from = gap_from, w.open_to = whole_to[which] - 1 + count - length, w.part = gap;
    w.first = key_tile<S>(w, 0);
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
