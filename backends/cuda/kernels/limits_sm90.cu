// Peak rate of Hopper's tensor cores for 16-bit matrices: wgmma of two warpgroups with
// operands in shared memory. Compiled with -gencode=arch=compute_90a,code=sm_90a.
// Launch: see limits.cu.
#include "limits.cuh"
#include "sm90.cuh"

constexpr int groups = 2, threads = 128 * groups, rows = 64, columns = 256, depth = 64;

template <class T> __device__ __forceinline__ void products(const Limits &a) {
    __shared__ __align__(1024) uint32_t tiles[(groups * rows + columns) * depth / 2]; // operand A of each warpgroup, then the warpgroups' common operand B
    for (int i = threadIdx.x; i < sizeof tiles / 4; i += threads) tiles[i] = random_pair<T>(i);
    async_fence(); // makes the tiles visible to wgmma
    __syncthreads();
    const uint32_t at = __shfl_sync(~0u, shared_address(tiles), 0), group = __shfl_sync(~0u, threadIdx.x / 128, 0);
    const uint64_t x = descriptor(at + group * rows * 128, 16), y = descriptor(at + groups * rows * 128, 16);
    float d[columns / 2];
    each<columns / 2>([&](int i) { d[i] = 0; });
#pragma unroll 1
    for (int n = 0; n < a.rounds; n++) {
        wgmma_fence();
        each<depth / 16>([&](int i) { wgmma<T, 0>(d, x + i * 2, y + i * 2, true); });
        wgmma_commit();
        wgmma_wait<0>();
    }
    float sum = 0;
    each<columns / 2>([&](int i) { sum += d[i]; });
    keep(a, sum);
}

LIMIT(limits_sm90_f16, products<F16>, threads, groups * 2. * rows * columns * depth / 1000, 1)
LIMIT(limits_sm90_bf16, products<BF16>, threads, groups * 2. * rows * columns * depth / 1000, 1)
