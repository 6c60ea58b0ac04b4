//go:build linux && (amd64 || arm64) && !nocuda

package cuda

import (
	"runtime"

	"github.com/ebitengine/purego"

	"github.com/flashkit-go/flashkit/internal/sharedlib"
)

type library uintptr

const libraryName = "libcuda.so.1"

// brokenLibrary returns what the loader does not survive.
func brokenLibrary() error { return sharedlib.Truncated(libraryName) }

// openLibrary loads the library that the driver package installs. It stays
// loaded: the driver does not survive being unloaded. The loader keeps the text of an
// error for the thread that caused it.
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
