/*
 * flashkit.h: exact attention, O = softmax(scale*Q*K^T + ...)*V, and its gradients, for C
 * and C++. The memory of a call is linear in the sequence lengths. Tensors are not copied,
 * except between the host and a GPU.
 *
 * Conventions of every function that returns int:
 *   - It returns FK_OK, which is 0, or an FK_ERR_ code. Its last argument, which may be
 *     NULL, receives the code, the name of the invalid field and a message.
 *   - If the code is FK_ERR_NULL to FK_ERR_UNAVAILABLE, no output was written. After any
 *     other error the outputs are undefined.
 *   - Several threads may call these functions at the same time. A signal handler must not
 *     call them.
 *   - Every structure begins with its size, which the caller sets. Later versions add
 *     fields only at its end. If a program passes an older, smaller structure, the missing
 *     fields count as zero. A newer, larger structure is accepted if the fields that this
 *     version does not have are zero. A field of zero always means "not requested".
 *     Initialize a structure with {0} and set size, or use fk_..._init().
 *
 * The library contains the Go runtime: see flashkit(3) for signals, fork and threads.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef FLASHKIT_H
#define FLASHKIT_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The version of this interface and of the library. The soname has the same major version. */
#define FK_VERSION_MAJOR 0
#define FK_VERSION_MINOR 1
#define FK_VERSION_PATCH 0

/* Error codes. */
enum {
	FK_OK = 0,
	FK_ERR_NULL = 1,         /* a required pointer or tensor is missing */
	FK_ERR_HANDLE = 2,       /* a handle is closed, was never open, or has the wrong type */
	FK_ERR_SIZE = 3,         /* a structure has a wrong size, or sets fields that this version does not have */
	FK_ERR_DIMENSION = 4,    /* a dimension is out of range, or a tensor's shape does not fit the problem */
	FK_ERR_HEAD_DIM = 5,     /* dim or v_dim of the problem, or the head dim of a tensor, is wrong */
	FK_ERR_DTYPE = 6,        /* the element type of a tensor or of the problem is wrong */
	FK_ERR_STRIDE = 7,       /* a tensor's strides or address are wrong */
	FK_ERR_OVERLAP = 8,      /* an output shares memory with another tensor, or with itself */
	FK_ERR_VALUE = 9,        /* another value is wrong: band, scale, softcap, dropout, lengths, pages, a name */
	FK_ERR_UNSUPPORTED = 10, /* the call is valid, but no kernel of the dispatcher supports it */
	FK_ERR_UNAVAILABLE = 11, /* this machine lacks the requested backend or kernel */
	FK_ERR_MEMORY = 12,      /* out of memory, on the host or a device */
	FK_ERR_DRIVER = 13,      /* a device driver failed */
	FK_ERR_CANCELED = 14,    /* fk_cancel_now was called */
	FK_ERR_TIMEOUT = 15,     /* the call ran longer than fk_args.timeout_ns */
	FK_ERR_FORKED = 16,      /* the process was forked after the library was loaded */
	FK_ERR_INTERNAL = 17     /* a bug in the library; please report it */
};

/* Element types. Q, K, V, O and their gradients are FK_F32, FK_F16 or FK_BF16. K and V may be FK_I8. */
enum {
	FK_F32 = 0,  /* IEEE binary32 */
	FK_F16 = 1,  /* IEEE binary16 */
	FK_BF16 = 2, /* bfloat16, the upper 16 bits of a binary32 */
	FK_BOOL = 3, /* one byte, 0 or 1; for masks only */
	FK_I32 = 4,  /* signed 32 bits; for fk_args.ranges only */
	FK_I8 = 5    /* signed 8 bits; for K and V with fk_problem.int8group only */
};

/* Devices that hold a tensor's memory. */
enum {
	FK_HOST = 0,
	FK_CUDA = 1 /* GPU 0, in its primary context, as in the CUDA runtime; FK_CUDA + n is GPU n */
};

/* Passes. */
enum {
	FK_PASS_FORWARD = 0,
	FK_PASS_BACKWARD = 1
};

/* Bands of visible keys, for fk_problem.band. */
enum {
	FK_BAND_FULL = 0,   /* every query row sees every key */
	FK_BAND_CAUSAL = 1, /* causal: a row sees the keys up to the diagonal */
	FK_BAND_WINDOW = 2  /* sliding window: a row sees `left` keys before the diagonal, the key on the diagonal, and `right` keys after it */
};

