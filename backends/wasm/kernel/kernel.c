// Attention and its gradients in a sandbox: the source of kernel.wasm. score.h adds features to the scalar
// loops of this file. tiles.h has the vector kernels; tilescore.h, fwdscore.h and bwdscore.h add features to
// the vector kernels. decode.h is for few query rows, calls.h for many short sequences.
//
// The module imports nothing, allocates nothing and keeps no pointers. The host writes a block of parameters
// and up to TILE rows of each tensor (the stage) into memory, then calls an export. Scratch memory, whose
// offset is in the block, keeps state between calls. All addresses are computed from numbers in the block and
// from arguments of the call, after a check. The host limits the keys of a call, so that every call is short.
//
// The order of calls of the exports keys, rows and grads (* zero or more, + one or more):
//
//	fwd: keys*, then for each tile of query rows: rows+ (FIRST ... LAST)
//	bwd: keys*, then for each tile of query rows: rows+ (FIRST ... LAST), then grads*
//	decode: for each TILE of keys: keys (for 16-bit K and V), then rows (FIRST ... LAST) for each part of the rows
//
// Alternatively, the host writes the data and a list of several calls, then calls the export `calls`.
//
// The host resolves sequences, pages and broadcast dimensions. In this module rows and keys are numbered from
// 0 in one sequence. Bias and mask are tiles of the (row, key) pairs of a call.
//
// Each pass has two versions. _scalar is the plain loop and defines the computation; _simd128 does the same
// computation in tiles. The functions _feature_rows support features. Letters follow the papers: Q K V O,
// scores S, weights P, running maximum m and sum l. D8 and DV8 are D and DV rounded up to multiples of 8.
// Comments at pointers and offsets give shapes. The file also compiles natively; see native.c.

typedef unsigned int u32; typedef unsigned long long u64; typedef long long i64;
typedef float v4 __attribute__((vector_size(16))); typedef int i4 __attribute__((vector_size(16)));
typedef u32 u4 __attribute__((vector_size(16))); typedef unsigned char b4 __attribute__((vector_size(4))); typedef signed char s4 __attribute__((vector_size(4)));
typedef unsigned short h8 __attribute__((vector_size(16)));
typedef float v4_any __attribute__((vector_size(16), aligned(4)));

#define INLINE static inline __attribute__((always_inline))
#define APART static __attribute__((noinline))
#define UNROLLED _Pragma("GCC unroll 16")
#define UNROLLED4 _Pragma("GCC unroll 4")  // for any number of steps; sums keep their order

#ifdef __wasm__
#include <wasm_simd128.h>
extern char __heap_base;
#define LOWEST ((u64)(unsigned long)&__heap_base)  // the stack is below this offset
#define MEMORY ((u64)__builtin_wasm_memory_size(0) << 16)
#define AT(offset) ((void *)(unsigned long)(offset))
#define REGISTER "+r"
#define EXPORT(name) __attribute__((export_name(name), noinline))  // calls.h calls the exports, too
INLINE v4 min4(v4 a, v4 b) { return (v4)wasm_f32x4_pmin((v128_t)a, (v128_t)b); }  // b < a ? b : a
INLINE v4 max4(v4 a, v4 b) { return (v4)wasm_f32x4_pmax((v128_t)a, (v128_t)b); }  // a < b ? b : a
// dot16 adds two products of signed 16-bit halves in each lane. narrow returns a, b, c, d as saturated bytes.
INLINE u4 dot16(u4 a, u4 b) { return (u4)wasm_i32x4_dot_i16x8((v128_t)a, (v128_t)b); }
INLINE u4 narrow(i4 a, i4 b, i4 c, i4 d) {
  return (u4)wasm_i8x16_narrow_i16x8(wasm_i16x8_narrow_i32x4((v128_t)a, (v128_t)b), wasm_i16x8_narrow_i32x4((v128_t)c, (v128_t)d));
}
#else
#include "../peers/native.h"
#endif

// ---- The block ----

