/*
 * Kernels of PyTorch operators for tensors on a CPU or a CUDA GPU, over PyTorch's stable C ABI.
 * This file needs no headers and no library of PyTorch: _compiled.py passes the addresses of
 * PyTorch's and flashkit's functions. So one shared object serves every PyTorch from 2.10 on.
 *
 * The kernels never raise an error. If a kernel cannot compute a call, it declines: its outputs
 * are empty vectors, and Python computes the call or raises the error.
 *
 *     _forward_o(q, k, v, plan) -> o
 *     _forward(q, k, v, plan) -> (o, lse)
 *     _backward(d_o, q, k, v, o, lse, plan) -> (d_q, d_k, d_v)
 *     _forward_full(q, k, v, plan, OPTIONAL..., seed, given) -> (o, lse)
 *     _backward_full(d_o, q, k, v, o, lse, plan, d_lse, OPTIONAL..., seed, given) -> (d_q, d_k, d_v, d_bias, d_sink)
 *
 * given has a bit for each optional tensor of the call. The other optional tensors are ignored.
 *
 * Two more kernels record gradients of a call without optional tensors. They are kernels of
 * PyTorch's operator _scaled_dot_product_fused_attention_overrideable and of its backward, which
 * PyTorch leaves to other backends: their autograd node is in C++. attn_bias is the plan. These
 * kernels raise a RuntimeError if they cannot compute a call.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdbool.h>
#include <stdlib.h>

#include "flashkit.h"

typedef uint64_t value;              /* StableIValue: an integer, or a handle */
typedef struct AtenTensorOpaque *tensor; /* AtenTensorHandle */
typedef struct TorchLibraryOpaque *registry; /* TorchLibraryHandle */
typedef struct StableListOpaque *items; /* StableListHandle */

/* Addresses of functions, in the order of _compiled.py. PyTorch's functions return 0 or an error code. */
typedef struct functions {
	int32_t (*library)(const char *name, const char *key, const char *file, uint32_t line, registry *);
	int32_t (*implement)(registry, const char *name, void (*kernel)(value *, uint64_t, uint64_t), uint64_t version);
	int32_t (*release)(tensor);
	int32_t (*dim)(tensor, int64_t *);
	int32_t (*sizes)(tensor, int64_t **);
	int32_t (*strides)(tensor, int64_t **);
	int32_t (*dtype)(tensor, int32_t *);
	int32_t (*device_type)(tensor, int32_t *);
	int32_t (*device_index)(tensor, int32_t *);
	int32_t (*data)(tensor, void **);
	int32_t (*empty)(int64_t dims, const int64_t *sizes, const int64_t *strides, int32_t dtype, int32_t device_type, int32_t device_index, tensor *);
	int32_t (*copy)(tensor to, tensor from, int32_t non_blocking);
	int32_t (*undefined)(tensor *); /* a tensor that is None in Python */
	int32_t (*release_items)(items);
	int32_t (*float32)(void), (*float16)(void), (*bfloat16)(void), (*boolean)(void), (*int32)(void), (*int64)(void);
	int32_t (*cpu)(void), (*cuda)(void);
	int32_t (*cuda_stream)(int32_t device_index, void **stream); /* NULL if PyTorch has no CUDA */
	int (*problem_of)(const fk_args *, fk_problem *, fk_error *);
	int (*forward)(fk_dispatcher *, const fk_problem *, const fk_args *, fk_error *);
	int (*backward)(fk_dispatcher *, const fk_problem *, const fk_args *, fk_error *);
	void (*raise)(const char *message); /* throws a C++ exception; NULL if there is none */
} functions;

typedef struct kernel {
	const char *name; /* of the operator */
	void (*compute)(value *stack, uint64_t inputs, uint64_t outputs);
} kernel;

static functions f;
static int32_t types[5], int64_type, cpu, cuda; /* types by FK_ code */