/* For left and right of a window: no limit on that side. */
#define FK_UNLIMITED (-1)

/* Features of a problem, for fk_problem.features. */
enum {
	FK_ALIBI = 1,   /* ALiBi: a head's slope, in fk_args.slopes, times the distance from the diagonal is subtracted from the scores */
	FK_BIAS = 2,    /* fk_args.bias is added to the scores */
	FK_MASK = 4,    /* fk_args.mask hides keys: 1 visible, 0 hidden */
	FK_SINK = 8,    /* attention sink: fk_args.sink has a logit per head, which adds to the softmax's sum but has no value */
	FK_RAGGED = 16, /* sequences differ in length: see fk_args.seqs and the fields after it */
	FK_CARRY = 32,  /* o and lse hold the results over earlier keys, to which the forward pass adds the keys of this call */
	FK_ORIGIN = 64, /* the call is part of a larger problem, whose dropout mask applies: see fk_args.origin_batch */
	FK_ROWMAX = 128, /* the forward pass also writes fk_args.rowmax */
	FK_KEYMASS = 256 /* the forward pass also writes fk_args.keymass */
};

/* Flags of fk_open. */
enum {
	FK_OPEN_FROZEN = 1,   /* learn nothing from later calls: a problem always runs on the same kernel, with the same bits */
	FK_OPEN_PAIRED = 2,   /* all forward passes, even without fk_args.lse, sum scores in the backward pass's order */
	FK_OPEN_BLANK = 4,    /* ignore the machine's calibration profile */
	FK_OPEN_ANY_ORDER = 8, /* on GPU tensors, sum d_q in any order: faster, but bits differ from run to run */
	FK_OPEN_UNPAIRED = 16 /* no backward pass follows: forward passes with fk_args.lse need not sum in the backward pass's order */
};

/* An open dispatcher: it has backends and estimates of the speed of their kernels. */
typedef struct fk_dispatcher fk_dispatcher;

/* A cancellation handle, with which another thread can end calls. */
typedef struct fk_cancel fk_cancel;

/* A KV cache: the keys and values of growing sequences, in host memory. */
typedef struct fk_cache fk_cache;

/*
 * Details of an error. Strings are cut to fit and end with a zero byte. field is empty or
 * the name of the invalid field, such as "kv_heads", "q.shape", "k.strides[2]" or
 * "q_lens[3]".
 */
typedef struct fk_error {
	size_t size; /* sizeof(fk_error); at most size bytes are written */
	int32_t code;
	int32_t reserved;
	char field[64];
	char message[432];
} fk_error;

/*
 * A strided view of the caller's memory: [batch, heads, rows, elements of a row]. Strides
 * count elements and are not negative. A row is contiguous: strides[3] must be 1 if
 * shape[3] > 1. In an input, stride 0 repeats the elements along a dimension. The stride of
 * a dimension of size 1 is ignored. data must be aligned to the element size. A zero
 * fk_tensor means "none".
 *
 * The caller guarantees that the memory from data to the last element of the view is valid.
 * The library accesses no other memory.
 */
typedef struct fk_tensor {
	void *data; /* the library does not write to inputs */
	int64_t shape[4];
	int64_t strides[4];
	int32_t dtype;
	int32_t device; /* FK_HOST, or FK_CUDA + n for GPU n; the same for all tensors of a call */
} fk_tensor;

/*
 * The parameters of a problem. Scores pass through these steps in order: dot product,
 * scale, softcap, bias and ALiBi, mask, ranges and band, softmax with the sink, dropout.
 * batch, q_len and kv_len may be 0.
 */
