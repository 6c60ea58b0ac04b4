package encoder

import (
	"context"
	"fmt"

	"github.com/flashkit-go/flashkit/nn"
)

// A calibration has the largest magnitudes of the input features of products, by the names of their
// weights. While it records, layers raise these magnitudes.
type calibration struct {
	records bool
	peaks   map[string][]float32
}

// calibrate returns the magnitudes that the texts of Options.Calibration cause in the float32 model of
// a folder, or nil without such texts. Only products of normed rows have them: there, a few features
// are much larger than the others in all rows.
func calibrate(ctx context.Context, dir string, o Options) (*calibration, error) {
	if len(o.Calibration) == 0 {
		return nil, nil
	}
	c := &calibration{true, map[string][]float32{}}
	texts := o.Calibration
	o.Precision, o.Calibration, o.Float32, o.Progress, o.Workers = "f32", nil, nil, nil, 1
	e := &Encoder{options: o, smooth: c}
	if err := e.open(ctx, dir); err != nil {
		return nil, err
	}
	defer e.Close()
	call := e.take()
	if err := call.prepare(ctx, e.prompt.text, false, texts); err != nil {
		return nil, err
	}
	if _, err := call.run(ctx, hidden(e.model.shape().hidden), 0); err != nil {
		return nil, err
	}
	c.records = false
	return c, nil
}

// apply makes the layers record, or smooths them by the recorded magnitudes.
func (c *calibration) apply(layers []*nn.Linear) {
	if c == nil {
		return
	}
	for _, l := range layers {
		name := l.Weight.Name
		if !c.records {
			l.Smooth = l.SmoothFactors(c.peaks[name])
			continue
		}
		if c.peaks[name] == nil {
			c.peaks[name] = make([]float32, l.Weight.Shape[1])
		}
		l.Peaks = c.peaks[name]
	}
}

// keep sets the layers that stay in float32, and marks their names as found.
func (c *config) keep(layers []*nn.Linear) {
	for _, l := range layers {
		if _, listed := c.float32[l.Weight.Name]; listed {
			l.Precision, c.float32[l.Weight.Name] = nn.Float32, true
		}
	}
}

// checkKept returns an error if a name of Options.Float32 is the name of no product's weight.
func (c *config) checkKept(names []string) error {
	for _, name := range names {
		if !c.float32[name] {
			return problem("Options.Float32", fmt.Sprintf("%.60q", name), "must be the name of a product's weight, such as encoder.layer.2.output.dense.weight")
		}
	}
	return nil
}
