// What features need beside the kernels that compute attention:
//
//	sums_carry   copies LSE of earlier keys to workspace, as several blocks read what one writes
//	sums_dsink   dSink[h] = - sum over the rows of all sequences of exp(sink - LSE) delta
//	sums_dbias   dBias = P (dropout(dP) - delta), summed over what repeats
//
// Every sum has one order. Launch: grid.x of sums_carry is ceil(q_len / rows) * heads *
// batch, of sums_dsink heads, of sums_dbias ceil(kv_len / keys) * ceil(rows of dBias / rows) *
// its heads * its batch. delta, LSE and what they are made of were written by the backward
// kernels before.
//
// A block of sums_dbias owns a tile of dBias and walks all that it is summed over, with
// the products of the other kernels for the type.
#include "f32.cuh"
#include "tile.cuh"

constexpr int kRows = 64, kKeys = 64, kThreads = 128, kSlice = 64;

constexpr int carry_threads = 256;
extern "C" __global__ void __launch_bounds__(carry_threads) sums_carry(const __grid_constant__ FeatureParams x) {
    const Params &p = x.p;
    const int tiles = (p.q_len + carry_threads - 1) / carry_threads, head = blockIdx.x / tiles;
    const int i = blockIdx.x % tiles * carry_threads + threadIdx.x;
    const Sequence s = sequence(p, x.f, head / p.heads);
    if (i < s.rows) x.f.carried_lse[(int64_t)head * p.q_len + i] = first(p.lse, s.q_batch, head % p.heads)[(s.q0 + i) * p.lse.row];
}
extern "C" __device__ Plan sums_carry_plan = {carry_threads, 0, carry_threads, 0};

constexpr int sink_threads = 256;
extern "C" __global__ void __launch_bounds__(sink_threads) sums_dsink(const __grid_constant__ FeatureParams x) {
    const Params &p = x.p;
    const int h = blockIdx.x;
    const float sink = ((const float *)x.f.sink.data)[h * x.f.sink.head];
    double sum = 0;
    for (int b = 0; b < p.batch; b++) {
        const Sequence s = sequence(p, x.f, b);
        const float *lse = first(p.lse, s.q_batch, h) + s.q0 * p.lse.row;
        const float *delta = x.f.delta + ((int64_t)b * p.heads + h) * x.f.delta_rows * x.f.delta_step;
        for (int i = threadIdx.x; i < s.rows; i += sink_threads) {
            const float weight = expf(sink - lse[i * p.lse.row]);
            if (sink != -kInf && weight != 0) sum -= (double)weight * delta[i * x.f.delta_step];
        }
    }
    __shared__ double part[sink_threads];
    part[threadIdx.x] = sum;
#pragma unroll 1
    for (int n = sink_threads / 2; n > 0; n /= 2) {
        __syncthreads(); // the sums of 2n threads are there
        if (threadIdx.x < n) part[threadIdx.x] += part[threadIdx.x + n];
    }
    if (threadIdx.x == 0) ((float *)x.f.dsink.data)[h * x.f.dsink.head] = (float)part[0];
}
extern "C" __device__ Plan sums_dsink_plan = {sink_threads, 0, 0, 0};

