// What features do to the scores of a tile, four rows of it at a time. kernel.c includes this.
//
// Scores s [4][TILE] get what features add after their products and before the softmax, by
// loops of vectors over them, which scale them too. Scores that are only hidden, or joined
// by a sink or by earlier keys, stay products, as in plain calls.

enum { ADJUSTS = SOFTCAP | ALIBI | BIAS };  // what makes other scores than scaled products

// What four rows of a product have: query rows in the forward pass, keys in the backward pass.
typedef struct {
  v4 away[TILE / 2 + 2];        // ALiBi by distance, see set_away
  v4 limit[TILE];               // [4][TILE], or [TILE] for all rows: -Inf hides, +Inf does not; forward only
  i4 seen[TILE];                // [4][TILE]: all bits or none; backward only
  u4 word[TILE];                // [4][TILE]: random words
  v4 bias[TILE], slope[TILE];   // [4][TILE]: backward only; slope is the derivative of the softcap
  u4 quad[TILE], mine[TILE / 2], key[14]; // [TILE/4][4] splatted, [TILE/4][2], [7][2] splatted: see set_quads, set_mine
} tables;

static int alike(const block *p, u32 feature) { return (p->repeats & feature) != 0; }
static const float *bias_row(const block *p, u32 r) { return (float *)AT(p->bias) + (alike(p, BIAS) ? 0 : r * TILE); }
static const unsigned char *mask_row(const block *p, u32 r) { return (unsigned char *)AT(p->mask) + (alike(p, MASK) ? 0 : r * TILE); }
// unit returns what is left to multiply a score by.
static float unit(const block *p) { return p->features & ADJUSTS ? 1 : p->scale; }

// away_at returns where away has distance u, |u| < TILE. set_away sets it to what a pair at
// the distance base+u, or base-u, gives from its score, for u of which |u| < n.
static float *away_at(tables *t, int u) { return (float *)t->away + TILE + u; }
static void set_away(const block *p, tables *t, i64 base, int sign, int n) {
  for (int u = 1 - n; u < n; u++) *away_at(t, u) = (float)-(p->slope * __builtin_fabs((double)(base + sign * u)));
}

// cap sets scores x to most*tanh(x*scale/most), and slope, if there is one, to the derivative, 1-tanh^2.
// tanh(4z) is z p(z^2)/q(z^2), a minimax fit to |z| <= 2.2; it is cut off at 2.375, where the quotient is
// above 1. The derivative is e (2/(1+e))^2 with e = exp(-8|z|): a difference would lose what is left of it.
APART void cap(float *x, const float *end, float *slope, float scale, float most) {
  if (most > 0x1p64f) most = 0x1p64f;  // a float could not tell capped scores from others
  float by = scale / most * 0.25f;
  if (by > MAX_FLOAT) by = MAX_FLOAT;  // or a score of 0 would be NaN
  v4 a4 = splat(0.06924249976873398f), a3 = splat(6.583954334259033f), a2 = splat(69.24309539794922f), a1 = splat(165.09329223632812f);
  v4 b3 = splat(26.119110107421875f), b2 = splat(127.87250518798828f), b1 = splat(143.98899841308594f), top = splat(5.640625f);
  PIN(a4); PIN(a3); PIN(a2); PIN(a1); PIN(b3); PIN(b2); PIN(b1); PIN(top);  // in registers
  for (; x != end; x += 4) {
    HIDE(x, end);
    v4 z = load(x) * by, u = min4(z * z, top), a = u * a4 + a3, b = u + b3;
    a = a * u + a2, b = b * u + b2;
    a = a * u + a1, b = b * u + b1;
    a = a * u + 77.03678131103516f, b = b * u + 19.25919532775879f;
    store(x, max4(min4(z * a / b, splat(1)), splat(-1)) * most);
    if (!slope) continue;
    v4 e = exp2((v4)((i4)z & 0x7fffffff) * (-8 * LOG2E)), twice = splat(2) / (e + 1);
    store(slope, e * twice * twice), slope += 4;
  }
}
// add scales four rows of scores, and adds rows that lie step apart.
APART void add(float *x, const float *end, float scale, const float *a, int step) {
  for (int r = 0; r < 4; r++, x += TILE, end += TILE, a += step)
    for (float *s = x, *b = (float *)a; s != end; s += 8, b += 8) {
      HIDE(s, b);
      v4 b1 = *(v4_any *)(b + 4), b0 = *(v4_any *)b;
      store(s + 4, load(s + 4) * scale + b1), store(s, load(s) * scale + b0);
    }
}
// scores_with is scores that become x*scale plus a row of `extra`, or are cut off at a row of it: -Inf hides, +Inf
// does not. Rows lie step apart. A NaN becomes +Inf, which makes NaN of the same outputs.
INLINE void scores_with(const float *a, const float *b, u32 n, float *c, const float *end, float scale, const float *extra, int step, int cut) {
  for (; c != end; c += 8, b += n * 8, extra += 8) {
    v4 sum[4][2] = {{splat(0)}};
    multiply(a, b, n, sum);
    HIDE(c, extra);
    UNROLLED for (int r = 3; r >= 0; r--) UNROLLED for (int e = 1; e >= 0; e--) {
      v4 x = *(v4_any *)(extra + r * step + e * 4);
      store(c + r * TILE + e * 4, cut ? min4(x, sum[r][e]) : sum[r][e] * scale + x);
    }
  }
}
#define SCORES_WITH(name, step, cut)                                                       \
  APART void name(const float *a, const float *b, u32 n, float *c, const float *end, float scale, const float *extra) { \
    scores_with(a, b, n, c, end, scale, extra, step, cut);                                 \
  }
