package wasm

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"slices"
	"unsafe"

	"github.com/tetratelabs/wazero"
	"github.com/tetratelabs/wazero/api"
	"github.com/tetratelabs/wazero/experimental"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// An instance is one instance of the module with its own memory. Only one goroutine may use it at a
// time.
type instance struct {
	module    api.Module
	base      uint64 // offset of the first free byte of its memory
	functions map[string]api.Function
	memory    []byte // view of its whole memory
	stack     [6]uint64
	share     *share
	listed    int  // calls in the list of the current batch
	failed    bool // a call trapped or failed, so the state is unknown
	poisoned  bool // for tests: see Backend.Poison

	packed  []bool            // for each block of keys of the current head: whether the module has packed it
	columns [maxChunk]float64 // sums of dBias over the rows of the current head, if all rows share one row of the bias
}

// instantiate returns an instance with n bytes of memory, a multiple of the page size.
func (s *sandbox) instantiate(ctx context.Context, n uint64) (*instance, error) {
	if err := s.compile(ctx); err != nil {
		return nil, err
	}
	memory, err := newShare(n)
	if err != nil {
		return nil, fmt.Errorf("kernel.wasm: %w", err)
	}
	x := &instance{functions: map[string]api.Function{}, share: memory}
	config := wazero.NewModuleConfig().WithName("").WithStartFunctions()
	panicked := recovered(func() {
		x.module, err = s.runtime.InstantiateModule(experimental.WithMemoryAllocator(ctx, memory), s.code, config)
	})
	if err = cmp.Or(panicked, err); err != nil {
		return nil, fmt.Errorf("kernel.wasm: %w", err)
	}
	for name := range functions() {
		x.functions[name] = x.module.ExportedFunction(name)
	}
	if err := x.greet(ctx); err != nil {
		x.module.Close(ctx)
		return nil, err
	}
	return x, nil
}

// greet grows the module's memory to the size of its share. It checks the ABI version and the first
// free byte.
func (x *instance) greet(ctx context.Context) error {
	base := x.module.ExportedGlobal("__heap_base")
	if base == nil || base.Type() != api.ValueTypeI32 || base.Get() > lowest {
		return fmt.Errorf("kernel.wasm: __heap_base must be at most %d", lowest)
	}
	x.base = base.Get()
	m := x.module.Memory()
	m.Grow(uint32((uint64(len(x.share.bytes)) - uint64(m.Size())) / pageBytes))
	if x.memory, _ = m.Read(0, m.Size()); len(x.memory) != len(x.share.bytes) {
		return fmt.Errorf("kernel.wasm: memory has %d bytes, want %d", len(x.memory), len(x.share.bytes))
	}
	x.stack[0] = 0
	if err := x.functions["abi"].CallWithStack(ctx, x.stack[:]); err != nil {
		return fmt.Errorf("kernel.wasm: abi: %w", err)
	}
	if v := uint32(x.stack[0]); v != version {
		return fmt.Errorf("kernel.wasm: ABI version is %d, want %d", v, version)
	}
	return nil
}

var codes = [...]string{"ok", "bad block", "bad version", "bad shape", "bad tensor", "bad scratch", "bad range", "bad feature"}

// call calls an exported function of the module. A nonzero code, a trap, or an attempt to grow the
// memory is an error, after which the instance is unusable.
func (x *instance) call(ctx context.Context, name string, args ...int) error {
	for i, a := range args {
		x.stack[i] = uint64(uint32(a))
	}
	err := x.functions[name].CallWithStack(ctx, x.stack[:])
	switch code := uint32(x.stack[0]); {
	case err != nil:
	case code >= uint32(len(codes)):
		err = fmt.Errorf("unknown code %d", code)
	case code != 0:
		err = errors.New(codes[code])
	case x.share.refused:
		err = errors.New("tried to grow its memory")
	default:
		return nil
	}
	x.failed = true
	return fmt.Errorf("kernel.wasm: %s%v: %w", name, slices.Clone(args), err)
}

// Rows in the module's memory are little-endian float32, except the 16-bit keys of decode. The host
// widens f16 and bf16 rows when it loads rows from tensors, and rounds rows when it stores rows to
// f16 and bf16 tensors.

// littleEndian is true on machines that can copy f32 rows without conversion.

var littleEndian = binary.NativeEndian.Uint16([]byte{1, 0}) == 1

// floats returns a view of n floats at offset, which must be a multiple of 4. The view is right on
// little-endian machines only.
func (x *instance) floats(offset uint64, n int) []float32 {
	if n == 0 {
		return nil
	}
	return unsafe.Slice((*float32)(unsafe.Pointer(&x.memory[offset:][:4*n][0])), n)
}

