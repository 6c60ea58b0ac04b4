//go:build linux && (amd64 || arm64) && !nocuda

package cuda

import "github.com/ebitengine/purego"

type library uintptr

// openLibrary loads the library that the driver package installs. It stays
// loaded: the driver does not survive being unloaded.
func openLibrary() (library, error) {
	l, err := purego.Dlopen("libcuda.so.1", purego.RTLD_NOW|purego.RTLD_LOCAL)
	return library(l), err
}

func (l library) lookup(name string) (uintptr, error) { return purego.Dlsym(uintptr(l), name) }
