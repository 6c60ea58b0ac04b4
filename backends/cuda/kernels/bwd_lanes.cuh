// Parts of bwd_sm90: the distribution of work, the single threads ("lanes") that move data, and persistent blocks.
#pragma once
#include "bwd_sm90.cuh"

// Finds the block's next work. All lanes of a warp call find. Lane 0 draws the ticket, a number that selects a tile of keys
// and a KV head. If f.key_slots is not 0, the ticket selects a slot (see Slots) and a KV head.
template <class S> __device__ __forceinline__ void find(const Params &p, const Features &f, Shared<S> sh) {
    volatile Work &w = sh.work();
    auto draw = [&] { return S::once ? blockIdx.x / (1 + S::pair) : threadIdx.x > 0 ? 0 : S::stays || p.q_len ? atomicAdd(p.turn, 1) : blockIdx.x; };
    const int drawn = draw();
    int nth = __shfl_sync(~0u, drawn, 0);
    const int parts = S::split ? p.splits : 1, kv_heads = p.kv_heads * parts; // if S::split, each part of a KV head's query heads counts as a KV head
    int ticket = nth / S::shares, head0 = 0, of = p.batch * kv_heads, tiles = (p.kv_len + S::keys - 1) / S::keys;
    [[maybe_unused]] bool none = false; // neither this ticket nor any higher one selects a tile
    if (S::features && f.key_slots) {
        auto place = [&] { return slots(f.kv_starts, p.batch, S::keys, f.key_slots, ticket / kv_heads); };
        Slots s;
        if (S::lies && p.batch <= 32) {
            s = sorted_slots(f.kv_starts, p.batch, S::keys, ticket / kv_heads);
            if (none = s.count == 0; none && !S::stays) s.count = 1;
        } else {
            s = place();
            if constexpr (S::stays) { // skips slots without tiles
                while (s.count = (f.kv_starts[s.b + 1] - f.kv_starts[s.b] + S::keys - 1) / S::keys, ticket >= (s.first + s.count) * kv_heads && ticket < f.key_slots * kv_heads)
                    ticket = nth = __shfl_sync(~0u, draw(), 0), s = place();
            }
        }
        ticket -= s.first * kv_heads, head0 = s.b * kv_heads, of = kv_heads, tiles = s.count;
    }
    const int heads = together<S>(p, of);
    if (threadIdx.x > 0) return;
    if constexpr (S::stays) {
        volatile Work &last = sh.work(-1);
        w.before = sh.turn ? last.before + last.steps : 0, w.loads = sh.turn ? last.loads + (last.steps > 0) : 0;
        if (ticket >= of * tiles) {
            w.steps = -1; // no more work
            return;
        }
    }
    const int first = ticket / (heads * tiles) * heads, width = min(heads, of - first);
    const int head = head0 + first + (ticket - first * tiles) % width, tile = (ticket - first * tiles) / width;
    const int key0 = S::lies && !S::stays && none ? (p.kv_len + S::keys - 1) / S::keys * S::keys : (S::up ? tiles - 1 - tile : tile) * S::keys;
    const Extent<S::features> e(p, f, head / kv_heads);
    const int row_from = max(0, key0 - e.hi()), row_to = min(e.rows() - 1, min(key0 + S::keys, e.keys()) - 1 - e.lo());
    w.share = nth % S::shares, w.batch = head / kv_heads, w.kv_head = head % kv_heads / parts, w.key0 = key0;
    if constexpr (S::split) w.part = head % parts;
    w.hides = row_from + e.hi() < key0 + S::keys - 1 || row_to + e.lo() > key0, w.odd[0] = w.odd[1] = w.lost = 0;
    int low = row_from / S::rows, high = row_to / S::rows;
    bool sees = row_from <= row_to && e.lo() <= e.hi();
    if constexpr (S::pair) low += (low ^ cluster_rank()) & 1, high -= (high ^ cluster_rank()) & 1, sees &= low <= high;
    w.from = S::up ? low : high, w.to = S::up ? high : low;
    w.steps = sees ? ((high - low) / abs(S::step) + 1) * (p.heads / kv_heads) : 0;
    if (S::by_rows && w.steps == 0) w.from = w.to - 1;
    w.begin = w.from, w.last = no_skew;
    if (S::skews && p.skew && !chained(p)) { // the host sets skew only if all rows see all keys
        const int last = begin_of(p, key0 / S::keys + key_tile(p));
        int begin = ((last + 1) << p.halves) - 1 - row_tile(p);
        if constexpr (S::pair) begin -= (begin ^ high) & 1;
        w.last = last;
        if (begin >= low && begin < high) w.begin = begin;
    }
    if constexpr (S::features) {
        const_cast<Sequence &>(sh.sequence()) = e.s;
        if (key0 >= e.keys()) w.steps = 0;
        if (S::by_rows && w.steps == 0) w.from = w.to - 1;
        if (key0 + S::keys > e.keys() || S::knows_mask && f.mask.data) w.hides = 1; // the tile has keys of the next sequence, or there is a mask
    }
}

