package cuda

import "testing"

// Fakes is a stand-in for the driver, for tests of other packages.
type Fakes struct{ f *fakeDriver }

// Fail makes a call return an error from now on, or none.
func (x Fakes) Fail(call string, err error) {
	x.f.mu.Lock()
	defer x.f.mu.Unlock()
	x.f.failures[call] = err
}

// Move copies device memory.
func (x Fakes) Move(to, from uintptr, bytes int) error {
	dst, ok := x.f.at(Pointer(to))
	src, ok2 := x.f.at(Pointer(from))
	if !ok || !ok2 || bytes > len(dst) || bytes > len(src) {
		return x.f.fail("copy", 700)
	}
	copy(dst[:bytes], src)
	return nil
}

// Pend keeps a stream busy until done is called.
func (x Fakes) Pend(stream uintptr) (done func()) { return x.f.pend(StreamHandle(stream)) }

// OpenFakes opens that many devices of one stand-in for the driver, for tests of other packages,
// and checks for leaks at the end.
func OpenFakes(t *testing.T, devices int) (list []*Backend, fakes Fakes) {
	f := newFake()
	f.devices = devices
	for i := range devices {
		b, err := OpenWith(&f.Driver, i)
		if err != nil {
			t.Fatal(err)
		}
		list = append(list, b)
	}
	t.Cleanup(func() {
		for _, b := range list {
			if err := b.Close(); err != nil {
				t.Error(err)
			}
		}
		if left := f.leaks(); len(left) > 0 {
			t.Errorf("not given back: %v", left)
		}
	})
	return list, Fakes{f}
}
