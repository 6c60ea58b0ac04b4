package wasm

import (
	"context"
	"encoding/binary"
	"math"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// A hostile module has our exports and one misbehaving function.
type hostile struct {
	name  string
	where string // the function that misbehaves
	code  []byte // its body
	want  string // in the error

	imports bool // the module imports a function of the host
}

const (
	opLoop, opEnd, opBr, opDrop, opConst, opStore, opGrow, opUnreachable = 0x03, 0x0b, 0x0c, 0x1a, 0x41, 0x36, 0x40, 0x00
	noResult                                                             = 0x40
)

var hostiles = []hostile{
	{name: "infinite loop", where: "fwd_simd128_rows", code: []byte{opLoop, noResult, opBr, 0, opEnd, opConst, 0, opEnd}, want: "deadline exceeded"},
	{name: "infinite loop in abi", where: "abi", code: []byte{opLoop, noResult, opBr, 0, opEnd, opConst, 0, opEnd}, want: "deadline exceeded"},
	{name: "write out of bounds", where: "fwd_simd128_rows", code: []byte{opConst, 0x7f, opConst, 0, opStore, 2, 0, opConst, 0, opEnd}, want: "out of bounds memory access"},
	{name: "memory growth", where: "fwd_simd128_rows", code: []byte{opConst, 1, opGrow, 0, opDrop, opConst, 0, opEnd}, want: "tried to grow its memory"},
	{name: "trap", where: "fwd_simd128_rows", code: []byte{opUnreachable, opEnd}, want: "unreachable"},
	{name: "unknown code", where: "fwd_simd128_keys", code: []byte{opConst, 42, opEnd}, want: "unknown code 42"},
	{name: "error code", where: "fwd_simd128_keys", code: []byte{opConst, 4, opEnd}, want: "bad tensor"},
	{name: "infinite loop in a list", where: listEntry, code: []byte{opLoop, noResult, opBr, 0, opEnd, opConst, 0, opEnd}, want: "deadline exceeded"},
	{name: "error code of a list", where: listEntry, code: []byte{opConst, 6, opEnd}, want: "bad range"},
	{name: "unexpected import", imports: true, want: "has imports"},
	{name: "wrong ABI", where: "abi", code: []byte{opConst, 9, opEnd}, want: "ABI version is 9, want 3"},
	{name: "missing function", where: "-abi", want: "no exported function abi"},
}

// module returns the bytes of h.
func (h *hostile) module() []byte {
	section := func(id byte, content ...byte) []byte {
		return append(append([]byte{id}, uleb(len(content))...), content...)
	}
	sig := func(n int) []byte {
		return append(append([]byte{0x60, byte(n)}, slices.Repeat([]byte{0x7f}, n)...), 1, 0x7f)
	}
	var names []string
	for name := range functions() {
		if "-"+name != h.where {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	types := slices.Concat([]byte{4}, sig(0), sig(3), sig(6), sig(2))
	typeOf := map[int]byte{0: 0, 3: 1, 6: 2, 2: 3}
	funcs, exports, bodies := []byte{byte(len(names))}, []byte{byte(len(names) + 2)}, []byte{byte(len(names))}
	first := 0
	var imports []byte
	if h.imports {
		imports, first = section(2, 1, 1, 'm', 1, 'f', 0, 0), 1
	}
	export := func(name string, kind, index byte) {
		exports = append(append(append(exports, byte(len(name))), name...), kind, index)
	}
	for i, name := range names {
		funcs = append(funcs, typeOf[functions()[name]])
		export(name, 0, byte(first+i))
		body := []byte{opConst, 0, opEnd}
		if name == "abi" {
			body[1] = version
		}
		if name == h.where {
			body = h.code
		}
		bodies = append(append(append(bodies, uleb(len(body)+1)...), 0), body...)
	}
	export("memory", 2, 0)
	export("__heap_base", 3, 0)
	return slices.Concat([]byte("\x00asm\x01\x00\x00\x00"),
		section(1, types...), imports, section(3, funcs...), section(5, 1, 1, 1, 0xff, 0xff, 3),
		section(6, 1, 0x7f, 0, opConst, 0x80, 0x08, opEnd), section(7, exports...), section(10, bodies...))
}

func uleb(n int) (b []byte) {
	for ; n >= 0x80; n >>= 7 {
		b = append(b, byte(n)|0x80)
	}
	return append(b, byte(n))
}

// A hostile module is refused or stopped. No instance of it and no goroutine is left.
func TestHostileModules(t *testing.T) {
	for _, e := range []engine{compiler, interpreter} {
		for _, h := range hostiles {
			t.Run(map[engine]string{compiler: "compiler/", interpreter: "interpreter/"}[e]+h.name, func(t *testing.T) {
				goroutines := runtime.NumGoroutine()
				b, err := open(t.Context(), h.module(), e)
				require.NoError(t, err)
				patience := time.Minute // even on a slow machine, the fault comes first
				if h.want == "deadline exceeded" {
					patience = 50 * time.Millisecond
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience)
				defer cancel()
				c := newCall(problem(t, "b1-h1-g1-n5-m5-d8-f32"))
				if h.where == listEntry {
					c = newCall(problem(t, "b20-h1-g1-n5-m5-d8-f32"))
					c.fwd.Workers = 1
				}
				for range 3 { // the first failure does not take the backend down
					err = c.run(ctx, b.Kernels()[0])
					require.ErrorContains(t, err, h.want)
				}
				require.Empty(t, b.box.idle, "the instance is dropped")
				require.Empty(t, b.box.slots)
				require.NoError(t, b.Close())
				settle(t, goroutines)
			})
		}
	}
}

// The same module without a fault is accepted. So each hostile module is refused for
// its fault, not for another difference from kernel.wasm.
func TestHarmlessModule(t *testing.T) {
	b, err := open(t.Context(), (&hostile{}).module(), compiler)
	require.NoError(t, err)
	require.NoError(t, newCall(problem(t, "b1-h1-g1-n5-m5-d8-f32")).run(t.Context(), b.Kernels()[0]))
	require.NoError(t, b.Close())
}

func settle(t *testing.T, goroutines int) {
	t.Helper()
	for range 2000 {
		if runtime.NumGoroutine() <= goroutines {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Fatalf("%d goroutines, were %d", runtime.NumGoroutine(), goroutines)
}

// busyCall returns a call with every feature that has a bit in the parameter block.
func busyCall(t *testing.T, v *variant) *flashkit.Call {
	p := problem(t, "b1-h1-g1-n100-m300-d40-dv24-f32")
	if v.isDecode() {
		p.QLen = fewRows
	}
	if v.featureRows != "" {
		p.Score = flashkit.Score{Softcap: 3, ALiBi: true, Bias: true, Mask: true, Sink: true, Dropout: .5}
		p.Carry = v.pass == flashkit.PassForward
	}
	c := new(flashkit.Call)
	require.NoError(t, c.Set(p, v.pass, flashkit.NewArgs(p, v.pass)))
	return c
}

// The module returns a code if a function does not support a feature, or if the number of a feature
// is invalid.
func TestBadFeatures(t *testing.T) {
	b := newBackend(t, compiler)
	x, err := b.box.acquire(t.Context(), 16<<20)
	require.NoError(t, err)
	defer b.box.release(x)
	word := func(w *places, i int, v uint32) { binary.LittleEndian.PutUint32(x.at(w.block+uint64(4*i), 1), v) }
	for v := range variants {
		c := busyCall(t, &variants[v])
		n, s := newPlan(&variants[v], c), c.Seq(0)
		w := n.place(x.base)
		most := min(64, c.QLen)
		run := func() error { return x.call(t.Context(), n.function, int(w.block), 0, most, 0, 128, 3) }
		for bit := range 32 {
			x.writeBlock(&n, &w, &s, 0, n.chunk)
			if n.features != 0 {
				x.writeScore(&n, &w, 0, 0, s.Diagonal)
			}
			require.NoError(t, run())
			word(&w, wordFeatures, 1<<bit)
			if n.features>>bit&1 != 0 {
				require.NoError(t, run(), "feature %d", bit)
			} else {
				require.ErrorContains(t, run(), "bad feature", "feature %d", bit)
			}
		}
		if n.features == 0 {
			continue
		}
		if n.v.rows != n.function {
			require.ErrorContains(t, x.call(t.Context(), n.v.rows, int(w.block), 0, most, 0, 128, 3), "bad feature", "the plain loop")
		}
		nan, inf := math.Float32bits(float32(math.NaN())), math.Float32bits(float32(math.Inf(1)))
		for i, values := range map[int][]uint32{
			wordFeatures + 2:  {0x7fffffff, 0x80000000},                                               // diagonal, its upper half
			wordFeatures + 3:  {0, 0x80000000, nan, inf, math.Float32bits(-1)},                        // softcap
			wordFeatures + 7:  {0, nan, inf, math.Float32bits(.99), math.Float32bits(-2)},             // keep
			wordFeatures + 12: {0, 16, uint32(w.bias) + 4, uint32(len(x.memory)) - 65520, 0xfffffff0}, // bias
			wordFeatures + 13: {0, 16, uint32(w.mask) + 4, uint32(len(x.memory)) - 16368, 0xfffffff0}, // mask
			wordFeatures + 14: {0, 16, uint32(w.bias) + 4, uint32(len(x.memory)) - 65520, 0xfffffff0}, // dbias
		} {
			for _, value := range values {
				x.writeBlock(&n, &w, &s, 0, n.chunk)
				x.writeScore(&n, &w, 0, 0, s.Diagonal)
				word(&w, i, value)
				if i == wordFeatures+14 && c.Pass == flashkit.PassForward {
					require.NoError(t, run(), "a tile that is not used")
					continue
				}
				require.ErrorContains(t, run(), "bad ", "word %d = %#x", i, value)
			}
		}
	}
	x.failed = false
}

// A wrong block or range gives a code, never a trap.
func TestBadBlocks(t *testing.T) {
	b := newBackend(t, compiler)
	x, err := b.box.acquire(t.Context(), 16<<20)
	require.NoError(t, err)
	defer b.box.release(x)
	for v := range variants {
		c := busyCall(t, &variants[v])
		n, s := newPlan(&variants[v], c), c.Seq(0)
		w := n.place(x.base)
		require.LessOrEqual(t, w.end, uint64(len(x.memory)))
		most := min(64, c.QLen)
		rows := func(args ...int) error {
			return x.call(t.Context(), n.function, append([]int{int(w.block)}, args...)...)
		}
		good := func() {
			x.writeBlock(&n, &w, &s, 0, n.chunk)
			if n.v.featureRows != "" {
				x.writeScore(&n, &w, 0, 0, s.Diagonal)
			}
			x.failed = false
		}
		for _, f := range []string{n.v.keys, n.function, n.v.grads} {
			if f == "" {
				continue
			}
			for word := range 40 {
				for _, value := range []uint32{0, 1, 0x7fffffff, 0x80000000, 0xfffffff0, 0xffffffff} {
					good()
					for i := range 4 {
						x.at(w.block+uint64(4*word), 1)[i] = byte(value >> (8 * i))
					}
					args := []int{int(w.block), 0, most, 0, 64, 3}
					if f != n.function {
						args = []int{int(w.block), 0, 64}
					}
					if err := x.call(t.Context(), f, args...); err != nil {
						require.Regexp(t, ": bad (block|version|shape|tensor|scratch|range|feature)$", err.Error(), "%s with word %d = %#x", f, word, value)
					}
				}
			}
		}
		good()
		require.NoError(t, rows(0, most, 0, 128, flagFirst|flagLast))
		for _, c := range [][]int{{0, 129, 0, 128}, {5, 4, 0, 128}, {0, 64, 1, 128}, {0, 64, 128, 0}, {0, 64, 0, 1 << 20}, {0, -1, 0, 128}, {-1, -1, 0, 128}, {0, 64, 0, -1}} {
			require.ErrorContains(t, rows(c[0], c[1], c[2], c[3], 3), "bad range", "%v", c)
		}
		for _, at := range []int{0, 8, int(w.block) + 4, -16, int(w.end), len(x.memory) - 16} {
			require.ErrorContains(t, x.call(t.Context(), n.function, at, 0, most, 0, 128, 3), "bad ", "a block at %d", at)
		}
		if n.pairs {
			good()
			require.ErrorContains(t, rows(0, most, 0, 256, 3), "bad range", "more keys than the stage of pairs has")
		}
		// The host reserves exactly the scratch that the module needs.
		less := w
		less.scratchBytes -= 16
		x.writeBlock(&n, &less, &s, 0, n.chunk)
		require.ErrorContains(t, rows(0, most, 0, 128, 3), "bad scratch")
	}
	x.failed = false
}

// Kernels refuse only calls that the memory of a module cannot hold.
func TestFits(t *testing.T) {
	b := newBackend(t, compiler)
	for name, want := range map[string]string{
		"b2-h4-g2-n128-m4096-d512-f32":            "",
		"b1-h1-g1-n1-m4000000-d128-bf16":          "",
		"b1-h1-g1-n1-m5000000-d128-bf16":          "one head requires",
		"b1-h1-g1-n2000000000-m1-d8-f32":          "query rows and keys together",
		"b1-h1-g1-n1-m1-d2000000-f32":             "head dims up to",
		"b1-h1-g1-n1000000-m1000000-d1-dv513-f32": "",
	} {
		k := b.Kernels()[0]
		reason := k.Fits(problem(t, name).Ask(k.Pass))
		require.Contains(t, reason, want, name)
		require.Equal(t, want == "", reason == "", name)
	}
}