// Sets the block's Listed, and the fields of Work that depend on it. All threads of the block call list_rows.
template <class S> __device__ __forceinline__ void list_rows(const Params &p, const Features &f, Shared<S> sh) {
    constexpr int blocks = S::rows / 64;
    volatile Work &w = sh.work();
    volatile Listed &l = sh.listed();
    const int lane = threadIdx.x % 32, j = w.key0 / S::keys, low = w.to, high = w.from;
    const int4 *some = bounds_of(p, f, p.kv_heads, w.batch, w.kv_head, 0), *whole = bounds_of(p, f, p.kv_heads, w.batch, w.kv_head, 1);
    for (int first = (low / 32 + threadIdx.x / 32) * 32; first <= high; first += S::threads) {
        const int tile = first + lane;
        const bool seen = tile >= low && tile <= high && runs_of(some + tile * blocks, blocks).has(j);
        bool all = seen;
        for (int i = 0; i < blocks && seen; i++) all &= whole_tile(whole[tile * blocks + i], j);
        const uint32_t rows = __ballot_sync(~0u, seen), wholes = __ballot_sync(~0u, all);
        if (lane == 0) l.rows[first / 32] = rows, l.whole[first / 32] = wholes;
    }
    __syncthreads(); // the tiles are listed
    if (threadIdx.x == 0) {
        int count = 0, hides = 0;
        for (int word = low / 32; word <= high / 32; word++) {
            const uint32_t rows = l.rows[word];
            if (!rows) continue;
            if (!count) w.to = 32 * word + __ffs(rows) - 1;
            w.from = w.begin = 32 * word + 31 - __clz(rows);
            count += __popc(rows), hides |= rows != l.whole[word];
        }
        w.steps = count * (p.heads / p.kv_heads), w.hides = hides, l.bounds = some;
    }
    __syncthreads(); // the work is set
}

// Returns the tile of rows that is visited after `tile`, which is not the last.
template <class S> __device__ __forceinline__ int next_tile(Shared<S> sh, int tile) {
    if constexpr (S::ranged) return sh.listed().below(tile);
    else return tile + S::step;
}

