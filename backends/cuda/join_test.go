package cuda

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/internal/half"
)

// openPair opens two devices of one fake.
func openPair(t *testing.T, apart bool) [2]*Backend {
	f := newFake()
	f.devices, f.apart = 2, apart
	var list [2]*Backend
	for i := range list {
		b, err := OpenWith(&f.Driver, i)
		require.NoError(t, err)
		list[i] = b
	}
	t.Cleanup(func() {
		require.NoError(t, list[0].Close())
		require.NoError(t, list[1].Close())
		require.Empty(t, f.leaks())
	})
	return list
}

// openStream returns a stream that the test closes.
func openStream(t *testing.T, b *Backend) *Stream {
	s, err := b.NewStream()
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, s.Close()) })
	return s
}

// placed returns a device tensor with values.
func placed(t *testing.T, s *Stream, dtype flashkit.DType, values []float32, gap int, n [4]int) flashkit.Tensor {
	row := n[3] + gap
	m, err := s.b.Alloc(n[0] * n[1] * n[2] * row * dtype.Size())
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, m.Free()) })
	x := m.Tensor(dtype, 0, n[0], n[1], n[2], n[3]).WithStrides(n[1]*n[2]*row, n[2]*row, row)
	all := make([]float32, n[0]*n[1]*n[2]*row)
	for i := range all {
		if i%row < n[3] && values != nil {
			all[i] = values[i/row*n[3]+i%row]
		}
	}
	switch dtype {
	case flashkit.Float16:
		require.NoError(t, Upload(s, m, 0, flashkit.ToF16(all)))
	case flashkit.BFloat16:
		require.NoError(t, Upload(s, m, 0, flashkit.ToBF16(all)))
	default:
		require.NoError(t, Upload(s, m, 0, all))
	}
	return x
}

// valuesOf reads a placed tensor.
func valuesOf(t *testing.T, s *Stream, x flashkit.Tensor) (list []float64) {
	m := x.Owner().(*Buffer)
	n, row := x.Shape(), x.Strides()[2]
	words, wide := make([]uint16, x.Len()), make([]float32, x.Len())
	if x.DType() == flashkit.Float32 {
		require.NoError(t, Download(s, wide, m, 0))
	} else {
		require.NoError(t, Download(s, words, m, 0))
	}
	for i := range x.Len() {
		if i%row >= n[3] {
			continue
		}
		switch x.DType() {
		case flashkit.Float16:
			list = append(list, float64(half.FromF16(words[i])))
		case flashkit.BFloat16:
			list = append(list, float64(half.FromBF16(words[i])))
		default:
			list = append(list, float64(wide[i]))
		}
	}
	return list
}

// joinOn tests kernels/join.cu on a fake or a device.
func joinOn(t *testing.T, b *Backend) {
	s := openStream(t, b)
	r := rand.New(rand.NewPCG(1, 2))
	numbers := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.IntN(64)-32) / 8 // exact in every type
		}
		return x
	}
	for _, n := range [][4]int{{1, 1, 1, 1}, {2, 3, 5, 7}, {1, 2, 300, 64}, {2, 1, 17, 128}, {1, 1, 3, 600}} {
		for gap := range 2 {
			for _, types := range [][3]flashkit.DType{{0, 0, 0}, {0, 1, 2}, {1, 1, 1}, {2, 0, 2}, {2, 2, 2}, {1, 2, 0}} {
				count := n[0] * n[1] * n[2]
				x, y, l, m := numbers(count*n[3]), numbers(count*n[3]), numbers(count), numbers(count)
				l[0] = float32(math.Inf(-1))
				if m[count-1] = float32(math.Inf(-1)); count > 2 {
					l[1], m[1] = l[0], l[0]
				}
				dst, a, c := placed(t, s, types[0], nil, gap, n), placed(t, s, types[1], x, gap, n), placed(t, s, types[2], y, gap, n)
				require.NoError(t, s.Add(dst, a, c))
				for i, got := range valuesOf(t, s, dst) {
					require.Equal(t, float64(x[i]+y[i]), got)
				}
				require.NoError(t, s.Add(dst, c, flashkit.Tensor{}))
				for i, got := range valuesOf(t, s, dst) {
					require.Equal(t, float64(y[i]), got)
				}
				require.NoError(t, s.Fill(dst, -2.5))
				require.Equal(t, -2.5, valuesOf(t, s, dst)[len(x)-1])
				mergeOn(t, s, a, c, n, x, y, l, m)
			}
		}
	}
}

