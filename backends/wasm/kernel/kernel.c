// Attention and its gradients in a sandbox: the whole of kernel.wasm.
//
// The module imports nothing, allocates nothing and keeps no pointers. The host
// writes a block of parameters and up to TILE rows of each tensor into memory
// ("the stage"), and calls. What lasts between calls is in scratch memory that
// the block names. Only numbers of the block and of the call become addresses,
// and both are checked before use. A call is short: the host says how many keys.
//
//	fwd: keys*, then for each tile of query rows: rows+ (FIRST ... LAST)
//	bwd: keys*, then for each tile of query rows: rows+ (FIRST ... LAST), then grads*
//
// Each pass comes twice: _scalar is the plain loop and says what is computed;
// _simd128 computes the same in tiles. Letters are those of the papers: Q K V O,
// scores S, weights P, running maximum m and sum l. D8 is D rounded up to 8.
// Shapes stand beside pointers. The file also compiles natively; see native.c.

typedef unsigned int u32; typedef unsigned long long u64; typedef long long i64;
typedef float v4 __attribute__((vector_size(16))); typedef int i4 __attribute__((vector_size(16)));
typedef float v4_any __attribute__((vector_size(16), aligned(4)));

#define INLINE static inline __attribute__((always_inline))
#define APART static __attribute__((noinline))
#define UNROLLED _Pragma("GCC unroll 16")

#ifdef __wasm__
#include <wasm_simd128.h>
extern char __heap_base;
#define LOWEST ((u64)(unsigned long)&__heap_base)  // below lies the stack
#define MEMORY ((u64)__builtin_wasm_memory_size(0) << 16)
#define AT(offset) ((void *)(unsigned long)(offset))
#define REGISTER "+r"
#define EXPORT(name) __attribute__((export_name(name)))
INLINE v4 min4(v4 a, v4 b) { return (v4)wasm_f32x4_pmin((v128_t)a, (v128_t)b); }  // b < a ? b : a
INLINE v4 max4(v4 a, v4 b) { return (v4)wasm_f32x4_pmax((v128_t)a, (v128_t)b); }  // a < b ? b : a
#else
#include "../peers/native.h"
#endif

// ---- The block ----

enum { MAGIC = 0x4b484c46, VERSION = 1, TILE = 128, STRIP = 64, FOLD = 256, MAX_DIM = 1 << 20, MAX_ROW = 1 << 30 };
enum { FIRST = 1, LAST = 2, SCALED = 4 };  // flags of rows: begin the tile; write the tile; dQ times the scale
enum { is_forward, is_backward };
enum { OK, BAD_BLOCK, BAD_VERSION, BAD_SHAPE, BAD_TENSOR, BAD_SCRATCH, BAD_RANGE };

typedef struct {
  u32 magic, version;
  u32 dim, vdim;          // D, DV
  u32 key0, keys;         // the keys at hand are [key0, key0+keys)
  int first, last;        // row i sees key j when i+first <= j <= i+last
  float scale;            // of the scores; positive
  u32 q, k, v, o, lse;    // the stage: offsets of [TILE][D], [TILE][D], [TILE][DV], [TILE][DV], [TILE]
  u32 dout, dlse, dq;     // [TILE][DV], [TILE], [TILE][D]; backward only
  u32 scratch, scratch_bytes;
  u32 reserved[13];
} block;

static int inside(u32 offset, u64 bytes) { return offset % 16 == 0 && offset >= LOWEST && offset + bytes <= MEMORY; }

// check returns OK or what is wrong with the block, before anything else is touched.
static int check(u32 at, int backward) {
  const block *p = AT(at);
  if (!inside(at, sizeof *p)) return BAD_BLOCK;
  if (p->magic != MAGIC || p->version != VERSION) return BAD_VERSION;
  if (!p->dim || !p->vdim || p->dim > MAX_DIM || p->vdim > MAX_DIM) return BAD_SHAPE;
  if ((u64)p->key0 + p->keys > MAX_ROW || !(p->scale > 0 && p->scale <= 3.40282347e38f)) return BAD_SHAPE;
  u64 row = TILE * 4, d = row * p->dim, dv = row * p->vdim;
  if (!inside(p->q, d) || !inside(p->k, d) || !inside(p->v, dv) || !inside(p->o, dv) || !inside(p->lse, row)) return BAD_TENSOR;
  if (backward && (!inside(p->dout, dv) || !inside(p->dlse, row) || !inside(p->dq, d))) return BAD_TENSOR;
  return OK;
}

