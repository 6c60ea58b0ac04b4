// Decode: few query rows and many keys. The kernel reads keys from the stage without packing. kernel.c
// includes this file.
//
// The lanes of a vector hold elements of one row. Features of scores apply before the softmax, dropout after
// it, and SINK and CARRY at the end of a row. The host copies up to TILE keys to the stage. If K and V have 16
// bits, the host calls decode_simd128_keys, which widens K and V. The host then calls decode_simd128_rows for
// each part of the query rows. A part has up to FEW rows of one query head, and its own block and scratch.

enum { FEW = 8 };  // maximum rows of a call

#define DECODE(AREA)                                                                       \
  AREA(m, FEW) AREA(l, FEW) AREA(l_total, FEW) AREA(o, FEW * 2 * dv8) /* as in FORWARD */  \
  AREA(s, TILE) AREA(limit, TILE)      /* one row: scores, then weights; and limits, see set_limits */
SCRATCH(few, DECODE)

static int check_raw(const block *p) {
  if (p->kv < 1 || p->kv > 2) return BAD_SHAPE;
  return inside(p->raw_k, TILE * 2ull * p->dim) && inside(p->raw_v, TILE * 2ull * p->vdim) ? OK : BAD_TENSOR;
}
typedef unsigned short h4 __attribute__((vector_size(8), aligned(2)));
// widen converts n 16-bit numbers to float. A multiplication by 2^112 corrects the exponent of a float16,
// exactly, even for subnormals. Inf and NaN then get the highest exponent.
APART void widen(const unsigned short *x, u64 n, float *to, int bfloat) {
  for (u64 i = 0; i < n; i += 4) {
    i4 bits = __builtin_convertvector(*(h4 *)(x + i), i4);
    if (bfloat) {
      store(to + i, (v4)(bits << 16));
      continue;
    }
    i4 rest = bits & 0x7fff, most = (rest >= 0x7c00) & 0x7f800000;
    v4 y = (v4)(rest << 13) * 0x1p112f;
    store(to + i, (v4)((i4)y | most | (bits & 0x8000) << 16));
  }
}
static void decode_simd128_keys(const block *p, u32 n) {
  widen(AT(p->raw_k), (u64)n * p->dim, AT(p->k), p->kv == 2), widen(AT(p->raw_v), (u64)n * p->vdim, AT(p->v), p->kv == 2);
}

INLINE v4 any(const float *p) { return *(const v4_any *)p; }
// dots stores the dot products of q and n keys in s. It computes two dot products at a time.
APART void dots(const float *q, const float *k, u32 dim, u32 n, float *s) {
  const float *last = k + (u64)(n - 1) * dim;
  for (u32 c = 0; c < n; c += 2) {
    const float *x = q, *a = k + (u64)c * dim, *b = a == last ? a : a + dim, *end = q + dim / 16 * 16;
    v4 sum[2][2] = {{splat(0)}};
    for (; x != end; x += 16, a += 16, b += 16) {
      HIDE(x, a);
      HIDE(b, end);
      UNROLLED for (int u = 3; u >= 0; u--) {
        v4 y = any(x + u * 4);
        sum[0][u % 2] = madd(y, any(a + u * 4), sum[0][u % 2]);
        PIN(sum[0][u % 2]);
        sum[1][u % 2] = madd(y, any(b + u * 4), sum[1][u % 2]);
        PIN(sum[1][u % 2]);
      }
    }
    for (u32 d = dim / 16 * 16; d < dim; d += 4, x += 4, a += 4, b += 4) {
      v4 y = four(x, dim - d);
      sum[0][0] += y * four(a, dim - d), sum[1][0] += y * four(b, dim - d);
    }
    v4 one = sum[0][0] + sum[0][1], two = sum[1][0] + sum[1][1];
    s[c + 1] = (lane(two, 0) + lane(two, 1)) + (lane(two, 2) + lane(two, 3));
    s[c] = (lane(one, 0) + lane(one, 1)) + (lane(one, 2) + lane(one, 3));
  }
}
// mix8 and mix1 add n rows of v, multiplied by their weights, to o. mix8 processes 32 columns, mix1 four. limit
// is null, or has a negative number for each hidden key. The loop skips hidden keys.
#define MIX(name, WIDTH)                                                                   \
  APART void name(const float *weight, const float *v, u32 vdim, u32 n, float *o, const float *limit) { \
    v4 sum[WIDTH];                                                                         \
    UNROLLED for (int e = 0; e < WIDTH; e++) sum[e] = load(o + e * 4);                     \
    for (const float *end = weight + n; weight != end; weight++, v += vdim) {              \
      HIDE(weight, v);                                                                     \
      if (limit && *limit++ < 0) continue;                                                 \
      v4 x = splat(*weight);                                                               \
      UNROLLED for (int e = WIDTH - 1; e >= 0; e--) {                                      \
        sum[e] = madd(x, any(v + e * 4), sum[e]);                                          \
        PIN(sum[e]);                                                                       \
      }                                                                                    \
    }                                                                                      \
    UNROLLED for (int e = 0; e < WIDTH; e++) store(o + e * 4, sum[e]);                     \
  }
