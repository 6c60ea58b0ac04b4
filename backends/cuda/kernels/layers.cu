// Operations of layers between matrix products, on rows of float32.
//
//	layers_norm      y = (s - mean) / sqrt(variance + eps) * weight + shift, s = x + bias; without
//	                 mean and with the mean square as variance if kind is 1
//	layers_activate  y = act(x + bias); if gated, times (x + bias) of the next `features` columns
//	layers_rotate    rotates features j and j + features of each head of x, in place
//
// y may be x. A group is a head of a row: features of group g begin at column g * x.head. Launch:
// 256 threads a block; layers_norm has a warp a row, the other kernels have a thread an element.
#include "params.cuh"

struct Layer {
    View x, y;            // head is the distance of groups, row the distance of rows
    const float *bias;    // [features], twice as long if gated; null for 0
    const float *weight;  // layers_norm: [features]. layers_rotate: cosines, then sines [positions, 2 features]
    const float *shift;   // layers_norm: [features], null for 0
    const int *position;  // layers_rotate: the position of each row
    int64_t count;        // layers_norm: groups of all rows; else elements of all rows' groups
    int groups, features; // layers_rotate: features is half of the rotated features
    int kind;             // layers_norm: 1 for RMSNorm. layers_activate: 0 none, 1 ReLU, 2 GELU, 3 GELU by tanh, 4 SiLU
    int gated;
    float eps;
};

constexpr int layer_threads = 256;

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
    for (int i = 16; i > 0; i /= 2) x += __shfl_xor_sync(0xffffffff, x, i);
    return x;
}

__device__ __forceinline__ int64_t begin(const View &v, int64_t row, int group) { return row * v.row + group * v.head; }

extern "C" __global__ void __launch_bounds__(layer_threads) layers_norm(const __grid_constant__ Layer l) {
    const int64_t i = (int64_t)blockIdx.x * (layer_threads / 32) + threadIdx.x / 32;
    const int lane = threadIdx.x % 32;
    if (i >= l.count) return;
    const int64_t row = i / l.groups;
    const int group = (int)(i % l.groups);
    const float *x = (const float *)l.x.data + begin(l.x, row, group);
    float *y = (float *)l.y.data + begin(l.y, row, group);
    float mean = 0, squares = 0;
    if (l.kind == 0) {
        for (int j = lane; j < l.features; j += 32) mean += x[j] + (l.bias ? l.bias[j] : 0);
        mean = sum_of_warp(mean) / l.features;
    }
    for (int j = lane; j < l.features; j += 32) {
        const float d = x[j] + (l.bias ? l.bias[j] : 0) - mean;
        squares += d * d;
    }
    const float scale = 1 / sqrtf(sum_of_warp(squares) / l.features + l.eps);
    for (int j = lane; j < l.features; j += 32) {
        const float d = x[j] + (l.bias ? l.bias[j] : 0) - mean;
        y[j] = d * scale * l.weight[j] + (l.shift ? l.shift[j] : 0);
    }
}
extern "C" __device__ Plan layers_norm_plan = {layer_threads, 0, 0, 0};

__device__ __forceinline__ float activated(float x, int kind) {
    switch (kind) {
    case 1: return fmaxf(x, 0);
    case 2: return x * 0.5f * erfcf(-0.70710678118654752f * x);
    case 3: return x / (1 + expf(-1.5957691216057308f * (x + 0.044715f * x * x * x)));
    case 4: return x / (1 + expf(-x));
    }
    return x;
}

extern "C" __global__ void __launch_bounds__(layer_threads) layers_activate(const __grid_constant__ Layer l) {
    const int64_t i = (int64_t)blockIdx.x * layer_threads + threadIdx.x;
    if (i >= l.count) return;
    const int64_t row = i / l.features;
    const int j = (int)(i % l.features);
    const float *x = (const float *)l.x.data + begin(l.x, row, 0);
    float v = activated(x[j] + (l.bias ? l.bias[j] : 0), l.kind);
    if (l.gated) v *= x[l.features + j] + (l.bias ? l.bias[l.features + j] : 0);
    ((float *)l.y.data)[begin(l.y, row, 0) + j] = v;
}
extern "C" __device__ Plan layers_activate_plan = {layer_threads, 0, 0, 0};

extern "C" __global__ void __launch_bounds__(layer_threads) layers_rotate(const __grid_constant__ Layer l) {
    const int64_t i = (int64_t)blockIdx.x * layer_threads + threadIdx.x;
    if (i >= l.count) return;
    const int j = (int)(i % l.features), group = (int)(i / l.features % l.groups);
    const int64_t row = i / l.features / l.groups, at = (int64_t)l.position[row] * 2 * l.features + j;
    float *x = (float *)l.x.data + begin(l.x, row, group) + j;
    const float u = x[0], v = x[l.features], c = l.weight[at], s = l.weight[at + l.features];
    x[0] = u * c - v * s, x[l.features] = v * c + u * s;
}
extern "C" __device__ Plan layers_rotate_plan = {layer_threads, 0, 0, 0};
