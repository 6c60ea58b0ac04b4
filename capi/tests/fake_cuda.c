/*
 * A fake libcuda.so.1 with two GPUs, for tests/device.c. Device memory is host memory.
 * Calls are logged with their streams. Kernels compute nothing.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;

static char text[1 << 14];
static size_t length;
static int failing; /* the code that every launch returns, 0 for success */
static int launches[2];
static int ordered; /* `deterministic` of struct Params at the last launch */
static __thread int current; /* GPU of the current context */

int fake_launches(int device) { return launches[device]; }
int fake_ordered(void) { return ordered; }
const char *fake_log(void) { return text; }
void fake_reset(int code) { text[length = 0] = 0, failing = code, launches[0] = launches[1] = 0; }

static void say(const char *call, void *stream)
{
	if (length < sizeof text - 64)
		length += (size_t)snprintf(text + length, sizeof text - length, "%s %p\n", call, stream);
}

int cuInit(unsigned flags) { return (void)flags, 0; }
int cuDriverGetVersion(int *v) { return *v = 13000, 0; }
int cuDeviceGetCount(int *n) { return *n = 2, 0; }
int cuDeviceGetName(char *name, int room, int device) { return (void)device, snprintf(name, (size_t)room, "Fake GPU"), 0; }
int cuDeviceTotalMem_v2(size_t *n, int device) { return (void)device, *n = (size_t)16 << 30, 0; }

int cuDeviceGetAttribute(int *v, int attribute, int device)
{
	(void)device;
	*v = attribute == 75 ? 8 : attribute == 76 ? 0 : attribute == 16 ? 108 : 1000;
	return 0;
}

int cuGetErrorName(int code, const char **name)
{
	*name = code == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_UNKNOWN";
	return 0;
}

int cuDeviceGetDefaultMemPool(void **pool, int device) { return (void)device, *pool = text, 0; }
int cuMemPoolSetAttribute(void *pool, int attribute, void *value) { return (void)pool, (void)attribute, (void)value, 0; }
int cuDevicePrimaryCtxRetain(void **c, int device) { return *c = text + device, 0; }
int cuDevicePrimaryCtxRelease_v2(int device) { return (void)device, 0; }
int cuCtxPushCurrent_v2(void *c) { return current = (int)((char *)c - text), 0; }
int cuCtxPopCurrent_v2(void **c) { return *c = text, 0; }

int cuMemAlloc_v2(address *p, size_t n)
{
	void *memory = malloc(n);
	*p = (uintptr_t)memory;
	return memory ? 0 : 2;
}

int cuMemFree_v2(address p) { return free((void *)(uintptr_t)p), 0; }
int cuMemAllocAsync(address *p, size_t n, void *stream) { return say("alloc", stream), cuMemAlloc_v2(p, n); }
int cuMemFreeAsync(address p, void *stream) { return say("free", stream), cuMemFree_v2(p); }
int cuMemHostAlloc(void **p, size_t n, unsigned flags) { return (void)flags, *p = malloc(n), 0; }
int cuMemFreeHost(void *p) { return free(p), 0; }
int cuMemcpyHtoDAsync_v2(address to, const void *from, size_t n, void *stream) { return say("upload", stream), memcpy((void *)(uintptr_t)to, from, n), 0; }
int cuMemcpyDtoHAsync_v2(void *to, address from, size_t n, void *stream) { return (void)stream, memcpy(to, (void *)(uintptr_t)from, n), 0; }
int cuMemsetD32Async(address p, unsigned v, size_t n, void *stream) { return (void)p, (void)v, (void)n, say("set", stream), 0; }

int cuDeviceCanAccessPeer(int *can, int device, int peer) { return (void)device, (void)peer, *can = 0; }
int cuCtxEnablePeerAccess(void *c, unsigned flags) { return (void)c, (void)flags, 1; }
int cuMemcpyPeerAsync(address to, void *a, address from, void *b, size_t n, void *stream)
{
	return (void)to, (void)a, (void)from, (void)b, (void)n, say("copy between", stream), 1;
}

int cuMemcpy3DPeerAsync(const void *x, void *stream) { return (void)x, say("copy between", stream), 1; }

int cuModuleLoadDataEx(void **m, const void *image, unsigned n, int *names, void **values)
{
	return (void)image, (void)n, (void)names, (void)values, *m = text, 0;
}

int cuModuleUnload(void *m) { return (void)m, 0; }
int cuModuleGetFunction(void **f, void *m, const char *name)
{
	say(name, NULL);
	return (void)m, *f = text, 0;
}

int cuModuleGetGlobal_v2(address *p, size_t *n, void *m, const char *name)
{
	static const int32_t plan[] = {128, 66560, 64, 32}; /* threads, shared memory, rows, keys */
	(void)m, (void)name;
	*p = (uintptr_t)plan, *n = sizeof plan;
	return 0;
}

int cuFuncSetAttribute(void *f, int attribute, int value) { return (void)f, (void)attribute, (void)value, 0; }
int cuOccupancyMaxActiveBlocksPerMultiprocessor(int *n, void *f, int threads, size_t shared) { return (void)f, (void)threads, (void)shared, *n = 2, 0; }

int cuLaunchKernel(void *f, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz, unsigned shared, void *stream, void **params, void **extra)
{
	(void)f, (void)x, (void)y, (void)z, (void)tx, (void)ty, (void)tz, (void)shared, (void)extra;
	launches[current]++;
	memcpy(&ordered, (const char *)params[0] + 408, sizeof ordered);
	say("launch", stream);
	return failing;
}

int cuLaunchKernelEx(const void *config, void *f, void **params, void **extra)
{
	void *stream;
	(void)f, (void)extra;
	memcpy(&ordered, (const char *)params[0] + 408, sizeof ordered);
	memcpy(&stream, (const char *)config + 32, sizeof stream);
	launches[current]++;
	say("launch", stream);
	return failing;
}

int cuTensorMapEncodeTiled(void *map) { return memset(map, 0, 128), 0; }
int cuStreamCreate(void **s, unsigned flags) { return (void)flags, *s = malloc(1), 0; }
int cuStreamCreateWithPriority(void **s, unsigned flags, int priority) { return (void)priority, cuStreamCreate(s, flags); }
int cuStreamDestroy_v2(void *s) { return free(s), 0; }
int cuStreamIsCapturing(void *s, int *status) { return (void)s, *status = 0, 0; }
int cuStreamGetId(void *s, unsigned long long *id) { return *id = (uintptr_t)s, 0; }
int cuStreamSynchronize(void *s) { return say("wait", s), 0; }
int cuStreamWaitEvent(void *s, void *event, unsigned flags) { return (void)s, (void)event, (void)flags, 0; }
int cuEventCreate(void **event, unsigned flags) { return (void)flags, *event = text, 0; }
int cuEventDestroy_v2(void *event) { return (void)event, 0; }
int cuEventRecord(void *event, void *s) { return (void)event, (void)s, 0; }
int cuEventSynchronize(void *event) { return (void)event, 0; }
int cuEventElapsedTime(float *ms, void *from, void *to) { return (void)from, (void)to, *ms = 1, 0; }