// walk calls visit(head, tile) for each of the block's query heads and tiles of rows. The outer loop is over heads. The
// inner loop begins at tile w.begin, continues from w.from after tile w.to, and ends before w.begin. If S::by_rows, the
// outer loop is over tiles, and the inner loop over heads.
template <class S> __device__ __forceinline__ int first_head(const Params &p, volatile Work &w) {
    const int group = p.heads / p.kv_heads;
    return w.kv_head * group + (S::split ? w.part * (group / p.splits) : 0);
}
template <class S> __device__ __forceinline__ int last_head(const Params &p, volatile Work &w) { return first_head<S>(p, w) + p.heads / p.kv_heads / (S::split ? p.splits : 1) - 1; }
template <class S, class F, class Next> __device__ __forceinline__ void walk(const Params &p, volatile Work &w, F visit, Next next) {
    if constexpr (S::by_rows) {
        const int end = last_head<S>(p, w);
#pragma unroll 1
        for (int tile = w.from; tile >= w.to; tile--)
#pragma unroll 1
            for (int head = first_head<S>(p, w); head <= end; head++) visit(head, tile);
        return;
    }
    int head = first_head<S>(p, w), tile = w.begin;
#pragma unroll 1
    for (int n = w.steps; n > 0; n--) {
        visit(head, tile);
        tile = tile == w.to ? w.from : next(tile);
        if (tile == w.begin) head++;
    }
}
template <class S, class F> __device__ __forceinline__ void walk(const Params &p, volatile Work &w, F visit) {
    walk<S>(p, w, visit, [](int tile) { return tile + S::step; });
}
template <class S, class F> __device__ __forceinline__ void walk(const Params &p, Shared<S> sh, F visit) {
    walk<S>(p, sh.work(), visit, [&](int tile) { return next_tile(sh, tile); });
}

// dq_sum is an array of blocks of 64x64 elements, of shape [sums, B, H, R/rows, rows/64, dim/64]. rows is S::rows, and R is N
// rounded up to a multiple of 128. block_of returns the index of the block to which a warpgroup adds. earlier returns the
// number of tiles of keys whose dQ must be added to a tile of rows before this thread block's dQ.
template <class S> __device__ __forceinline__ int64_t block_of(const Params &p, volatile Work &w, int head, int tile, int group) {
    int64_t bh = w.batch * p.heads + head;
    if (S::skews) bh += (int64_t)(chained(p) ? chain_of(p, w.key0 / S::keys) : in_second(p, w.last, tile)) * p.batch * p.heads;
    return ((bh * (padded_rows(p) / S::rows) + tile) * S::dq_shares + w.share) * S::dq_blocks + group;
}
template <class S> __device__ __forceinline__ int earlier(const Bounds<S> &e, volatile Work &w, int tile) {
    if constexpr (S::features) {
        if constexpr (S::ranged) return runs_of((const int4 *)e.sh.listed().bounds + tile * (S::rows / 64), S::rows / 64).before(w.key0 / S::keys);
        if constexpr (S::marks) return marked(e.sh.marks().seen, max(0, tile * S::rows + e.lo()) / S::keys, w.key0 / S::keys);
    }
    if (S::skews && chained(e.p)) return chained_before(e.p, w.key0 / S::keys);
    if (S::skews && e.p.skew && !in_second(e.p, w.last, tile)) return w.key0 / S::keys - max(0, first_tile(e.p, tile));
    if (S::up) return min(e.keys() - 1, min((tile + 1) * S::rows, e.rows()) - 1 + e.hi()) / S::keys - w.key0 / S::keys;
    return (w.key0 - max(0, tile * S::rows + e.lo()) / S::keys * S::keys) / S::keys;
}

// Returns the address of LSE (part 0) or delta (part 1) of a tile of rows.
template <class S> __device__ __forceinline__ const float *stats_at(const Params &p, volatile Work &w, int part, int head, int tile) {
    return p.delta + (((int64_t)part * p.batch + w.batch) * p.heads + head) * padded_rows(p) + tile * S::rows;
}

