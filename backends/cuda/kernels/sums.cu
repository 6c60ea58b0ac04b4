// Auxiliary kernels of features:
//
//	sums_carry   copies the LSE of earlier keys to the workspace, before the forward kernel overwrites this LSE
//	sums_dsink   dSink[h] = - sum over the rows of all sequences of exp(sink - LSE) delta
//	sums_dbias   dBias = P (dropout(dP) - delta), summed over broadcast dimensions
//
// Every sum has a fixed order. With rows and keys from the kernel's Plan, grid.x is
//
//	sums_carry   ceil(q_len / rows) * heads * batch
//	sums_dsink   heads
//	sums_dbias   ceil(kv_len / keys) * ceil(rows of dBias / rows) * (heads of dBias) * (batch of dBias)
//
// Launch sums_dsink and sums_dbias after the backward kernels, which write delta.
//
// A block of sums_dbias owns a tile of dBias and visits all tiles of S whose gradients are
// summed into this tile. S and dP are computed by the same instructions as in the other
// kernels of the same type.
#include "f32.cuh"
#include "tile.cuh"

constexpr int kRows = 64, kKeys = 64, kThreads = 128, kSlice = 64;
#if __CUDA_ARCH__ == 860 || __CUDA_ARCH__ == 890
constexpr bool kRoomy = false; // three blocks share a multiprocessor's 100 KB of shared memory
#else
constexpr bool kRoomy = true;
#endif

constexpr int carry_threads = 256;
extern "C" __global__ void __launch_bounds__(carry_threads) sums_carry(const __grid_constant__ FeatureParams x) {
    const Params &p = x.p;
    const int tiles = (p.q_len + carry_threads - 1) / carry_threads, head = blockIdx.x / tiles;
    const int i = blockIdx.x % tiles * carry_threads + threadIdx.x;
    const Sequence s = sequence(p, x.f, head / p.heads);
    if (i < s.rows) x.f.carried_lse[(int64_t)head * p.q_len + i] = first(p.lse, s.q_batch, head % p.heads)[(s.q0 + i) * p.lse.row];
}
extern "C" __device__ Plan sums_carry_plan = {carry_threads, 0, carry_threads, 0};

constexpr int sink_threads = 1024;
extern "C" __global__ void __launch_bounds__(sink_threads) sums_dsink(const __grid_constant__ FeatureParams x) {
    const Params &p = x.p;
    const int h = blockIdx.x;
    const float sink = ((const float *)x.f.sink.data)[h * x.f.sink.head];
    double sum = 0;
    for (int b = 0; b < p.batch; b++) {
        const Sequence s = sequence(p, x.f, b);
        const float *lse = first(p.lse, s.q_batch, h) + s.q0 * p.lse.row;
        const float *delta = x.f.delta + ((int64_t)b * p.heads + h) * x.f.delta_rows * x.f.delta_step;
        for (int from = threadIdx.x; from < s.rows; from += 4 * sink_threads) { // four loads in flight
            float own[4], of[4];
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const int i = min(from + j * sink_threads, s.rows - 1);
                own[j] = lse[i * p.lse.row], of[j] = delta[i * x.f.delta_step];
            }
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const float weight = expf(sink - own[j]);
                if (from + j * sink_threads < s.rows && sink != -kInf && weight != 0) sum -= (double)weight * of[j];
            }
        }
    }
    __shared__ double part[sink_threads];
    part[threadIdx.x] = sum;
#pragma unroll 1
    for (int n = sink_threads / 2; n > 0; n /= 2) {
        __syncthreads();
        if (threadIdx.x < n) part[threadIdx.x] += part[threadIdx.x + n];
    }
    if (threadIdx.x == 0) ((float *)x.f.dsink.data)[h * x.f.dsink.head] = (float)part[0];
}
extern "C" __device__ Plan sums_dsink_plan = {sink_threads, 0, 0, 0};

