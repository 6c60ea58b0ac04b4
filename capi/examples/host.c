/*
 * Causal attention and its gradients in host memory, with 8 query heads and 2 KV heads.
 *
 *     cc host.c $(pkg-config --cflags --libs flashkit) -o host && ./host
 */
#include <stdio.h>
#include <stdlib.h>

#include <flashkit.h>

enum { B = 1, H = 8, G = 2, N = 256, D = 64 };

static float *numbers(size_t n, float step)
{
	float *x = malloc(n * sizeof *x);
	for (size_t i = 0; x != NULL && i < n; i++)
		x[i] = step * (float)(i % 97) - 0.5f;
	return x;
}

int main(void)
{
	size_t rows = (size_t)B * H * N, keys = (size_t)B * G * N;
	float *q = numbers(rows * D, 0.01f), *k = numbers(keys * D, 0.011f), *v = numbers(keys * D, 0.012f);
	float *o = numbers(rows * D, 0), *lse = numbers(rows, 0), *d_o = numbers(rows * D, 0.005f);
	float *d_q = numbers(rows * D, 0), *d_k = numbers(keys * D, 0), *d_v = numbers(keys * D, 0);
	if (!q || !k || !v || !o || !lse || !d_o || !d_q || !d_k || !d_v)
		return 1;

	fk_error err = fk_error_init();
	fk_dispatcher *d;
	if (fk_open(NULL, 0, &d, &err) != FK_OK) /* a program opens a dispatcher once */
		return fprintf(stderr, "%s\n", err.message), 1;

	fk_args a = fk_args_init();
	a.q = fk_dense(q, FK_F32, B, H, N, D);
	a.k = fk_dense(k, FK_F32, B, G, N, D);
	a.v = fk_dense(v, FK_F32, B, G, N, D);
	a.o = fk_dense(o, FK_F32, B, H, N, D);
	a.lse = fk_dense(lse, FK_F32, B, H, N, 1); /* the backward pass reads lse */
	fk_problem p = fk_problem_init();
	p.band = FK_BAND_CAUSAL;
	int code = fk_problem_of(&a, &p, &err);
	if (code == FK_OK)
		code = fk_forward(d, &p, &a, &err);

	a.d_o = fk_dense(d_o, FK_F32, B, H, N, D);
	a.d_q = fk_dense(d_q, FK_F32, B, H, N, D);
	a.d_k = fk_dense(d_k, FK_F32, B, G, N, D);
	a.d_v = fk_dense(d_v, FK_F32, B, G, N, D);
	if (code == FK_OK)
		code = fk_backward(d, &p, &a, &err);

	if (code != FK_OK)
		fprintf(stderr, "%s: %s\n", fk_error_string(code), err.message);
	else /* row 0 sees only key 0, so its output is row 0 of V */
		printf("o[0] = %g, v[0] = %g, lse[1] = %g, d_v[0] = %g\n", o[0], v[0], lse[1], d_v[0]);
	fk_close(d, NULL);
	free(q), free(k), free(v), free(o), free(lse), free(d_o), free(d_q), free(d_k), free(d_v);
	return code != FK_OK;
}
