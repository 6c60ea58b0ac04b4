// The vector kernels: the computation of the scalar loops, in tiles. kernel.c includes this file.

// ---- The product of tiles ----
//
// Both passes use one loop, four rows by eight columns:
//
//	c[r][n] += sum over k of a[k][r] * b[k][n]
//
// a is [k][4] splatted: each number is stored four times, as a vector of equal lanes. b is [k][8]. The shape
// fits sixteen registers: eight for sums, two for b, one for a. wazero keeps the order of instructions, so
// the order in the source decides the speed. The UNROLL steps go from the highest address down, b1 before b0,
// so that one bounds check per pointer covers all loads. PIN after each sum keeps the compiler from moving all
// loads to the front and spilling registers. HIDE keeps the compiler from replacing constant offsets by
// additions, each with its own bounds check. a is splatted in memory, because a load is cheaper than any other
// way to fill four lanes.
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
        c[r][1] = madd(x, b1, c[r][1]);
        PIN(c[r][1]);
        c[r][0] = madd(x, b0, c[r][0]);
        PIN(c[r][0]);
      }
    }
    a += UNROLL * 16, b += UNROLL * 8;
  } while (b != end);
}

// add_product adds the product of a [n][4] and b [n][8] to c [4][8], whose rows are step floats apart. n is a
// positive multiple of 8.
INLINE void add_product(const float *a, const float *b, u32 n, float *c, u32 step) {
  v4 sum[4][2] = {{splat(0)}};
  multiply(a, b, n, sum);
  UNROLLED for (int r = 0; r < 4; r++, c += step) store(c, load(c) + sum[r][0]), store(c + 4, load(c + 4) + sum[r][1]);
}

// These functions compute several products per call, because each call saves and restores eight registers.
// scores and across multiply the same a by consecutive groups of eight columns. scores overwrites the columns
// of c [4][TILE] from c to end. across adds to `width` columns of c, whose rows are step floats apart. down
// multiplies consecutive groups of four rows by the same b and adds to the rows of c [][TILE] from c to end.
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

// A span limits the steps (values of k) of a product. Row or column number r uses the steps [lo[r], hi[r]).
// [from, to) covers all steps in use, rounded outwards to multiples of 8. partial is nonzero if a row or
// column does not use all steps in [from, to).
typedef struct { u32 lo[8], hi[8], from, to, partial; } span;

// spans returns the span of `count` rows, of which only the first `of` exist. Row r uses the steps k, 0 <=
// k < n, from at+r+first to at+r+last, both included.
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
// careful_product adds the product over the span to c. Each sum leaves out the steps outside [lo, hi) of
// its row, or of its column if by_column is nonzero. The weights of these steps are 0, but the other
// factors may be NaN, and 0 * NaN is NaN. The terms are added in the same order as in multiply.
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

// span_across and span_down are across and down for the steps of a span. finite is nonzero if the factors
// of the weights are finite. Steps outside [lo, hi) are then included, because their weights are 0.
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
// Packing copies rows x [n][dim] to a layout for multiply, padded with zeros to multiples of 8 rows and 8
// elements. Splatted layouts are for multiply's a, the other layouts for its b. Each function returns whether
// all numbers are finite, because 0 times infinity or NaN is NaN.

