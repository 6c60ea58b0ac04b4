package flashkit_test

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
)

// A buffer is device memory of a backend.
type buffer struct{ address uintptr }

// Device returns the device's name.
func (buffer) Device() string { return "toy:0" }

// A backend's constructor of tensors. The host never reads the address.
func ExampleOnDevice() {
	x := flashkit.OnDevice(buffer{0x1000}, flashkit.Float16, 0x1000, 64, 1, 1, 4, 16)
	fmt.Println(x.Owner().Device(), x.Shape(), x.Address() == 0x1000, x.Uint16s() == nil)
	// Output: toy:0 [1 1 4 16] true true
}
