/*
 * Decoding with a KV cache. Sequences continue one prompt, whose keys and values they share. They are
 * read once for all sequences.
 *
 *     cc cache.c $(pkg-config --cflags --libs flashkit) -o cache && ./cache
 */
#include <stdio.h>
#include <stdlib.h>

#include <flashkit.h>

enum { B = 4, H = 8, G = 2, D = 64, PROMPT = 100, STEPS = 8 };

static float number(void) { return (float)rand() / (float)RAND_MAX - 0.5f; }

static void fill(float *x, int n)
{
	for (int i = 0; i < n; i++)
		x[i] = number();
}

/* A step: the keys and values of a new token go to the cache, and its queries attend to all keys. */
static int step(fk_dispatcher *d, fk_cache *cache, float *o, fk_error *err)
{
	static float q[B * H * D], k[B * G * D], v[B * G * D];
	fk_args a = fk_args_init();
	fk_prefix prefix = fk_prefix_init();
	fk_problem p = fk_problem_init();
	fill(q, B * H * D), fill(k, B * G * D), fill(v, B * G * D);
	fk_tensor keys = fk_dense(k, FK_F32, B, G, 1, D), values = fk_dense(v, FK_F32, B, G, 1, D);
	a.q = fk_dense(q, FK_F32, B, H, 1, D);
	a.o = fk_dense(o, FK_F32, B, H, 1, D);
	int code = fk_cache_append(cache, &keys, &values, NULL, err);
	if (code == FK_OK)
		code = fk_cache_args(cache, &a, &prefix, err);
	if (code == FK_OK)
		code = fk_problem_of(&a, &p, err);
	return code == FK_OK ? fk_forward_prefix(d, &p, &prefix, &a, err) : code;
}

int main(void)
{
	static float k[B * G * PROMPT * D], v[B * G * PROMPT * D], o[B * H * D];
	static const int32_t lens[B] = {PROMPT}; /* the prompt goes to sequence 0 */
	fk_error err = fk_error_init();
	fk_dispatcher *d;
	fk_cache *cache;
	fk_cache_config config = fk_cache_config_init();
	config.batch = B, config.kv_heads = G, config.capacity = 128, config.dim = D, config.page = 16, config.pages = 16;
	config.dtype = FK_F32;
	if (fk_open(NULL, 0, &d, &err) != FK_OK || fk_cache_new(&config, &cache, &err) != FK_OK)
		return fprintf(stderr, "%s\n", err.message), 1;

	fill(k, G * PROMPT * D), fill(v, G * PROMPT * D);
	fk_tensor keys = fk_dense(k, FK_F32, B, G, PROMPT, D), values = fk_dense(v, FK_F32, B, G, PROMPT, D);
	int code = fk_cache_append(cache, &keys, &values, lens, &err);
	for (int b = 1; b < B && code == FK_OK; b++)
		code = fk_cache_fork(cache, 0, b, &err); /* the sequences share the prompt's pages */
	for (int i = 0; i < STEPS && code == FK_OK; i++)
		code = step(d, cache, o, &err);

	fk_args a = fk_args_init();
	int64_t pages = 0;
	if (code == FK_OK)
		code = fk_cache_args(cache, &a, NULL, &err) || fk_cache_state(cache, NULL, &pages, &err);
	if (code != FK_OK)
		fprintf(stderr, "%s: %s\n", err.field, err.message);
	else /* 6 pages are shared, and each sequence has one page of its own: 6 + 4 of 16 */
		printf("%d sequences of %d keys, %d pages free\n", B, (int)a.kv_lens[0], (int)pages);
	fk_cache_free(cache, NULL);
	fk_close(d, NULL);
	return code != FK_OK;
}
