package cuda

import (
	"errors"
	"fmt"
	"unsafe"
)

// The handles of the CUDA driver, as it gives them out.
type (
	Context      uintptr
	Module       uintptr
	Function     uintptr
	StreamHandle uintptr // 0 is the context's default stream
	EventHandle  uintptr
	Pointer      uintptr // an address in device memory
)

// A TensorMap is the driver's CUtensorMap, as yet without its alignment.
type TensorMap [128]byte

// A Driver is every call of the CUDA driver that the backend makes, one field
// each, named after the call without its prefix and its version. Open fills one
// from the library that it finds at run time; the module gorgoniacu from
// gorgonia.org/cu; tests from a fake. A call that fails returns an *Error.
// Every function may be called from several goroutines at once. Those below
// CtxPopCurrent, but for DeviceCanAccessPeer, act on the context that is current on the calling thread; the
// backend sees to that.
type Driver struct {
	Init             func() error
	DriverGetVersion func() (int, error) // 13000 is 13.0
	DeviceGetCount   func() (int, error)
	DeviceGetName    func(device int) (string, error)
	DeviceTotalMem   func(device int) (int, error)
	DeviceAttribute  func(device int, attribute Attribute) (int, error)

	DevicePrimaryCtxRetain  func(device int) (Context, error)
	DevicePrimaryCtxRelease func(device int) error
	CtxPushCurrent          func(Context) error
	CtxPopCurrent           func() error

	MemAlloc      func(bytes int) (Pointer, error)
	MemFree       func(Pointer) error
	MemAllocAsync func(bytes int, s StreamHandle) (Pointer, error)
	MemFreeAsync  func(p Pointer, s StreamHandle) error
	KeepFreed     func(device int) error // sets the release threshold of the device's memory pool to the maximum
	MemHostAlloc  func(bytes int) (unsafe.Pointer, error)
	MemFreeHost   func(unsafe.Pointer) error

	MemcpyHtoDAsync func(to Pointer, from unsafe.Pointer, bytes int, s StreamHandle) error
	MemcpyDtoHAsync func(to unsafe.Pointer, from Pointer, bytes int, s StreamHandle) error
	MemsetD32Async  func(to Pointer, value uint32, words int, s StreamHandle) error

	// What several devices need. MemcpyPeerAsync copies between the memories of two
	// contexts, Memcpy3DPeerAsync so many rows, a pitch apart on either side. CtxEnablePeerAccess lets the current context use the memory of another,
	// of a device for which DeviceCanAccessPeer says that it can.
	DeviceCanAccessPeer func(device, peer int) (bool, error)
	CtxEnablePeerAccess func(Context) error
	MemcpyPeerAsync     func(to Pointer, toContext Context, from Pointer, fromContext Context, bytes int, s StreamHandle) error
	Memcpy3DPeerAsync   func(to Pointer, toContext Context, toPitch int, from Pointer, fromContext Context, fromPitch, bytes, rows int, s StreamHandle) error

	ModuleLoadData    func(image []byte) (Module, error)
	ModuleUnload      func(Module) error
	ModuleGetFunction func(m Module, name string) (Function, error)
	ModuleGetGlobal   func(m Module, name string) (Pointer, int, error)
	FuncSetShared     func(f Function, bytes int) error // the limit of dynamic shared memory
	FuncBlocksPerSM   func(f Function, threads, shared int) (int, error)

	// LaunchKernel runs a grid of blocks in one dimension. The kernel's one
	// parameter lies at params, on the heap, and is copied by the call.
	LaunchKernel func(f Function, blocks, threads, shared int, s StreamHandle, params unsafe.Pointer) error

	// LaunchDependent is LaunchKernel for a kernel that itself waits for the end of
	// the kernel before it in the stream, and so may start earlier: cuLaunchKernelEx
	// with the attribute of programmatic stream serialization. If it is nil,
	// LaunchKernel stands in for it.
	LaunchDependent func(f Function, blocks, threads, shared int, s StreamHandle, params unsafe.Pointer) error

	// LaunchCluster is LaunchKernel for clusters of so many blocks, which run at the same
	// time and reach each other's shared memory: compute capability 9.0. If it is nil, there are none.
	LaunchCluster func(f Function, blocks, threads, shared, cluster int, s StreamHandle, params unsafe.Pointer) error

	// LaunchDependentCluster is LaunchDependent for clusters. If it is nil, bwd_sm90 has no pairs of blocks.
	LaunchDependentCluster func(f Function, blocks, threads, shared, cluster int, s StreamHandle, params unsafe.Pointer) error

	// TensorMapEncodeTiled describes a tensor of 16-bit elements to the bulk copy
	// engine of compute capability 9.0: four dimensions, the innermost first, with
	// the strides in bytes of all but that one, and the box that a copy moves.
	TensorMapEncodeTiled func(m *TensorMap, bf16 bool, at Pointer, dims *[4]uint64, strides *[3]uint64, box *[4]uint32) error

	StreamCreate func() (StreamHandle, error) // does not wait for the default stream
	// StreamCreatePriority is StreamCreate with a priority, which is 0 there: the blocks of streams with lower numbers
	// come first. Numbers beyond the range stand for its ends. If it is nil, StreamCreate stands in for it.
	StreamCreatePriority func(priority int) (StreamHandle, error)

	StreamDestroy     func(StreamHandle) error
	StreamSynchronize func(StreamHandle) error
	StreamIsCapturing func(StreamHandle) (bool, error)   // whether a graph is made of what is enqueued; if it is nil, nobody knows
	StreamGetID       func(StreamHandle) (uint64, error) // of no other stream for the program's life; if it is nil, other libraries' streams keep nothing
	StreamWaitEvent   func(s StreamHandle, e EventHandle) error
	EventCreate       func() (EventHandle, error)
	EventDestroy      func(EventHandle) error
	EventRecord       func(e EventHandle, s StreamHandle) error
	EventSynchronize  func(EventHandle) error
	EventElapsedTime  func(from, to EventHandle) (milliseconds float32, err error)
}

// An Attribute is a number of the driver's enumeration CUdevice_attribute.
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

func (e *Error) Error() string { return fmt.Sprintf("%s: %s (%d)", e.Call, e.Name, e.Code) }

// The codes that the backend reacts to.
const (
	codeOutOfMemory = 2
	codeNoDevice    = 100

	codeReachedAlready = 704 // PEER_ACCESS_ALREADY_ENABLED
)

// isOutOfMemory reports whether the device, or pinned host memory, is full. The
// device remains usable.
func isOutOfMemory(err error) bool {
	var e *Error
	return errors.As(err, &e) && e.Code == codeOutOfMemory
}

// isSticky reports whether the error has left the context unusable: every later
// call returns it again until the process ends.
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

// ErrNoDevice is wrapped by errors of Open and its kin where the machine has no GPU, no
// driver's library, or the program was built without CUDA. A GPU that is there and cannot
// be used is another error, which a user would want to hear of.
var ErrNoDevice = errors.New("no device")

// lacking is ErrNoDevice in other words.
type absentError struct{ error }

func (l absentError) Unwrap() error      { return l.error }
func (absentError) Is(target error) bool { return target == ErrNoDevice }