enum { MAGIC = 0x4b484c46, VERSION = 3, TILE = 128, STRIP = 64, FOLD = 256, MAX_DIM = 1 << 20, MAX_ROW = 1 << 30 };
enum { FIRST = 1, LAST = 2, SCALED = 4, MORE = 8 };  // flags of rows: begin the tile; write the tile's results; multiply dQ by the scale; start with the stage's dQ
enum { SOFTCAP = 1, ALIBI = 2, BIAS = 4, MASK = 8, SINK = 16, DROPOUT = 32, CARRY = 64, DBIAS = 128 };  // features
enum { PLAIN = 0, FORWARD_TAKES = 127, BACKWARD_TAKES = SOFTCAP | ALIBI | BIAS | MASK | DROPOUT | DBIAS };
enum { is_forward, is_backward, is_few = is_forward };
enum { OK, BAD_BLOCK, BAD_VERSION, BAD_SHAPE, BAD_TENSOR, BAD_SCRATCH, BAD_RANGE, BAD_FEATURE };

typedef struct {
  u32 magic, version;
  u32 dim, vdim;          // D, DV
  u32 key0, keys;         // the current keys are [key0, key0+keys)
  int first, last;        // row i sees key j when i+first <= j <= i+last
  float scale;            // softmax scale, positive
  u32 q, k, v, o, lse;    // the stage: offsets of [TILE][D], [TILE][D], [TILE][DV], [TILE][DV], [TILE]
  u32 dout, dlse, dq;     // [TILE][DV], [TILE], [TILE][D]; backward only
  u32 scratch, scratch_bytes;
  u32 features;           // each feature enables its words below
  i64 diagonal;           // ALiBi subtracts slope * |j - i - diagonal| from a score
  float softcap;          // c: a scaled score s becomes c * tanh(s / c); positive
  float slope, sink;      // ALiBi slope and sink logit of the query head
  u32 threshold;          // dropout drops a weight if its 16 random bits are below threshold >> 16; the lower 16 bits are 0
  float keep;             // dropout multiplies the kept weights by keep, at least 1
  u32 seed[2], head, seq; // seed is the key of Philox; head, seq, the row and the keys form its counter, see kept
  u32 bias, mask, dbias;  // the stage: [TILE][TILE], for the rows and keys of a call; floats, bytes (0 hides) and floats
  u32 repeats;            // bits BIAS and MASK: all rows of a call use the first row of the stage's bias or mask
  u32 kv;                 // decode only: the type at raw_k and raw_v, 1 float16, 2 bfloat16; 0: K and V have 32 bits
  u32 raw_k, raw_v;       // the stage: [TILE][D], [TILE][DV], of 16-bit numbers
  u32 row0, eight0;       // added to the row's number, and to the number of the group of eight keys, in the counter of Philox
  u32 reserved[8];
} block;
_Static_assert(sizeof(block) == 48 * 4, "the host writes 48 words");

static int inside(u32 offset, u64 bytes) { return offset % 16 == 0 && offset >= LOWEST && offset + bytes <= MEMORY; }

#define MAX_FLOAT 3.40282347e38f
#define MAX_DIAGONAL (1ll << 62)
static int check_features(const block *p, u32 takes);  // defined at the end
// check returns OK or the error code of the block. It runs before any other access to the block.
static int check(u32 at, int backward, u32 takes) {
  const block *p = AT(at);
  if (!inside(at, sizeof *p)) return BAD_BLOCK;
  if (p->magic != MAGIC || p->version != VERSION) return BAD_VERSION;
  if (!p->dim || !p->vdim || p->dim > MAX_DIM || p->vdim > MAX_DIM) return BAD_SHAPE;
  if ((u64)p->key0 + p->keys > MAX_ROW || !(p->scale > 0 && p->scale <= MAX_FLOAT)) return BAD_SHAPE;
  u64 row = TILE * 4, d = row * p->dim, dv = row * p->vdim;
  if (!inside(p->q, d) || !inside(p->k, d) || !inside(p->v, dv) || !inside(p->o, dv) || !inside(p->lse, row)) return BAD_TENSOR;
  if (backward && (!inside(p->dout, dv) || !inside(p->dlse, row) || !inside(p->dq, d))) return BAD_TENSOR;
  return p->features ? check_features(p, takes) : OK;
}