MIX(mix8, 8)
MIX(mix1, 1)
static void mix_row(const float *weight, const float *v, u32 vdim, u32 n, float *o, const float *limit) {
  u32 d = 0;
  for (; d + 32 <= vdim; d += 32) mix8(weight, v + d, vdim, n, o + d, limit);
  for (; d + 4 <= vdim; d += 4) mix1(weight, v + d, vdim, n, o + d, limit);
  for (; d < vdim; d++)
    for (u32 c = 0; c < n; c++) if (!limit || limit[c] >= 0) o[d] += weight[c] * v[(u64)c * vdim + d];
}

// decode_scores turns the dot products of a row and n keys into scores. The row is row i of its sequence, and
// row r of the stage. The first key is key j of its sequence, and column c of the stage's bias and mask.
static void decode_scores(const block *p, float *s, float *limit, u32 r, i64 i, i64 j, u32 c, u32 n) {
  u32 f = p->features;
  float scale = p->scale, *end = s + round_up(n, 8);
  if (f & SOFTCAP) cap(s, end, 0, scale, p->softcap), scale = 1;
  for (u32 e = 0; f & ADJUSTS && e < n; e++) {
    float x = s[e] * scale;
    if (f & BIAS) x += bias_row(p, r)[c + e];
    if (f & ALIBI) x -= (float)(p->slope * __builtin_fabs((double)(j + e - i - p->diagonal)));
    s[e] = x;
  }
  for (u32 e = 0; f & MASK && e < n; e++) {
    limit[e] = mask_row(p, r)[c + e] ? -NONE : NONE;
    if (limit[e] < 0) s[e] = NONE;
  }
}
// decode_weights turns n scores of row r into weights. It raises the maximum of the row, rescales the sums of
// the row, and adds the weights to l.
static void decode_weights(const block *p, const forward *w, u32 r, i64 i, i64 j, float *s, u32 n) {
  float scale2 = per2(unit(p)), top = w->m[r];
  for (u32 e = 0; e < n; e++) if (s[e] > top) top = s[e];
  float shift = top == NONE ? 0 : top;
  if (top > w->m[r]) {
    float by = exp2_1((w->m[r] - shift) * scale2);
    rescale(w, r, by), w->l[r] *= by, w->m[r] = top;
  }
  v4 sum = splat(0);
  for (u32 e = 0; e < n; e += 4) {
    v4 x = exp2((load(s + e) - shift) * scale2);
    i4 there = (i4){0, 1, 2, 3} + (int)e < (int)n;
    x = (v4)((i4)x & there);
    store(s + e, x), sum += x;
  }
  w->l[r] += (sum[0] + sum[1]) + (sum[2] + sum[3]);
  u32 word[4];
  for (u32 e = 0; p->features & DROPOUT && e < n; e++) if (!kept(p, (u32)i, (u32)(j + e), e == 0, word)) s[e] = 0;
}

static void decode_simd128_rows(const block *p, const few *x, u32 i0, u32 i1, u32 j0, u32 j1, u32 flags) {
  forward w = {.d8 = x->d8, .dv8 = x->dv8, .m = x->m, .l = x->l, .l_total = x->l_total, .o = x->o};
  if (flags & FIRST) begin(&w, i1 - i0);
  for (u32 r = 0; r < i1 - i0; r++) {
    i64 i = (i64)i0 + r, lo = clamp(i + p->first, j0, j1), hi = clamp(i + p->last + 1, j0, j1);
    if (lo < hi) {
      u32 c = lo - j0, n = hi - lo;
      dots((float *)AT(p->q) + (u64)r * p->dim, (float *)AT(p->k) + (u64)c * p->dim, p->dim, n, x->s);
      decode_scores(p, x->s, x->limit, r, i, lo, c, n);
      decode_weights(p, &w, r, i, lo, x->s, n);
      mix_row(x->s, (float *)AT(p->v) + (u64)c * p->vdim, p->vdim, n, w.o + r * 2 * w.dv8, p->features & MASK ? x->limit : 0);
    }
    if ((j1 - p->key0) % FOLD == 0) fold_row(&w, r);
    if (flags & LAST) finish_features(p, &w, r);
  }
}
