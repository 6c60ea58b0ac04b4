/*
 * Behavior other than numerics: structure sizes, handles, threads, cancellation, merge,
 * explain and workspace, signals, fork, and the smaller interface.
 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "flashkit.h"

static int failures;

#define SAY(what, ...)                                                         \
	do {                                                                   \
		if (!(what)) {                                                 \
			failures++;                                            \
			printf("FAIL %s:%d: %s: ", __FILE__, __LINE__, #what); \
			printf(__VA_ARGS__);                                   \
			putchar('\n');                                         \
		}                                                              \
	} while (0)

#define CHECK(what) SAY(what, "%s", "")

/* A problem with one sequence, and its memory. */
typedef struct work {
	fk_problem p;
	fk_args a;
	float *memory;
} work;

static float noise(uint32_t i)
{
	i = (i ^ i >> 16) * 0x85EBCA6Bu;
	i = (i ^ i >> 13) * 0xC2B2AE35u;
	return (float)((i ^ i >> 16) >> 8) / (1 << 23) - 1;
}

static work new_work(int64_t heads, int64_t n, int64_t m, int64_t d)
{
	work w = {fk_problem_init(), fk_args_init(), NULL};
	size_t rows = (size_t)(heads * n * d), keys = (size_t)(heads * m * d), lses = (size_t)(heads * n), at = 0;
	size_t sizes[] = {rows, keys, keys, rows, lses, rows, rows, keys, keys};
	fk_tensor *to[] = {&w.a.q, &w.a.k, &w.a.v, &w.a.o, &w.a.lse, &w.a.d_o, &w.a.d_q, &w.a.d_k, &w.a.d_v};
	w.memory = malloc((4 * rows + 4 * keys + lses) * sizeof(float));
	for (int i = 0; i < 9; at += sizes[i++]) {
		for (size_t j = 0; j < sizes[i]; j++)
			w.memory[at + j] = noise((uint32_t)(at + j));
		int is_keys = to[i] == &w.a.k || to[i] == &w.a.v || to[i] == &w.a.d_k || to[i] == &w.a.d_v;
		*to[i] = fk_dense(w.memory + at, FK_F32, 1, heads, is_keys ? m : n, sizes[i] == lses && i == 4 ? 1 : d);
	}
	fk_error e = fk_error_init();
	SAY(fk_problem_of(&w.a, &w.p, &e) == FK_OK, "%s", e.message);
	return w;
}

static float *values(fk_tensor *t) { return t->data; }

static fk_dispatcher *open_frozen(void)
{
	fk_dispatcher *d = NULL;
	fk_error e = fk_error_init();
	SAY(fk_open("auto", FK_OPEN_FROZEN | FK_OPEN_BLANK, &d, &e) == FK_OK, "%s", e.message);
	return d;
}

static void test_sizes(fk_dispatcher *d)
{
	work w = new_work(2, 4, 4, 8);
	fk_error e = fk_error_init();
	struct { fk_args a; uint64_t later[4]; } longer = {w.a, {0}};
	longer.a.size = sizeof longer;
	SAY(fk_forward(d, &w.p, &longer.a, &e) == FK_OK, "%s", e.message);
	longer.later[3] = 1;
	SAY(fk_forward(d, &w.p, &longer.a, &e) == FK_ERR_SIZE && strcmp(e.field, "args.size") == 0, "%s", e.message);

	/* A structure that ends before timeout_ns. The memory after it is not part of the structure. */
	fk_args shorter = w.a;
	shorter.size = offsetof(fk_args, timeout_ns);
	shorter.timeout_ns = -1;
	shorter.cancel = (fk_cancel *)&shorter;
	SAY(fk_forward(d, &w.p, &shorter, &e) == FK_OK, "%s", e.message);
	fk_problem before = w.p;
	before.size = offsetof(fk_problem, page);
	before.page = 99;
	SAY(fk_forward(d, &before, &w.a, &e) == FK_OK, "%s", e.message);
	CHECK(fk_problem_of(&w.a, &before, &e) == FK_OK && before.page == 99 && before.size == offsetof(fk_problem, page));

	w.p.heads = 3;
	fk_error small = {.size = offsetof(fk_error, message)};
	small.message[0] = 'x';
	CHECK(fk_forward(d, &w.p, &w.a, &small) == FK_ERR_DIMENSION && small.code == FK_ERR_DIMENSION);
	SAY(strcmp(small.field, "kv_heads") == 0 && small.message[0] == 'x', "%s", small.field);
	CHECK(fk_forward(d, &w.p, &w.a, NULL) == FK_ERR_DIMENSION);
	free(w.memory);
}

