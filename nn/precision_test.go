package nn_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit/internal/allocs"
	"github.com/flashkit-go/flashkit/internal/half"
	"github.com/flashkit-go/flashkit/nn"
)

func roundedToBF16(x []float32) []float32 {
	y := make([]float32, len(x))
	for i, v := range x {
		y[i] = half.FromBF16(half.ToBF16(v))
	}
	return y
}

// A layer in another precision equals the float32 layer of the rounded numbers. The precision may
// change between passes. Gradients use unrounded numbers.
func TestLinearPrecision(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	l, x, dy := nn.NewLinear(nn.NewInit(3), 70, 50, true), random(r, 2, 9, 70), random(r, 2, 9, 50)
	plain := nn.NewLinear(nn.NewInit(3), 70, 50, true)
	forward := func(l *nn.Linear, x nn.Tensor) ([]float32, []float32) {
		s := training(t)
		nn.ZeroGrads(l.Params())
		y := append([]float32(nil), l.Forward(s, x).Data...)
		dx := append([]float32(nil), l.Backward(s, dy).Data...)
		require.NoError(t, s.Err())
		return y, dx
	}
	exact, dx := forward(plain, x)
	grad := append([]float32(nil), plain.Weight.Grad...)
	for range 2 {
		for _, p := range []nn.Precision{nn.BF16, nn.Float32, nn.BF16Weights} {
			l.Precision = p
			y, got := forward(l, x)
			require.Equal(t, dx, got)
			require.Equal(t, grad, l.Weight.Grad)
			want, z := nn.NewLinear(nn.NewInit(3), 70, 50, true), x
			if p != nn.Float32 {
				copy(want.Weight.Data, roundedToBF16(l.Weight.Data))
			}
			if p == nn.BF16 {
				z.Data = roundedToBF16(x.Data)
			}
			rounded, _ := forward(want, z)
			near(t, "rounded", rounded, y, 1e-5)
			apart := 0.0
			for i := range y {
				apart = max(apart, math.Abs(float64(y[i])-float64(exact[i])))
			}
			require.Equal(t, p != nn.Float32, apart > 1e-4, "apart by %g", apart)
		}
	}
}

// inLevels rounds each vector of n numbers to integers in [-127, 127] times the vector's scale.
func inLevels(x []float32, n int) []float32 {
	y := make([]float32, len(x))
	for from := 0; from < len(x); from += n {
		most := float32(0)
		for _, v := range x[from:][:n] {
			most = max(most, v, -v)
		}
		for i, v := range x[from:][:n] {
			y[from+i] = most / 127 * float32(math.RoundToEven(float64(v*(127/most))))
		}
	}
	return y
}

// A layer in Int8 equals the float32 layer of rounded numbers, also after Pack. It has the same
// bits in any batch.
func TestLinearInt8(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, act := range []nn.Activation{nn.None, nn.ReLU, nn.GELU, nn.GELUTanh, nn.SiLU} {
		l, x, residual := nn.NewLinear(nn.NewInit(3), 70, 50, true), random(r, 2, 9, 70), random(r, 2, 9, 50)
		want, z := nn.NewLinear(nn.NewInit(3), 70, 50, true), x
		l.Precision, l.Activation, want.Activation = nn.Int8, act, act
		copy(want.Weight.Data, inLevels(l.Weight.Data, 70))
		z.Data = inLevels(x.Data, 70)
		forward := func(l *nn.Linear, x nn.Tensor) []float32 {
			s := inference(t)
			y := append([]float32(nil), l.ForwardAdd(s, x, residual).Data...)
			require.NoError(t, s.Err())
			return y
		}
		y := forward(l, x)
		near(t, "rounded", forward(want, z), y, 1e-5)
		require.NoError(t, nn.Pack(l))
		l.Weight.Data = nil
		require.Equal(t, y, forward(l, x))
		s, ctx := inference(t), t.Context()
		require.Zero(t, allocs.PerRun(20, func() {
			s.Begin(ctx)
			l.ForwardAdd(s, x, residual)
		}))
	}
}

func TestInt8IsForInference(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	l := nn.NewLinear(nn.NewInit(1), 8, 8, false)
	s := training(t)
	y := l.Forward(s, random(r, 1, 3, 8))
	require.NoError(t, s.Err())
	l.Precision = nn.Int8
	l.Backward(s, y)
	require.EqualError(t, s.Err(), "nn: weight: Precision Int8 is for inference; the Step is in training")
	s = training(t)
	l.Forward(s, random(r, 1, 3, 8))
	require.EqualError(t, s.Err(), "nn: weight: Precision Int8 is for inference; the Step is in training")
}

func TestPrecisionIsChecked(t *testing.T) {
	s, l := training(t), nn.NewLinear(nn.NewInit(1), 8, 8, false)
	l.Precision = 4
	l.Forward(s, random(rand.New(rand.NewPCG(1, 2)), 1, 3, 8))
	requireProblem(t, s, "precision")
	require.ErrorContains(t, s.Err(), "weight: Precision = 4: must be Float32, BF16Weights, BF16 or Int8")
}

// Smooth reduces the error of a layer whose rows have a large feature, also after Pack. Peaks are
// the features' largest magnitudes.
func TestSmooth(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	l, x := nn.NewLinear(nn.NewInit(3), 70, 50, true), random(r, 2, 9, 70)
	for i := range x.Count() {
		x.Data[70*i+11] *= 70
	}
	forward := func() []float32 {
		s := inference(t)
		y := append([]float32(nil), l.Forward(s, x).Data...)
		require.NoError(t, s.Err())
		return y
	}
	l.Peaks = make([]float32, 70)
	exact := forward()
	for i, p := range l.Peaks {
		want := float32(0)
		for r := range x.Count() {
			want = max(want, float32(math.Abs(float64(x.Data[70*r+i]))))
		}
		require.Equal(t, want, p)
	}
	factors := l.SmoothFactors(l.Peaks)
	l.Peaks = nil
	apart := func() (sum float64) {
		for i, y := range forward() {
			sum += math.Abs(float64(y) - float64(exact[i]))
		}
		return sum
	}
	l.Precision = nn.Int8
	plain := apart()
	l.Smooth = factors
	l.Weight.Changed()
	smooth := apart()
	t.Log(plain, smooth)
	require.Less(t, 2*smooth, plain)
	require.NoError(t, nn.Pack(l))
	require.Equal(t, smooth, apart())
}

func TestSmoothIsChecked(t *testing.T) {
	x := random(rand.New(rand.NewPCG(1, 2)), 1, 3, 2)
	inf := float32(math.Inf(1))
	for _, factors := range [][]float32{{}, {1}, {1, 1, 1}, {0, 1}, {1, -1}, {1, inf}, {inf - inf, 1}, {0x1p-61, 1}} {
		l, s := nn.NewLinear(nn.NewInit(1), 2, 2, false), inference(t)
		l.Precision, l.Smooth = nn.Int8, factors
		l.Forward(s, x)
		require.ErrorContains(t, s.Err(), "weight: Smooth = ", "%v", factors)
		require.ErrorContains(t, nn.Pack(l), "weight: Smooth = ", "%v", factors)
	}
	l, s := nn.NewLinear(nn.NewInit(1), 2, 2, false), inference(t)
	l.Peaks = make([]float32, 3)
	l.Forward(s, x)
	require.ErrorContains(t, s.Err(), "weight: Peaks = 3: must have one element for each of the 2 input features")
	for _, peaks := range [][]float32{nil, {1}, {0, 0}, {1, inf}, {inf - inf, 1}} {
		require.Nil(t, l.SmoothFactors(peaks), "%v", peaks)
	}
}
