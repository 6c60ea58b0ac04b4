package cuda_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
	"github.com/flashkit-go/flashkit/conformance"
)

func TestConformance(t *testing.T) {
	b, err := cuda.Open()
	if err != nil {
		conformance.Unavailable(t, "cuda", err)
	}
	defer b.Close()
	conformance.Run(t, b)
}

// A program that also runs without a GPU.
func ExampleOpen() {
	b, err := cuda.Open()
	if errors.Is(err, flashkit.ErrUnavailable) {
		return // use another backend, and say so
	}
	if err != nil {
		fmt.Println(err)
		return
	}
	defer b.Close()
	fmt.Println(b.Device().Name)
}

// Attention on memory of the device: what a trainer keeps there anyway.
func ExampleBackend_Forward() {
	b, err := cuda.Open()
	if err != nil {
		return
	}
	defer b.Close()
	if err := attend(b); err != nil {
		fmt.Println(err)
	}
}

func attend(b *cuda.Backend) error {
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 8, QLen: 1024, KVLen: 1024, Dim: 64, VDim: 64, DType: flashkit.BFloat16, Band: flashkit.Causal()}
	n := p.Batch * p.Heads * p.QLen * p.Dim
	s, err := b.NewStream()
	if err != nil {
		return err
	}
	defer s.Close()
	m, err := b.Alloc(4 * n * p.DType.Size()) // Q, K, V and O, one after the other
	if err != nil {
		return err
	}
	defer m.Free()
	host := make([]uint16, n)
	for i := range 3 {
		if err := cuda.Upload(s, m, i*n*p.DType.Size(), host); err != nil {
			return err
		}
	}
	tensor := func(i int) flashkit.Tensor { return m.Tensor(p.DType, i*n, p.Batch, p.Heads, p.QLen, p.Dim) }
	err = b.Forward(context.Background(), s, p, &flashkit.Args{Q: tensor(0), K: tensor(1), V: tensor(2), O: tensor(3)})
	if err != nil {
		return err
	}
	return cuda.Download(s, host, m, 3*n*p.DType.Size()) // waits for the stream
}

// The workspace of a backward pass, for a program that plans the memory of the device.
func ExampleBackend_Backward() {
	b, err := cuda.Open()
	if err != nil {
		return
	}
	defer b.Close()
	p := flashkit.Problem{Batch: 1, Heads: 8, KVHeads: 8, QLen: 1024, KVLen: 1024, Dim: 64, VDim: 64, DType: flashkit.BFloat16}
	n, err := b.Workspace(p, flashkit.PassBackward, "") // what Backward takes beside its tensors
	if err != nil || n == 0 {
		fmt.Println(n, err)
	}
}

// A step of a growing cache: lengths are in the device's memory, so a graph that captures the
// call is replayed while they grow.
func ExampleDeviceSequences() {
	b, err := cuda.Open()
	if err != nil {
		return
	}
	defer b.Close()
	p := flashkit.Problem{Batch: 2, Heads: 8, KVHeads: 2, QLen: 1, KVLen: 4096, Dim: 64, VDim: 64, DType: flashkit.BFloat16, Ragged: true}
	step := func(s *cuda.Stream, args *flashkit.Args, lens *cuda.Buffer) error {
		args.Seqs = &flashkit.Sequences{KVLens: []int32{4096, 4096}} // at most
		return b.Launch(context.Background(), s, p, flashkit.PassForward, args, cuda.Options{Sequences: &cuda.DeviceSequences{KVLens: lens}})
	}
	_ = step
}

// A kernel by name, into the stream; one that does not take the problem says why.
func ExampleBackend_Launch() {
	b, err := cuda.Open()
	if err != nil {
		return
	}
	defer b.Close()
	s, err := b.NewStream()
	if err != nil {
		return
	}
	defer s.Close()
	m, err := b.Alloc(4 * 64 * 4)
	if err != nil {
		return
	}
	defer m.Free()
	row := func(i int) flashkit.Tensor { return m.Tensor(flashkit.Float32, i*64, 1, 1, 1, 64) }
	args := &flashkit.Args{Q: row(0), K: row(1), V: row(2), O: row(3)}
	p := flashkit.ProblemOf(args, flashkit.Band{})
	fmt.Println(b.Launch(context.Background(), s, p, flashkit.PassForward, args, cuda.Options{Kernel: "cuda/fwd_f32"}))
	fmt.Println(errors.Is(b.Launch(context.Background(), s, p, flashkit.PassForward, args, cuda.Options{Kernel: "cuda/fwd_sm80"}), errors.ErrUnsupported))
}

// What a kernel reached, of what the device does at most.
func ExampleBackend_Peak() {
	b, err := cuda.Open()
	if err != nil {
		return
	}
	defer b.Close()
	rate, instructions, err := b.Peak(flashkit.BFloat16) // FLOP/s
	if err != nil || rate < 1e12 {
		fmt.Println(rate, instructions, err)
	}
}

// How long a device takes at least for tensors that do not fit into its caches.
func ExampleBackend_CopyRate() {
	b, err := cuda.Open()
	if err != nil {
		return
	}
	defer b.Close()
	rate, err := b.CopyRate() // bytes read and written per second
	if err != nil || rate < 1e9 {
		fmt.Println(rate, err)
	}
}
