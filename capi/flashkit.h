/*
 * flashkit.h: exact attention, O = softmax(scale*Q*K^T + ...)*V, and its gradients,
 * from C and C++. Memory is linear in the lengths. No tensor is copied.
 *
 * Conventions of every function that returns int:
 *   - It returns FK_OK, which is 0, or an FK_ERR_ code. The last argument, which may be
 *     NULL, receives the code, the field at fault and a text.
 *   - After an error of FK_ERR_NULL to FK_ERR_UNAVAILABLE nothing was written. After
 *     another one the outputs are undefined.
 *   - It may be called from any thread, from several at once, but not from a signal handler.
 *   - Structures begin with their size, which the caller sets: fields are only ever added
 *     at the end. A shorter structure of an older program is taken, and what it lacks is
 *     zero. A longer one is taken if what this library does not know is zero. Zero
 *     always means "not asked for". Begin with {0}, or with an fk_..._init() below.
 *
 * The library holds the Go runtime: see flashkit(3) for signals, fork and threads.
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

/* The version of this interface. The major one is that of the library's soname. */
#define FK_VERSION_MAJOR 0
#define FK_VERSION_MINOR 1

/* Errors, one code for each class. */
enum {
	FK_OK = 0,
	FK_ERR_NULL = 1,         /* a pointer or a tensor that the call needs is missing */
	FK_ERR_HANDLE = 2,       /* a handle that is closed, was never open, or is of the other type */
	FK_ERR_SIZE = 3,         /* the size of a structure, or bytes of it that this library does not know */
	FK_ERR_DIMENSION = 4,    /* a dimension makes no sense, or a tensor has not the shape of the problem */
	FK_ERR_HEAD_DIM = 5,     /* dim or v_dim, of the problem or of a tensor */
	FK_ERR_DTYPE = 6,        /* the type of a tensor or of the problem */
	FK_ERR_STRIDE = 7,       /* strides or the address of a tensor */
	FK_ERR_OVERLAP = 8,      /* an output shares memory with another tensor, or with itself */
	FK_ERR_VALUE = 9,        /* another value: band, scale, softcap, dropout, lengths, pages, a name */
	FK_ERR_UNSUPPORTED = 10, /* valid, but no kernel of the dispatcher takes it */
	FK_ERR_UNAVAILABLE = 11, /* this machine lacks the backend or the kernel that was asked for */
	FK_ERR_MEMORY = 12,      /* out of memory, of the host or of a device */
	FK_ERR_DRIVER = 13,      /* the driver of a device failed */
	FK_ERR_CANCELED = 14,    /* fk_cancel_now was called */
	FK_ERR_TIMEOUT = 15,     /* fk_args.timeout_ns passed */
	FK_ERR_FORKED = 16,      /* the process is a fork of the one that loaded the library */
	FK_ERR_INTERNAL = 17     /* a defect of the library; please report it */
};

/* Types of elements. Q, K, V, O and their gradients are FK_F32, FK_F16 or FK_BF16. */
enum {
	FK_F32 = 0,  /* IEEE binary32 */
	FK_F16 = 1,  /* IEEE binary16 */
	FK_BF16 = 2, /* the upper half of a binary32 */
	FK_BOOL = 3  /* a byte, 0 or 1; masks alone */
};

/* Where the memory of a tensor lies. */
enum {
	FK_HOST = 0,
	FK_CUDA = 1 /* GPU 0, in the device's primary context, which the CUDA runtime uses; FK_CUDA + n is GPU n */
};

/* Passes. */
enum {
	FK_PASS_FORWARD = 0,
	FK_PASS_BACKWARD = 1
};

/* Bands, fk_problem.band. */
enum {
	FK_BAND_FULL = 0,   /* every row sees every key */
	FK_BAND_CAUSAL = 1, /* no row sees a key after the diagonal */
	FK_BAND_WINDOW = 2  /* left keys before the diagonal and right keys after it */
};

/* As left or right of a window: no key on that side is hidden. */
#define FK_UNLIMITED (-1)

