package conformance

import (
	"context"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/conformance/oracle"
)

// A tensor may have more than 2^32 elements. In this file K and V are in a large mapping of zeros.
// The rows, heads or pages of K and V are so far apart that offsets exceed 2^32 elements. A kernel
// that truncates an offset to 32 bits, signed or not, reads zeros and fails the check.

// A farCase is a problem with the strides of K and V.
type farCase struct {
	name, problem string
	strides       [3]int64 // in elements, of batches or pages, heads, rows
	layout        layout
}

var farCases = []farCase{
	{"far_rows", "b2-h4-g2-n5-m150-d8-f32", [3]int64{1 << 24, 1 << 23, 1 << 25}, bhsd},
	{"far_heads", "b2-h4-g2-n5-m150-d8-f32", [3]int64{3 << 30, 1<<30 + 1<<12, 8}, bhsd},
	{"far_pages", "b2-h4-g2-n5-m150-d8-f32-ragged-page16", [3]int64{1 << 28, 1 << 26, 1 << 21}, bhsd},
}

const (
	farBefore = uint64(8 << 30) // zero bytes before the tensors, for negative offsets
	farBytes  = uint64(32 << 30)
	farApart  = 1 << 19 // elements between K, V and their gradients
)

// farChecks returns the checks of farCases.
func farChecks() (list []kernelCheck) {
	for _, c := range farCases {
		p, err := flashkit.ParseProblem(c.problem)
		if err != nil {
			panic(fmt.Sprintf("far case %s: %v", c.name, err)) // a typing error in the table
		}
		list = append(list, kernelCheck{name: c.name, needs: p.Features(), run: func(ctx context.Context, k flashkit.Kernel) error { return c.check(ctx, k, p) }})
	}
	return list
}

// check runs the kernel on tensors whose rows are far apart and on dense tensors, and compares the
// outputs' bits.
func (c *farCase) check(ctx context.Context, k flashkit.Kernel, p flashkit.Problem) error {
	if k.Device {
		return notHeld("its tensors are copied to a device")
	}
	memory, free, err := sparse()
	if err != nil {
		return notHeld(err.Error())
	}
	defer free()
	before := farBefore // a variable, as the constant overflows a 32-bit int
	memory = memory[before:]
	for _, p.DType = range k.DTypes {
		in := Case{Name: "far", Problem: p}.Inputs()
		if err := unsupported(k, in, c.layout); err != nil {
			return err
		}
		var want result
		if k.Pass == flashkit.PassBackward {
			want.o, want.lse = oracle.Forward(p, in.oracle())
		}
		near, far := newArguments(in, c.layout, k.Pass, want), newArguments(in, c.layout, k.Pass, want)
		for i, t := range [...]*flashkit.Tensor{&far.args.K, &far.args.V, &far.args.DK, &far.args.DV} {
			if !t.IsZero() {
				*t = c.moved(t, memory, i*farApart)
			}
		}
		for _, a := range [...]*arguments{near, far} {
			if err := a.run(ctx, k); err != nil {
				return fmt.Errorf("%s: %w", p, err)
			}
		}
		for _, out := range near.outputs {
			if x, y := elementsOf(out.of(&near.args)), elementsOf(out.of(&far.args)); !slices.Equal(x, y) {
				return fmt.Errorf("%s: %s differs where K and V are larger than 32 bits can count", p, out.name)
			}
		}
	}
	return nil
}

// moved returns a copy of t with the strides of the case. The copy begins at element `from` of the
// given memory.
func (c *farCase) moved(t *flashkit.Tensor, memory []byte, from int) flashkit.Tensor {
	s := t.Shape()
	far := over(t, memory[from*t.DType().Size():])
	far = far.WithStrides(int(c.strides[0]), int(c.strides[1]), int(c.strides[2]))
	for b := range s[0] {
		for h := range s[1] {
			for r := range s[2] {
				for e := range s[3] {
					put(&far, far.Offset(b, h, r)+e, get(t, t.Offset(b, h, r)+e))
				}
			}
		}
	}
	return far
}

// over returns a dense tensor with the type and shape of t. The elements are stored in the given
// memory.
func over(t *flashkit.Tensor, memory []byte) flashkit.Tensor {
	s, at := t.Shape(), unsafe.Pointer(unsafe.SliceData(memory))
	switch n := len(memory) / t.DType().Size(); t.DType() {
	case flashkit.Float16:
		return flashkit.F16(unsafe.Slice((*uint16)(at), n), s[0], s[1], s[2], s[3])
	case flashkit.BFloat16:
		return flashkit.BF16(unsafe.Slice((*uint16)(at), n), s[0], s[1], s[2], s[3])
	case flashkit.Bool:
		return flashkit.Bools(unsafe.Slice((*bool)(at), n), s[0], s[1], s[2], s[3])
	case flashkit.Int8:
		return flashkit.Int8s(unsafe.Slice((*int8)(at), n), s[0], s[1], s[2], s[3])
	case flashkit.Int32:
		return flashkit.Int32s(unsafe.Slice((*int32)(at), n), s[0], s[1], s[2], s[3])
	default:
		return flashkit.F32(unsafe.Slice((*float32)(at), n), s[0], s[1], s[2], s[3])
	}
}

// elementsOf returns the bits of a tensor's elements in row-major order.
func elementsOf(t *flashkit.Tensor) (list []uint32) {
	s := t.Shape()
	for b := range s[0] {
		for h := range s[1] {
			for r := range s[2] {
				for e := range s[3] {
					list = append(list, get(t, t.Offset(b, h, r)+e))
				}
			}
		}
	}
	return list
}

// get returns the bits of element `at` of a tensor's memory.
func get(t *flashkit.Tensor, at int) uint32 {
	if t.DType() == flashkit.Float32 {
		return math.Float32bits(t.Float32s()[at])
	}
	return uint32(t.Uint16s()[at])
}

// put sets the bits of element `at` of a tensor's memory.
func put(t *flashkit.Tensor, at int, bits uint32) {
	if t.DType() == flashkit.Float32 {
		t.Float32s()[at] = math.Float32frombits(bits)
		return
	}
	t.Uint16s()[at] = uint16(bits)
}
