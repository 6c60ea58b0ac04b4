// A CUDA driver for tests that replaces libcuda.so.1. It has every symbol that the CUDA backend
// binds. The macro SYMBOLS, defined by the test, lists these symbols as CALL(name). Calls return 0
// and compute nothing. Environment variables choose calls that hang, crash or fail.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <fcntl.h>

static int is(const char *variable, const char *name) {
	const char *x = getenv(variable);
	return x && strcmp(x, name) == 0;
}

static void hang(void) {
	for (;;)
		pause();
}

__attribute__((constructor)) static void loaded(void) {
	const char *x = getenv("FAKE_LOADED");
	if (x)
		close(open(x, O_CREAT | O_WRONLY, 0644));
	if (is("FAKE_HANG", "constructor"))
		hang();
}

static int result(const char *name, long a, long b) {
	if (is("FAKE_HANG", name))
		hang();
	if (is("FAKE_CRASH", name))
		*(volatile int *)8 = 0;
	if (getenv("FAKE_FAIL"))
		return 999;
	if (strcmp(name, "cuDriverGetVersion") == 0)
		*(int *)a = getenv("FAKE_VERSION") ? atoi(getenv("FAKE_VERSION")) : 13000;
	if (strcmp(name, "cuDeviceGetCount") == 0)
		*(int *)a = 1;
	if (strcmp(name, "cuDeviceGetName") == 0)
		strcpy((char *)a, "Fake");
	if (strcmp(name, "cuDeviceTotalMem_v2") == 0)
		*(long *)a = 1l << 34;
	if (strcmp(name, "cuDeviceGetAttribute") == 0)
		*(int *)a = b == 75 ? 9 : b == 76 ? 0 : 100;
	return 0;
}

#define CALL(name) \
	int name(long a, long b) { return result(#name, a, b); }
SYMBOLS
