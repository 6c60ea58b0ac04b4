// fwd_sm90 computes, for each query row i of each head,
//
//	m, l, o = -inf, 0, 0
//	for each tile of keys that row i sees, tiles cut by a mask first:
//		s = Q[i]·K[j] for each key j of the tile, -inf where i does not see j
//		n = max(m, max(c s)); a = 2^(m-n); m = n
//		p = 2^(c s - m); l = a l + sum(p); o = a o + p·V
//	O[i] = o / l; LSE[i] = ln(2) m + ln(l)
//
// with c = scale log2(e) (Milakov and Gimelshein 2018, algorithm 3). The products have the order of Shah et al. 2024,
// algorithm 2: scores run one tile ahead. A warpgroup's products of values overlap its maxima and the other warpgroups'
// exponentials.
//
// Compiled with -gencode=arch=compute_90a,code=sm_90a only.
//
// Launch: MapParams by value; grid.x = min(multiprocessors, tiles), where tiles = (tall + low) * heads * batch > 0; the
// rest from the Plan. p.turn is null, or an int of 0 that deals out the tiles, tall ones longest first; use it only if a
// mask hides keys. Without it, the second round of tiles runs in reverse, to pair long tiles with short ones. Maps of
// 16-bit elements, rank 4, 128-byte swizzle, no interleaving, zeros outside:
//
//	   dims, innermost first            strides in bytes    box
//	q  dim, q_len, heads, batch         row, head, batch    64, rows, 1, 1
//	k  dim, kv_len, kv_heads, batch     row, head, batch    64, keys, 1, 1
//	v  v_dim, kv_len, kv_heads, batch   row, head, batch    64, keys, 1, 1
//	o  v_dim, q_len, heads, batch       row, head, batch    64, 64, 1, 1
//
// Addresses and strides are multiples of 16 bytes; size-1 dimensions may have any such stride. With kv_len = 0, k and v
// are not read. Of the views in p, the kernel uses v, o and lse. If p.skew is nonzero, warpgroups take turns as turn_of
// chooses; with features they always do.
//
// Blocks are persistent. They process the tall tiles of query rows of all heads, then the low ones, longest first if all are
// low. In low tiles only some warpgroups have rows, so that multiprocessors end at about the same time. One lane of the
// first warpgroup loads boxes of Q, K and V, each when its stage is free. Each other warpgroup owns 64 rows, and stages O in
// its rows of Q. s, o, p and, with keep_q, Q are in registers, in the layouts of wgmma's sums and operands.
//
// A hidden key has p = 0, but 0 * NaN still reaches o. So the first warpgroup's other three warps scan tiles of V that the
// band cuts: non-finite elements become 0, and the rows that see them add them at the end.
//
// The split instances process parts of the keys: grid.x = min(multiprocessors, tiles * p.splits). They write o, maximum and
// sum to part_o and part_lse, like decode_sm80; decode_sm80_merge for v_dim merges them.
//
// Instances for features take FeatureParams, which begins with MapParams; p.turn is set if sequences or rows see different
// keys. Under a mask, all tiles of V count as cut; but in keys, for masks equal for all rows, the loading warp skips hidden
// tiles and passes with each K its index and visible keys. In the others, one lane of the scanning warps finds the next
// tile of rows during the current one; layout takes up to 32 packed sequences longest first. Masks by pairs are read and
// random words drawn while products are in flight; at D 64, which lacks registers, words are drawn between exponentials,
// which use another unit. O of packed rows is stored by chunks or elements if a box would reach into the next sequence.
// Maps of packed tensors have batch 1, maps of page pools are
//
//	k, v  dim, page, kv_heads, pages    row, head, batch    64, the greatest common divisor of page and keys, 1, 1
#include "fwd_sm90.cuh"

