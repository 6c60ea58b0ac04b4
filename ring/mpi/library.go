//go:build linux && (amd64 || arm64) && !nocuda

package mpi

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/hostmem"
	"github.com/flashkit-go/flashkit/internal/sharedlib"
)

// Constants of MPI's standard ABI, mpi_abi.h. Other ABIs have other values.
const (
	commWorld      = 0x101
	typeByte       = 0x247
	errorsReturn   = 0x143
	threadMultiple = 4096
	statusIgnore   = 0
)

// calls are the addresses of the library's functions, in the order of the array names.
type calls struct {
	abiVersion, initThread, setHandler, commRank, commSize, finalize uintptr
	isend, irecv, iallgather, test                                   uintptr
	hvector, commit, free, errorString, cFinalize                    uintptr
}

// names are the exported names of the functions in calls. Only libraries with the standard ABI have
// the first function.
var names = [...]string{
	"MPI_Abi_get_version", "MPI_Init_thread", "MPI_Comm_set_errhandler", "MPI_Comm_rank", "MPI_Comm_size", "MPI_Finalize",
	"MPI_Isend", "MPI_Irecv", "MPI_Iallgather", "MPI_Test",
	"MPI_Type_create_hvector", "MPI_Type_commit", "MPI_Type_free", "MPI_Error_string", "__cxa_finalize",
}

// A library is a loaded MPI library.
type library struct {
	name string
	calls
}

// load opens the named library. If name is empty, it opens the library that the system's loader
// finds.
func load(name string) (*library, error) {
	runtime.LockOSThread() // dlerror's text belongs to the calling thread
	defer runtime.UnlockOSThread()
	tried := []string{name}
	if name == "" {
		tried = []string{"libmpi_abi.so.1", "libmpi_abi.so"}
	}
	var errs []error
	for _, name := range tried {
		if err := sharedlib.Truncated(name); err != nil {
			errs = append(errs, err)
			continue
		}
		handle, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_GLOBAL)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		l := &library{name: name}
		addresses := (*[len(names)]uintptr)(unsafe.Pointer(&l.calls))
		for i, symbol := range names {
			if addresses[i], err = purego.Dlsym(handle, symbol); err != nil {
				err = fmt.Errorf("%s does not have the standard ABI of MPI: %s is missing", name, symbol)
				break
			}
		}
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("%w: %w", ErrNoMPI, errors.Join(errs...))
}

// call calls a C function. The compiler keeps the memory behind args in place until the C function
// returns.
//
//go:uintptrescapes
func (l *library) call(name string, f uintptr, args ...uintptr) error {
	r, _, _ := purego.SyscallN(f, args...)
	if code := int32(r); code != 0 {
		return fmt.Errorf("%s: %s", name, l.text(code))
	}
	return nil
}

func (l *library) text(code int32) string {
	buf, n := make([]byte, 512), new(int32)
	purego.SyscallN(l.errorString, uintptr(uint32(code)), uintptr(unsafe.Pointer(&buf[0])), uintptr(unsafe.Pointer(n)))
	runtime.KeepAlive(buf)
	return string(buf[:max(0, min(int(*n), len(buf)))])
}

// thread initializes and finalizes MPI. MPI requires the same thread for both.
func (g *Group) thread(begun chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	err := g.begin()
	begun <- err
	if err != nil {
		return
	}
	<-g.leave
	err = g.lib.call("MPI_Finalize", g.lib.finalize)
	// MPICH reports the regular end of a rank to mpiexec in exit handlers, which a Go program does
	// not run. Without this report mpiexec would end the other ranks.
	purego.SyscallN(g.lib.cFinalize, 0)
	g.left <- err
}

func (g *Group) begin() error {
	l := g.lib
	level, rank, size := new(int32), new(int32), new(int32)
	if err := l.call("MPI_Init_thread", l.initThread, 0, 0, threadMultiple, uintptr(unsafe.Pointer(level))); err != nil {
		return err
	}
	if *level < threadMultiple {
		return fmt.Errorf("ring/mpi: %s has the thread level %d; must be MPI_THREAD_MULTIPLE", l.name, *level)
	}
	err := errors.Join(
		l.call("MPI_Comm_set_errhandler", l.setHandler, commWorld, errorsReturn),
		l.call("MPI_Comm_rank", l.commRank, commWorld, uintptr(unsafe.Pointer(rank))),
		l.call("MPI_Comm_size", l.commSize, commWorld, uintptr(unsafe.Pointer(size))))
	g.rank, g.size = int(*rank), int(*size)
	return err
}