// ---- Small things ----

// What the compiler must take as it is: a value, two pointers. See multiply.
#define PIN(x) __asm__ volatile("" : REGISTER(x))
#define HIDE(a, b) __asm__("" : "+r"(a), "+r"(b))

INLINE v4 load(const float *p) { return *(const v4 *)p; }
INLINE void store(float *p, v4 x) { *(v4 *)p = x; }
INLINE v4 splat(float x) { return (v4){x, x, x, x}; }
INLINE u64 round_up(u64 n, u64 to) { return (n + to - 1) / to * to; }
// lane returns a number of x. PIN keeps its uses from becoming shuffles of bytes: slow.
INLINE float lane(v4 x, int e) {
  float one = x[e];
  PIN(one);
  return one;
}
// spread stores each number of x splatted, four numbers of p apart times step.
INLINE void spread(float *p, int step, v4 x) {
  UNROLLED for (int e = 3; e >= 0; e--) store(p + e * step, splat(lane(x, e)));
}
static void zero(float *p, u64 n) { __builtin_memset(p, 0, n * 4); }
static void copy(float *to, const float *from, u64 n) { __builtin_memcpy(to, from, n * 4); }
// line returns a x + b. A constant is loaded wherever it stands: PIN saves a copy of x.
INLINE v4 line(v4 a, v4 x, float b) {
  PIN(a);
  return a * x + b;
}

// exp2 returns 2^x for x <= 127 to three ulps: exactly 1 at 0, 0 below -126.5, NaN for NaN. With
// x = n + f, n whole and |f| <= 1/2, it is 2^n times a minimax polynomial of 2^f. Adding a number whose last
// place counts 1 rounds x to n, and leaves n+127, the exponent of 2^n, lowest; a product is the cheapest shift up.
INLINE v4 exp2(v4 x) {
  const v4 unit = splat(12582912 + 127);  // 1.5 * 2^23, and the bias
  i4 up = (i4)splat(1.17549435e-38f);     // 2^23 as an integer
  PIN(up);
  x = max4(x, splat(-127));
  v4 t = x + unit, f = x - (t - unit), f2 = f * f;
  v4 p = line(splat(1.32647273e-3f), f, 9.67151299e-3f) * f2 + line(splat(5.55073358e-2f), f, 2.40222424e-1f);
  return (p * f2 + line(splat(6.93147004e-1f), f, 1)) * (v4)((i4)t * up);
}
static float exp2_1(float x) { return exp2(splat(x))[0]; }

#define LOG2E 1.44269504f
#define NONE (-__builtin_inff())  // the score and LSE of nothing
// per2 returns scale*log2(e), so that 2^(x*per2) is e^(x*scale). It stays finite.
static float per2(float scale) { return scale < 2e38f ? scale * LOG2E : 3.4e38f; }
// ln returns the natural logarithm of a positive float, and x for a NaN.
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
// Each area once: its name, how many floats, its shape. [n]x4 is splatted. The
// plain loops have rows of D in k, of DV in v, of D8 in dq. blocks is keys/TILE. As
// a long float32 sum loses terms, o, l and grads take up to FOLD, then their totals those.

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
  AREA(dq, TILE * d8)                  /* [D8][TILE] */                                    \
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
    areas(PLACE) return at - p->scratch;                                                   \
  }
SCRATCH(forward, FORWARD)
SCRATCH(backward, BACKWARD)

// ---- The plain loops ----

APART float dot(const float *a, const float *b, u32 n) {
  float sum = 0;
  for (u32 i = 0; i < n; i++) sum += a[i] * b[i];
  return sum;
}
static void add_scaled(float *to, float by, const float *x, u32 n) {
  for (u32 i = 0; i < n; i++) to[i] += by * x[i];
}
INLINE i64 clamp(i64 x, i64 low, i64 high) { return x < low ? low : x > high ? high : x; }

