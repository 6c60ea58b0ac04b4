package gorgoniacu

// #cgo linux CFLAGS: -I/usr/local/cuda/include
// #cgo linux LDFLAGS: -L/usr/local/cuda/lib64 -L/usr/local/cuda/lib64/stubs -lcuda
//
// #include <stdint.h>
// #include <string.h>
// #include <cuda.h>
//
// // A function returns its value and its error code together. A pointer to the
// // value would need heap memory at every call.
// typedef struct { CUresult code; uintptr_t value; } answer;
//
// static CUresult pop(void) {
// 	CUcontext was;
// 	return cuCtxPopCurrent(&was);
// }
//
// static answer alloc_async(size_t bytes, uintptr_t s) {
// 	CUdeviceptr p = 0;
// 	CUresult code = cuMemAllocAsync(&p, bytes, (CUstream)s);
// 	return (answer){code, p};
// }
//
// static CUresult free_async(uintptr_t p, uintptr_t s) { return cuMemFreeAsync(p, (CUstream)s); }
//
// static answer is_capturing(uintptr_t s) {
// 	CUstreamCaptureStatus status = 0;
// 	CUresult code = cuStreamIsCapturing((CUstream)s, &status);
// 	return (answer){code, status != CU_STREAM_CAPTURE_STATUS_NONE};
// }
//
// static answer stream_id(uintptr_t s) {
// 	unsigned long long id = 0;
// 	CUresult code = cuStreamGetId((CUstream)s, &id);
// 	return (answer){code, id};
// }
//
// static CUresult to_device(uintptr_t to, uintptr_t from, size_t bytes, uintptr_t s) {
// 	return cuMemcpyHtoDAsync(to, (void *)from, bytes, (CUstream)s);
// }
//
// static CUresult to_host(uintptr_t to, uintptr_t from, size_t bytes, uintptr_t s) {
// 	return cuMemcpyDtoHAsync((void *)to, from, bytes, (CUstream)s);
// }
//
// static CUresult enable_access(uintptr_t peer) { return cuCtxEnablePeerAccess((CUcontext)peer, 0); }
//
// static CUresult to_peer(uintptr_t to, uintptr_t to_context, uintptr_t from, uintptr_t from_context, size_t bytes, uintptr_t s) {
// 	return cuMemcpyPeerAsync(to, (CUcontext)to_context, from, (CUcontext)from_context, bytes, (CUstream)s);
// }
//
// static CUresult rows_to_peer(uintptr_t to, uintptr_t to_context, size_t to_pitch, uintptr_t from, uintptr_t from_context, size_t from_pitch, size_t bytes, size_t rows, uintptr_t s) {
// 	CUDA_MEMCPY3D_PEER x = {
// 		.srcMemoryType = CU_MEMORYTYPE_DEVICE, .srcDevice = from, .srcContext = (CUcontext)from_context, .srcPitch = from_pitch, .srcHeight = rows,
// 		.dstMemoryType = CU_MEMORYTYPE_DEVICE, .dstDevice = to, .dstContext = (CUcontext)to_context, .dstPitch = to_pitch, .dstHeight = rows,
// 		.WidthInBytes = bytes, .Height = rows, .Depth = 1,
// 	};
// 	return cuMemcpy3DPeerAsync(&x, (CUstream)s);
// }
//
// static CUresult set_shared(uintptr_t f, int bytes) {
// 	return cuFuncSetAttribute((CUfunction)f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, bytes);
// }
//
// static CUresult launch(uintptr_t f, unsigned blocks, unsigned threads, unsigned shared, uintptr_t s, uintptr_t block) {
// 	void *params[] = {(void *)block};
// 	return cuLaunchKernel((CUfunction)f, blocks, 1, 1, threads, 1, 1, shared, (CUstream)s, params, 0);
// }
//
// static CUresult launch_dependent(uintptr_t f, unsigned blocks, unsigned threads, unsigned shared, uintptr_t s, uintptr_t block) {
// 	void *params[] = {(void *)block};
// 	CUlaunchAttribute early = {CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION};
// 	early.value.programmaticStreamSerializationAllowed = 1;
// 	CUlaunchConfig config = {blocks, 1, 1, threads, 1, 1, shared, (CUstream)s, &early, 1};
// 	return cuLaunchKernelEx(&config, (CUfunction)f, params, 0);
// }
//
// static CUresult launch_cluster(uintptr_t f, unsigned blocks, unsigned threads, unsigned shared, unsigned cluster, int dependent, uintptr_t s, uintptr_t block) {
// 	void *params[] = {(void *)block};
// 	CUlaunchAttribute how[2] = {{CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION}, {CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION}};
// 	how[0].value.clusterDim.x = cluster, how[0].value.clusterDim.y = how[0].value.clusterDim.z = 1;
// 	how[1].value.programmaticStreamSerializationAllowed = 1;
// 	CUlaunchConfig config = {blocks, 1, 1, threads, 1, 1, shared, (CUstream)s, how, 1 + dependent};
// 	return cuLaunchKernelEx(&config, (CUfunction)f, params, 0);
// }
//
// static CUresult encode_tiled(uintptr_t to, int type, uintptr_t at, uintptr_t dims, uintptr_t strides, uintptr_t box) {
// 	CUtensorMap map;
// 	cuuint32_t steps[] = {1, 1, 1, 1};
// 	CUresult code = cuTensorMapEncodeTiled(&map, type, 4, (void *)at, (cuuint64_t *)dims, (cuuint64_t *)strides, (cuuint32_t *)box, steps,
// 		CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
// 	memcpy((void *)to, &map, sizeof map);
// 	return code;
// }
import "C"

