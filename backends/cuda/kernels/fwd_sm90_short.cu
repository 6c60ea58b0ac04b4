// fwd_sm90_short is fwd_sm90 for heads of few rows or few keys:
//
//	for each tile of 64 query rows i, by a warpgroup:
//		m, l, o = -inf, 0, 0
//		for each tile of keys that some row sees, in ascending order:
//			s = Q[i]·K[j] for each key j of the tile, -inf where i does not see j
//			n = max(m, max(c s)); a = 2^(m-n); m = n
//			p = 2^(c s - m); l = a l + sum(p); o = a o + p·V
//		O[i] = o / l; LSE[i] = ln(2) m + ln(l)
//
// with c = scale log2(e). Unlike fwd_sm90, it has no persistent blocks and no specialized
// warps. Instead, several small blocks share a multiprocessor: while one block waits, others
// multiply.
//
// Compiled with -gencode=arch=compute_90a,code=sm_90a only.
//
// Launch: MapParams by value; grid.x = batch * heads * tiles, where tiles = ceil(q_len / rows);
// the Plan gives threads and shared memory. The tensor maps have 16-bit elements, rank 4,
// 128-byte swizzle, no interleaving, and zeros outside the tensor:
//
//	   dims, innermost first            strides in bytes    box
//	q  dim, q_len, heads, batch         row, head, batch    64, 64, 1, 1
//	k  dim, kv_len, kv_heads, batch     row, head, batch    64, keys, 1, 1
//	v  v_dim, kv_len, kv_heads, batch   row, head, batch    64, keys, 1, 1
//	o  v_dim, q_len, heads, batch       row, head, batch    64, 64, 1, 1
//
// Addresses and strides are multiples of 16 bytes; a dimension of size 1 may have any such stride.
// With kv_len = 0, k and v are not read. Of the views in MapParams::p, the kernel uses only v,
// o and lse.
//
// A block processes one tile of a head's rows, 64 per warpgroup. If all tiles of keys fit
// into the stages, they are loaded at once; otherwise one thread refills stages that all
// warps have released. If a warpgroup sees only few keys of its last tile of keys, its products
// use only the first 16, 64 or 80 keys of this tile. O is staged in the shared memory of Q.
// s, o and p have wgmma's layouts.
//
// A hidden key has p = 0, but if its V is not finite, p V is NaN. So if lo or hi hides keys, the
// block checks o at the end. If o is not finite, the block processes the rows again, with
// non-finite elements of V replaced by 0. Finally it adds these elements to the rows that see
// their keys.
#include "far.cuh"
#include "sm90.cuh"
#include "tile.cuh"

struct MapParams {
    TensorMap q, k, v, o;
    Params p;
    int tiles, unused[2]; // tiles: row tiles per head
};

template <class Type, int dim_, int groups_, int keys_, int stages_> struct Shape {
    using T = Type;
    static constexpr int dim = dim_, keys = keys_;
    static constexpr int groups = groups_;     // warpgroups
    static constexpr int stages = stages_;     // stages of K, and of V
    static constexpr int most_left = keys > 80 ? 80 : 16; // a last tile has smaller products, of 16, 64 or 80 keys, if at most most_left of its keys are visible
    static constexpr int rows = 64 * groups, threads = 128 * groups;
    static constexpr int panels = (dim + 63) / 64, q_panel = 64 * 128, panel = keys * 128; // panels of 64 columns; bytes of a panel of Q, of K or V
    static constexpr int q_bytes = panels * q_panel, tile_bytes = panels * panel;
    static constexpr int k_at = groups * q_bytes, v_at = k_at + stages * tile_bytes, barriers_at = v_at + stages * tile_bytes;
    static constexpr int shared = 1024 + barriers_at + 8 * (groups + 4 * stages + 1); // 1024 to align
};

#define OUT_16 OUT(0)
#define LIST_16 "%0,%1,%2,%3,%4,%5,%6,%7"
WGMMA(16, LIST_16, "{%8,%9,%10,%11}", "%12", "%13", "%14", "%8", "%9", "%10", "%11")