// Slices iterates over the tiles of S and dP whose gradients are summed into a tile of dBias. It loads Q, K, dO and V in slices
// of 64 columns. After the last slice of a tile, fetch goes on with the next tile's slices.
template <class T> struct Slices {
    static constexpr bool single = sizeof(T) == 4;
    static constexpr int stages = single || !kRoomy ? 2 : 3, floats = single ? kRows * kSlice : kRows * kSlice / 2; // floats: shared memory of one operand's slice, in 4-byte words
    static constexpr int side = single || !kRoomy ? 0 : 2 * kRows * kKeys; // bytes of the bias's tile in shared memory
    const Params &p;
    const Features &f;
    const int key0, row_tile, head, heads, batches;
    const bool repeats; // dBias has one row, to which all query rows add
    int b, h, row0 = 0, last = 0, step, slot = 0;
    int64_t rows = 0, keys = 0; // offsets of the thread's first element in the next slice of Q or dO (rows), and of K or V (keys)
    bool whole = false;         // the tile's slices are complete and 16-byte aligned
    Sequence e;
    __device__ __forceinline__ Slices(const Params &p, const Features &f, int key0, int row_tile, int head, int heads, int batch, int batches, bool repeats)
        : p(p), f(f), key0(key0), row_tile(row_tile), head(head), heads(heads), batches(batches), repeats(repeats), b(batch - 1), h(heads), step(all()) {}
    __device__ __forceinline__ int split() const { return (p.dim + kSlice - 1) / kSlice; }
    __device__ __forceinline__ int all() const { return split() + (p.v_dim + kSlice - 1) / kSlice; }
    __device__ __forceinline__ bool there() const { return h < heads; }

    // Advances to the next tile with visible pairs of a row and a key.
    __device__ __forceinline__ void advance() {
        if (++h < heads) return;
        h = head;
        for (row0 += kRows;; row0 += kRows) {
            while (row0 >= last) {
                if (++b >= batches) return void(h = heads);
                e = sequence(p, f, b), row0 = repeats ? 0 : row_tile * kRows;
                last = key0 >= e.keys ? 0 : repeats ? e.rows : min(e.rows, (row_tile + 1) * kRows);
            }
            if (key0 <= min(row0 + kRows, e.rows) - 1 + e.hi && key0 + kKeys > row0 + e.lo) return;
        }
    }

    __device__ __forceinline__ void fetch(float *shared) {
        if (step == all()) step = 0, advance();
        if (there()) {
            const bool second = step >= split();
            const View &x = second ? p.dout : p.q, &y = second ? p.v : p.k;
            const int col = (second ? step - split() : step) * kSlice, cols = second ? p.v_dim : p.dim;
            float *at = shared + slot * 2 * floats;
            if (single || col == 0) {
                const int64_t kv = h / (p.heads / p.kv_heads), own = single ? 0 : threadIdx.x / 8, column = single ? col : threadIdx.x % 8 * 8;
                rows = e.q_batch * x.batch + h * x.head + (e.q0 + row0 + own) * x.row + column, keys = e.kv_batch * y.batch + kv * y.head + (e.key0 + key0 + own) * y.row + column;
                if (!single) whole = row0 + kRows <= e.rows && key0 + kKeys <= e.keys && cols % kSlice == 0 && aligned16(x) && aligned16(y);
            }
            if constexpr (single) {
                load<kThreads, kSlice, kRows>(at, (const float *)x.data + rows - col, x.row, e.rows - row0, cols, 0, col);
                load<kThreads, kSlice, kKeys>(at + floats, (const float *)y.data + keys - col, y.row, e.keys - key0, cols, 0, col);
            } else if (whole) {
                copy(shared_address(at), (const uint16_t *)x.data + rows, x.row);
                copy(shared_address(at + floats), (const uint16_t *)y.data + keys, y.row);
            } else {
                const int own = threadIdx.x / 8, column = threadIdx.x % 8 * 8;
                copy_rows<kRows, kSlice, kThreads>(shared_address(at), (const uint16_t *)x.data + rows - own * x.row - column, x.row, e.rows - row0, cols - col, aligned16(x, cols));
                copy_rows<kKeys, kSlice, kThreads>(shared_address(at + floats), (const uint16_t *)y.data + keys - own * y.row - column, y.row, e.keys - key0, cols - col, aligned16(y, cols));
            }
            if (!single) rows += kSlice, keys += kSlice;
            step++;
        }
        copy_commit();
        slot = slot == stages - 1 ? 0 : slot + 1;
    }

    // Like copy_rows, for a complete slice. `from` is the address of the first 16 bytes that the thread copies.
    static __device__ __forceinline__ void copy(uint32_t to, const uint16_t *from, int64_t row) {
        static_assert(kRows == kKeys && kSlice == 64);
        constexpr int pitch = 2 * kSlice, at_once = kThreads / 8;
        const int r = threadIdx.x / 8, c = threadIdx.x % 8;
        to += r * pitch + ((c ^ swizzle<pitch>(r)) << 4);
#pragma unroll
        for (int i = 0; i < kRows / at_once; i++, from += at_once * row) copy_async16(to + i * at_once * pitch, from);
    }
};

