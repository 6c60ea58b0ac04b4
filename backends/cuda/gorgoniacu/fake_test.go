package gorgoniacu_test

import (
	"strings"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
)

// paramBytes is the part of a kernel's parameter that the fake keeps: struct Params of
// kernels/params.cuh.
const paramBytes = 416

// Functions of fake/fake.c, if the loaded libcuda is the fake.
var fakeLibrary struct {
	Log    func() string
	Params func() unsafe.Pointer
	Fail   func(call string, code int32)
	Reset  func()
}

// isFake reports whether the program runs on the fake libcuda, and finds its
// functions.
func isFake() bool {
	if _, err := purego.Dlsym(purego.RTLD_DEFAULT, "fake_log"); err != nil {
		return false
	}
	for name, f := range map[string]any{
		"fake_log": &fakeLibrary.Log, "fake_params": &fakeLibrary.Params, "fake_fail": &fakeLibrary.Fail, "fake_reset": &fakeLibrary.Reset,
	} {
		purego.RegisterLibFunc(f, purego.RTLD_DEFAULT, name)
	}
	return true
}

// A fake is the fake libcuda, for one test.
type fake struct{}

func newFake(t testing.TB) fake {
	if !isFake() {
		t.Skip("the loaded libcuda is no fake: run make test")
	}
	fakeLibrary.Reset()
	t.Cleanup(fakeLibrary.Reset)
	return fake{}
}

// calls returns the calls since the last time, with their arguments.
func (fake) calls() []string {
	all := strings.FieldsFunc(fakeLibrary.Log(), func(r rune) bool { return r == '\n' })
	fakeLibrary.Reset()
	return all
}

// fail makes a call fail until calls is called.
func (fake) fail(call string, code int) { fakeLibrary.Fail(call, int32(code)) }

// params returns the parameter of the last launch.
func (fake) params() []byte {
	return append([]byte(nil), unsafe.Slice((*byte)(fakeLibrary.Params()), paramBytes)...)
}