/* A cache fills structures of programs with an older or a newer flashkit.h. */
static void test_cache_sizes(void)
{
	fk_error e = fk_error_init();
	fk_cache_config config = fk_cache_config_init();
	fk_cache *c = NULL;
	struct { fk_args a; uint64_t later[4]; } longer = {fk_args_init(), {7, 7, 7, 7}};
	fk_args shorter = fk_args_init();
	config.batch = config.kv_heads = config.capacity = config.dim = 4;
	SAY(fk_cache_new(&config, &c, &e) == FK_OK, "%s", e.message);
	longer.a.size = sizeof longer, shorter.size = offsetof(fk_args, rowmax), shorter.rowmax.dtype = 7;
	SAY(fk_cache_args(c, &longer.a, NULL, &e) == FK_OK && fk_cache_args(c, &shorter, NULL, &e) == FK_OK, "%s", e.message);
	CHECK(longer.later[0] == 7 && shorter.rowmax.dtype == 7 && shorter.k.data != NULL && shorter.size == offsetof(fk_args, rowmax));
	CHECK(fk_cache_free(c, &e) == FK_OK);
}

static void *cancel_soon(void *c)
{
	struct timespec t = {0, 20000000};
	nanosleep(&t, NULL);
	CHECK(fk_cancel_now(c, NULL) == FK_OK);
	return NULL;
}

static void test_cancel(fk_dispatcher *d)
{
	work w = new_work(8, 8192, 8192, 64); /* its passes take seconds */
	fk_error e = fk_error_init();
	pthread_t thread;
	CHECK(fk_cancel_new(&w.a.cancel, &e) == FK_OK);
	CHECK(pthread_create(&thread, NULL, cancel_soon, w.a.cancel) == 0);
	SAY(fk_forward(d, &w.p, &w.a, &e) == FK_ERR_CANCELED && strcmp(e.field, "cancel") == 0, "%s", e.message);
	pthread_join(thread, NULL);
	SAY(fk_backward(d, &w.p, &w.a, &e) == FK_ERR_CANCELED, "%s", e.message); /* a call after fk_cancel_now is canceled, too */
	CHECK(fk_cancel_free(w.a.cancel, &e) == FK_OK);
	SAY(fk_forward(d, &w.p, &w.a, &e) == FK_ERR_HANDLE, "%s", e.message);
	w.a.cancel = NULL;
	w.a.timeout_ns = 10000000;
	SAY(fk_forward(d, &w.p, &w.a, &e) == FK_ERR_TIMEOUT && strcmp(e.field, "timeout_ns") == 0, "%s", e.message);
	free(w.memory);
}

static void narrow(void *to, const float *from, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		uint32_t bits;
		memcpy(&bits, from + i, 4);
		((uint16_t *)to)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
	}
}

