// Backward pass for f16 and bf16 with mma.sync, on compute capability 8.0 and later.
// One call launches three kernels, in this order. A kernel whose grid is 0 is not launched.
//
//   bwd_sm80_delta_<dtype>     grid max(1, B*H*ceil(N/64))   writes LSE and delta; clears dq_sum and turn
//   bwd_sm80_<dtype>_d<dim>    grid B*G*ceil(M/plan.keys)    writes dK and dV; adds to dq_sum
//   bwd_sm80_finish_<dtype>    grid B*H*ceil(N/64)           writes dQ = dq_sum * scale
//
// <dim> is the smallest of 32, 64, 96, 128, 192, 256 and 512 that is at least D and at least DV.
// With T = B*H*ceil(N/64), the workspace consists of
//
//   delta     T*64*2 floats       for each row, LSE in log2 units and delta
//   dq_sum    T*64*<dim> floats
//   turn      1 + 2*T ints        the next ticket, and a counter for each tile of 64 or 32 rows
//
// P is exp(S*scale - LSE) for visible pairs and 0 for hidden pairs. The main kernel computes
//
//   for each batch b, KV head, tile of keys             // one block
//     for each query head h of the group, tile of rows  // from the last tile of rows to the first
//       S^T = K Q^T;  dP^T = V dO^T
//       dS^T = P^T * (dP^T - delta)
//       dV += P^T dO;  dK += dS^T Q;  dq_sum[h] += dS K
//     dK *= scale
//
// K and V stay in shared memory, and dK and dV in registers. Each tile of Q and dO replaces an
// earlier tile in shared memory. A team of `split` warps shares 16*blocks keys (see Shape). Each warp
// computes S^T and dP^T for a part of the query rows, and dK and dV for a part of the columns.
// A warp's own P^T and dS^T already have the register layout of operands of dV and dK. The warp
// loads P^T and dS^T of the team's other warps from shared memory. dS K needs the keys of all
// warps, so this product is computed after the next tile's barrier.
//
// If p.deterministic, the blocks of one head add to a tile of dq_sum in the order of their keys.
// Each block takes a ticket and waits only for blocks with lower tickets, which have started.
// All blocks loop from the last tile of rows to the first, so a block waits only a short time
// for the block before it. The first block of a tile of dq_sum stores instead of adding.
//
// Hidden pairs of a query row and a key have P = dS = 0. But 0 * NaN is NaN, and hidden
// and visible pairs share operands: dO in dV, Q in dK, K in dQ. So the non-finite elements
// of these operands are replaced by 0. A row's LSE and delta reveal such elements in Q and dO.
// To find such elements in K, all elements of K are tested. Visible pairs still yield NaN: in dS
// through S and dP, and in dV because the replaced elements of dO are added to dV after each tile.
//
// For <dim> 512, registers do not suffice for all of dQ, and shared memory holds one tile of Q and dO. So a warp computes
// S^T or dP^T, and loads the other (see add_wide). dQ of a tile is computed while the next tile arrives. Only
// the instance with features exists, only on compute capability 8.0 and 9.0. It assumes hidden pairs in every tile.
//
// With features, functions of score.cuh compute P^T and change dP^T. With a mask, the kernel
// assumes hidden pairs in every tile.
//
// bwd_sm80.cuh has shapes, shared memory, copies and dQ. bwd_sm80_tile.cuh adds a tile
// to a warp's sums of dK and dV. `backward` below is the loop over tiles.
#include "bwd_sm80_tile.cuh"