typedef struct fk_problem {
	size_t size;      /* sizeof(fk_problem) */
	int64_t batch;    /* B */
	int64_t heads;    /* H, number of query heads */
	int64_t kv_heads; /* G, number of KV heads, a divisor of H (GQA); query head h reads KV head h / (H/G) */
	int64_t q_len;    /* N, number of query rows; in a ragged problem, of the longest sequence */
	int64_t kv_len;   /* M, number of keys; in a ragged problem, of the longest sequence */
	int64_t dim;      /* D, head dim of Q and K */
	int64_t v_dim;    /* DV, head dim of V and O */
	int32_t dtype;    /* element type of Q, K, V, O and their gradients */
	int32_t kv_dtype; /* element type of K and V: FK_F16 or FK_BF16 if dtype is FK_F32; 0: dtype */

	/*
	 * Row i sees key j if i+off-left <= j <= i+off+right. If top_left is 0, off is
	 * M-N+shift: with shift 0 the last row is aligned with the last key. If top_left is 1,
	 * off is shift. left and right must be 0 unless band is FK_BAND_WINDOW.
	 */
	int32_t band;
	int32_t top_left; /* 1: align the first row with the first key */
	int64_t left;
	int64_t right;
	int64_t shift;

	float scale;       /* softmax scale, from 2^-126 to 2.358e38; 0: 1/sqrt(dim) */
	float softcap;     /* c > 0 replaces a score s by c*tanh(s/c); 0: none */
	float dropout;     /* probability to drop a weight, 0 <= p < 1, rounded to a multiple of 2^-16 */
	uint32_t features; /* FK_ALIBI | FK_BIAS | ... */
	int64_t page;      /* keys per page if K and V are paged, in a ragged problem; 0: not paged */
	int64_t ranges;    /* R, 1 or 2: a row sees only the keys in its R ranges in fk_args.ranges; 0: no ranges */

	/*
	 * g: K and V are FK_I8, and a scale of fk_args.kscale or vscale multiplies each g elements
	 * of a row. g is 32, 64, or the larger head dim for one scale a row. Forward pass only.
	 * 0: K and V are not FK_I8.
	 */
	int64_t int8group;
} fk_problem;

/*
 * The tensors and other data of a call. A pass ignores tensors that only the other pass
 * uses. A tensor that belongs to a feature is an error if the problem does not have this
 * feature. A call overwrites its outputs; it does not add to them. Outputs must not share
 * memory with another tensor. The caller must not change the structures, arrays or inputs
 * during a call.
 */
