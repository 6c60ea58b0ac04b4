// fwd_sm90_wide is fwd_sm90 for head dims above 256:
//
//	for each tile of 64 query rows i, by a block of two computing warpgroups:
//		m, l, o = -inf, 0, 0
//		for each tile of 64 keys that some row sees, in ascending order:
//			s = Q[i]·K[j] for each key j of the tile, -inf where i does not see j
//			if max(c s) > m + 8: a = 2^(m - max(c s)); o, l, m = a o, a l, max(c s)
//			p = 2^(c s - m); l += sum(p); o += p·V
//		O[i] = o / l; LSE[i] = ln(2) m + ln(l)
//
// with c = scale log2(e). A warpgroup's registers hold at most 256 columns of o for its 64 rows. So
// both warpgroups own the same rows, and each holds half of the columns of o (as in FlashMLA,
// DeepSeek 2025). Each computes the dot products of half of the columns of Q and K, and sends them
// for one half of the tile's keys to the other warpgroup, through shared memory. The scores, the row
// maxima and the weights of the other half are its own work. A tile's dot products are issued
// before the previous tile's product of weights and values, which hides the softmax.
//
// Compiled with -gencode=arch=compute_90a,code=sm_90a only.
//
// Launch: MapParams by value; grid.x = batch * heads * tiles, where tiles = ceil(q_len / rows); the
// Plan gives threads and shared memory. The tensor maps have 16-bit elements, rank 4, 128-byte
// swizzle, no interleaving, and zeros outside the tensor:
//
//	   dims, innermost first            strides in bytes    box
//	q  dim, q_len, heads, batch         row, head, batch    64, 64, 1, 1
//	k  dim, kv_len, kv_heads, batch     row, head, batch    64, keys, 1, 1
//	v  v_dim, kv_len, kv_heads, batch   row, head, batch    64, 16, 1, 1
//	o  v_dim, q_len, heads, batch       row, head, batch    64, 64, 1, 1
//
// Addresses and strides are multiples of 16 bytes; a dimension of size 1 may have any such stride.
// With kv_len = 0, k and v are not read. Of the views in MapParams::p, the kernel uses only v,
// o and lse.
//
// A block processes one tile of a head's rows. Shared memory holds Q and, for each warpgroup, a ring
// of slots of 8 KB. A slot holds 64 of the warpgroup's columns of a tile of K, or all of its columns
// of 16 keys of a tile of V. A thread of the first warpgroup fills a slot when the warps that read
// the slot have released it.
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

template <class Type, int dim_> struct Shape {
    using T = Type;
    static constexpr int keys = 64, columns = (dim_ + 127) / 128 * 64; // keys per tile; columns of Q, K, V and o of a warpgroup
    static constexpr int rows = 64, threads = 384, computing = 256;
    static constexpr int parts = columns / 64, panels = 2 * parts, panel = rows * 128; // panels of 64 columns of a warpgroup, of a block; bytes of a panel of Q, K or O
    static constexpr int value_keys = 16, values = keys / value_keys, value_panel = value_keys * 128; // keys of a slot of V; slots of a tile of V; bytes of a panel of V
    static constexpr int slots = 8; // of the ring of a warpgroup
    static constexpr int slots_at = panels * panel, weights_at = slots_at + 2 * slots * panel, sent_at = weights_at + 2 * panel, top_at = sent_at + 2 * panel;
    static constexpr int barriers_at = top_at + 2 * rows * 4;
    static constexpr int shared = 1024 + barriers_at + 8 * (4 * slots + 2); // 1024 to align
    static_assert(parts >= 3 && parts <= 4 && values == 4 && parts + values <= slots && shared <= 227 << 10);
};