// Writes the block's dK and dV to global memory, after staging them in the shared memory of K and V.
template <class T, int D, bool features, int M, int N>
__device__ __forceinline__ void leave(const Block<T, D, features> &block, const float (&dk)[M][2 * N][4], const float (&dv)[M][2 * N][4]) {
    using L = Layout<D, features>;
    constexpr int split = L::split, pitch = L::pitch;
    const Params &p = block.p;
    const int own = threadIdx.x / 32;
    const uint32_t to = at<pitch>(block.base + own / split * 16 * M * pitch + place<pitch>(block.lane, false), 0, 2 * (own % split));
    for (int m = 0; m < M; m++)
        for (int n = 0; n < N; n++) {
            uint32_t x[4];
            pack_block<T>(x, dk[m], n, p.scale);
            store_matrix(at<pitch>(to, 16 * m, 2 * split * n), x);
            if constexpr (features) pack_block<T>(x, dv[m], n, block.f.keep);
            else pack_block<T>(x, dv[m], n);
            store_matrix(at<pitch>(to, 16 * m, 2 * split * n) + L::v, x);
        }
    __syncthreads(); // dK and dV are staged
    const int b = block.work.b, hk = block.work.hk, k0 = block.work.k0, end = block.key_end();
    write_rows<L::keys, D, L::threads>(block.shared, block.key_row(p.dk, b, hk, k0), p.dk.row, end - k0, p.dim, aligned16(p.dk));
    write_rows<L::keys, D, L::threads>(block.shared + L::v, block.key_row(p.dv, b, hk, k0), p.dv.row, end - k0, p.v_dim, aligned16(p.dv));
}

template <class T, int D, bool features> __device__ __forceinline__ void backward(const Params &p, const Features &f) {
    using L = Layout<D, features>;
    constexpr int M = L::blocks, N = D / 16 / L::split; // a warp has M groups of 16 keys, and N groups of 16 columns of dK and dV
    extern __shared__ __align__(128) uint8_t shared[]; // Layout
    const Block<T, D, features> block(p, f, shared);
    volatile auto &work = block.work;
    if (block.thread == 0) block.find();
    __syncthreads(); // work is written
    float dk[M][2 * N][4] = {}, dv[M][2 * N][4] = {};

    if (work.steps) {
        block.fetch_keys();
        if (L::stages == 2) block.fetch(work.hk * block.share, work.i_hi, 0, 0);
    }
    // In blocks of eight warps, each of the multiprocessor's four schedulers has two warps. The first warp adds the previous
    // dQ before it processes its tile, the second warp afterwards. So the two warps do different work at the same time.
    const bool late = !L::wide && L::warps > 4 && block.warp >= 4;
    // The outer loop is over the heads of the group. The inner loop is over tiles of rows, from last to first.
    int h = work.hk * block.share, i = work.i_hi;
    auto add_before = [&](int turn) { // adds dQ of the previous tile
        const bool wrap = i == work.i_hi;
        if constexpr (L::wide) block.add_wide_dq(wrap ? h - 1 : h, wrap ? work.i_lo : i + 1, turn ^ 1);
        else block.add_dq(wrap ? h - 1 : h, wrap ? work.i_lo : i + 1, turn ^ 1);
    };
    auto add_previous = [&](int t) {
        if (t > 1) block.end_turn();
        if (t > 0 && (!late || t == work.steps)) add_before(t & 1);
    };
    for (int t = 0; t || work.steps; t++) {
        const int turn = t & 1, buffer = L::stages == 2 ? turn : 0;
        if (L::stages == 2) {
            copy_wait<0>();
            __syncthreads(); // Q, dO, stat and the previous dS are ready; their other buffers are free
            const bool wrap = i == work.i_lo;
            if (t + 1 < work.steps) block.fetch(wrap ? h + 1 : h, wrap ? work.i_hi : i - 1, turn ^ 1, turn ^ 1);
        } else {
            __syncthreads(); // the previous dS is ready; Q and dO are free
            if (t < work.steps) block.fetch(h, i, 0, turn);
            if (L::wide) add_previous(t); // while Q and dO arrive
            copy_wait<0>();
            __syncthreads(); // Q, dO and stat have arrived
        }
        if (t == 0 && work.clear_k) block.scan_keys();
        if (!L::wide) add_previous(t);
        if (t == work.steps) break;
        const int k0 = work.k0, r0 = i * L::rows;
        if constexpr (L::wide) Tile<T, D, features, true>(block, r0, h, buffer, turn).add_wide(dk, dv);
        else if (block.cuts(r0, k0)) Tile<T, D, features, true>(block, r0, h, buffer, turn).add(dk, dv);
        else Tile<T, D, features, false>(block, r0, h, buffer, turn).add(dk, dv);
        if (t > 0 && late) add_before(turn);
        if (i == work.i_lo) h++, i = work.i_hi;
        else i--;
    }
    __syncthreads(); // K and V are free; all adds have been issued
    if (work.steps) block.end_turn();
    leave<T, D, features, M, N>(block, dk, dv);
}