/* A plan: the options of a call and its dispatcher, in a tensor of int64 on the host. Calls with the same options share a plan. */
enum { VERSION = 0x666b0001, LONGEST = 1 << 20 };
typedef struct plan {
	int64_t version;
	int64_t handle; /* of a dispatcher */
	int64_t swap;   /* 1: rows come before heads, [batch, rows, heads, elements] */
	fk_problem problem;
} plan;

/* Bits of the mask of the optional tensors that a call has, in the order of the arguments. */
enum { BIAS, MASK, SLOPES, SINK, Q_LENS, KV_LENS, Q_STARTS, KV_STARTS, PAGES, RANGES, OPTIONAL, D_LSE = OPTIONAL, D_BIAS, D_SINK };

/* A call: its arguments for the library, and tensors and memory that live until it ends. */
typedef struct call {
	fk_args args;
	fk_problem problem;
	const plan *plan;
	fk_error *error; /* of the library, or NULL */
	int32_t device_type, device_index;
	int copies, lists;
	tensor copy[16];
	int32_t *list[5];
} call;

/* view describes t by up to four dimensions. If the elements of a row are not contiguous, it copies t. */
static bool view(call *c, tensor t, fk_tensor *to, int64_t *dims)
{
	int64_t *sizes, *strides, dense[4];
	int32_t type, device_type, device_index;
	if (f.dim(t, dims) || *dims < 1 || *dims > 4 || f.dtype(t, &type) || f.device_type(t, &device_type) || f.device_index(t, &device_index))
		return false;
	if (f.sizes(t, &sizes) || f.strides(t, &strides))
		return false;
	int64_t last = *dims - 1;
	if (strides[last] != 1 && sizes[last] != 1) {
		tensor copy;
		int64_t next = 1;
		for (int64_t i = last; i >= 0; i--) {
			dense[i] = next;
			next *= sizes[i] > 1 ? sizes[i] : 1;
		}
		if (f.empty(*dims, sizes, dense, type, device_type, device_index, &copy))
			return false;
		c->copy[c->copies++] = copy;
		if (f.copy(copy, t, 0))
			return false;
		t = copy;
		strides = dense;
	}
	for (to->dtype = FK_F32; to->dtype <= FK_I32 && types[to->dtype] != type; to->dtype++)
		;
	if (to->dtype > FK_I32 || f.data(t, &to->data) || (device_type != cpu && device_type != cuda))
		return false;
	to->device = device_type == cuda ? FK_CUDA + device_index : FK_HOST;
	memcpy(to->shape, sizes, (size_t)*dims * sizeof *sizes);
	memcpy(to->strides, strides, (size_t)*dims * sizeof *strides);
	return true;
}

static tensor handle(value x) { return (tensor)(uintptr_t)x; }

static void exchange(int64_t *x, int i, int j)
{
	int64_t kept = x[i];
	x[i] = x[j];
	x[j] = kept;
}

/* four describes a tensor of four dimensions: q, k, v, o or d_o. */
static bool four(call *c, tensor t, fk_tensor *to)
{
	int64_t dims;
	if (!view(c, t, to, &dims) || dims != 4)
		return false;
	if (c->plan->swap) {
		exchange(to->shape, 1, 2);
		exchange(to->strides, 1, 2);
	}
	return true;
}

/* spread moves the dims dimensions of t to first, first+1 and so on. The other dimensions become 1. */
static void spread(fk_tensor *t, int64_t dims, int first)
{
	int64_t shape[4] = {1, 1, 1, 1}, strides[4] = {0, 0, 0, 1};
	memcpy(shape + first, t->shape, (size_t)dims * sizeof *shape);
	memcpy(strides + first, t->strides, (size_t)dims * sizeof *strides);
	memcpy(t->shape, shape, sizeof shape);
	memcpy(t->strides, strides, sizeof strides);
}

static bool column(call *c, tensor t, fk_tensor *to)
{
	int64_t dims;
	if (!view(c, t, to, &dims) || dims != 3)
		return false;
	spread(to, 3, 0);
	return true;
}

