package cuda

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/bits"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"unsafe"
)

// A fakeDriver stands in for the CUDA driver and a GPU. It keeps device memory in host memory,
// refuses calls that a real driver would refuse or not survive, counts resources that are not
// freed, and computes the kernels' results: see fakeKernel.
type fakeDriver struct {
	Driver
	version, devices int
	attributes       map[Attribute]int

	mu         sync.Mutex
	memory     map[Pointer][]byte
	found      Pointer // the allocation that at found last
	next       Pointer
	pinned     map[unsafe.Pointer][]byte
	handles    map[uintptr]string // open contexts, streams, events and modules
	functions  map[Function]*fakeFunction
	images     map[Module]*fakeImage
	made       uintptr
	depth      int              // of pushed contexts
	captures   bool             // a graph is captured
	idle       bool             // launches compute nothing
	generation uint64           // a stream's ID is its handle plus generation
	copies     atomic.Int32     // from the host
	apart      bool             // its devices cannot access each other's memory
	limit      int              // bytes of device memory; 0 is no limit
	failures   map[string]error // by call
	memsets    atomic.Int32
	launches   []fakeLaunch
	busy       map[StreamHandle][]chan struct{} // until other libraries' enqueued work is done
	marks      map[EventHandle][]chan struct{}  // the work of busy when an event was recorded
}

type fakeImage struct {
	functions map[string]bool
	plans     map[string][]byte
	addresses map[string]Pointer
}

type fakeFunction struct {
	name   string
	shared int
	plan   [4]int32
}

type fakeLaunch struct {
	name                    string
	blocks, threads, shared int
	stream                  StreamHandle
	params                  params
}

// Begin and size of the fake's memory, as far as a 32-bit int permits.
const (
	fakeAddress = 1 << (bits.UintSize - 18)
	fakeMemory  = min(80<<30, math.MaxInt)
)

func newFake() *fakeDriver {
	f := &fakeDriver{
		version: 13000, devices: 1,
		attributes: map[Attribute]int{attrMajor: 9, attrSMs: 132, attrL2: 60 << 20, attrClockRate: 1980000, attrMemoryClock: 3201000,
			attrMemoryBus: 6016, attrMemoryPools: 1, attrUnifiedAddressing: 1},
		memory: map[Pointer][]byte{}, next: fakeAddress, pinned: map[unsafe.Pointer][]byte{},
		handles: map[uintptr]string{}, functions: map[Function]*fakeFunction{}, images: map[Module]*fakeImage{},
		failures: map[string]error{},
		busy:     map[StreamHandle][]chan struct{}{}, marks: map[EventHandle][]chan struct{}{},
	}
	f.Driver = Driver{
		Init:             func() error { return f.call("cuInit") },
		DriverGetVersion: func() (int, error) { return f.version, f.call("cuDriverGetVersion") },
		DeviceGetCount:   func() (int, error) { return f.devices, f.call("cuDeviceGetCount") },
		DeviceGetName:    func(int) (string, error) { return "Fake GPU", nil },
		DeviceTotalMem:   func(int) (int, error) { return fakeMemory, nil },
		DeviceAttribute:  func(_ int, a Attribute) (int, error) { return f.attributes[a], nil },
		KeepFreed:        func(int) error { return f.call("cuMemPoolSetAttribute") },
		DevicePrimaryCtxRetain: func(int) (Context, error) {
			h, err := f.open("cuDevicePrimaryCtxRetain", "context")
			return Context(h), err
		},
		DevicePrimaryCtxRelease: func(int) error { return f.release() },
		CtxPushCurrent:          func(Context) error { return f.push(1) },
		CtxPopCurrent:           func() error { return f.push(-1) },
	}
	f.memoryCalls()
	f.peerCalls()
	f.moduleCalls()
	f.streamCalls()
	return f
}

func (f *fakeDriver) call(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.failures[name]
}

func (f *fakeDriver) fail(name string, code int) error {
	return &Error{Call: name, Code: code, Name: "CUDA_ERROR_FAKE"}
}

// inContext is call for the functions that need a current context.
func (f *fakeDriver) inContext(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.depth == 0 {
		return f.fail(name, 201)
	}
	return f.failures[name]
}

func (f *fakeDriver) push(by int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.depth += by
	return nil
}

