// Changes of fwd_sm90's scores between the product Q K^T and the softmax: softcap, ALiBi, bias and hidden pairs.
#pragma once
#include "fwd_sm90_rows.cuh"

// Reads the ALiBi slope of the head. If the slope is so steep that ALiBi may overflow in log2 units, chooses natural units.
template <class S> __device__ __forceinline__ void RowTile<S>::take_slope() {
    seq.diagonal = g.sh.place(w).diagonal;
    if (!S::tilts && !g.f.slopes.data) return;
    slope = g.sh.place(w).slope;
    steps_down = -slope * kLog2E / g.unit;
    if (g.general) return;
    steep = !(fabsf(steps_down) < 1e30f);
    g.c = steep ? kLog2E : g.unit, g.natural = steep ? 1 : S::shapes && g.f.cap_in != 0 ? g.f.cap : g.p.scale;
}

// Sets scores to -inf for pairs that lo and hi exclude, for keys after the last key and, with S::lists or S::ranges, for
// masked keys.
// Tests 64 keys at a time, because often every row sees all 64 keys.
template <class S> __device__ __forceinline__ void RowTile<S>::hide_band(int tile) {
    const int key = tile * S::keys, low = lo(), high = hi(), last = keys();
    uint32_t seen[2];
    each<2>([&](int r) {
        const int from = row + 8 * r + low, to = min(row + 8 * r + high + 1, last), first = key + g.lane % 4 * 2;
        seen[r] = columns_before(to - first) & ~columns_before(from - first);
        if constexpr (S::ranges)
            if (g.f.range_count) {
                const RowRanges x = ranges_of(g.f, w.batch, w.head, min(row + 8 * r, g.sh.place(w).rows - 1));
                uint32_t within = 0;
                each<2>([&](int k) { within |= columns_before(x.end[k] - first) & ~columns_before(x.begin[k] - first); });
                seen[r] &= within;
            }
        if constexpr (S::lists) seen[r] &= shown;
    });
    each<(S::keys + 63) / 64>([&](int half) {
        if constexpr (S::ranges) {
            const uint32_t all = (1u << min(16, (S::keys - 64 * half) / 4)) - 1;
            if (__all_sync(~0u, ((seen[0] & seen[1]) >> 16 * half & all) == all)) return;
        }
        if (!S::lists && !S::ranges && key + 64 * half >= top_row + 63 + low && key + 64 * half + 64 <= min(top_row + high + 1, last)) return;
        each<32>([&](int i) {
            const int bit = 16 * half + i % 16, at = 32 * half + i % 16 / 2 * 4 + i / 16 * 2 + i % 2;
            if (at < S::keys / 2) s[at] = seen[i / 16] & 1u << bit ? s[at] : -infinity;
        });
    });
}

// Applies hide_band to a tile of keys that is an edge. Skips tiles in which hide_band would change nothing.
template <class S> __device__ __forceinline__ void RowTile<S>::hide(int tile) {
    if constexpr (S::masks)
        if (!banded_tile) return;
    if constexpr (!S::lists) hide_band(tile);
    else if (now & 1) hide_band(now / 2);
}

// Starts to copy a tile's bias or mask to shared memory.
template <class S> __device__ __forceinline__ void RowTile<S>::prefetch_side(int tile) {
    if constexpr (sides) side.copy(side_at(), side_view(), g.p, top_row + g.warp * 16, tile * S::keys, g.lane);
}

// Prepares a feature of a tile while the product Q K^T is in flight. For dropout, computes random words. For a mask, loads the
// tile's mask from shared memory and prefetches the next tile's mask.
template <class S> template <class Next> __device__ __forceinline__ void RowTile<S>::prepare(int n, int tile, Next next) {
    if constexpr (S::drops) {
        share_key_words<S::keys>(g.f, side_at(), w.batch, w.head, tile * S::keys, g.lane);
        if (early) draw([](int) {});
    }
    if constexpr (S::masks) {
        copy_wait<0>(), __syncwarp();
        staged_rows<S::keys>(visible, side_at(), g.lane);
        if (n + 1 < count) prefetch_side(next());
        banded_tile = tile * S::keys < top_row + 63 + lo() || (tile + 1) * S::keys > min(top_row + hi() + 1, keys());
    }
}

// Adds ALiBi to the scores. The part of ALiBi that is equal for all keys of a row in the tile is stored in `offset` instead.
template <class S> __device__ __forceinline__ void RowTile<S>::add_alibi(int tile) {
    const Features &f = g.f;
    // distance is the number of the lane's first key minus the diagonal of its row. If the diagonal does not cross the warp's
    // tile, the absolute distance only rises or only falls along a row.
    const int distance = tile * S::keys + g.lane % 4 * 2 - row - seq.diagonal, least = tile * S::keys - (top_row + g.warp * 16 + 15) - seq.diagonal;
    if (steep) {
        const float unit = S::shapes && f.cap_in != 0 ? f.cap : g.p.scale;
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

// Applies the features that change scores.
template <class S> template <class Next> __device__ __forceinline__ void RowTile<S>::adjust(int n, int tile, Next next) {
    const Features &f = g.f;
    if constexpr (S::masks) {
        hide_staged<S::keys>(s, visible);
    } else if constexpr (S::biases) {
        copy_wait<0>(), __syncwarp();
        add_staged<T, S::keys>(s, g.p.scale, side_at(), g.lane);
        if (n + 1 < count) prefetch_side(next());
    } else if constexpr (S::caps) {
        small = g.capped.apply(s);
    } else if constexpr (leans) {
        const Flat<S::keys / 2> all{s};
        const int key = tile * S::keys + g.lane % 4 * 2;
        if (g.general) {
            Scores<T> x(g.p, f, seq, w.batch, w.head);
            x.slope = slope;
            return x.template adjust<false>(all, row, key);
        }
        if (S::shapes && f.cap_in != 0) cap(s, f.cap_in);
        if (S::tilts || f.slopes.data) add_alibi(tile);
        if (S::reads && f.mask.data) Scores<T>(g.p, f, seq, w.batch, w.head).template hide<false>(all, row, key);
    }
}