/* features describes bias, mask, slopes, sink and ranges. */
static bool features(call *c, const value *optional, int64_t given)
{
	fk_tensor *to[] = {&c->args.bias, &c->args.mask, &c->args.slopes, &c->args.sink};
	for (int i = BIAS; i <= SINK; i++) {
		int64_t dims, most = i <= MASK ? 4 : i == SLOPES ? 2 : 1;
		if (!(given >> i & 1))
			continue;
		if (!view(c, handle(optional[i]), to[i], &dims) || dims > most)
			return false;
		spread(to[i], dims, i <= MASK ? (int)(4 - dims) : (int)(2 - dims));
	}
	if (given >> RANGES & 1) {
		int64_t dims;
		if (!view(c, handle(optional[RANGES]), &c->args.ranges, &dims))
			return false;
		spread(&c->args.ranges, dims, (int)(4 - dims));
	}
	return true;
}

/* integers returns the elements of an array of sequences as int32. It copies an array of int64. */
static const int32_t *integers(call *c, tensor t, int64_t want_dims, int64_t *sizes)
{
	int64_t dims, *shape, *strides, n = 1;
	int32_t type, device_type;
	void *data;
	if (f.dim(t, &dims) || dims != want_dims || f.dtype(t, &type) || f.device_type(t, &device_type))
		return NULL;
	if (f.sizes(t, &shape) || f.strides(t, &strides) || f.data(t, &data))
		return NULL;
	for (int64_t i = dims - 1; i >= 0; i--) {
		if (shape[i] < 1 || (shape[i] > 1 && strides[i] != n) || shape[i] > LONGEST)
			return NULL;
		sizes[i] = shape[i];
		n *= shape[i];
	}
	if (type == types[FK_I32])
		return data;
	if (type != int64_type || device_type != cpu)
		return NULL;
	int32_t *list = malloc((size_t)n * sizeof *list);
	if (list == NULL)
		return NULL;
	c->list[c->lists++] = list;
	for (int64_t i = 0; i < n; i++) {
		int64_t x = ((int64_t *)data)[i];
		if (x < INT32_MIN || x > INT32_MAX)
			return NULL;
		list[i] = (int32_t)x;
	}
	return list;
}

/* on_device sets device if the arrays of sequences are on the GPU of q. It returns false if only some are, or if one is on another device. */
static bool on_device(const call *c, const value *optional, int64_t given, bool *device)
{
	int here = 0, all = 0;
	for (int i = Q_LENS; i <= PAGES; i++) {
		int32_t type, index;
		tensor t = handle(optional[i]);
		if (!(given >> i & 1))
			continue;
		if (f.device_type(t, &type) || f.device_index(t, &index) || (type != cpu && (type != c->device_type || index != c->device_index)))
			return false;
		all++;
		here += type != cpu;
	}
	*device = here > 0;
	return here == 0 || here == all;
}

/* sequences describes lengths, starts and pages. It declines gaps between packed sequences, whose outputs must be cleared. */
static bool sequences(call *c, const value *optional, int64_t given)
{
	fk_args *a = &c->args;
	const int32_t **to[] = {&a->q_lens, &a->kv_lens, &a->q_starts, &a->kv_starts, &a->pages};
	bool device, first = true;
	if (!(given >> Q_LENS & 31))
		return true;
	if (!on_device(c, optional, given, &device))
		return false;
	if (device && given & (1 << Q_LENS | 1 << Q_STARTS | 1 << KV_STARTS)) /* these are read on the host */
		return false;
	if (device)
		a->seqs_device = a->q.device;
	for (int i = Q_LENS; i <= PAGES; i++) {
		int64_t sizes[2];
		const int32_t **list = to[i - Q_LENS];
		if (!(given >> i & 1))
			continue;
		*list = integers(c, handle(optional[i]), i == PAGES ? 2 : 1, sizes);
		int64_t seqs = sizes[0] - (i == Q_STARTS || i == KV_STARTS);
		if (*list == NULL || seqs < 1 || (!first && seqs != a->seqs))
			return false;
		first = false;
		a->seqs = seqs;
		if (i == PAGES)
			a->pages_per_seq = sizes[1];
	}
	if (a->q_starts == NULL ? a->seqs != a->q.shape[0] : a->q_starts[0] != 0 || a->q_starts[a->seqs] != a->q.shape[2])
		return false;
	if (a->kv_starts != NULL)
		return a->kv_starts[0] == 0 && a->kv_starts[a->seqs] == a->k.shape[2];
	return a->pages != NULL || a->seqs == a->k.shape[0];
}