func (f *fakeDriver) open(call, what string) (uintptr, error) {
	if err := f.call(call); err != nil {
		return 0, err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.made++
	f.handles[f.made] = what
	return f.made, nil
}

func (f *fakeDriver) shut(call, what string, h uintptr) error {
	if err := f.inContext(call); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.handles[h] != what {
		return f.fail(call, 400)
	}
	delete(f.handles, h)
	return nil
}

func (f *fakeDriver) release() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for h, what := range f.handles {
		if what == "context" {
			delete(f.handles, h)
			return nil
		}
	}
	return f.fail("cuDevicePrimaryCtxRelease", 201)
}

// leaks names the resources that were not freed.
func (f *fakeDriver) leaks() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var all []string
	for _, what := range f.handles {
		all = append(all, what)
	}
	if n := len(f.memory); n > 0 {
		all = append(all, fmt.Sprintf("%d pieces of device memory", n))
	}
	if n := len(f.pinned); n > 0 {
		all = append(all, fmt.Sprintf("%d pieces of pinned memory", n))
	}
	if f.depth != 0 {
		all = append(all, fmt.Sprintf("%d pushed contexts", f.depth))
	}
	slices.Sort(all)
	return all
}

// at returns the device memory from p to the end of its allocation.
func (f *fakeDriver) at(p Pointer) ([]byte, bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if m, ok := f.memory[f.found]; ok && p >= f.found && p <= f.found+Pointer(len(m)) {
		return m[p-f.found:], true
	}
	for base, m := range f.memory {
		if p >= base && p <= base+Pointer(len(m)) {
			f.found = base
			return m[p-base:], true
		}
	}
	return nil, false
}