/* Merging the first keys with the rest gives the result over all keys. */
static void test_merge(fk_dispatcher *d)
{
	enum { HEADS = 2, N = 6, M = 20, FIRST = 7, DIM = 8, SIZE = HEADS * N * DIM };
	work w = new_work(HEADS, N, M, DIM);
	fk_error e = fk_error_init();
	float o[2][SIZE], lse[2][HEADS * N];
	uint16_t half[2][SIZE];
	SAY(fk_forward(d, &w.p, &w.a, &e) == FK_OK, "%s", e.message);
	fk_tensor to[2], weights[2], halves[2];
	for (int part = 0; part < 2; part++) {
		fk_args a = w.a;
		fk_problem p = w.p;
		int64_t from = part ? FIRST : 0, keys = part ? M - FIRST : FIRST;
		a.k.data = values(&w.a.k) + from * DIM, a.v.data = values(&w.a.v) + from * DIM;
		a.k.shape[2] = a.v.shape[2] = p.kv_len = keys;
		a.o = to[part] = fk_dense(o[part], FK_F32, 1, HEADS, N, DIM);
		a.lse = weights[part] = fk_dense(lse[part], FK_F32, 1, HEADS, N, 1);
		SAY(fk_forward(d, &p, &a, &e) == FK_OK, "%s", e.message);
		narrow(half[part], o[part], SIZE);
		halves[part] = fk_dense(half[part], FK_BF16, 1, HEADS, N, DIM);
	}
	SAY(fk_merge(&halves[0], NULL, &halves[0], &weights[0], &halves[1], &weights[1], &e) == FK_OK, "%s", e.message);
	SAY(fk_merge(&to[1], &weights[1], &to[0], &weights[0], &to[1], &weights[1], &e) == FK_OK, "%s", e.message);
	for (int i = 0; i < SIZE; i++) {
		uint32_t bits = (uint32_t)half[0][i] << 16;
		float x;
		memcpy(&x, &bits, 4);
		SAY(fabsf(o[1][i] - values(&w.a.o)[i]) < 1e-6f, "o[%d] = %g, want %g", i, o[1][i], values(&w.a.o)[i]);
		SAY(fabsf(x - values(&w.a.o)[i]) < 1e-2f, "bf16 o[%d] = %g, want %g", i, x, values(&w.a.o)[i]);
	}
	for (int i = 0; i < HEADS * N; i++)
		SAY(fabsf(lse[1][i] - values(&w.a.lse)[i]) < 1e-6f, "lse[%d] = %g, want %g", i, lse[1][i], values(&w.a.lse)[i]);

	/* A row without keys contributes nothing, even if its o is NaN. Merging two rows without
	   keys gives a row without keys. */
	for (int i = 0; i < HEADS * N; i++)
		lse[0][i] = -INFINITY;
	for (int i = 0; i < SIZE; i++)
		o[0][i] = NAN;
	SAY(fk_merge(&to[0], NULL, &to[0], &weights[0], &to[1], &weights[1], &e) == FK_OK, "%s", e.message);
	CHECK(memcmp(o[0], o[1], sizeof o[0]) == 0);
	SAY(fk_merge(&to[1], &weights[1], &to[0], &weights[0], &to[0], &weights[0], &e) == FK_OK, "%s", e.message);
	CHECK(o[1][0] == 0 && o[1][SIZE - 1] == 0 && lse[1][3] == -INFINITY);
	free(w.memory);
}

/* Sequences after a shared prefix give the results of a call over all keys. The prefix and the other
   keys are contiguous, or in pages of one pool. */
