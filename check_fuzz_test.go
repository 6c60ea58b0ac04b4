package flashkit_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"unsafe"

	"github.com/flashkit-go/flashkit"
)

// A decoder turns fuzzed bytes into numbers; after the last byte come zeros.
type decoder []byte

func (d *decoder) next(n int) int {
	if len(*d) == 0 {
		return 0
	}
	b := (*d)[0]
	*d = (*d)[1:]
	return int(b) % n
}

// problem returns a tiny problem, valid more often than not.
func (d *decoder) problem() flashkit.Problem {
	kv := 1 + d.next(2)
	p := flashkit.Problem{
		Batch: d.next(3), Heads: kv * (1 + d.next(2)), KVHeads: kv, QLen: d.next(4), KVLen: d.next(4),
		Dim: 1 + d.next(3), VDim: 1 + d.next(3), DType: flashkit.DType(d.next(5)),
	}
	if p.DType > flashkit.BFloat16 { // keys of another type
		p.DType, p.KVDType = flashkit.Float32, p.DType-flashkit.BFloat16
	}
	return p
}

// tensor returns a view of a part of the memory: as it should be when the bytes
// are 0, else with a wrong shape, length or strides.
func (d *decoder) tensor(dtype flashkit.DType, memory []float32, shape [4]int) flashkit.Tensor {
	if d.next(32) == 31 {
		return flashkit.Tensor{}
	}
	if d.next(32) == 31 {
		shape[d.next(4)] += d.next(5) - 2
	}
	memory = memory[d.next(150):]
	if d.next(4) == 3 {
		memory = memory[:d.next(len(memory))]
	}
	halves := unsafe.Slice((*uint16)(unsafe.Pointer(unsafe.SliceData(memory))), 2*len(memory))
	t := view(dtype, memory, halves, shape)
	s := t.Strides()
	for i := range 3 {
		if d.next(2) == 0 {
			continue
		}
		switch far := d.next(32); far {
		case 31:
			s[i] = math.MaxInt >> d.next(64)
		case 30:
			s[i] = math.MinInt >> d.next(64)
		case 29:
			s[i] = 0
		default:
			s[i] += (far+1)/2 - far%2*far // 0, 0, 1, -1, 2, -2, ...
		}
	}
	return t.WithStrides(s[0], s[1], s[2])
}

// addresses returns the address of every element of t and touches all of them.
func addresses(t flashkit.Tensor) map[uintptr]int {
	at := map[uintptr]int{}
	s := t.Shape()
	for b := range s[0] {
		for h := range s[1] {
			for r := range s[2] {
				from := t.Offset(b, h, r)
				for i := range s[3] {
					if t.DType() == flashkit.Float32 {
						at[uintptr(unsafe.Pointer(&t.Float32s()[from+i]))]++
					} else {
						at[uintptr(unsafe.Pointer(&t.Uint16s()[from+i]))]++
					}
				}
			}
		}
	}
	return at
}

// FuzzCheck checks that no arguments make the check panic. Accepted tensors must be safe to touch,
// with no output element in the place of another, and tensors refused for shared memory must share
// an element.
func FuzzCheck(f *testing.F) {
	f.Add([]byte{})
	f.Add([]byte{0, 1, 1, 2, 2, 1, 1})
	f.Add([]byte{0, 2, 0, 2, 1, 1, 0, 0, 0, 0, 0, 0, 0, 1, 29, 0, 1, 6}) // rows of an input far apart, batches expanded
	f.Fuzz(checkDecoded)
}

// TestCheckRandom is the fuzz target on random bytes, so that every run
// of the tests sees some.
func TestCheckRandom(t *testing.T) {
	r := rand.NewChaCha8([32]byte{})
	data := make([]byte, 64)
	for range 30000 {
		r.Read(data)
		checkDecoded(t, data)
	}
}

func checkDecoded(t *testing.T, data []byte) {
	d := decoder(data)
	p := d.problem()
	memory := make([]float32, 400)
	args := &flashkit.Args{
		Q: d.tensor(p.DType, memory, p.QShape()), K: d.tensor(p.KVType(), memory[50:], p.KShape()),
		V: d.tensor(p.KVType(), memory[100:], p.VShape()), O: d.tensor(p.DType, memory[150:], p.OShape()),
		LSE: d.tensor(flashkit.Float32, memory[200:], p.LSEShape()),
	}
	tensors := map[string]flashkit.Tensor{"Q": args.Q, "K": args.K, "V": args.V, "O": args.O, "LSE": args.LSE}

	err := p.Check(flashkit.PassForward, args)
	if err == nil {
		for name, x := range tensors {
			for _, times := range addresses(x) {
				if times > 1 && (name == "O" || name == "LSE") {
					t.Fatalf("two elements of %s coincide: %v %v", name, x.Shape(), x.Strides())
				}
			}
		}
		return
	}
	var wrong *flashkit.ProblemError
	if !errors.As(err, &wrong) {
		t.Fatalf("%T: %v", err, err)
	}
	if other, shared := strings.CutPrefix(wrong.Reason, "shares memory with "); shared {
		if x, y := tensors[wrong.Field], tensors[other]; !intersect(x, y) {
			t.Fatalf("%v, but %v %v and %v %v do not", err, x.Shape(), x.Strides(), y.Shape(), y.Strides())
		}
	}
}

// intersect reports whether two tensors have a byte in common.
func intersect(x, y flashkit.Tensor) bool {
	bytes := map[uintptr]bool{}
	for from := range addresses(x) {
		for i := range uintptr(x.DType().Size()) {
			bytes[from+i] = true
		}
	}
	for from := range addresses(y) {
		for i := range uintptr(y.DType().Size()) {
			if bytes[from+i] {
				return true
			}
		}
	}
	return false
}