// The products of a tile, s = Q K^T and ds = dO V^T, in slices of 64 columns, of which one is
// loaded while the one before is used.
template <class T>
__device__ __forceinline__ void products(float (&s)[kKeys / 8][4], float (&ds)[kKeys / 8][4], float *shared, const Params &p, const Sequence &e, int h, int kv, int row, int key) {
    constexpr int floats = sizeof(T) == 4 ? kRows * kSlice : kRows * kSlice / 2; // of a slice of a side
    const int split = (p.dim + kSlice - 1) / kSlice, all = split + (p.v_dim + kSlice - 1) / kSlice;
    auto fetch = [&](int step) {
        const bool second = step >= split;
        const View &a = second ? p.dout : p.q, &b = second ? p.v : p.k;
        const int col = (second ? step - split : step) * kSlice, cols = second ? p.v_dim : p.dim;
        const int64_t from = e.q_batch * a.batch + h * a.head + e.q0 * a.row, to = e.kv_batch * b.batch + kv * b.head + e.key0 * b.row;
        float *at = shared + step % 2 * 2 * floats;
        if constexpr (sizeof(T) == 4) {
            load<kThreads, kSlice, kRows>(at, (const float *)a.data + from, a.row, e.rows, cols, row, col);
            load<kThreads, kSlice, kKeys>(at + floats, (const float *)b.data + to, b.row, e.keys, cols, key, col);
        } else {
            copy_rows<kRows, kSlice, kThreads>(shared_address(at), (const uint16_t *)a.data + from + row * a.row + col, a.row, e.rows - row, cols - col, aligned16(a, cols));
            copy_rows<kKeys, kSlice, kThreads>(shared_address(at + floats), (const uint16_t *)b.data + to + key * b.row + col, b.row, e.keys - key, cols - col, aligned16(b, cols));
        }
        copy_commit();
    };
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    __syncthreads(); // the slices of the tile before are used up
    fetch(0);
#pragma unroll 1
    for (int step = 0; step < all; step++) {
        copy_wait<0>();
        __syncthreads(); // this slice is there, and the one before it is used up
        if (step + 1 < all) fetch(step + 1);
        const float *at = shared + step % 2 * 2 * floats;
        if constexpr (sizeof(T) == 4) {
            if (step < split) score<kSlice, true>(s, at + warp * 16 * kSlice, at + floats, p.dim);
            else score<kSlice, false>(ds, at + warp * 16 * kSlice, at + floats, p.v_dim);
        } else {
            const uint32_t a = shared_address(at) + warp * 16 * 2 * kSlice + place<2 * kSlice>(lane, false), b = shared_address(at + floats) + place<2 * kSlice>(lane, true);
            if (step < split) product<T, kSlice>((float(&)[1][kKeys / 8][4])s, a, 0, b, 0);
            else product<T, kSlice>((float(&)[1][kKeys / 8][4])ds, a, 0, b, 0);
        }
    }
}

template <class T> __device__ __forceinline__ void store_dbias(const Features &f, int64_t at, float x) {
    if (sizeof(T) == 4 || f.dbias_wide)
        ((float *)f.dbias.data)[at] = x;
    else if constexpr (sizeof(T) != 4)
        ((uint16_t *)f.dbias.data)[at] = (uint16_t)pack<T>(x, 0);
}

