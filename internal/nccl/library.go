//go:build linux && (amd64 || arm64) && !nocuda

package nccl

import (
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/flashkit-go/flashkit/internal/sharedlib"
)

// calls are the addresses of the library's functions, in the order of the array names.
type calls struct {
	getVersion, errorString, lastError, uniqueID   uintptr
	initRank, asyncError, finalize, destroy, abort uintptr
	groupStart, groupEnd, send, receive, split     uintptr
}

var names = [...]string{
	"ncclGetVersion", "ncclGetErrorString", "ncclGetLastError", "ncclGetUniqueId",
	"ncclCommInitRankConfig", "ncclCommGetAsyncError", "ncclCommFinalize", "ncclCommDestroy", "ncclCommAbort",
	"ncclGroupStart", "ncclGroupEnd", "ncclSend", "ncclRecv", "ncclCommSplit",
}

// library is a loaded NCCL library.
type library struct {
	name    string
	version int
	calls
	init func(c *Comm, ranks int32, id byValue, rank int32, o *config) int32
}

// byValue is an ID as a C struct.
type byValue struct{ internal ID }

// minVersion is the first version with nonblocking communicators and a limit of channels: 2.18.
const minVersion = 21800

func load(name string) (Library, error) {
	tried := []string{name}
	if name == "" {
		tried = []string{"libnccl.so.2", "libnccl.so"}
	}
	var errs []error
	for _, name := range tried {
		l, err := open(name)
		if err == nil {
			return l, nil
		}
		errs = append(errs, err)
	}
	return nil, fmt.Errorf("%w: %w", ErrMissing, errors.Join(errs...))
}

func open(name string) (*library, error) {
	runtime.LockOSThread() // dlerror's text belongs to the calling thread
	defer runtime.UnlockOSThread()
	if err := sharedlib.Truncated(name); err != nil {
		return nil, err
	}
	handle, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	l := &library{name: name}
	addresses := (*[len(names)]uintptr)(unsafe.Pointer(&l.calls))
	for i, symbol := range names {
		if addresses[i], err = purego.Dlsym(handle, symbol); err != nil {
			return nil, fmt.Errorf("%s is no NCCL of version 2.18 or later: %s is missing", name, symbol)
		}
	}
	version := new(int32)
	if err := l.call("ncclGetVersion", l.getVersion, uintptr(unsafe.Pointer(version))); err != nil {
		return nil, err
	}
	if l.version = int(*version); l.version < minVersion {
		return nil, fmt.Errorf("%s is NCCL %d.%d; must be 2.18 or later", name, l.version/10000, l.version/100%100)
	}
	purego.RegisterFunc(&l.init, l.initRank) // passes the ID, a struct, by value according to the ABI
	return l, nil
}

func (l *library) Name() string { return l.name }
func (l *library) Version() int { return l.version }

// call calls a C function. The compiler keeps the memory behind args in place until call returns.
// The result "in progress" is not an error.
//
//go:uintptrescapes
func (l *library) call(name string, f uintptr, args ...uintptr) error {
	r, _, _ := purego.SyscallN(f, args...)
	return l.check(name, int32(r))
}

func (l *library) check(name string, code int32) error {
	if code == 0 || code == inProgress {
		return nil
	}
	text, _, _ := purego.SyscallN(l.errorString, uintptr(code))
	last, _, _ := purego.SyscallN(l.lastError, 0)
	e := &Error{Call: name, Code: int(code), Text: goString(text)}
	if more := goString(last); more != "" {
		e.Text += ": " + more
	}
	return e
}

// goString copies a C string.
func goString(p uintptr) string {
	if p == 0 {
		return ""
	}
	at := *(**byte)(unsafe.Pointer(&p))
	n := 0
	for *(*byte)(unsafe.Add(unsafe.Pointer(at), n)) != 0 {
		n++
	}
	return string(unsafe.Slice(at, n))
}

func (l *library) UniqueID() (ID, error) {
	id := new(ID)
	err := l.call("ncclGetUniqueId", l.uniqueID, uintptr(unsafe.Pointer(id)))
	return *id, err
}

// config is ncclConfig_t of NCCL 2.18. Later libraries treat missing fields as unset.
type config struct {
	size            uint64
	magic, version  uint32
	blocking        int32
	cgaClusterSize  int32
	minCTAs         int32
	maxCTAs         int32
	netName         uintptr
	splitShare, pad int32
}

const inProgress = 7

const (
	configMagic = 0xcafebeef
	unset       = math.MinInt32
)

// cells keep the memory of all communicators, because the library may write to this memory long
// after Init returns.
var (
	cells   []*Comm
	cellsMu sync.Mutex
)

func cell() *Comm {
	c := new(Comm)
	cellsMu.Lock()
	defer cellsMu.Unlock()
	cells = append(cells, c)
	return c
}

// configOf returns the configuration of every communicator. Communicators made by Split share the
// resources of their parent.
func configOf(channels int) *config {
	return &config{
		size: uint64(unsafe.Sizeof(config{})), magic: configMagic, version: minVersion,
		blocking: 0, cgaClusterSize: 0, minCTAs: unset, maxCTAs: int32(channels), netName: 0, splitShare: 1, pad: 0,
	}
}

func (l *library) Init(ranks int, id ID, rank, channels int) (Comm, error) {
	c, o := cell(), configOf(channels)
	code := l.init(c, int32(ranks), byValue{id}, int32(rank), o)
	runtime.KeepAlive(o)
	return *c, l.check("ncclCommInitRankConfig", code)
}

func (l *library) Split(c Comm, rank, channels int) (*Comm, error) {
	split, o := cell(), configOf(channels)
	o.blocking = 1
	const color = 0 // the same on all ranks
	return split, l.call("ncclCommSplit", l.split, uintptr(c), color, uintptr(rank), uintptr(unsafe.Pointer(split)), uintptr(unsafe.Pointer(o)))
}

func (l *library) Async(c Comm) (done bool, err error) {
	code := new(int32)
	if err := l.call("ncclCommGetAsyncError", l.asyncError, uintptr(c), uintptr(unsafe.Pointer(code))); err != nil {
		return false, err
	}
	return *code == 0, l.check("NCCL", *code)
}

func (l *library) Group(f func() error) error {
	if err := l.call("ncclGroupStart", l.groupStart); err != nil {
		return err
	}
	err := f()
	return errors.Join(err, l.call("ncclGroupEnd", l.groupEnd))
}

const typeBytes = 1

func (l *library) Send(from uintptr, bytes, to int, c Comm, s Stream) error {
	return l.call("ncclSend", l.send, from, uintptr(bytes), typeBytes, uintptr(to), uintptr(c), uintptr(s))
}

func (l *library) Receive(to uintptr, bytes, from int, c Comm, s Stream) error {
	return l.call("ncclRecv", l.receive, to, uintptr(bytes), typeBytes, uintptr(from), uintptr(c), uintptr(s))
}

func (l *library) Finalize(c Comm) error {
	return l.call("ncclCommFinalize", l.finalize, uintptr(c))
}

func (l *library) Destroy(c Comm) error { return l.call("ncclCommDestroy", l.destroy, uintptr(c)) }
func (l *library) Abort(c Comm) error   { return l.call("ncclCommAbort", l.abort, uintptr(c)) }