// The block's shared memory. A phase of a slot's "full" barrier ends when the contents have arrived. A phase of its "empty"
// barrier ends when the warpgroup has read the contents. Slot i of warpgroup g has number g * S::slots + i.
template <class S> struct Shared {
    uint32_t at; // in a uniform register
    static __device__ __forceinline__ char *pointer(uint32_t address) { return (char *)__cvta_shared_to_generic(address); }
    __device__ __forceinline__ uint32_t q() const { return at; }                                               // Q, then O: [panels][64][64]
    __device__ __forceinline__ uint32_t slot(int i) const { return at + S::slots_at + i * S::panel; }          // K: [64][64], V: [parts][16][64]
    __device__ __forceinline__ uint32_t weights(int i) const { return at + S::weights_at + i % 2 * S::panel; } // [64][64]
    __device__ __forceinline__ float4 *sent(int group) const { return (float4 *)pointer(at + S::sent_at + group * S::panel); } // dot products for a warpgroup: [4][128]
    __device__ __forceinline__ float *top(int group) const { return (float *)pointer(at + S::top_at) + group * S::rows; } // [64]
    __device__ __forceinline__ uint32_t full(int i) const { return at + S::barriers_at + 8 * i; }
    __device__ __forceinline__ uint32_t empty(int i) const { return full(2 * S::slots + i); }
    __device__ __forceinline__ uint32_t q_full() const { return full(4 * S::slots); }
    __device__ __forceinline__ uint32_t spoiled() const { return full(4 * S::slots + 1); } // not 0 if o is not finite
    __device__ __forceinline__ void init() const {
        barrier_init(q_full(), 1);
        for (int i = 0; i < 2 * S::slots; i++) barrier_init(full(i), 1), barrier_init(empty(i), 4);
        *(int *)pointer(spoiled()) = 0;
        barrier_fence();
    }
};

// A block's work: a tile of a head's rows, and the tiles of keys that some row sees.
template <class S> struct Block {
    const Params &p;
    int batch, head, kv_head;
    int row0;        // first row
    int from, count; // first tile of keys, number of tiles

    __device__ __forceinline__ explicit Block(const MapParams &a) : p(a.p) {
        const int all = blockIdx.x / a.tiles, tile = blockIdx.x - all * a.tiles;
        row0 = (p.hi < p.kv_len - 1 ? a.tiles - 1 - tile : tile) * S::rows; // longest first
        batch = all / p.heads, head = all - batch * p.heads, kv_head = head / (p.heads / p.kv_heads);
        const int first = max(0, row0 + p.lo), last = min(p.kv_len - 1, min(row0 + S::rows, p.q_len) - 1 + p.hi);
        from = first / S::keys, count = last < first ? 0 : last / S::keys - from + 1;
    }
    __device__ __forceinline__ int key(int n) const { return (from + n) * S::keys; }
};

// Loads a warpgroup's columns of K and V of all tiles, in the order in which attend() reads them.
template <class S> __device__ __forceinline__ void fetch(const MapParams &a, const Shared<S> &sh, const Block<S> &block, int group, Ring<S::slots> &ring) {
    auto next = [&](int bytes, auto load) {
        const int slot = group * S::slots + ring.stage;
        barrier_wait(sh.empty(slot), ring.parity);
        barrier_expect(sh.full(slot), bytes);
        load(sh.slot(slot), sh.full(slot));
        ring.next();
    };
#pragma unroll 1
    for (int n = 0; n <= block.count; n++) {
#pragma unroll 1
        for (int i = 0; n < block.count && i < S::parts; i++)
            next(S::panel, [&](uint32_t to, uint32_t full) {
                box_load(to, a.k, 64 * (group * S::parts + i), block.key(n), block.kv_head, block.batch, full);
            });
#pragma unroll 1
        for (int i = 0; n > 0 && i < S::values; i++)
            next(S::parts * S::value_panel, [&](uint32_t to, uint32_t full) {
                for (int j = 0; j < S::parts; j++)
                    box_load(to + j * S::value_panel, a.v, 64 * (group * S::parts + j), block.key(n - 1) + i * S::value_keys, block.kv_head, block.batch, full);
            });
    }
}

// The sums of a warpgroup's rows, in the layout of wgmma: element i is in row i % 4 / 2 of the thread's two rows. The arrays are
// outside RowTile, because the compiler promotes fields of a struct to registers before it unrolls loops over arrays.
template <class S> struct Sums {
    float o[S::columns / 2], m[2] = {-infinity, -infinity}; // m: scaled maximum of each row
    float l[2] = {}, lack[2] = {}; // sum of each row over the warpgroup's keys, and its Kahan compensation
    float down[2], top[2];  // factors that rescale o and l when m rises; numbers to subtract from c s
    volatile float most[2]; // highest score of a far row; in local memory to save registers
};

