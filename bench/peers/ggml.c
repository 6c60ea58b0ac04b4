// A library that calls ggml's flash_attn_ext on the CPU. bench/peers/forms.py loads it, fills in
// the tensors and times calls.
//
// Shapes are row-major: [B, heads, rows, elements]. ggml writes a shape in reverse order. O is [B,
// rows, heads, elements]. If sequences differ in length, each sequence is a node of the graph. The
// tensors of such a node have batch 1.

#include <stdint.h>
#include <stdlib.h>

#include "ggml-cpu.h"
#include "ggml.h"

typedef struct {
	struct ggml_context *context;
	struct ggml_cgraph *graph;
	struct ggml_cplan plan;
	struct ggml_threadpool *pool;
	int nodes;
	struct ggml_tensor *tensors[]; // Q, K, V, mask, sinks and O of each node
} attention;

enum { Q, K, V, MASK, SINKS, O, TENSORS };

void attention_close(attention *a) {
	if (a->pool)
		ggml_threadpool_free(a->pool);
	free(a->plan.work_data);
	ggml_free(a->context);
	free(a);
}

// attention_open builds a graph with the given number of nodes. sizes[i] is {B, H, G, N, M, D} of
// node i. The mask is float16, [mask_batch, mask_heads, N, M]. mask_batch is 0 if there is no mask.
// attention_open returns NULL if there is not enough memory.
attention *attention_open(int nodes, const int64_t sizes[][6], int kv_type, int64_t mask_batch, int64_t mask_heads, int sinks,
                          float scale, float max_bias, float softcap, int threads) {
	size_t bytes = 1 << 20;
	for (int i = 0; i < nodes; i++) {
		const int64_t *s = sizes[i], b = s[0], h = s[1], g = s[2], n = s[3], m = s[4], d = s[5];
		bytes += 2 * 4 * b * h * n * d + 2 * 4 * b * g * m * d + 2 * mask_batch * mask_heads * n * m + 4 * h + (1 << 13);
	}
	attention *a = calloc(1, sizeof *a + TENSORS * nodes * sizeof a->tensors[0]);
	if (!a)
		return NULL;
	a->nodes = nodes;
	a->context = ggml_init((struct ggml_init_params){.mem_size = bytes});
	if (!a->context) {
		free(a);
		return NULL;
	}
	a->graph = ggml_new_graph(a->context);
	for (int i = 0; i < nodes; i++) {
		const int64_t *s = sizes[i], b = s[0], h = s[1], g = s[2], n = s[3], m = s[4], d = s[5];
		struct ggml_tensor **t = a->tensors + TENSORS * i;
		t[Q] = ggml_new_tensor_4d(a->context, GGML_TYPE_F32, d, n, h, b);
		t[K] = ggml_new_tensor_4d(a->context, kv_type, d, m, g, b);
		t[V] = ggml_new_tensor_4d(a->context, kv_type, d, m, g, b);
		if (mask_batch)
			t[MASK] = ggml_new_tensor_4d(a->context, GGML_TYPE_F16, m, n, mask_heads, mask_batch);
		t[O] = ggml_flash_attn_ext(a->context, t[Q], t[K], t[V], t[MASK], scale, max_bias, softcap);
		if (sinks) {
			t[SINKS] = ggml_new_tensor_1d(a->context, GGML_TYPE_F32, h);
			ggml_flash_attn_ext_add_sinks(t[O], t[SINKS]);
		}
		ggml_build_forward_expand(a->graph, t[O]);
	}
	struct ggml_threadpool_params how = ggml_threadpool_params_default(threads);
	a->pool = ggml_threadpool_new(&how);
	a->plan = ggml_graph_plan(a->graph, threads, a->pool);
	if (a->plan.work_size)
		a->plan.work_data = malloc(a->plan.work_size);
	if (!a->pool || a->plan.work_size && !a->plan.work_data) {
		attention_close(a);
		return NULL;
	}
	return a;
}

// attention_data returns the elements of one tensor of a node, or NULL if the node has no such
// tensor. The last parameter is the tensor's index, such as Q or MASK.
void *attention_data(attention *a, int node, int which) {
	struct ggml_tensor *t = a->tensors[TENSORS * node + which];
	return t ? t->data : NULL;
}

// attention_run computes the graph and returns 0 on success.
int attention_run(attention *a) { return ggml_graph_compute(a->graph, &a->plan); }

const char *attention_version(void) { return ggml_version(); }
