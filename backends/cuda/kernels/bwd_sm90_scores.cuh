// Changes of bwd_sm90's scores between the product S and the exponentials: hidden pairs, bias, softcap and ALiBi. This file
// also computes dropout masks.
#pragma once
#include "bwd_sm90_keys.cuh"

// Reads which features the call has, and starts the first loads for these features.
template <class S> __device__ __forceinline__ void KeyTile<S>::take_features() {
    capped = S::knows_cap && (S::sure || f.cap_in != 0), leans = S::knows_alibi && (S::sure || f.slopes.data);
    biased = S::knows_bias && (S::sure || f.bias.data), drops = S::knows_dropout && (S::sure || f.drop_below);
    staged = S::bias_bytes && biased && !f.bias_wide && aligned16(f.bias);
    staged_hides = S::mask_bytes && (((uint64_t)f.mask.data | f.mask.batch | f.mask.head | f.mask.row) & 15) == 0;
    if constexpr (S::knows_alibi) here = key0 + group * 64 + fresh(thread) / 32 * 16 + fresh(lane) / 4 - fresh(lane) % 4 * 2 - e.diagonal(), load_slope();
    writes = S::knows_bias && f.dbias_apart && first_panel == 0, writes_tiles = writes && !f.dbias_wide && aligned16(f.dbias);
    if constexpr (S::bias_bytes > 0)
        if (steps) prefetch_bias(head, tile * S::rows), prefetch_bias(head, tile * S::rows + S::part_rows);
    if constexpr (S::mask_bytes > 0)
        if (steps) prefetch_mask(head, tile * S::rows);
    if constexpr (S::knows_dropout)
        if (steps && drops) draw(head);
}

template <class S> __device__ __forceinline__ void KeyTile<S>::load_slope() {
    if (leans) lean = -slope_log2(((const float *)f.slopes.data)[w.batch * f.slopes.batch + head * f.slopes.head]);
}

// Prefetches the bias of S::part_rows rows, from `row` on, to shared memory. These rows are a part of a tile. Callers call
// prefetch_bias two parts ahead.
template <class S> __device__ __forceinline__ void KeyTile<S>::prefetch_bias(int head, int row) {
    if (staged) bias_chunk<S::part_rows>(sh.bias(group * 4 + warp) + row / S::part_rows % 2 * S::part_rows * 32, p, f, w.batch, head, row, key0 + group * 64 + warp * 16, lane);
}
template <class S> template <class Edge> __device__ __forceinline__ void KeyTile<S>::prefetch_next_bias(const Visit<Edge> &v, int part) {
    const bool ends = tile == to;
    if (part + 2 < S::parts) prefetch_bias(head, tile * S::rows + (part + 2) * S::part_rows);
    else if (v.n + 1 < end) prefetch_bias(head + ends, (ends ? from : tile + S::step) * S::rows + (part + 2 - S::parts) * S::part_rows);
    else copy_commit(); // an empty group, for copy_wait's count
}
template <class S> __device__ __forceinline__ void KeyTile<S>::prefetch_mask(int head, int row) {
    if (staged_hides) mask_chunk<S::rows>(sh.mask(group * 4 + warp), p, f.mask, w.batch, head, row, key0 + group * 64 + warp * 16, lane);
}

// Computes the dropout masks of the current tile of rows.
template <class S> __device__ __forceinline__ void KeyTile<S>::draw(int head) {
    kept_pairs<S::rows>(kept, f, w.batch, head, tile * S::rows + fresh(lane) % 4 * 2, own_key());
}
// Reports whether dropout keeps the weight of the lane's element j in the i-th group of 16 rows.
template <class S> __device__ __forceinline__ bool KeyTile<S>::keeps(int i, int j) const {
    return kept[j / 2 % 2] & 1u << kept_bit<S::rows>(i, j / 4 * 2 + j % 2);
}

