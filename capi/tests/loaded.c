/*
 * Installs signal handlers before it loads the library. The handlers must stay installed. The
 * library must export only its interface, and it cannot be unloaded.
 */
#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

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

int main(int argc, char **argv)
{
	struct sigaction fault = {0}, interrupt = {0}, now;
	fault.sa_handler = on_fault;
	interrupt.sa_handler = on_interrupt;
	if (sigaction(SIGSEGV, &fault, NULL) != 0 || sigaction(SIGINT, &interrupt, NULL) != 0)
		return 1;
	void *library = dlopen(argc > 1 ? argv[1] : "libflashkit.so.0", RTLD_NOW | RTLD_LOCAL);
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
	if (close(d, &e) != FK_OK || dlclose(library) != 0)
		return puts("FAIL close"), 1;
	puts("loaded: ok");
	return 0;
}
