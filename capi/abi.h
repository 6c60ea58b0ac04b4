/* Types that the C half of the library, abi.c, and the Go half share. */
#ifndef FLASHKIT_ABI_H
#define FLASHKIT_ABI_H

#include "flashkit.h"

/* Handles cross as numbers: Go's collector rejects pointers that point nowhere. */
typedef uintptr_t abi_handle;

#endif