/* Features of a problem, fk_problem.features. */
enum {
	FK_ALIBI = 1,   /* fk_args.slopes: minus the slope times the distance from the diagonal */
	FK_BIAS = 2,    /* fk_args.bias is added to the scores */
	FK_MASK = 4,    /* fk_args.mask hides keys: 1 takes part */
	FK_SINK = 8,    /* fk_args.sink: a logit of each head that takes weight and has no value */
	FK_RAGGED = 16, /* sequences differ in length: see fk_args.q_lens and what follows it */
	FK_CARRY = 32,  /* o and lse hold the result of earlier keys, and the forward pass continues it */
	FK_ORIGIN = 64  /* of dropout: the call is a part of a whole, and drops what a call of the whole does there: see fk_args.origin_batch */
};

/* Flags of fk_open. */
enum {
	FK_OPEN_FROZEN = 1,   /* choose by what was known when it was opened: the same kernels, hence the same bits, in every call */
	FK_OPEN_PAIRED = 2,   /* all forward passes sum scores as backward passes do, not only those with fk_args.lse: for fk_explain and fk_workspace, which see no lse */
	FK_OPEN_BLANK = 4,    /* ignore what a profile of the machine says */
	FK_OPEN_ANY_ORDER = 8, /* on a GPU's memory d_q is summed in whatever order comes: faster, but its bits differ from run to run */
	FK_OPEN_UNPAIRED = 16 /* no backward pass follows: forward passes with fk_args.lse need not sum scores as backward passes do */
};

/* What is open: backends, and what is known of the speed of their kernels. */
typedef struct fk_dispatcher fk_dispatcher;

/* Ends calls from another thread. */
typedef struct fk_cancel fk_cancel;

/*
 * What was wrong. Texts end with a zero byte and are cut to fit. field names what is at
 * fault as the structures below do: "kv_heads", "q.shape", "k.strides[2]", "q_lens[3]";
 * it is empty where no field is.
 */
typedef struct fk_error {
	size_t size; /* sizeof(fk_error); no more than that is written */
	int32_t code;
	int32_t reserved;
	char field[64];
	char message[432];
} fk_error;

/*
 * A strided view of the caller's memory: [batch, heads, rows, row elements]. Strides are
 * in elements and not negative. Elements of a row are contiguous, so strides[3] must
 * be 1 where shape[3] is more than 1. Inputs may have stride 0 to repeat a
 * dimension. Where a dimension is 1 its stride is not used. An address is a multiple of
 * an element's size. The zero fk_tensor means "none".
 *
 * The library trusts that memory reaches from data to the last element that
 * the shape and the strides name, and touches nothing outside of that.
 */
typedef struct fk_tensor {
	void *data; /* inputs are only read */
	int64_t shape[4];
	int64_t strides[4];
	int32_t dtype;
	int32_t device; /* FK_HOST, or FK_CUDA + n for GPU n; of all tensors of a call the same */
} fk_tensor;

/*
 * What to compute. The order is: dot product, scale, softcap, bias and alibi, mask and
 * band, softmax with the sink, dropout. batch, q_len and kv_len may be 0.
 */
typedef struct fk_problem {
	size_t size;      /* sizeof(fk_problem) */
	int64_t batch;    /* B */
	int64_t heads;    /* H, query heads */
	int64_t kv_heads; /* G, divides heads; query head h reads head h / (H/G) */
	int64_t q_len;    /* N, query rows; the longest of a ragged problem */
	int64_t kv_len;   /* M, key and value rows; the longest of a ragged problem */
	int64_t dim;      /* D, elements of a row of Q and K */
	int64_t v_dim;    /* DV, elements of a row of V and O */
	int32_t dtype;    /* of Q, K, V, O and their gradients */
	int32_t kv_dtype; /* of K and V alone, FK_F16 or FK_BF16 where dtype is FK_F32; 0: dtype */

	/*
	 * Row i sees key j when i+off-left <= j <= i+off+right, where off is M-N+shift, so that
	 * the last row meets the last key, or shift alone with top_left. left and right count in
	 * FK_BAND_WINDOW only and are 0 else.
	 */
	int32_t band;
	int32_t top_left; /* 1: the first row meets the first key */
	int64_t left;
	int64_t right;
	int64_t shift;

	float scale;       /* multiplies Q*K^T, from 2^-126 to 2.358e38; 0: 1/sqrt(dim) */
	float softcap;     /* c > 0: the score s becomes c*tanh(s/c) */
	float dropout;     /* weights are dropped with this probability, 0 <= p < 1, rounded to a multiple of 2^-16 */
	uint32_t features; /* FK_ALIBI | FK_BIAS | ... */
	int64_t page;      /* keys of a page of K and V in a ragged problem; 0: not paged */
} fk_problem;

