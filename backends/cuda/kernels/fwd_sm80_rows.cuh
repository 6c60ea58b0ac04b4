// The registers of a warp of fwd_sm80, and the products that fill them. The methods of RowTile are grouped by file:
// fwd_sm80_softmax.cuh turns scores into weights, fwd_sm80_epilogue.cuh writes the results.
#pragma once
#include "fwd_sm80_fetch.cuh"

// A warp's rows of the block's tile, and the warp's columns of O. The thread's rows are row + 8 r, r < R. The arrays o and qf are outside this struct,
// because the compiler promotes fields of a struct to registers before it unrolls loops over arrays.
template <class S, bool features> struct RowTile {
    using T = typename S::T;
    static constexpr int M = S::tiles, R = 2 * M; // 16-row tiles per warp, rows per thread
    using Tile = float[M][S::keys / 8][4];        // S, which P replaces
    using O = float[M][S::columns / 8][4];
    using Q = uint32_t[S::keep_q ? M : 1][S::keep_q ? S::dim / 16 : 1][4];
    const Work<S, features> &w;
    const Params &p = w.p;
    const Features &f = w.f;
    char *const shared;
    const int warp = w.warp / S::shares, lane = w.lane;
    const int share = S::shares == 1 ? 0 : w.warp % S::shares; // of the columns of O

    // Offsets of the row of a 16x16 fragment whose address the lane passes to ldmatrix. The
    // four 8x8 matrices are in column-major order for Q and V, in row-major order for K.
    uint32_t value_at, key_at, warp_q;
    int top_row, row; // first row of the warp; first row of the thread
    Q &qf;
    O &o;

    // m and l are in shared memory, because S leaves no registers for them.
    float *m, *l;
    uint16_t *lacks;              // upper halves of the float32 Kahan compensations of l
    bool changes;                 // features change scores
    float factor, natural, slope; // factor converts S to log2 units, natural converts S to natural units; slope: ALiBi slope
    bool far;                     // some row of the warp is far, see far.cuh

    __device__ __forceinline__ RowTile(const Work<S, features> &w, uint32_t q_tile, char *shared, Q &qf, O &o) : w(w), shared(shared), qf(qf), o(o) {
        const int down = lane & 15, across = (lane & 7) + (lane >> 4 << 3);
        value_at = kept(S::tile_bytes + down * S::row_bytes + ((lane >> 4 ^ swizzle<S::row_bytes>(down)) << 4));
        key_at = kept(across * S::row_bytes + ((lane >> 3 & 1 ^ swizzle<S::row_bytes>(across)) << 4));
        warp_q = kept(q_tile + warp * (M * 16 * S::row_bytes) + value_at - S::tile_bytes);
        if constexpr (S::shares > 1) value_at = kept(value_at ^ share << 5);
        top_row = w.row0 + warp * (M * 16), row = top_row + lane / 4;
        m = (float *)(shared + S::rows_at) + threadIdx.x * R, l = m + S::threads * R;
        lacks = (uint16_t *)(shared + S::rows_at + 2 * S::threads * R * 4) + threadIdx.x * R;
        take_features();
        far = false;
    }

    // Returns the 16-byte chunk of a row of O whose columns o[][n] holds.
    __device__ __forceinline__ int chunk(int n) const { return n / 2 * 2 * S::shares + 2 * share + n % 2; }

    __device__ __forceinline__ void take_features();
    __device__ __forceinline__ void keep_q();        // waits for Q, and loads it to registers
    __device__ __forceinline__ void clear();         // o, m, l = 0, -inf, 0
    __device__ __forceinline__ bool spoiled() const; // reports whether o has a NaN

    // `stage` is the address of a stage of K and V.
    __device__ __forceinline__ void scores(Tile &s, uint32_t stage);     // S = Q K^T
    __device__ __forceinline__ void add_values(Tile &s, uint32_t stage); // o += P V

    // fwd_sm80_softmax.cuh. key0 is the first key of the tile.
    __device__ __forceinline__ void adjust(Tile &s, int key0);
    __device__ __forceinline__ int attend_full(uint32_t stage, int key0);
    __device__ __forceinline__ void attend(uint32_t stage, int key0, int begin);
    __device__ __forceinline__ bool hide(Tile &s, float (&top)[R], int key0, int begin);
    __device__ __forceinline__ void raise(float (&top)[R]);
    __device__ __forceinline__ void subtract_far(Tile &s, float (&top)[R]);
    __device__ __forceinline__ float weight(float &s, float shift) { return s = exp2_approx(fmaf(s, factor, shift)); } // replaces S by P
    __device__ __forceinline__ void weights(Tile &s, float (&top)[R]);
    __device__ __forceinline__ void add_weights(int r, float x);

    // fwd_sm80_epilogue.cuh.
    __device__ __forceinline__ void finish(bool careful);
    __device__ __forceinline__ void stage_o(uint16_t *out, float *lse);
    __device__ __forceinline__ void add_odd(char *rows);
};