// Returns the main kernel's <dim>, which is at least D and at least DV.
__device__ __forceinline__ int padded(const Params &p) {
    const int d = max(p.dim, p.v_dim);
    return d <= 32 ? 32 : d > 64 && d <= 96 ? 96 : d > 256 ? 512 : (d + 63) / 64 * 64;
}

// Writes the pairs (LSE in log2 units, delta) of 64 rows of a head, where delta is
// rowsum(dO * O) - dLSE. The row sums are the diagonal of O dO^T, computed by the same
// instructions in the same order as dP^T = V dO^T. So dP - delta is exactly 0 if one key
// has all the weight. A row without visible keys gets LSE = Inf, so that P = 0.
constexpr int delta_threads = 128, delta_columns = 64, delta_shared = 2 * 64 * 2 * delta_columns;
template <class T, bool features> __device__ __forceinline__ void delta(const Params &p, const Features &f) {
    const int tiles = (p.q_len + 63) / 64, bh = blockIdx.x / max(tiles, 1), r0 = blockIdx.x % max(tiles, 1) * 64;
    const int64_t counters = 1 + (int64_t)p.batch * p.heads * tiles * 2, threads = (int64_t)gridDim.x * delta_threads;
    for (int64_t i = (int64_t)blockIdx.x * delta_threads + threadIdx.x; i < counters; i += threads) p.turn[i] = 0;
    if (p.q_len == 0 || p.batch == 0) return;
    float4 *sum = (float4 *)p.dq_sum + (int64_t)blockIdx.x * 16 * padded(p);
    for (int i = threadIdx.x; i < 16 * padded(p) && !p.deterministic; i += delta_threads) sum[i] = {0, 0, 0, 0};

    extern __shared__ __align__(128) uint8_t shared[]; // O and dO, 64 rows of delta_columns
    constexpr int pitch = 2 * delta_columns, dout = 64 * pitch;
    const uint32_t base = shared_address(shared);
    const int b = bh / p.heads, h = bh % p.heads, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const Extent<features> e(p, f, b);
    const bool aligned = aligned16(p.o, p.v_dim) && aligned16(p.dout, p.v_dim);
    float x[1][2][4] = {};
    for (int c = 0; c < p.v_dim; c += delta_columns) {
        copy_rows<64, delta_columns, delta_threads>(base, row_of(p.o, e.q_batch(), h, e.q0() + r0) + c, p.o.row, e.rows() - r0, p.v_dim - c, aligned);
        copy_rows<64, delta_columns, delta_threads>(base + dout, row_of(p.dout, e.q_batch(), h, e.q0() + r0) + c, p.dout.row, e.rows() - r0, p.v_dim - c, aligned);
        copy_commit();
        copy_wait<0>();
        __syncthreads(); // O and dO have arrived
        const uint32_t rows = base + 16 * warp * pitch;
        product<T, delta_columns>(x, rows + place<pitch>(lane, false), 0, rows + place<pitch>(lane, true), dout);
        __syncthreads();
    }
    if (lane % 4 != lane / 8) return; // the lane has no elements of the diagonal
    for (int half = 0; half < 2; half++) {
        const int r = r0 + 16 * warp + 8 * half + lane / 4;
        const float on_diagonal = lane / 4 % 2 ? x[0][half][2 * half + 1] : x[0][half][2 * half];
        const bool there = r < e.rows();
        const float lse = there ? stat_of_lse(stat_of(p.lse, e.q_batch(), h, e.q0() + r)) : 0;
        const float dlse = there && p.dlse.data ? stat_of(p.dlse, e.q_batch(), h, e.q0() + r) : 0;
        ((float2 *)p.delta)[(int64_t)bh * tiles * 64 + r] = {lse, on_diagonal - dlse};
    }
}

