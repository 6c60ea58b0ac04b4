// Group and RowTile hold the registers of a computing warpgroup of fwd_sm90. Methods of RowTile are also in three other files:
//
//	fwd_sm90_scores.cuh      changes and hides scores
//	fwd_sm90_softmax.cuh     turns scores into weights
//	fwd_sm90_epilogue.cuh    writes the results
#pragma once
#include "fwd_sm90_schedule.cuh"

// Group is the state that a computing warpgroup keeps from one tile of rows to the next.
template <class S> struct Group {
    const MapParams &a;
    const Params &p;
    const Features &f;
    const Shared<S> sh;
    const int group, thread, warp, lane; // thread: of the warpgroup
    const bool changes;                  // a feature changes scores
    const bool general;                  // in the instance with all features, the call has a bias: scores are in natural units
    const float unit;                    // converts scores to log2 units, unless a bias or a steep slope requires natural units
    float c, natural;                    // c converts scores to log2 units, natural to natural units
    const Cap capped;
    const bool turned;       // warpgroups take turns
    Ring<S::q_stages> q;
    Ring<S::q_stages + 1> place; // index of the Work
    Ring<S::stages> k, v;
    int leaving = -1; // the stage of Q from which O is being stored

    __device__ __forceinline__ Group(const MapParams &a, const Features &f, Shared<S> sh, int group)
        : a(a), p(a.p), f(f), sh(sh), group(group), thread(threadIdx.x % 128), warp(thread / 32), lane(threadIdx.x % 32),
          changes(S::biases || S::masks || S::caps || S::tilts || S::shapes && (f.cap_in != 0 || f.slopes.data || S::reads && (f.bias.data || f.mask.data))),
          general(S::reads && f.bias.data), unit(S::shapes && f.cap_in != 0 ? f.cap_out : a.p.scale_log2),
          c(S::biases || general ? kLog2E : S::caps ? 1 : unit), natural(S::biases || general ? 1 : S::shapes && f.cap_in != 0 ? f.cap : a.p.scale), capped(f), turned(S::features || a.p.skew), q(0), place(0), k(0), v(0) {}

    // Returns the offset, in a stage of Q, of the lane's chunk of the warp's first 16x16 fragment.
    __device__ __forceinline__ uint32_t fragment() const { return group * 8192 + (warp * 16 + lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4); }
    // Releases the current stage of a ring, by the stage's barrier `empty`, and moves to the next stage.
    template <int stages> __device__ __forceinline__ void release(Ring<stages> &ring, uint32_t empty) {
        if (lane == 0) barrier_arrive(empty);
        ring.next();
    }
    // Releases the stage of the previous O.
    __device__ __forceinline__ void release_o() {
        if (leaving >= 0 && thread == 0) store_wait_read(), barrier_arrive(sh.q_empty(leaving));
        leaving = -1;
    }
    // Lets the next warpgroup issue its products.
    __device__ __forceinline__ void pass_turn(bool now, int stage) {
        if (now && turned && thread == 0 && group < S::groups - 1) barrier_arrive(sh.turn(stage, group));
    }
    // Waits for this warpgroup's turn at a stage.
    __device__ __forceinline__ void await_turn(bool now, int stage, int parity) {
        if (now && turned && group > 0) barrier_wait(sh.turn(stage, group - 1), parity);
    }
};

