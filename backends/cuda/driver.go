package cuda

import (
	"errors"
	"fmt"
	"unsafe"
)

// Handles of the CUDA driver.
type (
	Context      uintptr // a CUcontext
	Module       uintptr // a CUmodule, a loaded image
	Function     uintptr // a CUfunction, a kernel of a Module
	StreamHandle uintptr // a CUstream; 0 is the context's default stream
	EventHandle  uintptr // a CUevent
	Pointer      uintptr // an address in device memory
)

// A TensorMap is the driver's CUtensorMap, without the required alignment of 64 bytes.
type TensorMap [128]byte

// A Driver holds the functions of the CUDA driver that the backend calls. Most fields have the name
// of the driver's function without prefix and version. Open fills a Driver from the library that it
// finds at run time. The module gorgoniacu fills a Driver from gorgonia.org/cu, and tests use a
// fake. A failed call returns an *Error.
//
// Every function may be called from several goroutines at once. Functions below CtxPopCurrent,
// except DeviceCanAccessPeer, act on the calling thread's current context, which the backend sets.
type Driver struct {
	Init             func() error                                       // starts the driver; may be called twice
	DriverGetVersion func() (int, error)                                // the driver's CUDA version: 13000 is 13.0
	DeviceGetCount   func() (int, error)                                // number of visible GPUs
	DeviceGetName    func(device int) (string, error)                   // such as NVIDIA H200
	DeviceTotalMem   func(device int) (int, error)                      // bytes of device memory
	DeviceAttribute  func(device int, attribute Attribute) (int, error) // value of an attribute

	DevicePrimaryCtxRetain  func(device int) (Context, error) // the context that the program's libraries share
	DevicePrimaryCtxRelease func(device int) error            // ends one DevicePrimaryCtxRetain
	CtxPushCurrent          func(Context) error               // makes a context the calling thread's current one
	CtxPopCurrent           func() error                      // restores the context from before

	MemAlloc      func(bytes int) (Pointer, error)                 // device memory
	MemFree       func(Pointer) error                              // waits for the device
	MemAllocAsync func(bytes int, s StreamHandle) (Pointer, error) // memory of the device's pool, in stream order
	MemFreeAsync  func(p Pointer, s StreamHandle) error            // frees memory of the pool, in stream order
	KeepFreed     func(device int) error                           // sets the release threshold of the device's memory pool to the maximum
	MemHostAlloc  func(bytes int) (unsafe.Pointer, error)          // pinned host memory
	MemFreeHost   func(unsafe.Pointer) error                       // frees pinned host memory

	MemcpyHtoDAsync func(to Pointer, from unsafe.Pointer, bytes int, s StreamHandle) error // copies from the host to the device
	MemcpyDtoHAsync func(to unsafe.Pointer, from Pointer, bytes int, s StreamHandle) error // copies from the device to the host
	MemsetD32Async  func(to Pointer, value uint32, words int, s StreamHandle) error        // fills words of 4 bytes

	// DeviceCanAccessPeer reports whether a device can access the memory of another device.
	DeviceCanAccessPeer func(device, peer int) (bool, error)
	// CtxEnablePeerAccess gives the current context access to the memory of another context.
	CtxEnablePeerAccess func(Context) error
	// MemcpyPeerAsync copies between the memories of two contexts.
	MemcpyPeerAsync func(to Pointer, toContext Context, from Pointer, fromContext Context, bytes int, s StreamHandle) error
	// Memcpy3DPeerAsync copies rows between the memories of two contexts. toPitch and fromPitch are
	// the bytes from row to row.
	Memcpy3DPeerAsync func(to Pointer, toContext Context, toPitch int, from Pointer, fromContext Context, fromPitch, bytes, rows int, s StreamHandle) error

	ModuleLoadData    func(image []byte) (Module, error)                 // loads an image of kernels
	ModuleUnload      func(Module) error                                 // frees a loaded image
	ModuleGetFunction func(m Module, name string) (Function, error)      // the kernel of that name
	ModuleGetGlobal   func(m Module, name string) (Pointer, int, error)  // address and bytes of a global variable
	FuncSetShared     func(f Function, bytes int) error                  // sets the limit of dynamic shared memory
	FuncBlocksPerSM   func(f Function, threads, shared int) (int, error) // blocks that a multiprocessor runs at once

	// LaunchKernel runs a one-dimensional grid of blocks. params points to the kernel's only
	// parameter, in Go heap memory; the call copies the parameter.
	LaunchKernel func(f Function, blocks, threads, shared int, s StreamHandle, params unsafe.Pointer) error

	// LaunchDependent is LaunchKernel for a kernel that may start before the previous kernel in the
	// stream ends. The launched kernel's own code waits for the previous kernel. LaunchDependent is
	// cuLaunchKernelEx with programmatic stream serialization. If nil, LaunchKernel replaces it.
	LaunchDependent func(f Function, blocks, threads, shared int, s StreamHandle, params unsafe.Pointer) error

	// LaunchCluster is LaunchKernel with clusters of `cluster` blocks, on compute capability 9.0.
	// The blocks of a cluster run together and access each other's shared memory. If nil,
	// decode_sm80 uses no clusters.
	LaunchCluster func(f Function, blocks, threads, shared, cluster int, s StreamHandle, params unsafe.Pointer) error

	// LaunchDependentCluster is LaunchDependent with clusters. If nil, bwd_sm90 has no pairs of
	// blocks.
	LaunchDependentCluster func(f Function, blocks, threads, shared, cluster int, s StreamHandle, params unsafe.Pointer) error

	// TensorMapEncodeTiled describes a tensor of 16-bit elements to the bulk copy engine of compute
	// capability 9.0. dims are the sizes of the dimensions, innermost first. strides are the bytes
	// per index of the other three dimensions. box is the size of one copy in each dimension.
	TensorMapEncodeTiled func(m *TensorMap, bf16 bool, at Pointer, dims *[4]uint64, strides *[3]uint64, box *[4]uint32) error

	StreamCreate func() (StreamHandle, error) // does not wait for the default stream
	// StreamCreatePriority is StreamCreate with a priority; StreamCreate has priority 0. Blocks of
	// streams with lower priority numbers start first. The driver clamps the number to the range
	// that it supports. If nil, StreamCreate replaces it.
	StreamCreatePriority func(priority int) (StreamHandle, error)

	StreamDestroy     func(StreamHandle) error                                     // frees the stream; work in the stream runs to its end
	StreamSynchronize func(StreamHandle) error                                     // waits for the stream's work
	StreamIsCapturing func(StreamHandle) (bool, error)                             // whether a CUDA graph captures the stream's work; if nil, this is unknown
	StreamGetID       func(StreamHandle) (uint64, error)                           // unique in the program's life; if nil, streams of other libraries cache nothing
	StreamWaitEvent   func(s StreamHandle, e EventHandle) error                    // makes later work in s wait for e
	EventCreate       func() (EventHandle, error)                                  // an event that measures time
	EventDestroy      func(EventHandle) error                                      // frees the event
	EventRecord       func(e EventHandle, s StreamHandle) error                    // places e in s
	EventSynchronize  func(EventHandle) error                                      // waits for the work before the event
	EventElapsedTime  func(from, to EventHandle) (milliseconds float32, err error) // time between two events that have passed
}

