/*
 * The exported functions. They check pointers and the sizes of structures, complete shorter
 * structures, and call the Go half of the library. The Go half returns errors as codes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "abi.h"
#include "_cgo_export.h"

#define PUBLIC __attribute__((visibility("default")))

/* The parameters of Go functions cannot be const. */
#define MUTABLE(x) ((void *)(uintptr_t)(x))

/* Compiled programs depend on this layout. A size may only grow, and no field may move. */
#if UINTPTR_MAX == UINT64_MAX
_Static_assert(sizeof(fk_tensor) == 80, "fk_tensor");
_Static_assert(sizeof(fk_error) == 512 && offsetof(fk_error, message) == 80, "fk_error");
_Static_assert(sizeof(fk_problem) == 144 && offsetof(fk_problem, page) == 120, "fk_problem");
_Static_assert(sizeof(fk_args) == 1824 && offsetof(fk_args, stream) == 1376 && offsetof(fk_args, seqs_device) == 1416, "fk_args");
_Static_assert(offsetof(fk_args, d_sink) == 1208 && offsetof(fk_args, q_lens) == 1304, "fk_args");
_Static_assert(sizeof(fk_prefix) == 192 && offsetof(fk_prefix, pages) == 168, "fk_prefix");
_Static_assert(sizeof(fk_cache_config) == 72 && offsetof(fk_cache_config, dtype) == 64, "fk_cache_config");
_Static_assert(sizeof(fk_memory) == 32 && sizeof(FlashAttentionParams) == 28, "fk_memory");
#endif

/* A forked child process lacks the threads of the Go runtime, so its calls return an error. */
static volatile bool forked;

static void after_fork(void) { forked = true; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }

/* give copies e to the caller's structure, up to the size of that structure. It returns e->code. */
static int give(fk_error *to, const fk_error *e)
{
	if (to == NULL || to->size <= sizeof to->size)
		return e->code;
	size_t n = to->size < sizeof *e ? to->size : sizeof *e;
	memcpy((char *)to + sizeof to->size, (const char *)e + sizeof e->size, n - sizeof e->size);
	if (n > offsetof(fk_error, field) && n < sizeof *e)
		((char *)to)[n - 1] = 0;
	return e->code;
}

/* fail gives the caller an error that the C half has found, and returns the error's code. */
static int fail(fk_error *to, int code, const char *field, const char *message)
{
	fk_error e = fk_error_init();
	e.code = code;
	snprintf(e.field, sizeof e.field, "%s", field);
	if (*field)
		snprintf(e.message, sizeof e.message, "flashkit: %s: %s", field, message);
	else
		snprintf(e.message, sizeof e.message, "flashkit: %s", message);
	return give(to, &e);
}

/* done gives the caller the error of a Go call and returns the code. If code is FK_OK, e is not initialized. */
static int done(fk_error *to, int code, const fk_error *e)
{
	static const fk_error none;
	if (code != FK_OK)
		return give(to, e);
	if (to == NULL || to->size < sizeof *to)
		return give(to, &none);
	to->code = FK_OK;
	to->field[0] = to->message[0] = 0;
	return FK_OK;
}

static int is_forked(fk_error *err)
{
	return fail(err, FK_ERR_FORKED, "", "the process is a fork of the one that loaded the library; load it after the fork, or exec");
}

/* No structure of a later version will be larger. A larger size comes from uninitialized memory. */
enum { LONGEST = 1 << 16 };

/*
 * complete makes *s point to a structure of this version's size. If the caller's structure has
 * another size, *s then points to a copy in room, in which missing fields are zero.
 */
static int complete(const char *name, const void **s, void *room, size_t known, fk_error *err)
{
	const unsigned char *from = *s;
	size_t size;
	if (from == NULL)
		return fail(err, FK_ERR_NULL, name, "is NULL");
	memcpy(&size, from, sizeof size);
	if (size == known)
		return FK_OK;
	char field[32];
	snprintf(field, sizeof field, "%s.size", name);
	if (size < sizeof size || size > LONGEST || size % sizeof size != 0)
		return fail(err, FK_ERR_SIZE, field, "must be the sizeof of the structure");
	for (size_t i = known; i < size; i++)
		if (from[i] != 0)
			return fail(err, FK_ERR_SIZE, field, "the structure is of a later version, and asks for what this library does not know");
	memset(room, 0, known);
	memcpy(room, from, size < known ? size : known);
	*s = room;
	return FK_OK;
}