enum { ROWS, ELEMENTS, SPLAT_ROWS, SPLAT_ELEMENTS };
// four loads min(left, 4) numbers from p; the other numbers of the vector are 0.
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
  for (u32 r = 0; r < round_up(n, 8); r++, x += dim) {
    u32 d = 0;
    for (; how <= ELEMENTS && r < n && d + 8 <= dim; d += 8) {  // the fast path, since the backward pass packs each tile four times
      const float *from = x + d;
      float *at = how == ROWS ? to + (r / 8 * d8 + d) * 8 + r % 8 : to + d * TILE + r * 8;
      HIDE(from, at);
      UNROLLED for (int e = 4; e >= 0; e -= 4) {
        v4 v = *(const v4_any *)(from + e);
        none += v * 0;
        if (how == ROWS) scatter(at + e * 8, 8, v);
        else store(at + e, v);
      }
    }
    for (; d < d8; d += 4) {
      v4 v = four(x + d, r < n ? (int)(dim - d) : 0);
      none += v * 0;
      if (how == ROWS) scatter(to + (r / 8 * d8 + d) * 8 + r % 8, 8, v);
      if (how == ELEMENTS) store(to + d / 8 * TILE * 8 + r * 8 + d % 8, v);
      if (how == SPLAT_ROWS) {
        float *at = to + (r / 4 * d8 + d) * 16 + r % 4 * 4;
        HIDE(x, at);
        spread(at, 16, v);
      }
      if (how == SPLAT_ELEMENTS) spread(to + (d / 4 * TILE + r) * 16, 4, v);
    }
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

APART float weigh_kept(const float *x, const float *end, float *to, float top, float scale2, const u4 *kept, u32 bit);
// weigh turns a row of scores into weights and returns their sum. The number of scores is a multiple of
// eight. Weight j is stored four times, in floats 16j to 16j+3 from `to` on. weigh is a separate function
// so that its loop does not reload the registers of soften.
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

// soften is a step of the online softmax, for a span's four rows. It turns the scores s [4][TILE] into
// weights p [TILE][4], each stored four times. It raises the running maxima m, adds the weights to l, and
// returns the factors by which the caller rescales the earlier sums of O. The scale is applied after the
// subtraction of the maximum, so that large scores keep their precision. kept [TILE/8] has the dropout bits
// that draw sets, or is 0 without dropout.
APART v4 soften(const span *n, float *s, float *p, float *m, float *l, float scale2, const u4 *kept) {
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
  v4 shift = (v4)((i4)top & (top != splat(NONE)));  // if every score is -Inf, weights must be 0, not exp(-Inf + Inf)
  UNROLLED for (int r = 0; r < 4; r++)
    if (!kept) sums[r] = weigh(s + r * TILE + n->from, s + r * TILE + n->to, p + n->from * 16 + r * 4, shift[r], scale2);
    else sums[r] = weigh_kept(s + r * TILE + n->from, s + r * TILE + n->to, p + n->from * 16 + r * 4, shift[r], scale2, kept + n->from / 8, 1u << 8 * r);
  v4 alpha = exp2((old - shift) * scale2);
  i4 raised = (old < top) & (old != splat(NONE));  // without earlier weights, the sums are 0 or NaN
  alpha = (v4)(((i4)alpha & raised) | ((i4)splat(1) & ~raised));
  store(m, top), store(l, load(l) * alpha + sums);
  return alpha;
}

// fwd_block accumulates one block of n keys, which begins at key j, for `rows` query rows.
static void fwd_block(const block *p, const forward *w, u32 i0, u32 rows, u32 j, u32 n) {
  u64 b = (j - p->key0) / TILE;
  const float *k = w->k + b * TILE * w->d8, *v = w->v + b * TILE * w->dv8;
  for (u32 g = 0; g < rows; g += 4) {
    span s = spans(4, rows - g, (i64)i0 + g - j, p->first, p->last, n);
    if (s.from >= s.to) continue;
    scores(w->q + g * w->d8 * 4, k + s.from * w->d8, w->d8, w->s + s.from, w->s + s.to);
    v4 a = soften(&s, w->s, w->p, w->m + g, w->l + g, per2(p->scale), 0);
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
// Rows of matrix products are four keys, and columns are query rows. A prime marks a transposed matrix:
//
//	S' = K Q', dP' = V dO';  P = exp(scale*S - LSE), dS = P*(dP - delta);  dV += P' dO, dK += dS' Q
//
// Once per block of keys, dQ' += K' dS'. The rows of this product are columns of K.

static void bwd_simd128_keys(const block *p, const backward *w, u64 key, u32 n) {
  splat_rows(AT(p->k), n, p->dim, w->k + key * w->d8 * 4), splat_rows(AT(p->v), n, p->vdim, w->v + key * w->dv8 * 4);
  w->finite[key / TILE] = splat_elements(AT(p->k), n, p->dim, w->kt + key * w->d8 * 4);
  zero(grads_of(w, key), grads_of(w, TILE) - w->grads);
}

// delta returns dO·O - dLSE of row r. The terms of dO·O are added in the same order as the terms of dP. So if
// a row sees one key and dLSE is 0, dP and delta are equal, and dS is 0.
static float delta(const block *p, u32 r) {
  u32 left = p->vdim;
  const float *dout = (float *)AT(p->dout) + r * left, *o = (float *)AT(p->o) + r * left, *dlse = AT(p->dlse);
  float sum = 0;
  for (; left >= UNROLL; left -= UNROLL, dout += UNROLL, o += UNROLL) {
    HIDE(dout, o);
    UNROLLED for (int u = UNROLL - 1; u >= 0; u--) sum += dout[u] * o[u];
  }
  while (left-- > 0) sum += dout[left] * o[left];
  return sum - dlse[r];
}
// more_dq initializes the totals of dQ with the stage's dQ. fold_dq adds the sums of dQ over the current block
// of keys to the totals and clears the sums.
APART void more_dq(const block *p, const backward *w, u32 rows) {
  const float *dq = AT(p->dq);
  for (u32 r = 0; r < rows; r++)
    for (u32 d = 0; d < p->dim; d++) w->dq[(w->d8 + d) * TILE + r] = *dq++;
}
APART void fold_dq(const backward *w, u32 rows) {
  u64 behind = w->d8 * TILE;
  for (float *x = w->dq, *all = x + behind; x != all; x += TILE)
    for (float *at = x, *end = x + round_up(rows, 8); at != end; at += 4)
      store(at + behind, load(at + behind) + load(at)), store(at, splat(0));
}
APART void begin_tile(const block *p, const backward *w, u32 rows, u32 flags) {
  const float *q = AT(p->q), *dout = AT(p->dout), *lse = AT(p->lse);
  *w->tile_finite = pack_rows(q, rows, p->dim, w->q) & pack_rows(dout, rows, p->vdim, w->dout);
  pack_elements(q, rows, p->dim, w->qe), pack_elements(dout, rows, p->vdim, w->doute);
  zero(w->dq, 2 * w->d8 * TILE);
  if (flags & MORE) more_dq(p, w, rows);
  for (u32 r = 0; r < round_up(rows, 8); r++) {
    w->lse[r] = r < rows && lse[r] != NONE ? lse[r] : -NONE;
    w->delta[r] = r < rows ? delta(p, r) : 0;
  }
}

// score_gradient computes P and dS of key c, one of four keys, from S and dP. In memory dP follows S, delta
// follows LSE, and dS follows P, so that one bounds check covers two loads or two stores.
APART void score_gradient(const backward *w, const span *n, u32 c, float scale, float *dst) {
  const float *s = w->s + c * TILE + n->from, *end = w->s + c * TILE + n->to, *lse = w->lse + n->from;
  float *p = w->p + n->from * 16 + c * 4;
  int lo = n->lo[c], hi = n->hi[c], partial = n->partial;
  i4 row = (i4){0, 1, 2, 3} + (int)n->from;
  for (dst += n->from * STRIP; s != end; s += 8, lse += 8, p += 128, dst += 8 * STRIP, row += 8) {
    HIDE(s, lse);
    HIDE(p, dst);
    UNROLLED for (int e = 4; e >= 0; e -= 4) {
      v4 dp = load(s + 4 * TILE + e), delta = load(lse + TILE + e);
      v4 x = (load(s + e) * scale - load(lse + e)) * LOG2E, weight = exp2(min4(x, splat(128))), ds = weight * (dp - delta);
      if (partial) {
        i4 seen = (row + e >= lo) & (row + e < hi);
        weight = (v4)((i4)weight & seen), ds = (v4)((i4)ds & seen);
      }
      store(dst + e, ds);
      spread(p + TILE * 16 + e * 16, 16, ds), spread(p + e * 16, 16, weight);
    }
  }
}

// bwd_block accumulates the gradients of `rows` query rows and one block of n keys, which begins at key j.
static void bwd_block(const block *p, const backward *w, u32 i0, u32 rows, u32 j, u32 n) {
  u64 key = j - p->key0, b = key / TILE;
  u32 finite = *w->tile_finite != 0, row = 2 * (w->d8 + w->dv8);
  zero(w->dst, round_up(rows, 8) * STRIP);
  for (u32 g = 0; g < n; g += 4) {  // the rows from j-last to j-first see key j
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

// next_block adds the sums of dQ to the totals and clears the sums, if a new block of TILE keys begins at
// key j. For the first keys of a tile, begun is 0 and next_block does nothing.
INLINE void next_block(const block *p, const backward *w, u32 rows, u32 j, int begun) {
  if (begun && (j - p->key0) % TILE == 0) fold_dq(w, rows);
}
// end_tile ends a call for a tile. If the flag LAST is set, it writes dQ of the tile to the stage.
APART void end_tile(const block *p, const backward *w, u32 i0, u32 i1, u32 j0, u32 j1, u32 flags) {
  if (i0 / FOLD < i1 / FOLD) fold_grads(w, j0 - p->key0, j1 - p->key0);
  if (!(flags & LAST)) return;
  fold_dq(w, i1 - i0);
  float *dq = AT(p->dq), scale = flags & SCALED ? p->scale : 1;
  for (u32 r = 0; r < i1 - i0; r++) {
    const float *sum = w->dq + w->d8 * TILE + r;
    u32 left = p->dim;
    for (; left >= 8; left -= 8, dq += 8, sum += 8 * TILE) {
      HIDE(dq, sum);
      UNROLLED for (int d = 7; d >= 0; d--) dq[d] = sum[d * TILE] * scale;
    }
    for (; left > 0; left--, dq++, sum += TILE) *dq = *sum * scale;
  }
}
static void bwd_simd128_rows(const block *p, const backward *w, u32 i0, u32 i1, u32 j0, u32 j1, u32 flags) {
  if (flags & FIRST) begin_tile(p, w, i1 - i0, flags);
  for (u32 j = j0; j < j1; j += STRIP) {
    next_block(p, w, i1 - i0, j, j > j0 || !(flags & FIRST));
    bwd_block(p, w, i0, i1 - i0, j, j1 - j < STRIP ? j1 - j : STRIP);
  }
  end_tile(p, w, i0, i1, j0, j1, flags);
}
