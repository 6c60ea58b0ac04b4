// Params is the argument block of every kernel without features, passed by value. params.go
// mirrors it. Plan tells the host how to launch a kernel.
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
    int *turn;        // counters that order or distribute the blocks' work; each kernel documents them
    float *part_o;    // decode: [splits, batch, heads, q_len, padded dim]
    float *part_lse;  // decode: [splits, batch, heads, q_len, 2], row maximum and sum of weights

    int batch, heads, kv_heads, q_len, kv_len, dim, v_dim;
    int lo, hi;        // row i sees keys max(0, i+lo) to min(kv_len-1, i+hi), inclusive; |lo|, |hi| <= 2^30
    float scale;       // of the scores
    float scale_log2;  // scale * log2(e)
    int splits;        // decode: number of parts of the keys; bwd_sm90: number of parts of a KV head's query heads
    int deterministic; // backward: every sum of dQ has a fixed order
    int8_t skew;       // bwd_sm90: the block of key tile j begins at row tile j << (skew-1), or at j >> -skew if skew is negative; 0: at the last row tile. fwd_sm90: 1 if warpgroups take turns
    int8_t halves;     // bwd_sm90: 1 if skew counts pairs of row tiles
    int16_t tile;      // bwd_sm90, in a call for a part of the rows or keys: the part's first row tile or, if negative, minus its first key tile
};

// The host reads a Plan from the global variable <kernel>_plan.
struct Plan {
    int threads; // per block
    int shared;  // bytes of dynamic shared memory
    int rows;    // query rows per tile
    int keys;    // keys per tile
};

// The arguments of features beyond dense attention with a band mask. features.go mirrors the
// struct field for field. Fields of absent features are 0 or null.
struct Features {
    View bias, dbias, mask; // [batch, heads, rows, keys]; broadcast dimensions have stride 0. mask is bytes
    View slopes;            // [batch, heads] float32
    View sink, dsink;       // [heads] float32

    // q_lens and kv_lens are sequence lengths [batch] of padded tensors; q_starts and kv_starts
    // are starts [batch + 1] of packed sequences. pages is the page table: page i of sequence b
    // is pages[b * page_width + i] of a pool [pages, heads, page, row elements].
    const int *q_lens, *q_starts, *kv_lens, *kv_starts, *pages;
    int64_t left, right;  // number of visible keys left and right of a row's diagonal; -1: all
    int64_t shift;        // offset of the diagonal
    float *carried_lse;   // workspace: LSE of earlier keys, [batch, heads, q_len]
    const float *delta;   // workspace: rowsum(dO * O) - dLSE, [batch, heads, delta_rows]; of bwd_f32, the sums for row tiles

    uint32_t seed[2], drop_below; // drops a weight if its 16 random bits are below drop_below >> 16; the lower half is 0
    float keep;                   // factor that multiplies the kept weights; 1 without dropout
    float cap_in, cap_out, cap;   // scale / softcap, softcap * log2(e), softcap; all 0 without a softcap
    int top_left;                 // 1: row 0's diagonal is key 0; 0: the last row's diagonal is the last key; shift is added
    int page, page_width;         // keys per page, page table entries per sequence; 0 without pages
    uint32_t page_factor;         // j / page is j * page_factor >> page_shift
    int page_shift;
    int page_box;                 // fwd_sm90: keys per copy; divides the page and the tile
    int bias_wide, dbias_wide;    // 1: float32; 0: the problem's type
    int bias_pairs, mask_pairs;   // 1: the elements of keys 2j and 2j+1 can be loaded together
    int kv_type;                  // type of K and V if Q is float32: 0 float32, 1 float16, 2 bfloat16
    int carry;                    // 1: O holds the output of earlier keys, and carried_lse their LSE; merge them
    int delta_rows, delta_step;   // strides of delta in rows per head and in floats per row
    int dbias_shape[3];           // DBias's batch, heads and rows
    int dbias_apart;              // 1: no element of DBias is a sum over batches, heads or rows. bwd_sm90 writes it for the tiles it visits; the other elements are 0 already
    uint32_t first_batch, first_head, first_row, first_key; // position of a partial call in the whole problem, for the dropout counters; first_key is a multiple of 8
    int key_slots, row_slots;     // upper bounds of the key tiles and row tiles of packed sequences, for bwd_sm90 and fwd_sm90; 0: each sequence has the tiles of the longest
};

// The arguments of instances with features.
struct alignas(64) FeatureParams {
    uint8_t maps[4][128]; // tensor maps, for fwd_sm90 and bwd_sm90
    Params p;
    int rows[8]; // fwd_sm90: see rowTiles in tensormap.go
    Features f;
};
