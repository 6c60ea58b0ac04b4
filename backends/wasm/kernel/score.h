// Features of attention calls in the scalar loops. kernel.c includes this file.
//
// A feature acts at the start of a row (SINK, CARRY), on a score (SOFTCAP, BIAS, ALIBI, MASK) or on a weight
// (DROPOUT). Scores in this file are doubles with the scale applied, so that sums and differences keep the
// precision of the dot product.

// capped_tanh returns tanh(x) with a relative error near 1e-15, and sets *slope to 1-tanh(x)^2. With e =
// exp(-2|x|), tanh(|x|) is (1-e)/(1+e), and the slope is 4e/(1+e)^2. The function computes e-1 instead of e,
// without cancellation near x = 0. For this, the function splits -2|x| = n ln2 + r, with an integer n and
// |r| <= ln2/2, and sums the series of exp(r)-1. If -2|x| is below -80, e is negligible.
static double capped_tanh(double x, double *slope) {
  double y = -2 * __builtin_fabs(x), series = 1;
  if (y < -80) y = -80;
  const double whole = 6755399441055744.0;  // 1.5 * 2^52: y + whole has y, rounded to an integer, in the lowest bits
  union { double f; u64 bits; } n = {y * 1.4426950408889634 + whole}, power;
  double times = n.f - whole, r = (y - times * 6.93147180369123816490e-01) - times * 1.90821492927058770002e-10;
  UNROLLED for (int k = 13; k > 1; k--) series = 1 + series * r * (1.0 / k);
  power.bits = (n.bits + 1023) << 52;  // 2^n
  double less = series * r * power.f + (power.f - 1), sum = 2 + less;
  *slope = 4 * (1 + less) / (sum * sum);
  return x < 0 ? less / sum : -less / sum;
}

// score returns the score of row r and key c of the stage (the copies of the host's tensors) from their dot
// product. distance is the distance of the key from the diagonal, for ALiBi. *slope receives the derivative of
// the softcap.
static double score(const block *p, float product, u32 r, u32 c, i64 distance, double *slope) {
  double s = (double)product * p->scale;
  *slope = 1;
  if (p->features & SOFTCAP) s = p->softcap * capped_tanh(s / p->softcap, slope);
  if (p->features & BIAS) s += ((float *)AT(p->bias))[(p->repeats & BIAS ? 0 : r * TILE) + c];
  if (p->features & ALIBI) s -= p->slope * __builtin_fabs((double)distance);
  return s;
}
static int masked(const block *p, u32 r, u32 c) {
  return p->features & MASK && !((unsigned char *)AT(p->mask))[(p->repeats & MASK ? 0 : r * TILE) + c];
}

// kept returns the dropout factor of the weight of row i and key j. The 16 random bits are half of word j%4
// of Philox4x32-7 with the counter (eight0 + j/8, row0 + i, head, seq): the lower half if j%8 < 4, else the
// upper half. word caches the four words for the next keys of the row. first is nonzero if word is not yet set.
static float kept(const block *p, u32 i, u32 j, int first, u32 word[4]) {
  if (!(p->features & DROPOUT)) return 1;
  if (first || j % 8 == 0) {
    u32 c[4] = {j / 8 + p->eight0, i + p->row0, p->head, p->seq}, k0 = p->seed[0], k1 = p->seed[1];
    for (int round = 0; round < 7; round++, k0 += 0x9e3779b9, k1 += 0xbb67ae85) {
      u64 x = 0xd2511f53ull * c[0], y = 0xcd9e8d57ull * c[2];
      c[0] = (u32)(y >> 32) ^ c[1] ^ k0, c[1] = (u32)y;
      c[2] = (u32)(x >> 32) ^ c[3] ^ k1, c[3] = (u32)x;
    }
    for (int n = 0; n < 4; n++) word[n] = c[n];
  }
  return word[j % 4] << (j % 8 < 4 ? 16 : 0) < p->threshold ? 0 : p->keep;
}

static float exp_of(double x) { return exp2_1((float)(x * 1.4426950408889634)); }

// maxima returns the running maxima of the rows, [TILE]. The maxima use the memory of s, which the scalar loops
// do not need.
static double *maxima(const forward *w) { return (double *)w->s; }

// weigh_score returns the weight of score s in row r. It raises the row's running maximum and adds the weight to l.
static float weigh_score(const forward *w, u32 r, double s) {
  double *m = maxima(w) + r;
  if (s > *m) {
    float a = exp_of(*m - s);
    rescale(w, r, a), w->l[r] *= a, *m = s;
  }
  float weight = exp_of(s - (*m == NONE ? 0 : *m));  // if all scores are -Inf: exp(-Inf), not exp(-Inf + Inf)
  w->l[r] += weight;
  return weight;
}