import (
	"math"
	"runtime"
	"unsafe"

	"github.com/flashkit-go/flashkit/backends/cuda"
)

// The calls of this file pass addresses of host memory as numbers. With a pointer, cgo would panic
// if the memory object contained Go pointers anywhere, although the driver accesses only the copied
// range. Numbers are safe: the garbage collector does not move heap memory, and KeepAlive keeps it
// allocated.

// fail returns the error for a result code of the driver.
func fail(call string, code int) error {
	e := &cuda.Error{Call: call, Code: code, Name: "unknown error"}
	var name *C.char
	if C.cuGetErrorName(C.CUresult(code), &name) == C.CUDA_SUCCESS && name != nil {
		e.Name = C.GoString(name)
	}
	return e
}

func status(call string, r C.CUresult) error {
	if r == C.CUDA_SUCCESS {
		return nil
	}
	return fail(call, int(r))
}

// version replaces cu.Version, which loses the error.
func version() (int, error) {
	var v C.int
	err := status("cuDriverGetVersion", C.cuDriverGetVersion(&v))
	return int(v), err
}

// popCurrent replaces cu.PopCurrentCtx, which allocates.
func popCurrent() error { return status("cuCtxPopCurrent", C.pop()) }

func keepFreed(device int) error {
	var pool C.CUmemoryPool
	if err := status("cuDeviceGetDefaultMemPool", C.cuDeviceGetDefaultMemPool(&pool, C.CUdevice(device))); err != nil {
		return err
	}
	most := C.cuuint64_t(math.MaxUint64)
	return status("cuMemPoolSetAttribute", C.cuMemPoolSetAttribute(pool, C.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, unsafe.Pointer(&most)))
}

func allocAsync(bytes int, s cuda.StreamHandle) (cuda.Pointer, error) {
	a := C.alloc_async(C.size_t(bytes), C.uintptr_t(s))
	return cuda.Pointer(a.value), status("cuMemAllocAsync", a.code)
}

func isCapturing(s cuda.StreamHandle) (bool, error) {
	a := C.is_capturing(C.uintptr_t(s))
	return a.value != 0, status("cuStreamIsCapturing", a.code)
}

func streamID(s cuda.StreamHandle) (uint64, error) {
	a := C.stream_id(C.uintptr_t(s))
	return uint64(a.value), status("cuStreamGetId", a.code)
}

func freeAsync(p cuda.Pointer, s cuda.StreamHandle) error {
	return status("cuMemFreeAsync", C.free_async(C.uintptr_t(p), C.uintptr_t(s)))
}

func hostAlloc(bytes int) (unsafe.Pointer, error) {
	var p unsafe.Pointer
	err := status("cuMemHostAlloc", C.cuMemHostAlloc(&p, C.size_t(bytes), C.CU_MEMHOSTALLOC_PORTABLE))
	return p, err
}

func toDevice(to cuda.Pointer, from unsafe.Pointer, bytes int, s cuda.StreamHandle) error {
	err := status("cuMemcpyHtoDAsync", C.to_device(C.uintptr_t(to), C.uintptr_t(uintptr(from)), C.size_t(bytes), C.uintptr_t(s)))
	runtime.KeepAlive(from)
	return err
}

