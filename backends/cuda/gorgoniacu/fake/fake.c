// A libcuda.so.1 without a GPU. It records each call with its arguments, keeps
// device memory in an array, and fails when told to. Makefile adds every other
// function of the header, so that programs link.
#include <cuda.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEVICE 0x10000000ull // begin of device memory
#define PARAMS 416           // bytes of a kernel's parameter that are kept

static char text[1 << 16], memory[2 << 20], params[PARAMS];
static size_t length, used;
static char failing[64];
static int failure;
static struct { int threads, shared, rows, keys; } plan = {128, 66560, 64, 32};

// Functions for tests.
const char *fake_log(void) { return text; }
const void *fake_params(void) { return params; }
void fake_fail(const char *call, int code) {
	snprintf(failing, sizeof failing, "%s", call);
	failure = code;
}
void fake_reset(void) {
	length = used = 0;
	text[0] = failing[0] = 0;
	memset(memory, 0xff, sizeof memory);
	memset(params, 0, sizeof params);
}

static CUresult call(const char *name, const char *format, ...) {
	if (length > sizeof text - 512) length = 0;
	va_list list;
	va_start(list, format);
	length += sprintf(text + length, "%s(", name);
	length += vsprintf(text + length, format, list);
	length += sprintf(text + length, ")\n");
	va_end(list);
	return strcmp(name, failing) ? CUDA_SUCCESS : failure;
}

#define CALL(name, ...)                           \
	do {                                          \
		CUresult code = call(name, __VA_ARGS__);  \
		if (code) return code;                    \
	} while (0)
#define N(handle) ((unsigned long long)(uintptr_t)(handle))

static CUresult take(CUdeviceptr *p, size_t bytes) {
	size_t at = (used + 255) & ~(size_t)255;
	if (bytes > sizeof memory - at) return CUDA_ERROR_OUT_OF_MEMORY;
	*p = DEVICE + at;
	used = at + bytes;
	return CUDA_SUCCESS;
}

static char *at(CUdeviceptr p, size_t bytes) {
	return p >= DEVICE && p - DEVICE + bytes <= sizeof memory ? memory + (p - DEVICE) : NULL;
}

CUresult cuInit(unsigned flags) {
	const char *code = getenv("FAKE_CUINIT");
	return code ? atoi(code) : CUDA_SUCCESS;
}

