package cuda

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/flashkit-go/flashkit"
)

// DeviceVariable is the environment variable with the number of the GPU that Open opens.
const DeviceVariable = "FLASHKIT_DEVICE"

// Open opens the GPU whose number is in the environment variable FLASHKIT_DEVICE. Without that
// variable it opens GPU 0. The driver numbers the GPUs that CUDA_VISIBLE_DEVICES leaves visible,
// from 0. The error wraps flashkit.ErrUnavailable and names the reason: no driver library, driver
// too old, no device, compute capability below 7.0, no context (as on a full device), or no answer
// for a minute.
func Open() (*Backend, error) { return OpenContext(context.Background()) }

// OpenContext opens the same GPU as Open, but waits at most until ctx ends. If the deadline of ctx
// passes, the error wraps ErrSilent, as for a driver that does not answer.
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

// OpenDevice opens the GPU with the given number in the driver's order, from 0. Errors are as for
// Open.
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

// OpenWith opens a GPU through a Driver of the caller, such as a fake in a test. It sets no time
// limit. Errors are as for Open.
func OpenWith(d *Driver, ordinal int) (*Backend, error) {
	b, err := openWith(d, ordinal)
	if err != nil {
		return nil, unavailable(err)
	}
	return b, nil
}

func openWith(d *Driver, ordinal int) (*Backend, error) {
	b := &Backend{drv: d, args: sync.Pool{New: func() any { return new(arguments) }}, staging: newStaging()}
	var err error
	if b.dev, err = usableDevice(d, ordinal); err != nil {
		return nil, err
	}
	if b.context, err = d.DevicePrimaryCtxRetain(ordinal); err != nil {
		return nil, fmt.Errorf("no context on %s: %w", b.dev.Name, err)
	}
	if err := d.KeepFreed(ordinal); err != nil {
		return nil, errors.Join(err, d.DevicePrimaryCtxRelease(ordinal))
	}
	b.images.arch = b.dev.Major*10 + b.dev.Minor
	return b, nil
}

// Devices describes the GPUs of this machine in the driver's order, including GPUs that cannot run
// a kernel. It allocates no memory on the GPUs. Errors are as for Open.
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

func unavailable(err error) error {
	return fmt.Errorf("cuda: %w: %w", flashkit.ErrUnavailable, err)
}

// Close frees the backend's resources on the device. No call may be running. Free all buffers,
// streams and events before Close. Later use of the backend is an error. If the driver does not
// answer within a few seconds, Close returns an error. A second Close does nothing.
func (b *Backend) Close() error {
	if b.closed.Swap(true) {
		return nil
	}
	_, err := answer(context.Background(), closeLimit, func() (none struct{}, err error) { return none, b.release() }, func(struct{}) {})
	if errors.Is(err, ErrSilent) {
		return fmt.Errorf("cuda: close: %w", err)
	}
	return err
}

func (b *Backend) release() error {
	err := b.within(func() error {
		return errors.Join(b.staging.close(b.drv), b.foreign.close(b.drv), b.images.close(b.drv))
	})
	return errors.Join(err, b.drv.DevicePrimaryCtxRelease(b.dev.Ordinal))
}