SCORES_WITH(scores_away, -1, 0)
SCORES_WITH(scores_biased, TILE, 0)
SCORES_WITH(scores_of_keys, 0, 1)
SCORES_WITH(scores_of_pairs, TILE, 1)

// An extra is what the scores of a span get: rows of the bias, step apart, and of away, a step of -1 apart.
typedef struct { const float *bias, *away; int step; } extra;

// feature_scores makes scores of products, but hides none.
static void feature_scores(const block *p, const span *n, const float *a, const float *b, u32 d8, float *s, float *slope, const extra *x) {
  float scale = p->scale, *c = s + n->from, *end = s + n->to;
  u32 left = p->features & ADJUSTS;
  if (left == ALIBI) scores_away(a, b, d8, c, end, scale, x->away + n->from), left = 0;
  else if (left == BIAS && x->step) scores_biased(a, b, d8, c, end, scale, x->bias + n->from), left = 0;
  else scores(a, b, d8, c, end);
  if (left & SOFTCAP) {
    for (u32 r = 0; r < 4; r++) cap(c + r * TILE, end + r * TILE, slope ? slope + r * TILE + n->from : 0, scale, p->softcap);
    scale = 1;
  }
  if (left & BIAS) add(c, end, scale, x->bias + n->from, x->step), scale = 1;
  if (left & ALIBI) add(c, end, scale, x->away + n->from, -1);
}

// ---- Dropout ----
//
// The random words of a row and four keys from j on, j a multiple of 4, are Philox4x32-10 of
// (j/4, i, head, sequence): see kept. Four rows are in the lanes. The first rounds mix little, so that what
// depends on the row alone, or on the keys alone, is computed once: of three rounds one product is left.

#define PHILOX0 0xd2511f53u
#define PHILOX1 0xcd9e8d57u
#define WEYL0 0x9e3779b9u
#define WEYL1 0xbb67ae85u

