// Features in the vector kernels, four rows of scores at a time. kernel.c includes this file.
//
// Vector loops over s [4][TILE] scale the products and add features before the softmax. Without SOFTCAP,
// ALIBI and BIAS, scores stay unscaled products, as in calls without features.

enum { ADJUSTS = SOFTCAP | ALIBI | BIAS };  // features that change the scaled products

enum { LEFT = 4 };  // Philox rounds after the first three
enum { LOW, BOTH, UP, BELOW, REST, BY, KEYS = 2 * (BY + 1), CONSTANTS = KEYS + 2 * LEFT };  // see set_rounds

// Data of four rows of a product: query rows in the forward pass, keys in the backward pass.
typedef struct {
  v4 away[TILE / 2 + 2];        // ALiBi's terms by distance, see set_away
  v4 limit[TILE];               // [4][TILE], or [TILE] for all rows: -Inf hides, +Inf does not; forward only
  i4 seen[TILE];                // [4][TILE], all bits set for visible pairs, else none; backward only
  u4 kept[TILE / 4];            // bytes [TILE/8 or TILE/4][4 keys][4 rows] of dropout bits, see draw
  v4 bias[TILE], slope[TILE];   // [4][TILE], backward only; slope is the derivative of the softcap
  u4 eights[TILE / 2], mine[TILE / 2]; // [TILE/8][4] splatted, [TILE/4][2]: see set_eights, set_mine
  u4 rounds[CONSTANTS];         // splatted: see set_rounds
} tables;

static int alike(const block *p, u32 feature) { return (p->repeats & feature) != 0; }
static const float *bias_row(const block *p, u32 r) { return (float *)AT(p->bias) + (alike(p, BIAS) ? 0 : r * TILE); }
static const unsigned char *mask_row(const block *p, u32 r) { return (unsigned char *)AT(p->mask) + (alike(p, MASK) ? 0 : r * TILE); }
// unit returns the factor by which the softmax must multiply scores: 1 if they already include the scale.
static float unit(const block *p) { return p->features & ADJUSTS ? 1 : p->scale; }

// away_at returns the address of entry u of away, |u| < TILE. set_away sets each entry u, |u| < n, to the ALiBi
// term of a pair whose distance from the diagonal is base + sign*u.
static float *away_at(tables *t, int u) { return (float *)t->away + TILE + u; }
static void set_away(const block *p, tables *t, i64 base, int sign, int n) {
  for (int u = 1 - n; u < n; u++) *away_at(t, u) = (float)-(p->slope * __builtin_fabs((double)(base + sign * u)));
}