/*
 * The tensors of a call, and what else is data. A pass reads what it needs and ignores
 * the tensors of the other pass; a tensor of a feature that the problem lacks is an
 * error. Outputs are written, never added to, and share memory with no other tensor.
 * Nothing of it may change during a call.
 */
typedef struct fk_args {
	size_t size; /* sizeof(fk_args) */

	fk_tensor q;   /* [B, H, N, D] */
	fk_tensor k;   /* [B, G, M, D] */
	fk_tensor v;   /* [B, G, M, DV] */
	fk_tensor o;   /* [B, H, N, DV]; 0 for a row that sees no key */
	fk_tensor lse; /* [B, H, N, 1] f32, natural logarithm; -inf for a row that sees no key. Optional in the forward pass */

	/* The backward pass reads q, k, v, o, lse and d_o and writes d_q, d_k, d_v. */
	fk_tensor d_o;   /* [B, H, N, DV], the gradient of o */
	fk_tensor d_lse; /* [B, H, N, 1] f32, the gradient of lse. Optional: 0 without it */
	fk_tensor d_q;   /* [B, H, N, D] */
	fk_tensor d_k;   /* [B, G, M, D] */
	fk_tensor d_v;   /* [B, G, M, DV] */

	fk_tensor bias;   /* [B, H, N, M], each but M may be 1 and repeats; f32 or dtype */
	fk_tensor d_bias; /* shape and type of bias, summed over what repeats. Optional */
	fk_tensor mask;   /* FK_BOOL, shapes of bias */
	fk_tensor slopes; /* [B, H, 1, 1] f32, B may be 1 */
	fk_tensor sink;   /* [1, H, 1, 1] f32 */
	fk_tensor d_sink; /* [1, H, 1, 1] f32. Optional */

	uint64_t seed; /* of dropout: the same seed drops the same weights in both passes */

	/*
	 * Of a ragged problem, else NULL and 0; on the host, unless seqs_device says otherwise.
	 * Queries are padded or packed, keys are padded, packed or paged, each side by itself.
	 *   padded: sequence b has the first q_lens[b] rows of batch b, likewise kv_lens[b] keys;
	 *     NULL: all have q_len, or kv_len. The forward pass writes 0 to o and -inf to lse
	 *     beyond the length, the backward pass 0 to d_q, d_k and d_v.
	 *   packed: the tensors have batch 1, and sequence b has the rows from q_starts[b] up to
	 *     but not including q_starts[b+1], likewise kv_starts. What lies outside all
	 *     sequences is neither read nor written.
	 *   paged: k and v are pools [pages, G, page, D]; the keys of sequence b are those of the
	 *     pages pages[b*pages_per_seq], ..., of which kv_lens[b] keys count. Forward only.
	 */
	int64_t seqs;             /* how many sequences the arrays below describe: B */
	const int32_t *q_lens;    /* [seqs] */
	const int32_t *kv_lens;   /* [seqs] */
	const int32_t *q_starts;  /* [seqs+1] */
	const int32_t *kv_starts; /* [seqs+1] */
	const int32_t *pages;     /* [seqs][pages_per_seq] */
	int64_t pages_per_seq;

	int64_t workers;    /* threads that the call may use at most, its own among them; 0: no limit. Results do not depend on it */
	int64_t timeout_ns; /* ends the call after about that time with FK_ERR_TIMEOUT; 0: never. Of device memory: looked at before work is enqueued */
	fk_cancel *cancel;  /* ends the call with FK_ERR_CANCELED; NULL: nothing does */
	void *stream;       /* CUstream, of device memory; NULL is the default stream. A call enqueues and returns */

	/*
	 * Of FK_ORIGIN, else 0: where in a whole problem the first sequence, query head, query row
	 * and key are, from which dropout counts; rows and keys in each sequence. Sums with what
	 * the problem has are below 2^31.
	 */
	int64_t origin_batch;
	int64_t origin_head;
	int64_t origin_row;
	int64_t origin_key; /* a multiple of 8 */

	/*
	 * 0: the arrays of sequences lie on the host. q.device: kv_lens and pages of a paged
	 * problem lie there, and are read when the work runs, without a check of what they say
	 * (kv_lens may be NULL: all sequences have kv_len keys):
	 * pages outside the pools read memory that is not the call's; lengths below 0 or above
	 * kv_len count as these. A CUDA graph of such a call may be replayed while they change.
	 */
	int64_t seqs_device;
} fk_args;