static void start(call *c, fk_error *error)
{
	c->error = error;
	c->copies = c->lists = 0;
}

/* begin reads the options of a call from its plan, and the device from t. */
static bool begin(call *c, tensor options, tensor t)
{
	int64_t dims, *sizes, *strides;
	int32_t type, device;
	void *at;
	c->args = fk_args_init();
	if (f.dim(options, &dims) || dims != 1 || f.sizes(options, &sizes) || f.strides(options, &strides) || *strides != 1 || *sizes != sizeof(plan) / sizeof(int64_t) || f.dtype(options, &type) || type != int64_type)
		return false;
	if (f.device_type(options, &device) || device != cpu || f.data(options, &at) || ((plan *)at)->version != VERSION)
		return false;
	c->plan = at;
	c->problem = c->plan->problem;
	if (f.device_type(t, &c->device_type) || f.device_index(t, &c->device_index))
		return false;
	return c->device_type != cuda || (f.cuda_stream != NULL && f.cuda_stream(c->device_index, &c->args.stream) == 0);
}

/* make allocates an output of up to four dimensions and describes it. steps are its strides. */
static bool make(const call *c, int64_t dims, const int64_t *sizes, const int64_t *steps, int dtype, fk_tensor *to, value *out)
{
	tensor t;
	if (f.empty(dims, sizes, steps, types[dtype], c->device_type, c->device_index, &t))
		return false;
	*out = (value)(uintptr_t)t;
	memcpy(to->shape, sizes, (size_t)dims * sizeof *sizes);
	memcpy(to->strides, steps, (size_t)dims * sizeof *steps);
	to->dtype = dtype;
	to->device = c->device_type == cuda ? FK_CUDA + c->device_index : FK_HOST;
	return f.data(t, &to->data) == 0;
}

static bool dense(const call *c, int64_t dims, const int64_t *sizes, int dtype, fk_tensor *to, value *out)
{
	int64_t steps[4], next = 1;
	for (int64_t i = dims - 1; i >= 0; i--) {
		steps[i] = next;
		next *= sizes[i] > 1 ? sizes[i] : 1;
	}
	return make(c, dims, sizes, steps, dtype, to, out);
}

/* like allocates an output with rows of the given length in the order of t, in which heads may follow rows. */
static bool like(const call *c, const fk_tensor *t, int64_t row, fk_tensor *to, value *out)
{
	int64_t sizes[] = {t->shape[0], t->shape[1], t->shape[2], row}, steps[4] = {0, 0, 0, 1};
	int inner = t->strides[1] < t->strides[2] ? 1 : 2, outer = 3 - inner;
	steps[inner] = row > 1 ? row : 1;
	steps[outer] = steps[inner] * (sizes[inner] > 1 ? sizes[inner] : 1);
	steps[0] = steps[outer] * (sizes[outer] > 1 ? sizes[outer] : 1);
	if (c->plan->swap) {
		exchange(sizes, 1, 2);
		exchange(steps, 1, 2);
	}
	if (!make(c, 4, sizes, steps, c->args.q.dtype, to, out))
		return false;
	if (c->plan->swap) {
		exchange(to->shape, 1, 2);
		exchange(to->strides, 1, 2);
	}
	return true;
}

