// The first warpgroup of fwd_sm90: one warp loads Q, K and V; the other three warps find tiles of rows and scan tiles of V.
#pragma once
#include "fwd_sm90_schedule.cuh"

// fetch loads Q, K and V. It runs in one lane or, with features, in a warp, whose lanes load pages in parallel.
template <class S> __device__ __forceinline__ void fetch(const MapParams &a, const Features &f, Shared<S> sh) {
    const Params &p = a.p;
    const Finder<S> finder(a, f, sh);
    const bool leads = !S::features || threadIdx.x == 0;
    [[maybe_unused]] const uint8_t *known = nullptr; // the mask that known(side) describes
    [[maybe_unused]] int side = 0;
    [[maybe_unused]] Ring<1> found(0);
    auto find = [&](int &tile, volatile Work &w) {
        if constexpr (S::finds) return barrier_wait(sh.found(), found.parity), found.next();
        if (S::features) __syncwarp(); // all lanes have read the previous work
        if (leads) finder(tile, w);
        if (S::features) __syncwarp(); // all lanes see the new work
        if constexpr (S::lists) {
            if (w.row0 < 0 || w.count <= 0) return;
            const uint8_t *mask = (const uint8_t *)f.mask.data + w.batch * f.mask.batch + w.head * f.mask.head;
            if (mask != known) side ^= 1, known = mask, learn<S::keys>(sh.known(side), mask, p.kv_len);
            select(w, sh.known(side), side);
        }
    };
    Ring<S::q_stages> q(1);
    Ring<S::stages> k(1), v(1);
    auto fetch_q = [&](volatile Work &w) { // reads the work before waiting
        const int tile_row = w.row0, head = w.head, batch = S::features ? sh.place(w).q_batch : w.batch;
        const int row0 = S::features && tile_row >= 0 ? tile_row + sh.place(w).q0 : tile_row;
        barrier_wait(sh.q_empty(q.stage), q.parity);
        if (!leads) return q.next();
        if (tile_row < 0) return barrier_arrive(sh.q_full(q.stage));
        barrier_expect(sh.q_full(q.stage), S::q_bytes);
        each<S::panels>([&](int i) { box_load(sh.q(q.stage) + i * S::q_panel, a.q, 64 * i, row0, head, batch, sh.q_full(q.stage)); });
        q.next();
    };
    auto fetch_tile = [&](auto panels, volatile Work &w, int tile, const TensorMap &map, uint32_t to, uint32_t full, uint32_t empty, auto &ring, auto note) {
        int row = tile * S::keys;
        const int head = w.kv_head, batch = S::features ? sh.place(w).kv_batch : w.batch;
        if constexpr (S::features) {
            if (f.page) {
                const int i = threadIdx.x * f.page_box; // after the last key, the last key's page is loaded again
                const int j = min(row + i, (sh.place(w).keys - 1) / f.page_box * f.page_box), nth = (int)((uint64_t)(uint32_t)j * f.page_factor >> f.page_shift);
                const int page = f.pages[(int64_t)w.batch * f.page_width + nth];
                barrier_wait(empty, ring.parity);
                if (leads) note(), barrier_expect(full, panels.value * S::panel);
                __syncwarp(); // the bytes are expected
                if (i < S::keys) each<panels.value>([&](int k) { box_load(to + k * S::panel + i * 128, map, 64 * k, j - nth * f.page, head, page, full); });
                return ring.next();
            }
            row += sh.place(w).key0;
        }
        barrier_wait(empty, ring.parity);
        if (!leads) return ring.next();
        note();
        barrier_expect(full, panels.value * S::panel);
        each<panels.value>([&](int i) { box_load(to + i * S::panel, map, 64 * i, row, head, batch, full); });
        ring.next();
    };
    [[maybe_unused]] int last = 0; // Kind::keys: number of the tile that was last loaded from K
    [[maybe_unused]] auto cut = [&](volatile Work &w, int tile) { return tile < w.open_from || tile > w.open_to || !has(sh.known(w.part).whole, tile); };
    auto fetch_k = [&](volatile Work &w, int n) {
        auto from = [&](int tile, auto note) { fetch_tile(Count<S::panels>(), w, tile, a.k, sh.k(k.stage), sh.k_full(k.stage), sh.k_empty(k.stage), k, note); };
        if constexpr (S::lists) {
            last = n == 0 ? w.first : before(sh.known(w.part), last);
            const uint4 shown = shown_keys<S::keys>(sh.known(w.part), (const uint8_t *)f.mask.data + w.batch * f.mask.batch + w.head * f.mask.head, last, p.kv_len);
            const int tile = 2 * last + (cut(w, last) || (last + 1) * S::keys > sh.place(w).keys);
            from(last, [&, stage = k.stage] {
                volatile Slot &to = sh.slot(stage);
                to.shown[0] = shown.x, to.shown[1] = shown.y, to.shown[2] = shown.z, to.shown[3] = shown.w, to.tile = tile;
            });
        } else from(key_tile<S>(w, n), [] {});
    };
    auto fetch_v = [&](volatile Work &w, int n, int listed) {
        auto from = [&](int tile, bool cut, auto note) {
            fetch_tile(Count<S::v_panels>(), w, tile, a.v, sh.v(v.stage), cut ? sh.v_raw(v.stage) : sh.v_full(v.stage), sh.v_empty(v.stage), v, note);
        };
        if constexpr (S::lists) {
            const bool looked = cut(w, listed);
            from(listed, looked, [&, stage = v.stage] {
                sh.slot(stage).cut = looked;
                if (!looked) barrier_arrive(sh.v_raw(stage));
            });
        } else from(key_tile<S>(w, n), cut_tile<S>(w, n), [] {});
    };

    // Each tile of K is loaded before the previous tile of V. The first tile of K of the next Work is loaded before the last
    // tile of V of the current Work. The next Q is loaded in the middle of the current Work, because a stage of Q is free
    // only after the previous O has left the stage. An earlier wait for this stage would delay K and V. The next Work
    // overwrites a Work that q_empty has released.
    int tile = blockIdx.x, place = 0;
    find(tile, sh.work(0));
    if (sh.work(0).count > 0) fetch_k(sh.work(0), 0);
    fetch_q(sh.work(0));
    while (sh.work(place).row0 >= 0) {
        volatile Work &w = sh.work(place);
        place = place == S::q_stages ? 0 : place + 1;
        volatile Work &next = sh.work(place);
        // The next Work is found while no free stage waits for data. With p.turn, the next tile is drawn when the current Work
        // is nearly done. Instances with three warpgroups draw earlier, because they lack registers.
        constexpr bool late = !S::features && S::groups < 3;
        const int some_way = max(1, min(w.count / 2, 4));
        const int find_at = S::finds ? (w.count > 1 ? some_way : 0) : S::features ? min(2, w.count - 1) : late && p.turn ? max(0, w.count - 6) : 0;
        const int ask_at = max(some_way, find_at);
        auto advance = [&] { if (!S::finds && leads) tile = finder.next(tile); };
        if (!late) advance();
        const bool brief = S::sorts && w.count == 1; // no other load hides the time of the lookup
        if (brief) fetch_v(w, 0, last);
        if (!late && find_at <= 0) find(tile, next);
#pragma unroll 1
        for (int n = late ? 0 : 1; n < w.count || late && n == 0; n++) {
            const int listed = last;
            if (late && n == max(0, find_at - 1)) advance(); // the counter's value arrives a tile of keys later
            if (late && n == find_at) find(tile, next);
            if (n > 0) fetch_k(w, n), fetch_v(w, n - 1, listed);
            if (S::features && n == find_at) find(tile, next);
            if (S::q_stages > 1 && n == ask_at) fetch_q(next);
        }
        if (S::q_stages > 1 && w.count <= 1) fetch_q(next);
        const int listed = last;
        if (next.count > 0) fetch_k(next, 0);
        if (w.count > 0 && !brief) fetch_v(w, w.count - 1, listed);
        if (S::q_stages == 1) fetch_q(next);
    }
}

