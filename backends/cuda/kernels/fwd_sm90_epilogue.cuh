// The last step of fwd_sm90 for a tile of rows: writing O and LSE, or the sums over a part of the keys.
#pragma once
#include "fwd_sm90_rows.cuh"

// Merges a row's softmax sums with the sink and with the result of earlier keys, whose LSE is `carried`. Before the call, m is
// the row maximum in natural units, and l the sum of weights. After the call, LSE is m + ln(l), and O is own * o + before *
// (O of the earlier keys). If real is false, the row is padding: own and before become 0, and m becomes -inf.
__device__ __forceinline__ void end_row(float &m, float &l, float &own, float &before, float keep, float sink, float carried, bool real) {
    const Shares x = real ? shares(m, l, sink, carried) : Shares{0, 0, -infinity, 1};
    const float by = __fdividef(1, x.sum);
    own = x.mine * by * keep, before = x.earlier * by, m = x.top, l = x.sum;
}

// Writes o, the maximum and the sum of weights of the thread's two rows to the workspace. These sums are over a part of the
// keys. decode_sm80_merge reads them.
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

// Adds the non-finite elements of V, which look() has replaced by 0, to part_o, in rows that see these elements. The warp's
// 16 rows begin at row `top`.
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

// Writes o, the maxima and the sums of weights over a part of the keys.
template <class S> __device__ __forceinline__ void RowTile<S>::finish_part() {
    each<2>([&](int r) { highest[r] = fmaxf(highest[r], most[r]); });
    write_part<S>(g.p, w, o, highest, l, row, rows_end);
    if (w.odd) add_odd_part<S>(g.p, w, top_row + g.warp * 16, rows_end);
    named_barrier(2 + g.group, 128); // Q and the work are free
    if (g.thread == 0) barrier_arrive(g.sh.q_empty(g.q.stage));
    g.q.next(), g.place.next();
}

// Sets o to own * o + before * (O of the earlier keys).
template <class S> __device__ __forceinline__ void RowTile<S>::add_carried(const float (&own)[2], const float (&before)[2], int q_batch, int q_row) {
    const Params &p = g.p;
    const uint16_t *earlier = (const uint16_t *)p.o.data + q_batch * p.o.batch + w.head * p.o.head + q_row * p.o.row + g.lane % 4 * 2;
    each<2>([&](int r) {
        const uint16_t *from = earlier + (row + 8 * r) * p.o.row;
        const int columns = before[r] == 0 ? 0 : p.v_dim - g.lane % 4 * 2; // rows are 16-byte aligned
        down[r] = 1;
        each<S::v_dim / 8>([&](int x) {
            const uint32_t both = 8 * x + 1 < columns ? *(const uint32_t *)(from + 8 * x) : 8 * x < columns ? from[8 * x] : 0;
            float *z = o + 4 * x + 2 * r;
            z[0] = fmaf(before[r], widen<T>(both & 0xffff), z[0] * own[r]), z[1] = fmaf(before[r], widen<T>(both >> 16), z[1] * own[r]);
        });
    });
}

// Sets down[r] to the factor that turns o into O in the thread's row r (0 or 1). With features, also merges the sink and
// the earlier keys into m, l and o, converts m to natural
// units, and writes the row maximum.
template <class S> __device__ __forceinline__ void RowTile<S>::divide(int q_batch, int q_row, int real) {
    each<2>([&](int r) {
        down[r] = l[r] == 0 ? 0 : __fdividef(1, l[r]);
    });
    if constexpr (S::features) {
        const Features &f = g.f;
        float own[2], before[2]; // factors of o, and of O of the earlier keys
        each<2>([&](int r) {
            const int i = row + 8 * r;
            const float carried = f.carry && i < real ? f.carried_lse[((int64_t)w.batch * g.p.heads + w.head) * g.p.q_len + i] : -infinity;
            m[r] = most[r] > -infinity ? most[r] * g.natural : m[r] * kLn2;
            if constexpr (S::ranges)
                if (g.p.dlse.data && g.lane % 4 == 0 && i < rows_end)
                    store_row_max((float *)g.p.dlse.data + q_batch * g.p.dlse.batch + w.head * g.p.dlse.head + (q_row + i) * g.p.dlse.row, i < real ? m[r] : -infinity, i < real ? l[r] : 0, carried);
            end_row(m[r], l[r], own[r], before[r], f.keep, g.sh.place(w).sink, carried, i < real);
            down[r] = own[r];
        });
        if (__any_sync(~0u, own[0] == 0 || own[1] == 0)) each<S::v_dim / 2>([&](int i) { o[i] = own[i % 4 / 2] == 0 ? 0 : o[i]; });
        if (f.carry) add_carried(own, before, q_batch, q_row);
    }
}

// Writes O to the shared memory of the warpgroup's own rows of Q.
template <class S> __device__ __forceinline__ void RowTile<S>::stage_o() {
    auto pair = [&](int i) { return pack<T>(o[2 * i] * down[i % 2], o[2 * i + 1] * down[i % 2]); };
    each<S::v_dim / 16>([&](int i) { store_matrix(chunk(i), pair(4 * i), pair(4 * i + 1), pair(4 * i + 2), pair(4 * i + 3)); });
}
template <class S> __device__ __forceinline__ uint16_t *RowTile<S>::staged(int r, int column) const {
    const int at = g.group * 8192 + r * 128 + column / 64 * S::q_panel + ((column / 8 ^ r) % 8 << 4) + column % 8 * 2;
    return (uint16_t *)(g.sh.base + (q_tile - g.sh.at) + at);
}