/* release frees the call's copies and its tensors. */
static void release(const call *c, const value *in, uint64_t tensors)
{
	for (int i = 0; i < c->copies; i++)
		f.release(c->copy[i]);
	for (int i = 0; i < c->lists; i++)
		free(c->list[i]);
	for (uint64_t i = 0; i < tensors; i++)
		f.release(handle(in[i]));
}

/* end frees the call's memory and returns the outputs. If ok is false, the outputs are empty vectors. */
static void end(const call *c, bool ok, value *stack, const value *in, uint64_t tensors, const value *out, uint64_t outputs)
{
	const int64_t none = 0, step = 1;
	release(c, in, tensors);
	for (uint64_t i = 0; i < outputs; i++) {
		tensor t = handle(out[i]);
		if (!ok) {
			if (t != NULL)
				f.release(t);
			t = NULL;
			f.empty(1, &none, &step, types[FK_F32], cpu, -1, &t);
		}
		stack[i] = (value)(uintptr_t)t;
	}
}

/* inputs describes the tensors that both passes read. in holds q, k and v, optional the tensors of the bits of given. */
static bool inputs(call *c, const value *in, const value *optional, int64_t given)
{
	fk_args *a = &c->args;
	if (!four(c, handle(in[0]), &a->q) || !four(c, handle(in[1]), &a->k) || !four(c, handle(in[2]), &a->v))
		return false;
	if (given & ((1 << OPTIONAL) - 1)) {
		if (!features(c, optional, given) || !sequences(c, optional, given))
			return false;
		return f.problem_of(a, &c->problem, c->error) == FK_OK;
	}
	fk_problem *p = &c->problem;
	p->batch = a->q.shape[0];
	p->heads = a->q.shape[1];
	p->kv_heads = a->k.shape[1];
	p->q_len = a->q.shape[2];
	p->kv_len = a->k.shape[2];
	p->dim = a->q.shape[3];
	p->v_dim = a->v.shape[3];
	p->dtype = a->q.dtype;
	p->kv_dtype = a->k.dtype == a->q.dtype ? 0 : a->k.dtype;
	return true;
}

enum { SHORT = 5000000 }; /* floating-point operations of the longest call that runs on one thread */

/*
 * limit runs a short call on the caller's thread alone. After a parallel operator, PyTorch's threads can keep the
 * other processors busy while they wait for the next one. A worker of the library then starts late.
 */
static void limit(call *c, double passes)
{
	const fk_problem *p = &c->problem;
	double pairs = (double)p->batch * (double)p->heads * (double)p->q_len * (double)p->kv_len;
	if (c->device_type == cpu && passes * 2 * pairs * (double)(p->dim + p->v_dim) <= SHORT)
		c->args.workers = 1;
}

enum { FORWARD_PLAIN = 4, FORWARD_FULL = FORWARD_PLAIN + OPTIONAL + 2 };

static bool run_forward(call *c, const value *in, uint64_t n, value *out, bool want_lse)
{
	fk_args *a = &c->args;
	if (!begin(c, handle(in[3]), handle(in[0])))
		return false;
	a->seed = n == FORWARD_FULL ? in[n - 2] : 0;
	if (!inputs(c, in, in + FORWARD_PLAIN, n == FORWARD_FULL ? (int64_t)in[n - 1] : 0))
		return false;
	if (!like(c, &a->q, a->v.shape[3], &a->o, &out[0]))
		return false;
	if (want_lse) {
		if (!dense(c, 3, a->q.shape, FK_F32, &a->lse, &out[1]))
			return false;
		spread(&a->lse, 3, 0);
	}
	limit(c, 1);
	return f.forward((fk_dispatcher *)(uintptr_t)c->plan->handle, &c->problem, a, c->error) == FK_OK;
}

