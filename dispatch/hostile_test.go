package dispatch_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/backends/simd"
	"github.com/flashkit-go/flashkit/dispatch"
)

// With a zero dimension or stride, tensors need little or no memory, so the other dimensions may be
// arbitrarily large.

// hostileProblems returns small problems with some zero dimensions and one or two huge ones.
func hostileProblems() (list []flashkit.Problem) {
	dims := func(p *flashkit.Problem) []*int {
		return []*int{&p.Batch, &p.Heads, &p.QLen, &p.KVLen, &p.Dim, &p.VDim}
	}
	const batch, qLen, kvLen = 0, 2, 3
	seen := map[flashkit.Problem]bool{}
	for _, zeros := range [][]int{{}, {batch}, {qLen}, {kvLen}, {batch, qLen}, {qLen, kvLen}, {batch, kvLen}, {batch, qLen, kvLen}} {
		for i := range 6 {
			for j := range 6 {
				for _, size := range []int{1 << 20, math.MaxInt>>30 + 1, math.MaxInt>>13 + 1, math.MaxInt>>3 + 2} {
					p := flashkit.Problem{Batch: 1, Heads: 1, KVHeads: 1, QLen: 1, KVLen: 1, Dim: 1, VDim: 1, DType: flashkit.DType(len(list) % 3)}
					*dims(&p)[i], *dims(&p)[j] = size, size
					for _, z := range zeros {
						*dims(&p)[z] = 0
					}
					if (i+j)%3 == 0 {
						p.Band = flashkit.Window(size, 1)
					}
					same := p
					same.DType = 0
					if p.Validate() == nil && !seen[same] {
						seen[same] = true
						list = append(list, p)
						if p = hostileFeatures(p, len(list), size); p.Validate() == nil {
							list = append(list, p)
						}
					}
				}
			}
		}
	}
	return list
}

// hostileFeatures adds the features selected by n to a problem.
func hostileFeatures(p flashkit.Problem, n, size int) flashkit.Problem {
	switch n % 7 {
	case 0:
		p.Band = p.Band.Shift(size)
	case 1:
		p.Band = p.Band.Shift(-3)
	case 2:
		p.Score.Softcap, p.Score.Sink = 5, true
	case 3:
		p.Score.ALiBi, p.Score.Mask, p.Score.Dropout = true, true, .5
	case 4:
		p.Score.Bias, p.Score.Sink = true, true
	case 5:
		p.Ragged, p.Carry = true, true
	case 6:
		p.Ragged, p.Page = true, size
	}
	return p
}

// heldBytes bounds the memory of one hostile tensor.
const heldBytes = 1 << 16

// held returns a tensor of a shape over little memory. Long dimensions of inputs repeat (stride 0);
// a large output is too short.
func held(t flashkit.DType, s [4]int, input bool) flashkit.Tensor {
	n := 1.0
	for _, d := range s {
		n *= float64(d)
	}
	stride := [3]int{s[1] * s[2] * s[3], s[2] * s[3], s[3]}
	if input && n*4 > heldBytes {
		stride, n = [3]int{}, float64(s[3])
	}
	elements := int(min(n, heldBytes/4))
	x := flashkit.F32(make([]float32, elements), s[0], s[1], s[2], s[3])
	switch t {
	case flashkit.Float16:
		x = flashkit.F16(make([]uint16, elements), s[0], s[1], s[2], s[3])
	case flashkit.BFloat16:
		x = flashkit.BF16(make([]uint16, elements), s[0], s[1], s[2], s[3])
	case flashkit.Int32:
		x = flashkit.Int32s(make([]int32, elements), s[0], s[1], s[2], s[3])
	case flashkit.Bool:
		x = flashkit.Bools(make([]bool, elements), s[0], s[1], s[2], s[3])
	}
	return x.WithStrides(stride[0], stride[1], stride[2])
}

// hostileArgs returns tensors over little memory. The page pool is empty.
func hostileArgs(p *flashkit.Problem, s flashkit.Pass) *flashkit.Args {
	args := new(flashkit.Args)
	for _, a := range flashkit.Arguments() {
		role, shape := a.Role(p, s), a.Shape(p)
		switch a.Name {
		case "DLSE":
			continue
		case "Bias", "DBias", "Mask":
			shape = [4]int{1, 1, 1, p.KVLen}
		case "K", "V":
			if p.Page > 0 {
				shape[0], shape[2] = 0, p.Page
			}
		}
		if role != 0 {
			*a.Of(args) = held(a.DType(p), shape, role&flashkit.Output == 0)
		}
	}
	if p.Ragged {
		args.Seqs = new(flashkit.Sequences)
	}
	if p.Page > 0 && p.Batch < heldBytes {
		args.Seqs.KVLens, args.Seqs.Pages = make([]int32, p.Batch), make([]int32, p.Batch)
	}
	return args
}

type compute = func(context.Context, flashkit.Problem, *flashkit.Args) error

