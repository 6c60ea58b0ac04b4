package peer

import (
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/cuda"
)

// Args are arguments on a rank's GPU, with the memory that they use.
type Args struct {
	*flashkit.Args
	rank    *Rank
	buffers []*cuda.Buffer
}

// Upload copies a shard from the host to the rank's GPU, including outputs. Tensors must be dense,
// as ring.Cut.Shard makes them, else the error is a *flashkit.ProblemError. The caller frees the
// result.
func (r *Rank) Upload(shard *flashkit.Args) (*Args, error) {
	if shard == nil {
		return nil, &flashkit.ProblemError{Field: "Args", Value: "nil", Reason: "the arguments are missing"}
	}
	x := &Args{Args: new(flashkit.Args), rank: r}
	*x.Args = *shard
	for _, a := range flashkit.Arguments() {
		t := *a.Of(shard)
		if t.IsZero() {
			continue
		}
		err := dense(a.Name, t)
		var m *cuda.Buffer
		if err == nil {
			m, err = r.gpu.Alloc(t.Len() * t.DType().Size())
		}
		if err != nil {
			return nil, errors.Join(err, x.Free())
		}
		x.buffers = append(x.buffers, m)
		if err := cuda.UploadTensor(r.compute, m, t); err != nil {
			return nil, errors.Join(err, x.Free())
		}
		n := t.Shape()
		*a.Of(x.Args) = m.Tensor(t.DType(), 0, n[0], n[1], n[2], n[3])
	}
	return x, nil
}

// Random allocates arguments on the rank's GPU with random contents, for measurements. All tensors
// repeat one block of numbers in [-1, 1). Only the tensors' shapes and types are read.
func (r *Rank) Random(shapes *flashkit.Args, seed uint64) (*Args, error) {
	if shapes == nil {
		return nil, &flashkit.ProblemError{Field: "Args", Value: "nil", Reason: "the arguments are missing"}
	}
	x := &Args{Args: new(flashkit.Args), rank: r}
	*x.Args = *shapes
	numbers := rand.New(rand.NewPCG(seed, 0))
	block := make([]float32, randomBlock)
	for i := range block {
		block[i] = numbers.Float32()*2 - 1
	}
	from, err := r.Upload(&flashkit.Args{Q: flashkit.F32(block, 1, 1, 1, len(block))})
	if err != nil {
		return nil, err
	}
	for i, a := range flashkit.Arguments() {
		t := *a.Of(shapes)
		if t.IsZero() {
			continue
		}
		m, err := r.gpu.Alloc(elements(t) * t.DType().Size())
		if err != nil {
			return nil, errors.Join(err, x.Free(), from.Free())
		}
		x.buffers = append(x.buffers, m)
		n := t.Shape()
		*a.Of(x.Args) = m.Tensor(t.DType(), 0, n[0], n[1], n[2], n[3])
		if err := r.repeat(m, t, from.Q.Owner().(*cuda.Buffer), i); err != nil {
			return nil, errors.Join(err, x.Free(), from.Free())
		}
	}
	return x, errors.Join(r.compute.Sync(), from.Free())
}

// randomBlock is the number of elements in the block. Each tensor starts at a different offset in
// the block.
const randomBlock = 1 << 20

// repeat fills a buffer, which has the shape of t, with copies of the block. i is the index of the
// argument.
func (r *Rank) repeat(to *cuda.Buffer, t flashkit.Tensor, block *cuda.Buffer, i int) error {
	dim := max(1, t.Shape()[3])
	if dim > randomBlock/2 {
		return &flashkit.ProblemError{Field: "shape", Value: fmt.Sprint(t.Shape()), Reason: "has rows longer than random numbers are made for"}
	}
	begin := i * 4096
	for row, rows := 0, elements(t)/dim; row < rows; {
		part := min(rows-row, (randomBlock-begin)/dim)
		src := block.Tensor(flashkit.Float32, begin, 1, 1, part, dim)
		if err := r.Add(to.Tensor(t.DType(), row*dim, 1, 1, part, dim), src, flashkit.Tensor{}); err != nil {
			return err
		}
		row += part
	}
	return nil
}

// Download copies the outputs of a pass of p back to the tensors of shard, from which Upload made
// x. It waits for the GPU. If a tensor has another shape, the error is a *flashkit.ProblemError.
func (x *Args) Download(p flashkit.Problem, pass flashkit.Pass, shard *flashkit.Args) error {
	for _, a := range flashkit.Arguments() {
		from, to := *a.Of(x.Args), *a.Of(shard)
		if a.Role(&p, pass)&flashkit.Output == 0 || from.IsZero() || to.IsZero() {
			continue
		}
		err := dense(a.Name, to)
		if err == nil && (from.Shape() != to.Shape() || from.DType() != to.DType()) {
			err = &flashkit.ProblemError{Field: a.Name, Value: "another shape", Reason: "must be the tensor that was uploaded"}
		}
		if err == nil {
			err = cuda.DownloadTensor(x.rank.compute, to, from.Owner().(*cuda.Buffer))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Free frees the memory on the GPU. A second call does nothing.
func (x *Args) Free() (err error) {
	for _, m := range x.buffers {
		err = errors.Join(err, m.Free())
	}
	x.buffers = nil
	return err
}

func dense(name string, t flashkit.Tensor) error {
	n := t.Shape()
	if t.Owner() != nil || t.Strides() != [4]int{n[1] * n[2] * n[3], n[2] * n[3], n[3], 1} || t.Len() < elements(t) {
		return &flashkit.ProblemError{Field: name, Value: "not dense", Reason: "must be a dense tensor on the host, as Cut.Shard makes it"}
	}
	return nil
}

func elements(t flashkit.Tensor) int {
	n := t.Shape()
	return n[0] * n[1] * n[2] * n[3]
}