// cap replaces the scores x by most*tanh(x*scale/most). Unless slope is null, it stores the derivative
// 1-tanh^2 at slope. tanh(4z) is computed as z p(y)/q(y) with y = min(z^2, 2.375^2), limited to [-1, 1].
// The quotient is a minimax fit for |z| <= 2.2. The derivative is computed as e (2/(1+e))^2 with e =
// exp(-8|z|), because the difference 1-tanh^2 would lose its precision.
APART void cap(float *x, const float *end, float *slope, float scale, float most) {
  if (most > 0x1p64f) most = 0x1p64f;  // a larger cap does not change float32 scores
  float by = scale / most * 0.25f;
  if (by > MAX_FLOAT) by = MAX_FLOAT;  // with an infinite factor, a score of 0 would give NaN
  v4 a4 = splat(0.06924249976873398f), a3 = splat(6.583954334259033f), a2 = splat(69.24309539794922f), a1 = splat(165.09329223632812f);
  v4 b3 = splat(26.119110107421875f), b2 = splat(127.87250518798828f), b1 = splat(143.98899841308594f), top = splat(5.640625f);
  PIN(a4); PIN(a3); PIN(a2); PIN(a1); PIN(b3); PIN(b2); PIN(b1); PIN(top);  // keeps the constants in registers
  for (; x != end; x += 8) {
    v4 z[2];
    HIDE(x, end);
    UNROLLED for (int e = 1; e >= 0; e--) {
      z[e] = load(x + e * 4) * by;
      v4 u = min4(z[e] * z[e], top), a = u * a4 + a3, b = u + b3;
      a = a * u + a2, b = b * u + b2;
      a = a * u + a1, b = b * u + b1;
      a = a * u + 77.03678131103516f, b = b * u + 19.25919532775879f;
      store(x + e * 4, max4(min4(z[e] * a / b, splat(1)), splat(-1)) * most);
    }
    if (!slope) continue;
    HIDE(slope, end);
    UNROLLED for (int e = 1; e >= 0; e--) {
      v4 down = exp2((v4)((i4)z[e] & 0x7fffffff) * (-8 * LOG2E)), twice = splat(2) / (down + 1);
      store(slope + e * 4, down * twice * twice);
    }
    slope += 8;
  }
}
// add multiplies four rows of scores by scale and adds four rows of a, which are step floats apart.
APART void add(float *x, const float *end, float scale, const float *a, int step) {
  for (int r = 0; r < 4; r++, x += TILE, end += TILE, a += step)
    for (float *s = x, *b = (float *)a; s != end; s += 8, b += 8) {
      HIDE(s, b);
      v4 b1 = *(v4_any *)(b + 4), b0 = *(v4_any *)b;
      store(s + 4, load(s + 4) * scale + b1), store(s, load(s) * scale + b0);
    }
}
// scores_with computes products, as scores does. If cut is 0, it multiplies the products by scale and adds the
// elements of extra. Otherwise it takes the minimum of each product and an element of extra: -Inf hides the
// pair of row and key, +Inf does not. The rows of extra are step floats apart. The minimum turns a NaN product
// into +Inf. A score of +Inf and a score of NaN lead to NaN in the same outputs.
INLINE void scores_with(const float *a, const float *b, u32 n, float *c, const float *end, float scale, const float *extra, int step, int cut) {
  if (step < 0) extra += 3 * step;  // so that all offsets are positive
  float *far = c + 2 * TILE;        // a second pointer aligns the product's register spills
  for (; c != end; c += 8, far += 8, b += n * 8, extra += 8) {
    v4 sum[4][2] = {{splat(0)}}, last = splat(0);
    multiply(a, b, n, sum);
    HIDE(c, extra);
    HIDE(far, extra);
    if (step < 0) last = *(v4_any *)(extra + 4 - 3 * step);
    PIN(last);  // the highest address comes first, so that one bounds check suffices
    UNROLLED for (int r = 3; r >= 0; r--) UNROLLED for (int e = 1; e >= 0; e--) {
      v4 x = step < 0 && r * 2 == 1 - e ? last : *(v4_any *)(extra + (step < 0 ? r - 3 : r) * step + e * 4);
      store((r < 2 ? c : far) + r % 2 * TILE + e * 4, cut ? min4(x, sum[r][e]) : sum[r][e] * scale + x);
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

// An extra holds the terms that are added to the scores of a span. The rows of bias are step floats apart.
// In away, the ALiBi terms of a row begin one float before the terms of the previous row.
typedef struct { const float *bias, *away; int step; } extra;

// feature_scores computes the scores of a span. It does not apply the mask.
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
// Philox4x32-7 of the counter (j/8, i, head, sequence) yields four random words for row i and keys j to j+7, see
// kept. j is a multiple of 8. The lanes of a vector hold four rows. In the first three rounds, most terms
// depend only on the row or only on the keys. set_mine computes the terms of a row once, and set_eights the
// terms of eight keys. Only one product of the first three rounds remains for each row and eight keys.

#define PHILOX0 0xd2511f53u
#define PHILOX1 0xcd9e8d57u
#define WEYL0 0x9e3779b9u
#define WEYL1 0xbb67ae85u

INLINE u4 splat_word(u32 x) { return (u4){x, x, x, x}; }
// The product of x and a Philox multiplier M is computed from products of signed 16-bit numbers: u and l
// with M = 2^32 + 65536 u + l, and v and k with x-C = 65536 v + k. Here C is 0x80008000, and v and k are
// the halves of x xor C. Then
//
//	x M = 2^32 (v u + x-C) + 65536 (v l + k u) + k l + C M
//
// dot16 adds two products of 16-bit halves. The upper half of x M needs five calls of dot16, and no sum
// overflows.
#define MIDDLE 0x80008000u
static void set_rounds(const block *p, u4 *to) {
  for (u32 e = 0; e < 2; e++, to += KEYS / 2) {
    u32 by = e ? PHILOX1 : PHILOX0, l = by & 0xffff, u = (by - (u32)(short)by) >> 16;
    i64 all = (i64)(((u64)by << 31) + ((u64)by << 15)), below = (int)all;
    to[LOW] = splat_word(l), to[BOTH] = splat_word(l << 16 | u), to[UP] = splat_word(u << 16);
    to[BELOW] = splat_word((u32)below), to[REST] = splat_word((u32)((u64)(all - below) >> 32) - MIDDLE), to[BY] = splat_word(by);
  }
  for (u32 n = LEFT; n-- > 0; to += 2)  // Philox's round keys, from the last round back; except in the last round, xored with C
    for (u32 e = 0; e < 2; e++) to[e] = splat_word((p->seed[e] + (n + 3) * (e ? WEYL1 : WEYL0)) ^ (n < LEFT - 1 ? MIDDLE : 0));
}
static void set_eights(const block *p, tables *t, u32 j, u32 n) {
  u4 *to = t->eights;
  u32 k0 = p->seed[0], k1 = p->seed[1], c1 = PHILOX1 * p->head;
  for (u32 q = j / 8; q < j / 8 + round_up(n, 16) / 8; q++, to += 4) {  // draw processes two eights at a time
    u64 x = (u64)PHILOX0 * (q + p->eight0), y = (u64)PHILOX1 * ((u32)(x >> 32) ^ p->seq ^ k1);
    u64 z = (u64)PHILOX0 * ((u32)(y >> 32) ^ c1 ^ (k0 + WEYL0));
    to[0] = splat_word((u32)x ^ (k1 + WEYL1) ^ MIDDLE), to[1] = splat_word((u32)y ^ (k0 + 2 * WEYL0) ^ MIDDLE);
    to[2] = splat_word((u32)(z >> 32) ^ (k1 + 2 * WEYL1) ^ MIDDLE), to[3] = splat_word((u32)z);
  }
}
static void set_mine(const block *p, tables *t, u32 i, u32 rows) {
  for (u32 r = 0; r < round_up(rows, 8); r++) {
    u64 x = (u64)PHILOX0 * ((u32)((u64)PHILOX1 * p->head >> 32) ^ (p->row0 + i + r) ^ p->seed[0]);
    t->mine[r / 4 * 2][r % 4] = (u32)(x >> 32), t->mine[r / 4 * 2 + 1][r % 4] = (u32)x;
  }
  set_rounds(p, t->rounds);
}
// halves multiplies two vectors x = z xor C by the Philox multiplier whose constants begin at t[e]. z
// becomes the upper 32 bits of the products, xored with other and, unless key is 0, with t[key]. low
// becomes the lower 32 bits. upper is the factor with which dot16 extracts the upper 16 bits.
#define AFTER(p) __asm__ volatile("" : "+r"(p))  // forces the compiler to reload constants, for which there are too few registers
INLINE const u4 *halves(const u4 *t, u4 z[2], u4 other[2], u4 low[2], int e, int key, u4 upper) {
  AFTER(t);
  if (key) {
    u4 k = t[key];
    other[0] ^= k, other[1] ^= k;
    PIN(other[0]);
    PIN(other[1]);
  }
  u4 a[2], x[2], c = t[e + LOW];
  a[1] = dot16(c, z[1]), a[0] = dot16(c, z[0]);
  c = t[e + BELOW], a[1] += c, a[0] += c;
  PIN(a[1]);
  PIN(a[0]);
  a[1] = dot16(a[1], upper), a[0] = dot16(a[0], upper);
  c = t[e + BOTH], a[1] += dot16(c, z[1]), a[0] += dot16(c, z[0]);
  PIN(a[1]);
  PIN(a[0]);
  x[1] = dot16(t[e + UP], z[1]), x[0] = dot16(t[e + UP], z[0]);
  PIN(x[1]);
  PIN(x[0]);
  z[1] ^= MIDDLE, z[0] ^= MIDDLE;
  c = t[e + REST], x[1] += c, x[0] += c, x[1] += z[1], x[0] += z[0];
  PIN(x[1]);
  PIN(x[0]);
  c = t[e + BY];
  u4 k1 = other[1], k0 = other[0];
  low[1] = z[1] * c, low[0] = z[0] * c;
  z[1] = dot16(a[1], upper) + x[1] ^ k1, z[0] = dot16(a[0], upper) + x[0] ^ k0;
  PIN(z[1]);
  PIN(z[0]);
  return t;
}
INLINE i4 not_below(u4 x, u4 least) { return (i4)((h8)x >= (h8)least); }
// draw sets dropout bits, 1 for a kept weight, for groups of four rows and eight keys, from `to` up to end. A
// group has 16 bytes, one for each pair of its four rows and its first four keys. The lowest bit of a byte is
// for the byte's key, the highest bit for the fourth key after the byte's key. The comparisons of 16-bit halves
// give all bits or none. Narrowing to bytes keeps the result of the upper half in the highest bit. By
// saturation, narrowing keeps the result of the lower half in the lowest bit.
APART void draw(const u4 *t, const u4 *mine, u32 next_mine, const u4 *eight, u32 next_eight, u4 *to, const u4 *end, u32 threshold) {
  u4 upper = splat_word(0x10000), least = splat_word(threshold | threshold >> 16);
  PIN(upper);
  for (; to != end; to += 2) {
    u4 z0[2], z2[2], c1[2], c3[2], last = t[KEYS + 2 * LEFT - 1];
    PIN(last);  // the highest address comes first, so that one bounds check suffices
    UNROLLED for (int g = 0; g < 2; g++, mine += next_mine, eight += next_eight) {
      c3[g] = eight[3], z2[g] = mine[1];
      PIN(c3[g]);
      PIN(z2[g]);
      HIDE(mine, eight);
      z2[g] ^= eight[2], c1[g] = eight[1], z0[g] = mine[0] ^ eight[0];
    }
    t = halves(t, z0, c1, c1, KEYS / 2, 0, upper);
    UNROLLED for (int n = LEFT - 1; n >= 0; n--) {
      u4 y[2];
      t = halves(t, z0, c3, y, 0, KEYS + n * 2 + 1, upper);
      t = halves(t, z2, c1, c1, KEYS / 2, KEYS + n * 2, upper);
      UNROLLED for (int g = 0; g < 2; g++) { u4 s = z0[g]; z0[g] = z2[g], z2[g] = s, c3[g] = y[g]; }
    }
    UNROLLED for (int g = 1; g >= 0; g--) to[g] = narrow(not_below(z0[g], least), not_below(c1[g], least), not_below(z2[g], least), not_below(c3[g], least));
  }
}

// ---- Numbers that are not finite ----

// A place has the query rows and keys of a product. Rows begin at row i of the sequence, which is row r of the
// stage. Keys begin at key j of the sequence, which is column c of the stage. If by_key is 0, each sum of the
// product is for one row and runs over keys. Otherwise each sum is for one key and runs over rows. drops is
// nonzero if sums leave out dropped pairs.
typedef struct { i64 i, j; u32 r, c, rows, keys; int by_key, drops; } place;

// takes reports whether the pair of row r and key c of a place is a term of the product's sums.
static int takes(const block *p, const place *at, u32 r, u32 c) {
  i64 i = at->i + r, j = at->j + c;
  u32 word[4];
  if (r >= at->rows || c >= at->keys || j < i + p->first || j > i + p->last) return 0;
  if (p->features & MASK && !mask_row(p, at->r + r)[at->c + c]) return 0;
  return !at->drops || kept(p, (u32)i, (u32)j, 1, word) != 0;
}
// careful is like careful_product, but adds the term of a pair only if takes returns 1 for the pair.
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
