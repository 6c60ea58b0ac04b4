/*
 * Invalid inputs: each call returns the right code and field and writes nothing. The program is
 * built with AddressSanitizer.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "flashkit.h"

enum { B = 2, H = 4, G = 2, N = 5, M = 7, D = 8, DV = 6 };

/* The problem, arguments and memory of a valid call, which each case modifies. */
static float q[B * H * N * D], k[B * G * M * D], v[B * G * M * DV], o[B * H * N * DV], lse[B * H * N];
static float d_o[B * H * N * DV], d_q[B * H * N * D], d_k[B * G * M * D], d_v[B * G * M * DV];
static float bias[H * N * M], slopes[H], sink[H];
static unsigned char mask[N * M];
static int32_t lens[B] = {3, 5}, starts[B + 1] = {0, 2, 5}, pages[B * 2] = {0, 1, 1, 0};

static fk_dispatcher *dispatcher;
static fk_problem p;
static fk_args a;
static fk_prefix prefix;
static int count, failures;

static void reset(void)
{
	p = fk_problem_init();
	p.batch = B, p.heads = H, p.kv_heads = G, p.q_len = N, p.kv_len = M, p.dim = D, p.v_dim = DV;
	a = fk_args_init();
	a.q = fk_dense(q, FK_F32, B, H, N, D);
	a.k = fk_dense(k, FK_F32, B, G, M, D);
	a.v = fk_dense(v, FK_F32, B, G, M, DV);
	a.o = fk_dense(o, FK_F32, B, H, N, DV);
	a.lse = fk_dense(lse, FK_F32, B, H, N, 1);
	a.d_o = fk_dense(d_o, FK_F32, B, H, N, DV);
	a.d_q = fk_dense(d_q, FK_F32, B, H, N, D);
	a.d_k = fk_dense(d_k, FK_F32, B, G, M, D);
	a.d_v = fk_dense(d_v, FK_F32, B, G, M, DV);
	prefix = fk_prefix_init();
	prefix.k = fk_dense(k, FK_F32, 1, G, M, D);
	prefix.v = fk_dense(v, FK_F32, 1, G, M, DV);
	for (int i = 0; i < B * H * N * DV; i++)
		o[i] = 42;
	for (int i = 0; i < B * H * N * D; i++)
		d_q[i] = 42;
}

static void ragged(void)
{
	p.features |= FK_RAGGED;
	a.seqs = B;
	a.q_lens = a.kv_lens = lens;
}

static void paged(void)
{
	ragged();
	p.page = 4;
	a.k = fk_dense(k, FK_F32, 2, G, 4, D);
	a.v = fk_dense(v, FK_F32, 2, G, 4, DV);
	a.pages = pages;
	a.pages_per_seq = 2;
}

/* Reports whether a text uses only names of flashkit.h, not Go's: only a few words may have capital letters. */
static int in_our_words(const char *text)
{
	static const char *const fine[] = {"FK_", "NULL", "NaN", "Inf", "GPU"};
	for (const char *c = text; *c != 0; c++) {
		size_t i = 0, n = sizeof fine / sizeof *fine;
		if (*c < 'A' || *c > 'Z' || (c > text && (c[-1] == '_' || (c[-1] >= 'A' && c[-1] <= 'Z') || (c[-1] >= 'a' && c[-1] <= 'z'))))
			continue;
		while (i < n && strncmp(c, fine[i], strlen(fine[i])) != 0)
			i++;
		if (i == n)
			return 0;
	}
	return 1;
}

static void verdict(const char *what, int got, int code, const fk_error *e, const char *field)
{
	int wrote = 0;
	count++;
	for (int i = 0; i < B * H * N * DV; i++)
		wrote |= o[i] != 42;
	for (int i = 0; i < B * H * N * D; i++)
		wrote |= d_q[i] != 42;
	if (got == code && e->code == code && strcmp(e->field, field) == 0 && strstr(e->message, field) != NULL && in_our_words(e->message) && !wrote)
		return;
	failures++;
	printf("FAIL %s: code %d (%s), field %s, message %s%s; want %d, %s\n", what, got, fk_error_string(got), e->field, e->message,
	       wrote ? ", and wrote" : "", code, field);
}