// add runs in one lane per warpgroup. At each tile of rows, the lane waits until the blocks
// that must add before this block have added their dQ. Then the warpgroup's "turn" begins.
// If dQ is staged in shared memory, the lane adds the warpgroup's dQ to dq_sum. The turn ends
// when the counter is raised, by this lane or by release().
//
// Loads of a counter need no acquire, because only adds follow a load. Adds are issued after
// the load has returned, and performed in the L2 cache. A turn ends with a release, although
// a release is slow. Without a release, adds to lines outside the L2 cache would wait for
// memory, and adds of the next turn could overtake these adds.
template <class S> __device__ __forceinline__ void add(const Params &p, Shared<S> sh, int group) {
    volatile Work &w = sh.work();
    const int earlier_visits = before<S>(w);
    int seen = 0, parity = earlier_visits % 2, slot = group + earlier_visits % S::dq_buffers * S::dq_blocks, slot_parity = earlier_visits / S::dq_buffers % 2;
    if constexpr (S::once) {
        wait_for_dependency(); // LSE and delta are written, and the counters are 0
        if (w.steps) bulk_load(sh.stats(group, 0), stats_at<S>(p, w, group, first_head<S>(p, w), w.begin), S::rows * 4, sh.q_full(group, 0));
    }
    [[maybe_unused]] const int last = last_head<S>(p, w), next_head = padded_rows(p) / S::rows * S::dq_shares * S::dq_blocks;
    walk<S>(p, sh, [&](int head, int tile) {
        const int64_t block = block_of<S>(p, w, head, tile, group);
        float *to = p.dq_sum + block * 4096;
        int *turn = p.turn + 1 + (S::releases ? block - group : block); // if release() ends turns, the two warpgroups share one counter per tile
        const int before = earlier<S>({p, sh}, w, tile);
        while (seen < (p.deterministic ? before : min(before, 1))) seen = load_counter(turn);
        if constexpr (!S::staged) barrier_arrive(sh.dq_empty(slot)); // the warpgroup may add
        barrier_wait(sh.dq_full(slot), slot_parity);
        if constexpr (S::staged) {
            async_fence(); // orders the stores that precede the warpgroup's arrival at dq_full before the bulk copy
            if (before == 0) bulk_store(to, sh.dq(slot), 16384);
            else bulk_add(to, sh.dq(slot), 16384);
            store_commit(), store_wait_read();
            barrier_arrive(sh.dq_empty(slot));
        }
        if constexpr (S::by_rows) { // prefetch the next tile's counter
            const int back = head == last ? S::step * S::dq_blocks * S::dq_shares - (last - first_head<S>(p, w)) * next_head : next_head;
            seen = head < last || tile != w.to ? load_counter(turn + back) : 0;
        } else if constexpr (S::ranged) seen = tile != w.to ? load_counter(turn + (next_tile(sh, tile) - tile) * S::dq_blocks * S::dq_shares) : 0;
        else seen = tile != w.to && tile + S::step != w.begin ? load_counter(turn + S::step * S::dq_blocks * S::dq_shares) : 0;
        if (p.deterministic || before == 0) {
            if constexpr (S::staged) store_wait();
            if constexpr (S::releases) barrier_wait(sh.dq_told(group), parity ^ 1), barrier_arrive(sh.dq_added(group)); // this lane is at most one turn ahead of `release`
            else add_counter_release(turn);
        } else if constexpr (S::releases) barrier_wait(sh.dq_told(group), parity ^ 1), barrier_arrive(sh.dq_added(group));
        parity ^= 1;
        if constexpr (S::dq_buffers == 1) slot_parity ^= 1;
        else if ((slot ^= S::dq_blocks) == group) slot_parity ^= 1;
    });
    store_wait();
}

// fetch runs in one lane and loads parts `least` to `most`. Part 0 is K, Q and LSE, part 1 is V, dO and delta. A preceding
// kernel computes delta and converts LSE to base 2. If S::once, fetch does not wait for that kernel before it loads the first
// tiles of K, Q, V and dO. add() waits for that kernel, and loads LSE and delta of the first tile of rows.
template <class S, int least, int most> __device__ __forceinline__ void fetch(const MapParams &a, Shared<S> sh) {
    const Params &p = a.p;
    volatile Work &w = sh.work();
    Ring<S::stages> ring = ring_at<S>(1, before<S>(w));
    const Bounds<S> e{p, sh};
    bool first = true;
    walk<S>(p, sh, [&](int head, int tile) {
#pragma unroll 1
        for (int part = least; part <= most; part++) {
            const uint32_t full = sh.q_full(part, ring.stage);
            const float *stats = stats_at<S>(p, w, part, head, tile);
            barrier_wait(sh.q_empty(part, ring.stage), ring.parity);
            barrier_expect(full, S::row_tile + S::rows * 4);
            each<S::panels>([&](int i) { box_load(sh.q(part, ring.stage) + i * S::row_panel, part ? a.dout : a.q, 64 * i, tile * S::rows + e.q0(), head, e.q_batch(), full); });
            if (!S::once || !first) {
                if constexpr (S::once) wait_for_dependency();
                bulk_load(sh.stats(part, ring.stage), stats, S::rows * 4, full);
            }
            if (first) {
                if constexpr (S::stays) barrier_wait(sh.k_empty(part), w.loads % 2 ^ 1);
                barrier_expect(sh.k_full(part), S::key_tile);
                each<S::panels>([&](int i) { box_load(sh.k(part) + i * S::key_panel, part ? a.v : a.k, 64 * i, w.key0 + e.key0(), w.kv_head, e.kv_batch(), sh.k_full(part)); });
            }
        }
        first = false;
        ring.next();
    });
}