// Adds the non-finite elements of V, which look() has replaced by 0, to the staged O, in rows that see these elements.
template <class S> __device__ __forceinline__ void RowTile<S>::add_odd(int real) {
    const Params &p = g.p;
    const Features &f = g.f;
    const uint16_t *value = (const uint16_t *)p.v.data + w.batch * p.v.batch + w.kv_head * p.v.head; // [kv_len, v_dim]
    if constexpr (S::features) seq.kv_batch = g.sh.place(w).kv_batch, seq.key0 = g.sh.place(w).key0;
    __syncwarp(); // the warp's rows are written
    for (int i = g.lane; i < 16 * p.v_dim; i += 32) {
        const int r = i % 16, column = i / 16, see = top_row + g.warp * 16 + r;
        float sum = 0;
        for (int n = 0; n < (S::lists ? w.right : edges); n++) {
            const int end = min(min((key_tile<S>(w, n) + 1) * S::keys, keys()), see + hi() + 1);
#pragma unroll 1
            for (int j = max(key_tile<S>(w, n) * S::keys, see + lo()); (S::lists || cut_tile<S>(w, n)) && j < end; j++) {
                float x;
                if constexpr (S::features) {
                    if (see >= real || (S::masks || S::lists || S::reads) && !Scores<T>(p, f, seq, w.batch, w.head).takes_part(see, j)) continue;
                    if constexpr (S::ranges)
                        if (f.range_count && !ranges_of(f, w.batch, w.head, see).has(j)) continue;
                    x = widen<T>(((const uint16_t *)p.v.data)[key_place(p.v, f, seq, w.batch, w.kv_head, j) + column]);
                } else {
                    x = widen<T>(value[j * p.v.row + column]);
                }
                if (!(fabsf(x) < infinity)) sum += x;
            }
        }
        uint16_t *to = staged(g.warp * 16 + r, column);
        if (sum != 0) *to = pack<T>(widen<T>(*to) + sum, 0);
    }
}

// Copies the staged O to the tensor. box_store always writes 64 rows, in whole chunks of 16 bytes. Where this would
// overwrite other data, threads copy chunks or elements instead.
template <class S> __device__ __forceinline__ void RowTile<S>::store_o(int q_batch, int q_row) {
    const Params &p = g.p;
    if (p.v_dim % 8 != 0 || S::features && g.f.q_starts && top_row + 64 > rows_end) {
        uint16_t *to = (uint16_t *)p.o.data + q_batch * p.o.batch + w.head * p.o.head + (q_row + top_row) * p.o.row;
        if (S::sorts && p.v_dim % 8 == 0) {
#pragma unroll 4
            for (int i = g.thread; i < 8 * S::v_dim; i += 128) {
                const int r = i / (S::v_dim / 8), column = i % (S::v_dim / 8) * 8;
                if (r < rows_end - top_row && column < p.v_dim) *(uint4 *)(to + r * p.o.row + column) = *(const uint4 *)staged(r, column);
            }
        } else
#pragma unroll 1
            for (int r = g.warp; r < min(64, rows_end - top_row); r += 4)
#pragma unroll 1
                for (int column = g.lane; column < p.v_dim; column += 32) to[r * p.o.row + column] = *staged(r, column);
        named_barrier(2 + g.group, 128); // all have read O
    } else if (g.thread == 0 && top_row < rows_end) {
        each<S::v_panels>([&](int i) { box_store(g.a.o, 64 * i, q_row + top_row, w.head, q_batch, q_tile + g.group * 8192 + i * S::q_panel); });
        store_commit();
    }
}

// Writes O and LSE.
template <class S> __device__ __forceinline__ void RowTile<S>::finish() {
    const Params &p = g.p;
    int q_batch = w.batch, q_row = 0, real = 0; // q_row: row 0 of the sequence, in the tensor; real: number of rows without padding
    if constexpr (S::features) q_batch = g.sh.place(w).q_batch, q_row = g.sh.place(w).q0, real = g.sh.place(w).rows;
    divide(q_batch, q_row, real);
    stage_o();
    if (w.odd) add_odd(real);
    float *lse = (float *)p.lse.data + q_batch * p.lse.batch + w.head * p.lse.head + q_row * p.lse.row; // [q_len]; after the barrier w may change
    async_fence();                   // the copy sees O
    named_barrier(2 + g.group, 128); // the warpgroup has written O
    store_o(q_batch, q_row);
    g.leaving = g.q.stage;
    each<2>([&](int r) {
        if (p.lse.data && g.lane % 4 == 0 && row + 8 * r < rows_end) lse[(row + 8 * r) * p.lse.row] = S::features ? m[r] + logf(l[r]) : most[r] > -infinity ? fmaf(most[r], p.scale, logf(l[r])) : (m[r] + log2f(l[r])) * kLn2;
    });
    if (S::q_stages == 1) g.release_o();
    g.q.next(), g.place.next();
}