typedef struct fk_args {
	size_t size; /* sizeof(fk_args) */

	fk_tensor q;   /* [B, H, N, D] */
	fk_tensor k;   /* [B, G, M, D] */
	fk_tensor v;   /* [B, G, M, DV] */
	fk_tensor o;   /* [B, H, N, DV]; 0 for a row that sees no key */
	fk_tensor lse; /* [B, H, N, 1] f32, natural log-sum-exp; -inf for a row without keys or sink. Optional in the forward pass without FK_CARRY */

	/* The backward pass reads q, k, v, o, lse and d_o and writes d_q, d_k, d_v. */
	fk_tensor d_o;   /* [B, H, N, DV], the gradient of o */
	fk_tensor d_lse; /* [B, H, N, 1] f32, the gradient of lse. Optional: zero if absent */
	fk_tensor d_q;   /* [B, H, N, D] */
	fk_tensor d_k;   /* [B, G, M, D] */
	fk_tensor d_v;   /* [B, G, M, DV] */

	fk_tensor bias;   /* [B, H, N, M] f32 or dtype; each dimension but M may be 1, and is then repeated */
	fk_tensor d_bias; /* shape and type of bias; summed over repeated dimensions. Optional */
	fk_tensor mask;   /* FK_BOOL, [B, H, N, M]; dimensions may be 1 as for bias */
	fk_tensor slopes; /* [B, H, 1, 1] f32; B may be 1, and is then repeated */
	fk_tensor sink;   /* [1, H, 1, 1] f32, logits */
	fk_tensor d_sink; /* [1, H, 1, 1] f32. Optional */

	uint64_t seed; /* dropout seed: the same seed drops the same weights in both passes */

	/*
	 * Sequences of a ragged problem; NULL and 0 otherwise. Arrays are on the host unless
	 * seqs_device is set. Queries are padded or packed. Keys are padded, packed or paged,
	 * independently of the queries.
	 *   padded: sequence b has the first q_lens[b] rows of batch b, and the first kv_lens[b] keys.
	 *     If an array is NULL, all sequences have q_len rows, or kv_len keys. In rows
	 *     beyond a sequence's length, the forward pass writes 0 to o and -inf to lse. The
	 *     backward pass writes 0 to such rows of d_q, d_k and d_v.
	 *   packed: the tensors have batch 1. Sequence b has rows q_starts[b] to
	 *     q_starts[b+1]-1, or keys kv_starts[b] to kv_starts[b+1]-1. Rows outside all
	 *     sequences are neither read nor written.
	 *   paged: k and v are pools of pages, [pages, G, page, D] and [pages, G, page, DV].
	 *     Sequence b has the first kv_lens[b] keys of the pages with the numbers
	 *     pages[b*pages_per_seq], pages[b*pages_per_seq+1] and so on. Forward pass only.
	 */
	int64_t seqs;             /* number of sequences, B */
	const int32_t *q_lens;    /* [seqs] */
	const int32_t *kv_lens;   /* [seqs] */
	const int32_t *q_starts;  /* [seqs+1] */
	const int32_t *kv_starts; /* [seqs+1] */
	const int32_t *pages;     /* page table, [seqs][pages_per_seq] */
	int64_t pages_per_seq;

	int64_t workers;    /* maximum threads, including the caller's; 0: no limit. Results do not depend on workers */
	int64_t timeout_ns; /* approximate time limit; 0: none. With GPU tensors the library checks it only before it enqueues work */
	fk_cancel *cancel;  /* handle that ends the call with FK_ERR_CANCELED, or NULL */
	void *stream;       /* CUstream for GPU tensors; NULL: the default stream. The call enqueues its work and returns */

	/*
	 * For FK_ORIGIN, else 0: the indices that this call's first sequence, query head, query
	 * row and key have in the larger problem. The dropout mask of an element depends on its
	 * indices in the larger problem. Rows and keys are counted within each sequence. Each
	 * index plus the size of its dimension must be below 2^31.
	 */
	int64_t origin_batch;
	int64_t origin_head;
	int64_t origin_row;
	int64_t origin_key; /* a multiple of 8 */

	/*
	 * 0: the sequence arrays are on the host. q.device: kv_lens and pages of a paged problem
	 * are on the device of q. The kernel then reads both arrays when it runs, so a CUDA
	 * graph of the call may be replayed after the arrays have changed. The library does not
	 * check the arrays: lengths are clamped to [0, kv_len], and with page numbers outside
	 * the pools the kernel reads other memory. If kv_lens is NULL, all sequences have kv_len
	 * keys.
	 */
	int64_t seqs_device;

	/*
	 * FK_I32, [B, H, N, 2R], R = fk_problem.ranges. B or H may be 1, and is then repeated. The
	 * ranges of keys that a row sees, each as its first key and the key after its last. The
	 * numbers of a row do not decrease, and are from 0 to M. Keys count from the start of the
	 * sequence. A key outside has no influence on the row.
	 */
	fk_tensor ranges;

	/*
	 * FK_F32 or FK_F16, [B, G, M, ceil(D/g)] and [B, G, M, ceil(DV/g)], g = fk_problem.int8group:
	 * the scales of FK_I8 keys and values. In pages like K and V.
	 */
	fk_tensor kscale;
	fk_tensor vscale;

	/*
	 * For FK_ROWMAX: [B, H, N, 1] f32. The forward pass writes the largest score of each row
	 * over the keys that it sees, after scale, softcap, bias and ALiBi, in natural units. It is
	 * -inf for a row without keys, and NaN if a score is NaN or +inf. The sink does not count.
	 * With FK_CARRY, the maxima over the earlier keys are read and count.
	 */
	fk_tensor rowmax;

	/*
	 * For FK_KEYMASS: [B, H, 1, M] f32, in every layout of sequences. The forward pass writes, for
	 * each query head and key, the sum of exp(score - lse) over the head's query rows: the
	 * weights before dropout. Keys count from the start of the sequence; a key that no row
	 * sees has 0. The keys of earlier calls have no sums with FK_CARRY.
	 */
	fk_tensor keymass;
} fk_args;

/* The first keys and values of all sequences of a call, such as a system prompt. */
typedef struct fk_prefix {
	size_t size; /* sizeof(fk_prefix) */
	fk_tensor k; /* [1, G, P, D]; with pages a pool, [pages, G, page, D] */
	fk_tensor v; /* [1, G, P, DV]; with pages a pool, [pages, G, page, DV] */

	const int32_t *pages; /* [page_count], on the host: the numbers of the pages that have the keys; NULL without pages */
	int64_t page_count;
	int64_t len; /* P, the number of keys in pages; 0 without pages */
} fk_prefix;

