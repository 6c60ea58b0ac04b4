//go:build ((linux && (amd64 || arm64)) || (windows && amd64)) && !nocuda

package cuda

import (
	"context"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// Parts of a call, as an ordered ring computes them, have the bits of the whole: rows and keys cut
// at multiples of Options.PartOf, and heads anywhere. FLASHKIT_SEED and FLASHKIT_PROBLEMS select
// random problems, FLASHKIT_NAMES the first ones.
func TestPartsHaveTheBitsOfTheWhole(t *testing.T) {
	b, seed, n := openGPU(t), rand.Uint64(), 40
	if s, err := strconv.ParseUint(os.Getenv("FLASHKIT_SEED"), 10, 64); err == nil {
		seed = s
	}
	if s, err := strconv.Atoi(os.Getenv("FLASHKIT_PROBLEMS")); err == nil {
		n = s
	}
	t.Logf("FLASHKIT_SEED=%d", seed)
	names := strings.Fields(os.Getenv("FLASHKIT_NAMES"))
	for i := range n {
		r := rand.New(rand.NewPCG(seed, uint64(i)))
		name := drawWhole(r).String()
		if i < len(names) {
			name = names[i]
		}
		x := &wholeCall{deviceCall: newDeviceCall(t, b, name), t: t, r: r}
		x.args.Seed = seed
		for i := range families {
			if s := &families[i]; familyID(i) != decodeSM80 && s.fits(&b.dev, x.p) && !(s.hopper && looseRows(x.p)) {
				x.kernel = "cuda/" + s.name
				x.check(s.pass)
			}
		}
		x.close(t)
	}
}

// drawWhole draws a problem with interesting parts.
func drawWhole(r *rand.Rand) flashkit.Problem {
	pick := func(list ...int) int { return list[r.IntN(len(list))] }
	p := flashkit.Problem{Batch: 1 + r.IntN(2), KVHeads: 1 + r.IntN(3), DType: dtypes[pick(0, 1, 2, 2, 2)]}
	p.Heads, p.Dim = p.KVHeads*pick(1, 1, 2, 3, 4), pick(16, 40, 64, 64, 80, 128, 128, 192, 256)
	p.VDim = p.Dim
	p.QLen = pick(1+r.IntN(100), 100+r.IntN(500), 500+r.IntN(1000))
	if p.KVLen = p.QLen; r.IntN(3) == 0 {
		p.KVLen = 1 + r.IntN(1500)
	}
	switch r.IntN(6) {
	case 0, 1:
		p.Band = flashkit.Causal()
	case 2:
		p.Band = flashkit.Window(r.IntN(p.QLen), 0)
	case 3:
		p.Band = flashkit.Window(r.IntN(p.QLen), r.IntN(p.QLen))
	}
	if r.IntN(5) < 3 {
		p.Score.Dropout = [...]float32{.1, .5, .9}[r.IntN(3)]
	}
	if r.IntN(4) == 0 {
		p.Score.Softcap = 5
	}
	p.Score.ALiBi, p.Score.Sink, p.Score.Bias, p.Score.Mask = r.IntN(6) == 0, r.IntN(5) == 0, r.IntN(10) == 0, r.IntN(10) == 0
	return p
}

// A wholeCall is a call that is computed at once and in parts.
type wholeCall struct {
	*deviceCall
	t      *testing.T
	r      *rand.Rand
	kernel string
}

// cuts returns the begins of parts of n rows, with 0 and n.
func (x *wholeCall) cuts(n int) []int {
	list, unit := []int{0}, 128
	if x.p.Band.Left() != flashkit.Unlimited {
		unit = 384
	}
	for at := unit * (1 + x.r.IntN(4)); at < n; at += unit * (1 + x.r.IntN(4)) {
		list = append(list, at)
	}
	return append(list, n)
}

// check computes the whole and its parts, and compares.
func (x *wholeCall) check(pass flashkit.Pass) {
	outputs := []*flashkit.Tensor{&x.args.O, &x.args.LSE}
	if pass == flashkit.PassBackward {
		outputs = []*flashkit.Tensor{&x.args.DQ, &x.args.DK, &x.args.DV}
		x.fwdOptions.Kernel = ""
		require.NoError(x.t, x.forward())
	}
	require.NoError(x.t, x.b.Launch(context.Background(), x.s, x.p, pass, &x.args, Options{Kernel: x.kernel, PartOf: x.whole()}))
	var want [][]float32
	for _, o := range outputs {
		want = append(want, x.download(x.t, *o))
		require.NoError(x.t, x.s.Fill(*o, float32(math.NaN())))
	}
	x.parts(pass)
	for i, o := range outputs {
		got, n := x.download(x.t, *o), o.Shape()
		for at := range got {
			if math.Float32bits(got[at]) != math.Float32bits(want[i][at]) {
				wrong := 0
				for j := range got {
					if math.Float32bits(got[j]) != math.Float32bits(want[i][j]) {
						wrong++
					}
				}
				row := at / n[3]
				x.t.Errorf("%s %v: output %d differs in %d of %d, first [%d %d %d %d]: %g, the whole has %g", x.kernel, x.p, i, wrong, len(got),
					row/n[2]/n[1], row/n[2]%n[1], row%n[2], at%n[3], got[at], want[i][at])
				break
			}
		}
	}
}

// whole returns Options.PartOf, nil if FLASHKIT_APART is set.
func (x *wholeCall) whole() *flashkit.Problem {
	if os.Getenv("FLASHKIT_APART") != "" {
		return nil
	}
	return &x.p
}

// parts computes the pass in parts: ranges of rows and, backward, ranges of keys.
func (x *wholeCall) parts(pass flashkit.Pass) {
	group := x.p.Heads / x.p.KVHeads
	heads := []int{0, x.p.KVHeads}
	if s := x.p.Score; pass == flashkit.PassForward && x.p.KVHeads > 1 && !(s.ALiBi || s.Bias || s.Mask || s.Sink) {
		heads = []int{0, 1 + x.r.IntN(x.p.KVHeads-1), x.p.KVHeads}
	}
	rows, keys := x.cuts(x.p.QLen), x.cuts(x.p.KVLen)
	scratch := func(t flashkit.Tensor) flashkit.Tensor {
		m, err := x.b.Alloc(t.Len() * t.DType().Size())
		require.NoError(x.t, err)
		x.buffers = append(x.buffers, m)
		n := t.Shape()
		return m.Tensor(t.DType(), 0, n[0], n[1], n[2], n[3])
	}
	for i := range len(heads) - 1 {
		h, nh := heads[i], heads[i+1]-heads[i]
		for j := range len(rows) - 1 {
			r, n := rows[j], rows[j+1]-rows[j]
			p, a := x.part(h, nh, r, n, 0, x.p.KVLen)
			for _, t := range [...]*flashkit.Tensor{&a.Q, &a.O, &a.LSE, &a.DO, &a.DQ} {
				*t = piece(*t, h*group, nh*group, r, n)
			}
			a.K, a.V = piece(a.K, h, nh, 0, x.p.KVLen), piece(a.V, h, nh, 0, x.p.KVLen)
			if pass == flashkit.PassBackward {
				a.DK, a.DV = scratch(x.args.DK), scratch(x.args.DV)
			}
			require.NoError(x.t, x.b.Launch(context.Background(), x.s, p, pass, &a, Options{Kernel: x.kernel, PartOf: x.whole(), Beside: x.r.IntN(2) == 0}))
		}
	}
	for j := 0; pass == flashkit.PassBackward && j < len(keys)-1; j++ {
		k, m := keys[j], keys[j+1]-keys[j]
		p, a := x.part(0, x.p.KVHeads, 0, x.p.QLen, k, m)
		for _, t := range [...]*flashkit.Tensor{&a.K, &a.V, &a.DK, &a.DV} {
			*t = piece(*t, 0, x.p.KVHeads, k, m)
		}
		a.DQ = scratch(x.args.DQ)
		require.NoError(x.t, x.b.Launch(context.Background(), x.s, p, pass, &a, Options{Kernel: x.kernel, PartOf: x.whole(), Beside: x.r.IntN(2) == 0}))
	}
}

// part returns the problem of some heads, rows and keys, with tensors of pairs.
func (x *wholeCall) part(h, nh, r, n, k, m int) (flashkit.Problem, flashkit.Args) {
	p, a, group := x.p, x.args, x.p.Heads/x.p.KVHeads
	p.KVHeads, p.Heads, p.QLen, p.KVLen = nh, nh*group, n, m
	p.Band = p.Band.Shift(x.p.Band.Diagonal(x.p.QLen, x.p.KVLen) + r - k - p.Band.Diagonal(n, m))
	if p.Score.Dropout != 0 {
		p.Score.Origin = true
		a.Origin = flashkit.Origin{Head: h * group, Row: r, Key: k}
	}
	a.DBias, a.DSink = flashkit.Tensor{}, flashkit.Tensor{}
	for _, t := range [...]*flashkit.Tensor{&a.Bias, &a.Mask} {
		if !t.IsZero() {
			s := t.Strides()
			*t = buffer(*t).Tensor(t.DType(), t.Offset(0, 0, r)+k, t.Shape()[0], t.Shape()[1], n, m).WithStrides(s[0], s[1], s[2])
		}
	}
	return p, a
}

// piece returns the view of some heads and rows.
func piece(t flashkit.Tensor, h, nh, r, n int) flashkit.Tensor {
	if t.IsZero() {
		return t
	}
	s := t.Strides()
	return buffer(t).Tensor(t.DType(), t.Offset(0, h, r), t.Shape()[0], nh, n, t.Shape()[3]).WithStrides(s[0], s[1], s[2])
}
