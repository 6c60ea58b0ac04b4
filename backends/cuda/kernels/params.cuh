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
    int8_t skew;       // bwd_sm90: how far apart the blocks of a head begin, 0 if all begin at the last rows;
    int8_t halves;     // whether two blocks share its tiles; and
    int16_t tile;      // which tile of a whole's rows a part begins with, or, below 0, of its keys
};

// A Plan is read by the host as the global variable <kernel>_plan.
struct Plan {
    int threads; // of a block
    int shared;  // bytes of dynamic shared memory
    int rows;    // query rows of a block's tile
    int keys;    // keys of a block's tile
};

// What a call has beyond dense attention in a band, which the instances of a kernel for
// features take: features.go mirrors it field for field. Nothing is 0 or null.
struct Features {
    View bias, dbias, mask; // [batch, heads, rows, keys]; what repeats has stride 0. mask is bytes
    View slopes;            // [batch, heads] float32
    View sink, dsink;       // [heads] float32

    // Where sequences lie: in padded tensors the lengths, in packed ones the starts
    // [batch + 1] of those of a side. The keys of sequence b are those of pages
    // pages[b * page_width], ... of a pool [pages, heads, page, row elements].
    const int *q_lens, *q_starts, *kv_lens, *kv_starts, *pages;
    int64_t left, right;  // keys that a row sees on a side of its diagonal; -1 for all
    int64_t shift;        // of the diagonal
    float *carried_lse;   // workspace: LSE of earlier keys, [batch, heads, q_len]
    const float *delta;   // workspace: rowsum(dO * O) - dLSE, [batch, heads, delta_rows], as tiles of query rows sum it

    uint32_t seed[2], drop_below; // a number of 16 bits drops its weight where it is below the upper half; the lower half is 0
    float keep;                   // what the other weights are multiplied by; 1 without dropout
    float cap_in, cap_out, cap;   // scale / softcap, softcap * log2(e), softcap; 0 without
    int top_left;                 // the diagonal begins at key 0
    int page, page_width;         // keys of a page, pages of a sequence; 0 without pages
    uint32_t page_factor;         // j / page is j * page_factor >> page_shift
    int page_shift;
    int page_box;                 // fwd_sm90: keys that one copy moves, which divide the page and the tile
    int bias_wide, dbias_wide;    // float32, not of the problem's type
    int bias_pairs, mask_pairs;   // two keys of a row, from an even one on, lie in aligned memory
    int kv_type;                  // of K and V where that of Q is float32: 0 the same, 1 float16, 2 bfloat16
    int carry;
    int delta_rows, delta_step;   // of delta: rows of a head, floats from one to the next
    int dbias_shape[3];           // batch, heads, rows
    int dbias_apart;              // each pair has its own, 0 so far: bwd_sm90 writes those of the tiles that it walks
    uint32_t first_batch, first_head, first_row, first_key; // of the call in a whole, as random words count; a multiple of 8 keys
    int key_slots, row_slots;     // bwd_sm90, fwd_sm90: slots of packed sequences, of which each has a tile for each head; or 0
};

// The argument block of the instances for features.
struct alignas(64) FeatureParams {
    uint8_t maps[4][128]; // of kernels with tensor maps
    Params p;
    int rows[8]; // of fwd_sm90
    Features f;
};
