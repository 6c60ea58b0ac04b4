package simd_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/internal/slow"
)

// The gradients of a sequence depend on the sequence's lengths and elements, and on the call's
// problem. They do not depend on other sequences, layout, padding or the number of workers.

// A batchTrial is a batch of sequences. A seed and an element's position determine each element.
type batchTrial struct {
	p    flashkit.Problem // QLen and KVLen are the capacity of padded tensors
	n, m []int
	seed uint64
	size map[string]float32 // magnitude of the elements of an argument, 1 by default

	// Type and shape of biases and masks. A mask hides whole blocks of rows and keys.
	bias    flashkit.DType
	shared  [3]bool // the dimensions over which biases and masks repeat
	block   [2]int
	density float32
}

// shape returns the shape of a bias or a mask with the given sequences, rows and keys.
func (s *batchTrial) shape(x [4]int) [4]int {
	for d := range s.shared {
		if s.shared[d] {
			x[d] = 1
		}
	}
	return x
}

// of returns the value of an element of a bias or a mask.
func (s *batchTrial) of(name string, b, h, i, j int) float32 {
	at := [3]int{b, h, i}
	for d := range at {
		if s.shared[d] {
			at[d] = 0
		}
	}
	return s.number(name, at[0], at[1], at[2], j)
}

func (s *batchTrial) sees(b, h, i, j int) bool {
	return s.of("Mask", b, h, i/s.block[0], j/s.block[1]) < s.density
}

// form is a layout of sequences.
type form int

const (
	alone  form = iota // one sequence, of equal lengths
	single             // one sequence of a batch, whose other sequences are empty
	padded
	packed
	mixed // packed rows, padded keys
	full  // all sequences have full length, and no lengths are given
)

// number returns the pseudorandom value of an element of an argument of sequence b.
func (s *batchTrial) number(name string, b, h, i, c int) float32 {
	x := s.seed
	for _, y := range []int{len(name), int(name[0]), int(name[len(name)-1]), b, h, i, c} {
		x = (x ^ uint64(y)) * 0x9E3779B97F4A7C15
		x ^= x >> 29
	}
	y := float32(int32(x>>32)) / (1 << 30)
	if size, ok := s.size[name]; ok {
		y *= size
	}
	return y
}

// args returns the arguments of a call with sequences [b0, b1) in a form.
func (s *batchTrial) args(b0, b1 int, f form) (flashkit.Problem, *flashkit.Args, func(name string, b, i int) (batch, row int)) {
	p, place := s.p, s.p
	p.Ragged = f != alone && f != full
	seqs := new(flashkit.Sequences)
	var q, k []int32
	rows, keys := 0, 0
	for b := range s.n {
		n, m := s.n[b], s.m[b]
		if b < b0 || b >= b1 {
			n, m = 0, 0
		}
		if f == packed || f == mixed {
			q = append(q, int32(rows))
		} else {
			q = append(q, int32(n))
		}
		if f == packed {
			k = append(k, int32(keys))
		} else {
			k = append(k, int32(m))
		}
		rows, keys = rows+n, keys+m
	}
	seqs.QLens, seqs.KVLens = q, k
	if f == packed || f == mixed {
		seqs.QLens, seqs.QStarts = nil, append(q, int32(rows))
		place.Batch, place.QLen = 1, rows
	}
	if f == packed {
		seqs.KVLens, seqs.KVStarts = nil, append(k, int32(keys))
	}
	if f == alone {
		p.Batch, p.QLen, p.KVLen = 1, s.n[b0], s.m[b0]
		place = p
	}
	place.Ragged = false
	a := flashkit.NewArgs(place, flashkit.PassBackward)
	if f == packed || f == mixed {
		keysOf := place
		if keysOf.Batch, keysOf.KVLen = s.p.Batch, s.p.KVLen; f == packed {
			keysOf.Batch, keysOf.KVLen = 1, keys
		}
		b := flashkit.NewArgs(keysOf, flashkit.PassBackward)
		a.K, a.V, a.DK, a.DV = b.K, b.V, b.DK, b.DV
	}
	if a.Seqs = seqs; !p.Ragged {
		a.Seqs = nil
	}
	a.Seed = s.seed
	s.setScores(p, a, b0, b1)
	at := func(name string, b, i int) (batch, row int) {
		switch key := strings.Contains("K V DK DV", name); {
		case f == alone:
			return 0, i
		case key && f == packed:
			return 0, int(k[b]) + i
		case !key && (f == packed || f == mixed):
			return 0, int(q[b]) + i
		}
		return b, i
	}
	for _, name := range []string{"Q", "O", "LSE", "DO", "DLSE", "DQ", "K", "V", "DK", "DV"} {
		t := argument(a, name)
		fill(t, math.NaN())
		for b := b0; b < b1; b++ {
			n := s.n[b]
			if strings.Contains("K V DK DV", name) {
				n = s.m[b]
			}
			for h := range t.Shape()[1] {
				for i := range n {
					batch, row := at(name, b, i)
					for c := range t.Shape()[3] {
						put(t, t.Offset(batch, h, row)+c, float64(s.number(name, b, h, i, c)))
					}
				}
			}
		}
	}
	return p, a, at
}