// The block's shared memory. A phase of a stage's "full" barrier ends when the contents have arrived. A phase of the stage's
// "empty" barrier ends when all warps have read the contents. "cleared" has one phase per tile of V that is cleared.
template <class S> struct Shared {
    uint32_t at; // in a uniform register
    static __device__ __forceinline__ char *pointer(uint32_t address) { return (char *)__cvta_shared_to_generic(address); }
    __device__ __forceinline__ uint32_t q(int group) const { return at + group * S::q_bytes; }                // [panels][64][64]
    __device__ __forceinline__ uint32_t k(int i) const { return at + S::k_at + i * S::tile_bytes; } // [panels][keys][64]
    __device__ __forceinline__ uint32_t v(int i) const { return at + S::v_at + i * S::tile_bytes; }
    __device__ __forceinline__ uint32_t q_full(int group) const { return at + S::barriers_at + 8 * group; }
    __device__ __forceinline__ uint32_t k_full(int i) const { return q_full(S::groups + i); }
    __device__ __forceinline__ uint32_t k_empty(int i) const { return k_full(S::stages + i); }
    __device__ __forceinline__ uint32_t v_full(int i) const { return k_full(2 * S::stages + i); }
    __device__ __forceinline__ uint32_t v_empty(int i) const { return k_full(3 * S::stages + i); }
    __device__ __forceinline__ uint32_t cleared() const { return k_full(4 * S::stages); }
    __device__ __forceinline__ void init() const {
        for (int i = 0; i < S::groups; i++) barrier_init(q_full(i), 1);
        barrier_init(cleared(), 4 * S::groups);
        for (int i = 0; i < S::stages; i++) {
            barrier_init(k_full(i), 1), barrier_init(v_full(i), 1);
            barrier_init(k_empty(i), 4 * S::groups), barrier_init(v_empty(i), 4 * S::groups);
        }
        barrier_fence();
    }
};

// The results of these functions are recomputed at each use, to save registers.
__device__ __forceinline__ unsigned thread() { return (unsigned)fresh(threadIdx.x) % 128; } // of the warpgroup
__device__ __forceinline__ unsigned lane() { return (unsigned)fresh(threadIdx.x) % 32; }
__device__ __forceinline__ bool leads() { return fresh(threadIdx.x) % 128 == 0; } // first of its warpgroup
__device__ __forceinline__ bool asks() { return fresh(threadIdx.x) == 0; }

