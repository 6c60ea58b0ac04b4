// The argument block of every kernel, passed by value, and the plan by which
// each kernel tells the host how to launch it. params.go mirrors Params field
// for field.
#pragma once
#include <stdint.h>

// A View is a strided tensor [batch, heads, rows, row elements]; the elements of
// a row are contiguous. Strides count elements. Rows need not be aligned.
struct View {
    void *data;
    int64_t batch, head, row;
};

struct Params {
    View q, k, v, o, lse; // lse is float32, natural logarithm; lse.data may be null in forward
    View dout, dlse;      // dlse is float32; dlse.data may be null
    View dq, dk, dv;

    // Workspace, each row-major.
    float *delta;     // backward: rowsum(dO * O) - dLSE; each kernel says in which shape
    float *dq_sum;    // backward: dQ before it is rounded; its layout is the kernel's
    int *turn;        // counters
    float *part_o;    // decode: [splits, batch, heads, q_len, padded dim]
    float *part_lse;  // decode: [splits, batch, heads, q_len, 2], maximum and sum

    int batch, heads, kv_heads, q_len, kv_len, dim, v_dim;
    int lo, hi;        // row i sees the keys from max(0, i+lo) to min(kv_len-1, i+hi), both included; |lo|, |hi| <= 2^30
    float scale;       // of the scores
    float scale_log2;  // scale * log2(e)
    int splits;        // decode: parts that the keys are cut into
    int deterministic; // backward: dQ is summed in one order
};

// A Plan is read by the host as the global variable <kernel>_plan.
struct Plan {
    int threads; // of a block
    int shared;  // bytes of dynamic shared memory
    int rows;    // query rows of a block's tile
    int keys;    // keys of a block's tile
};
