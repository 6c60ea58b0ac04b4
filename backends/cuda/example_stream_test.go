package cuda_test

import (
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
)

// The device's time of some work, between two events.
func ExampleEvent() {
	b, s, x, free := open()
	if b == nil {
		return
	}
	defer free()
	from, err := b.NewEvent()
	if err != nil {
		return
	}
	defer from.Close()
	to, err := b.NewEvent()
	if err != nil {
		return
	}
	defer to.Close()
	fmt.Println(s.Record(from), s.Fill(x, 1), s.Record(to), to.Sync())
	fmt.Println(to.Since(from))
}

// Calls enqueue their work and return. Sync waits, and returns the error of work that failed.
func ExampleStream() {
	b, err := cuda.Open()
	if err != nil {
		return
	}
	defer b.Close()
	m, err := b.Alloc(4 * 1024)
	if err != nil {
		return
	}
	defer m.Free()
	s, err := b.NewStream()
	if err != nil {
		return
	}
	defer s.Close()
	x := m.Tensor(flashkit.Float32, 0, 1, 1, 16, 64)
	fmt.Println(s.Fill(x, 1), s.Add(x, x, x)) // in order
	fmt.Println(s.Sync())
}

// The second stream adds after the first one has filled. The program waits once, at the end.
func ExampleStream_Wait() {
	b, first, x, free := open()
	if b == nil {
		return
	}
	defer free()
	second, err := b.NewStream()
	if err != nil {
		return
	}
	defer second.Close()
	filled, err := b.NewEvent()
	if err != nil {
		return
	}
	defer filled.Close()
	fmt.Println(first.Fill(x, 1), first.Record(filled))
	fmt.Println(second.Wait(filled), second.Add(x, x, x), second.Sync())
}

// A sum of two tensors, as of gradients, and the conversion of its type.
func ExampleStream_Add() {
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
	m, err := b.Alloc(3 * 4 * 1024)
	if err != nil {
		return
	}
	defer m.Free()
	sum, x := m.Tensor(flashkit.Float32, 0, 1, 1, 16, 64), m.Tensor(flashkit.Float32, 1024, 1, 1, 16, 64)
	rounded := m.Tensor(flashkit.BFloat16, 4*1024, 1, 1, 16, 64)
	fmt.Println(s.Fill(sum, 1), s.Fill(x, 2), s.Add(sum, sum, x), s.Add(rounded, sum, flashkit.Tensor{}), s.Sync())
}

// open returns a stream and a tensor of [1, 8, 1024, 64] on the first GPU, or nils without one.
func open() (b *cuda.Backend, s *cuda.Stream, x flashkit.Tensor, free func()) {
	b, err := cuda.Open()
	if err != nil {
		return nil, nil, x, nil
	}
	s, err = b.NewStream()
	if err != nil {
		b.Close()
		return nil, nil, x, nil
	}
	m, err := b.Alloc(4 * 8 * 1024 * 64)
	if err != nil {
		s.Close()
		b.Close()
		return nil, nil, x, nil
	}
	return b, s, m.Tensor(flashkit.Float32, 0, 1, 8, 1024, 64), func() {
		m.Free()
		s.Close()
		b.Close()
	}
}

// Query, key and value in one block of memory, as a product with one weight leaves them: views
// with the strides of the block.
func ExampleBuffer() {
	b, err := cuda.Open()
	if err != nil {
		return
	}
	defer b.Close()
	const rows, heads, dim = 1024, 8, 64
	m, err := b.Alloc(2 * rows * 3 * heads * dim)
	if err != nil {
		return
	}
	defer m.Free()
	view := func(i int) flashkit.Tensor {
		t := m.Tensor(flashkit.BFloat16, i*heads*dim, 1, heads, rows, dim)
		return t.WithStrides(0, dim, 3*heads*dim)
	}
	args := flashkit.Args{Q: view(0), K: view(1), V: view(2)}
	fmt.Println(flashkit.ProblemOf(&args, flashkit.Causal()), m.Bytes(), m.Device(), m.Backend() == b, m.Address() != 0)
}

// Numbers to the GPU and back. Offsets are in bytes.
func ExampleUpload() {
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
	m, err := b.Alloc(16)
	if err != nil {
		return
	}
	defer m.Free()
	back := make([]float32, 2)
	fmt.Println(cuda.Upload(s, m, 0, []float32{1, 2, 3, 4}), cuda.Download(s, back, m, 8), back) // 3 and 4
}

// A page table that grows in device memory: only the new pages are copied.
func ExampleDownload() {
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
	table, err := b.Alloc(4 * 4096)
	if err != nil {
		return
	}
	defer table.Free()
	used := []int32{7, 3}
	for i := range used {
		fmt.Println(cuda.Upload(s, table, 4*i, used[i:i+1]))
	}
	check := make([]int32, len(used))
	fmt.Println(cuda.Download(s, check, table, 0), check)
}

// A result on the GPU as a tensor of the host.
func ExampleDownloadTensor() {
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
	m, err := b.Alloc(4 * 8 * 64)
	if err != nil {
		return
	}
	defer m.Free()
	o := flashkit.F32(make([]float32, 8*64), 1, 1, 8, 64)
	fmt.Println(s.Fill(m.Tensor(flashkit.Float32, 0, 1, 1, 8, 64), 1), cuda.DownloadTensor(s, o, m), o.Float32s()[0])
}
