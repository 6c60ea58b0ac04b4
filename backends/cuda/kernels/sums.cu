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
// the products of the float32 kernels: the scores are those of any kernel but for rounding.
#include "f32.cuh"

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
        const float *delta = x.f.delta + ((int64_t)b * p.heads + h) * x.f.delta_rows;
        for (int i = threadIdx.x; i < s.rows; i += sink_threads) {
            const float weight = expf(sink - lse[i * p.lse.row]);
            if (sink != -kInf && weight != 0) sum -= (double)weight * delta[i];
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

// Rows row to row+63 and columns col to col+63 of a matrix of T in shared memory, in
// float32; what it does not have becomes zero.
template <class T>
__device__ __forceinline__ void fetch(float *to, const View &v, int64_t at, int rows, int cols, int row, int col) {
    if constexpr (sizeof(T) == 4) {
        load<kThreads, kSlice, kRows>(to, (const float *)v.data + at, v.row, rows, cols, row, col);
    } else {
#pragma unroll 4
        for (int i = threadIdx.x; i < kRows * kSlice; i += kThreads) {
            const int r = i / kSlice, c = i % kSlice;
            const bool in = row + r < rows && col + c < cols;
            to[place<kSlice>(r, c / 4) + c % 4] = in ? widen<T>(((const uint16_t *)v.data)[at + (row + r) * v.row + col + c]) : 0;
        }
    }
}

// s += a b^T for a tile of 64 rows of a and 64 of b.
template <class T, bool fine>
__device__ __forceinline__ void product(float (&s)[kKeys / 8][4], float *shared, const View &a, int64_t a0, int rows, int row, const View &b, int64_t b0, int keys, int key, int cols) {
#pragma unroll 1
    for (int col = 0; col < cols; col += kSlice) {
        __syncthreads(); // the tiles before these are used up
        fetch<T>(shared, a, a0, rows, cols, row, col);
        fetch<T>(shared + kRows * kSlice, b, b0, keys, cols, key, col);
        copy_commit();
        copy_wait<0>();
        __syncthreads(); // the tiles are there
        score<kSlice, fine>(s, shared + threadIdx.x / 32 * 16 * kSlice, shared + kRows * kSlice, cols);
    }
}

template <class T> __device__ __forceinline__ void store_dbias(const Features &f, int64_t at, float x) {
    if (sizeof(T) == 4 || f.dbias_wide)
        ((float *)f.dbias.data)[at] = x;
    else if constexpr (sizeof(T) != 4)
        ((uint16_t *)f.dbias.data)[at] = (uint16_t)pack<T>(x, 0);
}

template <class T> __device__ __forceinline__ void dbias(const Params &p, const Features &f) {
    extern __shared__ __align__(16) float shared[]; // [2][64][64]
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
                product<T, true>(s, shared, p.q, e.q_batch * p.q.batch + h * p.q.head + e.q0 * p.q.row, e.rows, row0,
                                 p.k, e.kv_batch * p.k.batch + kv * p.k.head + e.key0 * p.k.row, e.keys, key0, p.dim);
                product<T, false>(ds, shared, p.dout, e.q_batch * p.dout.batch + h * p.dout.head + e.q0 * p.dout.row, e.rows, row0,
                                  p.v, e.kv_batch * p.v.batch + kv * p.v.head + e.key0 * p.v.row, e.keys, key0, p.v_dim);
                const Scores<T> x(p, f, e, b, h);
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    const int i = own + 8 * r;
                    lse[r] = i < e.rows ? first(p.lse, e.q_batch, h)[(e.q0 + i) * p.lse.row] : -kInf;
                    delta[r] = i < e.rows ? f.delta[((int64_t)b * p.heads + h) * f.delta_rows + i] : 0;
                }
                x.template weights<false>(s, own, key0 + 2 * t, [&](int, int c) { return lse[c / 2]; }, nullptr);
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
    extern "C" __device__ Plan sums_dbias_##type##_plan = {kThreads, 2 * kRows * kSlice * 4, kRows, kKeys};

DBIAS(f32, float)
DBIAS(f16, F16)
DBIAS(bf16, BF16)
