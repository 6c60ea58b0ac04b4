/* What the C half of the library, abi.c, and the Go half call each other by. */
#ifndef FLASHKIT_ABI_H
#define FLASHKIT_ABI_H

#include "flashkit.h"

/* Handles cross as numbers: as pointers they would point nowhere, which Go's collector does not bear. */
typedef uintptr_t abi_handle;

#endif

