// The end of fwd_sm80's tiles of rows: O and LSE.
#pragma once
#include "fwd_sm80_rows.cuh"

// Writes O to the warp's own rows of Q in shared memory, and LSE to the tensor. out and lse are the addresses of the head's
// first row.
template <class S, bool features> __device__ __forceinline__ void RowTile<S, features>::stage_o(uint16_t *out, float *lse) {
    char *rows = shared + warp * (M * 16 * S::row_bytes);
#pragma unroll
    for (int r = 0; r < R; r++) {
        const float sum = butterfly_sum<1, 4>(l[r]);
        const int at = r * 8 + lane / 4;
        if constexpr (features) {
            const int i = row + r * 8;
            const bool real = i < w.e.rows();
            const Ending y = ending(f, m[r] * natural, sum, w.head, f.carry && real ? f.carried_lse[((int64_t)w.batch * p.heads + w.head) * p.q_len + i] : -infinity);
            if (lse && share == 0 && lane % 4 == 0 && i < w.e.row_end()) lse[i * p.lse.row] = real ? y.lse : -infinity;
#pragma unroll
            for (int n = 0; n < S::columns / 8; n++) {
                float z[2];
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    const int col = chunk(n) * 8 + lane % 4 * 2 + c;
                    z[c] = o[r / 2][n][r % 2 * 2 + c] * y.scale;
                    if (y.earlier != 0 && real && col < p.v_dim) z[c] = fmaf(y.earlier, widen<T>(out[i * p.o.row + col]), z[c]);
                    if (!real || y.scale == 0 && y.earlier == 0) z[c] = 0;
                }
                *(uint32_t *)(rows + at * S::row_bytes + ((chunk(n) ^ swizzle<S::row_bytes>(at)) << 4) + lane % 4 * 4) = pack<T>(z[0], z[1]);
            }
            continue;
        }
        const float a = sum == 0 ? 0 : 1 / sum;
#pragma unroll
        for (int n = 0; n < S::columns / 8; n++)
            *(uint32_t *)(rows + at * S::row_bytes + ((chunk(n) ^ swizzle<S::row_bytes>(at)) << 4) + lane % 4 * 4) =
                pack<T>(o[r / 2][n][r % 2 * 2] * a, o[r / 2][n][r % 2 * 2 + 1] * a);
        if (lse && share == 0 && lane % 4 == 0 && row + r * 8 < p.q_len) lse[(row + r * 8) * p.lse.row] = fmaf(m[r], p.scale, logf(sum));
    }
}

// Adds the non-finite elements of V to the staged O, in the rows that see their keys.
template <class S, bool features> __device__ __forceinline__ void RowTile<S, features>::add_odd(char *rows) {
    const uint16_t *value = (const uint16_t *)p.v.data + w.e.kv_batch() * p.v.batch + w.kv_head * p.v.head;
#pragma unroll 1
    for (int key = w.first_key; key <= w.last_key; key++)
#pragma unroll 1
        for (int c = lane; c < p.v_dim; c += 32) {
            if (S::shares > 1 && c / 16 % S::shares != share) continue;
            float x;
            if constexpr (features) x = widen<T>(((const uint16_t *)p.v.data)[key_place(p.v, f, w.e.s, w.batch, w.kv_head, key) + c]);
            else x = widen<T>(value[key * p.v.row + c]);
            if (fabsf(x) < infinity) continue;
#pragma unroll 1
            for (int r = max(0, key - w.hi - top_row); r <= min(M * 16 - 1, key - w.lo - top_row); r++) {
                if constexpr (features)
                    if (top_row + r >= w.e.rows() || !Scores<T>(p, f, w.e.s, w.batch, w.head).takes_part(top_row + r, key)) continue;
                uint16_t &y = *(uint16_t *)(rows + r * S::row_bytes + ((c / 8 ^ swizzle<S::row_bytes>(r)) << 4) + c % 8 * 2);
                y = pack<T>(widen<T>(y) + x, 0);
            }
        }
}

// Writes O and LSE. O is staged in shared memory, so that stores are whole chunks. careful: non-finite elements of V were
// replaced by 0.
template <class S, bool features> __device__ __forceinline__ void RowTile<S, features>::finish(bool careful) {
    uint16_t *out = (uint16_t *)p.o.data + w.e.q_batch() * p.o.batch + w.head * p.o.head; // [q_len, v_dim]
    float *lse = p.lse.data ? (float *)p.lse.data + w.e.q_batch() * p.lse.batch + w.head * p.lse.head : nullptr; // [q_len]
    if constexpr (features) {
        out += w.e.s.q0 * p.o.row;
        if (lse) lse += w.e.s.q0 * p.lse.row;
    }
    char *rows = shared + warp * (M * 16 * S::row_bytes);
    if constexpr (S::shares > 1) __syncthreads();
    else __syncwarp(); // every lane has read its part of Q
    stage_o(out, lse);
    __syncwarp(); // O is complete
    if (careful) {
        add_odd(rows);
        __syncwarp();
    }
    const bool out_whole = (((uintptr_t)out | p.o.row * 2) & 15) == 0;
#pragma unroll 4
    for (int i = lane; i < M * 16 * S::chunks; i += 32) {
        const int r = i / S::chunks, c = i % S::chunks, n = w.row0 + warp * (M * 16) + r;
        if (n >= w.e.row_end() || S::shares > 1 && c / 2 % S::shares != share) continue;
        const uint4 x = *(const uint4 *)(rows + r * S::row_bytes + ((c ^ swizzle<S::row_bytes>(r)) << 4));
        uint16_t *to = out + n * p.o.row + c * 8;
        if (out_whole && c * 8 + 8 <= p.v_dim)
            *(uint4 *)to = x;
        else
            for (int e = 0; e < min(8, p.v_dim - c * 8); e++)
                to[e] = (e < 4 ? e < 2 ? x.x : x.y : e < 6 ? x.z : x.w) >> e % 2 * 16;
    }
}
