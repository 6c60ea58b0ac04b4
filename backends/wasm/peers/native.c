// kernel.c as a native program. native PASS T D prints the median GFLOP/s of one head with T query rows, T keys
// and head dim D. native peak prints the processor's maximum GFLOP/s with the same instructions.
//
//	gcc -O3 -msse4.2 -o native native.c
#define _POSIX_C_SOURCE 199309L
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#define exp2 kernel_exp2
#include "../kernel/kernel.c"

char *native_memory;
u64 native_bytes;

static u32 at = 64;
static u32 area(u64 floats) {
  u32 here = round_up(at, 64);
  at = here + 4 * floats;
  return here;
}

static u32 state = 1;
static float *noise(u64 n) {
  float *x = malloc(n * 4);
  for (u64 i = 0; i < n; i++) {
    state = state * 1664525 + 1013904223;
    x[i] = (float)(state >> 8) / (1 << 23) - 1;
  }
  return x;
}

static void must(int code) {
  if (code) fprintf(stderr, "code %d\n", code), exit(1);
}

static u32 T, D, b;
static float *Q, *K, *V, *O, *L, *DO, *DQ, *DK, *DV;

static void put(u32 to, const float *x, u32 row, u32 dim) { memcpy(AT(to), x + (u64)row * dim, TILE * dim * 4); }
static void get(u32 from, float *x, u32 row, u32 dim) { memcpy(x + (u64)row * dim, AT(from), TILE * dim * 4); }

static void forward_pass(void) {
  block *p = AT(b);
  for (u32 j = 0; j < T; j += TILE) put(p->k, K, j, D), put(p->v, V, j, D), must(export_fwd_simd128_keys(b, j, j + TILE));
  for (u32 i = 0; i < T; i += TILE) {
    put(p->q, Q, i, D);
    must(export_fwd_simd128_rows(b, i, i + TILE, 0, T, FIRST | LAST));
    get(p->o, O, i, D), get(p->lse, L, i, 1);
  }
}

static void backward_pass(void) {
  block *p = AT(b);
  for (u32 j = 0; j < T; j += TILE) put(p->k, K, j, D), put(p->v, V, j, D), must(export_bwd_simd128_keys(b, j, j + TILE));
  for (u32 i = 0; i < T; i += TILE) {
    put(p->q, Q, i, D), put(p->o, O, i, D), put(p->dout, DO, i, D), put(p->lse, L, i, 1);
    memset(AT(p->dlse), 0, TILE * 4), memset(AT(p->dq), 0, TILE * D * 4);
    must(export_bwd_simd128_rows(b, i, i + TILE, 0, T, FIRST | LAST | SCALED));
    get(p->dq, DQ, i, D);
  }
  for (u32 j = 0; j < T; j += TILE) must(export_bwd_grads(b, j, j + TILE)), get(p->k, DK, j, D), get(p->v, DV, j, D);
}

static double cpu(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return t.tv_sec + t.tv_nsec * 1e-9;
}

static int by_size(const void *x, const void *y) { return (*(double *)x > *(double *)y) - (*(double *)x < *(double *)y); }

// peak returns the GFLOP/s of independent multiplications and additions of 4-wide vectors. This is the limit of
// code without fused multiply-add.
static double peak(void) {
  enum { CHAINS = 7, TIMES = 20000000 };
  v4 product[CHAINS], sum[CHAINS], one = splat(1);
  UNROLLED for (int i = 0; i < CHAINS; i++) product[i] = sum[i] = splat(i);
  PIN(one);
  double best = 0;
  for (int round = 0; round < 5; round++) {
    double start = cpu();
    for (int n = 0; n < TIMES; n++)
      UNROLLED for (int i = 0; i < CHAINS; i++) {
        product[i] *= one;
        PIN(product[i]);
        sum[i] += one;
        PIN(sum[i]);
      }
    double rate = 8.0 * CHAINS * TIMES / (cpu() - start) / 1e9;
    best = rate > best ? rate : best;
  }
  return best;
}

int main(int count, char **args) {
  if (count == 2 && !strcmp(args[1], "peak")) return printf("%.2f\n", peak()) < 0;
  if (count != 4) return 2;
  int back = !strcmp(args[1], "backward");
  T = atoi(args[2]), D = atoi(args[3]);
  native_bytes = 512 << 20;
  native_memory = aligned_alloc(64, native_bytes);
  Q = noise(T * D), K = noise(T * D), V = noise(T * D), O = noise(T * D), L = noise(T);
  DO = noise(T * D), DQ = noise(T * D), DK = noise(T * D), DV = noise(T * D);
  b = area(sizeof(block) / 4);
  block *p = AT(b);
  *p = (block){.magic = MAGIC, .version = VERSION, .dim = D, .vdim = D, .keys = T, .first = -2 * (int)T, .last = 2 * (int)T, .scale = 1 / sqrtf(D)};
  p->q = area(TILE * D), p->k = area(TILE * D), p->v = area(TILE * D), p->o = area(TILE * D), p->lse = area(TILE);
  p->dout = area(TILE * D), p->dlse = area(TILE), p->dq = area(TILE * D);
  p->scratch_bytes = 256 << 20, p->scratch = area(p->scratch_bytes / 4);
  forward_pass();
  double times[1000], end = cpu() + 0.5;
  int n = 0;
  while (n < 1000 && (cpu() < end || n < 5)) {
    double start = cpu();
    back ? backward_pass() : forward_pass();
    times[n++] = cpu() - start;
  }
  qsort(times, n, sizeof *times, by_size);
  printf("%.2f\n", 4.0 * T * T * D * (back ? 2.5 : 1) / times[n / 2] / 1e9);
}