// A block's work: a tile of a head's rows, and the tiles of keys that some row sees.
template <class S> struct Block {
    int batch, head, kv_head;
    int row0;        // first row
    int from, count; // first tile of keys, number of tiles
    bool stays;      // each tile of keys has its own stage
    int base = 0;    // number of tiles of keys that used the stages in the first pass

    __device__ __forceinline__ explicit Block(const MapParams &a) {
        const Params &p = a.p;
        const int all = a.tiles == 1 ? blockIdx.x : blockIdx.x / a.tiles, tile = blockIdx.x - all * a.tiles; // divisions are slow
        row0 = (p.hi < p.kv_len - 1 ? a.tiles - 1 - tile : tile) * S::rows; // longest first
        batch = all / p.heads, head = all - batch * p.heads, kv_head = p.heads == p.kv_heads ? head : head / (p.heads / p.kv_heads);
        const int first = max(0, row0 + p.lo), last = min(p.kv_len - 1, min(row0 + S::rows, p.q_len) - 1 + p.hi);
        from = first / S::keys, count = last < first ? 0 : last / S::keys - from + 1;
        stays = count <= S::stages;
    }
    // The nth tile of keys is loaded into stage(n), after round(n) earlier tiles in the same stage.
    __device__ __forceinline__ int stage(int n) const { return unsigned(n + base) % S::stages; }
    __device__ __forceinline__ int round(int n) const { return unsigned(n + base) / S::stages; }
    __device__ __forceinline__ int key(int n) const { return (from + n) * S::keys; }

    __device__ __forceinline__ void ask(const TensorMap &map, int n, uint32_t to, uint32_t full, uint32_t empty) const {
        if (round(n) > 0) barrier_wait(empty, round(n) - 1 & 1);
        barrier_expect(full, S::tile_bytes);
        each<S::panels>([&](int i) { box_load(to + i * S::panel, map, 64 * i, key(n), kv_head, batch, full); });
    }
    __device__ __forceinline__ void ask_k(const MapParams &a, const Shared<S> &sh, int n) const {
        const int i = stage(n);
        ask(a.k, n, sh.k(i), sh.k_full(i), sh.k_empty(i));
    }
    __device__ __forceinline__ void ask_v(const MapParams &a, const Shared<S> &sh, int n) const {
        const int i = stage(n);
        ask(a.v, n, sh.v(i), sh.v_full(i), sh.v_empty(i));
    }
    // Loads a warpgroup's Q.
    __device__ __forceinline__ void ask_q(const MapParams &a, const Shared<S> &sh, int g) const {
        const int from = row0 + g * 64;
        if (from >= a.p.q_len) return;
        barrier_expect(sh.q_full(g), S::q_bytes);
        each<S::panels>([&](int i) { box_load(sh.q(g) + i * S::q_panel, a.q, 64 * i, from, head, batch, sh.q_full(g)); });
    }
    // Loads tile n and the following tiles, up to one tile per stage.
    __device__ __forceinline__ void fill(const MapParams &a, const Shared<S> &sh, int n) const {
#pragma unroll 1
        for (; n < min(S::stages, count); n++) ask_k(a, sh, n), ask_v(a, sh, n);
    }
    // Loads the first tiles.
    __device__ __forceinline__ void begin(const MapParams &a, const Shared<S> &sh) const {
        ask_q(a, sh, 0);
        if (count > 0) ask_k(a, sh, 0), ask_v(a, sh, 0);
        for (int g = 1; g < S::groups; g++) ask_q(a, sh, g);
        fill(a, sh, 1);
    }
};

// Replaces the non-finite elements of the nth tile of V by 0. All threads of the block call clear. Because warpgroups may
// call clear at different places of the code, a barrier in shared memory replaces __syncthreads.
template <class S> __device__ __forceinline__ void clear(char *v, uint32_t cleared, int n) {
    using T = typename S::T;
    uint4 *const x = (uint4 *)v;
#pragma unroll 1
    for (int i = threadIdx.x; i < S::tile_bytes / 16; i += S::threads) {
        const uint4 y = x[i];
        x[i] = {clear_nonfinite<T>(y.x), clear_nonfinite<T>(y.y), clear_nonfinite<T>(y.z), clear_nonfinite<T>(y.w)};
    }
    async_fence(); // makes the zeros visible to wgmma
    __syncwarp();
    if (fresh(threadIdx.x) % 32 == 0) barrier_arrive(cleared);
    barrier_wait(cleared, n & 1);
}

// A warpgroup and its 64 rows. The thread's rows are row() and row() + 8.
template <class S> struct Group {
    const MapParams &a;
    const Params &p = a.p;
    const Shared<S> &sh;
    const Block<S> &block;
    const float c; // factor that converts scores to log2 units
    const int group, top_row;
    const uint32_t q_tile, q_full; // addresses of Q and of its barrier

    __device__ __forceinline__ Group(const MapParams &a, const Shared<S> &sh, const Block<S> &block, float c, int group)
        : a(a), sh(sh), block(block), c(c), group(group), top_row(block.row0 + group * 64), q_tile(sh.q(group)), q_full(sh.q_full(group)) {}

    __device__ __forceinline__ int row() const {
        const unsigned i = thread();
        return top_row + int(i / 32 * 16 + i % 32 / 4);
    }
    // Synchronizes the warpgroup.
    __device__ __forceinline__ void meet() const {
        if (group == 0) named_barrier(1, 128);
        else named_barrier(2, 128);
    }
    // Releases a stage.
    __device__ __forceinline__ void give(uint32_t empty) const {
        if (!block.stays && lane() == 0) barrier_arrive(empty);
    }
    // Loads tile n - 1 + S::stages, if there is such a tile, into the stage of tile n - 1. Called once for each n >= 1.
    __device__ __forceinline__ void more(int n) const {
        if (block.stays || !asks()) return;
        const int next = n - 1 + S::stages;
        if (next < block.count) block.ask_k(a, sh, next), block.ask_v(a, sh, next);
    }
};

