//go:build linux && (amd64 || arm64) && !nocuda

package cuda

import (
	"runtime"

	"github.com/ebitengine/purego"

	"github.com/flashkit-go/flashkit/internal/sharedlib"
)

type library uintptr

const libraryName = "libcuda.so.1"

// brokenLibrary returns an error if the library's file is truncated, which would crash the loader.
func brokenLibrary() error { return sharedlib.Truncated(libraryName) }

// openLibrary loads the library that the driver package installs. The library stays loaded, because
// a program crashes if it unloads the driver. The thread is locked, because the loader stores the
// text of an error per thread.
func openLibrary() (library, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	l, err := purego.Dlopen(libraryName, purego.RTLD_NOW|purego.RTLD_LOCAL)
	return library(l), err
}

func (l library) lookup(name string) (uintptr, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return purego.Dlsym(uintptr(l), name)
}