// begin_row initializes row r. With CARRY, the keys of earlier calls count as one key, whose score is the
// stage's LSE and whose value is the stage's O. With SINK, the sink counts as a score without a value.
static void begin_row(const block *p, const forward *w, u32 r) {
  const float *earlier = (float *)AT(p->o) + (u64)r * p->vdim, lse = ((float *)AT(p->lse))[r];
  float *o = w->o + r * 2 * w->dv8;
  zero(o, 2 * w->dv8);
  maxima(w)[r] = NONE, w->l[r] = w->l_total[r] = 0;
  if (p->features & CARRY && lse != NONE) maxima(w)[r] = lse > MAX_FLOAT ? lse - lse : lse, w->l[r] = 1, copy(o, earlier, p->vdim);
  if (p->features & SINK) weigh_score(w, r, p->sink);
}

// finish_row is finish for this file's scores, which include the scale.
static void finish_row(const block *p, const forward *w, u32 r) {
  finish(p, w, r);
  if (w->l_total[r] != 0) ((float *)AT(p->lse))[r] = (float)(maxima(w)[r] + ln(w->l_total[r]));
}

static void fwd_feature_rows(const block *p, const forward *w, u32 i0, u32 i1, u32 j0, u32 j1, u32 flags) {
  const float *q = AT(p->q);
  for (u32 i = i0; i < i1; i++, q += p->dim) {
    u32 r = i - i0, word[4];
    float *o = w->o + r * 2 * w->dv8;
    double slope;
    if (flags & FIRST) begin_row(p, w, r);
    i64 lo = clamp((i64)i + p->first, j0, j1), hi = clamp((i64)i + p->last + 1, j0, j1);
    for (i64 j = lo; j < hi; j++) {
      u64 at = j - p->key0;
      float keep = kept(p, i, j, j == lo, word);
      if (!masked(p, r, j - j0)) {
        float x = dot(q, w->k + at * p->dim, p->dim);
        float weight = weigh_score(w, r, score(p, x, r, j - j0, j - i - p->diagonal, &slope));
        if (keep) add_scaled(o, weight * keep, w->v + at * p->vdim, p->vdim);
      }
      if ((at + 1) % FOLD == 0) fold_row(w, r);
    }
    if (flags & LAST) finish_row(p, w, r);
  }
}

static void bwd_feature_rows(const block *p, const backward *w, u32 i0, u32 i1, u32 j0, u32 j1, u32 flags) {
  for (u32 i = i0; i < i1; i++) {
    u32 r = i - i0, word[4];
    const float *q = (float *)AT(p->q) + (u64)r * p->dim, *o = (float *)AT(p->o) + (u64)r * p->vdim;
    const float *dout = (float *)AT(p->dout) + (u64)r * p->vdim;
    float *dq = begin_dq(p, w, r, flags), lse = ((float *)AT(p->lse))[r];
    float *dbias = p->features & DBIAS ? (float *)AT(p->dbias) + r * TILE : 0;
    float delta = dot(dout, o, p->vdim) - ((float *)AT(p->dlse))[r];
    double slope;
    if (dbias) zero(dbias, TILE);
    i64 lo = clamp((i64)i + p->first, j0, j1), hi = clamp((i64)i + p->last + 1, j0, j1);
    if (lse == NONE) hi = lo;  // every score is -Inf: the row has no weights
    for (i64 j = lo; j < hi; j++) {
      u64 at = j - p->key0;
      float keep = kept(p, i, j, j == lo, word);
      if (at % TILE == 0) fold_dq_row(dq, w->d8);
      if (masked(p, r, j - j0)) continue;
      const float *k = w->k + at * p->dim, *v = w->v + at * p->vdim;
      double s = score(p, dot(q, k, p->dim), r, j - j0, j - i - p->diagonal, &slope) - lse;
      float weight = exp_of(s > 88 ? 88 : s);
      float ds = weight * ((keep ? keep * dot(dout, v, p->vdim) : 0) - delta), dx = ds * (float)slope;
      float *dk = grads_of(w, at);
      if (dbias) dbias[j - j0] = ds;
      if (keep) add_scaled(dk + w->d8, weight * keep, dout, p->vdim);
      add_scaled(dk, dx, q, p->dim);
      add_scaled(dq, dx, k, p->dim);
    }
    if (flags & LAST) end_dq(p, w, r, flags);
  }
  if (i0 / FOLD < i1 / FOLD) fold_grads(w, j0 - p->key0, j1 - p->key0);
}