// The sums of a warpgroup's rows, in the layout of wgmma: element i is in row i % 4 / 2 of the thread's two rows. The arrays are
// outside RowTile, because the compiler promotes fields of a struct to registers before it unrolls loops over arrays.
template <class S> struct Sums {
    float o[S::dim / 2], m[2] = {-infinity, -infinity}, l[2] = {}; // m and l: scaled maximum and sum of each row
    float down[2], top[2];  // factors that rescale o and l when m rises; numbers to subtract from c s
    volatile float most[2]; // highest score of a far row; in local memory to save registers
};

// RowTile performs one pass of a warpgroup over the tiles of keys.
template <class S> struct RowTile {
    using T = typename S::T;
    const Group<S> &g;
    const bool careful; // the second pass, with V cleared
    const bool sees;    // some row sees a key
    const int first;    // the first tile with keys that some row sees
    float (&o)[S::dim / 2], (&m)[2], (&l)[2], (&down)[2], (&top)[2]; // of Sums
    volatile float (&most)[2];

    __device__ __forceinline__ RowTile(const Group<S> &g, bool careful, bool sees, int first, Sums<S> &x)
        : g(g), careful(careful), sees(sees), first(first), o(x.o), m(x.m), l(x.l), down(x.down), top(x.top), most(x.most) {
        each<S::dim / 2>([&](int i) { o[i] = 0; });
    }

    // Waits for V.
    __device__ __forceinline__ void receive(int n) const {
        barrier_wait(g.sh.v_full(g.block.stage(n)), g.block.round(n) & 1);
        if (careful) clear<S>(g.sh.pointer(g.sh.v(g.block.stage(n))), g.sh.cleared(), n);
    }
    // Skips a hidden tile.
    __device__ __forceinline__ void pass_by(int n) const {
        barrier_wait(g.sh.k_full(g.block.stage(n)), g.block.round(n) & 1);
        g.give(g.sh.k_empty(g.block.stage(n)));
        receive(n);
        g.give(g.sh.v_empty(g.block.stage(n)));
        g.more(n + 1);
    }

    // s holds the scores of the first 2 * size keys of tile n.
    template <int size> __device__ __forceinline__ void start_scores(int n, float (&s)[size]) const; // s = Q K^T, in flight
    template <int steps> __device__ __forceinline__ void start_values(int n, const uint32_t (&weights)[steps][4]); // o += P V, in flight
    template <int size> __device__ __forceinline__ void hide(int n, float (&s)[size]) const; // sets the scores of hidden pairs and missing keys to -inf
    template <int size> __device__ __forceinline__ void maxima(float (&s)[size]);
    template <int size> __device__ __forceinline__ void exponentials(float (&s)[size], uint32_t (&weights)[size / 8][4]);
    template <int width> __device__ __forceinline__ void step(int n);
    __device__ __forceinline__ int attend(int n, int last, int see_to);
    __device__ __forceinline__ bool spoiled() const; // o is not finite

    __device__ __forceinline__ void finish();
    __device__ __forceinline__ uint16_t *staged(int r, int column) const {
        return (uint16_t *)g.sh.pointer(g.q_tile + column / 64 * S::q_panel + r * 128 + ((column / 8 ^ r) % 8 << 4) + column % 8 * 2);
    }
    __device__ __forceinline__ void add_odd(int warp, int lane) const;
    __device__ __forceinline__ void store_o(int warp, int lane) const;
};

