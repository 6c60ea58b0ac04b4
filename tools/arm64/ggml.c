// Runs ggml's attention several times on one thread, so that counts.py can count its instructions,
// and compares sampled results with plain C.
//
//	ggml N M D HEADS f16|f32 none|causal flash|naive TIMES
//
// The argument naive selects llama.cpp's computation without flash attention: two products and a
// softmax, with V transposed.

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ggml-cpu.h"
#include "ggml.h"

static float next(void) {
	static unsigned state = 1;
	state = state * 1664525u + 1013904223u;
	return (float)(state >> 8) / 8388608.0f - 1;
}

// fill sets a tensor to random numbers. It returns a copy as [heads][rows][D], with the numbers
// rounded to the tensor's type.
static float *fill(struct ggml_tensor *t, int rows, int d, int heads, int transposed) {
	float *copy = malloc(sizeof(float) * rows * d * heads);
	for (int h = 0; h < heads; h++)
		for (int r = 0; r < rows; r++)
			for (int c = 0; c < d; c++) {
				size_t at = ((size_t)h * rows + r) * d + c, to = transposed ? ((size_t)h * d + c) * rows + r : at;
				copy[at] = next();
				if (t->type == GGML_TYPE_F16) {
					((ggml_fp16_t *)t->data)[to] = ggml_fp32_to_fp16(copy[at]);
					copy[at] = ggml_fp16_to_fp32(((ggml_fp16_t *)t->data)[to]);
				} else {
					((float *)t->data)[to] = copy[at];
				}
			}
	return copy;
}

static int keys_of(int i, int n, int m, int causal) { return causal ? i + m - n + 1 : m; }

// difference returns the largest difference between o and attention in plain C, over every 37th row.
// o is [rows][heads][D], or [heads][rows][D] for naive.
static double difference(const float *o, const float *q, const float *k, const float *v, int n, int m, int d, int heads, int causal, int naive) {
	double worst = 0, *p = malloc(sizeof(double) * m);
	for (int h = 0; h < heads; h++)
		for (int i = 0; i < n; i += 37) {
			double sum = 0;
			int keys = keys_of(i, n, m, causal);
			for (int j = 0; j < keys; j++) {
				double dot = 0;
				for (int c = 0; c < d; c++)
					dot += (double)q[((size_t)h * n + i) * d + c] * k[((size_t)h * m + j) * d + c];
				sum += p[j] = exp(dot / sqrt(d));
			}
			for (int c = 0; c < d; c++) {
				double e = 0;
				for (int j = 0; j < keys; j++)
					e += p[j] * v[((size_t)h * m + j) * d + c];
				size_t row = naive ? (size_t)h * n + i : (size_t)i * heads + h;
				double x = fabs(e / sum - o[row * d + c]);
				if (!(x <= worst))
					worst = x;
			}
		}
	free(p);
	return worst;
}

int main(int argc, char **argv) {
	if (argc != 9)
		return 2;
	int n = atoi(argv[1]), m = atoi(argv[2]), d = atoi(argv[3]), heads = atoi(argv[4]), times = atoi(argv[8]);
	enum ggml_type kind = strcmp(argv[5], "f16") ? GGML_TYPE_F32 : GGML_TYPE_F16;
	int causal = !strcmp(argv[6], "causal"), naive = !strcmp(argv[7], "naive");
	struct ggml_context *x = ggml_init((struct ggml_init_params){.mem_size = (size_t)512 << 20});
	struct ggml_tensor *q = ggml_new_tensor_4d(x, GGML_TYPE_F32, d, n, heads, 1), *k = ggml_new_tensor_4d(x, kind, d, m, heads, 1);
	struct ggml_tensor *v = naive ? ggml_new_tensor_4d(x, kind, m, d, heads, 1) : ggml_new_tensor_4d(x, kind, d, m, heads, 1);
	struct ggml_tensor *mask = NULL, *o;
	if (causal) {
		mask = ggml_new_tensor_4d(x, GGML_TYPE_F16, m, n, 1, 1);
		for (int i = 0; i < n; i++)
			for (int j = 0; j < m; j++)
				((ggml_fp16_t *)mask->data)[(size_t)i * m + j] = ggml_fp32_to_fp16(j < keys_of(i, n, m, 1) ? 0 : -INFINITY);
	}
	float scale = 1 / sqrtf((float)d);
	float *fq = fill(q, n, d, heads, 0), *fk = fill(k, m, d, heads, 0), *fv = fill(v, m, d, heads, naive);
	if (naive)
		o = ggml_mul_mat(x, v, ggml_soft_max_ext(x, ggml_mul_mat(x, k, q), mask, scale, 0));
	else
		o = ggml_flash_attn_ext(x, q, k, v, mask, scale, 0, 0);
	struct ggml_cgraph *graph = ggml_new_graph(x);
	ggml_build_forward_expand(graph, o);
	for (int i = 0; i < times; i++)
		ggml_graph_compute_with_ctx(x, graph, 1);
	printf("largest difference %.2g\n", difference(o->data, fq, fk, fv, n, m, d, heads, causal, naive));
	return 0;
}
