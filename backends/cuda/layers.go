package cuda

import (
	"fmt"
	"math"
	"sync"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// layerArgs is struct Layer of kernels/layers.cu.
type layerArgs struct {
	x, y             view
	bias, weight     Pointer
	shift, position  Pointer
	count            int64
	groups, features int32
	kind, gated      int32
	eps              float32
	_                [4]byte
}

type layerID int

const (
	layerNorm layerID = iota
	layerActivate
	layerRotate
	numLayers
)

var layerNames = [numLayers]string{layerNorm: "layers_norm", layerActivate: "layers_activate", layerRotate: "layers_rotate"}

const layerThreads = 256 // of a block of kernels/layers.cu

// An Activation is an elementwise function.
type Activation uint8

// The activations.
const (
	Identity Activation = iota // x
	ReLU                       // max(x, 0)
	GELU                       // x Φ(x), computed with the error function
	GELUTanh                   // GELU's tanh approximation
	SiLU                       // x / (1 + exp(-x))
)

// A Norm is a layer norm, or an RMSNorm. Its vectors are float32 tensors of shape [1, 1, 1,
// features].
type Norm struct {
	Bias   flashkit.Tensor // added to each row before the norm; the zero Tensor is 0
	Weight flashkit.Tensor // multiplies the normalized row
	Shift  flashkit.Tensor // added to the normalized row; the zero Tensor is 0
	Eps    float32         // added to the variance, or to the mean square
	RMS    bool            // divides by the root mean square, and subtracts no mean
}

// Normalize sets y to the normalized rows of x. Both are float32 of shape [1, groups, rows,
// features], and y may be x. Like Activate and Rotate, Normalize enqueues the work and returns at
// once.
func (s *Stream) Normalize(y, x flashkit.Tensor, n *Norm) error {
	a := layerPool.Get().(*layerArgs)
	defer layerPool.Put(a)
	*a = layerArgs{eps: n.Eps}
	if n.RMS {
		a.kind = 1
	}
	d := x.Shape()
	for _, v := range [...]struct {
		name string
		t    flashkit.Tensor
		to   *Pointer
	}{{"Norm.Bias", n.Bias, &a.bias}, {"Norm.Weight", n.Weight, &a.weight}, {"Norm.Shift", n.Shift, &a.shift}} {
		if err := s.vector(v.name, v.t, d[3], v.to); err != nil {
			return err
		}
	}
	if n.Weight.IsZero() {
		return missing("Norm.Weight")
	}
	return s.layer(layerNorm, a, y, x, d[3], d[1]*d[2], layerThreads/32)
}

// Activate sets y to f(x + bias). If gated is true, x has twice y's features, and Activate sets y to
// f(x + bias) of the first half times x + bias of the second half. The tensors are float32 of shape
// [1, 1, rows, features], and bias is [1, 1, 1, features of x] or the zero Tensor. y may be x, or the
// first half of its columns.
func (s *Stream) Activate(y, x, bias flashkit.Tensor, f Activation, gated bool) error {
	if f > SiLU {
		return &flashkit.ProblemError{Field: "Activation", Value: fmt.Sprint(uint8(f)), Reason: "must be Identity, ReLU, GELU, GELUTanh or SiLU"}
	}
	a := layerPool.Get().(*layerArgs)
	defer layerPool.Put(a)
	*a = layerArgs{kind: int32(f)}
	d := x.Shape()
	if err := s.vector("bias", bias, d[3], &a.bias); err != nil {
		return err
	}
	features := d[3]
	if gated {
		a.gated, features = 1, d[3]/2
	}
	return s.layer(layerActivate, a, y, x, features, d[2]*features, layerThreads)
}

// Rotate rotates features j and j + half of each head of x, [1, heads, rows, 2 half], in place. table
// is [1, 1, positions, 2 half] without gaps: the cosines of a position, then its sines. positions has
// the position of each row as int32, which Rotate does not check.
func (s *Stream) Rotate(x, table flashkit.Tensor, positions *Buffer) error {
	a := layerPool.Get().(*layerArgs)
	defer layerPool.Put(a)
	*a = layerArgs{}
	d, n := x.Shape(), table.Shape()
	half := d[3] / 2
	switch {
	case d[3]%2 != 0 || n != [4]int{1, 1, n[2], d[3]}:
		return &flashkit.ProblemError{Field: "table", Value: fmt.Sprint(n), Reason: fmt.Sprintf("must have the shape [1 1 positions %d], for an even number of features", d[3])}
	case positions == nil:
		return missing("positions")
	case positions.b != s.b:
		return otherDevice("positions")
	case positions.freed.Load() || positions.bytes/4 < d[2]:
		return &flashkit.ProblemError{Field: "positions", Value: fmt.Sprint(positions.bytes), Reason: fmt.Sprintf("must have %d numbers of 4 bytes, and not be freed", d[2])}
	}
	if err := s.checkFloats("table", table, n); err != nil {
		return err
	}
	a.weight, a.position = Pointer(table.Address()), positions.address
	return s.layer(layerRotate, a, x, x, half, d[1]*d[2]*half, layerThreads)
}

var layerPool = sync.Pool{New: func() any { return new(layerArgs) }}

// vector sets *to to the address of a vector of n elements, which may be missing.
func (s *Stream) vector(name string, t flashkit.Tensor, n int, to *Pointer) error {
	if t.IsZero() {
		return nil
	}
	*to = Pointer(t.Address())
	return s.checkFloats(name, t, [4]int{1, 1, 1, n})
}

// checkFloats returns an error if t is not float32 of the given shape, on the stream's device.
func (s *Stream) checkFloats(name string, t flashkit.Tensor, shape [4]int) error {
	if t.Shape() != shape || t.DType() != flashkit.Float32 {
		return &flashkit.ProblemError{Field: name, Value: fmt.Sprint(t.Shape(), t.DType()), Reason: fmt.Sprint("must be float32 of shape ", shape)}
	}
	return s.checkOperand(&operand{name: name, t: t, like: t})
}

// layer launches a kernel of kernels/layers.cu. count is the number of its warps or threads, of which
// a block has perBlock.
func (s *Stream) layer(id layerID, a *layerArgs, y, x flashkit.Tensor, features, count, perBlock int) error {
	shape := x.Shape()
	if err := s.checkFloats("x", x, shape); err != nil {
		return err
	}
	if id == layerActivate {
		shape[3] = features
	}
	if err := s.checkFloats("y", y, shape); err != nil {
		return err
	}
	if shape[0] != 1 || id == layerActivate && shape[1] != 1 {
		return &flashkit.ProblemError{Field: "x", Value: fmt.Sprint(shape), Reason: "must be one batch, and one group for Activate"}
	}
	if count == 0 {
		return nil
	}
	blocks := (count-1)/perBlock + 1
	if blocks > math.MaxInt32 {
		return &flashkit.ProblemError{Field: "shape", Value: fmt.Sprint(shape), Reason: "has too many rows for one launch"}
	}
	a.x.set(x)
	a.y.set(y)
	a.count, a.groups, a.features = int64(count), int32(shape[1]), int32(features)
	err := s.b.do(func() error {
		f, err := s.b.images.getLayer(s.b.drv, id)
		if err != nil {
			return err
		}
		return f.run(s.b.drv.LaunchKernel, blocks, unsafe.Pointer(a), s.handle)
	})
	if err != nil {
		return fmt.Errorf("cuda/%s: %w", layerNames[id], err)
	}
	return nil
}