/* The parameters of a KV cache. */
typedef struct fk_cache_config {
	size_t size;         /* sizeof(fk_cache_config) */
	int64_t batch;       /* B, number of sequences */
	int64_t kv_heads;    /* G */
	int64_t capacity;    /* the most keys of a sequence, a multiple of page */
	int64_t dim;         /* head dim of keys and values */
	int64_t page;        /* keys per page; 0: no pages, each sequence has memory for capacity keys */
	int64_t pages;       /* pages of the pool, for all sequences together; 0: enough for batch full sequences. Without page, 0 */
	int64_t int8group;   /* for FK_I8: elements of a row that share a scale: 32, 64 or dim; 0: dim. For other types, 0 */
	int32_t dtype;       /* type of the stored keys and values: FK_F32, FK_F16, FK_BF16 or FK_I8 */
	int32_t scale_dtype; /* for FK_I8: type of the scales, FK_F32 or FK_F16 */
} fk_cache_config;

/* Memory of a call in bytes, without the caller's tensors. Allocators may round up. */
typedef struct fk_memory {
	size_t size;    /* sizeof(fk_memory); at most size bytes are written */
	double host;    /* host memory */
	double tensors; /* device memory for copies of host tensors */
	double device;  /* other device memory */
} fk_memory;

/*
 * fk_open opens backends that this machine can run. backend is "auto" for all of them, a
 * backend such as "simd", or a kernel such as "simd/fwd_avx2". A kernel's name also selects
 * the kernel of the same variant for the other pass. NULL means the value of the
 * environment variable FLASHKIT_BACKEND, or "auto" if it is not set. fk_open returns
 * FK_ERR_UNAVAILABLE if the machine lacks the named backend or kernel. A program should
 * open a dispatcher once and reuse it.
 */
int fk_open(const char *backend, uint32_t flags, fk_dispatcher **out, fk_error *err);

/*
 * fk_close waits for the calls in progress and frees the dispatcher. Later calls with the
 * handle, including fk_close, return FK_ERR_HANDLE.
 */
int fk_close(fk_dispatcher *d, fk_error *err);

/*
 * fk_problem_of sets dimensions, types, page and features of p from the tensors of args.
 * args must have q, k and v. fk_problem_of leaves the band, scale, softcap, dropout,
 * FK_CARRY and FK_ORIGIN of p unchanged.
 */
int fk_problem_of(const fk_args *args, fk_problem *p, fk_error *err);

/* fk_forward computes o, and lse if present. */
int fk_forward(fk_dispatcher *d, const fk_problem *p, const fk_args *args, fk_error *err);

/*
 * fk_forward_prefix is fk_forward for sequences that begin with the same keys: p and args
 * describe the other keys. The result equals the result of one call over all keys, up to
 * rounding. The prefix is read once for all sequences.
 *
 * Every row must see the whole prefix: the band must not have a limit on the left. Under
 * a causal band, which must not be top_left, no sequence may have fewer keys of its own than
 * rows. The band applies to a sequence's own keys. The problem may have a softcap, FK_SINK,
 * FK_RAGGED, FK_CARRY, pages and a kv_dtype; other features give FK_ERR_UNSUPPORTED.
 *
 * With GPU tensors lse is required, q_lens and q_starts must be NULL, and the rows of a head in
 * q, o and lse must have one stride over all sequences, as with q_len 1 or with rows before
 * heads in memory. If seqs_device is set, kv_lens are not checked.
 *
 * If no kernel supports one of the two parts of the call, FK_ERR_UNSUPPORTED may come after o and
 * lse were written.
 */
int fk_forward_prefix(fk_dispatcher *d, const fk_problem *p, const fk_prefix *prefix, const fk_args *args, fk_error *err);

/*
 * fk_backward computes the gradients of sum(o*d_o) + sum(lse*d_lse). o and lse must be the
 * forward pass's results.
 */
int fk_backward(fk_dispatcher *d, const fk_problem *p, const fk_args *args, fk_error *err);

/*
 * fk_merge combines two results for the same queries over disjoint sets of keys. It writes
 * the result over both sets to o and lse. o, o1 and o2 are [B, H, N, DV] of one type; lse, lse1
 * and lse2 are [B, H, N, 1] f32; all are on the host. An output may be one of the inputs if
 * both views are equal. lse may be NULL. A row without keys, whose lse is -inf, contributes
 * nothing. At most one of the two results may include a sink, because a sink in both would
 * count twice.
 */