template <class T> __device__ __forceinline__ void store_dbias(const Features &f, int64_t at, float x) {
    if (sizeof(T) == 4 || f.dbias_wide)
        ((float *)f.dbias.data)[at] = x;
    else if constexpr (sizeof(T) != 4)
        ((uint16_t *)f.dbias.data)[at] = (uint16_t)pack<T>(x, 0);
}

// Writes a tile of dBias, whose first key is key0. row is the first of the lane's rows. repeats: dBias has one row, their sum.
template <class T, int tiles> __device__ __forceinline__ void write_dbias(const Params &p, const Features &f, const float (&sums)[tiles][4], float *shared, bool repeats, int key0, int row, int head, int batch) {
    const int g = lane_g(), t = lane_t(), warp = threadIdx.x / 32;
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
    __syncthreads();
#pragma unroll
    for (int j = 0; j < tiles; j++)
#pragma unroll
        for (int c = 0; c < 2; c++) {
            const float sum = butterfly_sum<4, 32>(sums[j][c] + sums[j][c + 2]);
            if (g == 0) shared[warp * kKeys + 8 * j + 2 * t + c] = sum;
        }
    __syncthreads(); // the warps' sums are written
    const int key = threadIdx.x;
    if (key < kKeys && key0 + key < p.kv_len)
        store_dbias<T>(f, at + key0 + key, (shared[key] + shared[kKeys + key]) + (shared[2 * kKeys + key] + shared[3 * kKeys + key]));
}

