/*
 * Tensors on a device, with the driver of tests/fake_cuda.c. A call enqueues its work on the
 * caller's stream and returns. Driver errors give the right codes. A call with tensors on both
 * host and device fails.
 */
#include <stdio.h>
#include <stdlib.h>

#include "flashkit.h"

const char *fake_log(void);
int fake_launches(int device);
int fake_ordered(void);
void fake_reset(int code);

static int failures;

static void check(int good, const char *what, const fk_error *e)
{
	if (good)
		return;
	failures++;
	printf("FAIL %s: %d, %s, %s; log:\n%s", what, e->code, e->field, e->message, fake_log());
}

/* count returns the number of log lines of a driver call, on one stream unless stream is NULL. */
static int count(const char *what, void *stream)
{
	char line[64];
	int n = 0;
	snprintf(line, sizeof line, stream ? "%s %p\n" : "%s ", what, stream);
	for (const char *at = fake_log(); (at = strstr(at, line)) != NULL; at++)
		n++;
	return n;
}

static fk_tensor on_device(void *data, int32_t dtype, int64_t rows, int64_t row)
{
	fk_tensor t = fk_dense(data, dtype, 1, 2, rows, row);
	t.device = FK_CUDA;
	return t;
}

/* A call with a prefix enqueues both its parts. Its own lengths and pages may be on the device. */
static void prefixes(fk_dispatcher *d, fk_dispatcher *host, fk_args a, void *stream)
{
	static uint16_t keys[2][4 * 2 * 16 * 64];
	static int32_t lens[1] = {20}, pages[2] = {3, 1}, shared[2] = {0, 2};
	fk_error e = fk_error_init();
	fk_problem p = fk_problem_init();
	fk_prefix prefix = fk_prefix_init();
	check(fk_problem_of(&a, &p, &e) == FK_OK, "a problem", &e);
	prefix.k = a.k, prefix.v = a.v;
	for (int how = 0; how < 3; how++) { /* contiguous, with pages, and with pages on the device */
		fk_args x = a;
		if (how > 0) {
			prefix.k = x.k = fk_dense(keys[0], FK_BF16, 4, 2, 16, 64), prefix.v = x.v = fk_dense(keys[1], FK_BF16, 4, 2, 16, 64);
			prefix.k.device = prefix.v.device = x.k.device = x.v.device = FK_CUDA;
			prefix.pages = shared, prefix.page_count = 2, prefix.len = 30;
			x.seqs = 1, x.kv_lens = lens, x.pages = pages, x.pages_per_seq = 2, x.seqs_device = how == 2 ? FK_CUDA : 0;
			check(fk_problem_of(&x, &p, &e) == FK_OK, "paged", &e);
		}
		fake_reset(0);
		check(fk_forward_prefix(d, &p, &prefix, &x, &e) == FK_OK, "the first call, which loads the kernels", &e);
		lens[0]--;
		fake_reset(0);
		check(fk_forward_prefix(d, &p, &prefix, &x, &e) == FK_OK && count("launch", stream) > 1 && count("launch", stream) == count("launch", NULL), "a prefix", &e);
		check(count("wait", NULL) == 0, "does not wait", &e);
		check(count("upload", NULL) == (how == 1 ? 2 : 0), "uploads the lists of both parts, unless they are there", &e);
		fake_reset(2);
		check(fk_forward_prefix(d, &p, &prefix, &x, &e) == FK_ERR_MEMORY, "out of memory", &e);
	}
	fake_reset(0);
	prefix.pages = NULL, prefix.page_count = prefix.len = 0, prefix.k = a.k, prefix.v = a.v;
	check(fk_problem_of(&a, &p, &e) == FK_OK, "a problem", &e);
	prefix.k.device = FK_HOST;
	check(fk_forward_prefix(d, &p, &prefix, &a, &e) == FK_ERR_VALUE && strcmp(e.field, "prefix.k") == 0, "a prefix on the host", &e);
	prefix.k.device = FK_CUDA + 1;
	check(fk_forward_prefix(d, &p, &prefix, &a, &e) == FK_ERR_VALUE && strcmp(e.field, "prefix.k") == 0, "a prefix on another GPU", &e);
	prefix.k.device = FK_CUDA;
	check(fk_forward_prefix(host, &p, &prefix, &a, &e) == FK_ERR_UNSUPPORTED && strcmp(e.field, "q.device") == 0, "simd alone", &e);
	memset(&a.lse, 0, sizeof a.lse);
	check(fk_forward_prefix(d, &p, &prefix, &a, &e) == FK_ERR_UNSUPPORTED && strcmp(e.field, "prefix") == 0 && strstr(e.message, "needs lse"), "without lse", &e);
	check(count("launch", NULL) == 0, "nothing was launched", &e);
}