#define COMPLETE(type, name)                                                       \
	type name##_room;                                                          \
	do {                                                                       \
		const void *whole_ = name;                                         \
		int code_ = complete(#name, &whole_, &name##_room, sizeof *name, err); \
		if (code_ != FK_OK)                                                \
			return code_;                                              \
		name = whole_;                                                     \
	} while (0)

PUBLIC int fk_open(const char *backend, uint32_t flags, fk_dispatcher **out, fk_error *err)
{
	fk_error e;
	abi_handle h = 0;
	if (forked)
		return is_forked(err);
	if (out == NULL)
		return fail(err, FK_ERR_NULL, "out", "is NULL");
	*out = NULL;
	if (backend == NULL) /* getenv in C, because Go copied the environment when the library was loaded */
		backend = getenv("FLASHKIT_BACKEND");
	if (backend == NULL || *backend == 0)
		backend = "auto";
	int code = abiOpen(MUTABLE(backend), flags, &h, &e);
	*out = (fk_dispatcher *)h;
	return done(err, code, &e);
}

PUBLIC int fk_close(fk_dispatcher *d, fk_error *err)
{
	fk_error e;
	if (forked)
		return is_forked(err);
	return done(err, abiClose((abi_handle)d, &e), &e);
}

PUBLIC int fk_problem_of(const fk_args *args, fk_problem *p, fk_error *err)
{
	fk_error e;
	fk_problem filled;
	if (forked)
		return is_forked(err);
	fk_problem *to = p;
	{
		const fk_problem *p = to;
		COMPLETE(fk_problem, p);
		filled = *p;
	}
	COMPLETE(fk_args, args);
	int code = abiProblemOf(MUTABLE(args), &filled, &e);
	if (code == FK_OK) {
		filled.size = to->size;
		memcpy(to, &filled, to->size < sizeof filled ? to->size : sizeof filled);
	}
	return done(err, code, &e);
}

/* prefix is NULL without a shared prefix. */
static int run(fk_dispatcher *d, int pass, const fk_problem *p, const fk_prefix *prefix, const fk_args *args, fk_error *err)
{
	fk_error e;
	if (forked)
		return is_forked(err);
	if (d == NULL)
		return fail(err, FK_ERR_NULL, "d", "is NULL");
	COMPLETE(fk_problem, p);
	COMPLETE(fk_args, args);
	return done(err, abiRun((abi_handle)d, pass, MUTABLE(p), MUTABLE(prefix), MUTABLE(args), &e), &e);
}

PUBLIC int fk_forward(fk_dispatcher *d, const fk_problem *p, const fk_args *args, fk_error *err)
{
	return run(d, FK_PASS_FORWARD, p, NULL, args, err);
}

PUBLIC int fk_backward(fk_dispatcher *d, const fk_problem *p, const fk_args *args, fk_error *err)
{
	return run(d, FK_PASS_BACKWARD, p, NULL, args, err);
}

PUBLIC int fk_forward_prefix(fk_dispatcher *d, const fk_problem *p, const fk_prefix *prefix, const fk_args *args, fk_error *err)
{
	if (forked)
		return is_forked(err);
	COMPLETE(fk_prefix, prefix);
	return run(d, FK_PASS_FORWARD, p, prefix, args, err);
}

PUBLIC int fk_workspace(fk_dispatcher *d, const fk_problem *p, int pass, fk_memory *out, fk_error *err)
{
	fk_error e;
	fk_memory m = fk_memory_init();
	if (forked)
		return is_forked(err);
	if (out == NULL)
		return fail(err, FK_ERR_NULL, "out", "is NULL");
	if (out->size < sizeof out->size || out->size > LONGEST)
		return fail(err, FK_ERR_SIZE, "out.size", "must be the sizeof of the structure");
	COMPLETE(fk_problem, p);
	int code = abiWorkspace((abi_handle)d, MUTABLE(p), pass, &m, &e);
	m.size = out->size;
	if (code == FK_OK)
		memcpy(out, &m, out->size < sizeof m ? out->size : sizeof m);
	return done(err, code, &e);
}

PUBLIC int fk_explain(fk_dispatcher *d, const fk_problem *p, int pass, char *buf, size_t len, size_t *needed, fk_error *err)
{
	fk_error e;
	size_t all = 0;
	if (forked)
		return is_forked(err);
	if (buf == NULL && len > 0)
		return fail(err, FK_ERR_NULL, "buf", "is NULL, and len is not 0");
	COMPLETE(fk_problem, p);
	int code = abiExplain((abi_handle)d, MUTABLE(p), pass, buf, len, &all, &e);
	if (code == FK_OK && needed != NULL)
		*needed = all;
	return done(err, code, &e);
}

PUBLIC int fk_kernels(fk_dispatcher *d, char *buf, size_t len, size_t *needed, fk_error *err)
{
	fk_error e;
	size_t all = 0;
	if (forked)
		return is_forked(err);
	if (buf == NULL && len > 0)
		return fail(err, FK_ERR_NULL, "buf", "is NULL, and len is not 0");
	int code = abiKernels((abi_handle)d, buf, len, &all, &e);
	if (code == FK_OK && needed != NULL)
		*needed = all;
	return done(err, code, &e);
}

PUBLIC int fk_merge(const fk_tensor *o, const fk_tensor *lse, const fk_tensor *o1, const fk_tensor *lse1,
                    const fk_tensor *o2, const fk_tensor *lse2, fk_error *err)
{
	fk_error e;
	if (forked)
		return is_forked(err);
	int code = abiMerge(MUTABLE(o), MUTABLE(lse), MUTABLE(o1), MUTABLE(lse1), MUTABLE(o2), MUTABLE(lse2), &e);
	return done(err, code, &e);
}

PUBLIC int fk_cache_new(const fk_cache_config *config, fk_cache **out, fk_error *err)
{
	fk_error e;
	abi_handle h = 0;
	if (forked)
		return is_forked(err);
	if (out == NULL)
		return fail(err, FK_ERR_NULL, "out", "is NULL");
	*out = NULL;
	COMPLETE(fk_cache_config, config);
	int code = abiCacheNew(MUTABLE(config), &h, &e);
	*out = (fk_cache *)h;
	return done(err, code, &e);
}

PUBLIC int fk_cache_free(fk_cache *cache, fk_error *err)
{
	fk_error e;
	if (forked)
		return is_forked(err);
	return done(err, abiCacheFree((abi_handle)cache, &e), &e);
}

PUBLIC int fk_cache_append(fk_cache *cache, const fk_tensor *k, const fk_tensor *v, const int32_t *lens, fk_error *err)
{
	fk_error e;
	if (forked)
		return is_forked(err);
	return done(err, abiCacheAppend((abi_handle)cache, MUTABLE(k), MUTABLE(v), (uintptr_t)lens, &e), &e);
}

static int change(fk_cache *cache, int kind, int64_t seq, int64_t x, int64_t y, fk_error *err)
{
	fk_error e;
	if (forked)
		return is_forked(err);
	return done(err, abiCacheChange((abi_handle)cache, kind, seq, x, y, &e), &e);
}

PUBLIC int fk_cache_truncate(fk_cache *cache, int64_t seq, int64_t len, fk_error *err) { return change(cache, CACHE_TRUNCATE, seq, len, 0, err); }
PUBLIC int fk_cache_remove(fk_cache *cache, int64_t seq, fk_error *err) { return change(cache, CACHE_REMOVE, seq, 0, 0, err); }
PUBLIC int fk_cache_reset(fk_cache *cache, fk_error *err) { return change(cache, CACHE_RESET, 0, 0, 0, err); }
PUBLIC int fk_cache_fork(fk_cache *cache, int64_t seq, int64_t to, fk_error *err) { return change(cache, CACHE_FORK, seq, to, 0, err); }
PUBLIC int fk_cache_evict(fk_cache *cache, int64_t seq, int64_t from, int64_t to, fk_error *err) { return change(cache, CACHE_EVICT, seq, from, to, err); }

PUBLIC int fk_cache_args(fk_cache *cache, fk_args *args, fk_prefix *prefix, fk_error *err)
{
	fk_error e;
	if (forked)
		return is_forked(err);
	if (args == NULL)
		return fail(err, FK_ERR_NULL, "args", "is NULL");
	if (args->size < offsetof(fk_args, rowmax) || args->size > LONGEST) /* vscale is the last field that the call sets */
		return fail(err, FK_ERR_SIZE, "args.size", "must be the sizeof of the structure");
	if (prefix != NULL && (prefix->size < offsetof(fk_prefix, len) + sizeof prefix->len || prefix->size > LONGEST))
		return fail(err, FK_ERR_SIZE, "prefix.size", "must be the sizeof of the structure");
	return done(err, abiCacheArgs((abi_handle)cache, args, prefix, &e), &e);
}

PUBLIC int fk_cache_state(fk_cache *cache, const int32_t **next, int64_t *free_pages, fk_error *err)
{
	fk_error e;
	int64_t pages = 0;
	int32_t *positions = NULL;
	if (forked)
		return is_forked(err);
	int code = abiCacheState((abi_handle)cache, &positions, &pages, &e);
	if (code == FK_OK && next != NULL)
		*next = positions;
	if (code == FK_OK && free_pages != NULL)
		*free_pages = pages;
	return done(err, code, &e);
}

PUBLIC int fk_cancel_new(fk_cancel **out, fk_error *err)
{
	fk_error e;
	abi_handle h = 0;
	if (forked)
		return is_forked(err);
	if (out == NULL)
		return fail(err, FK_ERR_NULL, "out", "is NULL");
	int code = abiCancelNew(&h, &e);
	*out = (fk_cancel *)h;
	return done(err, code, &e);
}

PUBLIC int fk_cancel_now(fk_cancel *c, fk_error *err)
{
	fk_error e;
	if (forked)
		return is_forked(err);
	return done(err, abiCancelNow((abi_handle)c, &e), &e);
}

PUBLIC int fk_cancel_free(fk_cancel *c, fk_error *err)
{
	fk_error e;
	if (forked)
		return is_forked(err);
	return done(err, abiCancelFree((abi_handle)c, &e), &e);
}

PUBLIC const char *fk_error_string(int code)
{
	static const char *const texts[] = {
		"ok",
		"a pointer or a tensor is missing",
		"the handle is closed, or was never open",
		"the size of a structure is wrong",
		"a dimension is wrong",
		"a head dimension is wrong",
		"a type is wrong",
		"a stride or an address is wrong",
		"an output shares memory with another tensor",
		"a value is wrong",
		"no kernel supports it",
		"unavailable on this machine",
		"out of memory",
		"the device's driver failed",
		"canceled",
		"timed out",
		"the process was forked after the library was loaded",
		"internal error",
	};
	if (code < 0 || (size_t)code >= sizeof texts / sizeof *texts)
		return "unknown error";
	return texts[code];
}

#define TEXT_(x) #x
#define TEXT(x) TEXT_(x)

PUBLIC const char *fk_version(void) { return TEXT(FK_VERSION_MAJOR) "." TEXT(FK_VERSION_MINOR) "." TEXT(FK_VERSION_PATCH); }

static int check_params(const FlashAttentionParams *p)
{
	if (forked)
		return FLASH_ATTENTION_ERR_FORKED;
	if (p == NULL)
		return FLASH_ATTENTION_ERR_NULL;
	if (p->batch < 1 || p->heads < 1 || p->seq_len < 1)
		return FLASH_ATTENTION_ERR_DIMENSION;
	if (p->head_dim < 1 || p->head_dim > FLASH_ATTENTION_MAX_HEAD_DIM)
		return FLASH_ATTENTION_ERR_HEAD_DIM;
	if (p->block_m < 0 || p->block_n < 0)
		return FLASH_ATTENTION_ERR_BLOCK;
	return FLASH_ATTENTION_OK;
}

PUBLIC int flash_attention_cpu_forward(const float *Q, const float *K, const float *V, float *O,
                                       const FlashAttentionParams *params)
{
	int code = check_params(params);
	if (code != FLASH_ATTENTION_OK)
		return code;
	if (Q == NULL || K == NULL || V == NULL || O == NULL)
		return FLASH_ATTENTION_ERR_NULL;
	return abiClassicForward(MUTABLE(Q), MUTABLE(K), MUTABLE(V), O, MUTABLE(params));
}

PUBLIC int flash_attention_cpu_backward(const float *Q, const float *K, const float *V, const float *dO,
                                        float *dQ, float *dK, float *dV, const FlashAttentionParams *params)
{
	int code = check_params(params);
	if (code != FLASH_ATTENTION_OK)
		return code;
	if (Q == NULL || K == NULL || V == NULL || dO == NULL || dQ == NULL || dK == NULL || dV == NULL)
		return FLASH_ATTENTION_ERR_NULL;
	return abiClassicBackward(MUTABLE(Q), MUTABLE(K), MUTABLE(V), MUTABLE(dO), dQ, dK, dV, MUTABLE(params));
}
