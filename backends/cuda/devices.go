package cuda

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/flashkit-go/flashkit"
)

// A Device describes a GPU.
type Device struct {
	Ordinal      int    // its number, from 0, in the driver's order
	Name         string // such as NVIDIA H200
	Major, Minor int    // compute capability
	SMs          int    // streaming multiprocessors
	Memory       int    // bytes
	L2           int    // bytes
	ClockMHz     int    // of the multiprocessors, at most
	Bandwidth    int    // of the memory, bytes per second, by clock and width
	Driver       int    // CUDA version of the driver: 13000 is 13.0
	Reason       string // why no kernel runs on it, "" if kernels do
}

// String returns what a person calls the device.
func (d *Device) String() string { return fmt.Sprintf("GPU %d (%s)", d.Ordinal, d.Name) }

// ErrNoDevice is wrapped by errors of Open and its kin where the machine has no GPU, no
// driver's library, or the program was built without CUDA. A GPU that is there and cannot
// be used is another error, which a user would want to hear of.
var ErrNoDevice = errors.New("no device")

// lacking is ErrNoDevice in other words.
type lacking struct{ error }

func (l lacking) Unwrap() error      { return l.error }
func (lacking) Is(target error) bool { return target == ErrNoDevice }

// DeviceVariable is the environment variable that says which GPU Open opens.
const DeviceVariable = "FLASHKIT_DEVICE"

// Open opens the GPU whose number the environment variable FLASHKIT_DEVICE holds, the
// first one if it is not set. Numbers are the driver's, of the GPUs that
// CUDA_VISIBLE_DEVICES leaves visible. The error wraps flashkit.ErrUnavailable and says
// which of them it is: no driver library, driver too old, no device, a compute
// capability below 7.0, a device that gives no context, as a full one does, or a driver
// that does not answer for a minute.
func Open() (*Backend, error) { return OpenContext(context.Background()) }

// OpenContext is Open for a caller that waits no longer than the context lasts. At its
// deadline the driver counts as one that does not answer.
func OpenContext(ctx context.Context) (*Backend, error) {
	text := os.Getenv(DeviceVariable)
	if text == "" {
		return openDevice(ctx, 0)
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 {
		return nil, unavailable(fmt.Errorf("%s = %q: must be the number of a GPU, from 0", DeviceVariable, text))
	}
	return openDevice(ctx, n)
}

// OpenDevice opens the GPU of that number.
func OpenDevice(ordinal int) (*Backend, error) { return openDevice(context.Background(), ordinal) }

func openDevice(ctx context.Context, ordinal int) (*Backend, error) {
	b, err := answer(ctx, openLimit, func() (*Backend, error) {
		d, err := openDriver()
		if err != nil {
			return nil, err
		}
		return openWith(d, ordinal)
	}, func(b *Backend) { b.Close() })
	if err != nil {
		return nil, unavailable(err)
	}
	return b, nil
}

// Devices describes the GPUs of this machine in the driver's order, those too that no
// kernel runs on. It takes no memory of them. Its errors are those of Open.
func Devices() ([]Device, error) {
	list, err := answer(context.Background(), openLimit, func() ([]Device, error) {
		d, err := openDriver()
		if err != nil {
			return nil, err
		}
		return devicesOf(d)
	}, func([]Device) {})
	if err != nil {
		return nil, unavailable(err)
	}
	return list, nil
}

func devicesOf(d *Driver) ([]Device, error) {
	n, driver, err := start(d)
	if err != nil {
		return nil, err
	}
	list := make([]Device, n)
	for i := range list {
		if list[i], err = look(d, i); err != nil {
			return nil, err
		}
		list[i].Driver = driver
	}
	return list, nil
}

func unavailable(err error) error {
	return fmt.Errorf("cuda: %w: %w", flashkit.ErrUnavailable, err)
}

// describe looks at a device and refuses those that no kernel could run on.
func describe(d *Driver, ordinal int) (Device, error) {
	n, driver, err := start(d)
	if err != nil {
		return Device{Ordinal: ordinal}, err
	}
	if ordinal < 0 || ordinal >= n {
		return Device{Ordinal: ordinal}, fmt.Errorf("no device: number %d of %d", ordinal, n)
	}
	dev, err := look(d, ordinal)
	dev.Driver = driver
	if err == nil && dev.Reason != "" {
		err = errors.New(dev.Reason)
	}
	return dev, err
}

// start initializes the driver, and returns how many devices it has, at least one, and
// its version.
func start(d *Driver) (devices, version int, err error) {
	if err := d.Init(); err != nil {
		var e *Error
		if errors.As(err, &e) && e.Code == codeNoDevice {
			return 0, 0, fmt.Errorf("%w: %w", ErrNoDevice, err)
		}
		return 0, 0, err
	}
	if version, err = d.DriverGetVersion(); err != nil {
		return 0, 0, err
	}
	if version < oldestDriver {
		return 0, 0, fmt.Errorf("driver too old: it supports CUDA %s; the kernels require %s", cudaVersion(version), cudaVersion(oldestDriver))
	}
	if devices, err = d.DeviceGetCount(); err == nil && devices == 0 {
		err = fmt.Errorf("%w: the driver sees none", ErrNoDevice)
	}
	return devices, version, err
}

// cudaVersion returns a version as people write it.
func cudaVersion(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// look asks the driver what device number i is, and says what kernels would miss there.
func look(d *Driver, i int) (dev Device, err error) {
	dev.Ordinal = i
	if dev.Name, err = d.DeviceGetName(i); err != nil {
		return dev, err
	}
	if dev.Memory, err = d.DeviceTotalMem(i); err != nil {
		return dev, err
	}
	var memoryClock, bus, pools, unified int
	for _, a := range []struct {
		to *int
		of Attribute
	}{
		{&dev.Major, attrMajor}, {&dev.Minor, attrMinor}, {&dev.SMs, attrSMs}, {&dev.L2, attrL2}, {&dev.ClockMHz, attrClockRate},
		{&memoryClock, attrMemoryClock}, {&bus, attrMemoryBus}, {&pools, attrMemoryPools}, {&unified, attrUnifiedAddressing},
	} {
		if *a.to, err = d.DeviceAttribute(i, a.of); err != nil {
			return dev, err
		}
	}
	dev.ClockMHz /= 1000
	dev.Bandwidth = 2 * memoryClock * 1000 * bus / 8
	switch {
	case dev.Major < 7:
		dev.Reason = fmt.Sprintf("architecture below sm_70: %s has compute capability %d.%d", dev.Name, dev.Major, dev.Minor)
	case pools == 0 || unified == 0:
		dev.Reason = dev.Name + " has no memory pools or no unified addresses"
	}
	return dev, nil
}