// An Attribute is a value of the driver's enumeration CUdevice_attribute.
type Attribute int

const (
	attrClockRate   Attribute = 13 // kHz
	attrSMs         Attribute = 16
	attrMemoryClock Attribute = 36 // kHz
	attrMemoryBus   Attribute = 37 // bits
	attrL2          Attribute = 38 // bytes
	attrMajor       Attribute = 75
	attrMinor       Attribute = 76
	attrMemoryPools Attribute = 115

	attrUnifiedAddressing Attribute = 41
)

// An Error is a failed call of the CUDA driver.
type Error struct {
	Call string // the driver's function, such as cuLaunchKernel
	Code int    // its CUresult
	Name string // the code's name, such as CUDA_ERROR_OUT_OF_MEMORY
}

// Error returns the call, with the name and number of the code.
func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Name, e.Code) }

// Codes that the backend handles.
const (
	codeOutOfMemory = 2
	codeNoDevice    = 100

	codeReachedAlready = 704 // PEER_ACCESS_ALREADY_ENABLED
)

// isOutOfMemory reports whether an error means that device memory or pinned host memory is full.
// The device remains usable.
func isOutOfMemory(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == codeOutOfMemory
}

// isSticky reports whether an error makes the context unusable. Every later call then returns the
// same error.
func isSticky(err error) bool {
	var e *Error
	if !errors.As(err, &e) {
		return false
	}
	switch e.Code {
	case 214, // ECC_UNCORRECTABLE
		220, 226, // NVLINK_UNCORRECTABLE, CONTAINED
		700, 702, // ILLEGAL_ADDRESS, LAUNCH_TIMEOUT
		709,                               // CONTEXT_IS_DESTROYED
		710,                               // ASSERT
		714, 715, 716, 717, 718, 719, 721: // HARDWARE_STACK_ERROR to LAUNCH_FAILED, TENSOR_MEMORY_LEAK
		return true
	}
	return false
}

// ErrNoDevice is wrapped by errors of Devices, and of all functions that open a GPU, if there is no
// GPU or driver library, or the program was built without CUDA. If there is a GPU, but it is
// unusable, the error does not wrap ErrNoDevice, because a user should see the cause.
var ErrNoDevice = errors.New("no device")

// absentError is an error with a text of its own. errors.Is(err, ErrNoDevice) reports true for it.
type absentError struct{ error }

func (l absentError) Unwrap() error      { return l.error }
func (absentError) Is(target error) bool { return target == ErrNoDevice }