// fold adds n sums to their totals, which lie behind them, and begins them anew.
static void fold(float *x, u64 n) {
  for (float *end = x + n; x != end; x += 4) store(x + n, load(x + n) + load(x)), store(x, splat(0));
}
static void fold_row(const forward *w, u32 r) {
  fold(w->o + r * 2 * w->dv8, w->dv8);
  w->l_total[r] += w->l[r], w->l[r] = 0;
}
static void rescale(const forward *w, u32 r, float by) {  // all but l
  for (float *o = w->o + r * 2 * w->dv8, *end = o + 2 * w->dv8; o != end; o += 4) store(o, load(o) * by);
  w->l_total[r] *= by;
}
static void begin(const forward *w, u32 rows) {
  zero(w->o, rows * 2 * w->dv8);
  for (u32 r = 0; r < rows; r++) w->m[r] = NONE, w->l[r] = w->l_total[r] = 0;
}
// finish writes row r of O and of LSE. l is 0 without a key, or without one whose score is above -Inf.
static void finish(const block *p, const forward *w, u32 r) {
  fold_row(w, r);
  float *out = (float *)AT(p->o) + (u64)r * p->vdim, *lse = (float *)AT(p->lse) + r, l = w->l_total[r];
  for (u32 d = 0; d < p->vdim; d++) out[d] = l == 0 ? 0 : w->o[(r * 2 + 1) * w->dv8 + d] * (1 / l);
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
      float shift = *m == NONE ? 0 : *m, weight = exp2_1((s - shift) * per2(p->scale));  // 0 or NaN, not exp(-Inf + Inf)
      w->l[r] += weight;
      add_scaled(o, weight, w->v + at * p->vdim, p->vdim);
      if ((at + 1) % FOLD == 0) fold_row(w, r);
    }
    if (flags & LAST) finish(p, w, r);
  }
}

