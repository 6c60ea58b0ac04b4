// A block of bwd_sm80: shapes, shared memory, work, copies, and sums of dQ.
#pragma once
#include "score.cuh"
#include "tile.cuh"

#if __CUDA_ARCH__ >= 900 && __CUDA_ARCH__ < 1200
#define SHARED_KB 227
#elif __CUDA_ARCH__ == 800 || __CUDA_ARCH__ == 870
#define SHARED_KB 163
#else
#define SHARED_KB 99
#endif

// A NaturalLSE returns the LSE, in natural units, of row r of a tile. It returns Inf if the row is after the end of the
// sequence or sees no key.
struct NaturalLSE {
    const float *at;
    int64_t row;
    int last;
    __device__ __forceinline__ NaturalLSE(const View &lse, int b, int h, int first, int rows)
        : at((const float *)lse.data + b * lse.batch + h * lse.head + first * lse.row), row(lse.row), last(rows - 1) {}
    __device__ __forceinline__ float operator()(int r) const {
        const float x = at[min(r, last) * row];
        return x == __int_as_float(0xff800000) || r > last ? __int_as_float(0x7f800000) : x;
    }
};

struct Shape {
    int warps, split, blocks; // warps per block; warps that share the same keys; groups of 16 keys per warp
    int rows, stages;         // query rows per tile; buffers of Q and dO
    int resident;             // blocks per multiprocessor
};
constexpr Shape shape(int d) {
    return d <= 64                        ? Shape{4, 1, 2, 64, 2, SHARED_KB == 227 ? 2 : 1}
           : d == 96                      ? Shape{SHARED_KB == 99 ? 4 : 8, 2, 2, 64, 2, 1}
           : d <= 128 && SHARED_KB == 227 ? Shape{8, 2, 2, 64, 2, 1}
           : d <= 128 && SHARED_KB == 163 ? Shape{8, 2, 2, 32, 2, 1}
           : d <= 128                     ? Shape{8, 4, 2, 64, 1, 1}
           : d > 256                      ? SHARED_KB == 227 ? Shape{8, 8, 2, 64, 1, 1} : Shape{8, 4, 1, 32, 1, 1}
           : SHARED_KB == 99              ? Shape{4, 2, 1, 32, 1, 1}
                                          : Shape{8, 4, 2, 64, SHARED_KB == 227 ? 2 : 1, 1};
}

// A block's work, in shared memory to save registers.
struct Work {
    int b, hk, k0;          // batch, KV head and first key of the block
    int i_lo, i_hi, steps;  // first and last row tile that see the block's keys; number of row tiles visited, over all heads of the group
    int aligned, clear_k;   // Q and dO allow 16-byte copies; non-finite elements of K must be replaced by 0
    int added;              // row tile whose dQ was added last
};
struct FeatureWork : Work { Sequence s; };
template <bool features> struct WorkOf { using type = Work; };
template <> struct WorkOf<true> { using type = FeatureWork; };

// Offsets in shared memory: K and V [keys][D], Q and dO [stages][rows][D],
// P^T [keys][rows] if split > 1, dS^T [2][keys][rows], pairs of LSE and
// delta [2][rows], S^T and dP^T [teams][parts] if wide, Work. At the end dK and dV replace K and V.
template <int D, bool features = false> struct Layout {
    static constexpr Shape c = shape(D);
    static constexpr int warps = c.warps, split = c.split, blocks = c.blocks, rows = c.rows, stages = c.stages;
    static constexpr int threads = 32 * warps, keys = 16 * blocks * warps / split, pitch = 2 * D, pitch_p = 2 * rows;
    static constexpr bool wide = D > 256;                     // two warps share each part of a tile's rows: one computes S^T, the other dP^T
    static constexpr int parts = wide ? split / 2 : split; // of a tile's query rows
    static constexpr int v = keys * pitch, q = 2 * v, dout = q + stages * rows * pitch, pt = dout + stages * rows * pitch;
    static constexpr int ds = pt + (split > 1 ? keys * pitch_p : 0), stat = ds + 2 * keys * pitch_p;
    static constexpr int sent = stat + 16 * rows, work = sent + (wide ? warps / split * parts * blocks * 2048 : 0), total = work + sizeof(typename WorkOf<features>::type);
    // A warp computes 16*X rows and Y groups of 16 columns of dS K.
    static constexpr int bands = D == 96 && warps == 8 ? 4 : 2, X = rows / bands / 16, Y = D / 16 * bands / warps;
    static_assert(total <= SHARED_KB * 1024 && X * 16 * bands == rows && Y * warps == D / 16 * bands, "shape");
};

