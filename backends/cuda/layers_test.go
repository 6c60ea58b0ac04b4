package cuda

import (
	"errors"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/flashkit-go/flashkit"
)

// layersOn compares the operations of kernels/layers.cu with plain Go, over views with gaps.
func layersOn(t *testing.T, b *Backend) {
	s, err := b.NewStream()
	require.NoError(t, err)
	defer func() { require.NoError(t, s.Close()) }()
	r := rand.New(rand.NewPCG(1, 2))
	upload := func(n int) (*Buffer, []float32) {
		x := make([]float32, n)
		for i := range x {
			x[i] = float32(r.NormFloat64()) * 2
		}
		m, err := b.Alloc(4 * n)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, m.Free()) })
		require.NoError(t, Upload(s, m, 0, x))
		return m, x
	}
	vector := func(n int) (flashkit.Tensor, []float32) {
		m, x := upload(n)
		return m.Tensor(flashkit.Float32, 0, 1, 1, 1, n), x
	}
	for _, rows := range []int{1, 7, 70} {
		const heads, dim, wide, from = 3, 38, 3*38 + 5, 2
		m, host := upload(rows*wide + from)
		x := m.Tensor(flashkit.Float32, from, 1, heads, rows, dim).WithStrides(0, dim, wide)
		bias, hostBias := vector(dim)
		weight, hostWeight := vector(dim)
		shift, hostShift := vector(dim)
		check := func(what string) {
			got := make([]float32, len(host))
			require.NoError(t, Download(s, got, m, 0))
			for i, want := range host {
				require.InDelta(t, want, got[i], 1e-5*(1+float64(max(want, -want))), "%s of %d rows: element %d", what, rows, i)
			}
			copy(host, got)
		}
		for _, n := range []Norm{{Bias: bias, Weight: weight, Shift: shift, Eps: 1e-5}, {Weight: weight, Eps: 1e-6, RMS: true}} {
			require.NoError(t, s.Normalize(x, x, &n))
			for h := range heads {
				for i := range rows {
					plainNorm(host[from+i*wide+h*dim:][:dim], &n, hostBias, hostWeight, hostShift)
				}
			}
			check("norm")
		}
		table, hostTable := upload(100 * dim)
		positions, err := b.Alloc(4 * rows)
		require.NoError(t, err)
		places := make([]int32, rows)
		for i := range places {
			places[i] = int32(r.IntN(100))
		}
		require.NoError(t, Upload(s, positions, 0, places))
		require.NoError(t, s.Rotate(x, table.Tensor(flashkit.Float32, 0, 1, 1, 100, dim), positions))
		for i := range rows {
			for h := range heads {
				row, c := host[from+i*wide+h*dim:][:dim], hostTable[int(places[i])*dim:][:dim]
				for j := range dim / 2 {
					u, v := row[j], row[j+dim/2]
					row[j], row[j+dim/2] = u*c[j]-v*c[j+dim/2], v*c[j]+u*c[j+dim/2]
				}
			}
		}
		check("rotation")
		require.NoError(t, positions.Free())
		for f := Identity; f <= SiLU; f++ {
			activatesOn(t, s, m, host, rows, wide, from, f, bias, hostBias, check)
		}
	}
}

func activatesOn(t *testing.T, s *Stream, m *Buffer, host []float32, rows, wide, from int, f Activation, bias flashkit.Tensor, hostBias []float32, check func(string)) {
	dim := len(hostBias)
	y := m.Tensor(flashkit.Float32, from, 1, 1, rows, dim).WithStrides(0, 0, wide)
	both := m.Tensor(flashkit.Float32, from, 1, 1, rows, 2*dim).WithStrides(0, 0, wide)
	require.NoError(t, s.Activate(y, y, bias, f, false))
	require.NoError(t, s.Activate(y, both, flashkit.Tensor{}, f, true))
	for i := range rows {
		row := host[from+i*wide:]
		for j := range dim {
			once := float32(fakeActivation(float64(row[j]+hostBias[j]), int32(f)))
			row[j] = float32(fakeActivation(float64(once), int32(f)) * float64(row[dim+j]))
		}
	}
	check("activation")
}