// ---- Helpers ----

// PIN(x) hides the value of x from the optimizer, and HIDE(a, b) the values of two pointers. The two macros
// keep the order of the code, see multiply.
#define PIN(x) __asm__ volatile("" : REGISTER(x))
#define HIDE(a, b) __asm__("" : "+r"(a), "+r"(b))

INLINE v4 load(const float *p) { return *(const v4 *)p; }
INLINE void store(float *p, v4 x) { *(v4 *)p = x; }
INLINE v4 splat(float x) { return (v4){x, x, x, x}; }
// madd returns c + a b. kernel.wasm rounds twice; in relaxed.wasm, the engine may round only once.
#ifdef RELAXED
#define madd(a, b, c) __builtin_wasm_fma_f32x4(a, b, c)
#else
INLINE v4 madd(v4 a, v4 b, v4 c) { return c + a * b; }
#endif
INLINE u64 round_up(u64 n, u64 to) { return (n + to - 1) / to * to; }
// lane returns element e of x. PIN keeps the compiler from turning uses of the element into slow byte shuffles.
INLINE float lane(v4 x, int e) {
  float one = x[e];
  PIN(one);
  return one;
}
// spread stores each element of x four times: element e fills the four floats at p + e * step.
INLINE void spread(float *p, int step, v4 x) {
  UNROLLED for (int e = 3; e >= 0; e--) store(p + e * step, splat(lane(x, e)));
}
static void zero(float *p, u64 n) { __builtin_memset(p, 0, n * 4); }
static void copy(float *to, const float *from, u64 n) { __builtin_memcpy(to, from, n * 4); }
// line returns a x + b. Without PIN, the compiler would copy x, because it loads constants at each use.
INLINE v4 line(v4 a, v4 x, float b) {
  PIN(a);
  return madd(a, x, splat(b));
}

// exp2 returns 2^x for x <= 127 with an error of up to three ulps. The result is exactly 1 at 0, 0 below
// -126.5, and NaN for NaN. With x = n + f, where n is an integer and |f| <= 1/2, the result is 2^n times a
// minimax polynomial for 2^f. The last place of unit has the value 1, so that adding unit rounds x to n. The
// sum has n+127, the biased exponent of 2^n, in its lowest bits. A product with 2^23 moves these bits fastest.
INLINE v4 exp2(v4 x) {
  const v4 unit = splat(12582912 + 127);  // 1.5 * 2^23, plus the exponent bias
  i4 up = (i4)splat(1.17549435e-38f);     // 2^23 as an integer
  PIN(up);
  x = max4(x, splat(-127));
  v4 t = x + unit, f = x - (t - unit), f2 = f * f;
  v4 p = line(splat(1.32647273e-3f), f, 9.67151299e-3f) * f2 + line(splat(5.55073358e-2f), f, 2.40222424e-1f);
  return (p * f2 + line(splat(6.93147004e-1f), f, 1)) * (v4)((i4)t * up);
}
static float exp2_1(float x) { return exp2(splat(x))[0]; }

#define LOG2E 1.44269504f
#define NONE (-__builtin_inff())  // the score of a hidden key, and the LSE of a row without keys
// per2 returns scale*log2(e), limited to a finite number. 2^(x*per2) is then e^(x*scale).
static float per2(float scale) { return scale < 2e38f ? scale * LOG2E : 3.4e38f; }
// ln returns the natural logarithm of a positive float. Other x, such as NaN, are returned unchanged.
static double ln(float x) {
  if (!(x > 0)) return x;
  union { float f; u32 bits; } u = {x};
  int e = (int)(u.bits >> 23) - 127;
  u.bits = (u.bits & 0x7fffff) | 127 << 23;
  if (u.f > 1.41421356f) u.f *= 0.5f, e++;
  double z = (u.f - 1.0) / (u.f + 1.0), z2 = z * z, sum = 0;
  for (int k = 17; k > 0; k -= 2) sum = sum * z2 + 1.0 / k;
  return e * 0.6931471805599453 + 2 * z * sum;
}