CUresult cuGetErrorName(CUresult code, const char **name) {
	static const struct { CUresult code; const char *name; } names[] = {
		{CUDA_ERROR_OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY"},
		{CUDA_ERROR_UNSUPPORTED_PTX_VERSION, "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"},
		{CUDA_ERROR_ILLEGAL_ADDRESS, "CUDA_ERROR_ILLEGAL_ADDRESS"},
	};
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		if (names[i].code == code) return *name = names[i].name, CUDA_SUCCESS;
	*name = NULL;
	return CUDA_ERROR_INVALID_VALUE;
}

CUresult cuDriverGetVersion(int *version) {
	CALL("cuDriverGetVersion", "");
	*version = 13000;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetCount(int *count) {
	CALL("cuDeviceGetCount", "");
	*count = 2;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetName(char *name, int room, CUdevice device) {
	CALL("cuDeviceGetName", "%d", device);
	snprintf(name, room, "Fake GPU %d", device);
	return CUDA_SUCCESS;
}

CUresult cuDeviceTotalMem(size_t *bytes, CUdevice device) {
	CALL("cuDeviceTotalMem", "%d", device);
	*bytes = 80ull << 30;
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetAttribute(int *value, CUdevice_attribute attribute, CUdevice device) {
	CALL("cuDeviceGetAttribute", "%d, %d", attribute, device);
	switch ((int)attribute) {
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = 9; break;
	case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = 0; break;
	case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = 132; break;
	default: *value = 1;
	}
	return CUDA_SUCCESS;
}

CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
	CALL("cuDeviceGetDefaultMemPool", "%d", device);
	*pool = (CUmemoryPool)0x9001;
	return CUDA_SUCCESS;
}

CUresult cuMemPoolSetAttribute(CUmemoryPool pool, CUmemPool_attribute attribute, void *value) {
	CALL("cuMemPoolSetAttribute", "0x%llx, %d, 0x%llx", N(pool), attribute, (unsigned long long)*(cuuint64_t *)value);
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
	CALL("cuDevicePrimaryCtxRetain", "%d", device);
	*context = (CUcontext)0xc0;
	return CUDA_SUCCESS;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
	CALL("cuDevicePrimaryCtxRelease", "%d", device);
	return CUDA_SUCCESS;
}

CUresult cuCtxCreate(CUcontext *context, unsigned flags, CUdevice device) {
	CALL("cuCtxCreate", "%u, %d", flags, device);
	*context = (CUcontext)0xc1;
	return CUDA_SUCCESS;
}

CUresult cuCtxDestroy(CUcontext context) {
	CALL("cuCtxDestroy", "0x%llx", N(context));
	return CUDA_SUCCESS;
}

CUresult cuCtxGetDevice(CUdevice *device) {
	CALL("cuCtxGetDevice", "");
	*device = 1;
	return CUDA_SUCCESS;
}

CUresult cuCtxSetCurrent(CUcontext context) {
	CALL("cuCtxSetCurrent", "0x%llx", N(context));
	return CUDA_SUCCESS;
}

CUresult cuCtxPushCurrent(CUcontext context) {
	CALL("cuCtxPushCurrent", "0x%llx", N(context));
	return context ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}

CUresult cuCtxPopCurrent(CUcontext *context) {
	CALL("cuCtxPopCurrent", "");
	*context = (CUcontext)0xc0;
	return CUDA_SUCCESS;
}

CUresult cuMemAlloc(CUdeviceptr *p, size_t bytes) {
	CALL("cuMemAlloc", "%zu", bytes);
	return take(p, bytes);
}

CUresult cuMemFree(CUdeviceptr p) {
	CALL("cuMemFree", "0x%llx", p);
	return CUDA_SUCCESS;
}

CUresult cuMemAllocAsync(CUdeviceptr *p, size_t bytes, CUstream stream) {
	CALL("cuMemAllocAsync", "%zu, 0x%llx", bytes, N(stream));
	return take(p, bytes);
}

CUresult cuMemFreeAsync(CUdeviceptr p, CUstream stream) {
	CALL("cuMemFreeAsync", "0x%llx, 0x%llx", p, N(stream));
	return CUDA_SUCCESS;
}

CUresult cuMemHostAlloc(void **p, size_t bytes, unsigned flags) {
	CALL("cuMemHostAlloc", "%zu, %u", bytes, flags);
	*p = malloc(bytes);
	return CUDA_SUCCESS;
}

CUresult cuMemFreeHost(void *p) {
	CALL("cuMemFreeHost", "");
	free(p);
	return CUDA_SUCCESS;
}

CUresult cuMemcpyHtoDAsync(CUdeviceptr to, const void *from, size_t bytes, CUstream stream) {
	CALL("cuMemcpyHtoDAsync", "0x%llx, %zu, 0x%llx", to, bytes, N(stream));
	if (!at(to, bytes)) return CUDA_ERROR_INVALID_VALUE;
	memcpy(at(to, bytes), from, bytes);
	return CUDA_SUCCESS;
}

CUresult cuMemcpyDtoHAsync(void *to, CUdeviceptr from, size_t bytes, CUstream stream) {
	CALL("cuMemcpyDtoHAsync", "0x%llx, %zu, 0x%llx", from, bytes, N(stream));
	if (!at(from, bytes)) return CUDA_ERROR_INVALID_VALUE;
	memcpy(to, at(from, bytes), bytes);
	return CUDA_SUCCESS;
}

CUresult cuMemsetD32Async(CUdeviceptr to, unsigned value, size_t words, CUstream stream) {
	CALL("cuMemsetD32Async", "0x%llx, 0x%x, %zu, 0x%llx", to, value, words, N(stream));
	return CUDA_SUCCESS;
}

CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
	CALL("cuDeviceCanAccessPeer", "%d, %d", device, peer);
	*can = 1;
	return CUDA_SUCCESS;
}

CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned flags) {
	CALL("cuCtxEnablePeerAccess", "0x%llx, %u", N(peer), flags);
	return CUDA_SUCCESS;
}

CUresult cuMemcpyPeerAsync(CUdeviceptr to, CUcontext to_context, CUdeviceptr from, CUcontext from_context, size_t bytes, CUstream stream) {
	CALL("cuMemcpyPeerAsync", "0x%llx, 0x%llx, 0x%llx, 0x%llx, %zu, 0x%llx", to, N(to_context), from, N(from_context), bytes, N(stream));
	return CUDA_SUCCESS;
}

CUresult cuMemcpy3DPeerAsync(const CUDA_MEMCPY3D_PEER *x, CUstream stream) {
	CALL("cuMemcpy3DPeerAsync", "0x%llx, 0x%llx, %zu, 0x%llx, 0x%llx, %zu, %zu %zu %zu, 0x%llx", x->dstDevice, N(x->dstContext), x->dstPitch,
		x->srcDevice, N(x->srcContext), x->srcPitch, x->WidthInBytes, x->Height, x->Depth, N(stream));
	return CUDA_SUCCESS;
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned options, CUjit_option *names, void **values) {
	CALL("cuModuleLoadDataEx", "%02x%02x%02x%02x, %u", ((uint8_t *)image)[0], ((uint8_t *)image)[1], ((uint8_t *)image)[2], ((uint8_t *)image)[3], options);
	*module = (CUmodule)0x30d;
	return CUDA_SUCCESS;
}

CUresult cuModuleUnload(CUmodule module) {
	CALL("cuModuleUnload", "0x%llx", N(module));
	return CUDA_SUCCESS;
}

CUresult cuModuleGetFunction(CUfunction *function, CUmodule module, const char *name) {
	CALL("cuModuleGetFunction", "0x%llx, %s", N(module), name);
	*function = (CUfunction)0xf0;
	return CUDA_SUCCESS;
}

CUresult cuModuleGetGlobal(CUdeviceptr *p, size_t *bytes, CUmodule module, const char *name) {
	CALL("cuModuleGetGlobal", "0x%llx, %s", N(module), name);
	*bytes = sizeof plan;
	CUresult code = take(p, sizeof plan);
	if (!code) memcpy(at(*p, sizeof plan), &plan, sizeof plan);
	return code;
}

CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute, int value) {
	CALL("cuFuncSetAttribute", "0x%llx, %d, %d", N(function), attribute, value);
	return CUDA_SUCCESS;
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction function, int threads, size_t shared) {
	CALL("cuOccupancyMaxActiveBlocksPerMultiprocessor", "0x%llx, %d, %zu", N(function), threads, shared);
	*blocks = 2;
	return CUDA_SUCCESS;
}

