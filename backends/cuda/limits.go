package cuda

import (
	"errors"
	"time"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// limitArgs is struct Limits of kernels/limits.cuh.
type limitArgs struct {
	from, to Pointer
	words    int64
	rounds   int32
}

// Peak measures the maximum multiply-add rate of the device in FLOP/s, with the instructions that
// the attention kernels use for the type, on nonzero numbers. It returns the best of several tries,
// which together take some tenths of a second, and the name of the instructions. Under a power
// limit, the sustained rate is lower.
func (b *Backend) Peak(t flashkit.DType) (rate float64, instructions string, err error) {
	file := "limits"
	switch {
	case t == flashkit.Float32:
		instructions = "fma"
	case b.images.arch == 90:
		file, instructions = "limits_sm90", "wgmma"
	default:
		instructions = "mma.sync"
	}
	err = b.limit(file, file+"_"+t.String(), func(f *function, timed func(*limitArgs) (time.Duration, error)) error {
		a := &limitArgs{rounds: 1 << 10}
		for tries := 0; tries < 5; {
			took, err := timed(a)
			if err != nil {
				return err
			}
			if a.rounds < 1<<28 && took < 10*time.Millisecond { // make the launch negligible
				a.rounds *= 2
				continue
			}
			operations := float64(f.rows) * 1e3 * float64(a.rounds) * float64(f.keys*b.dev.SMs)
			rate = max(rate, operations/took.Seconds())
			tries++
		}
		return nil
	})
	return rate, instructions, err
}

// CopyRate measures the maximum rate of a copy kernel in device memory, as bytes read and written
// per second: the best of several tries.
func (b *Backend) CopyRate() (rate float64, err error) {
	bytes := min(512<<20, b.dev.Memory/8) &^ (granule - 1)
	err = b.limit("limits", "limits_copy", func(_ *function, timed func(*limitArgs) (time.Duration, error)) error {
		from, err := b.Alloc(bytes)
		if err != nil {
			return err
		}
		to, err := b.Alloc(bytes)
		if err != nil {
			return errors.Join(err, from.Free())
		}
		const pattern = 0x3f9d1c35
		err = b.do(func() error { return b.drv.MemsetD32Async(from.address, pattern, bytes/4, 0) })
		for range 8 {
			var took time.Duration
			if err == nil {
				took, err = timed(&limitArgs{from: from.address, to: to.address, words: int64(bytes) / 16})
			}
			if err == nil {
				rate = max(rate, 2*float64(bytes)/took.Seconds())
			}
		}
		return errors.Join(err, from.Free(), to.Free())
	})
	return rate, err
}

// limit loads a kernel from an image file. It passes the kernel and a function `timed` to measure.
// The function `timed` launches the kernel on all multiprocessors, and returns the kernel's time on
// the device.
func (b *Backend) limit(file, name string, measure func(f *function, timed func(*limitArgs) (time.Duration, error)) error) (err error) {
	image, err := readImage(imageFiles, file, b.images.arch)
	if err != nil {
		return err
	}
	var m Module
	var f *function
	err = b.do(func() (err error) {
		if m, err = b.drv.ModuleLoadData(image); err == nil {
			f, err = loadFunction(b.drv, m, name)
		}
		return err
	})
	if m != 0 {
		defer func() { err = errors.Join(err, b.do(func() error { return b.drv.ModuleUnload(m) })) }()
	}
	if err != nil {
		return err
	}
	s := b.WrapStream(0)
	from, err := b.NewEvent()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, from.Close()) }()
	to, err := b.NewEvent()
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, to.Close()) }()
	return measure(f, func(a *limitArgs) (time.Duration, error) {
		launch := func() error { return f.run(b.drv.LaunchKernel, f.keys*b.dev.SMs, unsafe.Pointer(a), s.handle) }
		if err := errors.Join(s.Record(from), b.do(launch), s.Record(to), to.Sync()); err != nil {
			return 0, err
		}
		took, err := to.Since(from)
		if err == nil && took <= 0 {
			err = errors.New("the device reported zero elapsed time")
		}
		return took, err
	})
}