func (f *fakeDriver) memoryCalls() {
	alloc := func(name string, n int) (Pointer, error) {
		if err := f.inContext(name); err != nil {
			return 0, err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		used := n
		if f.limit > 0 {
			for _, m := range f.memory {
				used += len(m)
			}
		}
		if f.limit > 0 && used > f.limit {
			return 0, f.fail(name, codeOutOfMemory)
		}
		p := f.next
		f.next += Pointer(n+1<<20) &^ 0xff
		f.memory[p] = bytes.Repeat([]byte{0xff}, n) // NaN
		return p, nil
	}
	free := func(name string, p Pointer) error {
		if err := f.inContext(name); err != nil {
			return err
		}
		f.mu.Lock()
		defer f.mu.Unlock()
		if _, ok := f.memory[p]; !ok {
			return f.fail(name, 1)
		}
		delete(f.memory, p)
		return nil
	}
	f.MemAlloc = func(n int) (Pointer, error) { return alloc("cuMemAlloc", n) }
	f.MemFree = func(p Pointer) error { return free("cuMemFree", p) }
	f.MemAllocAsync = func(n int, _ StreamHandle) (Pointer, error) { return alloc("cuMemAllocAsync", n) }
	f.MemFreeAsync = func(p Pointer, _ StreamHandle) error { return free("cuMemFreeAsync", p) }
	f.MemHostAlloc = func(n int) (unsafe.Pointer, error) {
		if err := f.inContext("cuMemHostAlloc"); err != nil {
			return nil, err
		}
		m := bytes.Repeat([]byte{0xff}, n)
		f.mu.Lock()
		defer f.mu.Unlock()
		f.pinned[unsafe.Pointer(&m[0])] = m
		return unsafe.Pointer(&m[0]), nil
	}
	f.MemFreeHost = func(p unsafe.Pointer) error {
		f.mu.Lock()
		defer f.mu.Unlock()
		delete(f.pinned, p)
		return nil
	}
	move := func(name string, device Pointer, host unsafe.Pointer, n int, upload bool) error {
		if err := f.inContext(name); err != nil {
			return err
		}
		m, ok := f.at(device)
		if !ok || n > len(m) {
			return f.fail(name, 1)
		}
		if h := unsafe.Slice((*byte)(host), n); upload {
			copy(m, h)
		} else {
			copy(h, m)
		}
		return nil
	}
	f.MemcpyHtoDAsync = func(to Pointer, from unsafe.Pointer, n int, _ StreamHandle) error {
		f.copies.Add(1)
		return move("cuMemcpyHtoDAsync", to, from, n, true)
	}
	f.MemcpyDtoHAsync = func(to unsafe.Pointer, from Pointer, n int, _ StreamHandle) error {
		return move("cuMemcpyDtoHAsync", from, to, n, false)
	}
	f.MemsetD32Async = func(to Pointer, value uint32, words int, _ StreamHandle) error {
		f.memsets.Add(1)
		m, ok := f.at(to)
		if !ok || 4*words > len(m) {
			return f.fail("cuMemsetD32Async", 1)
		}
		for i := range words {
			binary.LittleEndian.PutUint32(m[4*i:], value)
		}
		return nil
	}
}

func (f *fakeDriver) moduleCalls() {
	f.ModuleLoadData = func(image []byte) (Module, error) {
		parsed, err := parseImage(image)
		if err != nil {
			return 0, f.fail("cuModuleLoadDataEx", 200)
		}
		h, err := f.open("cuModuleLoadDataEx", "module")
		f.mu.Lock()
		defer f.mu.Unlock()
		f.images[Module(h)] = parsed
		return Module(h), err
	}
	f.ModuleUnload = func(m Module) error {
		f.mu.Lock()
		for _, p := range f.images[m].addresses {
			delete(f.memory, p)
		}
		f.mu.Unlock()
		return f.shut("cuModuleUnload", "module", uintptr(m))
	}
	f.ModuleGetFunction = func(m Module, name string) (Function, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		image := f.images[m]
		if image == nil || !image.functions[name] {
			return 0, f.fail("cuModuleGetFunction", 500)
		}
		fn := &fakeFunction{name: name}
		if plan := image.plans[name+"_plan"]; len(plan) == 16 {
			for i := range fn.plan {
				fn.plan[i] = int32(binary.LittleEndian.Uint32(plan[4*i:]))
			}
		}
		f.made++
		f.functions[Function(f.made)] = fn
		return Function(f.made), nil
	}
	f.ModuleGetGlobal = func(m Module, name string) (Pointer, int, error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		image := f.images[m]
		if image == nil || image.plans[name] == nil {
			return 0, 0, f.fail("cuModuleGetGlobal", 500)
		}
		if image.addresses[name] == 0 {
			image.addresses[name] = f.next
			f.memory[f.next] = image.plans[name]
			f.next += 1 << 20
		}
		return image.addresses[name], len(image.plans[name]), nil
	}
	f.TensorMapEncodeTiled = func(m *TensorMap, bf16 bool, at Pointer, dims *[4]uint64, strides *[3]uint64, box *[4]uint32) error {
		for i := range strides {
			if at%16 != 0 || strides[i]%16 != 0 || dims[i] == 0 {
				return f.fail("cuTensorMapEncodeTiled", 1)
			}
		}
		copy(m.bytes(&mapKey{at, bf16, *dims, *strides, *box}))
		return f.call("cuTensorMapEncodeTiled")
	}
	f.FuncSetShared = func(fn Function, n int) error {
		f.functions[fn].shared = n
		return f.inContext("cuFuncSetAttribute")
	}
	f.FuncBlocksPerSM = func(Function, int, int) (int, error) { return 2, f.inContext("cuOccupancy") }
	f.LaunchKernel = func(fn Function, blocks, threads, shared int, s StreamHandle, a unsafe.Pointer) error {
		f.drain(s)
		if err := f.inContext("cuLaunchKernel"); err != nil {
			return err
		}
		f.mu.Lock()
		k := f.functions[fn]
		if s != 0 && f.handles[uintptr(s)] != "stream" || k == nil || blocks < 1 || shared > k.shared || threads != int(k.plan[0]) {
			f.mu.Unlock()
			return f.fail("cuLaunchKernel", 1)
		}
		if strings.HasPrefix(k.name, "limits") {
			f.mu.Unlock()
			return f.measured(k.name, (*limitArgs)(a))
		}
		if strings.HasPrefix(k.name, "layers_") {
			f.mu.Unlock()
			return f.layer(k.name, (*layerArgs)(a), blocks*threads)
		}
		if strings.HasPrefix(k.name, "join_") {
			f.mu.Unlock()
			return f.join(k.name, (*joinArgs)(a), blocks*threads)
		}
		maps, block, int8 := (*mapped)(a), (*features)(nil), (*int8Args)(nil)
		if isFeatured(k.name) {
			whole := (*struct {
				mapped
				features
				int8Args
			})(a)
			a, block = unsafe.Pointer(&whole.params), &whole.features
			if strings.HasPrefix(k.name, "decode_int8") {
				int8 = &whole.int8Args
			}
		} else if k.hasMaps() {
			a = unsafe.Pointer(&(*mapped)(a).params)
		}
		l := fakeLaunch{k.name, blocks, threads, shared, s, *(*params)(a)}
		f.launches = append(f.launches, l)
		f.mu.Unlock()
		if k.hasMaps() && !f.mapsFit(k, maps, block) {
			return f.fail("cuLaunchKernel", 716)
		}
		if f.idle {
			return nil
		}
		return f.compute(k, l, block, int8)
	}
	f.LaunchDependent = f.LaunchKernel
	f.LaunchCluster = func(fn Function, blocks, threads, shared, cluster int, s StreamHandle, a unsafe.Pointer) error {
		if cluster < 2 || cluster > maxCluster || blocks%cluster != 0 {
			return f.fail("cuLaunchKernelEx", 1)
		}
		return f.LaunchKernel(fn, blocks, threads, shared, s, a)
	}
	f.LaunchDependentCluster = f.LaunchCluster
}

// parseImage reads the kernels and the plans of a cubin.
func parseImage(image []byte) (*fakeImage, error) {
	file, err := elf.NewFile(bytes.NewReader(image))
	if err != nil {
		return nil, err
	}
	symbols, err := file.Symbols()
	if err != nil {
		return nil, err
	}
	parsed := &fakeImage{map[string]bool{}, map[string][]byte{}, map[string]Pointer{}}
	for _, s := range symbols {
		switch {
		case elf.ST_TYPE(s.Info) == elf.STT_FUNC:
			parsed.functions[s.Name] = true
		case strings.HasSuffix(s.Name, "_plan"):
			data, err := file.Sections[s.Section].Data()
			if err != nil {
				return nil, err
			}
			parsed.plans[s.Name] = data[s.Value:][:s.Size]
		}
	}
	if len(parsed.functions) == 0 {
		return nil, errors.New("no kernel")
	}
	return parsed, nil
}

func (f *fakeDriver) streamCalls() {
	f.StreamCreate = func() (StreamHandle, error) {
		h, err := f.open("cuStreamCreate", "stream")
		return StreamHandle(h), err
	}
	f.StreamCreatePriority = func(int) (StreamHandle, error) {
		h, err := f.open("cuStreamCreateWithPriority", "stream")
		return StreamHandle(h), err
	}
	f.StreamDestroy = func(s StreamHandle) error { return f.shut("cuStreamDestroy", "stream", uintptr(s)) }
	f.StreamIsCapturing = func(StreamHandle) (bool, error) { return f.captures, f.inContext("cuStreamIsCapturing") }
	f.StreamGetID = func(s StreamHandle) (uint64, error) { return uint64(s) + f.generation, f.inContext("cuStreamGetId") }
	f.StreamSynchronize = func(s StreamHandle) error {
		f.drain(s)
		return f.inContext("cuStreamSynchronize")
	}
	f.StreamWaitEvent = func(_ StreamHandle, e EventHandle) error {
		f.passed(e) // enqueued work is done at once
		return f.inContext("cuStreamWaitEvent")
	}
	f.EventCreate = func() (EventHandle, error) {
		h, err := f.open("cuEventCreate", "event")
		return EventHandle(h), err
	}
	f.EventDestroy = func(e EventHandle) error { return f.shut("cuEventDestroy", "event", uintptr(e)) }
	f.EventRecord = func(e EventHandle, s StreamHandle) error {
		f.mu.Lock()
		f.marks[e] = append([]chan struct{}(nil), f.busy[s]...)
		f.mu.Unlock()
		return f.inContext("cuEventRecord")
	}
	f.EventSynchronize = func(e EventHandle) error {
		f.passed(e)
		return f.inContext("cuEventSynchronize")
	}
	f.EventElapsedTime = func(_, _ EventHandle) (float32, error) { return 1.5, f.inContext("cuEventElapsedTime") }
}

// pend keeps a stream busy with another library's work until done is called.
func (f *fakeDriver) pend(s StreamHandle) (done func()) {
	c := make(chan struct{})
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy[s] = append(f.busy[s], c)
	return func() { close(c) }
}

// drain waits until a stream is not busy.
func (f *fakeDriver) drain(s StreamHandle) {
	f.mu.Lock()
	list := f.busy[s]
	f.mu.Unlock()
	for _, c := range list {
		<-c
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.busy[s] = slices.DeleteFunc(append([]chan struct{}(nil), f.busy[s]...), func(c chan struct{}) bool { return slices.Contains(list, c) })
}

// passed waits for the work of a stream that was pending when an event was recorded.
func (f *fakeDriver) passed(e EventHandle) {
	f.mu.Lock()
	list := f.marks[e]
	f.mu.Unlock()
	for _, c := range list {
		<-c
	}
}
