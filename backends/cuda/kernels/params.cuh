// Params is the argument block, passed by value, of kernels without features (see Features).
// A Go struct in params.go has the same layout. Plan tells the host how to launch a kernel.
#pragma once
#include <stdint.h>

// A View is a strided tensor [batch, heads, rows, row elements]. batch, head and row are
// strides in elements; the elements of a row are contiguous. Rows need not be aligned.
struct View {
    void *data;
    int64_t batch, head, row;
};

struct Params {
    View q, k, v, o, lse; // lse is a float32 natural logarithm; forward kernels accept lse.data = null
    View dout, dlse;      // dlse is float32; dlse.data may be null. Forward: dlse is the row maximum [batch, heads, rows] in natural units, or null
    View dq, dk, dv;

    // Workspace, each row-major.
    float *delta;     // backward: rowsum(dO * O) - dLSE; each kernel documents its shape
    float *dq_sum;    // backward: dQ before rounding, in the kernel's own layout
    int *turn;        // counters that order or distribute the blocks' work; each kernel documents them
    float *part_o;    // decode: [splits, batch, heads, q_len, padded dim], each split's O before the division
    float *part_lse;  // decode: [splits, batch, heads, q_len, 2], each split's row maximum and sum of weights

    int batch, heads, kv_heads, q_len, kv_len, dim, v_dim;
    int lo, hi;        // row i sees keys max(0, i+lo) to min(kv_len-1, i+hi), inclusive; |lo|, |hi| <= 2^30
    float scale;       // multiplies Q K^T
    float scale_log2;  // scale * log2(e)
    int splits;        // number of parts into which decode splits the keys, or into which bwd_sm90 splits the query heads of a KV head
    int deterministic; // backward: 1 if every sum of dQ has a fixed order
    int8_t skew;       // bwd_sm90: the thread block of key tile j begins its loop at row tile j << (skew-1), or at j >> -skew if skew is negative; 0: at the last row tile; from 64: there, and 2^(skew-64) key tiles share a sum of dQ. fwd_sm90: 1 if warpgroups take turns at the tensor cores
    int8_t halves;     // bwd_sm90: 1 if skew counts pairs of row tiles instead of row tiles
    int16_t tile;      // bwd_sm90: the first row tile, if the call computes only a part of the rows; the first key tile times -1, if the call computes only a part of the keys; else 0
};

// The host reads a Plan from the global variable <kernel>_plan.
struct Plan {
    int threads; // per block
    int shared;  // bytes of dynamic shared memory
    int rows;    // query rows per tile
    int keys;    // keys per tile
};

// The arguments of features. Params suffices for dense attention in which row i sees keys i+lo to
// i+hi. features.go mirrors the struct field for field. Fields of absent features are 0 or null.
struct Features {
    View bias, dbias, mask; // [batch, heads, rows, keys]; broadcast dimensions have stride 0. mask has 1-byte elements
    View slopes;            // [batch, heads] float32
    View sink, dsink;       // [heads] float32

    // q_lens and kv_lens are sequence lengths [batch] of padded tensors; q_starts and kv_starts
    // are starts [batch + 1] of packed sequences. pages is the page table: page i of sequence b
    // is pages[b * page_width + i] of a pool [pages, heads, page, row elements].
    const int *q_lens, *q_starts, *kv_lens, *kv_starts, *pages;
    int64_t left, right;  // numbers of visible keys before and after a row's diagonal (the key at the row's own position); -1: all
    int64_t shift;        // number of keys by which the diagonal is moved right
    float *carried_lse;   // workspace: LSE of earlier keys, [batch, heads, q_len]
    const float *delta;   // workspace: rowsum(dO * O) - dLSE, [batch, heads, delta_rows]; bwd_f32 has two arrays, and this is the array that blocks of query rows read

    uint32_t seed[2], drop_below; // a weight is dropped if its 16 random bits are below drop_below >> 16; the lower half of drop_below is 0
    float keep;                   // factor that multiplies the kept weights; 1 without dropout
    float cap_in, cap_out, cap;   // scale / softcap, softcap * log2(e), softcap; all 0 without a softcap
    int top_left;                 // 1: the diagonal of row 0 is key `shift`; 0: the diagonal of the last row is the last key plus `shift`
    int page, page_width;         // keys per page, page table entries per sequence; 0 without pages
    uint32_t page_factor;         // j / page is j * page_factor >> page_shift
    int page_shift;
    int page_box;                 // fwd_sm90: keys per bulk copy, a divisor of the keys per page and of the keys per tile
    int bias_wide, dbias_wide;    // 1: bias or dbias is float32; 0: bias or dbias has the problem's type
    int bias_pairs, mask_pairs;   // 1: the elements of keys 2j and 2j+1 can be loaded together
    int kv_type;                  // type of K and V if Q is float32: 0 float32, 1 float16, 2 bfloat16
    int carry;                    // 1: O holds the output of earlier keys, and carried_lse their LSE; the kernel merges this O and LSE into its results
    int delta_rows, delta_step;   // number of rows of delta per head; number of floats from one row of delta to the next
    int dbias_shape[3];           // sizes of DBias's dimensions batch, heads and rows
    int dbias_apart;              // 1: no element of DBias is a sum over batches, heads or rows. bwd_sm90 then writes DBias in the tiles that it visits; the host has zeroed the other tiles
    uint32_t first_batch, first_head, first_row, first_key; // position of the call's first element in the larger problem of which the call is a part, else 0; for the dropout counters. first_key is a multiple of 8
    int key_slots, row_slots;     // fwd_sm90 and bwd_sm90: upper bounds of the numbers of key tiles and row tiles of all packed sequences; 0: every sequence gets the number of tiles of the longest
    int range_count;              // ranges of each row, 1 or 2; 0: none
    View ranges;                  // [batch, heads, rows, 2 range_count] int32: each range's first key and the key after its last. On the device the values are not checked
    int *row_bounds;              // workspace of fwd_sm90 and bwd_sm90 with ranges: see ranges.cuh; else null
};

// The argument block of kernels with features.
struct alignas(64) FeatureParams {
    uint8_t maps[4][128]; // tensor maps, for fwd_sm90 and bwd_sm90
    Params p;
    int rows[8]; // fwd_sm90: see rowTiles in tensormap.go
    Features f;
};
