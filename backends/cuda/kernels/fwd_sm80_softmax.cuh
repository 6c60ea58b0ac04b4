// The softmax of fwd_sm80: changes of scores by features, hidden pairs, row maxima, weights, and sums of weights.
#pragma once
#include "fwd_sm80_rows.cuh"

// Applies the features that change scores.
template <class S, bool features> __device__ __forceinline__ void RowTile<S, features>::adjust(Tile &s, int key0) {
    if constexpr (features)
        if (changes) {
            Scores<T> x(p, f, w.e.s, w.batch, w.head);
            x.slope = slope;
#pragma unroll
            for (int i = 0; i < M; i++) x.template adjust<false>(s[i], row + 16 * i, key0 + lane % 4 * 2);
        }
}

// Adds x to l[r] by Kahan summation.
template <class S, bool features> __device__ __forceinline__ void RowTile<S, features>::add_weights(int r, float x) {
    const float more = x + __uint_as_float((uint32_t)lacks[r] << 16), sum = l[r] + more;
    lacks[r] = __float_as_uint(more - (sum - l[r])) >> 16;
    l[r] = sum;
}

// Processes a tile of which every row sees all keys. Does not raise m. Stops before keys whose
// weights would be too large for this m, and returns the number of keys processed.
template <class S, bool features> __device__ __forceinline__ int RowTile<S, features>::attend_full(uint32_t stage, int key0) {
    Tile s;
    scores(s, stage);
    adjust(s, key0);
    constexpr int columns = S::columns / 16, steps = S::keys / 16 * columns;
    constexpr int pieces = (2 * M + columns - 1) / columns;
    uint32_t v[3][4];
    auto load_v = [&](int x) { load_matrix_transposed(v[x % 3], at<S::row_bytes>(stage + value_at, x / columns * 16, 2 * S::shares * (x % columns))); };
    load_v(0), load_v(1);
    float top[R], sums[R] = {};
#pragma unroll
    for (int r = 0; r < R; r++) top[r] = __fmul_rn(m[r], factor);
    auto weights = [&](float(&s)[4], int i) {
#pragma unroll
        for (int e = 0; e < 4; e++) weight(s[e], -top[2 * i + e / 2]);
    };
    auto add = [&] {
#pragma unroll
        for (int r = 0; r < R; r++) add_weights(r, sums[r]);
    };
#pragma unroll
    for (int y = 0; y < 2 * M; y++) weights(s[y / 2][y % 2], y / 2);
#pragma unroll
    for (int kk = 0; kk < S::keys / 16; kk++) {
        float sum[R], total = 0;
#pragma unroll
        for (int r = 0; r < R; r++) {
            const float *x = s[r / 2][2 * kk] + r % 2 * 2, *y = s[r / 2][2 * kk + 1] + r % 2 * 2;
            sum[r] = (x[0] + x[1]) + (y[0] + y[1]);
            total += sum[r];
        }
        if (__any_sync(~0u, !(total < 256))) return add(), kk * 16;
        uint32_t a[M][4];
#pragma unroll
        for (int i = 0; i < M; i++) pack_block<T>(a[i], s[i], kk);
#pragma unroll
        for (int r = 0; r < R; r++) sums[r] += sum[r];
#pragma unroll
        for (int n = 0; n < columns; n++) {
            const int x = kk * columns + n;
            if (x + 2 < steps) load_v(x + 2);
#pragma unroll
            for (int i = 0; i < M; i++) {
                mma<T>(o[i][2 * n], a[i], v[x % 3][0], v[x % 3][1]);
                mma<T>(o[i][2 * n + 1], a[i], v[x % 3][2], v[x % 3][3]);
            }
            if (kk + 1 < S::keys / 16) // interleave the next weights with the products
#pragma unroll
                for (int y = n * pieces; y < (n + 1) * pieces; y++)
                    if (y < 2 * M) weights(s[y / 2][2 * kk + 2 + y % 2], y / 2);
        }
    }
    return add(), S::keys;
}

