// Params is every kernel's argument block, passed by value; params.go mirrors it.
// Plan tells the host how to launch a kernel.
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
    float *delta;     // backward: rowsum(dO * O) - dLSE; each kernel documents its shape
    float *dq_sum;    // backward: dQ before rounding, in the kernel's own layout
    int *turn;        // counters
    float *part_o;    // decode: [splits, batch, heads, q_len, padded dim]
    float *part_lse;  // decode: [splits, batch, heads, q_len, 2], maximum and sum

    int batch, heads, kv_heads, q_len, kv_len, dim, v_dim;
    int lo, hi;        // row i sees keys max(0, i+lo) to min(kv_len-1, i+hi), inclusive; |lo|, |hi| <= 2^30
    float scale;       // of the scores
    float scale_log2;  // scale * log2(e)
    int splits;        // decode: parts of the keys; bwd_sm90: parts of a KV head's query heads
    int deterministic; // backward: every sum of dQ has a fixed order
    int8_t skew;       // bwd_sm90: key tile j begins at row tile j << (skew-1), or j >> -skew if negative; 0: at the last. fwd_sm90: warpgroups take turns
    int8_t halves;     // bwd_sm90: 1 if skew counts pairs of row tiles
    int16_t tile;      // bwd_sm90: first row tile of a partial call; if negative, minus the first key tile
};

// The host reads a Plan from the global variable <kernel>_plan.
struct Plan {
    int threads; // per block
    int shared;  // bytes of dynamic shared memory
    int rows;    // query rows per tile
    int keys;    // keys per tile
};

// Everything beyond dense attention in a band, for instances with features. features.go
// mirrors it field for field. Absent features are 0 or null.
struct Features {
    View bias, dbias, mask; // [batch, heads, rows, keys]; broadcast dimensions have stride 0. mask is bytes
    View slopes;            // [batch, heads] float32
    View sink, dsink;       // [heads] float32

    // Sequence lengths [batch] of padded tensors, or starts [batch + 1] of packed ones.
    // The page table: sequence b has pages[b * page_width], ... of a pool
    // [pages, heads, page, row elements].
    const int *q_lens, *q_starts, *kv_lens, *kv_starts, *pages;
    int64_t left, right;  // keys visible on each side of a row's diagonal; -1: all
    int64_t shift;        // offset of the diagonal
    float *carried_lse;   // workspace: LSE of earlier keys, [batch, heads, q_len]
    const float *delta;   // workspace: rowsum(dO * O) - dLSE, [batch, heads, delta_rows], as summed for row tiles

    uint32_t seed[2], drop_below; // drops a weight if its 16 random bits are below drop_below >> 16; the lower half is 0
    float keep;                   // factor of the kept weights; 1 without dropout
    float cap_in, cap_out, cap;   // scale / softcap, softcap * log2(e), softcap; 0 without
    int top_left;                 // 1: the diagonal begins at key 0; 0: it ends at the last key
    int page, page_width;         // keys per page, pages per sequence; 0 without pages
    uint32_t page_factor;         // j / page is j * page_factor >> page_shift
    int page_shift;
    int page_box;                 // fwd_sm90: keys per copy; divides the page and the tile
    int bias_wide, dbias_wide;    // 1: float32; 0: the problem's type
    int bias_pairs, mask_pairs;   // keys 2j and 2j+1 of a row are aligned as a pair
    int kv_type;                  // type of K and V if Q is float32: 0 float32, 1 float16, 2 bfloat16
    int carry;
    int delta_rows, delta_step;   // delta: rows per head, floats between rows
    int dbias_shape[3];           // batch, heads, rows
    int dbias_apart;              // dbias is not reduced and starts as 0: bwd_sm90 writes the tiles that it visits
    uint32_t first_batch, first_head, first_row, first_key; // origin of a partial call, for the dropout counters; first_key is a multiple of 8
    int key_slots, row_slots;     // bwd_sm90, fwd_sm90: tile slots of packed sequences, one tile per slot and head; or 0
};

// The arguments of instances with features.
struct alignas(64) FeatureParams {
    uint8_t maps[4][128]; // tensor maps, for kernels that use them
    Params p;
    int rows[8]; // fwd_sm90 only
    Features f;
};