// requireHarmless requires a call to end with an accepted result, allocating at most tiles of the
// widest rows.
func requireHarmless(t *testing.T, d *dispatch.Dispatcher, p flashkit.Problem) {
	const most = 256 << 20
	var before, after runtime.MemStats
	harmless := func(who string, call func(context.Context) error) {
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		defer cancel()
		runtime.ReadMemStats(&before)
		err := call(ctx)
		runtime.ReadMemStats(&after)
		require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(most), "%s %s", who, p)
		var wrong *flashkit.ProblemError
		if err != nil && !errors.As(err, &wrong) && !errors.Is(err, context.DeadlineExceeded) {
			require.ErrorIs(t, err, errors.ErrUnsupported, "%s %s", who, p)
		}
	}
	// A sandbox packs a head's keys, within its own limit.
	packs := func(k flashkit.Kernel) bool {
		return strings.HasPrefix(k.Name, "wasm/") && k.Needs(p.Ask(k.Pass)).Host > most/8
	}
	call := func(ctx context.Context, s flashkit.Pass, do compute) error { return do(ctx, p, hostileArgs(&p, s)) }
	for _, s := range []flashkit.Pass{flashkit.PassForward, flashkit.PassBackward} {
		if k, err := d.Pick(p, s); err != nil || !packs(k) {
			pass := d.Forward
			if s == flashkit.PassBackward {
				pass = d.Backward
			}
			harmless("dispatch", func(ctx context.Context) error { return call(ctx, s, pass) })
		}
		_, err := d.Explain(p, s)
		require.NoError(t, err)
	}
	for _, k := range d.Kernels() {
		if k.Fits(p.Ask(k.Pass)) != "" {
			continue
		}
		given := new(flashkit.Call)
		if given.Set(p, k.Pass, hostileArgs(&p, k.Pass)) != nil {
			given = p.Ask(k.Pass)
		}
		for _, c := range []*flashkit.Call{p.Ask(k.Pass), given} {
			require.GreaterOrEqual(t, k.Cost(c), time.Duration(0), "%s %s", k.Name, p)
			if k.Needs != nil {
				require.GreaterOrEqual(t, k.Needs(c).Host, 0., "%s %s", k.Name, p)
			}
		}
		if packs(k) {
			continue
		}
		harmless(k.Name, func(ctx context.Context) error { return call(ctx, k.Pass, k.Compute) })
	}
}

// No problem alone determines allocations, nor the time of a call without work.
func TestHostileProblems(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	d := dispatch.All(t.Context())
	defer d.Close()
	list := hostileProblems()
	require.Greater(t, len(list), 60)
	for _, p := range list {
		t.Run(p.String(), func(t *testing.T) { requireHarmless(t, d, p) })
	}
}

func FuzzHostileProblems(f *testing.F) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	d := dispatch.All(f.Context())
	f.Cleanup(func() { d.Close() })
	for _, p := range hostileProblems()[:40] {
		f.Add(p.Batch, p.Heads/p.KVHeads, p.KVHeads, p.QLen, p.KVLen, p.Dim, p.VDim, uint8(p.DType), p.Band.Left(), p.Band.Right(), p.Band.IsTopLeft())
	}
	f.Fuzz(func(t *testing.T, batch, group, kvHeads, qLen, kvLen, dim, vdim int, dtype uint8, left, right int, topLeft bool) {
		p := flashkit.Problem{Batch: batch, Heads: kvHeads * group, KVHeads: kvHeads, QLen: qLen, KVLen: kvLen, Dim: dim, VDim: vdim,
			DType: flashkit.DType(dtype % 3), Band: flashkit.Window(left, right)}
		if topLeft {
			p.Band = p.Band.TopLeft()
		}
		if p.Validate() != nil {
			t.Skip(fmt.Sprint(p))
		}
		requireHarmless(t, d, p)
	})
}

// Except for each worker's tiles, a call's workspace is proportional to its tensors.
func TestWorkspaceIsBoundedByTensors(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	d := dispatch.New(simd.New())
	defer d.Close()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	dim := func(least, bits int) int { return max(least, int(math.Exp2(r.Float64()*float64(bits)))-r.IntN(2)) }
	for range 20000 {
		p := flashkit.Problem{Batch: dim(0, 24), KVHeads: dim(1, 12), QLen: dim(0, 24), KVLen: dim(0, 24), Dim: dim(1, 24), VDim: dim(1, 24), DType: flashkit.DType(r.IntN(3))}
		p.Heads = p.KVHeads * dim(1, 8)
		if p.Validate() != nil {
			continue
		}
		for _, k := range d.Kernels() {
			times := 40.
			if strings.HasPrefix(k.Name, "simd/bwd_amx") { // a sum of dQ has the rows of a product
				times = 200
			}
			if k.Fits(p.Ask(k.Pass)) == "" {
				require.LessOrEqual(t, k.Needs(p.Ask(k.Pass)).Host, times*p.Bytes(k.Pass)+128<<20, "%s %s", k.Name, p)
			}
		}
	}
}