// release runs in one lane. At each tile of rows, after dQ of both warpgroups has been added to dq_sum, the lane ends the
// turns of both warpgroups.
template <class S> __device__ __forceinline__ void release(const Params &p, Shared<S> sh) {
    volatile Work &w = sh.work();
    int parity = before<S>(w) % 2;
    if constexpr (S::once) wait_for_dependency(); // the counters are 0
    walk<S>(p, sh, [&](int head, int tile) {
        const bool tells = p.deterministic || earlier<S>({p, sh}, w, tile) == 0;
#pragma unroll 1
        for (int group = 0; group < 2; group++) barrier_wait(sh.dq_added(group), parity);
        if (tells) add_counter_release(p.turn + 1 + block_of<S>(p, w, head, tile, 0));
        barrier_arrive(sh.dq_told(0)), barrier_arrive(sh.dq_told(1));
        parity ^= 1;
    });
}

// stay is the body of persistent blocks, which process tickets until none is left.
template <class S> __device__ __forceinline__ void stay(const MapParams &a, const Features &f, Shared<S> sh) {
    const int group = uniform(threadIdx.x / 128);
    auto next = [&] { // waits for the next work; returns whether there is more
        barrier_wait(sh.work_full(), sh.turn / S::works % 2);
        return sh.work().steps >= 0;
    };
    if (group == 0) {
        registers_shrink<24>();
        if (threadIdx.x < 32) {
#pragma unroll 1
            for (;; sh.turn++) {
                barrier_wait(sh.work_empty(), sh.turn / S::works % 2 ^ 1);
                find(a.p, f, sh);
                if (threadIdx.x == 0) barrier_arrive(sh.work_full());
                __syncwarp();
                if (sh.work().steps < 0) break;
                if (threadIdx.x == 0) {
                    fetch<S, 0, S::releases>(a, sh);
                }
                __syncwarp();
            }
        } else if (threadIdx.x == 32) {
            if constexpr (S::releases) {
                for (; next(); sh.turn++) release(a.p, sh), barrier_arrive(sh.work_empty());
            } else {
                for (; next(); sh.turn++) fetch<S, 1, 1>(a, sh), barrier_arrive(sh.work_empty());
            }
        } else if (threadIdx.x == 64 || threadIdx.x == 96) {
            for (; next(); sh.turn++) add(a.p, sh, threadIdx.x / 32 - 2), barrier_arrive(sh.work_empty());
        }
    } else {
        registers_grow<240>();
#pragma unroll 1
        for (; next(); sh.turn++) {
            compute(a, f, sh, uniform(fresh(threadIdx.x) / 128) - 1);
            if constexpr (!S::frees_v)
                if (sh.work().steps) {
                    async_fence(); // orders the staging of dV before the next copy of V
                    __syncwarp();
                    if (threadIdx.x % 32 == 0) barrier_arrive(sh.k_empty(1));
                }
            named_barrier(1 + group, 128); // the whole warpgroup is done, so dS may be written again
            barrier_arrive(sh.work_empty()); // every thread arrives: racecheck considers only the arriving thread's accesses as ordered
        }
        launch_dependents();
    }
}
