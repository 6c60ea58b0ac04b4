/*
 * The functions that the library exports. They check what can be checked without the Go
 * runtime, complete shorter structures, and call the Go half, which never unwinds.
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

/* The Go runtime does not outlive a fork: its threads are missing. */
static volatile bool forked;

static void after_fork(void) { forked = true; }

__attribute__((constructor)) static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }

/* give copies an error to the caller's structure, as far as that reaches, and returns its code. */
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

/* fail fills in and gives an error of this half. It is given to be returned. */
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

/* done gives the error of a call of the Go half, whose text is not there unless there is one. */
static int done(fk_error *to, int code, fk_error *e)
{
	e->code = code;
	if (code == FK_OK) {
		e->reserved = 0;
		e->field[0] = e->message[0] = 0;
		if (to != NULL && to->size >= offsetof(fk_error, message) + 1) {
			to->code = FK_OK;
			to->field[0] = to->message[0] = 0;
			return FK_OK;
		}
	}
	return give(to, e);
}

static int is_forked(fk_error *err)
{
	return fail(err, FK_ERR_FORKED, "", "the process is a fork of the one that loaded the library; load it after the fork, or exec");
}

/* No structure will ever be as long; a size beyond is memory that nobody has set. */
enum { LONGEST = 1 << 16 };

/*
 * complete makes *s point to a whole structure: the caller's if it has the size of this
 * version, else a copy in room, which is of that size, with zeros for what is missing.
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
	int code = abiOpen((char *)(uintptr_t)backend, flags, &h, &e);
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
	int code = abiProblemOf((fk_args *)(uintptr_t)args, &filled, &e);
	if (code == FK_OK) {
		filled.size = to->size;
		memcpy(to, &filled, to->size < sizeof filled ? to->size : sizeof filled);
	}
	return done(err, code, &e);
}

static int run(fk_dispatcher *d, int pass, const fk_problem *p, const fk_args *args, fk_error *err)
{
	fk_error e;
	if (forked)
		return is_forked(err);
	if (d == NULL)
		return fail(err, FK_ERR_NULL, "d", "is NULL");
	COMPLETE(fk_problem, p);
	COMPLETE(fk_args, args);
	return done(err, abiRun((abi_handle)d, pass, (fk_problem *)(uintptr_t)p, (fk_args *)(uintptr_t)args, &e), &e);
}

PUBLIC int fk_forward(fk_dispatcher *d, const fk_problem *p, const fk_args *args, fk_error *err)
{
	return run(d, FK_PASS_FORWARD, p, args, err);
}

PUBLIC int fk_backward(fk_dispatcher *d, const fk_problem *p, const fk_args *args, fk_error *err)
{
	return run(d, FK_PASS_BACKWARD, p, args, err);
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

PUBLIC const char *fk_version(void) { return "0.1"; }
