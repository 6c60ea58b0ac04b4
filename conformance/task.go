package conformance

import (
	"encoding/json"
	"errors"
	"slices"

	"github.com/flashkit-go/flashkit"
	"github.com/flashkit-go/flashkit/safetensors"
)

// Files of a runner's folder. The judge writes the first two, the runner writes the outputs.
const (
	TaskFile    = "case.json"
	InputsFile  = "inputs.safetensors"
	OutputsFile = "outputs.safetensors"
)

// Tasks returns all cases with a golden vector, each in all its types, in the order of the manifest.
func Tasks() (cases []Case) {
	for _, c := range slices.Concat(Grid(), Traps()) {
		for _, t := range c.types() {
			cases = append(cases, c.InDType(t))
		}
	}
	return cases
}

// Task returns the two files that a runner reads: case.json and the inputs in the case's type.
// vectors/README.md describes them.
func (c Case) Task() (text []byte, inputs *safetensors.File, err error) {
	_, bound, err := c.expect()
	if err != nil {
		return nil, nil, err
	}
	p, r := c.Problem, c.record()
	r.Name, r.DType, r.KVDType = c.FullName(), p.DType.String(), p.KVType().String()
	in := c.Inputs()
	if p.Score.Bias {
		r.BiasDType = in.biasType(p).String()
	}
	r.Bounds = map[string]map[string]float64{r.DType: boundsByName(bound, r.Outputs)}
	if text, err = json.MarshalIndent(&r, "", " "); err != nil {
		return nil, nil, err
	}
	inputs, err = in.file(p)
	return append(text, '\n'), inputs, err
}

func (in *Inputs) biasType(p flashkit.Problem) flashkit.DType {
	if in.narrowPairs {
		return p.DType
	}
	return flashkit.Float32
}

// file returns the inputs of problem p as a file, in p's types.
func (in *Inputs) file(p flashkit.Problem) (*safetensors.File, error) {
	f, errs := &safetensors.File{}, []error(nil)
	add := func(name string, t flashkit.DType, x []float32, shape ...int) {
		dense := [4]int{1, 1, 1, 1}
		copy(dense[4-len(shape):], shape)
		y := place(name, t, dense, bhsd, false)
		y.fill(dense, func(b, r int) (batch, row int) { return b, r }, false)
		y.set(x)
		z, err := safetensors.Encode(name, y.tensor)
		z.Shape = shape
		f.Tensors, errs = append(f.Tensors, z), append(errs, err)
	}
	four := func(name string, t flashkit.DType, x []float32, s [4]int) {
		if x != nil {
			add(name, t, x, s[:]...)
		}
	}
	rows := func(name string, x []float32) {
		if x != nil {
			add(name, flashkit.Float32, x, p.Batch, p.Heads, p.QLen)
		}
	}
	four("q", p.DType, in.q, p.QShape())
	four("k", p.KVType(), in.array("K", flashkit.PassForward, result{}), p.KShape())
	four("v", p.KVType(), in.array("V", flashkit.PassForward, result{}), p.VShape())
	four("kscale", flashkit.Float32, in.kScale, scaleShape(&p, false))
	four("vscale", flashkit.Float32, in.vScale, scaleShape(&p, true))
	if hasBackward(p) {
		four("do", p.DType, in.do, p.OShape())
	}
	rows("dlse", in.dlse)
	four("bias", in.biasType(p), in.bias.x, in.bias.shape)
	four("mask", flashkit.Bool, in.mask.x, in.mask.shape)
	four("ranges", flashkit.Int32, in.ranges.x, in.ranges.shape)
	if in.features.slopes != nil {
		add("slopes", flashkit.Float32, in.features.slopes, len(in.features.slopes)/p.Heads, p.Heads)
	}
	if in.sink != nil {
		add("sink", flashkit.Float32, in.sink, p.Heads)
	}
	for i, lens := range [][]int32{in.qLens, in.kvLens} {
		if lens != nil {
			f.Tensors = append(f.Tensors, safetensors.FromInt32s([]string{"q_lens", "kv_lens"}[i], []int{p.Batch}, lens))
		}
	}
	four("earlier", p.DType, in.earlier, p.OShape())
	rows("earlier_lse", in.earlierLSE)
	return f, errors.Join(errs...)
}