// RowTile computes O and LSE of a warpgroup's 64 rows of a tile of query rows. The thread's rows are `row` and row + 8.
template <class S> struct RowTile {
    using T = typename S::T;
    static constexpr bool early = S::dim >= 128;           // random words are drawn while products are in flight, else between exponentials
    static constexpr bool leans = S::shapes || S::tilts;   // the instance supports ALiBi
    static constexpr bool sides = S::biases || S::masks;   // a bias or mask is prefetched to shared memory

    Group<S> &g;
    volatile Work &w;
    const int row0, rows_end, count, edges, first; // fields of Work; first: tile(0)
    const int top_row, row;
    const uint32_t q_tile; // address of the stage of Q
    const uint64_t q_rows; // descriptor of the warpgroup's rows of Q
    int open = 0;          // with features: n + w.tile(n), which is constant after the edges

    // steps_down: change of a score per key away from the diagonal. offset: part of ALiBi that is equal for all keys of a
    // row in the tile, and not yet added to the scores.
    float slope = 0, steps_down = 0, offset[2] = {};
    bool steep = false; // steps_down may overflow, so scores are in natural units
    Sequence seq;

    // Sums and scores, in the layout of wgmma: element i is in row i % 4 / 2 of the thread's two rows.
    float o[S::v_dim / 2], s[S::keys / 2];
    float m[2] = {-infinity, -infinity}, l[2] = {}; // scaled maximum and sum of each row
    float top[2];                                   // number to subtract from c s
    float down[2] = {};                             // factor that rescales o when m rises
    volatile float (&most)[2];                     // highest score of a far row, else -inf; in local memory: saves registers
    bool beyond = false;                            // a row of the warp is far
    float highest[2] = {-infinity, -infinity};      // split: highest unscaled score of a row that is not far
    uint32_t weights[S::keys / 16][4], qf[S::keep_q ? S::dim / 16 : 1][4];

    int now = 0; // Slot::tile of the scores
    uint32_t shown = 0;
    bool small = false;       // the tile's scores are small and not yet capped
    bool banded_tile = true;  // Kind::mask: lo, hi or the number of keys hides pairs of the tile
    uint32_t visible[2];      // Kind::mask: bits of the lane's visible pairs
    uint32_t kept[2];         // dropout masks of the lane's rows
    Counter own = {};         // Philox counter of the row for which the lane draws random words
    uint64_t own_words;
    SideRows<S::biases ? 2 : 1, S::keys> side;

    __device__ __forceinline__ RowTile(Group<S> &g, volatile Work &w, int4 extent, volatile float (&most)[2])
        : g(g), w(w), row0(extent.x), rows_end(extent.y), count(extent.z), edges(extent.w), first(w.first),
          top_row(row0 + g.group * 64), row(top_row + g.warp * 16 + g.lane / 4), q_tile(g.sh.q(g.q.stage)), q_rows(descriptor(q_tile + g.group * 8192, 16)), most(most) {
        if constexpr (S::features) open = uniform(w.full_to) + edges;
        if constexpr (leans) take_slope();
        if constexpr (S::keep_q) each<S::dim / 16>([&](int i) { load_matrix(qf[i], chunk(i)); });
        each<S::v_dim / 2>([&](int i) { o[i] = 0; });
        if constexpr (sides) side = SideRows<S::biases ? 2 : 1, S::keys>(side_view(), g.p, w.batch, w.head, top_row + g.warp * 16, g.lane);
        if constexpr (S::drops) own = counter_of(g.f, w.batch, w.head, row + g.lane % 2 * 8, 0);
        own_words = row_words(own);
    }

    // lo, hi and the number of keys are read at each use, to save registers.
    __device__ __forceinline__ int lo() const { if constexpr (S::features) return g.sh.place(w).lo; else return g.p.lo; }
    __device__ __forceinline__ int hi() const { if constexpr (S::features) return g.sh.place(w).hi; else return g.p.hi; }
    __device__ __forceinline__ int keys() const { if constexpr (S::features) return g.sh.place(w).keys; else return g.p.kv_len; }
    __device__ __forceinline__ uint32_t chunk(int i) const { return q_tile + i / 4 * S::q_panel + (g.fragment() ^ i % 4 * 32); }
    __device__ __forceinline__ const View &side_view() const { if constexpr (S::biases) return g.f.bias; else return g.f.mask; }
    __device__ __forceinline__ uint32_t side_at() const { return g.sh.side(g.group * 4 + g.warp); }

    __device__ __forceinline__ void start_scores(); // starts the product s = Q K^T
    __device__ __forceinline__ void start_values(); // starts the product o += P V

    // Defined in fwd_sm90_scores.cuh. The tile of keys with the number `tile` is visited nth. next() returns the number of the
    // tile that is visited after it.
    __device__ __forceinline__ void take_slope();
    __device__ __forceinline__ void hide_band(int tile);
    __device__ __forceinline__ void hide(int tile);
    __device__ __forceinline__ void prefetch_side(int tile);
    template <class Next> __device__ __forceinline__ void prepare(int n, int tile, Next next);
    template <class Next> __device__ __forceinline__ void adjust(int n, int tile, Next next);
    __device__ __forceinline__ void add_alibi(int tile);

    // fwd_sm90_softmax.cuh.
    __device__ __forceinline__ void subtract_far();
    __device__ __forceinline__ void maxima(bool masked);
    __device__ __forceinline__ void exponentials(int tile);
    template <class Between> __device__ __forceinline__ void draw(Between between);
    __device__ __forceinline__ void drop(int tile);
    __device__ __forceinline__ void round_weights();

    // fwd_sm90_epilogue.cuh.
    __device__ __forceinline__ void finish();
    __device__ __forceinline__ void finish_part();
    __device__ __forceinline__ void divide(int q_batch, int q_row, int real);
    __device__ __forceinline__ void add_carried(const float (&own)[2], const float (&before)[2], int q_batch, int q_row);
    __device__ __forceinline__ void stage_o();
    __device__ __forceinline__ uint16_t *staged(int r, int column) const;
    __device__ __forceinline__ void add_odd(int real);
    __device__ __forceinline__ void store_o(int q_batch, int q_row);
};

template <class S> __device__ __forceinline__ void RowTile<S>::start_scores() {
    barrier_wait(g.sh.k_full(g.k.stage), g.k.parity);
    g.await_turn(S::turn > Turn::begin, g.k.stage, g.k.parity);
    if constexpr (S::lists) shown = g.sh.slot(g.k.stage).shown[g.lane % 4], now = uniform(g.sh.slot(g.k.stage).tile);
    const uint64_t b = descriptor(g.sh.k(g.k.stage), 16);
    wgmma_fence();
    each<S::dim / 16>([&](int i) {
        const uint64_t step = (i / 4 * S::panel + i % 4 * 32) / 16;
        if constexpr (S::keep_q) wgmma<T, 0>(s, qf[i], b + step, i > 0);
        else if constexpr (S::features) wgmma<T, 0>(s, q_rows >> 32 << 32 | (uint32_t)q_rows + (i / 4 * S::q_panel + i % 4 * 32) / 16, b + step, i > 0);
        else wgmma<T, 0>(s, q_rows + (i / 4 * S::q_panel + i % 4 * 32) / 16, b + step, i > 0);
    });
    wgmma_commit();
}

template <class S> __device__ __forceinline__ void RowTile<S>::start_values() {
    barrier_wait(g.sh.v_full(g.v.stage), g.v.parity);
    const uint64_t b = descriptor(g.sh.v(g.v.stage), S::panel);
    wgmma_fence();
    each<S::keys / 16>([&](int i) { wgmma<T, 1>(o, weights[i], b + i * 2048 / 16, true); });
    wgmma_commit();
}