template <class S> template <int size> __device__ __forceinline__ void RowTile<S>::start_scores(int n, float (&s)[size]) const {
    barrier_wait(g.sh.k_full(g.block.stage(n)), g.block.round(n) & 1);
    const uint64_t b = descriptor(uniform(g.sh.k(g.block.stage(n))), 16);
    wgmma_fence();
    each<S::dim / 16>([&](int i) {
        wgmma<T, 0>(s, descriptor(g.q_tile, 16) + (i / 4 * S::q_panel + i % 4 * 32) / 16, b + (i / 4 * S::panel + i % 4 * 32) / 16, i > 0);
    });
    wgmma_commit();
}

template <class S> template <int steps> __device__ __forceinline__ void RowTile<S>::start_values(int n, const uint32_t (&weights)[steps][4]) {
    receive(n);
    const uint64_t b = descriptor(uniform(g.sh.v(g.block.stage(n))), S::panel);
    wgmma_fence();
    each<steps>([&](int i) { wgmma<T, 1>(o, weights[i], b + i * 2048 / 16, true); });
    wgmma_commit();
}

template <class S> template <int size> __device__ __forceinline__ void RowTile<S>::hide(int n, float (&s)[size]) const {
    const int key = g.block.key(n);
    if (key >= g.top_row + 63 + g.p.lo && key + S::keys <= min(g.top_row + g.p.hi + 1, g.p.kv_len)) return; // every row sees all keys
    uint32_t seen[2];
    each<2>([&](int r) {
        const int i = g.row() + 8 * r, from = i + g.p.lo, to = min(i + g.p.hi + 1, g.p.kv_len), first = key + int(lane() % 4 * 2);
        seen[r] = columns_before(to - first) & ~columns_before(from - first);
    });
    each<size>([&](int i) { s[i] = seen[i % 4 / 2] & 1u << (i / 4 * 2 + i % 2) ? s[i] : -infinity; });
}

// Updates the row maxima m with the tile's scores. Sets top[r] to the number that is subtracted from c s in row r (0 or 1),
// and down[r] to the factor that rescales o and l.
template <class S> template <int size> __device__ __forceinline__ void RowTile<S>::maxima(float (&s)[size]) {
    top[0] = top[1] = -infinity;
    each<size / 2>([&](int i) { top[i % 2] = fmaxf(top[i % 2], fmaxf(s[2 * i], s[2 * i + 1])); });
    each<4>([&](int i) { top[i % 2] = fmaxf(top[i % 2], __shfl_xor_sync(~0u, top[i % 2], 1 + i / 2)); });
    float highest[2], lower[2];
    bool far = false;
    each<2>([&](int r) {
        highest[r] = top[r], lower[r] = m[r];
        m[r] = fmaxf(m[r], top[r] * g.c);
        top[r] = m[r] == -infinity ? 0 : m[r];
        down[r] = exp2_approx(lower[r] - top[r]);
        far |= is_far(top[r]);
    });
    if (!__any_sync(~0u, far)) return;
    each<2>([&](int r) { // far rows: subtract the highest score from s before scaling
        float off = 0;
        if (is_far(top[r])) {
            const bool was = is_far(lower[r]) && lower[r] != -infinity;
            const float before = most[r];
            off = was ? fmaxf(before, highest[r]) : highest[r];
            if (was) down[r] = exp2_approx((before - off) * g.c);
            most[r] = off, top[r] = 0;
        }
        each<size / 2>([&](int i) { s[i / 2 * 4 + 2 * r + i % 2] -= off; });
    });
}

// Sets weights to P, and adds P's row sums to l.
template <class S> template <int size> __device__ __forceinline__ void RowTile<S>::exponentials(float (&s)[size], uint32_t (&weights)[size / 8][4]) {
    float sum[2] = {};
    each<size>([&](int i) { sum[i % 4 / 2] += s[i] = exp2_approx(fmaf(s[i], g.c, -top[i % 4 / 2])); });
    each<2>([&](int r) { l[r] = fmaf(l[r], down[r], sum[r]); });
    each<size / 2>([&](int i) { weights[i / 4][i % 4] = pack<T>(s[2 * i], s[2 * i + 1]); });
}