static void test_prefix(fk_dispatcher *d)
{
	enum { SEQS = 3, HEADS = 4, KV = 2, N = 2, SHARED = 12, OWN = 8, DIM = 8, PAGE = 4, ALL = SHARED + OWN, ROWS = SEQS * HEADS * N };
	static float q[ROWS * DIM], k[2][SEQS * KV * ALL * DIM], pool[2][(SHARED + SEQS * OWN) * KV * DIM], o[2][ROWS * DIM], lse[2][ROWS];
	static const int32_t shared[] = {4, 0, 8}, own[SEQS * OWN / PAGE] = {1, 2, 3, 5, 6, 7}, own_lens[SEQS] = {7, 2, 8};
	int32_t lens[SEQS];
	fk_error e = fk_error_init();
	for (int i = 0; i < ROWS * DIM; i++)
		q[i] = noise((uint32_t)i);
	for (int s = 0; s < SEQS; s++) {
		lens[s] = SHARED + own_lens[s];
		for (int which = 0; which < 2; which++)
			for (int g = 0; g < KV; g++)
				for (int j = 0; j < ALL; j++) { /* key j of all sequences has the same values if it is in the prefix */
					int page = j < SHARED ? shared[j / PAGE] : own[s * (OWN / PAGE) + (j - SHARED) / PAGE];
					for (int c = 0; c < DIM; c++) {
						float x = noise((uint32_t)(((j < SHARED ? 9 : s) * ALL + j) * 100 + g * 40 + which * 20 + c));
						k[which][((s * KV + g) * ALL + j) * DIM + c] = x;
						pool[which][((page * KV + g) * PAGE + j % PAGE) * DIM + c] = x;
					}
				}
	}
	for (int how = 0; how < 9; how++) { /* contiguous or paged, for own keys and for the prefix; how 8: without lse */
		fk_args a = fk_args_init();
		fk_problem p = fk_problem_init();
		fk_prefix first = fk_prefix_init();
		int pages = how & 1, pages_first = how & 2;
		a.q = fk_dense(q, FK_F32, SEQS, HEADS, N, DIM);
		a.k = fk_dense(k[0], FK_F32, SEQS, KV, ALL, DIM), a.v = fk_dense(k[1], FK_F32, SEQS, KV, ALL, DIM);
		a.o = fk_dense(o[0], FK_F32, SEQS, HEADS, N, DIM), a.lse = fk_dense(lse[0], FK_F32, SEQS, HEADS, N, 1);
		a.seqs = SEQS, a.kv_lens = lens;
		p.band = how & 4 ? FK_BAND_CAUSAL : FK_BAND_FULL;
		SAY(fk_problem_of(&a, &p, &e) == FK_OK && fk_forward(d, &p, &a, &e) == FK_OK, "%s", e.message);
		a.k.shape[2] = a.v.shape[2] = OWN, a.kv_lens = own_lens;
		a.k.data = k[0] + SHARED * DIM, a.v.data = k[1] + SHARED * DIM, a.o.data = o[1], a.lse.data = lse[1];
		first.k = a.k, first.v = a.v;
		first.k.data = k[0], first.v.data = k[1], first.k.shape[0] = first.v.shape[0] = 1, first.k.shape[2] = first.v.shape[2] = SHARED;
		if (pages) {
			a.k = fk_dense(pool[0], FK_F32, 9, KV, PAGE, DIM), a.v = fk_dense(pool[1], FK_F32, 9, KV, PAGE, DIM);
			a.pages = own, a.pages_per_seq = OWN / PAGE;
		}
		if (pages_first) {
			first.k = fk_dense(pool[0], FK_F32, 9, KV, PAGE, DIM), first.v = fk_dense(pool[1], FK_F32, 9, KV, PAGE, DIM);
			first.pages = shared, first.page_count = SHARED / PAGE, first.len = SHARED;
		}
		if (how == 8)
			memset(&a.lse, 0, sizeof a.lse);
		memset(o[1], 0, sizeof o[1]);
		SAY(fk_problem_of(&a, &p, &e) == FK_OK && fk_forward_prefix(d, &p, &first, &a, &e) == FK_OK, "%s", e.message);
		for (int i = 0; i < ROWS * DIM; i++)
			SAY(fabsf(o[0][i] - o[1][i]) < 1e-6f, "how %d: o[%d] = %g, want %g", how, i, o[1][i], o[0][i]);
		for (int i = 0; i < ROWS && how < 8; i++)
			SAY(fabsf(lse[0][i] - lse[1][i]) < 1e-6f, "how %d: lse[%d] = %g, want %g", how, i, lse[1][i], lse[0][i]);
	}
}