// RowTile performs one pass of a warpgroup over the tiles of keys.
template <class S> struct RowTile {
    using T = typename S::T;
    const MapParams &a;
    const Params &p = a.p;
    const Shared<S> &sh;
    const Block<S> &block;
    Ring<S::slots> &ring, &done; // the next slot to read, and the next slot to release
    const float c;               // factor that converts scores to log2 units
    const int group;    // 0 or 1
    const bool careful; // the second pass, with V cleared
    float (&o)[S::columns / 2], (&m)[2], (&l)[2], (&lack)[2], (&down)[2], (&top)[2]; // of Sums
    volatile float (&most)[2];

    __device__ __forceinline__ RowTile(const MapParams &a, const Shared<S> &sh, const Block<S> &block, Ring<S::slots> &ring, Ring<S::slots> &done, int group, bool careful, Sums<S> &x)
        : a(a), sh(sh), block(block), ring(ring), done(done), c(a.p.scale_log2), group(group), careful(careful), o(x.o), m(x.m), l(x.l), lack(x.lack), down(x.down), top(x.top), most(x.most) {
        each<S::columns / 2>([&](int i) { o[i] = 0; });
    }
    __device__ __forceinline__ unsigned thread() const { return (unsigned)fresh(threadIdx.x) % 128; } // of the warpgroup
    __device__ __forceinline__ unsigned lane() const { return (unsigned)fresh(threadIdx.x) % 32; }
    __device__ __forceinline__ int place() const { return thread() / 32 * 16 + lane() / 4; } // of the thread's first row in the tile
    __device__ __forceinline__ int row() const { return block.row0 + place(); }
    __device__ __forceinline__ void meet() const { named_barrier(1, S::computing); } // synchronizes both warpgroups

    __device__ __forceinline__ int slot() const { return group * S::slots + ring.stage; }

    // Releases the slot that was read first.
    __device__ __forceinline__ void release() const {
        if (lane() == 0) barrier_arrive(sh.empty(group * S::slots + done.stage));
        done.next();
    }

    // Starts the dot products of the warpgroup's columns of Q and K, in S::parts groups.
    __device__ __forceinline__ void start_scores(float (&x)[S::keys / 2]) const {
        const uint64_t q = descriptor(uniform(sh.q() + group * S::parts * S::panel), 16);
        each<S::parts>([&](int i) {
            barrier_wait(sh.full(slot()), ring.parity);
            const uint64_t k = descriptor(uniform(sh.slot(slot())), 16);
            wgmma_fence();
            each<4>([&](int j) { wgmma<T, 0>(x, q + (i * S::panel + j * 32) / 16, k + j * 32 / 16, i + j > 0); });
            wgmma_commit();
            ring.next();
        });
    }
    // Starts the product of the ith 16 keys' weights and values, which is added to o.
    __device__ __forceinline__ void start_values(int n, int i) {
        barrier_wait(sh.full(slot()), ring.parity);
        if (careful) clear(sh.slot(slot()));
        const uint64_t p = descriptor(uniform(sh.weights(n)), 16), v = descriptor(uniform(sh.slot(slot())), S::value_panel);
        wgmma_fence();
        wgmma<T, 1>(o, p + i * 32 / 16, v, true);
        wgmma_commit();
        ring.next();
    }
    // Replaces the non-finite elements of a slot of V by 0.
    __device__ __forceinline__ void clear(uint32_t slot) const {
        uint4 *const x = (uint4 *)sh.pointer(slot);
#pragma unroll 1
        for (int i = thread(); i < S::parts * S::value_panel / 16; i += 128) {
            const uint4 y = x[i];
            x[i] = {clear_nonfinite<T>(y.x), clear_nonfinite<T>(y.y), clear_nonfinite<T>(y.z), clear_nonfinite<T>(y.w)};
        }
        async_fence(); // makes the zeros visible to wgmma
        named_barrier(2 + group, 128);
    }
    // Sets s to the dot products of the warpgroup's half of the tile's keys. x holds the warpgroup's terms for all keys.
    __device__ __forceinline__ void exchange(const float (&x)[S::keys / 2], float (&s)[S::keys / 4]) const {
        each<4>([&](int i) {
            float y[4];
            each<4>([&](int j) { y[j] = group ? x[4 * i + j] : x[16 + 4 * i + j], s[4 * i + j] = group ? x[16 + 4 * i + j] : x[4 * i + j]; });
            sh.sent(1 - group)[i * 128 + thread()] = {y[0], y[1], y[2], y[3]};
        });
        meet(); // both warpgroups have sent
        each<4>([&](int i) {
            const float4 y = sh.sent(group)[i * 128 + thread()];
            s[4 * i] += y.x, s[4 * i + 1] += y.y, s[4 * i + 2] += y.z, s[4 * i + 3] += y.w;
        });
    }

    __device__ __forceinline__ void hide(int n, float (&s)[S::keys / 4]) const; // sets the scores of hidden pairs and missing keys to -inf
    __device__ __forceinline__ void maxima(float (&s)[S::keys / 4]);
    __device__ __forceinline__ void weights(int n, float (&s)[S::keys / 4]);
    __device__ __forceinline__ void attend();
    __device__ __forceinline__ bool spoiled() const; // o is not finite

    __device__ __forceinline__ void finish();
    __device__ __forceinline__ uint16_t *staged(int r, int column) const {
        return (uint16_t *)sh.pointer(sh.q() + column / 64 * S::panel + r * 128 + ((column / 8 ^ r) % 8 << 4) + column % 8 * 2);
    }
    __device__ __forceinline__ void add_odd(int warp, int lane) const;
    __device__ __forceinline__ void store_o(int warp, int lane) const;
};