CUresult cuLaunchKernel(CUfunction function, unsigned x, unsigned y, unsigned z, unsigned tx, unsigned ty, unsigned tz, unsigned shared,
	CUstream stream, void **parameters, void **extra) {
	CALL("cuLaunchKernel", "0x%llx, %u %u %u, %u %u %u, %u, 0x%llx, %llu", N(function), x, y, z, tx, ty, tz, shared, N(stream), N(extra));
	memcpy(params, parameters[0], PARAMS);
	return CUDA_SUCCESS;
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *c, CUfunction function, void **parameters, void **extra) {
	char second[32] = "";
	if (c->numAttrs == 2) snprintf(second, sizeof second, ", %d %d", c->attrs[1].id, c->attrs[1].value.programmaticStreamSerializationAllowed);
	CALL("cuLaunchKernelEx", "0x%llx, %u %u %u, %u %u %u, %u, 0x%llx, %llu, %d %d%s", N(function), c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX,
		c->blockDimY, c->blockDimZ, c->sharedMemBytes, N(c->hStream), N(extra), c->numAttrs == 1 || c->numAttrs == 2 ? c->attrs[0].id : -1,
		c->attrs[0].value.programmaticStreamSerializationAllowed, second);
	memcpy(params, parameters[0], PARAMS);
	return CUDA_SUCCESS;
}

CUresult cuTensorMapEncodeTiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t rank, void *address, const cuuint64_t *dims,
	const cuuint64_t *strides, const cuuint32_t *box, const cuuint32_t *steps, CUtensorMapInterleave interleave,
	CUtensorMapSwizzle swizzle, CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
	if ((uintptr_t)map % 64) return CUDA_ERROR_INVALID_VALUE;
	CALL("cuTensorMapEncodeTiled", "%d, %u, 0x%llx, %llu %llu %llu %llu, %llu %llu %llu, %u %u %u %u, %u %u %u %u, %d, %d, %d, %d", type, rank,
		N(address), N(dims[0]), N(dims[1]), N(dims[2]), N(dims[3]), N(strides[0]), N(strides[1]), N(strides[2]), box[0], box[1], box[2], box[3],
		steps[0], steps[1], steps[2], steps[3], interleave, swizzle, promotion, fill);
	memset(map, 0x7a, sizeof *map);
	return CUDA_SUCCESS;
}

CUresult cuStreamCreate(CUstream *stream, unsigned flags) {
	CALL("cuStreamCreate", "%u", flags);
	*stream = (CUstream)0x57;
	return CUDA_SUCCESS;
}

CUresult cuStreamCreateWithPriority(CUstream *stream, unsigned flags, int priority) {
	CALL("cuStreamCreateWithPriority", "%u, %d", flags, priority);
	*stream = (CUstream)0x57;
	return CUDA_SUCCESS;
}

CUresult cuStreamDestroy(CUstream stream) {
	CALL("cuStreamDestroy", "0x%llx", N(stream));
	return CUDA_SUCCESS;
}

CUresult cuStreamSynchronize(CUstream stream) {
	CALL("cuStreamSynchronize", "0x%llx", N(stream));
	return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream stream, CUstreamCaptureStatus *status) {
	CALL("cuStreamIsCapturing", "0x%llx", N(stream));
	*status = CU_STREAM_CAPTURE_STATUS_ACTIVE;
	return CUDA_SUCCESS;
}

CUresult cuStreamGetId(CUstream stream, unsigned long long *id) {
	CALL("cuStreamGetId", "0x%llx", N(stream));
	*id = 0x1000 + N(stream);
	return CUDA_SUCCESS;
}

CUresult cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
	CALL("cuStreamWaitEvent", "0x%llx, 0x%llx, %u", N(stream), N(event), flags);
	return CUDA_SUCCESS;
}

CUresult cuEventCreate(CUevent *event, unsigned flags) {
	CALL("cuEventCreate", "%u", flags);
	*event = (CUevent)0xe1;
	return CUDA_SUCCESS;
}

CUresult cuEventDestroy(CUevent event) {
	CALL("cuEventDestroy", "0x%llx", N(event));
	return CUDA_SUCCESS;
}

CUresult cuEventRecord(CUevent event, CUstream stream) {
	CALL("cuEventRecord", "0x%llx, 0x%llx", N(event), N(stream));
	return CUDA_SUCCESS;
}

CUresult cuEventSynchronize(CUevent event) {
	CALL("cuEventSynchronize", "0x%llx", N(event));
	return CUDA_SUCCESS;
}

CUresult cuEventElapsedTime(float *milliseconds, CUevent from, CUevent to) {
	CALL("cuEventElapsedTime", "0x%llx, 0x%llx", N(from), N(to));
	*milliseconds = 1.5f;
	return CUDA_SUCCESS;
}
