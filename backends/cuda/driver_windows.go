//go:build windows && amd64 && !nocuda

package cuda

import "golang.org/x/sys/windows"

type library struct{ dll *windows.DLL }

func brokenLibrary() error { return nil }

// openLibrary loads the driver's library from the system folder.
func openLibrary() (library, error) {
	l := windows.NewLazySystemDLL("nvcuda.dll")
	if err := l.Load(); err != nil {
		return library{}, err
	}
	return library{&windows.DLL{Name: l.Name, Handle: windows.Handle(l.Handle())}}, nil
}

func (l library) lookup(name string) (uintptr, error) {
	p, err := l.dll.FindProc(name)
	if err != nil {
		return 0, err
	}
	return p.Addr(), nil
}