template <class S> __device__ __forceinline__ void RowTile<S>::hide(int n, float (&s)[S::keys / 4]) const {
    const int key = block.key(n) + group * S::keys / 2;
    if (key >= block.row0 + S::rows - 1 + p.lo && key + S::keys / 2 <= min(block.row0 + p.hi + 1, p.kv_len)) return; // every row sees all keys
    uint32_t seen[2];
    each<2>([&](int r) {
        const int i = row() + 8 * r, from = i + p.lo, to = min(i + p.hi + 1, p.kv_len), first = key + int(lane() % 4 * 2);
        seen[r] = columns_before(to - first) & ~columns_before(from - first);
    });
    each<S::keys / 4>([&](int i) { s[i] = seen[i % 4 / 2] & 1u << (i / 4 * 2 + i % 2) ? s[i] : -infinity; });
}

// Raises the row maxima m if the tile's scores exceed them by more than 8 in log2 units. Sets top[r] to the number that is
// subtracted from c s in row r (0 or 1), and down[r] to the factor that rescales o and l. The maximum of a far row is exact.
template <class S> __device__ __forceinline__ void RowTile<S>::maxima(float (&s)[S::keys / 4]) {
    float highest[2] = {-infinity, -infinity};
    each<S::keys / 8>([&](int i) { highest[i % 2] = fmaxf(highest[i % 2], fmaxf(s[2 * i], s[2 * i + 1])); });
    each<4>([&](int i) { highest[i % 2] = fmaxf(highest[i % 2], __shfl_xor_sync(~0u, highest[i % 2], 1 + i / 2)); });
    if (lane() % 4 == 0) sh.top(group)[place()] = highest[0], sh.top(group)[place() + 8] = highest[1];
    meet(); // the maxima of both warpgroups are written
    float lower[2];
    bool far = false;
    each<2>([&](int r) {
        highest[r] = fmaxf(highest[r], sh.top(1 - group)[place() + 8 * r]), lower[r] = m[r];
        const float scaled = highest[r] * c;
        if (scaled > m[r] + 8 || scaled > m[r] && (is_far(scaled) || is_far(m[r]))) m[r] = scaled;
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
            if (was) down[r] = exp2_approx((before - off) * c);
            most[r] = off, top[r] = 0;
        }
        each<S::keys / 8>([&](int i) { s[i / 2 * 4 + 2 * r + i % 2] -= off; });
    });
}

// Writes the weights to shared memory, and adds their row sums to l.
template <class S> __device__ __forceinline__ void RowTile<S>::weights(int n, float (&s)[S::keys / 4]) {
    float sum[2] = {};
    each<S::keys / 4>([&](int i) { sum[i % 4 / 2] += s[i] = exp2_approx(fmaf(s[i], c, -top[i % 4 / 2])); });
    each<2>([&](int r) {
        const float less = __fmul_rn(l[r], down[r]), more = fmaf(lack[r], down[r], sum[r]);
        l[r] = less + more, lack[r] = more - (l[r] - less);
    });
    const uint32_t fragment = sh.weights(n) + (thread() / 32 * 16 + lane() % 16) * 128 + ((lane() / 16 ^ lane() % 8) << 4);
    auto pair = [&](int i) { return pack<T>(s[2 * i], s[2 * i + 1]); };
    each<2>([&](int i) { store_matrix(fragment ^ (2 * group + i) * 32, pair(4 * i), pair(4 * i + 1), pair(4 * i + 2), pair(4 * i + 3)); });
    async_fence(); // makes the weights visible to wgmma
}

