package cuda

import "testing"

// OpenFakes opens so many devices of one stand-in for the driver, for tests of other rooms, and
// sees at the end that nothing leaks.
func OpenFakes(t *testing.T, devices int) (list []*Backend, fail func(call string, err error)) {
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
	return list, func(call string, err error) {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.failures[call] = err
	}
}