int main(void)
{
	static uint16_t memory[8][2 * 64 * 64];
	static uint16_t many[2][2 * 4096 * 64];
	static float lse[2 * 64];
	char stream; /* only its address is used, as a stream handle */
	fk_error e = fk_error_init();
	fk_dispatcher *d, *host;
	fk_args a = fk_args_init();
	fk_tensor *tensors[] = {&a.q, &a.k, &a.v, &a.o, &a.d_o, &a.d_q, &a.d_k, &a.d_v};
	for (int i = 0; i < 8; i++)
		*tensors[i] = on_device(memory[i], FK_BF16, 64, 64);
	a.lse = on_device(lse, FK_F32, 64, 1);
	a.stream = &stream;
	fk_problem p = fk_problem_init();
	p.band = FK_BAND_CAUSAL;
	if (fk_open("auto", 0, &d, &e) || fk_open("simd", 0, &host, &e) || fk_problem_of(&a, &p, &e))
		return puts(e.message), 1;

	for (int pass = 0; pass < 2; pass++) {
		int (*run)(fk_dispatcher *, const fk_problem *, const fk_args *, fk_error *) = pass ? fk_backward : fk_forward;
		check(run(d, &p, &a, &e) == FK_OK, "the first call, which loads the kernel", &e);
		fake_reset(0);
		check(run(d, &p, &a, &e) == FK_OK, "a call", &e);
		check(count("launch", &stream) > 0 && count("launch", &stream) == count("launch", NULL), "launches on the caller's stream", &e);
		check(count("wait", NULL) == 0, "does not wait", &e);
		fake_reset(2);
		check(run(d, &p, &a, &e) == FK_ERR_MEMORY, "out of memory", &e);
		fake_reset(999);
		check(run(d, &p, &a, &e) == FK_ERR_DRIVER && strstr(e.message, "999") != NULL, "an error of the driver", &e);
		fake_reset(0);
	}

	fk_args mixed = a;
	mixed.k.device = FK_HOST;
	check(fk_forward(d, &p, &mixed, &e) == FK_ERR_VALUE && strcmp(e.field, "k") == 0, "K on the host", &e);
	mixed = a;
	mixed.q.device = FK_HOST;
	check(fk_forward(d, &p, &mixed, &e) == FK_ERR_VALUE && strcmp(e.field, "k") == 0, "Q on the host", &e);
	check(fk_forward(host, &p, &a, &e) == FK_ERR_UNSUPPORTED && strcmp(e.field, "q.device") == 0, "simd alone", &e);
	check(count("launch", NULL) == 0, "nothing was launched", &e);
	mixed = a;
	mixed.k.device = FK_CUDA + 1;
	check(fk_forward(d, &p, &mixed, &e) == FK_ERR_VALUE && strcmp(e.field, "k") == 0, "K on another GPU", &e);
	mixed.k.device = FK_CUDA + 1025;
	check(fk_forward(d, &p, &mixed, &e) == FK_ERR_VALUE && strcmp(e.field, "k.device") == 0, "no such device", &e);
	fk_args other = a;
	other.q.device = other.k.device = other.v.device = other.o.device = other.lse.device = FK_CUDA + 2;
	check(fk_forward(d, &p, &other, &e) == FK_ERR_UNAVAILABLE && strstr(e.message, "number 2 of 2") != NULL, "a GPU that is not there", &e);
	fk_tensor *second[] = {&other.q, &other.k, &other.v, &other.o, &other.lse, &other.d_o, &other.d_q, &other.d_k, &other.d_v};
	for (int i = 0; i < 9; i++)
		second[i]->device = FK_CUDA + 1;
	for (int pass = 0; pass < 2; pass++) {
		fake_reset(0);
		check((pass ? fk_backward : fk_forward)(d, &p, &other, &e) == FK_OK, "the second GPU", &e);
		check(fake_launches(1) > 0 && fake_launches(0) == 0, "launches there", &e);
	}
	/* In training, a call with few query rows must not use the decode kernel, because its
	   summation order differs from the backward kernel's. */
	for (int how = 0; how < 4; how++) { /* by default, a call with LSE counts as training */
		static const uint32_t flags[] = {FK_OPEN_UNPAIRED, FK_OPEN_PAIRED, 0, 0};
		int paired = how == 1 || how == 2;
		fk_dispatcher *few;
		fk_args one = a;
		fk_problem long_keys = p;
		one.q = on_device(memory[0], FK_BF16, 1, 64), one.o = on_device(memory[3], FK_BF16, 1, 64);
		one.k = on_device(many[0], FK_BF16, 4096, 64), one.v = on_device(many[1], FK_BF16, 4096, 64);
		if (how < 3)
			one.lse = on_device(lse, FK_F32, 1, 1);
		else
			memset(&one.lse, 0, sizeof one.lse);
		check(fk_open("auto", flags[how], &few, &e) == FK_OK && fk_problem_of(&one, &long_keys, &e) == FK_OK, "one row", &e);
		fake_reset(0);
		check(fk_forward(few, &long_keys, &one, &e) == FK_OK, "one row", &e);
		check((strstr(fake_log(), "decode_sm80") != NULL) == !paired && strstr(fake_log(), "_sm80_bf16_d64 ") != NULL, paired ? "paired" : "not paired", &e);
		check(fk_close(few, &e) == FK_OK, "close", &e);
	}
	/* Sequence arrays are copied once per stream, and again after a change. */
	fk_problem ragged = p;
	fk_args two = a;
	int32_t lens[1] = {60};
	two.seqs = 1, two.q_lens = two.kv_lens = lens;
	check(fk_problem_of(&two, &ragged, &e) == FK_OK, "lengths", &e);
	for (int i = 0; i < 4; i++) {
		lens[0] -= i == 3;
		fake_reset(0);
		check(fk_forward(d, &ragged, &two, &e) == FK_OK && count("upload", NULL) == (i == 0 || i == 3), "lists", &e);
	}
	prefixes(d, host, a, &stream);
	for (int any = 0; any < 2; any++) {
		fk_dispatcher *training;
		check(fk_open("auto", any ? FK_OPEN_ANY_ORDER : 0, &training, &e) == FK_OK, "open", &e);
		check(fk_backward(training, &p, &a, &e) == FK_OK && fake_ordered() == !any, any ? "any order" : "one order", &e);
		check(fk_close(training, &e) == FK_OK, "close", &e);
	}
	fake_reset(0);
	fk_cancel *c;
	check(fk_cancel_new(&c, &e) == FK_OK && fk_cancel_now(c, &e) == FK_OK, "cancel", &e);
	a.cancel = c;
	check(fk_forward(d, &p, &a, &e) == FK_ERR_CANCELED && count("launch", NULL) == 0, "canceled", &e);
	check(fk_cancel_free(c, &e) == FK_OK && fk_close(d, &e) == FK_OK && fk_close(host, &e) == FK_OK, "close", &e);
	printf("device: %d failures\n", failures);
	return failures != 0;
}