/* An invalid input: changes to a valid call of a pass, and the expected code and field. */
#define BAD(pass, code, field, ...)                                                        \
	do {                                                                               \
		fk_error e_ = fk_error_init();                                             \
		reset();                                                                   \
		__VA_ARGS__;                                                               \
		int got_ = pass == FK_PASS_BACKWARD ? fk_backward(dispatcher, &p, &a, &e_) \
		                                    : fk_forward(dispatcher, &p, &a, &e_); \
		verdict(#__VA_ARGS__, got_, code, &e_, field);                             \
	} while (0)

#define FORWARD(code, field, ...) BAD(FK_PASS_FORWARD, code, field, __VA_ARGS__)
#define BACKWARD(code, field, ...) BAD(FK_PASS_BACKWARD, code, field, __VA_ARGS__)

static void problems(void)
{
	FORWARD(FK_ERR_DIMENSION, "batch", p.batch = -1);
	FORWARD(FK_ERR_DIMENSION, "heads", p.heads = 0);
	FORWARD(FK_ERR_DIMENSION, "kv_heads", p.kv_heads = 3);
	FORWARD(FK_ERR_DIMENSION, "q_len", p.q_len = INT64_MIN);
	FORWARD(FK_ERR_DIMENSION, "kv_len", p.kv_len = -7);
	FORWARD(FK_ERR_DIMENSION, "q", p.q_len = INT64_MAX);
	FORWARD(FK_ERR_HEAD_DIM, "dim", p.dim = 0);
	FORWARD(FK_ERR_HEAD_DIM, "v_dim", p.v_dim = -1);
	FORWARD(FK_ERR_DTYPE, "dtype", p.dtype = FK_BOOL);
	FORWARD(FK_ERR_DTYPE, "dtype", p.dtype = 256);
	FORWARD(FK_ERR_DTYPE, "kv_dtype", p.kv_dtype = -1);
	FORWARD(FK_ERR_DTYPE, "kv_dtype", p.dtype = FK_F16, p.kv_dtype = FK_BF16);
	FORWARD(FK_ERR_VALUE, "band", p.band = 3);
	FORWARD(FK_ERR_VALUE, "left", p.left = 1);
	FORWARD(FK_ERR_VALUE, "right", p.band = FK_BAND_CAUSAL, p.right = 1);
	FORWARD(FK_ERR_VALUE, "left", p.band = FK_BAND_WINDOW, p.left = -2);
	FORWARD(FK_ERR_VALUE, "top_left", p.top_left = 2);
	FORWARD(FK_ERR_VALUE, "shift", p.shift = INT64_MAX);
	FORWARD(FK_ERR_VALUE, "scale", p.scale = -1);
	FORWARD(FK_ERR_VALUE, "scale", p.scale = NAN);
	FORWARD(FK_ERR_VALUE, "softcap", p.softcap = INFINITY);
	FORWARD(FK_ERR_VALUE, "dropout", p.dropout = 1);
	FORWARD(FK_ERR_VALUE, "origin_row", a.origin_row = 1);
	FORWARD(FK_ERR_VALUE, "seqs_device", a.seqs_device = 1);
	BACKWARD(FK_ERR_VALUE, "origin_key", p.features = FK_ORIGIN, p.dropout = .5f, a.origin_key = 12);
	FORWARD(FK_ERR_VALUE, "features", p.features = 512);
	FORWARD(FK_ERR_VALUE, "features", p.features = FK_ORIGIN); /* without dropout */
	FORWARD(FK_ERR_VALUE, "page", p.page = 4);
	FORWARD(FK_ERR_SIZE, "p.size", p.size = 0);
	FORWARD(FK_ERR_SIZE, "p.size", p.size = 12);
	FORWARD(FK_ERR_SIZE, "p.size", p.size = (size_t)-8);
	BACKWARD(FK_ERR_UNSUPPORTED, "features", p.features = FK_CARRY);
}

static void tensors(void)
{
	FORWARD(FK_ERR_NULL, "q", memset(&a.q, 0, sizeof a.q));
	FORWARD(FK_ERR_NULL, "k.data", a.k.data = NULL);
	FORWARD(FK_ERR_NULL, "o", memset(&a.o, 0, sizeof a.o));
	FORWARD(FK_ERR_DIMENSION, "q.shape[1]", a.q.shape[1] = -4);
	FORWARD(FK_ERR_DIMENSION, "q.shape", a.q.shape[1] = 2);
	FORWARD(FK_ERR_HEAD_DIM, "v.shape", a.v.shape[3] = DV - 1);
	FORWARD(FK_ERR_DTYPE, "k.dtype", a.k.dtype = FK_F16);
	FORWARD(FK_ERR_DTYPE, "lse.dtype", a.lse.dtype = FK_BF16);
	FORWARD(FK_ERR_DTYPE, "v.dtype", a.v.dtype = 77);
	FORWARD(FK_ERR_VALUE, "v.device", a.v.device = 1026);
	FORWARD(FK_ERR_STRIDE, "q.strides[2]", a.q.strides[2] = -D);
	FORWARD(FK_ERR_STRIDE, "q.strides[3]", a.q.strides[3] = 0);
	FORWARD(FK_ERR_STRIDE, "k.strides[0]", a.k.strides[0] = INT64_MAX);
	FORWARD(FK_ERR_STRIDE, "k.strides[1]", a.k.strides[1] = INT64_MAX - 3);
	FORWARD(FK_ERR_STRIDE, "q.data", a.q.data = (char *)q + 2);
	FORWARD(FK_ERR_STRIDE, "q.data", a.q.data = (void *)4);
	FORWARD(FK_ERR_OVERLAP, "o.strides[2]", a.o.strides[2] = DV - 1);
	FORWARD(FK_ERR_OVERLAP, "o.strides[1]", a.o.strides[1] = 0);
	FORWARD(FK_ERR_OVERLAP, "o", a.v.data = o);
	FORWARD(FK_ERR_OVERLAP, "o", a.lse.data = o);
	FORWARD(FK_ERR_VALUE, "mask", a.mask = fk_dense(mask, FK_BOOL, 1, 1, N, M));
	FORWARD(FK_ERR_NULL, "bias", p.features = FK_BIAS);
	FORWARD(FK_ERR_DIMENSION, "bias.shape", p.features = FK_BIAS, a.bias = fk_dense(bias, FK_F32, 1, H, N, M - 1));
	FORWARD(FK_ERR_DTYPE, "mask.dtype", p.features = FK_MASK, a.mask = fk_dense(bias, FK_F32, 1, 1, N, M));
	FORWARD(FK_ERR_DIMENSION, "slopes.shape", p.features = FK_ALIBI, a.slopes = fk_dense(slopes, FK_F32, 1, 2, 1, 1));
	FORWARD(FK_ERR_DTYPE, "sink.dtype", p.features = FK_SINK, a.sink = fk_dense(sink, FK_F16, 1, H, 1, 1));
	BACKWARD(FK_ERR_NULL, "lse", memset(&a.lse, 0, sizeof a.lse));
	BACKWARD(FK_ERR_NULL, "d_v", memset(&a.d_v, 0, sizeof a.d_v));
	BACKWARD(FK_ERR_HEAD_DIM, "d_o.shape", a.d_o.shape[3] = DV - 1);
	BACKWARD(FK_ERR_OVERLAP, "d_q", a.d_q.data = q);
	BACKWARD(FK_ERR_UNSUPPORTED, "kv_dtype", p.kv_dtype = FK_F16, a.k.dtype = a.v.dtype = a.d_k.dtype = a.d_v.dtype = FK_F16);
}

static void rest(void)
{
	FORWARD(FK_ERR_SIZE, "args.size", a.size = 1 << 20);
	FORWARD(FK_ERR_VALUE, "workers", a.workers = -1);
	FORWARD(FK_ERR_VALUE, "timeout_ns", a.timeout_ns = -1);
	FORWARD(FK_ERR_HANDLE, "cancel", a.cancel = (fk_cancel *)(uintptr_t)12345);
	FORWARD(FK_ERR_VALUE, "seqs", a.seqs = B, a.q_lens = lens);
	FORWARD(FK_ERR_DIMENSION, "seqs", ragged(), a.seqs = B + 1);
	FORWARD(FK_ERR_DIMENSION, "seqs", ragged(), a.seqs = -1);
	FORWARD(FK_ERR_VALUE, "q_lens[1]", ragged(), p.q_len = 4, a.q.shape[2] = a.o.shape[2] = a.lse.shape[2] = 4);
	FORWARD(FK_ERR_VALUE, "q_starts", ragged(), a.q_starts = starts);
	FORWARD(FK_ERR_STRIDE, "kv_lens", ragged(), a.kv_lens = (const int32_t *)((const char *)lens + 1));
	FORWARD(FK_ERR_VALUE, "kv_starts[2]", ragged(), a.kv_lens = NULL, a.kv_starts = starts, a.k.shape[0] = a.v.shape[0] = 1, a.k.shape[2] = a.v.shape[2] = 4);
	FORWARD(FK_ERR_VALUE, "kv_lens", paged(), a.kv_lens = NULL);
	FORWARD(FK_ERR_VALUE, "pages", paged(), a.pages = NULL);
	FORWARD(FK_ERR_VALUE, "pages[0]", paged(), pages[0] = 2);
	pages[0] = 0;
	FORWARD(FK_ERR_VALUE, "kv_lens[1]", paged(), a.pages_per_seq = 1);
	FORWARD(FK_ERR_VALUE, "pages_per_seq", paged(), a.pages_per_seq = -1);
	BACKWARD(FK_ERR_UNSUPPORTED, "page", paged());
}

#define CALL(code, field, call)                        \
	do {                                           \
		fk_error e = fk_error_init();          \
		reset();                               \
		verdict(#call, call, code, &e, field); \
	} while (0)

static void calls(void)
{
	fk_dispatcher *other = NULL;
	fk_memory m = {0};
	fk_cancel *c = NULL;
	char text[8];
	CALL(FK_ERR_NULL, "out", fk_open("auto", 0, NULL, &e));
	CALL(FK_ERR_VALUE, "flags", fk_open("auto", 32, &other, &e));
	CALL(FK_ERR_VALUE, "flags", fk_open("auto", FK_OPEN_PAIRED | FK_OPEN_UNPAIRED, &other, &e));
	CALL(FK_ERR_VALUE, "backend", fk_open("no such backend", 0, &other, &e));
	CALL(FK_ERR_VALUE, "backend", fk_open("simd/fwd_", 0, &other, &e));
	CALL(FK_ERR_NULL, "d", fk_forward(NULL, &p, &a, &e));
	CALL(FK_ERR_HANDLE, "d", fk_forward((fk_dispatcher *)&q, &p, &a, &e));
	CALL(FK_ERR_NULL, "p", fk_forward(dispatcher, NULL, &a, &e));
	CALL(FK_ERR_NULL, "args", fk_backward(dispatcher, &p, NULL, &e));
	CALL(FK_ERR_NULL, "args", fk_problem_of(NULL, &p, &e));
	CALL(FK_ERR_NULL, "p", fk_problem_of(&a, NULL, &e));
	CALL(FK_ERR_NULL, "v", (memset(&a.v, 0, sizeof a.v), fk_problem_of(&a, &p, &e)));
	CALL(FK_ERR_DIMENSION, "seqs", (a.seqs = B + 1, a.kv_lens = (int32_t[]){3, 5, 4}, fk_problem_of(&a, &p, &e)));
	CALL(FK_ERR_DIMENSION, "k.shape", (a.seqs = 1, a.q_starts = (int32_t[]){0, 5}, a.q.shape[0] = 1, fk_problem_of(&a, &p, &e)));
	CALL(FK_ERR_SIZE, "out.size", fk_workspace(dispatcher, &p, FK_PASS_FORWARD, &m, &e));
	CALL(FK_ERR_VALUE, "pass", fk_explain(dispatcher, &p, 2, text, sizeof text, NULL, &e));
	CALL(FK_ERR_NULL, "buf", fk_kernels(dispatcher, NULL, 8, NULL, &e));
	CALL(FK_ERR_NULL, "c", fk_cancel_now(c, &e));
	CALL(FK_ERR_HANDLE, "c", fk_cancel_free((fk_cancel *)&q, &e));
	if (other != NULL)
		failures++, puts("FAIL fk_open wrote a handle of what it did not open");
}

/* The library rejects handles of the wrong type, arbitrary numbers and handles of another
   process. The calls have no effect. */
static void handles(const char *program)
{
	fk_cancel *c = NULL;
	fk_dispatcher *closed = NULL;
	fk_error e = fk_error_init();
	char command[256], line[32] = "";
	if (fk_cancel_new(&c, &e) || fk_open("simd", 0, &closed, &e) || fk_close(closed, &e))
		failures++, printf("FAIL no handles: %s\n", e.message);
	CALL(FK_ERR_HANDLE, "d", fk_close((fk_dispatcher *)c, &e));
	CALL(FK_ERR_HANDLE, "d", fk_forward((fk_dispatcher *)c, &p, &a, &e));
	CALL(FK_ERR_HANDLE, "d", fk_kernels((fk_dispatcher *)c, NULL, 0, NULL, &e));
	CALL(FK_ERR_HANDLE, "c", fk_cancel_free((fk_cancel *)dispatcher, &e));
	CALL(FK_ERR_HANDLE, "c", fk_cancel_now((fk_cancel *)dispatcher, &e));
	CALL(FK_ERR_HANDLE, "cancel", (a.cancel = (fk_cancel *)dispatcher, fk_forward(dispatcher, &p, &a, &e)));
	CALL(FK_ERR_HANDLE, "d", fk_close(closed, &e));
	for (uintptr_t number = 1; number < 100; number++) {
		CALL(FK_ERR_HANDLE, "d", fk_close((fk_dispatcher *)number, &e));
		CALL(FK_ERR_HANDLE, "c", fk_cancel_free((fk_cancel *)number, &e));
	}
	snprintf(command, sizeof command, "'%s' handle", program);
	FILE *other = popen(command, "r");
	if (other == NULL || fgets(line, sizeof line, other) == NULL || pclose(other) != 0)
		failures++, puts("FAIL another process has no handle");
	CALL(FK_ERR_HANDLE, "d", fk_close((fk_dispatcher *)(uintptr_t)strtoull(line, NULL, 10), &e));
	reset(), a.cancel = c;
	if (fk_forward(dispatcher, &p, &a, &e) || fk_cancel_free(c, &e))
		failures++, printf("FAIL a handle was ended by another: %s\n", e.message);
}

static void paged_prefix(void)
{
	prefix.k = fk_dense(k, FK_F32, 2, G, 4, D);
	prefix.v = fk_dense(v, FK_F32, 2, G, 4, DV);
	prefix.pages = pages;
	prefix.page_count = 2;
	prefix.len = 7;
}

#define PREFIX(code, field, ...) CALL(code, field, (__VA_ARGS__, fk_forward_prefix(dispatcher, &p, &prefix, &a, &e)))

static void prefixes(void)
{
	fk_prefix last = fk_prefix_init(); /* a structure of another version */
	struct { fk_prefix p; uint64_t later; } longer;
	CALL(FK_ERR_NULL, "d", fk_forward_prefix(NULL, &p, &prefix, &a, &e));
	CALL(FK_ERR_HANDLE, "d", fk_forward_prefix((fk_dispatcher *)&q, &p, &prefix, &a, &e));
	CALL(FK_ERR_NULL, "p", fk_forward_prefix(dispatcher, NULL, &prefix, &a, &e));
	CALL(FK_ERR_NULL, "prefix", fk_forward_prefix(dispatcher, &p, NULL, &a, &e));
	CALL(FK_ERR_NULL, "args", fk_forward_prefix(dispatcher, &p, &prefix, NULL, &e));
	PREFIX(FK_ERR_SIZE, "prefix.size", prefix.size = 4);
	PREFIX(FK_ERR_SIZE, "prefix.size", prefix.size = sizeof prefix + 4);
	CALL(FK_ERR_SIZE, "prefix.size", (longer.p = prefix, longer.p.size = sizeof longer, longer.later = 1, fk_forward_prefix(dispatcher, &p, &longer.p, &a, &e)));
	CALL(FK_ERR_NULL, "prefix.k", fk_forward_prefix(dispatcher, &p, &last, &a, &e));
	PREFIX(FK_ERR_NULL, "prefix.v", memset(&prefix.v, 0, sizeof prefix.v));
	PREFIX(FK_ERR_NULL, "prefix.k.data", prefix.k.data = NULL);
	PREFIX(FK_ERR_STRIDE, "prefix.k.data", prefix.k.data = (char *)k + 2);
	PREFIX(FK_ERR_STRIDE, "prefix.v.strides[2]", prefix.v.strides[2] = -1);
	PREFIX(FK_ERR_DIMENSION, "prefix.k.shape[2]", prefix.k.shape[2] = -1);
	PREFIX(FK_ERR_DIMENSION, "prefix.k.shape", prefix.k = fk_dense(k, FK_F32, B, G, 2, D));
	PREFIX(FK_ERR_DIMENSION, "prefix.v.shape", prefix.v.shape[2] = M - 1);
	PREFIX(FK_ERR_HEAD_DIM, "prefix.k.shape", prefix.k.shape[3] = D - 1);
	PREFIX(FK_ERR_HEAD_DIM, "prefix.v.shape", prefix.v.shape[3] = DV - 1);
	PREFIX(FK_ERR_DTYPE, "prefix.k.dtype", prefix.k.dtype = FK_F16);
	PREFIX(FK_ERR_DTYPE, "prefix.v.dtype", prefix.v.dtype = 9);
	PREFIX(FK_ERR_VALUE, "prefix.k.device", prefix.k.device = -1);
	PREFIX(FK_ERR_VALUE, "prefix.k", prefix.k.device = FK_CUDA);
	PREFIX(FK_ERR_OVERLAP, "o", a.v.data = o);
	PREFIX(FK_ERR_VALUE, "prefix.len", prefix.len = 1);
	PREFIX(FK_ERR_VALUE, "prefix.len", paged_prefix(), prefix.len = -1);
	PREFIX(FK_ERR_VALUE, "prefix.len", paged_prefix(), prefix.len = 9);
	PREFIX(FK_ERR_VALUE, "prefix.len", paged_prefix(), prefix.len = INT64_MAX);
	PREFIX(FK_ERR_VALUE, "prefix.page_count", paged_prefix(), prefix.page_count = -1);
	PREFIX(FK_ERR_VALUE, "prefix.page_count", paged_prefix(), prefix.page_count = INT64_MAX);
	PREFIX(FK_ERR_NULL, "prefix.pages", paged_prefix(), prefix.pages = NULL);
	PREFIX(FK_ERR_STRIDE, "prefix.pages", paged_prefix(), prefix.pages = (const int32_t *)((const char *)pages + 1));
	PREFIX(FK_ERR_VALUE, "prefix.pages[1]", paged_prefix(), prefix.pages = (int32_t[]){1, 2});
	PREFIX(FK_ERR_VALUE, "prefix.pages[0]", paged_prefix(), prefix.pages = (int32_t[]){-1, 0});
	PREFIX(FK_ERR_VALUE, "pages[0]", paged(), a.pages = (int32_t[]){9, 0, 0, 0});
	PREFIX(FK_ERR_VALUE, "workers", a.workers = -1);
	PREFIX(FK_ERR_UNSUPPORTED, "prefix", p.dropout = .5f);
	PREFIX(FK_ERR_UNSUPPORTED, "prefix", p.features = FK_ALIBI, a.slopes = fk_dense(slopes, FK_F32, 1, H, 1, 1));
	PREFIX(FK_ERR_UNSUPPORTED, "prefix", p.band = FK_BAND_WINDOW, p.left = 3, p.right = 3);
	PREFIX(FK_ERR_UNSUPPORTED, "prefix", p.band = FK_BAND_CAUSAL, p.top_left = 1);
	PREFIX(FK_ERR_UNSUPPORTED, "prefix", ragged(), p.band = FK_BAND_CAUSAL, a.kv_lens = (int32_t[]){0, 5});
}

#define CACHE(code, field, ...) CALL(code, field, (config = good, __VA_ARGS__, fk_cache_new(&config, &none, &e)))

static void caches(void)
{
	fk_cache_config config, good = fk_cache_config_init();
	fk_cache *none = NULL, *cache = NULL;
	fk_cancel *c = NULL;
	fk_error e = fk_error_init();
	fk_tensor x, y;
	int64_t free_pages = -1;
	good.batch = B, good.kv_heads = G, good.capacity = 8, good.dim = D, good.page = 4, good.pages = 3;
	CALL(FK_ERR_NULL, "config", fk_cache_new(NULL, &none, &e));
	CALL(FK_ERR_NULL, "out", fk_cache_new(&good, NULL, &e));
	CACHE(FK_ERR_SIZE, "config.size", config.size = 3);
	CACHE(FK_ERR_DIMENSION, "config.batch", config.batch = -1);
	CACHE(FK_ERR_DIMENSION, "config.kv_heads", config.kv_heads = 0);
	CACHE(FK_ERR_DIMENSION, "config.capacity", config.capacity = INT64_MIN);
	CACHE(FK_ERR_DIMENSION, "config.capacity", config.capacity = INT64_MAX);
	CACHE(FK_ERR_HEAD_DIM, "config.dim", config.dim = 0);
	CACHE(FK_ERR_VALUE, "config.page", config.page = 3);
	CACHE(FK_ERR_VALUE, "config.page", config.page = -4);
	CACHE(FK_ERR_VALUE, "config.pages", config.pages = -1);
	CACHE(FK_ERR_VALUE, "config.pages", config.pages = INT64_MAX);
	CACHE(FK_ERR_VALUE, "config.pages", config.page = 0);
	CACHE(FK_ERR_VALUE, "config.int8group", config.int8group = 32);
	CACHE(FK_ERR_VALUE, "config.int8group", config.dtype = FK_I8, config.int8group = -8);
	CACHE(FK_ERR_VALUE, "config.scale_dtype", config.scale_dtype = FK_F16);
	CACHE(FK_ERR_DTYPE, "config.scale_dtype", config.scale_dtype = 256);
	CACHE(FK_ERR_DTYPE, "config.dtype", config.dtype = -1);
	CACHE(FK_ERR_DTYPE, "config.dtype", config.dtype = FK_BOOL);
	CACHE(FK_ERR_DTYPE, "config.dtype", config.dtype = 261);
	if (none != NULL || fk_cache_new(&good, &cache, &e) || fk_cancel_new(&c, &e))
		failures++, printf("FAIL a good cache: %s\n", e.message);
	CALL(FK_ERR_NULL, "cache", fk_cache_free(NULL, &e));
	CALL(FK_ERR_HANDLE, "cache", fk_cache_free((fk_cache *)c, &e));
	CALL(FK_ERR_HANDLE, "cache", fk_cache_reset((fk_cache *)dispatcher, &e));
	CALL(FK_ERR_HANDLE, "cache", fk_cache_args((fk_cache *)(uintptr_t)3, &a, NULL, &e));
	CALL(FK_ERR_HANDLE, "cache", fk_cache_state((fk_cache *)&q, NULL, &free_pages, &e));
	CALL(FK_ERR_HANDLE, "c", fk_cancel_free((fk_cancel *)cache, &e));
	CALL(FK_ERR_HANDLE, "d", fk_forward((fk_dispatcher *)cache, &p, &a, &e));
	CALL(FK_ERR_NULL, "k", fk_cache_append(cache, NULL, &a.v, NULL, &e));
	CALL(FK_ERR_NULL, "v", (x = a.k, memset(&y, 0, sizeof y), fk_cache_append(cache, &x, &y, NULL, &e)));
	CALL(FK_ERR_NULL, "v.data", (x = y = a.k, y.data = NULL, fk_cache_append(cache, &x, &y, NULL, &e)));
	CALL(FK_ERR_VALUE, "k.device", (x = a.k, x.device = FK_CUDA, fk_cache_append(cache, &x, &x, NULL, &e)));
	CALL(FK_ERR_DTYPE, "k.dtype", (x = a.k, x.dtype = FK_I8, fk_cache_append(cache, &x, &x, NULL, &e)));
	CALL(FK_ERR_STRIDE, "k.strides[0]", (x = a.k, x.strides[0] = INT64_MAX, fk_cache_append(cache, &x, &x, NULL, &e)));
	CALL(FK_ERR_DIMENSION, "k.shape", (x = a.k, x.shape[0] = 1, fk_cache_append(cache, &x, &x, NULL, &e)));
	CALL(FK_ERR_DIMENSION, "v.shape", (x = y = a.k, y.shape[2] = 1, fk_cache_append(cache, &x, &y, NULL, &e)));
	CALL(FK_ERR_HEAD_DIM, "v.shape", (x = a.k, fk_cache_append(cache, &x, &a.v, NULL, &e)));
	CALL(FK_ERR_STRIDE, "lens", (x = a.k, fk_cache_append(cache, &x, &x, (const int32_t *)(uintptr_t)4, &e)));
	CALL(FK_ERR_STRIDE, "lens", (x = a.k, fk_cache_append(cache, &x, &x, (const int32_t *)((const char *)lens + 1), &e)));
	CALL(FK_ERR_VALUE, "lens[0]", (x = a.k, fk_cache_append(cache, &x, &x, (int32_t[]){-1, 0}, &e)));
	CALL(FK_ERR_VALUE, "lens[1]", (x = a.k, fk_cache_append(cache, &x, &x, (int32_t[]){0, M + 1}, &e)));
	CALL(FK_ERR_VALUE, "config.pages", (x = a.k, fk_cache_append(cache, &x, &x, NULL, &e))); /* 3 of 4 pages */
	CALL(FK_ERR_VALUE, "lens[0]", (x = fk_dense(q, FK_F32, B, G, 9, D), fk_cache_append(cache, &x, &x, (int32_t[]){9, 0}, &e)));
	if (fk_cache_state(cache, NULL, &free_pages, &e) || free_pages != 3)
		failures++, puts("FAIL a refused append has changed the cache");
	CALL(FK_ERR_VALUE, "seq", fk_cache_truncate(cache, -1, 0, &e));
	CALL(FK_ERR_VALUE, "seq", fk_cache_remove(cache, B, &e));
	CALL(FK_ERR_VALUE, "len", fk_cache_truncate(cache, 0, 1, &e));
	CALL(FK_ERR_VALUE, "to", fk_cache_fork(cache, 0, INT64_MAX, &e));
	CALL(FK_ERR_VALUE, "from", fk_cache_evict(cache, 0, -1, 0, &e));
	CALL(FK_ERR_VALUE, "to", fk_cache_evict(cache, 0, 0, 1, &e));
	CALL(FK_ERR_NULL, "args", fk_cache_args(cache, NULL, NULL, &e));
	CALL(FK_ERR_SIZE, "args.size", (a.size = offsetof(fk_args, vscale), fk_cache_args(cache, &a, NULL, &e)));
	CALL(FK_ERR_SIZE, "prefix.size", (prefix.size = 0, fk_cache_args(cache, &a, &prefix, &e)));
	if (fk_cancel_free(c, &e) || fk_cache_free(cache, &e))
		failures++, printf("FAIL free: %s\n", e.message);
	CALL(FK_ERR_HANDLE, "cache", fk_cache_free(cache, &e));
	CALL(FK_ERR_HANDLE, "cache", fk_cache_append(cache, &a.k, &a.k, NULL, &e));
}

static void merges(void)
{
	fk_tensor x, y, z, l;
	CALL(FK_ERR_NULL, "o2", (x = a.o, l = a.lse, fk_merge(&x, NULL, &x, &l, NULL, &l, &e)));
	CALL(FK_ERR_DTYPE, "o1.dtype", (x = a.o, y = a.d_o, y.dtype = FK_BF16, l = a.lse, fk_merge(&x, NULL, &y, &l, &x, &l, &e)));
	CALL(FK_ERR_HEAD_DIM, "lse1.shape", (x = a.o, y = a.d_o, l = a.lse, fk_merge(&x, NULL, &y, &y, &y, &l, &e)));
	CALL(FK_ERR_DIMENSION, "o2.shape", (x = a.o, y = z = a.d_o, z.shape[0] = 1, l = a.lse, fk_merge(&x, NULL, &y, &l, &z, &l, &e)));
	CALL(FK_ERR_OVERLAP, "o", (x = y = a.o, x.shape[0] = y.shape[0] = 1, y.data = o + 1, l = a.lse, l.shape[0] = 1, fk_merge(&x, NULL, &y, &l, &x, &l, &e)));
	CALL(FK_ERR_OVERLAP, "o.strides", (x = y = a.o, x.strides[2] = 1, l = a.lse, fk_merge(&x, NULL, &y, &l, &y, &l, &e)));
}

#define CLASSIC(want, call)                                                                  \
	do {                                                                                 \
		int got_ = call;                                                             \
		count++;                                                                     \
		if (got_ != want)                                                            \
			failures++, printf("FAIL %s: %d, want %d\n", #call, got_, want);     \
	} while (0)

static void classics(void)
{
	FlashAttentionParams good = {.batch = B, .heads = G, .seq_len = N, .head_dim = D}, bad;
	static float x[B * G * N * D], y[B * G * N * D], z[B * G * N * D];
	CLASSIC(FLASH_ATTENTION_ERR_NULL, flash_attention_cpu_forward(x, x, x, y, NULL));
	CLASSIC(FLASH_ATTENTION_ERR_NULL, flash_attention_cpu_forward(x, x, NULL, y, &good));
	CLASSIC(FLASH_ATTENTION_ERR_NULL, flash_attention_cpu_forward(x, (const float *)((const char *)x + 1), x, y, &good));
	CLASSIC(FLASH_ATTENTION_ERR_DIMENSION, (bad = good, bad.seq_len = 0, flash_attention_cpu_forward(x, x, x, y, &bad)));
	CLASSIC(FLASH_ATTENTION_ERR_DIMENSION, (bad = good, bad.batch = bad.heads = bad.seq_len = 0x7fffffff, flash_attention_cpu_forward(x, x, x, y, &bad)));
	CLASSIC(FLASH_ATTENTION_ERR_HEAD_DIM, (bad = good, bad.head_dim = 513, flash_attention_cpu_forward(x, x, x, y, &bad)));
	CLASSIC(FLASH_ATTENTION_ERR_BLOCK, (bad = good, bad.block_n = -1, flash_attention_cpu_forward(x, x, x, y, &bad)));
	CLASSIC(FLASH_ATTENTION_ERR_OVERLAP, flash_attention_cpu_forward(x, x, x, x, &good));
	CLASSIC(FLASH_ATTENTION_ERR_NULL, flash_attention_cpu_backward(x, x, x, x, y, z, NULL, &good));
	CLASSIC(FLASH_ATTENTION_ERR_OVERLAP, flash_attention_cpu_backward(x, x, x, x, y, y, z, &good));
	CLASSIC(FLASH_ATTENTION_ERR_DIMENSION, (bad = good, bad.heads = -1, flash_attention_cpu_backward(x, x, x, x, y, z, z, &bad)));
}

/* Checks that the calls which the cases modify are valid. */
static void good(void)
{
	fk_error e = fk_error_init();
	reset();
	if (fk_forward(dispatcher, &p, &a, &e) || fk_backward(dispatcher, &p, &a, &e))
		failures++, printf("FAIL a good call: %s\n", e.message);
	reset(), paged();
	if (fk_forward(dispatcher, &p, &a, &e))
		failures++, printf("FAIL a good paged call: %s\n", e.message);
	reset(), paged(), paged_prefix();
	if (fk_forward_prefix(dispatcher, &p, &prefix, &a, &e))
		failures++, printf("FAIL a good call with a prefix: %s\n", e.message);
	int32_t unmapped[B * 3] = {0, -1, -1, 1, 0, INT32_MAX}; /* entries beyond the lengths are not read */
	reset(), paged(), a.pages = unmapped, a.pages_per_seq = 3;
	if (fk_forward(dispatcher, &p, &a, &e))
		failures++, printf("FAIL a page table with entries of no pages: %s\n", e.message);
}

int main(int argc, char **argv)
{
	fk_error e = fk_error_init();
	if (fk_open("auto", 0, &dispatcher, &e) != FK_OK)
		return puts(e.message), 1;
	if (argc > 1) /* this is the child process of handles() */
		return printf("%llu\n", (unsigned long long)(uintptr_t)dispatcher) < 0;
	good(), problems(), tensors(), rest(), calls(), handles(argv[0]), prefixes(), caches(), merges(), classics();
	if (fk_close(dispatcher, &e) != FK_OK)
		return puts(e.message), 1;
	reset();
	verdict("forward after close", fk_forward(dispatcher, &p, &a, &e), FK_ERR_HANDLE, &e, "d");
	verdict("close after close", fk_close(dispatcher, &e), FK_ERR_HANDLE, &e, "d");
	printf("%d bad inputs, %d failures\n", count, failures);
	return failures != 0;
}