func toHost(to unsafe.Pointer, from cuda.Pointer, bytes int, s cuda.StreamHandle) error {
	err := status("cuMemcpyDtoHAsync", C.to_host(C.uintptr_t(uintptr(to)), C.uintptr_t(from), C.size_t(bytes), C.uintptr_t(s)))
	runtime.KeepAlive(to)
	return err
}

func canAccess(device, peer int) (bool, error) {
	var can C.int
	err := status("cuDeviceCanAccessPeer", C.cuDeviceCanAccessPeer(&can, C.CUdevice(device), C.CUdevice(peer)))
	return can != 0, err
}

func enableAccess(peer cuda.Context) error {
	return status("cuCtxEnablePeerAccess", C.enable_access(C.uintptr_t(peer)))
}

func toPeer(to cuda.Pointer, toContext cuda.Context, from cuda.Pointer, fromContext cuda.Context, bytes int, s cuda.StreamHandle) error {
	return status("cuMemcpyPeerAsync", C.to_peer(C.uintptr_t(to), C.uintptr_t(toContext), C.uintptr_t(from), C.uintptr_t(fromContext), C.size_t(bytes), C.uintptr_t(s)))
}

func rowsToPeer(to cuda.Pointer, toContext cuda.Context, toPitch int, from cuda.Pointer, fromContext cuda.Context, fromPitch, bytes, rows int, s cuda.StreamHandle) error {
	return status("cuMemcpy3DPeerAsync", C.rows_to_peer(C.uintptr_t(to), C.uintptr_t(toContext), C.size_t(toPitch), C.uintptr_t(from), C.uintptr_t(fromContext), C.size_t(fromPitch), C.size_t(bytes), C.size_t(rows), C.uintptr_t(s)))
}

func setShared(f cuda.Function, bytes int) error {
	return status("cuFuncSetAttribute", C.set_shared(C.uintptr_t(f), C.int(bytes)))
}

// launch replaces cu.Function.Launch, which passes only 8 bytes of a parameter.
func launch(f cuda.Function, blocks, threads, shared int, s cuda.StreamHandle, params unsafe.Pointer) error {
	err := status("cuLaunchKernel", C.launch(C.uintptr_t(f), C.uint(blocks), C.uint(threads), C.uint(shared), C.uintptr_t(s), C.uintptr_t(uintptr(params))))
	runtime.KeepAlive(params)
	return err
}

func launchDependent(f cuda.Function, blocks, threads, shared int, s cuda.StreamHandle, params unsafe.Pointer) error {
	err := status("cuLaunchKernelEx", C.launch_dependent(C.uintptr_t(f), C.uint(blocks), C.uint(threads), C.uint(shared), C.uintptr_t(s), C.uintptr_t(uintptr(params))))
	runtime.KeepAlive(params)
	return err
}

func launchCluster(f cuda.Function, blocks, threads, shared, cluster int, s cuda.StreamHandle, params unsafe.Pointer) error {
	return launchClusters(f, blocks, threads, shared, cluster, 0, s, params)
}

func launchDependentCluster(f cuda.Function, blocks, threads, shared, cluster int, s cuda.StreamHandle, params unsafe.Pointer) error {
	return launchClusters(f, blocks, threads, shared, cluster, 1, s, params)
}

func launchClusters(f cuda.Function, blocks, threads, shared, cluster int, dependent C.int, s cuda.StreamHandle, params unsafe.Pointer) error {
	err := status("cuLaunchKernelEx", C.launch_cluster(C.uintptr_t(f), C.uint(blocks), C.uint(threads), C.uint(shared), C.uint(cluster), dependent, C.uintptr_t(s), C.uintptr_t(uintptr(params))))
	runtime.KeepAlive(params)
	return err
}

// encodeTiled encodes the map in C, with the alignment that the driver requires.
func encodeTiled(m *cuda.TensorMap, bf16 bool, at cuda.Pointer, dims *[4]uint64, strides *[3]uint64, box *[4]uint32) error {
	kind := C.int(C.CU_TENSOR_MAP_DATA_TYPE_FLOAT16)
	if bf16 {
		kind = C.CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
	}
	number := func(p unsafe.Pointer) C.uintptr_t { return C.uintptr_t(uintptr(p)) }
	err := status("cuTensorMapEncodeTiled", C.encode_tiled(number(unsafe.Pointer(m)), kind, C.uintptr_t(at),
		number(unsafe.Pointer(dims)), number(unsafe.Pointer(strides)), number(unsafe.Pointer(box))))
	runtime.KeepAlive(m)
	runtime.KeepAlive(dims)
	runtime.KeepAlive(strides)
	runtime.KeepAlive(box)
	return err
}