// If features change scores, Scores::adjust multiplies the scores by the scale. Otherwise `factor` includes the scale.
template <class S, bool features> __device__ __forceinline__ void RowTile<S, features>::take_features() {
    bool changes = false;
    float factor = p.scale_log2, natural = p.scale, slope = 0;
    if constexpr (features) {
        const Scores<T> x(p, f, w.e.s, w.batch, w.head);
        changes = x.changes() || f.mask.data, slope = x.slope;
#if __CUDA_ARCH__ < 900
        asm volatile(""); // otherwise the compiler spills registers on 8.6
#endif
        if (x.changes()) factor = kLog2E, natural = 1;
    }
    this->changes = changes, this->factor = factor, this->natural = natural, this->slope = slope;
}

template <class S, bool features> __device__ __forceinline__ void RowTile<S, features>::keep_q() {
    copy_wait<1>();
    __syncthreads(); // Q has arrived
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int kk = 0; kk < S::dim / 16; kk++) load_matrix(qf[i][kk], at<S::row_bytes>(warp_q, i * 16, 2 * kk));
}

template <class S, bool features> __device__ __forceinline__ void RowTile<S, features>::clear() {
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int n = 0; n < S::columns / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) o[i][n][e] = 0;
#pragma unroll
    for (int r = 0; r < R; r++) m[r] = -infinity, l[r] = 0, lacks[r] = 0;
}

template <class S, bool features> __device__ __forceinline__ bool RowTile<S, features>::spoiled() const {
    bool nan = false;
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int n = 0; n < S::columns / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) nan |= o[i][n][e] != o[i][n][e];
    return nan;
}

template <class S, bool features> __device__ __forceinline__ void RowTile<S, features>::scores(Tile &s, uint32_t stage) {
#pragma unroll
    for (int i = 0; i < M; i++)
#pragma unroll
        for (int n = 0; n < S::keys / 8; n++)
#pragma unroll
            for (int e = 0; e < 4; e++) s[i][n][e] = 0;
    constexpr int across_keys = S::keys / 16, steps = S::dim / 16 * across_keys;
    uint32_t a[2][M][4], b[3][4];
    auto load_q = [&](int kk) {
#pragma unroll
        for (int i = 0; i < M; i++)
            if constexpr (S::keep_q)
#pragma unroll
                for (int e = 0; e < 4; e++) a[kk % 2][i][e] = qf[i][kk][e];
            else
                load_matrix(a[kk % 2][i], at<S::row_bytes>(warp_q, i * 16, 2 * kk));
    };
    auto load_k = [&](int x) { load_matrix(b[x % 3], at<S::row_bytes>(stage + key_at, x % across_keys * 16, 2 * (x / across_keys))); };
    load_q(0), load_k(0), load_k(1);
#pragma unroll
    for (int x = 0; x < steps; x++) {
        const int kk = x / across_keys, n = x % across_keys;
        if (x + 2 < steps) load_k(x + 2);
        if (n == 0 && kk + 1 < S::dim / 16) load_q(kk + 1);
#pragma unroll
        for (int i = 0; i < M; i++) {
            mma<T>(s[i][2 * n], a[kk % 2][i], b[x % 3][0], b[x % 3][1]);
            mma<T>(s[i][2 * n + 1], a[kk % 2][i], b[x % 3][2], b[x % 3][3]);
        }
    }
}

template <class S, bool features> __device__ __forceinline__ void RowTile<S, features>::add_values(Tile &s, uint32_t stage) {
#pragma unroll
    for (int kk = 0; kk < S::keys / 16; kk++) {
        uint32_t a[M][4];
#pragma unroll
        for (int i = 0; i < M; i++) pack_block<T>(a[i], s[i], kk);
#pragma unroll
        for (int n = 0; n < S::columns / 16; n++) {
            uint32_t b[4];
            load_matrix_transposed(b, at<S::row_bytes>(stage + value_at, kk * 16, 2 * S::shares * n));
#pragma unroll
            for (int i = 0; i < M; i++) {
                mma<T>(o[i][2 * n], a[i], b[0], b[1]);
                mma<T>(o[i][2 * n + 1], a[i], b[2], b[3]);
            }
        }
    }
}