/* A cache with forked, truncated and evicted sequences gives the results of a call over their keys. */
static void test_cache(fk_dispatcher *d)
{
	enum { SEQS = 3, KV = 2, HEADS = 4, DIM = 32, CAPACITY = 24, ROWS = 11, SIZE = SEQS * KV * ROWS * DIM };
	static const int32_t types[] = {FK_F32, FK_BF16, FK_F16, FK_I8, FK_F32};
	static float k[SIZE], v[SIZE], q[SEQS * HEADS * DIM], o[SEQS * HEADS * DIM], want[HEADS * DIM];
	static const int32_t prompt[SEQS] = {ROWS, 0, 0}, more[SEQS] = {3, 5, 0};
	fk_error e = fk_error_init();
	for (int i = 0; i < SIZE; i++)
		k[i] = noise((uint32_t)i), v[i] = noise((uint32_t)(SIZE + i));
	for (int i = 0; i < SEQS * HEADS * DIM; i++)
		q[i] = noise((uint32_t)(i + 99));
	for (int how = 0; how < 5; how++) { /* the last without pages */
		fk_cache *c = NULL;
		fk_cache_config config = fk_cache_config_init();
		fk_args a = fk_args_init();
		fk_problem p = fk_problem_init();
		fk_prefix prefix = fk_prefix_init();
		const int32_t *next = NULL;
		int64_t pages = -1;
		fk_tensor kt = fk_dense(k, FK_F32, SEQS, KV, ROWS, DIM), vt = fk_dense(v, FK_F32, SEQS, KV, ROWS, DIM);
		config.batch = SEQS, config.kv_heads = KV, config.capacity = CAPACITY, config.dim = DIM, config.dtype = types[how], config.page = how < 4 ? 4 : 0;
		SAY(fk_cache_new(&config, &c, &e) == FK_OK && fk_cache_append(c, &kt, &vt, prompt, &e) == FK_OK, "%s", e.message);
		SAY(fk_cache_fork(c, 0, 1, &e) == FK_OK && fk_cache_fork(c, 0, 2, &e) == FK_OK, "%s", e.message);
		CHECK(fk_cache_state(c, &next, &pages, &e) == FK_OK && next[2] == ROWS && pages == (how < 4 ? 15 : 0));
		SAY(fk_cache_append(c, &kt, &vt, more, &e) == FK_OK && fk_cache_truncate(c, 1, ROWS + 4, &e) == FK_OK, "%s", e.message);
		SAY(fk_cache_evict(c, 0, ROWS - 1, ROWS, &e) == FK_OK && fk_cache_evict(c, 1, ROWS - 1, ROWS, &e) == FK_OK, "%s", e.message);
		a.q = fk_dense(q, FK_F32, SEQS, HEADS, 1, DIM), a.o = fk_dense(o, FK_F32, SEQS, HEADS, 1, DIM);
		SAY(fk_cache_args(c, &a, how == 1 || how == 4 ? &prefix : NULL, &e) == FK_OK && fk_problem_of(&a, &p, &e) == FK_OK, "%s", e.message);
		CHECK(next[0] == ROWS + 3 && next[1] == ROWS + 4 && a.kv_lens[0] == (how == 1 ? 5 : 13) && prefix.len == (how == 1 ? 8 : 0));
		SAY((how == 1 || how == 4 ? fk_forward_prefix(d, &p, &prefix, &a, &e) : fk_forward(d, &p, &a, &e)) == FK_OK, "%s", e.message);
		for (int s = 0; s < SEQS; s++) { /* the prompt without its last row, then rows of sequence s; sequence 2 has the prompt */
			int n = ROWS - (s < 2), len = s == 0 ? n + 3 : s == 1 ? n + 4 : n;
			static float keys[2][KV * CAPACITY * DIM];
			fk_args x = fk_args_init();
			fk_problem own = fk_problem_init();
			for (int g = 0; g < KV; g++)
				for (int j = 0; j < len; j++) {
					int from = j < n ? g * ROWS + j : (s * KV + g) * ROWS + j - n, to = (g * len + j) * DIM;
					memcpy(keys[0] + to, k + from * DIM, DIM * sizeof(float)), memcpy(keys[1] + to, v + from * DIM, DIM * sizeof(float));
				}
			x.q = fk_dense(q + s * HEADS * DIM, FK_F32, 1, HEADS, 1, DIM), x.o = fk_dense(want, FK_F32, 1, HEADS, 1, DIM);
			x.k = fk_dense(keys[0], FK_F32, 1, KV, len, DIM), x.v = fk_dense(keys[1], FK_F32, 1, KV, len, DIM);
			SAY(fk_problem_of(&x, &own, &e) == FK_OK && fk_forward(d, &own, &x, &e) == FK_OK, "%s", e.message);
			float bound = config.dtype == FK_F32 ? 1e-6f : config.dtype == FK_F16 ? 1e-3f : 1e-2f;
			for (int i = 0; i < HEADS * DIM; i++)
				SAY(fabsf(o[s * HEADS * DIM + i] - want[i]) < bound, "how %d: o[%d][%d] = %g, want %g", how, s, i, o[s * HEADS * DIM + i], want[i]);
		}
		CHECK(fk_cache_remove(c, 0, &e) == FK_OK && a.kv_lens[1] == (how == 1 ? 6 : 14) && fk_cache_reset(c, &e) == FK_OK && next[1] == 0);
		CHECK(fk_cache_state(c, NULL, &pages, &e) == FK_OK && pages == (how < 4 ? 18 : 0) && fk_cache_free(c, &e) == FK_OK);
	}
}

