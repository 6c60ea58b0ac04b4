// The forward vector kernel with features. kernel.c includes this file.
//
// Features of scores apply before the softmax, and dropout applies after it. SINK and CARRY apply at the end
// of a row: the sink and the result for earlier keys are two more terms of the row's sums.

// set_limits converts n bytes of a mask row to limits: -Inf for hidden keys, +Inf for the others.
INLINE void set_limits(const unsigned char *mask, u32 n, float *limit) {
  for (u32 c = 0; c < n; c += 4) {
    i4 seen = __builtin_convertvector(*(b4 *)(mask + c), i4) != 0;
    store(limit + c, (v4)((i4)splat(NONE) ^ (seen & (int)0x80000000)));
  }
}
// cut sets the scores of four rows to -Inf where their limits are -Inf, even if a score is NaN.
APART void cut(float *x, const float *end, const float *limit, u32 step) {
  for (u32 r = 0; r < 4; r++, x += TILE, end += TILE, limit += step)
    for (u32 c = 0; x + c != end; c += 4) store(x + c, min4(load(limit + c), load(x + c)));
}
// weigh_kept is weigh with dropout: dropped weights are stored as 0, but the returned sum includes them.
APART float weigh_kept(const float *x, const float *end, float *to, float top, float scale2, const u4 *kept, u32 bit) {
  v4 sum = splat(0);
  u4 lower = splat_word(bit), upper = splat_word(bit << 7);
  PIN(lower);
  PIN(upper);
  for (; x < end; x += 8, to += 128, kept++) {
    HIDE(x, to);
    HIDE(kept, end);
    UNROLLED for (int e = 1; e >= 0; e--) {
      v4 w = exp2((load(x + e * 4) - top) * scale2);
      u4 one = e ? upper : lower;
      i4 stays = (i4)((*kept & one) == one);
      PIN(stays);  // otherwise the compiler would use a select, which needs three more instructions
      sum += w, spread(to + e * 64, 16, (v4)((i4)w & stays));
    }
  }
  return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

// finish_features writes row r of O and LSE. It merges three terms: the current keys with output o/l, the
// earlier keys with the stage's O as output, and the sink, which has no value.
static void finish_features(const block *p, const forward *w, u32 r) {
  fold_row(w, r);
  float *out = (float *)AT(p->o) + (u64)r * p->vdim, *lse = (float *)AT(p->lse) + r, l = w->l_total[r];
  const float *o = w->o + (r * 2 + 1) * w->dv8;
  double own = l == 0 ? NONE : (double)unit(p) * w->m[r] + ln(l), top = own, total, sum;
  double earlier = p->features & CARRY ? *lse : NONE, sink = p->features & SINK ? p->sink : NONE;
  if (earlier > top) top = earlier;
  if (sink > top) top = sink;
  if (top == NONE) top = 0;
  float mine = exp_of(own - top), theirs = exp_of(earlier - top);
  total = (double)mine + theirs + exp_of(sink - top), sum = total == 0 ? NONE : top + ln((float)total);
  float by = l == 0 ? 0 : (float)(mine / total / l * (p->features & DROPOUT ? p->keep : 1)), past = (float)(theirs / total);
  for (u32 d = 0; d < p->vdim; d++) {
    float x = earlier == NONE ? 0 : out[d] * past;
    out[d] = l != 0 ? x + o[d] * by : sum == sum ? x : (float)sum;  // if the row has only a sink and LSE is NaN, O is NaN, too
  }
  *lse = (float)sum;
}

// fwd_feature_block is fwd_block with features.
static void fwd_feature_block(const block *p, const forward *w, tables *t, u32 i0, u32 rows, u32 j, u32 n) {
  u64 b = (j - p->key0) / TILE;
  const float *k = w->k + b * TILE * w->d8, *v = w->v + b * TILE * w->dv8;
  u32 f = p->features, one = alike(p, MASK);
  float *limit = (float *)t->limit;
  if (f & ALIBI) set_away(p, t, (i64)j - i0 - p->diagonal, 1, TILE);
  if (f & DROPOUT) set_eights(p, t, j, n);
  if (f & MASK && one) set_limits(mask_row(p, 0), n, limit);
  for (u32 g = 0; g < rows; g += 4) {
    span s = spans(4, rows - g, (i64)i0 + g - j, p->first, p->last, n);
    if (s.from >= s.to) continue;
    for (u32 r = 0; f & MASK && !one && r < 4; r++) set_limits(mask_row(p, g + r) + s.from, s.to - s.from, limit + r * TILE + s.from);
    const float *q = w->q + g * w->d8 * 4, *keys = k + s.from * w->d8;
    float *from = w->s + s.from, *end = w->s + s.to;
    extra x = {bias_row(p, g), away_at(t, -(int)g), alike(p, BIAS) ? 0 : TILE};
    if (f & ADJUSTS || !(f & MASK)) feature_scores(p, &s, q, keys, w->d8, w->s, 0, &x);
    else if (one) scores_of_keys(q, keys, w->d8, from, end, 1, limit + s.from);
    else scores_of_pairs(q, keys, w->d8, from, end, 1, limit + s.from);
    if (f & ADJUSTS && f & MASK) cut(from, end, limit + s.from, one ? 0 : TILE);
    if (f & DROPOUT) draw(t->rounds, t->mine + g / 2, 0, t->eights + s.from / 16 * 8, 4, t->kept + s.from / 16 * 2, t->kept + round_up(s.to, 16) / 8, p->threshold);
    v4 a = soften(&s, w->s, w->p, w->m + g, w->l + g, per2(unit(p)), f & DROPOUT ? t->kept : 0);
    UNROLLED for (u32 r = 0; r < 4; r++) if (a[r] != 1) rescale(w, g + r, a[r]);
    float *o = w->o + g * 2 * w->dv8;
    place at = {(i64)i0 + g, j, g, 0, rows - g, n, 0, f & DROPOUT};
    if (w->finite[b] != 0 || !(s.partial || f & (MASK | DROPOUT))) across(w->p + s.from * 16, v + s.from * 8, s.to - s.from, o, w->dv8, 2 * w->dv8);
    else for (u32 d = 0; d < w->dv8; d += 8) careful(p, &at, w->p, v + d * TILE, &s, 0, o + d, 2 * w->dv8);
  }
}

static void fwd_simd128_feature_rows(const block *p, const forward *w, u32 i0, u32 i1, u32 j0, u32 j1, u32 flags) {
  const u32 rows = i1 - i0;
  tables t;
  if (p->features & DROPOUT) set_mine(p, &t, i0, rows);
  if (flags & FIRST) splat_rows(AT(p->q), rows, p->dim, w->q), begin(w, round_up(rows, 4));
  for (u32 j = j0; j < j1; j += TILE) {
    fwd_feature_block(p, w, &t, i0, rows, j, j1 - j < TILE ? j1 - j : TILE);
    for (u32 r = 0; (j - p->key0 + TILE) % FOLD == 0 && r < rows; r++) fold_row(w, r);
  }
  for (u32 r = 0; flags & LAST && r < rows; r++) finish_features(p, w, r);
}