int fk_merge(const fk_tensor *o, const fk_tensor *lse, const fk_tensor *o1, const fk_tensor *lse1,
             const fk_tensor *o2, const fk_tensor *lse2, fk_error *err);

/*
 * fk_cache_new creates an empty KV cache and claims all its memory. fk_cache_free frees it. The
 * functions below lock the cache, but calls with its memory do not: while one of them changes the
 * cache, no fk_forward with its memory may run. A function that returns an error has changed nothing.
 */
int fk_cache_new(const fk_cache_config *config, fk_cache **out, fk_error *err);
int fk_cache_free(fk_cache *cache, fk_error *err);

/*
 * fk_cache_append adds the first lens[b] rows of k and v to the end of sequence b, or all n rows
 * if lens is NULL. k and v are [B, G, n, dim], FK_F32, FK_F16 or FK_BF16, on the host. They are
 * rounded to the type of the cache; for FK_I8, each group of elements gets its largest magnitude /
 * 127 as its scale.
 */
int fk_cache_append(fk_cache *cache, const fk_tensor *k, const fk_tensor *v, const int32_t *lens, fk_error *err);

/* fk_cache_truncate keeps the first len keys of sequence seq. */
int fk_cache_truncate(fk_cache *cache, int64_t seq, int64_t len, fk_error *err);

/* fk_cache_remove empties sequence seq, and fk_cache_reset all sequences. */
int fk_cache_remove(fk_cache *cache, int64_t seq, fk_error *err);
int fk_cache_reset(fk_cache *cache, fk_error *err);

/*
 * fk_cache_fork makes sequence `to` a copy of sequence seq, in place of its earlier keys. With
 * pages both share all pages, and a change of one sequence copies only the pages that it writes.
 */
int fk_cache_fork(fk_cache *cache, int64_t seq, int64_t to, fk_error *err);

/*
 * fk_cache_evict removes keys from, ..., to-1 of sequence seq. Later keys move down in their
 * order. A band counts only the remaining keys.
 */
int fk_cache_evict(fk_cache *cache, int64_t seq, int64_t from, int64_t to, fk_error *err);

/*
 * fk_cache_args sets k, v, kscale, vscale, seqs, kv_lens, pages and pages_per_seq of args to the
 * memory of the cache, and kv_starts and seqs_device to 0. fk_problem_of then returns the same
 * problem for all lengths. With prefix, args gets each sequence's keys after the pages that all
 * sequences share since fk_cache_fork, and *prefix these pages, for fk_forward_prefix; their number
 * may be 0. The arrays exist until fk_cache_free, and show later changes of the cache, except with
 * prefix: then call fk_cache_args after each change.
 */
int fk_cache_args(fk_cache *cache, fk_args *args, fk_prefix *prefix, fk_error *err);

/*
 * fk_cache_state sets *next to the positions of the sequences' next keys, which differ from kv_lens
 * after fk_cache_evict alone, and *free_pages to the number of pages without keys. Both may be NULL.
 */
int fk_cache_state(fk_cache *cache, const int32_t **next, int64_t *free_pages, fk_error *err);

/* fk_workspace returns the memory that the chosen kernel for a pass of the problem needs. */
int fk_workspace(fk_dispatcher *d, const fk_problem *p, int pass, fk_memory *out, fk_error *err);

/*
 * fk_explain writes a line for every kernel of the pass and every missing backend. A line
 * has four fields: "*" for the kernel that would run, else "-"; the name; the predicted
 * time in nanoseconds, or 0; the reason. Tabs separate fields, and a newline ends a line.
 * fk_explain runs no kernel.
 *
 * As with snprintf, at most len bytes are written to buf, including the zero byte. Unless
 * needed is NULL, *needed is set to the length of the whole text without the zero byte. buf
 * may be NULL if len is 0. It is no error if the text is cut to fit.
 */
int fk_explain(fk_dispatcher *d, const fk_problem *p, int pass, char *buf, size_t len, size_t *needed, fk_error *err);

/*
 * fk_kernels writes a line for every kernel of the dispatcher. A line has four fields: the
 * name; "forward" or "backward"; the requirement that this machine lacks, or nothing; a
 * description. buf, len and needed are as in fk_explain.
 */