static void test_questions(fk_dispatcher *d)
{
	work w = new_work(2, 128, 128, 64);
	fk_error e = fk_error_init();
	fk_memory m = fk_memory_init();
	char text[1 << 14], cut[16];
	size_t needed = 0, again = 0;
	int chosen = 0;
	SAY(fk_explain(d, &w.p, FK_PASS_BACKWARD, text, sizeof text, &needed, &e) == FK_OK, "%s", e.message);
	CHECK(needed == strlen(text) && needed > 0);
	for (char *line = text; line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL)
		chosen += *line == '*';
	SAY(chosen == 1, "%s", text);
	memset(cut, 'x', sizeof cut);
	CHECK(fk_explain(d, &w.p, FK_PASS_BACKWARD, cut, 8, &again, &e) == FK_OK && again > 8);
	CHECK(strlen(cut) == 7 && memcmp(cut, text, 7) == 0 && cut[8] == 'x');
	CHECK(fk_kernels(d, NULL, 0, &needed, &e) == FK_OK && needed > 0);
	SAY(fk_kernels(d, text, sizeof text, NULL, &e) == FK_OK && strstr(text, "simd/fwd_generic\tforward\t"), "%s", text);
	SAY(fk_workspace(d, &w.p, FK_PASS_BACKWARD, &m, &e) == FK_OK && m.host > 0 && m.device == 0, "%g", m.host);
	for (int code = -1; code <= FK_ERR_INTERNAL + 1; code++)
		CHECK((strcmp(fk_error_string(code), "unknown error") == 0) == (code < 0 || code > FK_ERR_INTERNAL));
	snprintf(text, sizeof text, "%d.%d.%d", FK_VERSION_MAJOR, FK_VERSION_MINOR, FK_VERSION_PATCH);
	CHECK(strcmp(fk_version(), text) == 0);
	free(w.memory);
}

/* Training flags do not change which calls are valid. */
static void test_flags(void)
{
	work w = new_work(2, 1, 64, 32);
	fk_error e = fk_error_init();
	fk_dispatcher *d;
	SAY(fk_open("simd", FK_OPEN_FROZEN | FK_OPEN_PAIRED | FK_OPEN_BLANK | FK_OPEN_ANY_ORDER, &d, &e) == FK_OK, "%s", e.message);
	SAY(fk_forward(d, &w.p, &w.a, &e) == FK_OK && fk_backward(d, &w.p, &w.a, &e) == FK_OK, "%s", e.message);
	CHECK(e.code == FK_OK && e.field[0] == 0 && e.message[0] == 0);
	CHECK(fk_close(d, &e) == FK_OK);
	SAY(fk_open("simd", FK_OPEN_UNPAIRED, &d, &e) == FK_OK && fk_forward(d, &w.p, &w.a, &e) == FK_OK && fk_close(d, &e) == FK_OK, "%s", e.message);
	CHECK(setenv("FLASHKIT_BACKEND", "simd/fwd_generic", 1) == 0 && fk_open(NULL, 0, &d, &e) == FK_OK);
	char text[1 << 14];
	CHECK(fk_kernels(d, text, sizeof text, NULL, &e) == FK_OK && strstr(text, "simd/fwd_generic") == text && !strstr(text, "avx"));
	CHECK(fk_close(d, &e) == FK_OK && unsetenv("FLASHKIT_BACKEND") == 0);
	free(w.memory);
}

typedef struct thread_work {
	fk_dispatcher *d;
	work w;
	float *want;
	int closing;
} thread_work;

static void *call_often(void *x)
{
	thread_work *t = x;
	fk_error e = fk_error_init();
	size_t bytes = (size_t)(t->w.p.heads * t->w.p.q_len * t->w.p.dim) * sizeof(float);
	for (int i = 0; i < 50; i++) {
		int code = fk_forward(t->d, &t->w.p, &t->w.a, &e);
		if (t->closing && code == FK_ERR_HANDLE)
			break;
		SAY(code == FK_OK, "%s", e.message);
		CHECK(memcmp(t->want, t->w.a.o.data, bytes) == 0);
	}
	return NULL;
}

