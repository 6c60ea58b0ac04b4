// Loops that measure the hardware's peak rates: float32 multiply-adds, 16-bit matrix
// products of mma.sync, and memory copies. limits_sm90.cu measures wgmma.
//
// Launch: Limits by value, any number of blocks, the Plan's threads per block. Here Plan.rows
// is the number of operations per block and round, in thousands. Plan.keys is the number of
// blocks per multiprocessor.
#include "limits.cuh"
#include "mma.cuh"

constexpr int threads = 256, chains = 8; // chains: independent sums per thread

template <class T> __device__ __forceinline__ void products(const Limits &a) {
    uint32_t x[4][4], y[2][2];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) x[i][j] = random_pair<T>(threadIdx.x * 16 + i * 4 + j);
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 2; j++) y[i][j] = random_pair<T>(threadIdx.x * 4 + i * 2 + j);
    float d[chains][4] = {};
    for (int n = 0; n < a.rounds; n++)
#pragma unroll
        for (int i = 0; i < chains; i++) mma<T>(d[i], x[i % 4], y[i / 4][0], y[i / 4][1]);
    float sum = 0;
    for (int i = 0; i < chains; i++) sum += d[i][0] + d[i][1] + d[i][2] + d[i][3];
    keep(a, sum);
}

__device__ __forceinline__ void multiply_adds(const Limits &a) {
    float x[chains], by = 1 - 0x1p-20f, more = threadIdx.x * 0x1p-20f;
    for (int i = 0; i < chains; i++) x[i] = i;
    for (int n = 0; n < a.rounds; n++)
#pragma unroll
        for (int i = 0; i < chains; i++) x[i] = fmaf(x[i], by, more);
    float sum = 0;
    for (int i = 0; i < chains; i++) sum += x[i];
    keep(a, sum);
}

__device__ __forceinline__ void copies(const Limits &a) {
    const int64_t all = (int64_t)gridDim.x * threads;
    int64_t i = (int64_t)blockIdx.x * threads + threadIdx.x;
    for (; i + 3 * all < a.words; i += 4 * all) { // four loads in flight
        const uint4 x = a.from[i], y = a.from[i + all], z = a.from[i + 2 * all], w = a.from[i + 3 * all];
        a.to[i] = x, a.to[i + all] = y, a.to[i + 2 * all] = z, a.to[i + 3 * all] = w;
    }
    for (; i < a.words; i += all) a.to[i] = a.from[i];
}

LIMIT(limits_f32, multiply_adds, threads, threads * chains * 2 / 1000., 4)
LIMIT(limits_f16, products<F16>, threads, threads / 32 * chains * 4096 / 1000., 4)
LIMIT(limits_bf16, products<BF16>, threads, threads / 32 * chains * 4096 / 1000., 4)
LIMIT(limits_copy, copies, threads, 0, 8)
