//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"fmt"
	"reflect"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// A symbol is a function of the library. In struct calls, a field's tag is the symbol's name.
type symbol struct {
	name    string
	address uintptr
}

// calls are the functions of the library by their exported names.
type calls struct {
	init          symbol `cu:"cuInit"`
	errorName     symbol `cu:"cuGetErrorName"`
	version       symbol `cu:"cuDriverGetVersion"`
	count         symbol `cu:"cuDeviceGetCount"`
	deviceName    symbol `cu:"cuDeviceGetName"`
	totalMem      symbol `cu:"cuDeviceTotalMem_v2"`
	attribute     symbol `cu:"cuDeviceGetAttribute"`
	defaultPool   symbol `cu:"cuDeviceGetDefaultMemPool"`
	poolAttribute symbol `cu:"cuMemPoolSetAttribute"`
	retain        symbol `cu:"cuDevicePrimaryCtxRetain"`
	release       symbol `cu:"cuDevicePrimaryCtxRelease_v2"`
	push          symbol `cu:"cuCtxPushCurrent_v2"`
	pop           symbol `cu:"cuCtxPopCurrent_v2"`
	alloc         symbol `cu:"cuMemAlloc_v2"`
	free          symbol `cu:"cuMemFree_v2"`
	allocAsync    symbol `cu:"cuMemAllocAsync"`
	freeAsync     symbol `cu:"cuMemFreeAsync"`
	hostAlloc     symbol `cu:"cuMemHostAlloc"`
	hostFree      symbol `cu:"cuMemFreeHost"`
	toDevice      symbol `cu:"cuMemcpyHtoDAsync_v2"`
	toHost        symbol `cu:"cuMemcpyDtoHAsync_v2"`
	set32         symbol `cu:"cuMemsetD32Async"`
	canAccess     symbol `cu:"cuDeviceCanAccessPeer"`
	enableAccess  symbol `cu:"cuCtxEnablePeerAccess"`
	toPeer        symbol `cu:"cuMemcpyPeerAsync"`
	rowsToPeer    symbol `cu:"cuMemcpy3DPeerAsync"`
	load          symbol `cu:"cuModuleLoadDataEx"`
	unload        symbol `cu:"cuModuleUnload"`
	function      symbol `cu:"cuModuleGetFunction"`
	global        symbol `cu:"cuModuleGetGlobal_v2"`
	setAttribute  symbol `cu:"cuFuncSetAttribute"`
	occupancy     symbol `cu:"cuOccupancyMaxActiveBlocksPerMultiprocessor"`
	launch        symbol `cu:"cuLaunchKernel"`
	launchEx      symbol `cu:"cuLaunchKernelEx" since:"12"`
	tensorMap     symbol `cu:"cuTensorMapEncodeTiled" since:"12"`
	streamNew     symbol `cu:"cuStreamCreate"`
	streamRanked  symbol `cu:"cuStreamCreateWithPriority"`
	streamEnd     symbol `cu:"cuStreamDestroy_v2"`
	streamSync    symbol `cu:"cuStreamSynchronize"`
	capturing     symbol `cu:"cuStreamIsCapturing"`
	streamID      symbol `cu:"cuStreamGetId" since:"12"`
	streamWait    symbol `cu:"cuStreamWaitEvent"`
	eventNew      symbol `cu:"cuEventCreate"`
	eventEnd      symbol `cu:"cuEventDestroy_v2"`
	eventRecord   symbol `cu:"cuEventRecord"`
	eventSync     symbol `cu:"cuEventSynchronize"`
	eventElapsed  symbol `cu:"cuEventElapsedTime"`
}

// bind looks up every function. It permits a driver without the functions newer than CUDA 11: the
// later check of the driver's version returns a better error.
func (c *calls) bind(lookup func(name string) (uintptr, error)) error {
	v := reflect.ValueOf(c).Elem()
	for i := range v.NumField() {
		tag := v.Type().Field(i).Tag
		name := tag.Get("cu")
		address, err := lookup(name)
		if err != nil && tag.Get("since") == "" {
			return fmt.Errorf("missing %s", name)
		}
		*(*symbol)(v.Field(i).Addr().UnsafePointer()) = symbol{name, address}
	}
	return nil
}

// call calls the function s. Until that function returns, the garbage collector neither frees nor
// moves memory that the arguments point to.
//
//go:uintptrescapes
func (c *calls) call(s *symbol, args ...uintptr) error {
	r, _, _ := purego.SyscallN(s.address, args...)
	return c.check(s, r)
}

func (c *calls) check(s *symbol, result uintptr) error {
	code := int32(result)
	if code == 0 {
		return nil
	}
	return c.fail(s, code)
}

func (c *calls) fail(s *symbol, code int32) error {
	e := &Error{Call: s.name, Code: int(code), Name: "unknown error"}
	text := new(*byte)
	if r, _, _ := purego.SyscallN(c.errorName.address, uintptr(code), uintptr(unsafe.Pointer(text))); int32(r) == 0 && *text != nil {
		e.Name = goString(*text)
	}
	runtime.KeepAlive(text)
	return e
}

func goString(p *byte) string {
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(p), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(p, n))
}

func cString(s string) unsafe.Pointer { return unsafe.Pointer(unsafe.StringData(s + "\x00")) }

// Values of the driver's enumerations.
const (
	tensorMapF16         = 6
	tensorMapBF16        = 9
	tensorMapSwizzle128B = 3
	tensorMapPromote256B = 3
	streamNonBlocking    = 1
	memoryDevice         = 2 // CU_MEMORYTYPE_DEVICE
	hostPortable         = 1
	poolReleaseThreshold = 4
	maxDynamicShared     = 8
	clusterDimension     = 4 // CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
	programmaticLaunch   = 6 // CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
)