/* Eight threads run calls, each with its own problem. They run again while the handle closes. */
static void test_threads(fk_dispatcher *d)
{
	for (int closing = 0; closing < 2; closing++) {
		pthread_t threads[8];
		thread_work t[8];
		fk_error e = fk_error_init();
		fk_dispatcher *shared = closing ? open_frozen() : d;
		for (int i = 0; i < 8; i++) {
			t[i] = (thread_work){shared, new_work(1 + i % 3, 16 + 9 * i, 40 + 11 * i, 32), NULL, closing};
			SAY(fk_forward(shared, &t[i].w.p, &t[i].w.a, &e) == FK_OK, "%s", e.message);
			size_t bytes = (size_t)(t[i].w.p.heads * t[i].w.p.q_len * t[i].w.p.dim) * sizeof(float);
			t[i].want = malloc(bytes);
			memcpy(t[i].want, t[i].w.a.o.data, bytes);
		}
		for (int i = 0; i < 8; i++)
			CHECK(pthread_create(&threads[i], NULL, call_often, &t[i]) == 0);
		if (closing)
			SAY(fk_close(shared, &e) == FK_OK, "%s", e.message);
		for (int i = 0; i < 8; i++) {
			pthread_join(threads[i], NULL);
			free(t[i].want), free(t[i].w.memory);
		}
	}
}

static volatile sig_atomic_t caught[NSIG];
static sigjmp_buf back;

static void on_signal(int number)
{
	caught[number]++;
	if (number == SIGSEGV)
		siglongjmp(back, 1);
}

static void handle(int number)
{
	struct sigaction s = {0};
	s.sa_handler = on_signal;
	s.sa_flags = SA_ONSTACK | SA_RESTART; /* the Go runtime requires these flags */
	CHECK(sigaction(number, &s, NULL) == 0);
}

/* The program's signal handlers stay installed and receive signals during a call. */
static void test_signals(fk_dispatcher *d)
{
	work w = new_work(4, 2048, 2048, 64);
	fk_error e = fk_error_init();
	handle(SIGINT), handle(SIGTERM), handle(SIGALRM), handle(SIGUSR1), handle(SIGSEGV);
	for (int i = 0; i < 3; i++) {
		struct timespec t = {0, 2000000};
		timer_t timer;
		struct sigevent v = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGALRM};
		struct itimerspec every = {t, t};
		CHECK(timer_create(CLOCK_MONOTONIC, &v, &timer) == 0 && timer_settime(timer, 0, &every, NULL) == 0);
		SAY(fk_forward(d, &w.p, &w.a, &e) == FK_OK, "%s", e.message);
		CHECK(timer_delete(timer) == 0);
	}
	raise(SIGINT), raise(SIGTERM), raise(SIGUSR1);
	CHECK(caught[SIGINT] == 1 && caught[SIGTERM] == 1 && caught[SIGUSR1] == 1 && caught[SIGALRM] > 0);
	if (sigsetjmp(back, 1) == 0)
		raise(SIGSEGV);
	CHECK(caught[SIGSEGV] == 1);
	SAY(fk_forward(d, &w.p, &w.a, &e) == FK_OK, "after a fault of the host: %s", e.message);
	signal(SIGSEGV, SIG_DFL);
	free(w.memory);
}

static void test_fork(fk_dispatcher *d)
{
	work w = new_work(1, 4, 4, 8);
	fk_error e = fk_error_init();
	fflush(stdout);
	pid_t child = fork();
	if (child == 0) {
		FlashAttentionParams p = {1, 1, 4, 8, 0, 0, 0};
		int ok = fk_forward(d, &w.p, &w.a, &e) == FK_ERR_FORKED && e.message[0] != 0 && fk_close(d, NULL) == FK_ERR_FORKED;
		fk_prefix prefix = fk_prefix_init();
		fk_cache_config config = fk_cache_config_init();
		fk_cache *cache;
		ok &= fk_forward_prefix(d, &w.p, &prefix, &w.a, &e) == FK_ERR_FORKED && fk_cache_new(&config, &cache, &e) == FK_ERR_FORKED;
		ok &= fk_cache_append(NULL, NULL, NULL, NULL, &e) == FK_ERR_FORKED && fk_cache_reset(NULL, &e) == FK_ERR_FORKED;
		ok &= flash_attention_cpu_forward(w.a.q.data, w.a.k.data, w.a.v.data, w.a.o.data, &p) == FLASH_ATTENTION_ERR_FORKED;
		ok &= flash_attention_cpu_backward(w.a.q.data, w.a.k.data, w.a.v.data, w.a.d_o.data, w.a.d_q.data, w.a.d_k.data, w.a.d_v.data, &p) == FLASH_ATTENTION_ERR_FORKED;
		_exit(ok ? 0 : 1);
	}
	int status = -1;
	SAY(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0, "status %d", status);
	SAY(fk_forward(d, &w.p, &w.a, &e) == FK_OK, "the parent goes on: %s", e.message);
	free(w.memory);
}