int fk_kernels(fk_dispatcher *d, char *buf, size_t len, size_t *needed, fk_error *err);

/*
 * fk_cancel_new creates a cancellation handle. fk_cancel_now ends all current and later
 * calls whose fk_args.cancel is the handle. fk_cancel_free waits until the current calls
 * with the handle have returned, and frees the handle.
 */
int fk_cancel_new(fk_cancel **out, fk_error *err);
int fk_cancel_now(fk_cancel *c, fk_error *err);
int fk_cancel_free(fk_cancel *c, fk_error *err);

/*
 * fk_error_string returns a constant text for an error code, or "unknown error" if there is
 * no such code.
 */
const char *fk_error_string(int code);

/* fk_version returns the library's version, such as "0.1.0", as a constant string. */
const char *fk_version(void);

/* fk_..._init returns a structure with its size; its other fields are 0. */
#define FK_INIT_(type)                      \
	static inline type type##_init(void) \
	{                                    \
		type x;                      \
		memset(&x, 0, sizeof x);     \
		x.size = sizeof x;           \
		return x;                    \
	}
FK_INIT_(fk_error)
FK_INIT_(fk_problem)
FK_INIT_(fk_args)
FK_INIT_(fk_prefix)
FK_INIT_(fk_memory)
FK_INIT_(fk_cache_config)
#undef FK_INIT_

/* fk_dense returns a view of a dense row-major tensor in host memory. */
static inline fk_tensor fk_dense(const void *data, int32_t dtype, int64_t batch, int64_t heads, int64_t rows, int64_t row)
{
	fk_tensor t;
	memset(&t, 0, sizeof t);
	t.data = (void *)(uintptr_t)data;
	t.shape[0] = batch;
	t.shape[1] = heads;
	t.shape[2] = rows;
	t.shape[3] = row;
	t.strides[1] = (int64_t)((uint64_t)rows * (uint64_t)row); /* on overflow the stride wraps, and calls reject it */
	t.strides[0] = (int64_t)((uint64_t)heads * (uint64_t)t.strides[1]);
	t.strides[2] = row;
	t.strides[3] = 1;
	t.dtype = dtype;
	return t;
}

/*
 * A second, smaller interface, on the CPU, also by #include <flash_attention.h>: Q, K, V and O are dense row-major float32
 * tensors of the same shape, [batch, heads, seq_len, head_dim]. head_dim is at most 512.
 */
enum {
	FLASH_ATTENTION_OK = 0,
	FLASH_ATTENTION_ERR_NULL = -1,      /* a pointer is NULL */
	FLASH_ATTENTION_ERR_DIMENSION = -2, /* batch, heads or seq_len is below 1, or their product overflows */
	FLASH_ATTENTION_ERR_HEAD_DIM = -3,  /* head_dim is not in 1..512 */
	FLASH_ATTENTION_ERR_BLOCK = -4,     /* block_m or block_n is negative */
	FLASH_ATTENTION_ERR_OVERLAP = -5,   /* an output shares memory with another tensor */
	FLASH_ATTENTION_ERR_MEMORY = -6,    /* out of memory */
	FLASH_ATTENTION_ERR_INTERNAL = -7,  /* any other error */
	FLASH_ATTENTION_ERR_FORKED = -8     /* the process was forked after the library was loaded */
};

#define FLASH_ATTENTION_MAX_HEAD_DIM 512

typedef struct FlashAttentionParams {
	int batch;
	int heads;
	int seq_len;
	int head_dim;
	int block_m; /* block_m and block_n are ignored, except that negative values are errors */
	int block_n;
	int causal; /* not 0: row i sees keys 0..i */
} FlashAttentionParams;

/* flash_attention_cpu_forward computes O = softmax(Q*K^T/sqrt(head_dim))*V. */
int flash_attention_cpu_forward(const float *Q, const float *K, const float *V, float *O,
                                const FlashAttentionParams *params);

/*
 * flash_attention_cpu_backward computes the gradients of sum(O*dO). It recomputes the
 * forward pass, because no state is kept between calls. For the recomputed O
 * it needs memory of the size of O.
 */
int flash_attention_cpu_backward(const float *Q, const float *K, const float *V, const float *dO,
                                 float *dQ, float *dK, float *dV, const FlashAttentionParams *params);

#ifdef __cplusplus
}
#endif

#endif
