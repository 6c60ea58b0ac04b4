// The backward vector kernel with features. kernel.c includes this file.
//
// In each matrix product, the rows are four keys and the columns are query rows. So bias and mask are
// transposed to [4 keys][TILE rows]. With DBIAS, the kernel also stores dS on the stage, as [row][key].

// transpose_bias transposes the bias of four keys for the rows of span n. The first of the four keys is
// column c of the stage. transpose_mask does the same for the mask.
static void transpose_bias(const block *p, const span *n, u32 c, float *to) {
  for (u32 r = n->from; r < n->to; r++) scatter(to + r, TILE, *(v4_any *)(bias_row(p, r) + c));
}
static void transpose_mask(const block *p, const span *n, u32 c, int *to) {
  for (u32 r = n->from; r < n->to; r++) {
    const unsigned char *m = mask_row(p, r) + c;
    to[r + 3 * TILE] = -(m[3] != 0), to[r + 2 * TILE] = -(m[2] != 0), to[r + TILE] = -(m[1] != 0), to[r] = -(m[0] != 0);
  }
}

// score_feature_gradient is score_gradient with features. bit is the bit of key c in the bytes of kept, see
// draw.
APART void score_feature_gradient(const block *p, const backward *w, const tables *t, const span *n, u32 c, float *dst, float *dbias, int bit) {
  i4 half = {bit, bit, bit, bit};
  const float *s = w->s + c * TILE + n->from, *lse = w->lse + n->from, scale = unit(p), keep = p->keep;
  float *to = w->p + n->from * 16 + c * 4;
  int lo = n->lo[c], hi = n->hi[c], partial = n->partial;
  u32 f = p->features & ~(p->repeats & MASK);
  for (u32 i = n->from; i < n->to; i += 4, s += 4, lse += 4, to += 64) {
    u32 at = (c * TILE + i) / 4;
    HIDE(s, lse);
    v4 v = load(s + 4 * TILE), delta = load(lse + TILE);
    v4 x = (load(s) * scale - load(lse)) * LOG2E, weight = exp2(min4(x, splat(128)));
    i4 kept = {-1, -1, -1, -1}, seen = kept;
    PIN(f);  // keeps one loop for all sets of features
    if (partial) {
      i4 row = (i4){0, 1, 2, 3} + (int)i;
      seen = (row >= lo) & (row < hi);
    }
    if (f & MASK) seen &= t->seen[at];
    if (f & DROPOUT) {
      kept = (__builtin_convertvector(((s4 *)t->kept)[i + c], i4) & half) == half;
      v = (v4)((i4)(v * keep) & kept);
    }
    v4 ds = weight * (v - delta);
    if (dbias) scatter(dbias + i * TILE, TILE, (v4)((i4)ds & seen));
    if (f & SOFTCAP) ds *= t->slope[at];
    if (f & DROPOUT) weight = (v4)((i4)(weight * keep) & kept);
    weight = (v4)((i4)weight & seen), ds = (v4)((i4)ds & seen);
    store(dst + i / 8 * 8 * STRIP + i % 8, ds);
    HIDE(to, dst);
    spread(to + TILE * 16, 16, ds), spread(to, 16, weight);
  }
}

// hide_keys applies a mask to a span whose rows are four keys. All query rows share this mask. Only the
// first `keys` of the four keys exist. A hidden key gets an empty range of query rows.
static void hide_keys(const unsigned char *mask, u32 keys, span *s) {
  for (u32 e = 0; e < 4 && e < keys; e++) if (!mask[e]) s->lo[e] = s->hi[e] = 0, s->partial = 1;
}

// set_tables transposes bias and mask of four keys for the rows of span s. The first of the four keys is
// column c of the stage.
static void set_tables(const block *p, tables *t, const span *s, u32 c) {
  if (p->features & BIAS) transpose_bias(p, s, c, (float *)t->bias);
  if (p->features & MASK && !alike(p, MASK)) transpose_mask(p, s, c, (int *)t->seen);
}

// draw_rows sets the dropout bits of eight keys, from key j+g on, for all query rows that see one of these
// keys. The block of n keys begins at key j.
static void draw_rows(const block *p, tables *t, u32 j, u32 n, u32 i0, u32 rows, u32 g) {
  span s = spans(8, n - g, (i64)j + g - i0, -(i64)p->last, -(i64)p->first, rows);
  if (s.from < s.to) draw(t->rounds, t->mine + s.from / 2, 2, t->eights + g / 2, 0, t->kept + s.from / 4, t->kept + s.to / 4, p->threshold);
}

