// The softmax of fwd_sm90: maxima of rows (also of far rows), weights, sums of weights, dropout.
#pragma once
#include "far.cuh"
#include "fwd_sm90_rows.cuh"

// For each far row r (see far.cuh), subtracts the row's highest score from s. Sets m[r] to the old maximum minus this score,
// in log2 units, and top[r] to 0. Before the call, top[r] is the lane's highest score in row r.
template <class S> __device__ __forceinline__ void RowTile<S>::subtract_far() {
    bool far = false;
    each<2>([&](int r) {
        const float before = most[r];
        const FarRow row(m[r], quad_max(top[r]), before, g.c);
        if (row.far) far = true, top[r] = 0;
        each<S::keys / 4>([&](int i) {
            float &x = s[i / 2 * 4 + 2 * r + i % 2];
            if (row.far) x = (leans ? x + offset[r] : x) - row.most;
        });
        if (row.far) offset[r] = 0;
        m[r] = row.m, most[r] = row.most;
    });
    beyond = __any_sync(~0u, far);
}

// Updates the row maxima m with the tile's scores. Sets top[r] to the number that is subtracted from c s in row r (0 or 1),
// and down[r] to the factor that rescales o and l. masked: a row may have seen no key so far.
template <class S> __device__ __forceinline__ void RowTile<S>::maxima(bool masked) {
    top[0] = top[1] = -infinity;
    each<S::keys / 4>([&](int i) { top[i % 2] = fmaxf(top[i % 2], fmaxf(s[2 * i], s[2 * i + 1])); });
    if constexpr (leans) top[0] += offset[0], top[1] += offset[1]; // offset differs between lanes
    if constexpr (!S::caps)
        if (beyond || __any_sync(~0u, may_be_far(top[0], g.c, masked) || may_be_far(top[1], g.c, masked))) subtract_far();
    each<4>([&](int i) { top[i % 2] = fmaxf(top[i % 2], __shfl_xor_sync(~0u, top[i % 2], 1 + i / 2)); });
    if constexpr (S::split) each<2>([&](int r) { highest[r] = most[r] == -infinity ? fmaxf(highest[r], top[r]) : -infinity; });
    each<2>([&](int r) {
        if (S::caps && small) top[r] *= g.capped.factor(top[r]);
        top[r] = fmaxf(m[r], top[r] * g.c);
        const float shift = masked && top[r] == -infinity ? 0 : top[r];
        down[r] = exp2_approx(m[r] - shift);
        m[r] = top[r];
        top[r] = leans ? fmaf(-offset[r], g.c, shift) : shift;
    });
}

// Computes the dropout masks of the tile. Calls between(i) after step i of 5 * keys / 64 steps, so that the caller can
// interleave other work.
template <class S> template <class Between> __device__ __forceinline__ void RowTile<S>::draw(Between between) {
    kept_keys<S::keys, 4>(kept, g.f, side_at(), own.seed, own_words, g.lane, between);
}

// Turns s into weights, multiplies l by down, and adds each row's sum of weights to l.
template <class S> __device__ __forceinline__ void RowTile<S>::exponentials(int tile) {
    float sum[2] = {};
    auto exponential = [&](int i) { sum[i % 4 / 2] += s[i] = exp2_approx(fmaf(s[i], S::caps && small ? g.capped.factor(s[i]) : g.c, -top[i % 4 / 2])); };
    constexpr int draws = 5 * S::keys / 64, size = S::keys / 2;
    if constexpr (S::drops && !early) draw([&](int i) { each<(size + draws - 1) / draws>([&](int j) { if (size * i / draws + j < size * (i + 1) / draws) exponential(size * i / draws + j); }); });
    else if (S::caps && small) each<S::keys / 2>(exponential);
    else each<S::keys / 2>(exponential);
    each<2>([&](int r) { l[r] = fmaf(l[r], down[r], sum[r]); });
}

// Applies dropout: sets dropped weights to 0. The sums l still include the dropped weights.
template <class S> __device__ __forceinline__ void RowTile<S>::drop(int tile) {
    if constexpr (S::reads) {
        if (!g.f.drop_below) return;
        kept_keys<S::keys>(kept, g.f, w.batch, w.head, again(row), tile * S::keys, again(g.lane)); // saves registers
    }
    if constexpr (S::reads || S::drops) keep_pairs<S::keys>(s, kept);
}

template <class S> __device__ __forceinline__ void RowTile<S>::round_weights() {
    each<S::keys / 4>([&](int i) { weights[i / 4][i % 4] = pack<T>(s[2 * i], s[2 * i + 1]); });
}