// Processes all tiles. Both warpgroups pass the same barriers. Slots are released in the order of the products, each as soon
// as its products are complete: a slot's next contents need most of a step to arrive.
template <class S> __device__ __forceinline__ void RowTile<S>::attend() {
    float x[S::keys / 2], s[S::keys / 4];
    start_scores(x);
    wgmma_wait<0>();
    each<S::parts>([&](int) { release(); });
    exchange(x, s);
    hide(0, s);
    maxima(s);
    weights(0, s);
    meet(); // the weights are written
#pragma unroll 1
    for (int n = 1; n < block.count; n++) {
        start_scores(x);
        if constexpr (S::parts == 4) wgmma_wait<3>(), release(); // of K
        wgmma_wait<2>(), release();
        wgmma_wait<1>(), release();
        start_values(n - 1, 0);
        wgmma_wait<1>(), release();
        each<S::values - 1>([&](int i) { start_values(n - 1, i + 1); });
        exchange(x, s);
        wgmma_wait<3>(), release(); // of V
        hide(n, s);
        maxima(s);
        wgmma_wait<2>(), release();
        weights(n, s);
        wgmma_wait<1>(), release();
        wgmma_wait<0>(), release();
        if (__any_sync(~0u, down[0] != 1 || down[1] != 1)) each<S::columns / 2>([&](int i) { o[i] *= down[i % 4 / 2]; });
        meet(); // the weights are written, and the previous weights are read
    }
    each<S::values>([&](int i) { start_values(block.count - 1, i); });
    wgmma_wait<0>();
    each<S::values>([&](int) { release(); });
}

template <class S> __device__ __forceinline__ bool RowTile<S>::spoiled() const {
    float odd = 0;
    each<S::columns / 2>([&](int i) { odd = fmaf(o[i], 0, odd); });
    return !(odd == 0);
}

// Adds the elements of V that clear() has replaced by 0 to the staged O, in the rows that see their keys.
template <class S> __device__ __forceinline__ void RowTile<S>::add_odd(int warp, int lane) const {
    const uint16_t *value = row_of(p.v, block.batch, block.kv_head, 0); // [kv_len, v_dim]
    __syncwarp(); // the warp's rows are written
#pragma unroll 1
    for (int i = lane; i < 16 * S::columns; i += 32) {
        const int r = warp * 16 + i % 16, column = group * S::columns + i / 16, see = block.row0 + r, end = min(p.kv_len, see + p.hi + 1);
        if (column >= p.v_dim) break;
        float sum = 0;
#pragma unroll 1
        for (int j = max(0, see + p.lo); j < end; j++) {
            const float x = widen<T>(value[j * p.v.row + column]);
            if (!finite(x)) sum += x;
        }
        uint16_t *to = staged(r, column);
        if (sum != 0) *to = pack<T>(widen<T>(*to) + sum, 0);
    }
}

// Copies the warpgroup's columns of the staged O to the tensor.
template <class S> __device__ __forceinline__ void RowTile<S>::store_o(int warp, int lane) const {
    if (p.v_dim % 8 != 0) { // box_store writes whole 16-byte chunks
        uint16_t *to = row_of(p.o, block.batch, block.head, block.row0);
#pragma unroll 1
        for (int r = warp; r < min(S::rows, p.q_len - block.row0); r += 4)
#pragma unroll 1
            for (int column = group * S::columns + lane; column < min(p.v_dim, (group + 1) * S::columns); column += 32) to[r * p.o.row + column] = *staged(r, column);
    } else if (thread() == 0) {
        each<S::parts>([&](int i) {
            const int k = group * S::parts + i;
            if (64 * k < p.v_dim) box_store(a.o, 64 * k, block.row0, block.head, block.batch, sh.q() + k * S::panel);
        });
        store_commit();
        store_wait_read(); // shared memory must outlive the copies
    }
}