// Reports whether the current tile may have hidden pairs. Without features, pairs of rows or keys outside the tensors do not
// count.
template <class S> __device__ __forceinline__ bool KeyTile<S>::cut() const {
    const int row0 = tile * S::rows;
    if constexpr (S::ranged) return !sh.listed().is_whole(tile);
    else if constexpr (S::features) return row0 < whole_from || row0 > whole_to || S::knows_mask && !S::sure && f.mask.data;
    // Rows after the last row are zeros with LSE and delta 0, so they add nothing to stored results.
    else return key0 < min(row0 + S::rows, e.rows()) - 1 + e.lo() || min(key0 + S::keys, e.keys()) - 1 > row0 + e.hi();
}

template <class S> __device__ __forceinline__ NaturalLSE KeyTile<S>::natural_lse(int n) const {
    const int all = last_head<S>(p, w) - first_head<S>(p, w) + 1, nth = n - (S::stays ? (int)w.before : 0);
    const int head = first_head<S>(p, w) + (S::by_rows ? nth % all : nth / (w.steps / all)); // saves registers
    return NaturalLSE(p.lse, e.q_batch(), head, e.q0() + tile * S::rows, e.rows() - tile * S::rows);
}

// Sets the scores of keys after the last key to -inf, so that P = 0. Their scores would be 0, and exp(-LSE) may
// overflow.
template <class S> __device__ __forceinline__ void KeyTile<S>::hide_missing() {
    const int key = own_key();
    each<S::rows / 2>([&](int i) { s[i] = key + i / 2 % 2 * 8 < e.keys() ? s[i] : -infinity; });
}

// Sets scores of hidden pairs to -inf, for the first (half = 0) or second (half = 1) of the lane's two keys. Bit i of `seen`
// is 0 if the key's i-th pair is hidden. If S::changes, change() hides these pairs later. If K of the key has non-finite
// elements, all scores of the key first become NaN.
template <class S> __device__ __forceinline__ void KeyTile<S>::hide(int half, uint32_t seen) {
    const int key = own_key();
    auto each_pair = [&](auto f) { each<S::rows / 4>([&](int i) { f(i, s[i / 2 * 4 + 2 * half + i % 2]); }); };
    if (odd) {
        const float lost = sh.odd()[key + 8 * half - key0];
        each_pair([&](int i, float &x) { x += lost; });
    }
    if constexpr (!S::changes) each_pair([&](int i, float &x) { x = seen & 1u << i ? x : -infinity; });
}

// Hides masked pairs, pairs that lo and hi exclude, and pairs of rows or keys outside the sequence. Also sets non-finite
// elements of Q and dO to 0.
template <class S> template <class Edge> __device__ __forceinline__ void KeyTile<S>::hide_pairs(Visit<Edge> &v) {
    clean_rows(sh, w, ring.stage, group, thread);
    const int row = tile * S::rows + fresh(lane) % 4 * 2, key = own_key();
    each<2>([&](int half) {
        const int k = key + 8 * half;
        if constexpr (S::knows_mask && S::sure) {
            v.shown[half] = ~0u;
            if (!cut()) return;
        }
        uint32_t seen = k < e.keys() ? columns_before(min(k - e.lo() + 1, e.rows()) - row) & ~columns_before(k - e.hi() - row) : 0;
        if constexpr (S::marks)
            if (!(sh.marks().own[(k - key0) / 32] >> (k - key0) % 32 & 1)) seen = 0;
        v.shown[half] = seen;
        if constexpr (!S::knows_mask && !S::ranged) hide(half, seen);
    });
    if constexpr (S::knows_mask) {
        if (staged_hides) {
            copy_wait<0>(), __syncwarp();
            staged_mask<S::rows>(v.shown, sh.mask(group * 4 + warp), lane);
            const bool ends = tile == to;
            if (v.n + 1 < end) prefetch_mask(head + ends, (ends ? from : tile + S::step) * S::rows);
        } else if (S::sure || f.mask.data) mask_tile<S>(v.shown, p, f, w.batch, head, tile * S::rows, key0 + group * 64 + fresh(thread) / 32 * 16);
        hide(0, v.shown[0]), hide(1, v.shown[1]);
    }
    if constexpr (S::ranged) {
        range_tile<S>(v.shown, f, w.batch, head, e.rows(), tile * S::rows, key0 + group * 64 + fresh(thread) / 32 * 16);
        hide(0, v.shown[0]), hide(1, v.shown[1]);
    }
}

