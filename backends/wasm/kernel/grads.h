// The sums of gradients. kernel.c includes this file.

// grads_of returns the address of a key's partial sums of dK and dV. In memory, the totals of this key
// follow, then the partial sums of the next key.
INLINE float *grads_of(const backward *w, u64 key) { return w->grads + key * 2 * (w->d8 + w->dv8); }
static void fold_grads(const backward *w, u64 key, u64 end) {
  for (; key < end; key++) fold(grads_of(w, key), w->d8 + w->dv8);
}

// fold_dq_row adds a row's partial sums of dQ, each over at most TILE keys, to the row's totals. In memory,
// the totals follow the partial sums. Only the scalar loops call this function.
APART void fold_dq_row(float *dq, u64 n) { fold(dq, n); }
// begin_dq returns the address of the partial sums of dQ of row r, for the scalar loops. If the flag FIRST
// is set, it initializes sums and totals. end_dq writes the totals to the stage.
APART float *begin_dq(const block *p, const backward *w, u32 r, u32 flags) {
  float *dq = w->dq + r * 2 * w->d8;
  if (flags & FIRST) zero(dq, 2 * w->d8);
  if (flags & FIRST && flags & MORE) copy(dq + w->d8, (float *)AT(p->dq) + (u64)r * p->dim, p->dim);
  return dq;
}
APART void end_dq(const block *p, const backward *w, u32 r, u32 flags) {
  float *dq = w->dq + r * 2 * w->d8, *out = (float *)AT(p->dq) + (u64)r * p->dim;
  fold_dq_row(dq, w->d8);
  for (u32 d = 0; d < p->dim; d++) out[d] = dq[w->d8 + d] * (flags & SCALED ? p->scale : 1);
}