// Writes O and LSE.
template <class S> __device__ __forceinline__ void RowTile<S>::finish() {
    each<2>([&](int r) {
        l[r] += lack[r];
        l[r] += __shfl_xor_sync(~0u, l[r], 1);
        l[r] += __shfl_xor_sync(~0u, l[r], 2);
        if (lane() % 4 == 0) sh.top(group)[place() + 8 * r] = l[r];
    });
    meet(); // the sums of both warpgroups are written, and Q is free
    each<2>([&](int r) {
        const float other = sh.top(1 - group)[place() + 8 * r];
        l[r] = group == 0 ? l[r] + other : other + l[r];
        down[r] = l[r] == 0 ? 0 : __fdividef(1, l[r]);
    });
    const int warp = thread() / 32, lane = int(thread() % 32);
    const uint32_t fragment = sh.q() + group * S::parts * S::panel + (warp * 16 + lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4); // the lane's chunk of the warp's first 16x16
    auto pair = [&](int i) { return pack<T>(o[2 * i] * down[i % 2], o[2 * i + 1] * down[i % 2]); };
    each<S::columns / 16>([&](int i) {
        store_matrix((fragment ^ i % 4 * 32) + i / 4 * S::panel, pair(4 * i), pair(4 * i + 1), pair(4 * i + 2), pair(4 * i + 3));
    });
    if (careful) add_odd(warp, lane);
    async_fence();                // makes O visible to the copy
    named_barrier(2 + group, 128); // the warpgroup has written its columns
    store_o(warp, lane);
    if (!p.lse.data || group != 0 || lane % 4 != 0) return;
    each<2>([&](int r) {
        const int i = row() + 8 * r;
        if (i >= p.q_len) return;
        ((float *)p.lse.data)[block.batch * p.lse.batch + block.head * p.lse.head + i * p.lse.row] = is_far(m[r]) && m[r] != -infinity ? fmaf(most[r], p.scale, logf(l[r])) : (m[r] + log2f(l[r])) * 0.69314718f;
    });
}

// Ends a pass over the tiles. Returns true if the block must process the rows again.
template <class S> __device__ __forceinline__ bool repeats(const Shared<S> &sh, bool bad) {
    volatile int *const spoiled = (volatile int *)sh.pointer(sh.spoiled());
    if (bad) *spoiled = 1;
    meeting_barrier(4, S::threads);
    return *spoiled;
}

template <class S> __device__ __forceinline__ void forward(const MapParams &a) {
    extern __shared__ char unaligned[];
    Shared<S> sh;
    // The permutation of chunks repeats every 1024 bytes, so tiles must be aligned to that. The shuffle makes the address uniform.
    sh.at = uniform((shared_address(unaligned) + 1023) & ~1023u);
    const Params &p = a.p;
    const bool banded = p.hi < p.kv_len - 1 || p.q_len - 1 + p.lo > 0;
    if (threadIdx.x == 0) sh.init();
    const Block<S> block(a);
    __syncthreads(); // the barriers exist
    const int group = uniform(threadIdx.x / 128);
    if (group == 0) {
        registers_shrink<24>();
        Ring<S::slots> ring(1);
        for (bool careful = false;; careful = true) {
            if (threadIdx.x % 32 == 0 && threadIdx.x < 64) {
                if (!careful && threadIdx.x == 0) {
                    barrier_expect(sh.q_full(), S::panels * S::panel);
                    each<S::panels>([&](int i) { box_load(sh.q() + i * S::panel, a.q, 64 * i, block.row0, block.head, block.batch, sh.q_full()); });
                }
                fetch(a, sh, block, threadIdx.x / 32, ring);
            }
            __syncwarp();
            if (!banded || careful || !repeats(sh, false)) break;
        }
    } else {
        registers_grow<240>();
        Ring<S::slots> ring(0), done(0);
        barrier_wait(sh.q_full(), 0);
        for (bool careful = false;; careful = true) {
            Sums<S> sums;
            RowTile<S> t(a, sh, block, ring, done, group - 1, careful, sums);
            if (block.count > 0) t.attend();
            if (banded && !careful && repeats(sh, t.spoiled())) continue;
            if (block.row0 < p.q_len) t.finish();
            break;
        }
    }
}

#define KERNEL(name, ...)                                                                                                               \
    using name##_shape = Shape<__VA_ARGS__>;                                                                                            \
    extern "C" __device__ Plan name##_plan = {name##_shape::threads, name##_shape::shared, name##_shape::rows, name##_shape::keys}; \
    extern "C" __global__ void __launch_bounds__(name##_shape::threads, 1)                                    \
        name(const __grid_constant__ MapParams x) {                                                                                     \
        forward<name##_shape>(x);                                                                                                       \
    }
#define INSTANCES(type, T)                      \
    KERNEL(fwd_sm90_wide_##type##_d320, T, 320) \
    KERNEL(fwd_sm90_wide_##type##_d512, T, 512)
INSTANCES(bf16, BF16)
INSTANCES(f16, F16)