// The loading lane; with features its warp, whose lanes load pages in parallel.
template <class S> __device__ __forceinline__ void fetch(const MapParams &a, const Features &f, Shared<S> sh) {
    const Params &p = a.p;
    const Finder<S> finder(a, f, sh);
    const bool leads = !S::features || threadIdx.x == 0;
    [[maybe_unused]] const uint8_t *known = nullptr; // the mask in known(side)
    [[maybe_unused]] int side = 0;
    [[maybe_unused]] Ring<1> found(0);
    auto find = [&](int &tile, volatile Work &w) {
        if constexpr (S::finds) return barrier_wait(sh.found(), found.parity), found.next();
        if (S::features) __syncwarp(); // all lanes have read the previous work
        if (leads) finder(tile, w);
        if (S::features) __syncwarp(); // all lanes see the new one
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
                const int i = threadIdx.x * f.page_box; // after the last key its page is loaded again
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
    [[maybe_unused]] int last = 0; // K's listed tile
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
        } else from(w.tile(n), [] {});
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
        } else from(w.tile(n), w.cut(n), [] {});
    };

    // K is loaded one tile of keys before V, and the next work's first K before this one's last V. The next Q is loaded some
    // way into this work: waiting earlier for its stage, which the previous O must leave, would delay K and V. The next work
    // replaces one that q_empty released.
    int tile = blockIdx.x, place = 0;
    find(tile, sh.work(0));
    if (sh.work(0).count > 0) fetch_k(sh.work(0), 0);
    fetch_q(sh.work(0));
    while (sh.work(place).row0 >= 0) {
        volatile Work &w = sh.work(place);
        place = place == S::q_stages ? 0 : place + 1;
        volatile Work &next = sh.work(place);
        // The next work is found where no stage waits. With p.turn it is drawn when this one is nearly done, except with three
        // warpgroups, which lack registers.
        constexpr bool late = !S::features && S::groups < 3;
        const int some_way = max(1, min(w.count / 2, 4));
        const int find_at = S::finds ? (w.count > 1 ? some_way : 0) : S::features ? min(2, w.count - 1) : late && p.turn ? max(0, w.count - 6) : 0;
        const int ask_at = max(some_way, find_at);
        auto advance = [&] { if (!S::finds && leads) tile = finder.next(tile); };
        if (!late) advance();
        const bool brief = S::sorts && w.count == 1; // nothing else hides the lookup
        if (brief) fetch_v(w, 0, last);
        if (!late && find_at <= 0) find(tile, next);
#pragma unroll 1
        for (int n = late ? 0 : 1; n < w.count || late && n == 0; n++) {
            const int listed = last;
            if (late && n == max(0, find_at - 1)) advance(); // the counter arrives a tile of keys later
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

// One computing warpgroup.
template <class S> __device__ __forceinline__ void compute(const MapParams &a, const Features &f, Shared<S> sh, int group) {
    using T = typename S::T;
    const Params &p = a.p;
    const float inf = __int_as_float(0x7f800000);
    // Units of scores: c converts to log2 units, natural to natural units.
    const bool changes = S::biases || S::masks || S::caps || S::tilts || S::shapes && (f.cap_in != 0 || f.slopes.data || S::reads && (f.bias.data || f.mask.data));
    const float own_unit = S::shapes && f.cap_in != 0 ? f.cap_out : p.scale_log2;
    const bool general = S::reads && f.bias.data;
    float c = S::biases || general ? kLog2E : S::caps ? 1 : own_unit;
    float natural = S::biases || general ? 1 : S::shapes && f.cap_in != 0 ? f.cap : p.scale;
    const Cap capped(f);
    const int thread = threadIdx.x % 128, warp = thread / 32, lane = threadIdx.x % 32;
    // Offset of the lane's chunk of the warp's first 16x16 fragment in a stage of Q.
    const uint32_t fragment = group * 8192 + (warp * 16 + lane % 16) * 128 + ((lane / 16 ^ lane % 8) << 4);
    Ring<S::q_stages> q(0);
    Ring<S::q_stages + 1> place(0);
    Ring<S::stages> k(0), v(0);
    const bool turned = S::features || p.skew;
    auto uniform = [](int x) { return __shfl_sync(~0u, x, 0); }; // makes loop bounds uniform
    auto give = [&](auto &ring, uint32_t empty) {
        if (lane == 0) barrier_arrive(empty);
        ring.next();
    };
    int leaving = -1; // the stage of Q from which O is being stored
    while (true) {
        barrier_wait(sh.q_full(q.stage), q.parity);
        volatile Work &w = sh.work(place.stage);
        const int4 extent = w.extent();
        const int row0 = uniform(extent.x), rows_end = uniform(extent.y), count = uniform(extent.z), edges = uniform(extent.w);
        if (row0 < 0) break;
        const int first = w.first;
        [[maybe_unused]] int open = 0; // n + w.tile(n) after the edges
        if constexpr (S::features) open = uniform(w.full_to) + edges;
        // Read at each use, to save registers.
        auto lo = [&] { if constexpr (S::features) return (int)sh.place(w).lo; else return p.lo; };
        auto hi = [&] { if constexpr (S::features) return (int)sh.place(w).hi; else return p.hi; };
        auto keys = [&] { if constexpr (S::features) return (int)sh.place(w).keys; else return p.kv_len; };
        float slope = 0, steps_down = 0, offset[2] = {}; // ALiBi: a score's change per key; per row, its part not yet in this tile's scores
        [[maybe_unused]] bool steep = false;             // the slope in score units may overflow: scores are natural
        Sequence seq;
        if constexpr (S::shapes || S::tilts) {
            seq.diagonal = sh.place(w).diagonal;
            if (S::tilts || f.slopes.data) {
                slope = sh.place(w).slope;
                steps_down = -slope * kLog2E / own_unit;
                if (!general) {
                    steep = !(fabsf(steps_down) < 1e30f);
                    c = steep ? kLog2E : own_unit, natural = steep ? 1 : S::shapes && f.cap_in != 0 ? f.cap : p.scale;
                }
            }
        }
        const uint32_t q_tile = sh.q(q.stage);
        const int top_row = row0 + group * 64, row = top_row + warp * 16 + lane / 4; // the thread's rows are row and row + 8
        float o[S::v_dim / 2], s[S::keys / 2], m[2] = {-inf, -inf}, l[2] = {}, down[2] = {}, top[2];
        volatile float most[2] = {-inf, -inf}; // highest score of a far row, else -inf; in local memory: saves registers
        bool beyond = false;                   // a row of the warp is far
        [[maybe_unused]] float highest[2] = {-inf, -inf}; // split: highest unscaled score of a row that is not far
        [[maybe_unused]] int now = 0; // Slot::tile of the scores
        [[maybe_unused]] uint32_t shown = 0;
        uint32_t weights[S::keys / 16][4], qf[S::keep_q ? S::dim / 16 : 1][4];
        auto chunk = [&](int i) { return q_tile + i / 4 * S::q_panel + (fragment ^ i % 4 * 32); };
        if constexpr (S::keep_q) each<S::dim / 16>([&](int i) { load_matrix(qf[i], chunk(i)); });
        each<S::v_dim / 2>([&](int i) { o[i] = 0; });
        [[maybe_unused]] const uint64_t own_q = descriptor(q_tile + group * 8192, 16);
        auto pass = [&](bool now, int stage) { if (now && turned && thread == 0 && group < S::groups - 1) barrier_arrive(sh.turn(stage, group)); }; // passes the turn
        auto scores = [&] { // s = Q K^T, in flight
            barrier_wait(sh.k_full(k.stage), k.parity);
            if (S::turn > Turn::begin && turned && group > 0) barrier_wait(sh.turn(k.stage, group - 1), k.parity);
            if constexpr (S::lists) shown = sh.slot(k.stage).shown[lane % 4], now = uniform(sh.slot(k.stage).tile);
            const uint64_t b = descriptor(sh.k(k.stage), 16);
            wgmma_fence();
            each<S::dim / 16>([&](int i) {
                const uint64_t step = (i / 4 * S::panel + i % 4 * 32) / 16;
                if constexpr (S::keep_q) wgmma<T, 0>(s, qf[i], b + step, i > 0);
                else if constexpr (S::features) wgmma<T, 0>(s, own_q >> 32 << 32 | (uint32_t)own_q + (i / 4 * S::q_panel + i % 4 * 32) / 16, b + step, i > 0);
                else wgmma<T, 0>(s, descriptor(q_tile + group * 8192, 16) + (i / 4 * S::q_panel + i % 4 * 32) / 16, b + step, i > 0);
            });
            wgmma_commit();
        };
        auto values = [&] { // o += P V, in flight
            barrier_wait(sh.v_full(v.stage), v.parity);
            const uint64_t b = descriptor(sh.v(v.stage), S::panel);
            wgmma_fence();
            each<S::keys / 16>([&](int i) { wgmma<T, 1>(o, weights[i], b + i * 2048 / 16, true); });
            wgmma_commit();
        };
        auto mask = [&](int tile) { // by 64 keys: often every row sees all of them
            const int key = tile * S::keys, low = lo(), high = hi(), last = keys();
            uint32_t seen[2];
            each<2>([&](int r) {
                const int from = row + 8 * r + low, to = min(row + 8 * r + high + 1, last), first = key + lane % 4 * 2;
                seen[r] = columns_before(to - first) & ~columns_before(from - first);
                if constexpr (S::lists) seen[r] &= shown;
            });
            each<(S::keys + 63) / 64>([&](int half) {
                if (!S::lists && key + 64 * half >= top_row + 63 + low && key + 64 * half + 64 <= min(top_row + high + 1, last)) return;
                each<32>([&](int i) {
                    const int bit = 16 * half + i % 16, at = 32 * half + i % 16 / 2 * 4 + i / 16 * 2 + i % 2;
                    if (at < S::keys / 2) s[at] = seen[i / 16] & 1u << bit ? s[at] : -inf;
                });
            });
        };
        [[maybe_unused]] const auto side = [&] {
            if constexpr (S::biases || S::masks) return SideRows<S::biases ? 2 : 1, S::keys>(S::biases ? f.bias : f.mask, p, w.batch, w.head, top_row + warp * 16, lane);
            else return 0;
        }();
        [[maybe_unused]] auto ask = [&](int tile) { // prefetches a tile's bias or mask
            if constexpr (S::biases || S::masks) side.copy(sh.side(group * 4 + warp), S::biases ? f.bias : f.mask, p, top_row + warp * 16, tile * S::keys, lane);
        };
        [[maybe_unused]] Counter own = {}; // of the row for which the lane draws
        if constexpr (S::drops) own = counter_of(f, w.batch, w.head, row + lane % 2 * 8, 0);
        [[maybe_unused]] const uint64_t own_words = row_words(own);
        [[maybe_unused]] uint32_t kept[2]; // dropout masks of the lane's rows
        // Draws random words while products are in flight, else between exponentials.
        constexpr bool early = S::dim >= 128;
        [[maybe_unused]] auto draw = [&](auto between) { kept_keys<S::keys, 4>(kept, f, sh.side(group * 4 + warp), own.seed, own_words, lane, between); };
        [[maybe_unused]] uint32_t visible[2]; // mask by pairs, of the lane's rows
        [[maybe_unused]] bool banded_tile = true; // the band hides pairs of the tile
        // Feature work of a tile that needs no scores; prefetches the next tile's mask.
        auto prepare = [&](int n, int tile, auto next) {
            if constexpr (S::drops) {
                share_key_words<S::keys>(f, sh.side(group * 4 + warp), w.batch, w.head, tile * S::keys, lane);
                if (early) draw([](int) {});
            }
            if constexpr (S::masks) {
                copy_wait<0>(), __syncwarp();
                staged_rows<S::keys>(visible, sh.side(group * 4 + warp), lane);
                if (n + 1 < count) ask(next());
                banded_tile = tile * S::keys < top_row + 63 + lo() || (tile + 1) * S::keys > min(top_row + hi() + 1, keys());
            }
        };
        [[maybe_unused]] bool small = false; // the tile's scores are small and not yet capped
        auto hide = [&](int tile) {
            if constexpr (S::masks)
                if (!banded_tile) return;
            if constexpr (!S::lists) mask(tile);
            else if (now & 1) mask(now / 2);
        };
        auto adjust = [&](int n, int tile, auto next) {
            if constexpr (S::masks) {
                hide_staged<S::keys>(s, visible);
            } else if constexpr (S::biases) {
                copy_wait<0>(), __syncwarp();
                add_staged<T, S::keys>(s, p.scale, sh.side(group * 4 + warp), lane);
                if (n + 1 < count) ask(next());
            } else if constexpr (S::caps) {
                small = capped.apply(s);
            } else if constexpr (S::shapes || S::tilts) {
                const Flat<S::keys / 2> all{s};
                const int key = tile * S::keys + lane % 4 * 2;
                if (general) {
                    Scores<T> x(p, f, seq, w.batch, w.head);
                    x.slope = slope;
                    return x.template adjust<false>(all, row, key);
                }
                if (S::shapes && f.cap_in != 0) cap(s, f.cap_in);
                if (S::tilts || f.slopes.data) {
                    // Relative to the first key: if the diagonal does not cross the warp's tile, distances only rise or only fall.
                    const int distance = key - row - seq.diagonal, least = tile * S::keys - (top_row + warp * 16 + 15) - seq.diagonal;
                    if (steep) {
                        const float unit = S::shapes && f.cap_in != 0 ? f.cap : p.scale;
                        each<2>([&](int r) { offset[r] = 0; });
                        each<S::keys / 2>([&](int i) { s[i] = fmaf(s[i], unit, -slope * fabsf(distance + (i / 4 * 8 + i % 2 - i % 4 / 2 * 8))); });
                    } else if (least >= 0 || least + S::keys + 15 <= 0) {
                        const float rises = least >= 0 ? steps_down : -steps_down;
                        each<2>([&](int r) { offset[r] = rises * (distance - 8 * r); });
                        each<S::keys / 2>([&](int i) { s[i] = fmaf(rises, i / 4 * 8 + i % 2, s[i]); });
                    } else {
                        each<2>([&](int r) { offset[r] = 0; });
                        each<S::keys / 2>([&](int i) { s[i] = fmaf(steps_down, fabsf(distance + (i / 4 * 8 + i % 2 - i % 4 / 2 * 8)), s[i]); });
                    }
                }
                if (S::reads && f.mask.data) Scores<T>(p, f, seq, w.batch, w.head).template hide<false>(all, row, key);
            }
        };
        auto drop = [&](int tile) {
            if constexpr (S::reads) {
                if (!f.drop_below) return;
                kept_keys<S::keys>(kept, f, w.batch, w.head, again(row), tile * S::keys, again(lane)); // saves registers
            }
            if constexpr (S::reads || S::drops) keep_pairs<S::keys>(s, kept);
        };
        // Far rows: subtracts the row's highest score from s; m becomes the old maximum relative to it, scaled. top has the
        // lane's highest score, then 0.
        auto take_off = [&] {
            bool far = false;
            each<2>([&](int r) {
                const float before = most[r];
                const FarRow row(m[r], quad_max(top[r]), before, c);
                if (row.far) far = true, top[r] = 0;
                each<S::keys / 4>([&](int i) {
                    float &x = s[i / 2 * 4 + 2 * r + i % 2];
                    if (row.far) x = (S::shapes || S::tilts ? x + offset[r] : x) - row.most;
                });
                if (row.far) offset[r] = 0;
                m[r] = row.m, most[r] = row.most;
            });
            beyond = __any_sync(~0u, far);
        };
        auto maxima = [&](bool masked) { // m: maxima; top: subtrahends of c s; down: factors of o
            top[0] = top[1] = -inf;
            each<S::keys / 4>([&](int i) { top[i % 2] = fmaxf(top[i % 2], fmaxf(s[2 * i], s[2 * i + 1])); });
            if constexpr (S::shapes || S::tilts) top[0] += offset[0], top[1] += offset[1]; // each lane's own
            if constexpr (!S::caps)
                if (beyond || __any_sync(~0u, may_be_far(top[0], c, masked) || may_be_far(top[1], c, masked))) take_off();
            each<4>([&](int i) { top[i % 2] = fmaxf(top[i % 2], __shfl_xor_sync(~0u, top[i % 2], 1 + i / 2)); });
            if constexpr (S::split) each<2>([&](int r) { highest[r] = most[r] == -inf ? fmaxf(highest[r], top[r]) : -inf; });
            each<2>([&](int r) {
                if (S::caps && small) top[r] *= capped.factor(top[r]);
                top[r] = fmaxf(m[r], top[r] * c);
                const float shift = masked && top[r] == -inf ? 0 : top[r];
                down[r] = exp2_approx(m[r] - shift);
                m[r] = top[r];
                top[r] = S::shapes || S::tilts ? fmaf(-offset[r], c, shift) : shift;
            });
        };
        auto exponentials = [&](int tile) { // s becomes P; adds its sums to l
            float sum[2] = {};
            auto exponential = [&](int i) { sum[i % 4 / 2] += s[i] = exp2_approx(fmaf(s[i], S::caps && small ? capped.factor(s[i]) : c, -top[i % 4 / 2])); };
            constexpr int draws = 5 * S::keys / 64, size = S::keys / 2;
            if constexpr (S::drops && !early) draw([&](int i) { each<(size + draws - 1) / draws>([&](int j) { if (size * i / draws + j < size * (i + 1) / draws) exponential(size * i / draws + j); }); });
            else if (S::caps && small) each<S::keys / 2>(exponential);
            else each<S::keys / 2>(exponential);
            each<2>([&](int r) { l[r] = fmaf(l[r], down[r], sum[r]); });
        };
        auto round_weights = [&] { each<S::keys / 4>([&](int i) { weights[i / 4][i % 4] = pack<T>(s[2 * i], s[2 * i + 1]); }); };
        auto leave = [&] { // releases the stage of the previous O
            if (leaving >= 0 && thread == 0) store_wait_read(), barrier_arrive(sh.q_empty(leaving));
            leaving = -1;
        };
        auto step = [&](bool masked, int n, int tile, auto next) { // scores of tile n, values of tile n - 1
            scores();
            values();
            [[maybe_unused]] const int stage = k.stage;
            pass(S::turn == Turn::issue, stage);
            prepare(n, tile, next);
            wgmma_wait<1>();
            give(k, sh.k_empty(k.stage));
            if (changes) adjust(n, tile, next);
            if (masked) hide(S::features ? tile : w.tile(n));
            maxima(masked || S::reads || S::biases || S::masks);
            wgmma_wait<0>();
            pass(S::turn == Turn::values, stage);
            give(v, sh.v_empty(v.stage));
            exponentials(tile);
            drop(tile);
            round_weights();
            if (!S::drops || __any_sync(~0u, down[0] != 1 || down[1] != 1)) each<S::v_dim / 2>([&](int i) { o[i] *= down[i % 4 / 2]; });
        };
        auto tile_of = [&](int n) {
            if constexpr (S::lists)
                if (n > 0) return barrier_wait(sh.k_full(k.stage), k.parity), uniform(sh.slot(k.stage).tile) / 2;
            return n == 0 ? first : w.tile(n);
        };
        const int end = top_row < rows_end ? top_row + 64 + hi() : 0; // tiles of keys from here on are skipped
        int n = 0;
#pragma unroll 1
        for (; n < count && tile_of(n) * S::keys >= end; n++) {
            leave();
            barrier_wait(sh.k_full(k.stage), k.parity);
            if (S::turn > Turn::begin && turned && group > 0) barrier_wait(sh.turn(k.stage, group - 1), k.parity); // no turn is passed twice
            pass(S::turn > Turn::begin, k.stage);
            give(k, sh.k_empty(k.stage));
            barrier_wait(sh.v_full(v.stage), v.parity);
            give(v, sh.v_empty(v.stage));
        }
        n = uniform(n);
        if (n < count) {
            auto tile_at = [&](int n) { if constexpr (S::masks) return first - n; else if constexpr (S::finds) return w.tile(n); else return 0; };
            auto next = [&] { return tile_at(n + 1); };
            const int tile = tile_at(n);
            ask(tile);
            if (S::turn == Turn::begin && turned && group > 0) {
                // If the first warpgroup sees no keys, it passes the turn after V has arrived. V is loaded after the next Q,
                // whose stage the previous O must leave.
                if (end <= 64 * group) leave();
                barrier_wait(sh.turn(q.stage, group - 1), q.parity);
            }
            scores();
            leave();
            prepare(n, tile, next);
            wgmma_wait<0>();
            pass(S::turn == Turn::begin, q.stage);
            pass(S::turn > Turn::begin, k.stage);
            give(k, sh.k_empty(k.stage));
            if (changes) adjust(n, tile, next);
            if (n < edges) hide(S::features ? tile : w.tile(n));
            maxima(true);
            exponentials(tile);
            drop(tile);
            round_weights();
#pragma unroll 1
            for (n++; n < edges; n++) step(true, n, tile_at(n), next);
#pragma unroll 1
            for (; n < count; n++) step(false, n, open - n, [&] { return open - n - 1; });
            values();
            wgmma_wait<0>();
            give(v, sh.v_empty(v.stage));
        } else {
            if (S::turn == Turn::begin && turned && group > 0) barrier_wait(sh.turn(q.stage, group - 1), q.parity);
            pass(S::turn == Turn::begin, q.stage);
        }
        leave();
        each<2>([&](int r) {
            l[r] += __shfl_xor_sync(~0u, l[r], 1);
            l[r] += __shfl_xor_sync(~0u, l[r], 2);
        });
        if constexpr (S::split) {
            each<2>([&](int r) { highest[r] = fmaxf(highest[r], most[r]); });
            write_part<S>(p, w, o, highest, l, row, rows_end);
            if (w.odd) add_odd_part<S>(p, w, top_row + warp * 16, rows_end);
            named_barrier(2 + group, 128); // Q and the work are free
            if (thread == 0) barrier_arrive(sh.q_empty(q.stage));
            q.next(), place.next();
            continue;
        }
        each<2>([&](int r) {
            down[r] = l[r] == 0 ? 0 : __fdividef(1, l[r]);
        });
        int q_batch = w.batch, q_row = 0, real = 0; // row 0 in the tensors; rows without padding
        if constexpr (S::features) {
            q_batch = sh.place(w).q_batch, q_row = sh.place(w).q0, real = sh.place(w).rows;
            float own[2], before[2]; // factors of O and of the earlier keys' O
            each<2>([&](int r) {
                const int i = row + 8 * r;
                const float carried = f.carry && i < real ? f.carried_lse[((int64_t)w.batch * p.heads + w.head) * p.q_len + i] : -inf;
                m[r] = most[r] > -inf ? most[r] * natural : m[r] * kLn2;
                end_row(m[r], l[r], own[r], before[r], f.keep, sh.place(w).sink, carried, i < real);
                down[r] = own[r];
            });
            if (__any_sync(~0u, own[0] == 0 || own[1] == 0)) each<S::v_dim / 2>([&](int i) { o[i] = own[i % 4 / 2] == 0 ? 0 : o[i]; });
            if (f.carry) {
                const uint16_t *earlier = (const uint16_t *)p.o.data + q_batch * p.o.batch + w.head * p.o.head + q_row * p.o.row + lane % 4 * 2;
                each<2>([&](int r) {
                    const uint16_t *from = earlier + (row + 8 * r) * p.o.row;
                    const int columns = before[r] == 0 ? 0 : p.v_dim - lane % 4 * 2; // rows are 16-byte aligned
                    down[r] = 1;
                    each<S::v_dim / 8>([&](int x) {
                        const uint32_t both = 8 * x + 1 < columns ? *(const uint32_t *)(from + 8 * x) : 8 * x < columns ? from[8 * x] : 0;
                        float *z = o + 4 * x + 2 * r;
                        z[0] = fmaf(before[r], widen<T>(both & 0xffff), z[0] * own[r]), z[1] = fmaf(before[r], widen<T>(both >> 16), z[1] * own[r]);
                    });
                });
            }
        }

        // O is staged in the warpgroup's own rows of Q.
        auto pair = [&](int i) { return pack<T>(o[2 * i] * down[i % 2], o[2 * i + 1] * down[i % 2]); };
        each<S::v_dim / 16>([&](int i) { store_matrix(chunk(i), pair(4 * i), pair(4 * i + 1), pair(4 * i + 2), pair(4 * i + 3)); });
        auto staged = [&](int r, int column) {
            const int at = group * 8192 + r * 128 + column / 64 * S::q_panel + ((column / 8 ^ r) % 8 << 4) + column % 8 * 2;
            return (uint16_t *)(sh.base + (q_tile - sh.at) + at);
        };
        if (w.odd) { // add the cleared elements of V
            const uint16_t *value = (const uint16_t *)p.v.data + w.batch * p.v.batch + w.kv_head * p.v.head; // [kv_len, v_dim]
            if constexpr (S::features) seq.kv_batch = sh.place(w).kv_batch, seq.key0 = sh.place(w).key0;
            __syncwarp(); // the warp's rows are written
            for (int i = lane; i < 16 * p.v_dim; i += 32) {
                const int r = i % 16, column = i / 16, see = top_row + warp * 16 + r;
                float sum = 0;
                for (n = 0; n < (S::lists ? w.right : edges); n++) {
                    const int end = min(min((w.tile(n) + 1) * S::keys, keys()), see + hi() + 1);
#pragma unroll 1
                    for (int j = max(w.tile(n) * S::keys, see + lo()); (S::lists || w.cut(n)) && j < end; j++) {
                        float x;
                        if constexpr (S::features) {
                            if (see >= real || (S::masks || S::lists || S::reads) && !Scores<T>(p, f, seq, w.batch, w.head).takes_part(see, j)) continue;
                            x = widen<T>(((const uint16_t *)p.v.data)[key_place(p.v, f, seq, w.batch, w.kv_head, j) + column]);
                        } else {
                            x = widen<T>(value[j * p.v.row + column]);
                        }
                        if (!(fabsf(x) < inf)) sum += x;
                    }
                }
                uint16_t *to = staged(warp * 16 + r, column);
                if (sum != 0) *to = pack<T>(widen<T>(*to) + sum, 0);
            }
        }
        float *lse = (float *)p.lse.data + q_batch * p.lse.batch + w.head * p.lse.head + q_row * p.lse.row; // [q_len]; after the barrier w may change
        async_fence();                                                                  // the copy sees O
        named_barrier(2 + group, 128);                                                  // the warpgroup has written O
        if (p.v_dim % 8 != 0 || S::features && f.q_starts && top_row + 64 > rows_end) { // box_store writes whole 16-byte chunks
            uint16_t *to = (uint16_t *)p.o.data + q_batch * p.o.batch + w.head * p.o.head + (q_row + top_row) * p.o.row;
            if (S::sorts && p.v_dim % 8 == 0) {
#pragma unroll 4
                for (int i = thread; i < 8 * S::v_dim; i += 128) {
                    const int r = i / (S::v_dim / 8), column = i % (S::v_dim / 8) * 8;
                    if (r < rows_end - top_row && column < p.v_dim) *(uint4 *)(to + r * p.o.row + column) = *(const uint4 *)staged(r, column);
                }
            } else
#pragma unroll 1
            for (int r = warp; r < min(64, rows_end - top_row); r += 4)
#pragma unroll 1
                for (int column = lane; column < p.v_dim; column += 32) to[r * p.o.row + column] = *staged(r, column);
            named_barrier(2 + group, 128); // all have read O
        } else if (thread == 0 && top_row < rows_end) {
            each<S::v_panels>([&](int i) { box_store(a.o, 64 * i, q_row + top_row, w.head, q_batch, q_tile + group * 8192 + i * S::q_panel); });
            store_commit();
        }
        leaving = q.stage;
        each<2>([&](int r) {
            if (p.lse.data && lane % 4 == 0 && row + 8 * r < rows_end) lse[(row + 8 * r) * p.lse.row] = S::features ? m[r] + logf(l[r]) : most[r] > -inf ? fmaf(most[r], p.scale, logf(l[r])) : (m[r] + log2f(l[r])) * kLn2;
        });
        if (S::q_stages == 1) leave();
        q.next(), place.next();
    }
    store_wait(); // shared memory must outlive the copies
}

template <class S> __device__ __forceinline__ void forward(const MapParams &a, const Features &f) {
    extern __shared__ char unaligned[];
    Shared<S> sh;
    sh.base = unaligned + (-shared_address(unaligned) & 1023); // the permutation of chunks repeats every 1024 bytes
    sh.at = __shfl_sync(~0u, shared_address(sh.base), 0);      // makes the address uniform
    const bool looks = cuts<S>(a.p, f);
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::q_stages; i++) barrier_init(sh.q_full(i), 1), barrier_init(sh.q_empty(i), S::groups + (looks ? 3 : S::finds ? 1 : 0));
        for (int i = 0; i < S::stages; i++) barrier_init(sh.k_full(i), 1), barrier_init(sh.v_full(i), 1), barrier_init(sh.v_raw(i), 1);
        for (int i = 0; i < S::stages; i++) barrier_init(sh.k_empty(i), 4 * S::groups), barrier_init(sh.v_empty(i), 4 * S::groups + (S::lists ? 3 : 0));
        if constexpr (S::finds) barrier_init(sh.found(), 1);
        for (int i = 0; i < S::turns * (S::groups - 1); i++) barrier_init(sh.turn(0, i), 1);
        barrier_fence();
    }
    if constexpr (S::sorts)
        if (threadIdx.x / 32 == 1 && f.row_slots && a.p.batch <= 32) sort<S>(a.p, f, sh.order());
    __syncthreads(); // the barriers exist
    const int group = __shfl_sync(~0u, threadIdx.x / 128, 0); // uniform
    if (group == 0) {
        registers_shrink<S::fetch_registers>();
        if (threadIdx.x < (S::features ? 32 : 1)) fetch<S>(a, f, sh);
        if (threadIdx.x >= 32 && (looks || S::finds && threadIdx.x < 64)) look<S>(a, f, sh);
    } else {
        registers_grow<S::compute_registers>();
        compute<S>(a, f, sh, group - 1);
    }
}

