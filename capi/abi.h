/* Types that both the C half of the library, abi.c, and the Go half use. */
#ifndef FLASHKIT_ABI_H
#define FLASHKIT_ABI_H

#include "flashkit.h"

/* Handles are passed to Go as numbers, because Go's garbage collector rejects invalid pointers. */
typedef uintptr_t abi_handle;

/* Changes of a cache, for abiCacheChange. */
enum { CACHE_TRUNCATE, CACHE_REMOVE, CACHE_RESET, CACHE_FORK, CACHE_EVICT };

#endif

