//go:build !archive

/*
 * If the process may use only one processor, the threads of the Go runtime do not preempt the threads
 * of the program. They inherit their scheduling policy from the thread that loads the library: it has
 * the policy SCHED_BATCH while the runtime starts, and its own policy afterwards. The archive lacks this
 * file, because constructors of the program would run in between.
 *
 * After each call from C, the runtime's monitor thread wakes up several times within 100
 * microseconds. With the default policy each time preempts the program. With SCHED_BATCH it runs when
 * the program's time slice ends, or when the program waits.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <sched.h>
#include <stdbool.h>
#include <stdlib.h>

static bool changed;

static bool one_processor(void)
{
	cpu_set_t set;
	const char *most = getenv("GOMAXPROCS");
	if (most != NULL && atoi(most) == 1)
		return true;
	return sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) == 1;
}

/* A constructor with a priority precedes the constructor of the Go runtime, which has none. */
__attribute__((constructor(65534))) static void before_runtime(void)
{
	const struct sched_param param = {0};
	changed = one_processor() && sched_getscheduler(0) == SCHED_OTHER && sched_setscheduler(0, SCHED_BATCH, &param) == 0;
}

/* A constructor of C without a priority follows the constructor of the Go runtime, which creates the runtime's first thread. */
__attribute__((constructor)) static void after_runtime(void)
{
	const struct sched_param param = {0};
	if (changed)
		sched_setscheduler(0, SCHED_OTHER, &param);
}