func newTensorOf(t flashkit.DType, s [4]int) flashkit.Tensor {
	return flashkit.Zeros(t, s[0], s[1], s[2], s[3])
}

func argument(a *flashkit.Args, name string) *flashkit.Tensor {
	for _, x := range flashkit.Arguments() {
		if x.Name == name {
			return x.Of(a)
		}
	}
	panic("no argument " + name)
}

// run returns the bits of the gradients of sequences [b0, b1), all computed in one call.
func (s *batchTrial) run(t *testing.T, k flashkit.Kernel, b0, b1 int, f form) (all []map[string][]uint32) {
	p, a, at := s.args(b0, b1, f)
	require.NoError(t, k.Compute(t.Context(), p, a), s.String())
	for b := b0; b < b1; b++ {
		bits := map[string][]uint32{}
		for _, name := range []string{"DQ", "DK", "DV"} {
			x, n := argument(a, name), s.n[b]
			if name != "DQ" {
				n = s.m[b]
			}
			for h := range x.Shape()[1] {
				for i := range n {
					batch, row := at(name, b, i)
					for c := range x.Shape()[3] {
						bits[name] = append(bits[name], math.Float32bits(float32(get(x, x.Offset(batch, h, row)+c))))
					}
				}
			}
		}
		s.addBiasBits(p, a, bits, b, b1-b0)
		all = append(all, bits)
	}
	return all
}

// addBiasBits adds the bits of dBias and dSink: of sequence b if it has its own dBias, else of all
// sequences.
func (s *batchTrial) addBiasBits(p flashkit.Problem, a *flashkit.Args, bits map[string][]uint32, b, sequences int) {
	add := func(name string, t *flashkit.Tensor, at int) {
		bits[name] = append(bits[name], math.Float32bits(float32(get(t, at))))
	}
	d, own := &a.DBias, s.shared == [3]bool{}
	switch {
	case d.IsZero():
	case own:
		if p.Batch < s.p.Batch {
			b = 0
		}
		n, m := s.n[b], s.m[b]
		if p.Batch < s.p.Batch {
			n, m = p.QLen, p.KVLen
		}
		for h := range p.Heads {
			for i := range n {
				for j := range m {
					add("DBias", d, d.Offset(b, h, i)+j)
				}
			}
		}
	case sequences == s.p.Batch && p.Batch == s.p.Batch && p.QLen == s.p.QLen && p.KVLen == s.p.KVLen:
		each(*d, func(_ [4]int, at int) { add("all of DBias", d, at) })
	}
	if !a.DSink.IsZero() && sequences == s.p.Batch && p.Batch == s.p.Batch {
		each(a.DSink, func(_ [4]int, at int) { add("DSink", &a.DSink, at) })
	}
}

func (s *batchTrial) String() string {
	return fmt.Sprintf("%v n=%v m=%v seed=%d size=%v bias=%v shared=%v block=%v density=%v", s.p, s.n, s.m, s.seed, s.size, s.bias, s.shared, s.block, s.density)
}

// newBatchTrial draws sequences of up to the given rows and keys, most of them short.
func newBatchTrial(r *rand.Rand, p flashkit.Problem) *batchTrial {
	s := &batchTrial{p: p, seed: r.Uint64(), size: map[string]float32{}}
	length := func(most int) int {
		switch r.IntN(8) {
		case 0:
			return 0
		case 1:
			return most
		case 2, 3:
			return 1 + r.IntN(most)
		}
		return 1 + r.IntN(min(most, 1<<(1+r.IntN(9))))
	}
	for range p.Batch {
		s.n, s.m = append(s.n, length(p.QLen)), append(s.m, length(p.KVLen))
	}
	s.p.QLen, s.p.KVLen = slices.Max(s.n)+r.IntN(2)*r.IntN(600), slices.Max(s.m)+r.IntN(2)*r.IntN(9000)
	for d := range s.shared {
		s.shared[d] = r.IntN(2) == 0
	}
	if r.IntN(4) == 0 {
		for b := range s.n {
			s.n[b], s.m[b] = s.n[0], s.m[0]
		}
		s.p.QLen, s.p.KVLen = s.n[0], s.m[0]
	}
	if s.bias = p.DType; r.IntN(2) == 0 {
		s.bias = flashkit.Float32
	}
	if p.Score.Bias && !s.isFull() { // which has its own memory
		s.p.QLen, s.p.KVLen = slices.Max(s.n)+r.IntN(70), slices.Max(s.m)+r.IntN(70)
	}
	s.block, s.density = [2]int{1 << r.IntN(9), 1 << r.IntN(9)}, []float32{-1.5, 0, 1.5}[r.IntN(3)]
	if r.IntN(3) == 0 { // gradients so small that some are rounded to -0
		s.size["K"], s.size["Q"] = 0x1p-124, 0x1p-124
	}
	return s
}