template <class T> __device__ __forceinline__ void dbias(const Params &p, const Features &f) {
    extern __shared__ __align__(128) float shared[]; // [stages][2]: slices of rows and of keys, [64][64]; then a tile of the bias
    constexpr int tiles = kKeys / 8;
    const bool repeats = f.dbias_shape[2] == 1 && p.q_len != 1;
    const int key_tiles = (p.kv_len + kKeys - 1) / kKeys, row_tiles = (f.dbias_shape[2] + kRows - 1) / kRows;
    const int key0 = blockIdx.x % key_tiles * kKeys, row_tile = blockIdx.x / key_tiles % row_tiles;
    const int head = blockIdx.x / key_tiles / row_tiles % f.dbias_shape[1], batch = blockIdx.x / key_tiles / row_tiles / f.dbias_shape[1];
    const int batches = f.dbias_shape[0] == 1 ? p.batch : batch + 1, heads = f.dbias_shape[1] == 1 ? p.heads : head + 1;
    const int g = lane_g(), t = lane_t(), warp = threadIdx.x / 32, row = row_tile * kRows + 16 * warp + g;
    float sums[tiles][4] = {};
    [[maybe_unused]] float extra[sizeof(T) == 4 ? tiles : 1][4] = {}; // float32: compensation of Kahan sums
    [[maybe_unused]] auto add = [&](int j, int c, float x) {
        const float y = __fsub_rn(x, extra[j][c]), sum = sums[j][c] + y;
        extra[j][c] = (sum - sums[j][c]) - y, sums[j][c] = sum;
    };
    Slices<T> slices(p, f, key0, row_tile, head, heads, batch, batches, repeats);
    const int split = slices.split(), all = slices.all();
    int slot = 0;
    const bool staged = slices.side && f.bias.data && !f.bias_wide && f.cap_in == 0 && !f.slopes.data && aligned16(f.bias, p.kv_len);
    const uint32_t bias = shared_address(shared + slices.stages * 2 * slices.floats); // a tile of the bias
#pragma unroll
    for (int i = 1; i < slices.stages; i++) slices.fetch(shared);
    while (slices.there()) { // one tile of S per iteration; the tile's first slices are in flight
        const int b = slices.b, h = slices.h, row0 = slices.row0, own = row0 + 16 * warp + g;
        const Sequence e = sequence(p, f, b);
        float s[tiles][4] = {}, ds[tiles][4] = {}, lse[2], delta[2];
        [[maybe_unused]] bool far = false; // some row is far (see far.cuh), so weights are computed in natural units
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int i = own + 8 * r;
            lse[r] = i < e.rows ? first(p.lse, e.q_batch, h)[(e.q0 + i) * p.lse.row] : kInf;
            if (lse[r] == -kInf) lse[r] = kInf; // no weights
            far |= !(fabsf(lse[r]) * kLog2E < kFar) && lse[r] != kInf;
            delta[r] = i < e.rows ? f.delta[(((int64_t)b * p.heads + h) * f.delta_rows + i) * f.delta_step] : 0;
        }
        far = sizeof(T) != 4 && __any_sync(~0u, far);
        if (sizeof(T) != 4 && !far) lse[0] *= kLog2E, lse[1] *= kLog2E;
#pragma unroll 1
        for (int step = 0; step < all; step++) {
            copy_wait<slices.stages - 2>();
            __syncthreads(); // the slice has arrived; the previous one is free
            if constexpr (slices.side > 0)
                if (staged && step == 0)
                    copy_rows<kRows, kKeys, kThreads>(bias, row_of(f.bias, b, h, row0) + key0, f.bias.row, p.q_len - row0, p.kv_len - key0, true);
            slices.fetch(shared);
            const float *at = shared + slot * 2 * slices.floats;
            slot = slot == slices.stages - 1 ? 0 : slot + 1;
            if constexpr (sizeof(T) == 4) {
                if (step < split) score<kSlice, true>(s, at + warp * 16 * kSlice, at + slices.floats, p.dim);
                else score<kSlice, false>(ds, at + warp * 16 * kSlice, at + slices.floats, p.v_dim);
            } else {
                const int lane = threadIdx.x % 32;
                const uint32_t x = shared_address(at) + warp * 16 * 2 * kSlice + place<2 * kSlice>(lane, false), y = shared_address(at + slices.floats) + place<2 * kSlice>(lane, true);
                if (step < split) product<T, kSlice>((float(&)[1][kKeys / 8][4])s, x, 0, y, 0);
                else product<T, kSlice>((float(&)[1][kKeys / 8][4])ds, x, 0, y, 0);
            }
        }
        const Scores<T> x(p, f, e, b, h);
        if constexpr (slices.side > 0) {
            if (staged) {
                copy_wait<slices.stages - 2>();
                __syncthreads(); // the bias has arrived
            }
            if (staged && !far) {
                const uint32_t from = bias + warp * 16 * 2 * kKeys + place<2 * kKeys>(threadIdx.x % 32, false);
#pragma unroll
                for (int j = 0; j < tiles; j += 2) {
                    uint32_t y[4];
                    load_matrix(y, at<2 * kKeys>(from, 0, j));
#pragma unroll
                    for (int c = 0; c < 8; c++) {
                        float &z = s[j + c / 4][c % 4];
                        z = fmaf(widen<T>(y[c / 2] >> 16 * (c % 2) & 0xffff), kLog2E, fmaf(z, p.scale_log2, -lse[c % 4 / 2]));
                    }
                }
                if (f.mask.data) x.template hide<false>(s, own, key0 + 2 * t);
#pragma unroll
                for (int j = 0; j < tiles; j++)
#pragma unroll
                    for (int c = 0; c < 4; c++) s[j][c] = exp2_approx(s[j][c]);
            }
        }
        if (far) x.template far_weights<false>(s, own, key0 + 2 * t, [&](int, int c) { return lse[c / 2]; }, [](int, int, float) {});
        else if (!staged) x.template weights<false>(s, own, key0 + 2 * t, [&](int, int c) { return lse[c / 2]; }, [](int, int, float) {});
        const bool whole = row0 + kRows <= e.rows && key0 + kKeys <= e.keys && key0 + kKeys - 1 <= row0 + e.hi && key0 >= row0 + kRows - 1 + e.lo;
        if (whole && !f.drop_below) { // all rows see all keys
#pragma unroll
            for (int j = 0; j < tiles; j++)
#pragma unroll
                for (int c = 0; c < 4; c++)
                    if (s[j][c] != 0) {
                        if constexpr (sizeof(T) == 4) add(j, c, s[j][c] * (ds[j][c] - delta[c / 2]));
                        else sums[j][c] = fmaf(s[j][c], ds[j][c] - delta[c / 2], sums[j][c]);
                    }
            continue;
        }
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
                if (s[j][c] != 0) {
                    const float y = (dropped(s[j][c]) ? 0 : ds[j][c] * f.keep) - delta[c / 2];
                    if constexpr (sizeof(T) == 4) add(j, c, fabsf(s[j][c]) * y);
                    else sums[j][c] += fabsf(s[j][c]) * y;
                }
    }
    write_dbias<T, tiles>(p, f, sums, shared, repeats, key0, row, head, batch);
}

#define DBIAS(type, T)                                                                                                                             \
    extern "C" __global__ void __launch_bounds__(kThreads, sizeof(T) == 4 ? 2 : 3) sums_dbias_##type(const __grid_constant__ FeatureParams x) { dbias<T>(x.p, x.f); }  \
    extern "C" __device__ Plan sums_dbias_##type##_plan = {kThreads, 2 * Slices<T>::stages * Slices<T>::floats * 4 + Slices<T>::side, kRows, kKeys};

DBIAS(f32, float)
DBIAS(f16, F16)
DBIAS(bf16, BF16)