// bwd_feature_block is bwd_block with features. Its keys start at column c of the stage.
static void bwd_feature_block(const block *p, const backward *w, tables *t, u32 i0, u32 rows, u32 j, u32 n, u32 c) {
  u64 key = j - p->key0, b = key / TILE;
  u32 f = p->features, hidden = f & (MASK | DROPOUT), row = 2 * (w->d8 + w->dv8);
  float *dbias = f & DBIAS ? (float *)AT(p->dbias) + c : 0;
  zero(w->dst, round_up(rows, 8) * STRIP);
  if (f & ALIBI) set_away(p, t, (i64)j - i0 - p->diagonal, -1, rows > STRIP ? TILE : STRIP);
  if (f & DROPOUT) set_eights(p, t, j, n);
  for (u32 g = 0; g < n; g += 4) {
    if (f & DROPOUT && g % 8 == 0) draw_rows(p, t, j, n, i0, rows, g);
    span s = spans(4, n - g, (i64)j + g - i0, -(i64)p->last, -(i64)p->first, rows);
    if (f & MASK && alike(p, MASK)) hide_keys(mask_row(p, 0) + c + g, n - g, &s);
    if (s.from >= s.to) continue;
    set_tables(p, t, &s, c + g);
    extra x = {(float *)t->bias, away_at(t, -(int)g), TILE};
    feature_scores(p, &s, w->k + (key + g) * w->d8 * 4, w->q + s.from * w->d8, w->d8, w->s, (float *)t->slope, &x);
    scores(w->v + (key + g) * w->dv8 * 4, w->dout + s.from * w->dv8, w->dv8, w->dp + s.from, w->dp + s.to);
    for (u32 e = 0; e < 4; e++) score_feature_gradient(p, w, t, &s, e, w->dst + (g + e) * 8, dbias ? dbias + g + e : 0, g % 8 ? 0x80 : 1);
    float *dk = grads_of(w, key + g);
    place at = {i0, (i64)j + g, 0, c + g, rows, n - g, 1, f & DROPOUT};
    if (*w->tile_finite != 0 || !(s.partial || hidden)) {
      across(w->p + s.from * 16, w->doute + s.from * 8, s.to - s.from, dk + w->d8, w->dv8, row);
      across(w->ds + s.from * 16, w->qe + s.from * 8, s.to - s.from, dk, w->d8, row);
      continue;
    }
    for (u32 d = 0; d < w->dv8; d += 8) careful(p, &at, w->p, w->doute + d * TILE, &s, 0, dk + w->d8 + d, row);
    at.drops = 0;
    for (u32 d = 0; d < w->d8; d += 8) careful(p, &at, w->ds, w->qe + d * TILE, &s, 0, dk + d, row);
  }
  const float *kt = w->kt + b * TILE * w->d8 * 4 + key % TILE * 16;
  for (u32 i = 0; i < rows; i += 8) {
    span s = spans(8, rows - i, (i64)i0 + i - j, p->first, p->last, n);
    if (s.from >= s.to) continue;
    const float *ds = w->dst + i * STRIP + s.from * 8, *a = kt;
    float *dq = w->dq + i, *end = dq + w->d8 * TILE;
    place at = {(i64)i0 + i, j, i, c, rows - i, n, 0, 0};
    if (w->finite[b] != 0 || !(s.partial || hidden)) down(kt + s.from * 16, ds, s.to - s.from, dq, end);
    else for (; dq != end; dq += TILE * 4, a += TILE * 16) careful(p, &at, a, w->dst + i * STRIP, &s, 1, dq, TILE);
  }
}

static void bwd_simd128_feature_rows(const block *p, const backward *w, u32 i0, u32 i1, u32 j0, u32 j1, u32 flags) {
  tables t;
  if (p->features & DROPOUT) set_mine(p, &t, i0, i1 - i0);
  if (flags & FIRST) begin_tile(p, w, i1 - i0, flags);
  if (p->features & DBIAS) zero(AT(p->dbias), (i1 - i0) * TILE);
  for (u32 j = j0; j < j1; j += STRIP) {
    next_block(p, w, i1 - i0, j, j > j0 || !(flags & FIRST));
    bwd_feature_block(p, w, &t, i0, i1 - i0, j, j1 - j < STRIP ? j1 - j : STRIP, j - j0);
  }
  end_tile(p, w, i0, i1, j0, j1, flags);
}