// ---- Scratch ----
//
// Each area has a name, a number of floats and a shape. [n]x4 means that each number is stored four times.
// The scalar loops use other shapes: rows of D in k, of DV in v, and of D8 in dq. blocks is keys/TILE,
// rounded up. A long float32 sum loses precision. So o, l and grads have sums of at most FOLD terms, which are
// then added to totals. For dQ, a sum has the terms of TILE keys, so that the bits of dQ do not depend on the
// number of keys per call.

#define FORWARD(AREA)                                                                      \
  AREA(k, blocks * TILE * d8)          /* [blocks][TILE/8][D8][8] */                       \
  AREA(v, blocks * TILE * dv8)         /* [blocks][DV8/8][TILE][8] */                      \
  AREA(finite, blocks)                 /* not 0 if V of the block is finite */             \
  AREA(q, TILE * d8 * 4)               /* [TILE/4][D8][4]x4 */                             \
  AREA(m, TILE) AREA(l, TILE) AREA(l_total, TILE) /* [TILE] */                             \
  AREA(o, TILE * 2 * dv8)              /* [TILE][2][DV8]: the sums, and their totals */    \
  AREA(s, 4 * TILE) AREA(p, TILE * 16) /* [4][TILE], [TILE][4]x4: of four query rows */

#define BACKWARD(AREA)                                                                     \
  AREA(k, blocks * TILE * d8 * 4)      /* [blocks][TILE/4][D8][4]x4 */                     \
  AREA(v, blocks * TILE * dv8 * 4)     /* [blocks][TILE/4][DV8][4]x4 */                    \
  AREA(kt, blocks * TILE * d8 * 4)     /* [blocks][D8/4][TILE][4]x4 */                     \
  AREA(grads, blocks * TILE * 2 * (d8 + dv8)) /* [blocks][TILE][2][D8+DV8]: dK and dV, and their totals */ \
  AREA(finite, blocks)                 /* not 0 if K of the block is finite */             \
  AREA(q, TILE * d8) AREA(dout, TILE * dv8)   /* [TILE/8][D8][8], [TILE/8][DV8][8] */      \
  AREA(qe, TILE * d8) AREA(doute, TILE * dv8) /* [D8/8][TILE][8], [DV8/8][TILE][8] */      \
  AREA(dq, TILE * 2 * d8)              /* [2][D8][TILE]: the sums, and their totals */     \
  AREA(lse, TILE) AREA(delta, TILE)    /* LSE is +Inf for a row without weights */         \
  AREA(tile_finite, 1)                 /* not 0 if Q and dO of the tile are finite */      \
  AREA(s, 4 * TILE) AREA(dp, 4 * TILE) AREA(p, TILE * 16) AREA(ds, TILE * 16) /* [4][TILE], [TILE][4]x4 */ \
  AREA(dst, TILE * STRIP)              /* [TILE/8][STRIP][8]: dS' of a strip */

#define DECLARE(name, floats) float *name;
#define PLACE(name, floats) w->name = AT(at), at += round_up((u64)(floats) * 4, 16);
#define SCRATCH(type, areas)                                                               \
  typedef struct { u64 d8, dv8; areas(DECLARE) } type;                                     \
  static u64 place_##type(const block *p, type *w) { /* returns the bytes */               \
    u64 at = p->scratch, blocks = round_up(p->keys, TILE) / TILE;                          \
    u64 d8 = w->d8 = round_up(p->dim, 8), dv8 = w->dv8 = round_up(p->vdim, 8);             \
    (void)d8, (void)blocks;                                                                \
    areas(PLACE) return at - p->scratch;                                                   \
  }
SCRATCH(forward, FORWARD)
SCRATCH(backward, BACKWARD)

// ---- The scalar loops ----