static void forward(value *stack, uint64_t n, uint64_t outputs)
{
	call c;
	value in[FORWARD_FULL], out[2] = {0};
	start(&c, NULL);
	memcpy(in, stack, n * sizeof *in);
	bool ok = run_forward(&c, in, n, out, outputs == 2);
	end(&c, ok, stack, in, n == FORWARD_FULL ? n - 2 : n, out, outputs);
}

enum { BACKWARD_PLAIN = 7, BACKWARD_FULL = BACKWARD_PLAIN + 1 + OPTIONAL + 2 };

/* optional_gradients allocates the gradients of bias and sink, or empty vectors if given does not ask for them. */
static bool optional_gradients(call *c, const value *optional, int64_t given, value *out)
{
	for (int i = 0; i < 2; i++) {
		int64_t dims = 1, none = 0, *sizes = &none;
		fk_tensor empty, *to = &empty;
		const fk_tensor *from = i == 0 ? &c->args.bias : &c->args.sink;
		if (given >> (D_BIAS + i) & 1) {
			tensor t = handle(optional[i == 0 ? BIAS : SINK]);
			to = i == 0 ? &c->args.d_bias : &c->args.d_sink;
			if (from->data == NULL || f.dim(t, &dims) || f.sizes(t, &sizes))
				return false;
		}
		if (!dense(c, dims, sizes, to == &empty ? c->args.q.dtype : from->dtype, to, &out[i]))
			return false;
		if (to != &empty)
			spread(to, dims, i == 0 ? (int)(4 - dims) : 1);
	}
	return true;
}

static bool run_backward(call *c, const value *in, uint64_t n, value *out)
{
	fk_args *a = &c->args;
	bool full = n == BACKWARD_FULL;
	int64_t given = full ? (int64_t)in[n - 1] : 0;
	const value *optional = in + BACKWARD_PLAIN + 1;
	if (!begin(c, handle(in[6]), handle(in[1])))
		return false;
	a->seed = full ? in[n - 2] : 0;
	if (!inputs(c, in + 1, optional, given) || !four(c, handle(in[0]), &a->d_o) || !four(c, handle(in[4]), &a->o) || !column(c, handle(in[5]), &a->lse))
		return false;
	if (given >> D_LSE & 1 && !column(c, handle(in[BACKWARD_PLAIN]), &a->d_lse))
		return false;
	if (!like(c, &a->q, a->q.shape[3], &a->d_q, &out[0]) || !like(c, &a->k, a->k.shape[3], &a->d_k, &out[1]) || !like(c, &a->v, a->v.shape[3], &a->d_v, &out[2]))
		return false;
	if (full && !optional_gradients(c, optional, given, out + 3))
		return false;
	limit(c, 2.5);
	return f.backward((fk_dispatcher *)(uintptr_t)c->plan->handle, &c->problem, a, c->error) == FK_OK;
}

static void backward(value *stack, uint64_t n, uint64_t outputs)
{
	call c;
	value in[BACKWARD_FULL], out[5] = {0};
	start(&c, NULL);
	memcpy(in, stack, n * sizeof *in);
	bool ok = run_backward(&c, in, n, out);
	end(&c, ok, stack, in, n == BACKWARD_FULL ? n - 2 : n, out, outputs);
}

/* take returns the value that an optional argument points to, and frees it: 0 for None. */
static value take(value optional)
{
	value *at = (value *)(uintptr_t)optional, x = at == NULL ? 0 : *at;
	free(at);
	return x;
}

static value undefined(void)
{
	tensor t = NULL;
	f.undefined(&t);
	return (value)(uintptr_t)t;
}

/* finish frees the call's memory and returns the outputs. If ok is false, it raises an error. */
static void finish(const call *c, bool ok, value *stack, const value *in, uint64_t tensors, const value *out, uint64_t outputs)
{
	release(c, in, tensors);
	if (ok) {
		memcpy(stack, out, outputs * sizeof *out);
		return;
	}
	for (uint64_t i = 0; i < outputs; i++)
		if (out[i] != 0)
			f.release(handle(out[i]));
	f.raise(c->error->message[0] ? c->error->message : "flashkit: the compiled part cannot record or differentiate this call");
}

