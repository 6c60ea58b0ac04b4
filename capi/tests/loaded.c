/*
 * Installs signal handlers before it loads the library. The handlers must stay installed. The
 * library must export only its interface, and it cannot be unloaded. In a second process, with the
 * argument "fault", K is not readable: the Go runtime reports the address and ends the process.
 * Where the process has one processor, threads of the runtime have the policy SCHED_BATCH.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <sched.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "flashkit.h"

static volatile sig_atomic_t faults, interrupts;
static sigjmp_buf back;

static void on_fault(int number)
{
	(void)number;
	faults++;
	siglongjmp(back, 1);
}

static void on_interrupt(int number)
{
	(void)number;
	interrupts++;
}

static int fault(void *library)
{
	static float x[64], y[64];
	FlashAttentionParams p = {.batch = 1, .heads = 1, .seq_len = 8, .head_dim = 8};
	int (*forward)(const float *, const float *, const float *, float *, const FlashAttentionParams *);
	*(void **)&forward = dlsym(library, "flash_attention_cpu_forward");
	const float *k = mmap(NULL, sizeof x, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	fprintf(stderr, "%p\n", (const void *)k);
	return forward(x, k, x, y, &p);
}

static int reports_fault(const char *program, const char *library)
{
	char command[512], address[32] = "", line[256] = "", want[96];
	snprintf(command, sizeof command, "'%s' '%s' fault 2>&1", program, library);
	FILE *other = popen(command, "r");
	if (other == NULL || fgets(address, sizeof address, other) == NULL || fgets(line, sizeof line, other) == NULL)
		return 0;
	while (fgetc(other) != EOF)
		;
	snprintf(want, sizeof want, "unexpected fault address %s", address);
	return pclose(other) != 0 && strcmp(line, want) == 0;
}

/* threads returns the number of other threads, or -1 if one of them does not have the policy. */
static int threads(int policy)
{
	int n = 0;
	DIR *tasks = opendir("/proc/self/task");
	for (struct dirent *t; tasks != NULL && (t = readdir(tasks)) != NULL;) {
		int id = atoi(t->d_name);
		if (id == 0 || id == getpid())
			continue;
		if (sched_getscheduler(id) != policy)
			return -1;
		n++;
	}
	closedir(tasks);
	return n;
}

/* schedules loads the library in a process that may use one processor, or all of them. */
static int schedules(const char *library, int one)
{
	cpu_set_t set;
	CPU_ZERO(&set);
	CPU_SET(sched_getcpu(), &set);
	unsetenv("GOMAXPROCS");
	if (one && sched_setaffinity(0, sizeof set, &set) != 0)
		return 2;
	sched_getaffinity(0, sizeof set, &set);
	int policy = CPU_COUNT(&set) == 1 ? SCHED_BATCH : SCHED_OTHER;
	if (threads(policy) != 0 || sched_getscheduler(0) != SCHED_OTHER || dlopen(library, RTLD_NOW) == NULL)
		return 2;
	return threads(policy) < 1 || sched_getscheduler(0) != SCHED_OTHER;
}

static int inherits(const char *program, const char *library)
{
	char command[512];
	int wrong = 0;
	for (int one = 0; one < 2; one++) {
		snprintf(command, sizeof command, "'%s' '%s' %s", program, library, one ? "one" : "all");
		wrong |= system(command);
	}
	return wrong == 0;
}

int main(int argc, char **argv)
{
	const char *name = argc > 1 ? argv[1] : "libflashkit.so.0";
	if (argc > 2 && strcmp(argv[2], "fault") != 0)
		return schedules(name, strcmp(argv[2], "one") == 0);
	if (argc > 2)
		return fault(dlopen(name, RTLD_NOW | RTLD_LOCAL));
	struct sigaction fault = {0}, interrupt = {0}, now;
	fault.sa_handler = on_fault;
	interrupt.sa_handler = on_interrupt;
	if (sigaction(SIGSEGV, &fault, NULL) != 0 || sigaction(SIGINT, &interrupt, NULL) != 0)
		return 1;
	void *library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
	if (library == NULL)
		return puts(dlerror()), 1;
	int (*open)(const char *, uint32_t, fk_dispatcher **, fk_error *);
	int (*close)(fk_dispatcher *, fk_error *);
	*(void **)&open = dlsym(library, "fk_open");
	*(void **)&close = dlsym(library, "fk_close");
	fk_dispatcher *d;
	fk_error e = fk_error_init();
	if (open == NULL || close == NULL || open("simd", 0, &d, &e) != FK_OK)
		return puts(e.message), 1;
	if (sigsetjmp(back, 1) == 0) {
		volatile int *nowhere = (volatile int *)16;
		*nowhere = 1;
	}
	raise(SIGINT);
	sigaction(SIGINT, NULL, &now);
	if (faults != 1 || interrupts != 1 || now.sa_handler != on_interrupt)
		return printf("FAIL %d faults, %d interrupts\n", (int)faults, (int)interrupts), 1;
	if (!reports_fault(argv[0], name))
		return puts("FAIL no message about K"), 1;
	if (!inherits(argv[0], name))
		return puts("FAIL scheduling policies"), 1;
	if (close(d, &e) != FK_OK || dlclose(library) != 0)
		return puts("FAIL close"), 1;
	puts("loaded: ok");
	return 0;
}