// look runs in three warps, which scan cut tiles of V and replace non-finite elements by 0. If S::finds, one lane also finds
// the next tile of rows, as soon as Q of the current tile has arrived. Finding takes as long as several tiles of keys.
template <class S> __device__ __forceinline__ void look(const MapParams &a, const Features &f, Shared<S> sh) {
    using T = typename S::T;
    const int thread = threadIdx.x - 32;
    Ring<S::q_stages> q(0);
    Ring<S::q_stages + 1> place(0);
    Ring<S::stages> v(0);
    uint32_t raw = 0; // bit i: the parity of v_raw(i)
    [[maybe_unused]] int tile = blockIdx.x, drawn = -1; // drawn: the next tile's number, drawn early after a short tile
    [[maybe_unused]] auto find = [&](int nth) {
        if (thread == 0) Finder<S>(a, f, sh)(tile, sh.work(nth));
        if constexpr (S::ranges)
            if (thread < 32 && f.range_count) bound<S>(a.p, f, sh.work(nth));
        if (thread == 0) barrier_arrive(sh.found());
        __syncwarp();
    };
    if constexpr (S::finds) find(0);
    while (true) {
        barrier_wait(sh.q_full(q.stage), q.parity);
        volatile Work &w = sh.work(place.stage);
        if (w.row0 < 0) break;
        if constexpr (S::finds) { // overwrites a free Work: otherwise this Q could not have arrived
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
            if (!S::lists && !cut_tile<S>(w, n)) continue;
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
            for (int i = thread; i < S::v_bytes / 16; i += 96) { // without branches, because the products P V wait for this loop
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