// Writes dQ = dq_sum * scale for 64 rows of a head, or 0 for rows that see no key. A thread
// writes 8 columns of rows r and r+8, because a float4 of dq_sum holds two columns of row r and two columns of row r+8.
template <class T, bool features> __device__ __forceinline__ void finish(const Params &p, const Features &f) {
    const int tiles = (p.q_len + 63) / 64, bh = blockIdx.x / tiles, tile = blockIdx.x % tiles, chunks = (p.dim + 7) / 8, all = padded(p) / 8;
    const float4 *sum = (const float4 *)p.dq_sum + (int64_t)blockIdx.x * 128 * all;
    const bool aligned = aligned16(p.dq);
    const Extent<features> e(p, f, bh / p.heads);
    for (int j = threadIdx.x; j < 32 * chunks; j += 256) {
        const int chunk = j % chunks, g = j / chunks % 8, m = j / chunks / 8;
        bool sees[2];
        for (int i = 0; i < 2; i++) {
            const int r = tile * 64 + m * 16 + g + 8 * i;
            sees[i] = (!features || r < e.rows()) && max(0, r + e.lo()) <= min(e.keys() - 1, r + e.hi());
        }
        uint32_t y[2][4];
        for (int i = 0; i < 4; i++) {
            const float4 x = sees[0] || sees[1] ? sum[(m * all + chunk) * 32 + 4 * g + i] : float4{}; // dq_sum may be unwritten if neither row sees a key
            y[0][i] = pack<T>(x.x * p.scale, x.y * p.scale), y[1][i] = pack<T>(x.z * p.scale, x.w * p.scale);
        }
        for (int i = 0; i < 2; i++) {
            const int r = tile * 64 + m * 16 + g + 8 * i;
            const uint4 x = sees[i] ? uint4{y[i][0], y[i][1], y[i][2], y[i][3]} : uint4{0, 0, 0, 0};
            if constexpr (features) {
                if (r < e.row_end()) store8(row_of(p.dq, e.q_batch(), bh % p.heads, e.q0() + r) + 8 * chunk, x, p.dim - 8 * chunk, aligned);
            } else if (r < p.q_len) {
                store8(row_of(p.dq, bh / p.heads, bh % p.heads, r) + 8 * chunk, x, p.dim - 8 * chunk, aligned);
            }
        }
    }
}

#define KERNEL(name, block, body, p, f, threads, resident, shared, rows, keys)   \
    extern "C" __device__ Plan name##_plan = {threads, shared, rows, keys};      \
    extern "C" __global__ void __launch_bounds__(threads, resident) name(const __grid_constant__ block x) { body(p, f); }
#define BOTH(name, block, features, p, f, dtype, T, D) \
    KERNEL(name##_##dtype##_d##D, block, (backward<T, D, features>), p, f, (Layout<D, features>::threads), shape(D).resident, (Layout<D, features>::total), (Layout<D, features>::rows), (Layout<D, features>::keys))
#define ENDS(name, block, features, p, f, dtype, T)                                                          \
    KERNEL(name##_delta_##dtype, block, (delta<T, features>), p, f, delta_threads, 4, delta_shared, 64, 0) \
    KERNEL(name##_finish_##dtype, block, (finish<T, features>), p, f, 256, 4, 0, 64, 0)
#define INSTANCE(dtype, T, D)                                                       \
    BOTH(bwd_sm80, Params, false, x, no_features, dtype, T, D)                      \
    BOTH(bwd_sm80_features, FeatureParams, true, x.p, x.f, dtype, T, D)
#define WIDE(dtype, T) BOTH(bwd_sm80_features, FeatureParams, true, x.p, x.f, dtype, T, 512)
#define ALL(dtype, T)                                               \
    ENDS(bwd_sm80, Params, false, x, no_features, dtype, T)         \
    ENDS(bwd_sm80_features, FeatureParams, true, x.p, x.f, dtype, T)
ALL(f16, F16)
ALL(bf16, BF16)
#if SHARED_KB > 99
WIDE(f16, F16)
WIDE(bf16, BF16)
#endif
INSTANCE(f16, F16, 32)
INSTANCE(f16, F16, 64)
INSTANCE(f16, F16, 96)
INSTANCE(f16, F16, 128)
INSTANCE(f16, F16, 192)
INSTANCE(f16, F16, 256)
INSTANCE(bf16, BF16, 32)
INSTANCE(bf16, BF16, 64)
INSTANCE(bf16, BF16, 96)
INSTANCE(bf16, BF16, 128)
INSTANCE(bf16, BF16, 192)
INSTANCE(bf16, BF16, 256)