/* naive computes attention of one head directly by its definition. */
static double naive(const float *q, const float *k, const float *v, const float *g, int n, int d, int causal, float *o)
{
	double loss = 0, *s = malloc((size_t)n * sizeof *s);
	for (int i = 0; i < n; i++) {
		double most = -INFINITY, sum = 0;
		int last = causal ? i : n - 1;
		for (int j = 0; j <= last; j++) {
			s[j] = 0;
			for (int c = 0; c < d; c++)
				s[j] += (double)q[i * d + c] * k[j * d + c] / sqrt(d);
			most = fmax(most, s[j]);
		}
		for (int j = 0; j <= last; j++)
			sum += s[j] = exp(s[j] - most);
		for (int c = 0; c < d; c++) {
			double x = 0;
			for (int j = 0; j <= last; j++)
				x += s[j] / sum * v[j * d + c];
			if (o)
				o[i * d + c] = (float)x;
			loss += x * g[i * d + c];
		}
	}
	free(s);
	return loss;
}

static void test_classic(void)
{
	static const int dims[] = {1, 3, 64, 512};
	for (int t = 0; t < 8; t++) {
		int n = 9, d = dims[t / 2], size = n * d;
		FlashAttentionParams p = {.batch = 1, .heads = 2, .seq_len = n, .head_dim = d, .block_m = 64, .block_n = 64, .causal = t % 2};
		float *x = malloc((size_t)size * 18 * sizeof *x), *want = x + 16 * size;
		float *q = x, *k = x + 2 * size, *v = x + 4 * size, *g = x + 6 * size, *o = x + 8 * size, *in[] = {q, k, v}, *grad[] = {x + 10 * size, x + 12 * size, x + 14 * size};
		for (int i = 0; i < 18 * size; i++)
			x[i] = noise((uint32_t)i);
		CHECK(flash_attention_cpu_forward(q, k, v, o, &p) == FLASH_ATTENTION_OK);
		CHECK(flash_attention_cpu_backward(q, k, v, g, grad[0], grad[1], grad[2], &p) == FLASH_ATTENTION_OK);
		for (int h = 0; h < 2; h++)
			naive(q + h * size, k + h * size, v + h * size, g, n, d, p.causal, want + h * size);
		for (int i = 0; i < 2 * size; i++)
			SAY(fabsf(o[i] - want[i]) < 1e-5f, "d %d causal %d o[%d] = %g, want %g", d, p.causal, i, o[i], want[i]);
		for (int which = 0; which < 3; which++) /* checks gradients of the last head by finite differences */
			for (int i = 0; i < size; i += 1 + size / 7) {
				float *at = &in[which][size + i], before = *at, step = 1.0f / 64;
				double up, down;
				*at = before + step, up = naive(q + size, k + size, v + size, g + size, n, d, p.causal, NULL);
				*at = before - step, down = naive(q + size, k + size, v + size, g + size, n, d, p.causal, NULL);
				*at = before;
				double slope = (up - down) / (2 * step), got = grad[which][size + i];
				SAY(fabs(slope - got) < 2e-3 * (1 + fabs(slope)), "d %d causal %d input %d [%d] = %g, want %g", d, p.causal, which, i, got, slope);
			}
		free(x);
	}
}

int main(void)
{
	fk_dispatcher *d = open_frozen();
	test_sizes(d), test_cache_sizes(), test_cancel(d), test_merge(d), test_prefix(d), test_cache(d), test_questions(d), test_flags(), test_threads(d), test_fork(d), test_classic(), test_signals(d);
	CHECK(fk_close(d, NULL) == FK_OK);
	printf("behavior: %d failures\n", failures);
	return failures != 0;
}