// An exchange is a set of pending requests with their datatypes and pinned memory.
type exchange struct {
	l        *library
	requests []uintptr
	types    []uintptr
	pinned   runtime.Pinner
	done     chan error
	stop     atomic.Bool // abandon the requests
	urgent   atomic.Bool // Wait has been called
}

func (l *library) newExchange() *exchange { return &exchange{l: l, done: make(chan error, 1)} }

func (x *exchange) gather(mine, all []byte) error {
	request := new(uintptr)
	from, to := unsafe.SliceData(mine), unsafe.SliceData(all)
	if len(mine) == 0 {
		return nil
	}
	x.pinned.Pin(from)
	x.pinned.Pin(to)
	n := uintptr(len(mine))
	err := x.l.call("MPI_Iallgather", x.l.iallgather, uintptr(unsafe.Pointer(from)), n, typeByte, uintptr(unsafe.Pointer(to)), n, typeByte, commWorld, uintptr(unsafe.Pointer(request)))
	if err == nil {
		x.requests = append(x.requests, *request)
	}
	return err
}

// add starts sending or receiving a tensor.
func (x *exchange) add(send bool, peer int, t flashkit.Tensor) error {
	at := address(t)
	if at == nil {
		return nil
	}
	x.pinned.Pin(at)
	kind, err := x.typeOf(t)
	if err != nil {
		return err
	}
	name, f := "MPI_Irecv", x.l.irecv
	if send {
		name, f = "MPI_Isend", x.l.isend
	}
	request := new(uintptr)
	if err := x.l.call(name, f, uintptr(at), 1, kind, uintptr(peer), 0, commWorld, uintptr(unsafe.Pointer(request))); err != nil {
		return err
	}
	x.requests = append(x.requests, *request)
	return nil
}

// address returns the address of a host tensor's first element, or nil for a tensor without
// elements.
func address(t flashkit.Tensor) unsafe.Pointer {
	if s := t.Shape(); s[0] == 0 || s[1] == 0 || s[2] == 0 || s[3] == 0 {
		return nil
	}
	return unsafe.Pointer(unsafe.SliceData(hostmem.Bytes(&t)))
}

// typeOf returns a tensor's MPI datatype. It nests three datatypes: rows of bytes, heads of rows,
// batches of heads. Each dimension has its own datatype with its own count, so that no tensor
// overflows MPI's int.
func (x *exchange) typeOf(t flashkit.Tensor) (kind uintptr, err error) {
	s, strides, size := t.Shape(), t.Strides(), t.DType().Size()
	kind = typeByte
	block := s[3] * size
	for d := 2; d >= 0; d-- {
		made := new(uintptr)
		if err := x.l.call("MPI_Type_create_hvector", x.l.hvector, uintptr(s[d]), uintptr(block), uintptr(strides[d]*size), kind, uintptr(unsafe.Pointer(made))); err != nil {
			return 0, err
		}
		x.types = append(x.types, *made)
		kind, block = *made, 1
	}
	whole := new(uintptr)
	*whole = kind
	return kind, x.l.call("MPI_Type_commit", x.l.commit, uintptr(unsafe.Pointer(whole)))
}

func (x *exchange) free() {
	for _, kind := range x.types {
		t := new(uintptr)
		*t = kind
		x.l.call("MPI_Type_free", x.l.free, uintptr(unsafe.Pointer(t))) // fails only for a type that was never made
	}
	x.pinned.Unpin()
}

// The shortest and longest sleep between two polls. Messages advance only during polls, but polls
// take time from the kernels.
const (
	minNap = 20 * time.Microsecond
	maxNap = 400 * time.Microsecond
)

// watch polls the requests until they are done.
func (x *exchange) watch() {
	nap, looks := minNap, 0
	for {
		err := x.poll()
		if err != nil || len(x.requests) == 0 || x.stop.Load() {
			x.done <- err
			return
		}
		switch looks++; {
		case x.urgent.Load() && looks < 100:
			runtime.Gosched()
		case x.urgent.Load():
			time.Sleep(minNap)
		default:
			time.Sleep(nap)
			nap = min(nap*2, maxNap)
		}
	}
}

// poll advances messages and drops completed requests. It tests each request alone: Testall of
// MPICH 5.0.2 corrupts handles of pending requests.
func (x *exchange) poll() error {
	left := x.requests[:0]
	for i := range x.requests {
		flag := new(int32)
		if err := x.l.call("MPI_Test", x.l.test, uintptr(unsafe.Pointer(&x.requests[i])), uintptr(unsafe.Pointer(flag)), statusIgnore); err != nil {
			return err
		}
		if *flag == 0 {
			left = append(left, x.requests[i])
		}
	}
	x.requests = left
	return nil
}