func plainNorm(x []float32, n *Norm, bias, weight, shift []float32) {
	v := &fakeView{dtype: flashkit.Float32, memory: make([]byte, 4*len(x))}
	a := &layerArgs{features: int32(len(x)), eps: n.Eps}
	floats := func(t flashkit.Tensor, x []float32) fakeFloats {
		if t.IsZero() {
			return nil
		}
		f := &fakeView{dtype: flashkit.Float32, memory: make([]byte, 4*len(x))}
		for j, e := range x {
			f.set(0, 0, 0, j, float64(e))
		}
		return f.memory
	}
	if n.RMS {
		a.kind = 1
	}
	for j, e := range x {
		v.set(0, 0, 0, j, float64(e))
	}
	normRow(v, v, a, floats(n.Bias, bias), floats(n.Weight, weight), floats(n.Shift, shift), 0, 0)
	for j := range x {
		x[j] = float32(v.get(0, 0, 0, j))
	}
}

func TestLayers(t *testing.T) {
	f := newFake()
	b, err := OpenWith(&f.Driver, 0)
	require.NoError(t, err)
	t.Run("fake", func(t *testing.T) { layersOn(t, b) })
	require.NoError(t, b.Close())
	require.Empty(t, f.leaks())
}

// Invalid operands are refused by name, and nothing is launched.
func TestLayersRefuse(t *testing.T) {
	f := newFake()
	b, err := OpenWith(&f.Driver, 0)
	require.NoError(t, err)
	s, err := b.NewStream()
	require.NoError(t, err)
	m, err := b.Alloc(4 * 64)
	require.NoError(t, err)
	gone, err := b.Alloc(4 * 64)
	require.NoError(t, err)
	require.NoError(t, gone.Free())
	x := m.Tensor(flashkit.Float32, 0, 1, 1, 4, 8)
	vector := m.Tensor(flashkit.Float32, 0, 1, 1, 1, 8)
	host := flashkit.F32(make([]float32, 32), 1, 1, 4, 8)
	for field, call := range map[string]func() error{
		"Norm.Weight": func() error { return s.Normalize(x, x, new(Norm)) },
		"Norm.Bias":   func() error { return s.Normalize(x, x, &Norm{Weight: vector, Bias: x}) },
		"Norm.Shift": func() error {
			return s.Normalize(x, x, &Norm{Weight: vector, Shift: gone.Tensor(flashkit.Float32, 0, 1, 1, 1, 8)})
		},
		"x":          func() error { return s.Normalize(x, m.Tensor(flashkit.Float32, 0, 2, 1, 4, 8), &Norm{Weight: vector}) },
		"y":          func() error { return s.Activate(x, x, flashkit.Tensor{}, ReLU, true) },
		"y on host":  func() error { return s.Activate(host, x, flashkit.Tensor{}, ReLU, false) },
		"bias":       func() error { return s.Activate(x, x, x, ReLU, false) },
		"Activation": func() error { return s.Activate(x, x, vector, SiLU+1, false) },
		"table":      func() error { return s.Rotate(x, vector.WithStrides(0, 0, 0), nil) },
		"positions":  func() error { return s.Rotate(x, x, nil) },
		"x.memory": func() error {
			return s.Normalize(x, m.Tensor(flashkit.Float32, 48, 1, 1, 4, 8), &Norm{Weight: vector})
		},
	} {
		require.Error(t, call(), field)
	}
	require.Empty(t, f.functions)
	require.NoError(t, s.Normalize(m.Tensor(flashkit.Float32, 0, 1, 1, 0, 8), m.Tensor(flashkit.Float32, 0, 1, 1, 0, 8), &Norm{Weight: vector}))
	require.Empty(t, f.functions)
	require.NoError(t, errors.Join(m.Free(), s.Close(), b.Close()))
	require.Empty(t, f.leaks())
}

// Every image of layers holds its kernels.
func TestImagesHoldLayers(t *testing.T) {
	for _, arch := range []int{80, 86, 89, 90} {
		image, err := readImage(imageFiles, "layers", arch)
		require.NoError(t, err)
		parsed, err := parseImage(image)
		require.NoError(t, err)
		for _, name := range layerNames {
			require.True(t, parsed.functions[name], "sm_%d lacks %s", arch, name)
			require.Len(t, parsed.plans[name+"_plan"], 16)
		}
	}
	ptx, err := readImage(imageFiles, "layers", 120)
	require.NoError(t, err)
	for _, name := range layerNames {
		require.Contains(t, string(ptx), ".entry "+name+"(")
	}
}
