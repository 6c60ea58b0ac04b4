package cuda_test

import (
	"context"
	"fmt"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
)

// One query row over two halves of the keys, as two calls whose results are merged.
func ExampleStream_Merge() {
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
	const dim, keys = 64, 100
	m, err := b.Alloc(4 * (3*dim + 2 + 2*2*keys*dim))
	if err != nil {
		return
	}
	defer m.Free()
	at := 0
	next := func(rows, dim int) flashkit.Tensor {
		t := m.Tensor(flashkit.Float32, at, 1, 1, rows, dim)
		at += rows * dim
		return t
	}
	q, o, lse, part, partLSE := next(1, dim), next(1, dim), next(1, 1), next(1, dim), next(1, 1)
	halves := []*flashkit.Args{
		{Q: q, K: next(keys, dim), V: next(keys, dim), O: o, LSE: lse},
		{Q: q, K: next(keys, dim), V: next(keys, dim), O: part, LSE: partLSE},
	}
	for _, args := range halves {
		if err := b.Forward(context.Background(), s, flashkit.ProblemOf(args, flashkit.Band{}), args); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println(s.Merge(o, lse, part, partLSE)) // in the order of the stream
}

// A tensor from one GPU to the next one, by the link between them where there is one.
func ExampleStream_Copy() {
	var tensors [2]flashkit.Tensor
	var stream *cuda.Stream
	var first *cuda.Backend
	for i := range tensors {
		b, err := cuda.OpenDevice(i)
		if err != nil {
			return
		}
		defer b.Close()
		m, err := b.Alloc(4 << 20)
		if err != nil {
			return
		}
		defer m.Free()
		tensors[i] = m.Tensor(flashkit.Float32, 0, 1, 8, 2048, 64)
		if i == 0 {
			if stream, err = b.NewStream(); err != nil {
				return
			}
			defer stream.Close()
			first = b
			continue
		}
		direct, err := b.Reach(first)
		fmt.Println("direct:", direct, err)
	}
	fmt.Println(stream.Fill(tensors[0], 1), stream.Copy(tensors[1], tensors[0]), stream.Sync())
}

// A tensor to the GPU and back.
func ExampleUploadTensor() {
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
	host := flashkit.F32([]float32{1, 2, 3, 4}, 1, 1, 2, 2)
	m, err := b.Alloc(host.Len() * host.DType().Size())
	if err != nil {
		return
	}
	defer m.Free()
	fmt.Println(cuda.UploadTensor(s, m, host))
	device := m.Tensor(flashkit.Float32, 0, 1, 1, 2, 2)
	fmt.Println(s.Fill(device, 5), cuda.DownloadTensor(s, host, m), host.Float32s())
}