APART float dot(const float *a, const float *b, u32 n) {
  float sum = 0;
  u32 i = 0;
  for (; i + 4 <= n; i += 4)  // the summation order of the other portable kernels, whose LSE this kernel can then use
    sum += (a[i] * b[i] + a[i + 1] * b[i + 1]) + (a[i + 2] * b[i + 2] + a[i + 3] * b[i + 3]);
  for (; i < n; i++) sum += a[i] * b[i];
  return sum;
}
static void add_scaled(float *to, float by, const float *x, u32 n) {
  UNROLLED4 for (u32 i = 0; i < n; i++) to[i] += by * x[i];
}
INLINE i64 clamp(i64 x, i64 low, i64 high) { return x < low ? low : x > high ? high : x; }

// fold adds n sums to the n totals, which are stored after the sums, and sets the sums to 0.
static void fold(float *x, u64 n) {
  for (float *end = x + n; x != end; x += 4) store(x + n, load(x + n) + load(x)), store(x, splat(0));
}
static void fold_row(const forward *w, u32 r) {
  fold(w->o + r * 2 * w->dv8, w->dv8), w->l_total[r] += w->l[r], w->l[r] = 0;
}
static void rescale(const forward *w, u32 r, float by) {  // rescales all sums but l
  for (float *o = w->o + r * 2 * w->dv8, *end = o + 2 * w->dv8; o != end; o += 4) store(o, load(o) * by);
  w->l_total[r] *= by;
}
static void begin(const forward *w, u32 rows) {
  zero(w->o, rows * 2 * w->dv8);
  for (u32 r = 0; r < rows; r++) w->m[r] = NONE, w->l[r] = w->l_total[r] = 0;
}
// finish writes row r of O and LSE. l is 0 if the row has no score above -Inf.
static void finish(const block *p, const forward *w, u32 r) {
  float *out = (float *)AT(p->o) + (u64)r * p->vdim, *lse = (float *)AT(p->lse) + r, l = w->l_total[r] += w->l[r], by = 1 / l;
  const float *o = w->o + r * 2 * w->dv8, *total = o + w->dv8; u32 d = 0;
  for (; d + 4 <= p->vdim; d += 4) *(v4_any *)(out + d) = l == 0 ? splat(0) : (load(total + d) + load(o + d)) * by;
  for (; d < p->vdim; d++) out[d] = l == 0 ? 0 : (total[d] + o[d]) * by;
  *lse = l == 0 ? NONE : (float)((double)p->scale * w->m[r] + ln(l));
}

static void keep(const block *p, float *k, float *v, u64 key, u64 n) {
  copy(k + key * p->dim, AT(p->k), n * p->dim), copy(v + key * p->vdim, AT(p->v), n * p->vdim);
}
static void fwd_scalar_keys(const block *p, const forward *w, u64 key, u32 n) { keep(p, w->k, w->v, key, n); }
static void fwd_scalar_rows(const block *p, const forward *w, u32 i0, u32 i1, u32 j0, u32 j1, u32 flags) {
  const float *q = AT(p->q);
  if (flags & FIRST) begin(w, i1 - i0);
  for (u32 i = i0; i < i1; i++, q += p->dim) {
    u32 r = i - i0;
    float *o = w->o + r * 2 * w->dv8, *m = w->m + r;
    i64 lo = clamp((i64)i + p->first, j0, j1), hi = clamp((i64)i + p->last + 1, j0, j1);
    for (i64 j = lo; j < hi; j++) {
      u64 at = j - p->key0;
      float s = dot(q, w->k + at * p->dim, p->dim);
      if (s > *m) {
        float a = exp2_1((*m - s) * per2(p->scale));
        rescale(w, r, a), w->l[r] *= a, *m = s;
      }
      float shift = *m == NONE ? 0 : *m, weight = exp2_1((s - shift) * per2(p->scale));  // if all scores are -Inf: exp(-Inf), not exp(-Inf + Inf)
      w->l[r] += weight;
      add_scaled(o, weight, w->v + at * p->vdim, p->vdim);
      if ((at + 1) % FOLD == 0) fold_row(w, r);
    }
    if (flags & LAST) finish(p, w, r);
  }
}