// Sets the scores of hidden pairs, and of the tile's first `begin` keys, to -inf. Sets top to the row maxima of the tile.
// Reports whether m must rise.
template <class S, bool features> __device__ __forceinline__ bool RowTile<S, features>::hide(Tile &s, float (&top)[R], int key0, int begin) {
    const int key = key0 + lane % 4 * 2, left = w.e.keys() - key; // the thread's first key, and the number of keys from it on
    const uint32_t before = key - row - w.lo, band = w.hi - w.lo; // keys row + lo .. row + hi are visible
    auto sees = [&](int i, int n, int e) {
        return before + (n * 8 + (e & 1) - i * 16 - (e >> 1) * 8) <= band && n * 8 + (e & 1) < left && n * 8 >= begin;
    };
    bool grown = false;
#pragma unroll
    for (int r = 0; r < R; r++) {
        top[r] = -infinity;
#pragma unroll
        for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
            for (int e = r % 2 * 2; e < r % 2 * 2 + 2; e++) {
                float &x = s[r / 2][n][e];
                x = sees(r / 2, n, e) ? x : -infinity;
                top[r] = fmaxf(top[r], x);
            }
        top[r] = quad_max(top[r]);
        grown |= (top[r] - m[r]) * factor > 8;
    }
    return grown;
}

// Raises m to the maxima so far, and rescales o and l.
template <class S, bool features> __device__ __forceinline__ void RowTile<S, features>::raise(float (&top)[R]) {
#pragma unroll
    for (int r = 0; r < R; r++) {
        const float max = fmaxf(m[r], top[r]), a = Beneath(max, factor).rescale(m[r]);
        m[r] = max;
        l[r] *= a, lacks[r] = __float_as_uint(a * __uint_as_float((uint32_t)lacks[r] << 16)) >> 16;
#pragma unroll
        for (int n = 0; n < S::columns / 8; n++) {
            o[r / 2][n][r % 2 * 2] *= a;
            o[r / 2][n][r % 2 * 2 + 1] *= a;
        }
    }
}

// Sets top[r] to the number that weight() adds to c S in row r: minus the scaled maximum. If the row is far (see far.cuh),
// subtracts the maximum from S and sets top[r] to 0.
template <class S, bool features> __device__ __forceinline__ void RowTile<S, features>::subtract_far(Tile &s, float (&top)[R]) {
    far = false;
#pragma unroll
    for (int r = 0; r < R; r++) {
        const Beneath x(m[r], factor);
        top[r] = -x.base, far |= x.far();
    }
    far = __any_sync(~0u, far);
    if (!far) return;
#pragma unroll
    for (int r = 0; r < R; r++) {
        const float base = is_far(top[r]) ? m[r] : 0;
        if (is_far(top[r])) top[r] = 0;
#pragma unroll
        for (int n = 0; n < S::keys / 8; n++) s[r / 2][n][r % 2 * 2] -= base, s[r / 2][n][r % 2 * 2 + 1] -= base;
    }
}

// Replaces S by P, and adds the sums of P to l.
template <class S, bool features> __device__ __forceinline__ void RowTile<S, features>::weights(Tile &s, float (&top)[R]) {
#pragma unroll
    for (int r = 0; r < R; r++) {
        const float shift = top[r];
        float sum = 0;
#pragma unroll
        for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
            for (int e = r % 2 * 2; e < r % 2 * 2 + 2; e++) sum += weight(s[r / 2][n][e], shift);
        add_weights(r, sum);
    }
}

// Processes a tile, except its first `begin` keys, which attend_full has processed.
template <class S, bool features> __device__ __forceinline__ void RowTile<S, features>::attend(uint32_t stage, int key0, int begin) {
    if (key0 > top_row + M * 16 - 1 + w.hi || key0 + S::keys <= top_row + w.lo) return; // hidden from all rows of the warp
    Tile s;
    float top[R];
    scores(s, stage);
    adjust(s, key0);
    if (__any_sync(~0u, hide(s, top, key0, begin))) raise(top);
    subtract_far(s, top);
    weights(s, top);
    if constexpr (features) {
#pragma unroll
        for (int i = 0; i < M; i++) Scores<T>(p, f, w.e.s, w.batch, w.head).template drop<false, true>(s[i], row + 16 * i, key0 + lane % 4 * 2);
    }
    add_values(s, stage);
}