// isFull reports whether all sequences have the problem's lengths.
func (s *batchTrial) isFull() bool {
	for b := range s.n {
		if s.n[b] != s.p.QLen || s.m[b] != s.p.KVLen {
			return false
		}
	}
	return true
}

// drawBatch draws a problem for a kernel. Some problems have many query heads per KV head, and some
// have many keys.
func drawBatch(r *rand.Rand, dtype flashkit.DType, takes flashkit.Feature) flashkit.Problem {
	g := 1 + r.IntN(2)
	p := flashkit.Problem{
		Batch: 1 + r.IntN(4), KVHeads: g, Heads: g * (1 + r.IntN(2)), QLen: 200, KVLen: 200,
		Dim: 1 + r.IntN(40), VDim: 1 + r.IntN(40), DType: dtype,
		Band: []flashkit.Band{{}, flashkit.Causal(), flashkit.Window(r.IntN(300), r.IntN(300)), flashkit.Causal().TopLeft()}[r.IntN(4)],
	}
	switch r.IntN(4) {
	case 0: // runs of query rows
		p.KVHeads, p.Heads, p.QLen, p.KVLen, p.Dim, p.VDim = 1, 20+r.IntN(30), 300, 70, 1+r.IntN(8), 1+r.IntN(8)
	case 1: // chains
		p.KVHeads, p.Heads, p.QLen, p.KVLen = 1, 1, 100, 2300
	case 2: // runs of keys
		p.KVHeads, p.Heads, p.QLen, p.KVLen, p.Dim, p.VDim = 1, 1+3*r.IntN(2), 20, 4000+r.IntN(6000), 1+r.IntN(8), 1+r.IntN(8)
	}
	if r.IntN(3) == 0 {
		p.Band = p.Band.Shift(r.IntN(41) - 20)
	}
	if r.IntN(2) == 0 {
		shift := p.Band
		addFeatures(&p, flashkit.Feature(r.Uint32())&takes&^(flashkit.FeatureShift|flashkit.FeatureRagged))
		p.Band = shift
	}
	return p
}

// trials returns the number of trials of a test that compares bits. It is FLASHKIT_TRIALS or a
// default. The default is small under the race detector and in an emulator, where calls are slow.
func trials(t *testing.T, few, short, long int) int {
	n, err := strconv.Atoi(os.Getenv("FLASHKIT_TRIALS"))
	switch {
	case err == nil:
		return n
	case slow.Race || os.Getenv("FLASHKIT_EMULATOR") != "":
		return few
	case testing.Short():
		return short
	}
	return long
}

func TestBackwardBitsOfSequences(t *testing.T) {
	slow.UnderRace(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for _, k := range simd.New().Kernels() {
		if k.Pass != flashkit.PassBackward {
			continue
		}
		t.Run(k.Name, func(t *testing.T) {
			r, ran := rand.New(rand.NewPCG(seed, 0)), 0
			for i := range trials(t, 4, 4, 40) {
				s := newBatchTrial(r, drawBatch(r, dtypes[i%3], k.Takes))
				if ask := s.p; k.Fits(ask.Ask(k.Pass)) != "" {
					continue
				}
				ran++
				s.check(t, r, k)
			}
			t.Logf("%d trials", ran)
		})
	}
}

// check compares the results of all forms. The portable kernel has separate code for equal lengths.
func (s *batchTrial) check(t *testing.T, r *rand.Rand, k flashkit.Kernel) {
	withProcs(t, 1+r.IntN(3))
	want := s.run(t, k, 0, len(s.n), padded)
	same := func(b int, got map[string][]uint32, about string) {
		for name, bits := range want[b] {
			if got[name] != nil && !slices.Equal(bits, got[name]) {
				i := 0
				for bits[i] == got[name][i] {
					i++
				}
				t.Fatalf("%v: %s of sequence %d differs %s, first at %d: %g, padded %g", s, name, b, about, i, math.Float32frombits(got[name][i]), math.Float32frombits(bits[i]))
			}
		}
	}
	for _, f := range []form{padded, packed, mixed} {
		withProcs(t, []int{1, 2, 5}[r.IntN(3)])
		for b, got := range s.run(t, k, 0, len(s.n), f) {
			same(b, got, []string{padded: "padded", packed: "packed", mixed: "with packed rows"}[f])
		}
	}
	if s.isFull() && !strings.HasSuffix(k.Name, "_generic") {
		for b, got := range s.run(t, k, 0, len(s.n), full) {
			same(b, got, "in a call of equal lengths")
		}
	}
	for b := range s.n {
		if !strings.HasSuffix(k.Name, "_generic") && !(s.p.Score.Dropout != 0 && b > 0) {
			same(b, s.run(t, k, b, b+1, alone)[0], "alone")
		}
		same(b, s.run(t, k, b, b+1, single)[0], "among empty ones")
	}
}