/* What a call takes beside its tensors, in bytes, by formula: an allocator may take more. */
typedef struct fk_memory {
	size_t size;    /* sizeof(fk_memory); no more than that is written */
	double host;    /* of the host's memory */
	double tensors; /* of a device's memory, for copies of host tensors */
	double device;  /* of a device's memory, beside these */
} fk_memory;

/*
 * fk_open opens the backends that this machine can run. backend is "auto" for every
 * kernel, a backend such as "simd", or a kernel such as "simd/fwd_avx2", which also stands
 * for its variant in the other pass; NULL is what the environment variable
 * FLASHKIT_BACKEND says, or "auto". Open once and keep it. FK_ERR_UNAVAILABLE if the
 * machine lacks what is named.
 */
int fk_open(const char *backend, uint32_t flags, fk_dispatcher **out, fk_error *err);

/*
 * fk_close waits for the calls in progress and frees everything. The handle is dead
 * afterwards: to use it, or to close it again, is FK_ERR_HANDLE.
 */
int fk_close(fk_dispatcher *d, fk_error *err);

/*
 * fk_problem_of fills in what the tensors of args tell: dimensions, types, page, and the
 * features but FK_CARRY and FK_ORIGIN. It leaves the band, scale, softcap, dropout, FK_CARRY and FK_ORIGIN
 * of p as they are. It needs q, k and v.
 */
int fk_problem_of(const fk_args *args, fk_problem *p, fk_error *err);

/* fk_forward computes o, and lse if it is given. */
int fk_forward(fk_dispatcher *d, const fk_problem *p, const fk_args *args, fk_error *err);

/*
 * fk_backward computes the gradients of sum(o*d_o) + sum(lse*d_lse), from the o and lse
 * that the forward pass wrote.
 */
int fk_backward(fk_dispatcher *d, const fk_problem *p, const fk_args *args, fk_error *err);

/*
 * fk_merge combines attention over two disjoint sets of keys of the same queries into
 * that over both. Shapes are [B, H, N, DV] and [B, H, N, 1]; the o's are of one type, the
 * lse's f32, all on the host. The output may be one of the inputs, exactly. lse may be
 * NULL. A row that saw no key, of lse -inf, counts nothing. Not for results with a sink on
 * both sides, which would count twice.
 */
int fk_merge(const fk_tensor *o, const fk_tensor *lse, const fk_tensor *o1, const fk_tensor *lse1,
             const fk_tensor *o2, const fk_tensor *lse2, fk_error *err);

/* fk_workspace says what memory the kernel takes that would run the problem's pass. */
int fk_workspace(fk_dispatcher *d, const fk_problem *p, int pass, fk_memory *out, fk_error *err);

/*
 * fk_explain writes a line for every kernel of the pass and every missing backend: "*" for
 * the one that runs or "-", its name, the predicted time in nanoseconds or 0, and the
 * reason; fields end with a tab, lines with a newline. It runs nothing.
 *
 * As with snprintf, at most len bytes of buf are written, the zero byte among them, and
 * *needed, unless needed is NULL, becomes the length of the whole text without that byte.
 * buf may be NULL if len is 0. A text that is cut is no error.
 */
int fk_explain(fk_dispatcher *d, const fk_problem *p, int pass, char *buf, size_t len, size_t *needed, fk_error *err);

/*
 * fk_kernels writes a line for every kernel that the dispatcher may run: its name,
 * "forward" or "backward", what this machine lacks for it or nothing, and what it is.
 * The rest is as with fk_explain.
 */
