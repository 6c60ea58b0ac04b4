/*
 * The minimum time of a call from C over several rounds, in nanoseconds. overhead/main.go
 * measures the same calls from Go.
 *
 *     overhead HEADS ROWS DIM CALLS
 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "flashkit.h"

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

int main(int argc, char **argv)
{
	if (argc != 5)
		return 2;
	int64_t h = atoll(argv[1]), n = atoll(argv[2]), d = atoll(argv[3]), calls = atoll(argv[4]);
	float *x = calloc((size_t)(4 * h * n * d), sizeof *x);
	fk_error e = fk_error_init();
	fk_dispatcher *dispatcher;
	fk_args a = fk_args_init();
	fk_problem p = fk_problem_init();
	if (x == NULL)
		return 2;
	fk_tensor *to[] = {&a.q, &a.k, &a.v, &a.o};
	for (int i = 0; i < 4; i++)
		*to[i] = fk_dense(x + i * h * n * d, FK_F32, 1, h, n, d);
	if (fk_open("simd", FK_OPEN_FROZEN | FK_OPEN_BLANK, &dispatcher, &e) || fk_problem_of(&a, &p, &e))
		return puts(e.message), 1;
	double least = 1e18;
	for (int round = 0; round < 40; round++) {
		double start = now();
		for (int64_t i = 0; i < calls; i++)
			if (fk_forward(dispatcher, &p, &a, &e) != FK_OK)
				return puts(e.message), 1;
		double took = (now() - start) / (double)calls;
		least = took < least ? took : least;
	}
	printf("%.0f\n", least);
	fk_close(dispatcher, NULL);
	free(x);
	return 0;
}
