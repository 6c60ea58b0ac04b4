//go:build linux && (amd64 || arm64) && !nocuda

package cublas

import (
	"errors"
	"fmt"
	"math"
	"path/filepath"
	"runtime"
	"strings"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/flashkit-go/flashkit/internal/sharedlib"
)

// calls are the addresses of the library's functions, in the order of the array names.
type calls struct{ create, destroy, setStream, setMath, version, sgemm, text uintptr }

var names = [...]string{
	"cublasCreate_v2", "cublasDestroy_v2", "cublasSetStream_v2", "cublasSetMathMode", "cublasGetVersion_v2", "cublasSgemm_v2",
	"cublasGetStatusString",
}

type library struct {
	name string
	calls
}

// Open loads the library of that name. If name is empty, Open tries the names of CUDA 13 and 12.
// The library stays loaded.
func Open(name string) (Library, error) {
	tried := []string{name}
	if name == "" {
		tried = []string{"libcublas.so.13", "libcublas.so.12"}
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
	if folder, file := filepath.Split(name); folder != "" { // the library needs libcublasLt, perhaps in the same folder
		if lt := folder + strings.Replace(file, "libcublas", "libcublasLt", 1); sharedlib.Truncated(lt) == nil {
			purego.Dlopen(lt, purego.RTLD_NOW|purego.RTLD_GLOBAL) // an error returns with the library's
		}
	}
	handle, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
	if err != nil {
		return nil, err
	}
	l := &library{name: name}
	addresses := (*[len(names)]uintptr)(unsafe.Pointer(&l.calls))
	for i, symbol := range names {
		if addresses[i], err = purego.Dlsym(handle, symbol); err != nil {
			return nil, fmt.Errorf("%s is no cuBLAS of CUDA 12 or later: %s is missing", name, symbol)
		}
	}
	return l, nil
}

func (l *library) Name() string { return l.name }

// call calls a C function. The compiler keeps the memory behind args in place until call returns.
//
//go:uintptrescapes
func (l *library) call(name string, f uintptr, args ...uintptr) error {
	r, _, _ := purego.SyscallN(f, args...)
	return l.check(name, int32(r))
}

func (l *library) check(name string, code int32) error {
	if code == 0 {
		return nil
	}
	text, _, _ := purego.SyscallN(l.text, uintptr(code))
	return &Error{Call: strings.TrimSuffix(name, "_v2"), Code: int(code), Text: goString(text)}
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

// Values of the library's enumerations.
const (
	plain       = 0 // CUBLAS_OP_N
	transposed  = 1 // CUBLAS_OP_T
	defaultMath = 0 // CUBLAS_DEFAULT_MATH: float32 stays float32
)

// A handle is a cublasHandle_t, with the memory of a call.
type handle struct {
	*library
	h       uintptr
	version int
	one     float32 // factor of A W^T
	old     float32 // factor of C
	args    [14]uintptr
}

func (l *library) NewHandle(stream uintptr) (Handle, error) {
	h, at, version := &handle{library: l, one: 1}, new(uintptr), new(int32)
	if err := l.call(names[0], l.create, uintptr(unsafe.Pointer(at))); err != nil {
		return nil, err
	}
	h.h = *at
	err := l.call(names[2], l.setStream, h.h, stream)
	if err == nil {
		err = l.call(names[3], l.setMath, h.h, defaultMath)
	}
	if err == nil {
		err = l.call(names[4], l.calls.version, h.h, uintptr(unsafe.Pointer(version)))
	}
	if err != nil {
		return nil, errors.Join(err, h.Close())
	}
	h.version = int(*version)
	return h, nil
}

func (h *handle) Version() int { return h.version }
func (h *handle) Close() error { return h.call(names[1], h.destroy, h.h) }

// Multiply computes the transposed product, because cuBLAS reads matrices by columns: C^T = W A^T.
func (h *handle) Multiply(p *Product) error {
	if max(p.Rows, p.In, p.Out, p.AStride, p.CStride) > math.MaxInt32 {
		return fmt.Errorf("cuBLAS: a product of %d rows, %d to %d features, is beyond 32 bits", p.Rows, p.In, p.Out)
	}
	if h.old = 0; p.Add {
		h.old = 1
	}
	h.args = [...]uintptr{
		h.h, transposed, plain, uintptr(p.Out), uintptr(p.Rows), uintptr(p.In), uintptr(unsafe.Pointer(&h.one)),
		p.W, uintptr(p.In), p.A, uintptr(p.AStride), uintptr(unsafe.Pointer(&h.old)), p.C, uintptr(p.CStride),
	}
	r, _, _ := purego.SyscallN(h.sgemm, h.args[:]...)
	return h.check(names[5], int32(r))
}