// Processes the first `width` keys of a tile. Registers suffice for one product at a time.
template <class S> template <int width> __device__ __forceinline__ void RowTile<S>::step(int n) {
    float s[width / 2];
    uint32_t weights[width / 16][4];
    start_scores(n, s);
    if (n > first) g.more(n);
    wgmma_wait<0>();
    g.give(g.sh.k_empty(g.block.stage(n)));
    hide(n, s);
    maxima(s);
    exponentials(s, weights);
    each<S::dim / 2>([&](int i) { o[i] *= down[i % 4 / 2]; });
    start_values(n, weights);
    wgmma_wait<0>();
    g.give(g.sh.v_empty(g.block.stage(n)));
}

// Processes tiles n to last - 1. see_to is the last key that some row sees. If the last tile has few visible keys, its products
// are smaller. Returns `last`.
template <class S> __device__ __forceinline__ int RowTile<S>::attend(int n, int last, int see_to) {
    barrier_wait(g.q_full, 0);
    const int left = see_to + 1 - g.block.key(last - 1), whole = left <= S::most_left ? last - 1 : last;
#pragma unroll 1
    for (; n < whole; n++) step<S::keys>(n);
    if (n < last) {
        if (left <= 16) step<16>(n);
        else if constexpr (S::most_left > 16) {
            if (left <= 64) step<64>(n);
            else step<80>(n);
        }
        n++;
    }
    g.more(n);
    return n;
}

template <class S> __device__ __forceinline__ bool RowTile<S>::spoiled() const {
    float odd = 0;
    each<S::dim / 2>([&](int i) { odd = fmaf(o[i], 0, odd); });
    return !(odd == 0);
}

// Adds the elements of V that clear() has replaced by 0 to the staged O, in the rows that see their keys.
template <class S> __device__ __forceinline__ void RowTile<S>::add_odd(int warp, int lane) const {
    const uint16_t *value = row_of(g.p.v, g.block.batch, g.block.kv_head, 0); // [kv_len, v_dim]
    __syncwarp(); // the warp's rows are written
#pragma unroll 1
    for (int i = lane; i < 16 * g.p.v_dim; i += 32) {
        const int r = warp * 16 + i % 16, column = i / 16, see = g.top_row + r, end = min(g.p.kv_len, see + g.p.hi + 1);
        float sum = 0;
#pragma unroll 1
        for (int j = max(0, see + g.p.lo); j < end; j++) {
            const float x = widen<T>(value[j * g.p.v.row + column]);
            if (!finite(x)) sum += x;
        }
        uint16_t *to = staged(r, column);
        if (sum != 0) *to = pack<T>(widen<T>(*to) + sum, 0);
    }
}

// Copies the staged O to the tensor.
template <class S> __device__ __forceinline__ void RowTile<S>::store_o(int warp, int lane) const {
    if (g.p.v_dim % 8 != 0) { // box_store writes whole 16-byte chunks
        uint16_t *to = row_of(g.p.o, g.block.batch, g.block.head, g.top_row);
#pragma unroll 1
        for (int r = warp; r < min(64, g.p.q_len - g.top_row); r += 4)
#pragma unroll 1
            for (int column = lane; column < g.p.v_dim; column += 32) to[r * g.p.o.row + column] = *staged(r, column);
        g.meet(); // all have read O
    } else if (leads()) {
        each<S::panels>([&](int i) { box_store(g.a.o, 64 * i, g.top_row, g.block.head, g.block.batch, g.q_tile + i * S::q_panel); });
        store_commit();
    }
}