func mergeOn(t *testing.T, s *Stream, o, part flashkit.Tensor, n [4]int, x, y, l, m []float32) {
	n[3] = 1
	lse, other := placed(t, s, flashkit.Float32, l, 0, n), placed(t, s, flashkit.Float32, m, 0, n)
	require.NoError(t, s.Merge(o, lse, part, other))
	sums, got := valuesOf(t, s, lse), valuesOf(t, s, o)
	unit := map[flashkit.DType]float64{flashkit.Float32: 1e-6, flashkit.Float16: 1e-3, flashkit.BFloat16: 8e-3}[o.DType()]
	dim := len(x) / len(l)
	for i, sum := range sums {
		wx, wy := math.Exp(float64(l[i])), math.Exp(float64(m[i]))
		if wx+wy == 0 {
			require.Equal(t, math.Inf(-1), sum)
			require.Zero(t, got[i*dim])
			continue
		}
		require.InDelta(t, math.Log(wx+wy), sum, 1e-6)
		for c := range dim {
			require.InDelta(t, (wx*float64(x[i*dim+c])+wy*float64(y[i*dim+c]))/(wx+wy), got[i*dim+c], 4*unit)
		}
	}
	require.NoError(t, s.Merge(o, lse, flashkit.Tensor{}, other.WithStrides(0, 0, 0)))
	scaled := valuesOf(t, s, o)
	for i, sum := range valuesOf(t, s, lse) {
		want := math.Log(math.Exp(sums[i]) + math.Exp(float64(m[0])))
		require.InDelta(t, want, sum, 1e-6)
		if !math.IsInf(sums[i], -1) {
			require.InDelta(t, got[i*dim]*math.Exp(sums[i]-want), scaled[i*dim], 4*unit)
		}
	}
}

func TestJoin(t *testing.T) {
	b, _ := openFake(t)
	joinOn(t, b)
}

func TestGPUJoin(t *testing.T) {
	b, err := Open()
	if err != nil {
		t.Skip(err)
	}
	defer b.Close()
	t.Run("join", func(t *testing.T) { joinOn(t, b) }) // which gives back what it has first
}

func TestJoinRefuses(t *testing.T) {
	list := openPair(t, true)
	s, other := openStream(t, list[0]), openStream(t, list[1])
	x, y := placed(t, s, flashkit.Float32, nil, 0, [4]int{1, 2, 3, 4}), placed(t, other, flashkit.Float32, nil, 0, [4]int{1, 2, 3, 4})
	var e *flashkit.ProblemError
	require.ErrorAs(t, s.Add(x, y, flashkit.Tensor{}), &e)
	require.Equal(t, "x", e.Field)
	require.ErrorAs(t, s.Fill(flashkit.Zeros(flashkit.Float32, 1, 1, 1, 1), 0), &e)
	require.ErrorAs(t, s.Add(x, placed(t, s, flashkit.Float32, nil, 0, [4]int{1, 2, 4, 3}), flashkit.Tensor{}), &e)
	require.ErrorAs(t, s.Fill(x.WithStrides(24, 12, 5), 0), &e)
	require.ErrorAs(t, s.Fill(x.WithStrides(24, -12, 4), 0), &e)
	require.ErrorAs(t, s.Merge(x, x, x, x), &e)
	require.ErrorAs(t, s.Copy(x, flashkit.Zeros(flashkit.Float32, 1, 2, 3, 4)), &e)
	require.ErrorAs(t, s.Copy(x, y.WithStrides(24, 12, 5)), &e)
	require.NoError(t, s.Copy(x, y), "by copies, which need not reach")
}

// Copies between devices, of tensors with equal and different layouts, in few runs and many.
func TestCopyBetweenDevices(t *testing.T) {
	for _, apart := range []bool{false, true} {
		list := openPair(t, apart)
		reached, err := list[0].Reach(list[1])
		require.NoError(t, err)
		require.Equal(t, !apart, reached)
		s, other := openStream(t, list[0]), openStream(t, list[1])
		for _, n := range [][4]int{{2, 3, 5, 4}, {1, 2, 600, 4}, {2, 1, 1, 1}} {
			x := make([]float32, n[0]*n[1]*n[2]*n[3])
			for i := range x {
				x[i] = float32(i)
			}
			for _, gaps := range [][2]int{{0, 0}, {0, 1}, {1, 0}} {
				src, dst := placed(t, other, flashkit.Float32, x, gaps[0], n), placed(t, s, flashkit.Float32, nil, gaps[1], n)
				require.NoError(t, s.Copy(dst, src))
				for i, got := range valuesOf(t, s, dst) {
					require.Equal(t, float64(x[i]), got)
				}
			}
		}
	}
}