// Sets the scores of hidden pairs to -inf. In far rows (see far.cuh), replaces each dot product by the result of
// far_product. If S::changes, change() performs these two steps later. With a softcap, sets v.large if some score is too
// large for tiny_tanh.
template <class S> template <class Edge> __device__ __forceinline__ void KeyTile<S>::hide_all(Visit<Edge> &v) {
    if (v.edge && !S::features && !S::ends_in_both && !v.hidden) hide_missing();
    else if (v.edge) hide_pairs(v);
    if (S::ends_in_both && ends && !v.edge) hide_missing();
    if constexpr (!S::changes)
        if (v.far) far_products(s, p, stats(0), natural_lse(v.n));
    if (capped) {
        float most = 0;
        each<S::rows / 2>([&](int i) { most = fmaxf(most, fabsf(s[i])); });
        v.large = __any_sync(~0u, !(most * f.cap_in < 0.4f));
    }
}

// For instances with score features. Sets x to the weights P in the i-th group of 16 rows, and cap to the derivatives of
// the softcap.
template <class S> template <class Edge> __device__ __forceinline__ void KeyTile<S>::change(const Visit<Edge> &v, int i, float (&x)[8], float (&cap)[8]) {
    const int own = own_key(), walked = tile * S::rows + 16 * i + fresh(lane) % 4 * 2;
    const float *lse = stat + i % size * 4;
    if (S::changes && v.far) {
        each<8>([&](int j) { x[j] = s[8 * i + j]; });
        const Flat<8> both{x};
        Sequence seq;
        seq.diagonal = e.diagonal();
        const auto natural = natural_lse(v.n);
        Scores<T>(p, f, seq, w.batch, head).template far_weights<true>(both, own, walked, [&](int n, int c) { return natural(16 * i + fresh(lane) % 4 * 2 + 8 * n + c % 2); },
                                                                       [&](int n, int c, float d) { cap[4 * n + c] = d; });
    } else if (capped) {
        each<8>([&](int j) { x[j] = s[8 * i + j] * f.cap_in; });
        if (v.large) each<8>([&](int j) { x[j] = tanh_of(x[j], cap[j]); });
        else each<8>([&](int j) { x[j] = tiny_tanh(x[j]), cap[j] = fmaf(-x[j], x[j], 1); });
        each<8>([&](int j) { x[j] = fmaf(x[j], f.cap_out, -lse[j / 4 * 2 + j % 2]); });
    } else {
        each<8>([&](int j) { x[j] = fmaf(s[8 * i + j], p.scale_log2, -lse[j / 4 * 2 + j % 2]); });
    }
    if (biased && !(S::changes && v.far)) {
        const Flat<8> both{x};
        const Scores<T> scores(p, f, Sequence{}, w.batch, head);
        if (staged) staged_bias<T>(x, sh.bias(group * 4 + warp), i * 16 % S::bias_rows, lane);
        else if (f.bias_wide) scores.template add_bias<true, float, false>(both, own, walked);
        else scores.template add_bias<true, T, false>(both, own, walked);
    }
    if (leans && !(S::changes && v.far)) each<8>([&](int j) { x[j] = fmaf(lean, fabsf(v.away - (16 * i + j / 4 * 8 + j % 2 - j / 2 % 2 * 8)), x[j]); });
    if (!(S::changes && v.far)) each<8>([&](int j) { x[j] = exp2_approx(x[j]); });
    if constexpr (S::changes)
        if (v.edge) each<8>([&](int j) { if (!(v.shown[j / 2 % 2] & 1u << (4 * i + j / 4 * 2 + j % 2))) x[j] = cap[j] = 0; });
}