// grads_of returns the sums of dK and dV of a key; their totals lie behind, then the next key's.
INLINE float *grads_of(const backward *w, u64 key) { return w->grads + key * 2 * (w->d8 + w->dv8); }
static void fold_grads(const backward *w, u64 key, u64 end) {
  for (; key < end; key++) fold(grads_of(w, key), w->d8 + w->dv8);
}
static void bwd_scalar_keys(const block *p, const backward *w, u64 key, u32 n) {
  keep(p, w->k, w->v, key, n), zero(grads_of(w, key), grads_of(w, n) - w->grads);
}
static void bwd_scalar_rows(const block *p, const backward *w, u32 i0, u32 i1, u32 j0, u32 j1, u32 flags) {
  for (u32 i = i0; i < i1; i++) {
    u32 r = i - i0;
    const float *q = (float *)AT(p->q) + (u64)r * p->dim, *o = (float *)AT(p->o) + (u64)r * p->vdim;
    const float *dout = (float *)AT(p->dout) + (u64)r * p->vdim;
    float *dq = w->dq + r * w->d8, *out = (float *)AT(p->dq) + (u64)r * p->dim, lse = ((float *)AT(p->lse))[r];
    float delta = dot(dout, o, p->vdim) - ((float *)AT(p->dlse))[r];
    if (flags & FIRST) zero(dq, p->dim);
    i64 lo = clamp((i64)i + p->first, j0, j1), hi = clamp((i64)i + p->last + 1, j0, j1);
    if (lse == NONE) hi = lo;  // every score is -Inf: no weight anywhere
    for (i64 j = lo; j < hi; j++) {
      u64 at = j - p->key0;
      float x = (dot(q, w->k + at * p->dim, p->dim) * p->scale - lse) * LOG2E, weight = exp2_1(x > 128 ? 128 : x);
      float ds = weight * (dot(dout, w->v + at * p->vdim, p->vdim) - delta);
      float *dk = grads_of(w, at);
      add_scaled(dk + w->d8, weight, dout, p->vdim);
      add_scaled(dk, ds, q, p->dim);
      add_scaled(dq, ds, w->k + at * p->dim, p->dim);
    }
    for (u32 d = 0; flags & LAST && d < p->dim; d++) out[d] = (out[d] + dq[d]) * (flags & SCALED ? p->scale : 1);
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

// ---- The product of tiles ----
//
// Both passes are made of one loop: four rows by eight columns,
//
//	c[r][n] += sum over k of a[k][r] * b[k][n]
//
// with a [k][4] splatted, each number four times in a row, and b [k][8]. It is
// the shape of sixteen registers: eight sums, two of b, one of a. How it is
// written decides the speed under wazero, which keeps the order of instructions:
// UNROLL steps go from the highest address down, so that one bounds check for
// each pointer covers all; PIN after each sum, else the compiler loads first,
// sums later, and spills; HIDE the pointers, else it replaces constant offsets
// with additions, each with a check; a is splatted, as only a load is cheap.
#ifndef UNROLL
#define UNROLL 8  // a power of two up to 8
#endif

INLINE void multiply(const float *a, const float *b, u32 n, v4 c[4][2]) {
  const float *end = b + n * 8;
  do {
    HIDE(a, b);
    UNROLLED for (int u = UNROLL - 1; u >= 0; u--) {
      v4 b1 = load(b + u * 8 + 4), b0 = load(b + u * 8);
      UNROLLED for (int r = 3; r >= 0; r--) {
        v4 x = load(a + u * 16 + r * 4);
        c[r][0] += x * b0;
        PIN(c[r][0]);
        c[r][1] += x * b1;
        PIN(c[r][1]);
      }
    }
    a += UNROLL * 16, b += UNROLL * 8;
  } while (b != end);
}

// add_product adds to c [4][8], whose rows are step apart. n is a positive multiple of 8.
INLINE void add_product(const float *a, const float *b, u32 n, float *c, u32 step) {
  v4 sum[4][2] = {{splat(0)}};
  multiply(a, b, n, sum);
  UNROLLED for (int r = 0; r < 4; r++, c += step) store(c, load(c) + sum[r][0]), store(c + 4, load(c + 4) + sum[r][1]);
}

// Products of one a and eights of columns: scores sets c [4][TILE] up to end, across adds to
// `width` columns of rows of c, step apart. down takes one b and fours of rows, up to end of c [][TILE].
// Their loops are apart, as a call saves and restores eight registers.
APART void scores(const float *a, const float *b, u32 n, float *c, const float *end) {
  for (; c != end; c += 8, b += n * 8) {
    v4 sum[4][2] = {{splat(0)}};
    multiply(a, b, n, sum);
    HIDE(c, end);
    UNROLLED for (int r = 3; r >= 0; r--) store(c + r * TILE + 4, sum[r][1]), store(c + r * TILE, sum[r][0]);
  }
}
APART void across(const float *a, const float *b, u32 n, float *c, u32 width, u32 step) {
  for (const float *end = c + width; c != end; c += 8, b += TILE * 8) add_product(a, b, n, c, step);
}
APART void down(const float *a, const float *b, u32 n, float *c, const float *end) {
  for (; c != end; c += TILE * 4, a += TILE * 16) add_product(a, b, n, c, TILE);
}

// A span says which of n steps each of up to 8 rows (or columns) of a product
// takes: [lo, hi). All of them lie in [from, to), rounded outwards to 8. partial
// says that not all take all of it.
typedef struct { u32 lo[8], hi[8], from, to, partial; } span;

// spans returns what `count` rows take, of `of` that there are: row r takes the
// steps from at+r+first to at+r+last, both included, that lie in [0, n).
static span spans(u32 count, u32 of, i64 at, i64 first, i64 last, u32 n) {
  span s = {.from = n, .to = 0};
  for (u32 r = 0; r < count; r++) {
    s.lo[r] = r < of ? clamp(at + r + first, 0, n) : 0;
    s.hi[r] = r < of ? clamp(at + r + last + 1, 0, n) : 0;
    if (s.lo[r] >= s.hi[r]) continue;
    if (s.lo[r] < s.from) s.from = s.lo[r];
    if (s.hi[r] > s.to) s.to = s.hi[r];
  }
  s.from = s.from / 8 * 8, s.to = round_up(s.to, 8);
  for (u32 r = 0; r < count; r++) s.partial |= s.lo[r] > s.from || s.hi[r] < s.to;
  return s;
}
// careful_product adds the product over the span, without touching a number that a row (or, by column, a
// column) must not see: its weight is 0, but the number may be NaN. The order, and the bits, are those of multiply.
static void careful_product(const float *a, const float *b, const span *s, int by_column, float *c, u32 step) {
  for (u32 e = 0; e < 32; e++) {
    u32 r = e / 8, n = e % 8, who = by_column ? n : r;
    float sum = 0;
    for (u32 x = s->from; x < s->to; x++) {
      u32 k = x ^ (UNROLL - 1);
      if (s->lo[who] <= k && k < s->hi[who]) sum += a[k * 16 + r * 4] * b[k * 8 + n];
    }
    c[r * step + n] += sum;
  }
}

// span_across and span_down do so over the span. finite says that all that the weights multiply is.
INLINE void span_across(const float *a, const float *b, const span *s, u32 finite, float *c, u32 width, u32 step) {
  if (!s->partial || finite) across(a + s->from * 16, b + s->from * 8, s->to - s->from, c, width, step);
  else for (u32 d = 0; d < width; d += 8) careful_product(a, b + d * TILE, s, 0, c + d, step);
}
INLINE void span_down(const float *a, const float *b, const span *s, u32 finite, float *c, const float *end) {
  if (!s->partial || finite) down(a + s->from * 16, b + s->from * 8, s->to - s->from, c, end);
  else for (; c != end; c += TILE * 4, a += TILE * 16) careful_product(a, b, s, 1, c, TILE);
}

// ---- Packing ----
//
// From rows x [n][dim] into what products read, padded with zeros to 8 rows and
// 8 elements. Splatted, they become rows of a product, else columns. Each
// returns whether all numbers are finite: 0 times any other is NaN.

enum { ROWS, ELEMENTS, SPLAT_ROWS, SPLAT_ELEMENTS };
// four returns the numbers at p of which `left` are there, and zeros.
INLINE v4 four(const float *p, int left) {
  if (left >= 4) return *(const v4_any *)p;
  return (v4){left > 0 ? p[0] : 0, left > 1 ? p[1] : 0, left > 2 ? p[2] : 0, 0};
}
INLINE void scatter(float *p, u32 step, v4 x) {
  UNROLLED for (int e = 3; e >= 0; e--) p[e * step] = x[e];
}

INLINE u32 pack(const float *x, u32 n, u32 dim, float *to, int how) {
  u32 d8 = round_up(dim, 8);
  v4 none = splat(0);
  for (u32 r = 0; r < round_up(n, 8); r++, x += dim)
    for (u32 d = 0; d < d8; d += 4) {
      v4 v = four(x + d, r < n ? (int)(dim - d) : 0);
      none += v * 0;
      if (how == ROWS) scatter(to + (r / 8 * d8 + d) * 8 + r % 8, 8, v);
      if (how == ELEMENTS) store(to + d / 8 * TILE * 8 + r * 8 + d % 8, v);
      if (how == SPLAT_ROWS) spread(to + (r / 4 * d8 + d) * 16 + r % 4 * 4, 16, v);
      if (how == SPLAT_ELEMENTS) spread(to + (d / 4 * TILE + r) * 16, 4, v);
    }
  return none[0] + none[1] + none[2] + none[3] == 0;
}
#define PACK(name, how) APART u32 name(const float *x, u32 n, u32 dim, float *to) { return pack(x, n, dim, to, how); }
PACK(pack_rows, ROWS)                      // to [TILE/8][D8][8]
PACK(pack_elements, ELEMENTS)              // to [D8/8][TILE][8]
PACK(splat_rows, SPLAT_ROWS)               // to [TILE/4][D8][4] splatted
PACK(splat_elements, SPLAT_ELEMENTS)       // to [D8/4][TILE][4] splatted

// ---- Forward ----

static void fwd_simd128_keys(const block *p, const forward *w, u64 key, u32 n) {
  pack_rows(AT(p->k), n, p->dim, w->k + key * w->d8);
  w->finite[key / TILE] = pack_elements(AT(p->v), n, p->vdim, w->v + key * w->dv8);
}

// weigh turns the scores of a row, some eights, into weights, splatted, at `to` and every
// 16 numbers on, and returns their sum. Not apart, its loop would load what soften keeps.
APART float weigh(const float *x, const float *end, float *to, float top, float scale2) {
  v4 sum = splat(0);
  for (; x < end; x += 8, to += 128) {
    HIDE(x, to);
    UNROLLED for (int e = 4; e >= 0; e -= 4) {
      v4 w = exp2((load(x + e) - top) * scale2);
      sum += w, spread(to + e * 16, 16, w);
    }
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// soften turns the scores s [4][TILE] of the rows of a span into weights, splatted into
// p [TILE][4], raises the running maxima m and adds to l. It returns the factors for what
// was summed before. The scale comes after the difference, so that large scores lose nothing.
APART v4 soften(const span *n, float *s, float *p, float *m, float *l, float scale2) {
  v4 most[4] = {splat(NONE), splat(NONE), splat(NONE), splat(NONE)}, top = load(m), old = top, sums;
  for (u32 r = 0; n->partial && r < 4; r++)
    for (u32 j = n->from; j < n->to; j++)
      if (j < n->lo[r] || j >= n->hi[r]) s[r * TILE + j] = NONE;
  for (const float *x = s + n->from, *end = s + n->to; x < end; x += 8) {
    HIDE(x, end);
    UNROLLED for (int i = 7; i >= 0; i--) most[i / 2] = max4(most[i / 2], load(x + i / 2 * TILE + i % 2 * 4));
  }
  UNROLLED for (int e = 0; e < 4; e++)
    top = max4(top, (v4){lane(most[0], e), lane(most[1], e), lane(most[2], e), lane(most[3], e)});
  v4 shift = (v4)((i4)top & (top != splat(NONE)));  // every score -Inf: exp must give 0, not exp(-Inf + Inf)
  UNROLLED for (int r = 0; r < 4; r++)
    sums[r] = weigh(s + r * TILE + n->from, s + r * TILE + n->to, p + n->from * 16 + r * 4, shift[r], scale2);
  v4 alpha = exp2((old - shift) * scale2);
  alpha = (v4)(((i4)alpha & (old < top)) | ((i4)splat(1) & ~(old < top)));
  store(m, top), store(l, load(l) * alpha + sums);
  return alpha;
}

// fwd_block adds what `rows` query rows see of one block of n keys, from key j on.
static void fwd_block(const block *p, const forward *w, u32 i0, u32 rows, u32 j, u32 n) {
  u64 b = (j - p->key0) / TILE;
  const float *k = w->k + b * TILE * w->d8, *v = w->v + b * TILE * w->dv8;
  for (u32 g = 0; g < rows; g += 4) {
    span s = spans(4, rows - g, (i64)i0 + g - j, p->first, p->last, n);
    if (s.from >= s.to) continue;
    scores(w->q + g * w->d8 * 4, k + s.from * w->d8, w->d8, w->s + s.from, w->s + s.to);
    v4 a = soften(&s, w->s, w->p, w->m + g, w->l + g, per2(p->scale));
    UNROLLED for (u32 r = 0; r < 4; r++) if (a[r] != 1) rescale(w, g + r, a[r]);
    span_across(w->p, v, &s, w->finite[b] != 0, w->o + g * 2 * w->dv8, w->dv8, 2 * w->dv8);
  }
}

static void fwd_simd128_rows(const block *p, const forward *w, u32 i0, u32 i1, u32 j0, u32 j1, u32 flags) {
  const u32 rows = i1 - i0;
  if (flags & FIRST) splat_rows(AT(p->q), rows, p->dim, w->q), begin(w, round_up(rows, 4));
  for (u32 j = j0; j < j1; j += TILE) {
    fwd_block(p, w, i0, rows, j, j1 - j < TILE ? j1 - j : TILE);
    for (u32 r = 0; (j - p->key0 + TILE) % FOLD == 0 && r < rows; r++) fold_row(w, r);
  }
  for (u32 r = 0; flags & LAST && r < rows; r++) finish(p, w, r);
}

// ---- Backward ----
//
// Four keys are the rows of products, query rows their columns:
//
//	S' = K Q', dP' = V dO';  P = exp(scale*S - LSE), dS = P*(dP - delta);  dV += P' dO, dK += dS' Q
//
// and once for each block of keys dQ' += K' dS', with elements of K in rows.

static void bwd_simd128_keys(const block *p, const backward *w, u64 key, u32 n) {
  splat_rows(AT(p->k), n, p->dim, w->k + key * w->d8 * 4), splat_rows(AT(p->v), n, p->vdim, w->v + key * w->dv8 * 4);
  w->finite[key / TILE] = splat_elements(AT(p->k), n, p->dim, w->kt + key * w->d8 * 4);
  zero(grads_of(w, key), grads_of(w, TILE) - w->grads);
}

// delta is dO·O - dLSE of row r, summed in the order of dP: for a row that sees
// one key the two are then equal, and dS is 0.
static float delta(const block *p, const backward *w, u32 r) {
  const float *dout = AT(p->dout), *o = AT(p->o), *dlse = AT(p->dlse);
  float sum = 0;
  for (u32 x = 0; x < w->dv8; x++) {
    u32 d = x ^ (UNROLL - 1);
    if (d < p->vdim) sum += dout[r * p->vdim + d] * o[r * p->vdim + d];
  }
  return sum - dlse[r];
}
static void begin_tile(const block *p, const backward *w, u32 rows) {
  const float *q = AT(p->q), *dout = AT(p->dout), *lse = AT(p->lse);
  *w->tile_finite = pack_rows(q, rows, p->dim, w->q) & pack_rows(dout, rows, p->vdim, w->dout);
  pack_elements(q, rows, p->dim, w->qe), pack_elements(dout, rows, p->vdim, w->doute);
  zero(w->dq, w->d8 * TILE);
  for (u32 r = 0; r < round_up(rows, 8); r++) {
    w->lse[r] = r < rows && lse[r] != NONE ? lse[r] : -NONE;
    w->delta[r] = r < rows ? delta(p, w, r) : 0;
  }
}

// score_gradient turns S and dP of key c of four into P and dS.
APART void score_gradient(const backward *w, const span *n, u32 c, float scale, float *dst) {
  const float *s = w->s + c * TILE, *dp = w->dp + c * TILE;
  for (u32 i = n->from; i < n->to; i += 4) {
    v4 x = (load(s + i) * scale - load(w->lse + i)) * LOG2E, weight = exp2(min4(x, splat(128)));
    v4 ds = weight * (load(dp + i) - load(w->delta + i));
    if (n->partial) {
      i4 row = (i4){0, 1, 2, 3} + (int)i, seen = (row >= (int)n->lo[c]) & (row < (int)n->hi[c]);
      weight = (v4)((i4)weight & seen), ds = (v4)((i4)ds & seen);
    }
    store(dst + i / 8 * 8 * STRIP + i % 8, ds);
    float *p = w->p + i * 16 + c * 4, *g = w->ds + i * 16 + c * 4;
    HIDE(p, g);
    spread(p, 16, weight), spread(g, 16, ds);
  }
}

// bwd_block adds what `rows` query rows give to one block of n keys, from key j on, and it to them.
static void bwd_block(const block *p, const backward *w, u32 i0, u32 rows, u32 j, u32 n) {
  u64 key = j - p->key0, b = key / TILE;
  u32 finite = *w->tile_finite != 0, row = 2 * (w->d8 + w->dv8);
  zero(w->dst, round_up(rows, 8) * STRIP);
  for (u32 g = 0; g < n; g += 4) {  // key j is seen by the rows from j-last to j-first
    span s = spans(4, n - g, (i64)j + g - i0, -(i64)p->last, -(i64)p->first, rows);
    if (s.from >= s.to) continue;
    scores(w->k + (key + g) * w->d8 * 4, w->q + s.from * w->d8, w->d8, w->s + s.from, w->s + s.to);
    scores(w->v + (key + g) * w->dv8 * 4, w->dout + s.from * w->dv8, w->dv8, w->dp + s.from, w->dp + s.to);
    for (u32 c = 0; c < 4; c++) score_gradient(w, &s, c, p->scale, w->dst + (g + c) * 8);
    float *dk = grads_of(w, key + g);
    span_across(w->p, w->doute, &s, finite, dk + w->d8, w->dv8, row);
    span_across(w->ds, w->qe, &s, finite, dk, w->d8, row);
  }
  const float *kt = w->kt + b * TILE * w->d8 * 4 + key % TILE * 16;
  for (u32 i = 0; i < rows; i += 8) {
    span s = spans(8, rows - i, (i64)i0 + i - j, p->first, p->last, n);
    if (s.from >= s.to) continue;
    span_down(kt, w->dst + i * STRIP, &s, w->finite[b] != 0, w->dq + i, w->dq + i + w->d8 * TILE);
  }
}

static void bwd_simd128_rows(const block *p, const backward *w, u32 i0, u32 i1, u32 j0, u32 j1, u32 flags) {
  if (flags & FIRST) begin_tile(p, w, i1 - i0);
  for (u32 j = j0; j < j1; j += STRIP) bwd_block(p, w, i0, i1 - i0, j, j1 - j < STRIP ? j1 - j : STRIP);
  if (i0 / FOLD < i1 / FOLD) fold_grads(w, j0 - p->key0, j1 - p->key0);
  float *dq = AT(p->dq), scale = flags & SCALED ? p->scale : 1;
  for (u32 r = 0; flags & LAST && r < i1 - i0; r++)
    for (u32 d = 0; d < p->dim; d++, dq++) *dq = (*dq + w->dq[d * TILE + r]) * scale;
}

// ---- Exports ----
//
// Each returns a code. keys takes the keys [j0, j1) from the stage; j0 is key0
// plus a multiple of TILE. rows takes the query rows [i0, i1) against the keys
// [j0, j1). grads puts dK and dV of the keys [j0, j1) where K and V were staged.

// ready checks what a call says beyond the block, and the scratch that it uses.
static int ready(const block *p, u64 need, u32 i0, u32 i1, u32 j0, u32 j1, u32 keys) {
  if (p->scratch_bytes < need || !inside(p->scratch, p->scratch_bytes)) return BAD_SCRATCH;
  if (i0 > i1 || i1 - i0 > TILE || i1 > MAX_ROW || j0 < p->key0 || (j0 - p->key0) % TILE) return BAD_RANGE;
  if (j0 > j1 || j1 - j0 > keys || j1 - p->key0 > p->keys) return BAD_RANGE;
  return OK;
}

#define WHEN_READY(type, i0, i1, keys, call)                                               \
  type w; const block *p = AT(at);                                                         \
  int code = check(at, is_##type);                                                         \
  if (!code) code = ready(p, place_##type(p, &w), i0, i1, j0, j1, keys);                   \
  if (!code) call;                                                                         \
  return code
#define KEYS(type, name)                                                                   \
  EXPORT(#name) int export_##name(u32 at, u32 j0, u32 j1) { WHEN_READY(type, 0, 0, TILE, name(p, &w, j0 - p->key0, j1 - j0)); }
#define ROWS(type, name)                                                                   \
  EXPORT(#name) int export_##name(u32 at, u32 i0, u32 i1, u32 j0, u32 j1, u32 flags) {     \
    WHEN_READY(type, i0, i1, MAX_ROW, name(p, &w, i0, i1, j0, j1, flags));                 \
  }
KEYS(forward, fwd_scalar_keys) ROWS(forward, fwd_scalar_rows)
KEYS(forward, fwd_simd128_keys) ROWS(forward, fwd_simd128_rows)
KEYS(backward, bwd_scalar_keys) ROWS(backward, bwd_scalar_rows)
KEYS(backward, bwd_simd128_keys) ROWS(backward, bwd_simd128_rows) KEYS(backward, bwd_grads)
EXPORT("abi") u32 abi(void) { return VERSION; }
