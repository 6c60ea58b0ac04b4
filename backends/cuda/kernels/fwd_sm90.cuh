// A block of fwd_sm90: its kinds, shapes, shared memory, and work.
#pragma once
#include "ranges.cuh"

// The features of an instance:
//
//	plain, split                           none; split processes p.splits parts of the keys
//	layout                                 padded, packed and paged sequences, sinks and carry
//	shaped                                 layout, softcap and ALiBi
//	softcap, alibi, bias, mask, dropout    layout and the feature of this name
//	keys                                   layout and a mask that is equal for all rows
//	ranges                                 layout and ranges of keys
//	any                                    all features
enum class Kind { plain, split, layout, shaped, softcap, alibi, bias, mask, keys, ranges, dropout, any };

// The time at which a warpgroup lets the next warpgroup issue products. Without turns, all warpgroups would wait for
// products at the same time. begin: after the first scores of a tile of rows. issue: after the products of a tile of keys
// are issued. values: after the products of a tile of keys are complete.
enum class Turn { none, begin, issue, values };
constexpr Turn turn_of(Kind kind, int dim, int v_dim) {
    const bool wide = dim == 128;
    if (kind == Kind::plain) return wide ? Turn::begin : dim == 96 || v_dim == 192 ? Turn::none : Turn::issue;
    if (dim > 128) return Turn::none;
    switch (kind) {
    case Kind::layout:
    case Kind::ranges: return wide ? Turn::begin : Turn::values;
    case Kind::alibi: return Turn::issue;
    case Kind::softcap: return wide ? Turn::none : Turn::begin;
    case Kind::bias: return Turn::values;
    case Kind::mask: return wide ? Turn::issue : Turn::none;
    case Kind::dropout: return wide ? Turn::issue : Turn::none;
    default: return Turn::none;
    }
}

struct alignas(16) Place { // the sequence of a tile of rows
    int lo, hi, keys, rows, q_batch, q0, kv_batch, key0, diagonal, row_end;
    float slope, sink; // ALiBi slope and sink of the head
};

// A tile of query rows, and the tiles of keys that at least one of these rows sees. A tile of keys is an edge if some row may
// not see all of its keys. tile(n) is the number of the nth tile of keys in this order:
//
//	edges at the highest keys, in descending order
//	edges at the lowest keys, in ascending order
//	tiles of which every row sees all keys, in descending order
struct alignas(16) Work {
    int row0, end, count, edges;           // rows row0 to end-1, or row0 = -1 if no tile is left; numbers of tiles of keys and of edges
    int first, right;                      // tile(0); number of edges at the highest keys
    int from, full_to, open_from, open_to; // lowest tile; highest tile of which every row sees all keys; tiles of V before open_from or after open_to are cut (see fwd_sm90.cu)
    int head, kv_head, batch;
    int odd;  // 1: a cut tile of V has non-finite elements
    int part; // Kind::split: index of the part of the keys; Kind::keys: index of the mask's Known; Kind::ranges: see key_tile
    __device__ __forceinline__ int4 extent() const volatile { return *(const int4 *)this; } // row0, end, count, edges
    __device__ __forceinline__ int tile(int n) const volatile {
        return n < right ? full_to + right - n : n < edges ? from + n - right : full_to + edges - n;
    }
    __device__ __forceinline__ bool cut(int n) const volatile { return n < edges && (tile(n) < open_from || tile(n) > open_to); }
};
static_assert(sizeof(Work) == 64);

// Returns the number of the nth tile of keys. In instances of Kind::ranges, Work has no numbers for the tiles between two
// ranges: the tiles from w.open_from on have the numbers that follow these w.part tiles. Tile n, if it is no edge, has number
// w.open_to - n. All edges are cut.
template <class S> __device__ __forceinline__ int key_tile(const volatile Work &w, int n) {
    if constexpr (S::ranges) {
        if (n >= w.edges) return w.open_to - n;
        const int tile = w.tile(n);
        return tile < w.open_from ? tile : tile + w.part;
    } else {
        return w.tile(n);
    }
}
template <class S> __device__ __forceinline__ bool cut_tile(const volatile Work &w, int n) {
    if constexpr (S::ranges) return n < w.edges;
    else return w.cut(n);
}

__device__ __forceinline__ bool banded(const Params &p) { return p.hi < p.kv_len - 1 || p.q_len - 1 + p.lo > 0; }

// A mask that is equal for all rows. Bit i of seen[j] is 1 if some key of tile 32 j + i is visible. Bit i of whole[j] is 1
// if all keys of this tile are visible.
constexpr int kKnown = 64; // words: enough for listedKeys keys (instances.go) in tiles of 64 keys
struct Known { uint32_t seen[kKnown], whole[kKnown]; };
// Describes a stage of K and V in instances of Kind::keys. Bit 2 i + e of shown[t] is 1 if key 8 i + 2 t + e of the tile of
// K is visible (i < 16, t < 4, e < 2). tile is twice the number of the tile of K, plus 1 if some row does not see all keys of
// this tile. cut: some row does not see all keys of the tile of V.
struct alignas(16) Slot { uint32_t shown[4]; int tile, cut; };

// The order of packed sequences, most keys first: of[i] is the number of the ith sequence in this order. The slots for the
// tiles of rows of this sequence begin at slot first[i].
struct alignas(8) Order { int first[33], of[32]; };

struct MapParams {
    TensorMap q, k, v, o;
    Params p;
    int tall, low, low_rows; // tall: tiles per head with the Plan's number of rows; low: further tiles per head, with low_rows rows each, a multiple of 64
};