// Adds the product x b to c. b has 16 rows and N/2 groups of 16 columns. Each group begins 16*step columns after the
// previous group. The lane loads b from address b + to_b (see place). If guard, non-finite elements of b count as 0.
template <class T, int D, int step, int M, int N>
__device__ __forceinline__ void accumulate(float (&c)[M][N][4], const uint32_t (&x)[M][4], uint32_t b, int to_b, bool guard) {
#pragma unroll
    for (int n = 0; n < N; n += 2) {
        uint32_t y[4];
        load_matrix_transposed(y, at<2 * D>(b, 0, step * n) + to_b);
        if (guard)
            for (int i = 0; i < 4; i++) y[i] = clear_nonfinite<T>(y[i]);
        for (int m = 0; m < M; m++) mma<T>(c[m][n], x[m], y[0], y[1]), mma<T>(c[m][n + 1], x[m], y[2], y[3]);
    }
}

// The state of a thread block. warp and lane are recomputed at some uses, to save registers.
template <class T, int D, bool features> struct Block {
    using L = Layout<D, features>;
    const Params &p;
    const Features &f;
    uint8_t *const shared; // see Layout
    const uint32_t base;   // address of `shared` in shared memory
    volatile typename WorkOf<features>::type &work;
    const int thread, warp, lane;
    const int tiles, share; // row tiles in the workspace; query heads per KV head
    __device__ __forceinline__ Block(const Params &p, const Features &f, uint8_t *shared)
        : p(p), f(f), shared(shared), base(shared_address(shared)), work(*(typename WorkOf<features>::type *)(shared + L::work)), thread(fresh(threadIdx.x)), warp(thread / 32), lane(thread % 32),
          tiles((p.q_len + 63) / 64 * (64 / L::rows)), share(p.heads / p.kv_heads) {}

    // These functions return the sequence's numbers of rows and keys, and the bounds lo and hi: row i sees keys i+lo to i+hi.
    // query and key_row return the addresses of row i and of key j in v.
    __device__ __forceinline__ int rows() const { if constexpr (features) return work.s.rows; else return p.q_len; }
    __device__ __forceinline__ int keys() const { if constexpr (features) return work.s.keys; else return p.kv_len; }
    __device__ __forceinline__ int key_end() const { if constexpr (features) return work.s.key_end; else return p.kv_len; }
    __device__ __forceinline__ int lo() const { if constexpr (features) return work.s.lo; else return p.lo; }
    __device__ __forceinline__ int hi() const { if constexpr (features) return work.s.hi; else return p.hi; }
    __device__ __forceinline__ uint16_t *query(const View &v, int b, int h, int i) const { if constexpr (features) return row_of(v, work.s.q_batch, h, work.s.q0 + i); else return row_of(v, b, h, i); }
    __device__ __forceinline__ uint16_t *key_row(const View &v, int b, int h, int j) const { if constexpr (features) return row_of(v, work.s.kv_batch, h, work.s.key0 + j); else return row_of(v, b, h, j); }
    // Returns the LSE of the tile of rows that begins at row r0.
    __device__ __forceinline__ NaturalLSE natural_lse(int head, int r0) const {
        if constexpr (features) return NaturalLSE(p.lse, work.s.q_batch, head, work.s.q0 + r0, work.s.rows - r0);
        else return NaturalLSE(p.lse, work.b, head, r0, p.q_len - r0);
    }
    // Reports whether the key belongs to the sequence and the mask shows it to row i. The bounds lo and hi are not tested.
    __device__ __forceinline__ bool takes_part(int head, int i, int key) const {
        if constexpr (features) return key < keys() && Scores<T>(p, f, Sequence{}, work.b, head).takes_part(i, key);
        else return true;
    }
    // Reports whether the tile of rows from r0 and keys from k0 may have hidden pairs.
    __device__ __forceinline__ bool cuts(int r0, int k0) const {
        return r0 + L::rows > rows() || k0 + L::keys > keys() || k0 < r0 + L::rows - 1 + lo() || k0 + L::keys - 1 > r0 + hi() || features && f.mask.data;
    }

    // Sets the block's work. One thread of the block calls find.
    __device__ __forceinline__ void find() const {
        // Tickets are ordered by groups of 16 KV heads, then by tiles of keys, then by heads.
        const int ticket = p.deterministic && p.q_len ? atomicAdd(p.turn, 1) : blockIdx.x;
        const int key_tiles = (p.kv_len + L::keys - 1) / L::keys, first = ticket / (16 * key_tiles) * 16, width = min(16, p.batch * p.kv_heads - first);
        const int bh = first + (ticket - first * key_tiles) % width, k0 = (ticket - first * key_tiles) / width * L::keys;
        if constexpr (features) {
            const Sequence s = sequence(p, f, bh / p.kv_heads);
            work.s.q_batch = s.q_batch, work.s.q0 = s.q0, work.s.rows = s.rows, work.s.row_end = s.row_end;
            work.s.kv_batch = s.kv_batch, work.s.key0 = s.key0, work.s.keys = s.keys, work.s.key_end = s.key_end;
            work.s.lo = s.lo, work.s.hi = s.hi, work.s.diagonal = s.diagonal;
        }
        const int row_lo = max(0, k0 - hi()), row_hi = min(rows() - 1, min(k0 + L::keys, keys()) - 1 - lo());
        work.b = bh / p.kv_heads, work.hk = bh % p.kv_heads, work.k0 = k0;
        work.i_lo = row_lo / L::rows, work.i_hi = row_hi / L::rows;
        work.steps = row_lo <= row_hi && lo() <= hi() && !(features && k0 >= keys()) ? (row_hi / L::rows - row_lo / L::rows + 1) * share : 0;
        work.aligned = aligned16(p.q, p.dim) && aligned16(p.dout, p.v_dim);
        work.clear_k = row_lo + hi() < k0 + L::keys - 1 || row_hi + lo() > k0 || features && f.mask.data; // some pairs are hidden: K must be scanned
    }

    // Starts the copies of K and V.
    __device__ __forceinline__ void fetch_keys() const {
        const int b = work.b, hk = work.hk, k0 = work.k0;
        copy_rows<L::keys, D, L::threads>(base, key_row(p.k, b, hk, k0), p.k.row, keys() - k0, p.dim, aligned16(p.k, p.dim));
        copy_rows<L::keys, D, L::threads>(base + L::v, key_row(p.v, b, hk, k0), p.v.row, keys() - k0, p.v_dim, aligned16(p.v, p.v_dim));
    }
    // Starts the copies of Q, dO, LSE and delta of a tile.
    __device__ __forceinline__ void fetch(int h, int i, int buffer, int turn) const {
        const int b = work.b, r0 = i * L::rows, n = rows() - r0;
        const bool aligned = work.aligned;
        copy_rows<L::rows, D, L::threads>(base + L::q + buffer * L::rows * L::pitch, query(p.q, b, h, r0), p.q.row, n, p.dim, aligned);
        copy_rows<L::rows, D, L::threads>(base + L::dout + buffer * L::rows * L::pitch, query(p.dout, b, h, r0), p.dout.row, n, p.v_dim, aligned);
        const float *from = p.delta + (((int64_t)b * p.heads + h) * tiles + i) * L::rows * 2;
        if (thread < L::rows / 2) copy_async16_if(base + L::stat + turn * L::rows * 8 + thread * 16, from + thread * 4, true);
        copy_commit();
    }
    // Sets work.clear_k to 1 if K has non-finite elements, else to 0. All threads of the block call scan_keys.
    __device__ __forceinline__ void scan_keys() const {
        bool good = true;
        for (int j = thread; j < L::keys * D / 2; j += L::threads) {
            const uint32_t x = ((const uint32_t *)shared)[j];
            good = good && x == clear_nonfinite<T>(x);
        }
        good = __syncthreads_and(good);
        if (thread == 0) work.clear_k = !good; // read after the next barrier
    }

    // Adds dS K of a tile of rows to dq_sum. dq_sum is an array [B][H][ceil(N/64)*4][D/8] of
    // fragments with 16 rows and 8 columns. In a fragment, the four sums of a lane are adjacent:
    // two columns of row r, then two columns of row r+8.
    __device__ __forceinline__ void add_dq(int h, int i, int buffer) const {
        constexpr int pitch = L::pitch, pitch_p = L::pitch_p;
        const int tile = (work.b * p.heads + h) * tiles + i;
        if (thread == 0) work.added = tile;
        const int band = fresh(warp) % L::bands, column = fresh(warp) / L::bands;
        const uint32_t ds = at<pitch_p>(base + L::ds + buffer * L::keys * pitch_p + place<pitch_p>(lane, true), 0, 2 * L::X * band);
        const uint32_t k = at<pitch>(base + place<pitch>(lane, false), 0, 2 * column);
        float x[L::X][2 * L::Y][4] = {};
        auto multiply = [&](bool guard) {
#pragma unroll
            for (int j = 0; j < L::keys / 16; j++) {
                uint32_t a[L::X][4];
                for (int m = 0; m < L::X; m++) load_matrix_transposed(a[m], at<pitch_p>(ds, 16 * j, 2 * m));
                accumulate<T, D, L::warps / L::bands>(x, a, k, 16 * j * pitch, guard);
            }
        };
        // Loads the counter early, because usually the block's turn has already come. The load needs no acquire, because only
        // adds follow. Adds are issued after the load has returned, and performed in the L2 cache.
        int now = p.deterministic ? load_counter(p.turn + 1 + tile) : 0, before = 0;
        if (work.clear_k) multiply(true);
        else multiply(false);
        if (p.deterministic) before = work.k0 / L::keys - max(0, i * L::rows + lo()) / L::keys; // number of key tiles that add earlier
        while (now < before) now = load_counter(p.turn + 1 + tile);
        float *to = p.dq_sum + (int64_t)tile * L::rows * D + (band * L::X * (D / 8) + 2 * column) * 128 + fresh(lane) * 4;
        auto each_block = [&](auto put) {
            for (int m = 0; m < L::X; m++)
                for (int n = 0; n < 2 * L::Y; n++) put(to + (m * (D / 8) + 2 * L::warps / L::bands * (n / 2) + n % 2) * 128, x[m][n]);
        };
        if (p.deterministic && before == 0) each_block([](float *to, const float (&x)[4]) { *(float4 *)to = {x[0], x[1], x[2], x[3]}; });
        else each_block(add_global4);
    }
    // Like add_dq, for wide heads. A warp computes four groups of 16 columns at a time, for which registers suffice.
    __device__ __forceinline__ void add_wide_dq(int h, int i, int buffer) const {
        constexpr int pitch = L::pitch, pitch_p = L::pitch_p, X = L::X, step = L::warps / L::bands;
        const int tile = (work.b * p.heads + h) * tiles + i;
        if (thread == 0) work.added = tile;
        const int band = fresh(warp) % L::bands, column = fresh(warp) / L::bands, groups = max(0, (p.dim - 16 * column + 16 * step - 1) / (16 * step)); // of 16 columns
        const uint32_t ds = at<pitch_p>(base + L::ds + buffer * L::keys * pitch_p + place<pitch_p>(lane, true), 0, 2 * X * band);
        const uint32_t k = at<pitch>(base + place<pitch>(lane, false), 0, 2 * column);
        const bool guard = work.clear_k;
        int now = p.deterministic ? load_counter(p.turn + 1 + tile) : 0;
        const int before = p.deterministic ? work.k0 / L::keys - max(0, i * L::rows + lo()) / L::keys : 0; // number of key tiles that add earlier
        float *to = p.dq_sum + (int64_t)tile * L::rows * D + (band * X * (D / 8) + 2 * column) * 128 + fresh(lane) * 4;
#pragma unroll 1
        for (int done = 0; done < groups; done += 4, to += 4 * 2 * step * 128) {
            float x[X][8][4] = {};
#pragma unroll 1
            for (int j = 0; j < L::keys / 16; j++) {
                uint32_t a[X][4];
                for (int m = 0; m < X; m++) load_matrix_transposed(a[m], at<pitch_p>(ds, 16 * j, 2 * m));
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    uint32_t y[4];
                    if (done + n >= groups) break;
                    load_matrix_transposed(y, k + 16 * j * pitch + (done + n) * 32 * step);
                    if (guard)
                        for (int e = 0; e < 4; e++) y[e] = clear_nonfinite<T>(y[e]);
                    for (int m = 0; m < X; m++) mma<T>(x[m][2 * n], a[m], y[0], y[1]), mma<T>(x[m][2 * n + 1], a[m], y[2], y[3]);
                }
            }
            while (now < before) now = load_counter(p.turn + 1 + tile);
#pragma unroll
            for (int n = 0; n < 8; n++) {
                if (done + n / 2 >= groups) break;
                for (int m = 0; m < X; m++) {
                    float *at = to + (m * (D / 8) + 2 * step * (n / 2) + n % 2) * 128;
                    if (p.deterministic && before == 0) *(float4 *)at = {x[m][n][0], x[m][n][1], x[m][n][2], x[m][n][3]};
                    else add_global4(at, x[m][n]);
                }
            }
        }
    }
    // Ends the block's turn at a tile of dq_sum by raising the tile's counter. Before the call, all warps have issued their
    // adds and met at a barrier.
    __device__ __forceinline__ void end_turn() const {
        if (p.deterministic && thread == 0) add_counter_release(p.turn + 1 + work.added);
    }
};