// loadRaw copies 16-bit numbers to offset without conversion.
func (x *instance) loadRaw(offset uint64, from []uint16) {
	if n := len(from); littleEndian && n > 0 {
		copy(unsafe.Slice((*uint16)(unsafe.Pointer(&x.memory[offset:][:2*n][0])), n), from)
		return
	}
	for i, v := range from {
		binary.LittleEndian.PutUint16(x.memory[offset+uint64(2*i):], v)
	}
}

func (x *instance) at(offset uint64, n int) []byte { return x.memory[offset:][:4*n] }

func put(to []byte, i int, v float32) { binary.LittleEndian.PutUint32(to[4*i:], math.Float32bits(v)) }

func get(from []byte, i int) float32 {
	return math.Float32frombits(binary.LittleEndian.Uint32(from[4*i:]))
}

// load copies n rows of t to the given offset in the module's memory. The first row begins at the
// element of t whose index is from. The other rows follow at t's row stride.
func (x *instance) load(offset uint64, t *flashkit.Tensor, from, n int) {
	dim, stride := t.Shape()[3], t.Strides()[2]
	if stride == dim && n > 0 {
		x.loadRow(offset, t, from, n*dim)
		return
	}
	for range n {
		x.loadRow(offset, t, from, dim)
		offset += uint64(4 * dim)
		from += stride
	}
}

// loadRow copies n elements of t to the given offset in the module's memory. The index of the first
// element is from.
func (x *instance) loadRow(offset uint64, t *flashkit.Tensor, from, n int) {
	to := x.at(offset, n)
	switch t.DType() {
	case flashkit.Float32:
		if littleEndian {
			copy(x.floats(offset, n), t.Float32s()[from:][:n])
			return
		}
		for c, v := range t.Float32s()[from:][:n] {
			put(to, c, v)
		}
	case flashkit.Float16:
		for c, v := range t.Uint16s()[from:][:n] {
			put(to, c, half.FromF16(v))
		}
	case flashkit.BFloat16:
		for c, v := range t.Uint16s()[from:][:n] {
			put(to, c, half.FromBF16(v))
		}
	}
}

// store copies n rows at the given offset in the module's memory to t. The first row begins at the
// element of t whose index is to. The other rows follow at t's row stride.
func (x *instance) store(offset uint64, t *flashkit.Tensor, to, n int) {
	dim, stride := t.Shape()[3], t.Strides()[2]
	if stride == dim && n > 0 {
		storeRow(x.at(offset, n*dim), t, to, n*dim)
		return
	}
	for range n {
		storeRow(x.at(offset, dim), t, to, dim)
		offset += uint64(4 * dim)
		to += stride
	}
}

// storeRow copies n floats into t. The first float goes to the element of t whose index is to.
func storeRow(from []byte, t *flashkit.Tensor, to, n int) {
	switch t.DType() {
	case flashkit.Float32:
		row := t.Float32s()[to:][:n]
		if littleEndian && n > 0 {
			copy(row, unsafe.Slice((*float32)(unsafe.Pointer(&from[:4*n][0])), n))
			return
		}
		for c := range row {
			row[c] = get(from, c)
		}
	case flashkit.Float16:
		row := t.Uint16s()[to:][:n]
		for c := range row {
			row[c] = half.ToF16(get(from, c))
		}
	case flashkit.BFloat16:
		row := t.Uint16s()[to:][:n]
		for c := range row {
			row[c] = half.ToBF16(get(from, c))
		}
	}
}

// writeRaw writes the words for 16-bit K and V to the parameter block of the decode kernel. It
// writes nothing if K and V have 32 bits.
func (x *instance) writeRaw(w *places, t flashkit.DType) {
	if w.rawK == 0 {
		return
	}
	kind := uint32(1)
	if t == flashkit.BFloat16 {
		kind = 2
	}
	to := x.at(w.block+4*wordKV, 3)
	for i, word := range [...]uint32{kind, uint32(w.rawK), uint32(w.rawV)} {
		binary.LittleEndian.PutUint32(to[4*i:], word)
	}
}

// zero clears n floats at offset.
func (x *instance) zero(offset uint64, n int) { clear(x.at(offset, n)) }

// writeBlock writes the parameter block of a plan, except the feature words, for a sequence whose
// current keys are [key0, key0+keys).
func (x *instance) writeBlock(n *plan, w *places, s *flashkit.Seq, key0, keys int) {
	to := x.at(w.block, blockWords)
	for i, word := range [blockWords]uint32{
		magic, version, uint32(n.c.Dim), uint32(n.c.VDim), uint32(key0), uint32(keys),
		uint32(int32(s.Lo)), uint32(int32(s.Hi)), math.Float32bits(n.scale()),
		uint32(w.q), uint32(w.k), uint32(w.v), uint32(w.o), uint32(w.lse),
		uint32(w.dout), uint32(w.dlse), uint32(w.dq), uint32(w.scratch), uint32(w.scratchBytes),
	} {
		binary.LittleEndian.PutUint32(to[4*i:], word)
	}
}