template <Kind kind_, class Type, int dim_, int v_dim_, int groups_, int keys_, int q_stages_, int stages_, bool keep_q_> struct Shape {
    using T = Type;
    static constexpr bool split = kind_ == Kind::split, features = kind_ >= Kind::layout, reads = kind_ == Kind::any, shapes = kind_ == Kind::shaped || reads;
    static constexpr bool caps = kind_ == Kind::softcap, tilts = kind_ == Kind::alibi, biases = kind_ == Kind::bias, masks = kind_ == Kind::mask, lists = kind_ == Kind::keys, ranges = kind_ == Kind::ranges, drops = kind_ == Kind::dropout; // one feature alone
    static constexpr bool finds = features && !lists; // a separate lane finds tiles
    static constexpr bool sorts = kind_ == Kind::layout; // sorts up to 32 packed sequences by length
    static constexpr int dim = dim_, v_dim = v_dim_, keys = keys_; // row length of Q and K; row length of V and O; keys per tile
    static constexpr int groups = groups_;     // computing warpgroups
    static constexpr int q_stages = q_stages_; // stages of Q
    static constexpr int stages = stages_;     // stages of K; V has the same number
    static constexpr bool keep_q = keep_q_;    // Q is kept in registers
    static constexpr int rows = 64 * groups, threads = 128 * (groups + 1);
    static constexpr int panels = (dim + 63) / 64, v_panels = (v_dim + 63) / 64, q_panel = rows * 128, panel = keys * 128; // numbers of panels of 64 columns; bytes per panel
    static constexpr int q_bytes = panels * q_panel, k_bytes = panels * panel, v_bytes = v_panels * panel;
    static constexpr int part_dim = v_dim > 128 ? 256 : v_dim > 64 ? 128 : 64; // row length of part_o, which decode_sm80_merge expects
    static constexpr int k_at = q_stages * q_bytes, v_at = k_at + stages * k_bytes; // offsets in shared memory
    static constexpr int work_at = v_at + stages * v_bytes, places_at = work_at + 64 * (q_stages + 1), slots_at = places_at + (features ? sizeof(Place) : 0) * (q_stages + 1);
    static constexpr Turn turn = turn_of(kind_, dim, v_dim);
    static constexpr int turns = turn == Turn::none ? 0 : turn == Turn::begin ? q_stages : stages;
    static constexpr int barriers = 2 * q_stages + 5 * stages + (finds ? 1 : 0) + turns * (groups - 1);
    static constexpr int known_at = slots_at + (lists ? stages * sizeof(Slot) : 0), barriers_at = known_at + (lists ? 2 * sizeof(Known) : sorts ? sizeof(Order) : 0);
    static constexpr int side_at = (barriers_at + 8 * barriers + 127) / 128 * 128, side_bytes = biases ? 32 * keys : masks ? 16 * keys : drops ? 2 * keys : 0; // per warp: a tile of a bias or mask, or key_words
    static constexpr int shared = 1024 + (side_bytes ? side_at + 4 * groups * side_bytes : barriers_at + 8 * barriers); // 1024 to align
    static constexpr int fetch_registers = reads ? 56 : groups == 2 ? 40 : 32;
    static constexpr int compute_registers = reads ? 224 : groups == 2 ? 232 : 160;
};

// The block's shared memory. A stage has up to three barriers:
//
//	full     completes when the contents are ready
//	raw      completes when a cut tile of V has arrived, before it is scanned
//	empty    completes when all readers have read the contents
template <class S> struct Shared {
    char *base;
    uint32_t at; // address of base, in a uniform register
    __device__ __forceinline__ volatile Work &work(int i) const { return ((Work *)(base + S::work_at))[i]; }
    __device__ __forceinline__ volatile Place &place(const volatile Work &w) const { return ((Place *)(base + S::places_at))[&w - &work(0)]; }
    __device__ __forceinline__ volatile Slot &slot(int stage) const { return ((Slot *)(base + S::slots_at))[stage]; }
    __device__ __forceinline__ volatile Known &known(int i) const { return ((Known *)(base + S::known_at))[i]; }
    __device__ __forceinline__ volatile Order &order() const { return *(Order *)(base + S::known_at); }
    __device__ __forceinline__ uint32_t q(int i) const { return at + i * S::q_bytes; } // [panels][rows][64]
    __device__ __forceinline__ uint32_t k(int i) const { return at + S::k_at + i * S::k_bytes; } // [panels][keys][64]
    __device__ __forceinline__ uint32_t v(int i) const { return at + S::v_at + i * S::v_bytes; } // [v_panels][keys][64]
    __device__ __forceinline__ uint32_t side(int warp) const { return at + S::side_at + warp * S::side_bytes; }
    __device__ __forceinline__ uint32_t q_full(int i) const { return at + S::barriers_at + 8 * i; }
    __device__ __forceinline__ uint32_t q_empty(int i) const { return q_full(S::q_stages + i); }
    __device__ __forceinline__ uint32_t k_full(int i) const { return q_full(2 * S::q_stages + i); }
    __device__ __forceinline__ uint32_t k_empty(int i) const { return k_full(S::stages + i); }
    __device__ __forceinline__ uint32_t v_full(int i) const { return k_full(2 * S::stages + i); }
    __device__ __forceinline__ uint32_t v_empty(int i) const { return k_full(3 * S::stages + i); }
    __device__ __forceinline__ uint32_t v_raw(int i) const { return k_full(4 * S::stages + i); }
    __device__ __forceinline__ uint32_t found() const { return v_raw(S::stages); } // completes when the next tile of rows is found
    __device__ __forceinline__ uint32_t turn(int i, int group) const { return v_raw(S::stages + S::finds + i * (S::groups - 1) + group); } // warpgroup group + 1 waits here for its turn
};