INLINE u4 splat_word(u32 x) { return (u4){x, x, x, x}; }
static void set_quads(const block *p, tables *t, u32 j, u32 n) {
  u4 *to = t->quad;
  u32 k0 = p->seed[0], k1 = p->seed[1], c1 = PHILOX1 * p->head;
  for (u32 q = j / 4; q < (j + n + 3) / 4; q++, to += 4) {
    u64 x = (u64)PHILOX0 * q, y = (u64)PHILOX1 * ((u32)(x >> 32) ^ p->seq ^ k1);
    u64 z = (u64)PHILOX0 * ((u32)(y >> 32) ^ c1 ^ (k0 + WEYL0));
    to[0] = splat_word((u32)x ^ (k1 + WEYL1)), to[1] = splat_word((u32)y ^ (k0 + 2 * WEYL0));
    to[2] = splat_word((u32)(z >> 32) ^ (k1 + 2 * WEYL1)), to[3] = splat_word((u32)z);
  }
}
static void set_mine(const block *p, tables *t, u32 i, u32 rows) {
  for (u32 r = 0; r < round_up(rows, 8); r++) {
    u64 x = (u64)PHILOX0 * ((u32)((u64)PHILOX1 * p->head >> 32) ^ (i + r) ^ p->seed[0]);
    t->mine[r / 4 * 2][r % 4] = (u32)(x >> 32), t->mine[r / 4 * 2 + 1][r % 4] = (u32)x;
  }
  for (u32 n = 0; n < 7; n++) t->key[n * 2] = splat_word(p->seed[0] + (n + 3) * WEYL0), t->key[n * 2 + 1] = splat_word(p->seed[1] + (n + 3) * WEYL1);
}
// The constants of a round, kept in registers by PIN: the multipliers, and their halves of 16 bits.
typedef struct { u4 low, by[2], by_low[2], by_up[2]; } multipliers;
INLINE multipliers pinned(void) {
  multipliers m;
  m.low = splat_word(0xffff);
  UNROLLED for (int e = 0; e < 2; e++) {
    u32 by = e ? PHILOX1 : PHILOX0;
    m.by[e] = splat_word(by), m.by_low[e] = splat_word(by & 0xffff), m.by_up[e] = splat_word(by >> 16);
    PIN(m.by[e]);
    PIN(m.by_low[e]);
    PIN(m.by_up[e]);
  }
  PIN(m.low);
  return m;
}
// high returns the upper halves of products with a multiplier, by 16 bits: there is no such instruction.
INLINE u4 high(u4 x, const multipliers *m, int e) {
  u4 low = x & m->low, up = x >> 16, a = up * m->by_low[e] + (low * m->by_low[e] >> 16), b = low * m->by_up[e] + (a & m->low);
  return up * m->by_up[e] + (a >> 16) + (b >> 16);
}
// words sets [4 keys] the words of four rows. keys are those of the rounds.
INLINE void words(const multipliers *m, const u4 *keys, const u4 *mine, const u4 *quad, u4 word[4]) {
  u4 c2 = mine[0] ^ quad[0], c0 = high(c2, m, 1) ^ quad[1], c1 = c2 * m->by[1], c3 = quad[3];
  c2 = quad[2] ^ mine[1];
  for (const u4 *end = keys + 14; keys != end; keys += 2) {
    u4 x = high(c0, m, 0) ^ c3 ^ keys[1], y = high(c2, m, 1) ^ c1 ^ keys[0];
    c1 = c2 * m->by[1], c3 = c0 * m->by[0], c0 = y, c2 = x;
  }
  word[0] = c0, word[1] = c1, word[2] = c2, word[3] = c3;
}

// ---- What is not finite ----

// A place says which pairs a product is of: rows from i on, row r of the stage, and keys
// from j on, column c. by_key says that those who take its steps are keys, not rows.
typedef struct { i64 i, j; u32 r, c, rows, keys; int by_key, drops; } place;

// takes reports whether row r of a place and its key c have a part in a product.
static int takes(const block *p, const place *at, u32 r, u32 c) {
  i64 i = at->i + r, j = at->j + c;
  u32 word[4];
  if (r >= at->rows || c >= at->keys || j < i + p->first || j > i + p->last) return 0;
  if (p->features & MASK && !mask_row(p, at->r + r)[at->c + c]) return 0;
  return !at->drops || kept(p, (u32)i, (u32)j, 1, word) != 0;
}
// careful is careful_product where pairs are hidden, or dropped, one by one.
APART void careful(const block *p, const place *at, const float *a, const float *b, const span *s, int by_column, float *c, u32 step) {
  for (u32 e = 0; e < 32; e++) {
    u32 r = e / 8, n = e % 8, who = by_column ? n : r;
    float sum = 0;
    for (u32 x = s->from; x < s->to; x++) {
      u32 k = x ^ (UNROLL - 1);
      if (takes(p, at, at->by_key ? k : who, at->by_key ? who : k)) sum += a[k * 16 + r * 4] * b[k * 8 + n];
    }
    c[r * step + n] += sum;
  }
}