// Writes O and LSE.
template <class S> __device__ __forceinline__ void RowTile<S>::finish() {
    each<2>([&](int r) {
        l[r] += __shfl_xor_sync(~0u, l[r], 1);
        l[r] += __shfl_xor_sync(~0u, l[r], 2);
        down[r] = l[r] == 0 ? 0 : __fdividef(1, l[r]);
    });
    if (!sees) barrier_wait(g.q_full, 0);
    g.meet(); // Q is free
    const int warp = thread() / 32, lane = int(thread() % 32);
    const uint32_t fragment = g.q_tile + (warp * 16 + lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4); // the lane's chunk of the warp's first 16x16
    auto pair = [&](int i) { return pack<T>(o[2 * i] * down[i % 2], o[2 * i + 1] * down[i % 2]); };
    each<S::dim / 16>([&](int i) {
        store_matrix((fragment ^ i % 4 * 32) + i / 4 * S::q_panel, pair(4 * i), pair(4 * i + 1), pair(4 * i + 2), pair(4 * i + 3));
    });
    if (careful) add_odd(warp, lane);
    async_fence(); // makes O visible to the copy
    g.meet();      // all have written O
    store_o(warp, lane);
    each<2>([&](int r) {
        const int i = g.row() + 8 * r;
        if (!g.p.lse.data || lane % 4 != 0 || i >= g.p.q_len) return;
        ((float *)g.p.lse.data)[g.block.batch * g.p.lse.batch + g.block.head * g.p.lse.head + i * g.p.lse.row] = is_far(m[r]) && m[r] != -infinity ? fmaf(most[r], g.p.scale, logf(l[r])) : (m[r] + log2f(l[r])) * 0.69314718f;
    });
}

template <class S> __device__ __forceinline__ void forward(const MapParams &a) {
    extern __shared__ char unaligned[];
    Shared<S> sh;
    // The permutation of chunks repeats every 1024 bytes, so tiles must be aligned to that. The shuffle makes the address uniform.
    sh.at = uniform((shared_address(unaligned) + 1023) & ~1023u);
    const Params &p = a.p;
    const float c = p.scale_log2;
    const int group = uniform(threadIdx.x / 128);
    const bool banded = p.hi < p.kv_len - 1 || p.q_len - 1 + p.lo > 0;
    if (asks()) sh.init();
    Block<S> block(a);
    const Group<S> g(a, sh, block, c, group);
    if (asks()) block.begin(a, sh);
    __syncthreads(); // the barriers exist
    bool careful = false; // second pass over the rows, with V cleared
    while (true) {
        if (asks() && careful && !block.stays) block.fill(a, sh, 0);
        const int see_from = max(0, g.top_row + p.lo), see_to = min(p.kv_len - 1, min(g.top_row + 64, p.q_len) - 1 + p.hi);
        const bool sees = g.top_row < p.q_len && see_from <= see_to;
        // Some row of the warpgroup sees keys of tiles first to last - 1.
        const int first = sees ? see_from / S::keys - block.from : 0, last = sees ? see_to / S::keys - block.from + 1 : 0;
        Sums<S> sums;
        RowTile<S> t(g, careful, sees, first, sums);
        int n = 0;
#pragma unroll 1
        for (; n < first; n++) t.pass_by(n);
        if (sees) n = t.attend(n, last, see_to);
#pragma unroll 1
        for (; n < block.count; n++) t.pass_by(n);
        if (banded && !careful)
            if (__syncthreads_or(t.spoiled())) {
                careful = true;
                if (!block.stays) block.base = block.count;
                continue;
            }
        if (g.top_row < p.q_len) t.finish();
        break;
    }
    if (leads()) store_wait_read(); // shared memory must outlive the copies
}

#define KERNEL(name, blocks, ...)                                                                                                   \
    using name##_shape = Shape<__VA_ARGS__>;                                                                                        \
    extern "C" __device__ Plan name##_plan = {name##_shape::threads, name##_shape::shared, name##_shape::rows, name##_shape::keys}; \
    extern "C" __global__ void __launch_bounds__(name##_shape::threads, blocks) name(const __grid_constant__ MapParams x) {         \
        forward<name##_shape>(x);                                                                                                   \
    }
#define INSTANCES(type, T)                                  \
    KERNEL(fwd_sm90_short_##type##_d64, 2, T, 64, 2, 128, 2) \
    KERNEL(fwd_sm90_short_##type##_d80, 2, T, 80, 2, 64, 2)  \
    KERNEL(fwd_sm90_short_##type##_d128, 2, T, 128, 2, 64, 2)
INSTANCES(bf16, BF16)
INSTANCES(f16, F16)