#include "grads.h"
static void bwd_scalar_keys(const block *p, const backward *w, u64 key, u32 n) {
  keep(p, w->k, w->v, key, n), zero(grads_of(w, key), grads_of(w, n) - w->grads);
}
static void bwd_scalar_rows(const block *p, const backward *w, u32 i0, u32 i1, u32 j0, u32 j1, u32 flags) {
  for (u32 i = i0; i < i1; i++) {
    u32 r = i - i0;
    const float *q = (float *)AT(p->q) + (u64)r * p->dim, *o = (float *)AT(p->o) + (u64)r * p->vdim;
    const float *dout = (float *)AT(p->dout) + (u64)r * p->vdim;
    float *dq = begin_dq(p, w, r, flags), lse = ((float *)AT(p->lse))[r];
    float delta = dot(dout, o, p->vdim) - ((float *)AT(p->dlse))[r];
    i64 lo = clamp((i64)i + p->first, j0, j1), hi = clamp((i64)i + p->last + 1, j0, j1);
    if (lse == NONE) hi = lo;  // every score is -Inf: the row has no weights
    for (i64 j = lo; j < hi; j++) {
      u64 at = j - p->key0;
      if (at % TILE == 0) fold_dq_row(dq, w->d8);
      float x = (dot(q, w->k + at * p->dim, p->dim) * p->scale - lse) * LOG2E, weight = exp2_1(x > 128 ? 128 : x);
      float ds = weight * (dot(dout, w->v + at * p->vdim, p->vdim) - delta);
      float *dk = grads_of(w, at);
      add_scaled(dk + w->d8, weight, dout, p->vdim);
      add_scaled(dk, ds, q, p->dim);
      add_scaled(dq, ds, w->k + at * p->dim, p->dim);
    }
    if (flags & LAST) end_dq(p, w, r, flags);
  }
  if (i0 / FOLD < i1 / FOLD) fold_grads(w, j0 - p->key0, j1 - p->key0);
}
static void bwd_grads(const block *p, const backward *w, u64 key, u32 n) {
  float *k = AT(p->k), *v = AT(p->v);
  fold_grads(w, key, key + n);
  for (u32 r = 0; r < n; r++, v += p->vdim) {
    const float *dk = grads_of(w, key + r) + w->d8 + w->dv8;
    for (u32 d = 0; d < p->dim; d++) *k++ = dk[d] * p->scale;
    copy(v, dk + w->d8, p->vdim);
  }
}

#include "score.h"
#include "tiles.h"

// ---- Exports ----
//
// Every export but abi returns a code. Functions named keys pack the keys [j0, j1) from the stage; j0 is key0
// plus a multiple of TILE. Functions named rows process the query rows [i0, i1) with the keys [j0, j1). grads
// overwrites K and V in the stage with dK and dV of the keys [j0, j1).

// most_keys returns the largest number of keys in a call of rows: TILE if the stage has bias, mask or dBias.
static u32 most_keys(const block *p) { return p->features & (BIAS | MASK | DBIAS) ? TILE : MAX_ROW; }
// ready checks the ranges of a call and the size of scratch against the block. It returns a code.
static int ready(const block *p, u64 need, u32 i0, u32 i1, u32 j0, u32 j1, u32 keys) {
  if (p->scratch_bytes < need || !inside(p->scratch, p->scratch_bytes)) return BAD_SCRATCH;
  if (i0 > i1 || i1 - i0 > TILE || i1 > MAX_ROW || j0 < p->key0 || (j0 - p->key0) % TILE) return BAD_RANGE;
  if (j0 > j1 || j1 - j0 > keys || j1 - p->key0 > p->keys) return BAD_RANGE;
  return OK;
}