template <class T> __device__ __forceinline__ void dbias(const Params &p, const Features &f) {
    extern __shared__ __align__(128) float shared[]; // [2] slices of [64][64] of rows and of keys
    constexpr int tiles = kKeys / 8;
    const bool repeats = f.dbias_shape[2] == 1 && p.q_len != 1;
    const int key_tiles = (p.kv_len + kKeys - 1) / kKeys, row_tiles = (f.dbias_shape[2] + kRows - 1) / kRows;
    const int key0 = blockIdx.x % key_tiles * kKeys, row_tile = blockIdx.x / key_tiles % row_tiles;
    const int head = blockIdx.x / key_tiles / row_tiles % f.dbias_shape[1], batch = blockIdx.x / key_tiles / row_tiles / f.dbias_shape[1];
    const int batches = f.dbias_shape[0] == 1 ? p.batch : batch + 1, heads = f.dbias_shape[1] == 1 ? p.heads : head + 1;
    const int g = lane_g(), t = lane_t(), warp = threadIdx.x / 32, row = row_tile * kRows + 16 * warp + g;
    float sums[tiles][4] = {};
    for (int b = batch; b < batches; b++) {
        const Sequence e = sequence(p, f, b);
        const int last = repeats ? e.rows : min(e.rows, (row_tile + 1) * kRows);
        if (key0 >= e.keys) continue;
        for (int row0 = repeats ? 0 : row_tile * kRows; row0 < last; row0 += kRows) {
            if (key0 > min(row0 + kRows, e.rows) - 1 + e.hi || key0 + kKeys <= row0 + e.lo) continue;
            for (int h = head; h < heads; h++) {
                const int kv = h / (p.heads / p.kv_heads), own = row0 + 16 * warp + g;
                float s[tiles][4] = {}, ds[tiles][4] = {}, lse[2], delta[2];
                products<T>(s, ds, shared, p, e, h, kv, row0, key0);
                const Scores<T> x(p, f, e, b, h);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int i = own + 8 * r;
                    lse[r] = i < e.rows ? first(p.lse, e.q_batch, h)[(e.q0 + i) * p.lse.row] * (sizeof(T) == 4 ? 1 : kLog2E) : kInf;
                    if (lse[r] == -kInf) lse[r] = kInf; // no weights
                    delta[r] = i < e.rows ? f.delta[(((int64_t)b * p.heads + h) * f.delta_rows + i) * f.delta_step] : 0;
                }
                x.template weights<false>(s, own, key0 + 2 * t, [&](int, int c) { return lse[c / 2]; }, [](int, int, float) {});
#pragma unroll
                for (int j = 0; j < tiles; j++)
#pragma unroll
                    for (int c = 0; c < 4; c++) {
                        const int i = own + c / 2 * 8, key = key0 + 8 * j + 2 * t + c % 2;
                        const bool seen = i < e.rows && key >= i + e.lo && key <= i + e.hi && key < e.keys;
                        if (!seen) s[j][c] = 0;
                    }
                x.template drop<false>(s, own, key0 + 2 * t);
#pragma unroll
                for (int j = 0; j < tiles; j++)
#pragma unroll
                    for (int c = 0; c < 4; c++)
                        if (s[j][c] != 0) sums[j][c] += fabsf(s[j][c]) * ((dropped(s[j][c]) ? 0 : ds[j][c] * f.keep) - delta[c / 2]);
            }
        }
    }
    const int64_t at = batch * f.dbias.batch + head * f.dbias.head;
    if (!repeats) {
        const bool pairs = sizeof(T) != 4 && !f.dbias_wide && ((uintptr_t)f.dbias.data & 3) == 0 && ((f.dbias.batch | f.dbias.head | f.dbias.row | p.kv_len) & 1) == 0;
        if constexpr (sizeof(T) != 4)
            if (pairs) {
#pragma unroll
                for (int j = 0; j < tiles; j++)
#pragma unroll
                    for (int r = 0; r < 2; r++) {
                        const int i = row + 8 * r, key = key0 + 8 * j + 2 * t;
                        if (i < f.dbias_shape[2] && key < p.kv_len)
                            *(uint32_t *)((uint16_t *)f.dbias.data + at + i * f.dbias.row + key) = pack<T>(sums[j][2 * r], sums[j][2 * r + 1]);
                    }
                return;
            }
#pragma unroll
        for (int j = 0; j < tiles; j++)
#pragma unroll
            for (int c = 0; c < 4; c++) {
                const int i = row + c / 2 * 8, key = key0 + 8 * j + 2 * t + c % 2;
                if (i < f.dbias_shape[2] && key < p.kv_len) store_dbias<T>(f, at + i * f.dbias.row + key, sums[j][c]);
            }
        return;
    }
    __syncthreads(); // the last tiles are used up
#pragma unroll
    for (int j = 0; j < tiles; j++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const float sum = butterfly_sum<4, 32>(sums[j][c] + sums[j][c + 2]);
            if (g == 0) shared[warp * kKeys + 8 * j + 2 * t + c] = sum;
        }
    __syncthreads(); // the sums of all warps are there
    const int key = threadIdx.x;
    if (key < kKeys && key0 + key < p.kv_len)
        store_dbias<T>(f, at + key0 + key, (shared[key] + shared[kKeys + key]) + (shared[2 * kKeys + key] + shared[3 * kKeys + key]));
}

#define DBIAS(type, T)                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(kThreads) sums_dbias_##type(const __grid_constant__ FeatureParams x) { dbias<T>(x.p, x.f); }  \
    extern "C" __device__ Plan sums_dbias_##type##_plan = {kThreads, 2 * (kRows + kKeys) * kSlice * (sizeof(T) == 4 ? 4 : 2), kRows, kKeys};

DBIAS(f32, float)
DBIAS(f16, F16)
DBIAS(bf16, BF16)
