// KeyTile holds the registers of a computing warpgroup of bwd_sm90. Methods of KeyTile are also in three other files:
//
//	bwd_sm90_scores.cuh       hides and changes scores
//	bwd_sm90_gradients.cuh    turns scores into weights and gradients
//	bwd_sm90_epilogue.cuh     writes dK and dV
#pragma once
#include "bwd_lanes.cuh"

// Visit holds the state of one step of a KeyTile's loop over tiles of rows. hidden: some pairs are hidden, or K was not
// finite. edge: hidden is true, or the tile of keys extends past the last key. The type Edge is bool or Constant.
template <class Edge> struct Visit {
    int n;
    Edge edge;
    bool hidden;
    float away;            // ALiBi: KeyTile::here minus the first row of this tile
    bool far = false;      // some row needs weights in natural units
    bool large = false;    // softcap: a score of the warp is not small
    uint32_t shown[2];     // bits of the visible pairs of each of the lane's two keys, in the bit order of columns_before
    __device__ __forceinline__ Visit(int n, Edge edge, bool hidden) : n(n), edge(edge), hidden(hidden) {}
};

// KeyTile computes dK and dV of a warpgroup's 64 keys, in a loop over tiles of rows. Tiles of scores are transposed: their
// rows are keys, and their columns query rows. The lane's two keys are own_key() and own_key() + 8.
template <class S> struct KeyTile {
    using T = typename S::T;
    static constexpr int groups = S::rows / 16, size = groups / S::parts; // number of groups of 16 rows in a tile, and in a part of a tile

    const MapParams &a;
    const Params &p;
    const Features &f;
    const Shared<S> sh;
    const int group;
    const Bounds<S> e;
    volatile Work &w;
    const int thread, warp, lane; // thread: of the warpgroup
    const int key0, from, to, steps, first_panel; // fields of Work; first_panel: first panel (64 columns) of the block's share of columns
    const uint32_t ds_place; // place of the lane's row of four 8x8 blocks of dS^T in dS

    float dk[S::columns / 2], dv[S::columns / 2], s[S::rows / 2], dp[S::rows / 2], dq[32], stat[S::rows / S::parts / 4];
    uint32_t weights[S::rows / 16][4], slopes[S::rows / 16][4]; // P^T and dS^T as operands

    int begin, end; // number of the first visit; number after the last visit
    Ring<S::stages> ring;
    int tile, buffer;               // tile of rows; buffer of dS
    int head, heads, left;          // left: heads of the row tile that are still to be visited
    int whole_from = 0, whole_to = 0; // with features: tiles whose first row is in this range have no hidden pairs
    bool odd, ends;                 // the warpgroup's K was not finite; the tile of keys ends after the last key
    bool capped, leans, biased, drops; // features of the call; instances for one feature need no tests
    bool staged, staged_hides;      // a bias, or a mask, is prefetched to shared memory
    bool writes, writes_tiles;      // dBias is written; dBias is copied from dS in shared memory
    float lean = 0;                 // ALiBi: -slope in log2 units
    int here = 0;                   // ALiBi: the lane's first key minus the diagonal, minus the lane's first row of row tile 0
    uint32_t kept[2] = {};          // dropout masks of the lane's two keys

    __device__ __forceinline__ KeyTile(const MapParams &a, const Features &f, Shared<S> sh, int group)
        : a(a), p(a.p), f(f), sh(sh), group(group), e{a.p, sh}, w(sh.work()), thread(own_thread() % 128), warp(thread / 32), lane(own_thread() % 32),
          key0(uniform(w.key0)), from(uniform(w.from)), to(uniform(w.to)), steps(uniform(w.steps)), first_panel(uniform(w.share) * S::own_panels),
          ds_place(group * S::row_panel + (lane / 16 * 8 + lane % 8) * 128 + ((warp * 2 + lane / 8 % 2 ^ lane % 8) << 4)), ring(0) {}

    // Returns threadIdx.x. If S::pair, the compiler cannot recognize the value as threadIdx.x. This saves registers in the
    // lanes that move data and also use threadIdx.x.
    __device__ __forceinline__ static uint32_t own_thread() {
        if constexpr (S::pair) return fresh(threadIdx.x);
        else return threadIdx.x;
    }
    // Starts the first product S, and reads which features the call has.
    __device__ __forceinline__ void start() {
        each<S::columns / 2>([&](int i) { dk[i] = dv[i] = 0; });
        begin = S::stays ? uniform(w.before) : 0, end = begin + steps;
        ring = ring_at<S>(0, begin);
        tile = S::skews ? uniform(w.begin) : from, buffer = S::stays ? begin % 2 : 0;
        heads = left = uniform(last_head<S>(p, w) - first_head<S>(p, w) + 1);
        if constexpr (S::features) {
            whole_from = uniform(key0 + S::keys - 1 - e.hi());
            if constexpr (S::marks)
                if (!uniform(sh.marks().whole)) whole_from = kReach; // no tile
            whole_to = uniform(key0 + S::keys > e.keys() ? -S::rows : min(e.rows() - S::rows, key0 - (S::rows - 1) - e.lo()));
        }
        if (steps) {
            barrier_wait(sh.k_full(0), S::stays ? w.loads % 2 : 0);
            if (w.hides) clean_keys(sh, w, group, thread);
            start_scores(true);
            wgmma_wait<0>();
            barrier_wait(sh.k_full(1), S::stays ? w.loads % 2 : 0);
        }
        head = first_head<S>(p, w);
        odd = uniform(w.odd[group]), ends = key0 + S::keys > e.keys();
        take_features();
    }

    __device__ __forceinline__ int own_key() const { return key0 + group * 64 + fresh(thread) / 32 * 16 + fresh(lane) / 4; }
    // Returns LSE (0) or delta (1) of the tile's rows.
    __device__ __forceinline__ const float *stats(int which) const { return (const float *)(sh.base + (sh.stats(which, ring.stage) - sh.at)); }
    __device__ __forceinline__ void release(uint32_t empty) const { if (lane == 0) barrier_arrive(empty); }
    // Tells the compiler that products in flight may read the registers x until this point.
    __device__ __forceinline__ static void keep_operand(uint32_t (&x)[S::rows / 16][4]) { each<S::rows / 4>([&](int i) { asm volatile("" ::"r"(x[i / 4][i % 4])); }); }

    // Starts S^T = K Q^T. `there` is false if no tile of rows is left. The result is then unused.
    __device__ __forceinline__ void start_scores(bool there) {
        if (there) barrier_wait(sh.q_full(0, ring.stage), ring.parity);
        scores<S, S::panels, S::inner>(s, sh.k(0), sh.q(0, ring.stage), group);
    }
    // Starts sum += x dO or sum += x Q over the i-th group of 16 rows. rows is the address of the tile of dO or Q.
    __device__ __forceinline__ void start_sum(float (&sum)[S::columns / 2], uint32_t (&x)[4], uint32_t rows, int i) const {
        wgmma_fence();
        wgmma<T, 1>(sum, x, descriptor(rows + first_panel * S::row_panel, S::row_panel) + i * 2048 / 16, true);
        wgmma_commit();
    }
    __device__ __forceinline__ void load_stats(int which, int part);
    __device__ __forceinline__ void advance(int n);

    // bwd_sm90_scores.cuh.
    __device__ __forceinline__ void take_features();
    __device__ __forceinline__ void load_slope();
    __device__ __forceinline__ void prefetch_bias(int head, int row);
    __device__ __forceinline__ void prefetch_mask(int head, int row);
    template <class Edge> __device__ __forceinline__ void prefetch_next_bias(const Visit<Edge> &v, int part);
    __device__ __forceinline__ void draw(int head);
    __device__ __forceinline__ bool keeps(int i, int j) const;
    __device__ __forceinline__ bool cut() const;
    __device__ __forceinline__ NaturalLSE natural_lse(int n) const;
    __device__ __forceinline__ void hide_missing();
    __device__ __forceinline__ void hide(int half, uint32_t seen);
    template <class Edge> __device__ __forceinline__ void hide_pairs(Visit<Edge> &v);
    template <class Edge> __device__ __forceinline__ void hide_all(Visit<Edge> &v);
    template <class Edge> __device__ __forceinline__ void change(const Visit<Edge> &v, int i, float (&x)[8], float (&cap)[8]);

    // bwd_sm90_gradients.cuh.
    template <class Edge> __device__ __forceinline__ void exponentials(const Visit<Edge> &v, int i);
    template <class Edge> __device__ __forceinline__ void changed_exponentials(const Visit<Edge> &v, int i);
    template <class Edge> __device__ __forceinline__ void gradients(const Visit<Edge> &v, int i);
    __device__ __forceinline__ void start_dq();
    __device__ __forceinline__ void store_dq(int n, int done);

    // bwd_sm90_epilogue.cuh.
    __device__ __forceinline__ float *part_of(float *sums, int key) const;
    __device__ __forceinline__ void write_part() const;
    __device__ __forceinline__ uint32_t home(int part, int panel) const;
    __device__ __forceinline__ void stage(bool some, bool of_values);
    __device__ __forceinline__ bool takes_part(int head, int i, int key) const;
    __device__ __forceinline__ void add_lost();
    __device__ __forceinline__ void write(const View &v, int part, int dim, bool some) const;
    __device__ __forceinline__ void finish();
};

// Loads LSE (which = 0) or delta (which = 1) of the rows in a part of the tile. Callers call load_stats early, because the
// compiler does not move loads across products.
template <class S> __device__ __forceinline__ void KeyTile<S>::load_stats(int which, int part) {
    each<size>([&](int i) {
        const float2 *from = (const float2 *)stats(which) + (part * size + i) * 8 + lane % 4, x = from[0], y = from[4];
        stat[4 * i] = x.x, stat[4 * i + 1] = x.y, stat[4 * i + 2] = y.x, stat[4 * i + 3] = y.y;
    });
}

// Sets ring, buffer and tile for the visit after visit n.
template <class S> __device__ __forceinline__ void KeyTile<S>::advance(int n) {
    if constexpr (S::stays) ring.stage = (n + 1) % S::stages, ring.parity = (n + 1) / S::stages % 2, buffer = (n + 1) % 2;
    else ring.next(), buffer ^= 1;
    if constexpr (S::ranged) tile = tile == to ? from : sh.listed().below(tile);
    else if constexpr (!S::by_rows) tile = tile == to ? from : tile + S::step;
    else if (--left == 0) left = heads, tile += S::step;
}