/*
 * recorded computes (query, key, value, attn_bias, dropout_p, is_causal, return_debug_mask, scale) -> (output, logsumexp,
 * cum_seq_q, cum_seq_k, max_q, max_k, philox_seed, philox_offset, debug_attn_mask).
 */
static void recorded(value *stack, uint64_t n, uint64_t outputs)
{
	fk_error error = fk_error_init();
	call c;
	value in[] = {stack[0], stack[1], stack[2], take(stack[3])}, out[9] = {0};
	(void)n;
	take(stack[7]);
	start(&c, &error);
	bool ok = in[3] != 0 && run_forward(&c, in, FORWARD_PLAIN, out, true) && c.problem.kv_dtype == 0; /* no kernel computes gradients of two types */
	for (int i = 2; ok && i < 9; i++)
		out[i] = i == 4 || i == 5 ? 0 : undefined(); /* max_q and max_k are integers */
	finish(&c, ok, stack, in, in[3] == 0 ? 3 : 4, out, ok ? outputs : 2);
}

/*
 * recorded_backward computes (grad_out, query, key, value, attn_bias, grad_input_mask, out, logsumexp, cum_seq_q, cum_seq_k,
 * max_q, max_k, dropout_p, is_causal, philox_seed, philox_offset, scale) -> gradients of query, key, value and attn_bias.
 */
static void recorded_backward(value *stack, uint64_t n, uint64_t outputs)
{
	fk_error error = fk_error_init();
	call c;
	value in[] = {stack[0], stack[1], stack[2], stack[3], stack[6], stack[7], stack[4], stack[8], stack[9], stack[14], stack[15]}, out[4] = {0};
	(void)n;
	f.release_items((items)(uintptr_t)stack[5]);
	take(stack[16]);
	start(&c, &error);
	bool ok = run_backward(&c, in, BACKWARD_PLAIN, out);
	if (ok)
		out[3] = undefined();
	finish(&c, ok, stack, in, sizeof in / sizeof *in, out, outputs);
}

/* implement registers kernels of a library for the processor or CUDA. */
static bool implement(const char *name, const char *key, const kernel *kernels, size_t n)
{
	const uint64_t version = (uint64_t)2 << 56 | (uint64_t)10 << 48; /* PyTorch 2.10: the newest functions and conversions that this file uses */
	registry library;
	if (f.library(name, key, __FILE__, __LINE__, &library))
		return false;
	for (size_t i = 0; i < n; i++)
		if (f.implement(library, kernels[i].name, kernels[i].compute, version))
			return false;
	return true;
}

/* flashkit_torch_register registers the kernels of the operators, which Python has defined. It returns 0, or 1 if PyTorch refuses. */
__attribute__((visibility("default"))) int flashkit_torch_register(const functions *addresses)
{
	static const kernel own[] = {{"_forward_o", forward}, {"_forward", forward}, {"_forward_full", forward}, {"_backward", backward}, {"_backward_full", backward}};
	static const kernel pytorchs[] = {
		{"_scaled_dot_product_fused_attention_overrideable", recorded},
		{"_scaled_dot_product_fused_attention_overrideable_backward", recorded_backward},
	};
	f = *addresses;
	int32_t of_type[] = {f.float32(), f.float16(), f.bfloat16(), f.boolean(), f.int32()};
	memcpy(types, of_type, sizeof types);
	int64_type = f.int64();
	cpu = f.cpu();
	cuda = f.cuda();
	for (int i = 0; i < (f.cuda_stream == NULL ? 1 : 2); i++) {
		const char *key = i == 0 ? "CPU" : "CUDA";
		if (!implement("flashkit", key, own, sizeof own / sizeof *own))
			return 1;
		if (f.raise != NULL && !implement("aten", key, pytorchs, sizeof pytorchs / sizeof *pytorchs))
			return 1;
	}
	return 0;
}