#define KERNEL(name, block, a, f, ...)                                                                                                 \
    using name##_shape = Shape<__VA_ARGS__>;                                                                                           \
    extern "C" __device__ Plan name##_plan = {name##_shape::threads, name##_shape::shared, name##_shape::rows, name##_shape::keys};     \
    extern "C" __global__ void __launch_bounds__(name##_shape::threads, 1) name(const __grid_constant__ block x) {                      \
        forward<name##_shape>(a, f);                                                                                                   \
    }
#define FEATURES(name, kind, type, T, groups, keep_q, keys)                                                                       \
    KERNEL(fwd_sm90_features##name##_##type##_d64, FeatureParams, (const MapParams &)x, x.f, Kind::kind, T, 64, 64, groups, 128, 2, 3, false) \
    KERNEL(fwd_sm90_features##name##_##type##_d128, FeatureParams, (const MapParams &)x, x.f, Kind::kind, T, 128, 128, 2, 128, 2, 2, keep_q) \
    KERNEL(fwd_sm90_features##name##_##type##_d256, FeatureParams, (const MapParams &)x, x.f, Kind::kind, T, 256, 256, 2, keys, 1, 2, false)
#define MLA(name, block, a, f, kind, type, T)                                                       \
    KERNEL(name##_##type##_d192_dv128, block, a, f, Kind::kind, T, 192, 128, 2, 128, 1, 2, false) \
    KERNEL(name##_##type##_d192, block, a, f, Kind::kind, T, 192, 192, 2, 112, 1, 2, false)
#define DIMS(name, kind, type, T, groups, keep_q)                                                            \
    KERNEL(name##_##type##_d64, MapParams, x, no_features, Kind::kind, T, 64, 64, groups, 128, 2, 3, keep_q) \
    KERNEL(name##_##type##_d80, MapParams, x, no_features, Kind::kind, T, 80, 80, groups, 112, 2, 2, keep_q) \
    KERNEL(name##_##type##_d96, MapParams, x, no_features, Kind::kind, T, 96, 96, groups, 96, 2, 2, keep_q)  \
    KERNEL(name##_##type##_d128, MapParams, x, no_features, Kind::kind, T, 128, 128, 2, 128, 2, 2, true)     \
    KERNEL(name##_##type##_d256, MapParams, x, no_features, Kind::kind, T, 256, 256, 2, 80, 1, 2, false)     \
    MLA(name, MapParams, x, no_features, kind, type, T)
#define INSTANCES(type, T)                                                                            \
    DIMS(fwd_sm90, plain, type, T, 3, false) DIMS(fwd_sm90_split, split, type, T, 2, true)            \
    FEATURES(_layout, layout, type, T, 3, true, 80) FEATURES(_shaped, shaped, type, T, 2, false, 64) \
    FEATURES(_softcap, softcap, type, T, 3, true, 80) FEATURES(_alibi, alibi, type, T, 3, true, 80)  \
    FEATURES(_bias, bias, type, T, 3, false, 64) FEATURES(_mask, mask, type, T, 3, false, 64)        \
    FEATURES(_keys, keys, type, T, 3, true, 64)                                                    \
    FEATURES(_dropout, dropout, type, T, 3, false, 64) FEATURES(, any, type, T, 2, false, 64)        \
    MLA(fwd_sm90_features_layout, FeatureParams, (const MapParams &)x, x.f, layout, type, T)
INSTANCES(bf16, BF16)
INSTANCES(f16, F16)