int fk_kernels(fk_dispatcher *d, char *buf, size_t len, size_t *needed, fk_error *err);

/*
 * fk_cancel_new makes what ends calls, fk_cancel_now ends those that hold it, also those
 * that begin later, and fk_cancel_free waits for the calls that hold it, and frees it.
 */
int fk_cancel_new(fk_cancel **out, fk_error *err);
int fk_cancel_now(fk_cancel *c, fk_error *err);
int fk_cancel_free(fk_cancel *c, fk_error *err);

/* fk_error_string returns what a code means: a constant. "unknown error" for others. */
const char *fk_error_string(int code);

/* fk_version returns the library's version, such as "0.1": a constant. */
const char *fk_version(void);

static inline fk_error fk_error_init(void)
{
	fk_error e;
	memset(&e, 0, sizeof e);
	e.size = sizeof e;
	return e;
}

static inline fk_problem fk_problem_init(void)
{
	fk_problem p;
	memset(&p, 0, sizeof p);
	p.size = sizeof p;
	return p;
}

static inline fk_args fk_args_init(void)
{
	fk_args a;
	memset(&a, 0, sizeof a);
	a.size = sizeof a;
	return a;
}

static inline fk_memory fk_memory_init(void)
{
	fk_memory m;
	memset(&m, 0, sizeof m);
	m.size = sizeof m;
	return m;
}

/* fk_dense returns a dense view of host memory, row-major. */
static inline fk_tensor fk_dense(const void *data, int32_t dtype, int64_t batch, int64_t heads, int64_t rows, int64_t row)
{
	fk_tensor t;
	memset(&t, 0, sizeof t);
	t.data = (void *)(uintptr_t)data;
	t.shape[0] = batch;
	t.shape[1] = heads;
	t.shape[2] = rows;
	t.shape[3] = row;
	t.strides[1] = (int64_t)((uint64_t)rows * (uint64_t)row); /* wraps, and is refused, where it overflows */
	t.strides[0] = (int64_t)((uint64_t)heads * (uint64_t)t.strides[1]);
	t.strides[2] = row;
	t.strides[3] = 1;
	t.dtype = dtype;
	return t;
}

/*
 * A second, smaller interface: dense float32 tensors on the host, one number of heads, one
 * sequence length, one head dimension of at most 512, row-major [batch, heads, seq_len,
 * head_dim].
 */
enum {
	FLASH_ATTENTION_OK = 0,
	FLASH_ATTENTION_ERR_NULL = -1,      /* a pointer is NULL */
	FLASH_ATTENTION_ERR_DIMENSION = -2, /* batch, heads or seq_len is below 1, or a product of them overflows */
	FLASH_ATTENTION_ERR_HEAD_DIM = -3,  /* head_dim is not from 1 to 512 */
	FLASH_ATTENTION_ERR_BLOCK = -4,     /* block_m or block_n is negative */
	FLASH_ATTENTION_ERR_OVERLAP = -5,   /* an output shares memory with another tensor */
	FLASH_ATTENTION_ERR_MEMORY = -6,    /* out of memory */
	FLASH_ATTENTION_ERR_INTERNAL = -7   /* anything else */
};

#define FLASH_ATTENTION_MAX_HEAD_DIM 512

typedef struct FlashAttentionParams {
	int batch;
	int heads;
	int seq_len;
	int head_dim;
	int block_m; /* hints of the size of a tile, 0 for none; kernels have tiles of their own */
	int block_n;
	int causal; /* not 0: row i sees the keys up to i */
} FlashAttentionParams;

/* O = softmax(Q*K^T/sqrt(head_dim))*V. */
int flash_attention_cpu_forward(const float *Q, const float *K, const float *V, float *O,
                                const FlashAttentionParams *params);

/*
 * The gradients of sum(O*dO). It keeps nothing between calls, so it computes the
 * forward pass again, in memory of the size of O.
 */
int flash_attention_cpu_backward(const float *Q, const float *K, const float *V, const float *dO,
                                 float *dQ, float *dK, float *dV, const FlashAttentionParams *params);

#ifdef __cplusplus
}
#endif

#endif