#define WHEN_READY(type, takes, i0, i1, keys, call)                                        \
  type w; const block *p = AT(at);                                                         \
  int code = check(at, is_##type, takes);                                                  \
  if (!code) code = ready(p, place_##type(p, &w), i0, i1, j0, j1, keys);                   \
  if (!code) call;                                                                         \
  return code
#define KEYS(type, takes, name)                                                            \
  EXPORT(#name) int export_##name(u32 at, u32 j0, u32 j1) {                                \
    WHEN_READY(type, takes, 0, 0, TILE, name(p, &w, j0 - p->key0, j1 - j0));               \
  }
#define ROWS(type, takes, most, name)                                                      \
  EXPORT(#name) int export_##name(u32 at, u32 i0, u32 i1, u32 j0, u32 j1, u32 flags) {     \
    WHEN_READY(type, takes, i0, i1, most, name(p, &w, i0, i1, j0, j1, flags));             \
  }
KEYS(forward, FORWARD_TAKES, fwd_scalar_keys) ROWS(forward, PLAIN, MAX_ROW, fwd_scalar_rows)
KEYS(forward, FORWARD_TAKES, fwd_simd128_keys) ROWS(forward, PLAIN, MAX_ROW, fwd_simd128_rows)
KEYS(backward, BACKWARD_TAKES, bwd_scalar_keys) ROWS(backward, PLAIN, MAX_ROW, bwd_scalar_rows)
KEYS(backward, BACKWARD_TAKES, bwd_simd128_keys) ROWS(backward, PLAIN, MAX_ROW, bwd_simd128_rows)
KEYS(backward, BACKWARD_TAKES, bwd_grads)
EXPORT("abi") u32 abi(void) { return VERSION; }

// These exports come last, so that the hot loops above keep their addresses, which affect their speed.
ROWS(forward, FORWARD_TAKES, most_keys(p), fwd_feature_rows)
ROWS(backward, BACKWARD_TAKES, most_keys(p), bwd_feature_rows)

#include "tilescore.h"
#include "fwdscore.h"
#include "bwdscore.h"
ROWS(forward, FORWARD_TAKES, most_keys(p), fwd_simd128_feature_rows)
ROWS(backward, BACKWARD_TAKES, most_keys(p), bwd_simd128_feature_rows)

#include "decode.h"
EXPORT("decode_simd128_keys") int export_decode_simd128_keys(u32 at, u32 j0, u32 j1) {
  const block *p = AT(at);
  int code = check(at, is_forward, FORWARD_TAKES);
  if (!code) code = check_raw(p);
  if (!code && (j0 > j1 || j1 - j0 > TILE)) code = BAD_RANGE;
  if (!code) decode_simd128_keys(p, j1 - j0);
  return code;
}
EXPORT("decode_simd128_rows") int export_decode_simd128_rows(u32 at, u32 i0, u32 i1, u32 j0, u32 j1, u32 flags) {
  if (i1 - i0 > FEW) return BAD_RANGE;
  WHEN_READY(few, FORWARD_TAKES, i0, i1, TILE, decode_simd128_rows(p, &w, i0, i1, j0, j1, flags));
}

// check_features returns OK, or an error code if a feature's parameters in the block are invalid.
APART int check_features(const block *p, u32 takes) {
  u32 f = p->features;
  if (f & ~takes) return BAD_FEATURE;
  if (f & DROPOUT && p->key0 % 8) return BAD_FEATURE;  // eight keys share their random words
  if (f & SOFTCAP && !(p->softcap > 0 && p->softcap <= MAX_FLOAT)) return BAD_FEATURE;
  if (f & ALIBI && (p->diagonal < -MAX_DIAGONAL || p->diagonal > MAX_DIAGONAL)) return BAD_FEATURE;
  if (f & DROPOUT && !(p->keep >= 1 && p->keep <= MAX_FLOAT)) return BAD_FEATURE;
  if (f & BIAS && !inside(p->bias, TILE * TILE * 4)) return BAD_TENSOR;
  if (f & MASK && !inside(p->mask, TILE * TILE)) return BAD_TENSOR;
  if (f & DBIAS && !inside(p->dbias, TILE * TILE * 4)) return BAD_TENSOR;
  return OK;
}

#include "calls.h"
