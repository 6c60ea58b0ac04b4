package cuda

import (
	"errors"
	"fmt"
)

// A Device is a description of a GPU.
type Device struct {
	Ordinal      int    // number in the driver's order, from 0
	Name         string // such as NVIDIA H200
	Major, Minor int    // compute capability: 9, 0 is sm_90
	SMs          int    // streaming multiprocessors
	Memory       int    // bytes of device memory
	L2           int    // bytes of the L2 cache
	ClockMHz     int    // maximum clock of the multiprocessors
	Bandwidth    int    // peak rate of device memory in bytes per second, from its clock and bus width
	Driver       int    // CUDA version of the driver: 13000 is 13.0
	Reason       string // why OpenDevice refuses the device, "" if it does not
}

// String returns the device's number and name, such as GPU 0 (NVIDIA H200).
func (d *Device) String() string { return fmt.Sprintf("GPU %d (%s)", d.Ordinal, d.Name) }

func devicesOf(d *Driver) ([]Device, error) {
	n, driver, err := start(d)
	if err != nil {
		return nil, err
	}
	list := make([]Device, n)
	for i := range list {
		if list[i], err = queryDevice(d, i); err != nil {
			return nil, err
		}
		list[i].Driver = driver
	}
	return list, nil
}

// usableDevice returns the description of a device, or an error if the backend cannot open it.
func usableDevice(d *Driver, ordinal int) (Device, error) {
	n, driver, err := start(d)
	if err != nil {
		return Device{Ordinal: ordinal}, err
	}
	if ordinal < 0 || ordinal >= n {
		return Device{Ordinal: ordinal}, fmt.Errorf("no device: number %d of %d", ordinal, n)
	}
	dev, err := queryDevice(d, ordinal)
	dev.Driver = driver
	if err == nil && dev.Reason != "" {
		err = errors.New(dev.Reason)
	}
	return dev, err
}

// start initializes the driver. It returns the number of devices, at least one, and the driver's
// version.
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

// oldestDriver is the CUDA version of the oldest driver that loads the images.
const oldestDriver = 13000

func cudaVersion(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }

// queryDevice returns the description of device i. If no kernel can run on the device, the field
// Reason has the cause.
func queryDevice(d *Driver, i int) (dev Device, err error) {
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
