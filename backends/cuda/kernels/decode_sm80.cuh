// Merging of softmax sums in decode_sm80: the sums of a block's warps, of a cluster's blocks, and of parts of the keys.
#pragma once
#include "score.cuh"

struct F32 { float x; };
constexpr float infinity = __builtin_huge_valf();
constexpr unsigned lanes = ~0u, merge_threads = 128;
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")

// Returns the factor that converts scores to log2 units. The factor includes p.scale, unless features have applied
// p.scale.
template <bool features> __device__ __forceinline__ float unit_of(const Params &p, const Features &f) {
    return features && changes(f) ? kLog2E : p.scale_log2;
}

// Sums holds a row's softmax sums over some keys: four columns of O before the division by l, the maximum m, and the sum
// of weights l. c converts m to log2 units.
struct Sums {
    const float c;
    float o[4] = {}, m = -infinity, l = 0;
    __device__ __forceinline__ Sums(float c) : c(c) {}

    // Merges `count` other Sums of the row, in order, `batch` at a time. o_stride is in floats, stride in float2.
    template <int batch> __device__ __forceinline__ void add(int count, const float *other_o, int64_t o_stride, const float2 *other, int64_t stride) {
        add_each<batch>(count, [&](int i) { return *(const float4 *)(other_o + i * o_stride); }, [&](int i) { return other[i * stride]; });
    }
    template <int batch, class O, class S> __device__ __forceinline__ void add_each(int count, O o_of, S sums_of) {
        for (int start = 0; start < count; start += batch) {
            float4 x[batch]; float2 y[batch];
            UNROLL for (int i = 0; i < batch; i++) {
                x[i] = start + i < count ? o_of(start + i) : float4{0, 0, 0, 0};
                y[i] = start + i < count ? sums_of(start + i) : float2{-infinity, 0};
            }
            float top = m;
            UNROLL for (int i = 0; i < batch; i++) top = fmaxf(top, y[i].x);
            const Beneath below(top, c);
            const float grow = below.rescale(m);
            o[0] *= grow, o[1] *= grow, o[2] *= grow, o[3] *= grow, l *= grow, m = top;
            UNROLL for (int i = 0; i < batch; i++) {
                const float w = below.rescale(y[i].x);
                o[0] += w * x[i].x, o[1] += w * x[i].y, o[2] += w * x[i].z, o[3] += w * x[i].w, l += w * y[i].y;
            }
        }
    }
    // Writes columns d to d+3 of O and, if d is 0, LSE.
    template <class T> __device__ __forceinline__ void write(const Params &p, int b, int h, int n, int d) const {
        const float scale = l == 0 ? 0 : 1 / l;
        const int64_t at = b * p.o.batch + h * p.o.head + n * p.o.row + d;
        UNROLL for (int e = 0; e < 4 && d + e < p.v_dim; e++) {
            if constexpr (sizeof(T) == 4) ((float *)p.o.data)[at + e] = o[e] * scale;
            else ((uint16_t *)p.o.data)[at + e] = (uint16_t)pack<T>(o[e] * scale, 0);
        }
        if (d == 0 && p.lse.data) ((float *)p.lse.data)[b * p.lse.batch + h * p.lse.head + n * p.lse.row] = fmaf(m, p.scale, logf(l));
    }

    // Like the function above, but with features. In padding rows, O is 0 and LSE is -inf.
    template <class T> __device__ __forceinline__ void write(const Params &p, const Features &f, const Sequence &e, int b, int h, int n, int d) const {
        const float natural = changes(f) ? 1 : p.scale; // converts m to natural units
        const bool real = n < e.rows;
        const float carried = f.carry && real ? f.carried_lse[((int64_t)b * p.heads + h) * p.q_len + n] : -infinity;
        const Ending y = real ? ending(f, m * natural, l, h, carried) : Ending{0, 0, -infinity};
        const int64_t at = e.q_batch * p.o.batch + h * p.o.head + (e.q0 + n) * p.o.row + d;
        UNROLL for (int i = 0; i < 4 && d + i < p.v_dim; i++) {
            float x = y.scale == 0 ? 0 : o[i] * y.scale;
            if constexpr (sizeof(T) == 4) {
                float *const to = (float *)p.o.data + at + i;
                *to = y.earlier != 0 ? fmaf(y.earlier, *to, x) : x;
            } else {
                uint16_t *const to = (uint16_t *)p.o.data + at + i;
                *to = (uint16_t)pack<T>(y.earlier != 0 ? fmaf(y.earlier, widen<T>(*to), x) : x, 0);
            }
        }
        if (d == 0 && p.lse.data) ((float *)p.lse.data)[e.q_batch * p.lse.batch + h * p.lse.head + (e.q0 + n) * p.lse.row] = y.lse;
    }
};

// Merges columns d to d+3 of query row (b, h, n) over all parts of the keys, and writes O and LSE.
template <class T, int D, bool features> __device__ __forceinline__ void merge(const Params &p, const Features &f, const Extent<features> &e, int b, int h, int n, int d) {
    if (features && n >= e.rows()) return;
    Sums s(unit_of<features>(p, f));
    const int64_t rows = (int64_t)p.batch * p.heads * p.q_len, row = ((int64_t)b * p.heads + h) * p.q_len + n;
    s.add<16>(p.splits, p.part_o + row * D + d, rows * D, (const float2 *)p.part_lse + row, rows);
    if constexpr (features) s.template write<T>(p, f, e.s, b, h, n, d);
    else s.template write<T>(p, b, h, n, d);
}

// cluster_meet waits for all blocks of the cluster and makes their earlier writes visible. in_block returns the address of
// the same place in another block's shared memory, for load_from.
constexpr int most_parts = 8; // blocks per cluster
#if __CUDA_ARCH__ >= 900
__device__ __forceinline__ void cluster_meet() { asm volatile("barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned;" ::: "memory"); }
__device__ __forceinline__ uint32_t in_block(uint32_t address, int block) {
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(address) : "r"(address), "r"(block));
    return address;
}
__device__ __forceinline__ float4 load_from(uint32_t address) {
    float4 x;
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(x.x), "=f"(x.y), "=f"(x.z), "=f"(x.w) : "r"(address) : "memory");
    return x;
}
#else
__device__ __forceinline__ void cluster_meet() {}
__device__ __forceinline__ uint32_t in_block(uint32_t address, int) { return address; }
__device__ __forceinline__ float4 load_from(uint32_t) { return {}; }
#endif
