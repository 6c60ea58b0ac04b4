package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
)

// A program that lists the GPUs, and why some are of no use.
func ExampleDevices() {
	list, err := cuda.Devices()
	if errors.Is(err, cuda.ErrNoDevice) {
		return // no GPU, no driver, or a program built without CUDA
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, d := range list {
		fmt.Printf("%v: %d MiB, sm_%d%d, %s\n", &d, d.Memory>>20, d.Major, d.Minor, d.Reason)
	}
}

// A Device prints as its number and name, as in errors.
func ExampleDevice() {
	d := &cuda.Device{Ordinal: 1, Name: "NVIDIA H200", Major: 9, SMs: 132}
	fmt.Println(d)
	// Output: GPU 1 (NVIDIA H200)
}

// A server that starts without its GPU rather than wait for a driver that does not answer.
func ExampleOpenContext() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	b, err := cuda.OpenContext(ctx)
	if errors.Is(err, cuda.ErrSilent) {
		fmt.Println("the driver hangs; continuing without a GPU")
	}
	if err != nil {
		return
	}
	defer b.Close()
}

// A backend for each GPU, as for the ranks of a ring.
func ExampleOpenDevice() {
	list, err := cuda.Devices()
	if err != nil {
		return
	}
	for _, d := range list {
		b, err := cuda.OpenDevice(d.Ordinal)
		if err != nil {
			fmt.Println(err)
			continue
		}
		defer b.Close()
	}
}

// A test of a program's fallback: a driver without a device.
func ExampleOpenWith() {
	driver := &cuda.Driver{Init: func() error {
		return &cuda.Error{Call: "cuInit", Code: 100, Name: "CUDA_ERROR_NO_DEVICE"}
	}}
	_, err := cuda.OpenWith(driver, 0)
	fmt.Println(err)
	fmt.Println(errors.Is(err, flashkit.ErrUnavailable), errors.Is(err, cuda.ErrNoDevice))
	// Output:
	// cuda: unavailable on this machine: no device: cuInit: CUDA_ERROR_NO_DEVICE (100)
	// true true
}

// The code of a failed call tells a full device from a broken one.
func ExampleError() {
	err := fmt.Errorf("loading the model: %w", &cuda.Error{Call: "cuMemAlloc", Code: 2, Name: "CUDA_ERROR_OUT_OF_MEMORY"})
	if e := (*cuda.Error)(nil); errors.As(err, &e) && e.Code == 2 {
		fmt.Println("smaller batch, because of", e)
	}
	// Output: smaller batch, because of cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2)
}

// Kernels describe themselves on a machine without a GPU, and refuse to run there.
func ExampleBackend_Kernels() {
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 8, QLen: 1, KVLen: 4096, Dim: 64, VDim: 64}
	for _, k := range new(cuda.Backend).Kernels() {
		if strings.HasSuffix(k.Name, "_f32") {
			fmt.Println(k.Name, k.Pass, k.Fits(p.Ask(k.Pass)) != "")
		}
	}
	// Output:
	// cuda/fwd_f32 forward true
	// cuda/bwd_f32 backward true
}

// A backend's device and a block of its memory.
func ExampleBackend() {
	b, err := cuda.Open()
	if err != nil {
		return
	}
	defer b.Close()
	device, driver := b.Hardware()
	fmt.Println(b.Name(), device, driver, b.Device().SMs)
	m, err := b.Alloc(1 << 20)
	if err != nil {
		fmt.Println(err) // the device is full, and remains usable
		return
	}
	defer m.Free()
}

// One name for all calls of a model, so that a sequence has the same bits in every batch.
func ExampleBackend_Pick() {
	b, err := cuda.Open()
	if err != nil {
		return
	}
	defer b.Close()
	p := flashkit.Problem{Batch: 1, Heads: 32, KVHeads: 8, QLen: 1, KVLen: 8192, Dim: 128, VDim: 128, DType: flashkit.BFloat16}
	k, err := b.Pick(p, flashkit.PassForward)
	if err != nil {
		fmt.Println(err)
		return
	}
	o := cuda.Options{Kernel: k.Name} // for Launch
	n, err := b.Workspace(p, flashkit.PassForward, o.Kernel)
	fmt.Println(o.Kernel, n, err)
}

// Memory and a stream of another library, in the device's primary context.
func ExampleBackend_Wrap() {
	var address cuda.Pointer     // of the library's tensor
	var handle cuda.StreamHandle // of the stream in which the library writes it
	b, err := cuda.Open()
	if err != nil {
		return
	}
	defer b.Close()
	x := b.Wrap(address, 2*8*1024*64).Tensor(flashkit.BFloat16, 0, 1, 8, 1024, 64)
	s := b.WrapStream(handle)
	defer s.Close() // leaves the library's stream open
	fmt.Println(x.Shape(), s.Handle() == handle)
}

// The result of another library, rounded to bf16 in the library's stream: nothing waits.
func ExampleBackend_WrapStream() {
	var handle cuda.StreamHandle // a CUstream of another library; 0 is the default stream
	b, err := cuda.Open()
	if err != nil {
		return
	}
	defer b.Close()
	s := b.WrapStream(handle)
	round := func(dst, x flashkit.Tensor) error { return s.Add(dst, x, flashkit.Tensor{}) }
	_ = round
}

// A call of another library that requires a current context.
func ExampleBackend_Within() {
	b, err := cuda.Open()
	if err != nil {
		return
	}
	defer b.Close()
	createHandle := func() error { return nil } // such as cublasCreate
	if err := b.Within(createHandle); err != nil {
		fmt.Println(err)
	}
}

// Short requests pass long ones: their blocks take free multiprocessors first.
func ExampleBackend_NewPriorityStream() {
	b, err := cuda.Open()
	if err != nil {
		return
	}
	defer b.Close()
	training, err := b.NewStream()
	if err != nil {
		return
	}
	defer training.Close()
	requests, err := b.NewPriorityStream(-1)
	if err != nil {
		return
	}
	defer requests.Close()
}
